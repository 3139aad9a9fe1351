"""DARN: binary values whose log-odds are linear in the values before them. Only drawing needs a loop.

p(x_i = 1 | x_<i) = sigmoid(r_i + sum_j<i W_ij x_j)

r (..., D) has what is given in it, and W (D, D) is strictly lower triangular. The log-probability of a value x is that
of `bernoulli` with logits r + x W^T, one product for all draws that share x.
"""

import torch
from torch import Tensor

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
