"""DARN: binary values whose log-odds are linear in the values before them. Only drawing needs a loop.

p(x_i = 1 | x_<i) = sigmoid(r_i + sum_j<i W_ij x_j)

r (..., D) has what is given in it, and W (D, D) is strictly lower triangular. The log-probability of a value x is that
of `bernoulli` with logits r + x W^T, one product for all draws that share x: `sums_before`. `square` makes W from its
triangle.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubly.kernels import bernoulli, choose
from doubly.kernels.noise import key
from doubly.kernels.rows import as_arrays, as_rows


def draw(r: Tensor, W: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    """One value for each r; with `draws`, that many of each along a new leading axis."""
    return (fused_draw if choose.fused(r, W) else plain_draw)(r, W, rng, draws)


@torch.no_grad()
def plain_draw(r: Tensor, W: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    value = torch.zeros(r.shape if draws is None else (draws, *r.shape), dtype=r.dtype, device=r.device)
    for i in range(r.shape[-1]):
        value[..., i] = bernoulli.plain_draw(r[..., i] + value[..., :i] @ W[i, :i], rng)
    return value


def fused_draw(r: Tensor, W: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    if W.shape != 2 * r.shape[-1:]:
        raise ValueError(f"W {tuple(W.shape)} must be a square matrix, as wide as r {tuple(r.shape)}")
    value = r.new_empty(r.shape if draws is None else (draws, *r.shape))
    rows = as_rows(r, value.shape), W.t().contiguous(), as_rows(value, value.shape)
    choose.loops().darn_draw(*as_arrays(*rows), *key(rng))
    return value


def sums_before(value: Tensor, triangle: Tensor) -> Tensor:
    """sum_j<i W_ij value_j for every i, where `triangle` is the strictly lower triangle of W, row by row."""
    if choose.fused(triangle, fixed=(value,)):
        return fused_sums_before(value, triangle)
    return F.linear(value, square(triangle, value.shape[-1]))


def fused_sums_before(value: Tensor, triangle: Tensor) -> Tensor:
    n = value.shape[-1]
    sums: Tensor = _SumsBefore.apply(value.reshape(-1, n), triangle)
    return sums.view(value.shape)


class _SumsBefore(torch.autograd.Function):
    """The product in blocks of rows of W, of each no more than what may differ from 0: five eighths of the work."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, triangle: Tensor) -> Tensor:
        out, n = torch.empty_like(value), value.shape[1]
        W = value.new_empty(n, n)
        _unpack(W, triangle, _block(n))
        for start, end in _blocks(n):
            torch.mm(value[:, :end], W[start:end, :end].t(), out=out[:, start:end])
        ctx.save_for_backward(value)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (value,) = ctx.saved_tensors
        n = value.shape[1]
        of_square, of_triangle = value.new_empty(n, n), value.new_empty(n * (n - 1) // 2)
        for start, end in _blocks(n):
            torch.mm(grad[:, start:end].t(), value[:, :end], out=of_square[start:end, :end])
        choose.loops().darn_triangle(*as_arrays(of_square, of_triangle))
        return None, of_triangle


def _block(n: int) -> int:
    """How many rows go together: a quarter of them, unless that makes products too small to be worth their calls."""
    return max(64, -(-n // 4))


def _blocks(n: int) -> list[tuple[int, int]]:
    return [(start, min(n, start + _block(n))) for start in range(0, n, _block(n))]


def _unpack(square: Tensor, triangle: Tensor, block: int) -> None:
    _check(triangle, len(square))
    choose.loops().darn_square(*as_arrays(triangle.contiguous()), block, *as_arrays(square))


def _check(triangle: Tensor, n: int) -> None:
    if triangle.shape != (n * (n - 1) // 2,):
        raise ValueError(f"a triangle of {n} rows has {n * (n - 1) // 2} entries, got shape {tuple(triangle.shape)}")


def square(triangle: Tensor, n: int) -> Tensor:
    """The n × n matrix, zero on and above its diagonal, whose strictly lower triangle is given row by row.

    >>> square(torch.tensor([1.0, 2.0, 3.0]), 3)
    tensor([[0., 0., 0.],
            [1., 0., 0.],
            [2., 3., 0.]])
    """
    _check(triangle, n)
    return (fused_square if choose.fused(triangle) else plain_square)(triangle, n)


def plain_square(triangle: Tensor, n: int) -> Tensor:
    return triangle.new_zeros(n * n).index_copy_(0, below_diagonal(n, triangle.device), triangle).view(n, n)


@functools.lru_cache(maxsize=64)
def below_diagonal(n: int, device: torch.device) -> Tensor:
    """Where the strictly lower triangle, row by row, stands in a flattened n × n matrix."""
    rows, columns = torch.tril_indices(n, n, offset=-1, device=device)
    found: Tensor = rows * n + columns
    return found


def fused_square(triangle: Tensor, n: int) -> Tensor:
    out: Tensor = _Square.apply(triangle, n)
    return out


class _Square(torch.autograd.Function):
    """Copying rows, either way: much quicker than going through the index of every entry."""

    @staticmethod
    def forward(ctx: Any, triangle: Tensor, n: int) -> Tensor:
        out = triangle.new_empty(n, n)
        _unpack(out, triangle, n)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        n = len(grad)
        out = grad.new_empty(n * (n - 1) // 2)
        choose.loops().darn_triangle(*as_arrays(grad.contiguous(), out))
        return out, None
