"""Conditional NADE: binary values, each predicted by a hidden layer that has seen those before it.

p(x_i = 1 | x_<i) = sigmoid(V_i . sigmoid(c + sum_j<i x_j W_j) + r_i)

c (..., H) is where the hidden layer starts and r (..., D) the bias of the outputs, both with what is given in them. W
and V are (D, H): row j of W is what x_j = 1 adds, row i of V what output i reads. The axes in front broadcast: value
(B, D) may be shared by draws of c and r, (S, B, ·), as may c (H,) and r (D,) by values (S, B, D).
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from doubly.kernels import bernoulli, choose
from doubly.kernels.noise import NO_KEY, key
from doubly.kernels.rows import as_arrays, as_rows, broadcast, rows_that_count, taken

Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def log_prob(c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor) -> Tensor:
    """log p(value)."""
    return (fused_log_prob if choose.fused(c, r, W, V, fixed=(value,)) else plain_log_prob)(c, r, W, V, value)


def draw(
    c: Tensor, r: Tensor, W: Tensor, V: Tensor, rng: torch.Generator, draws: int | None = None
) -> tuple[Tensor, Tensor]:
    """A value and its log_prob; with `draws`, that many of each along a new leading axis."""
    return (fused_draw if choose.fused(c, r, W, V) else plain_draw)(c, r, W, V, rng, draws)


def logits(c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor) -> Tensor:
    """The log-odds of each x_i = 1 given the entries of the value before it."""
    if choose.wants_grad(c, r, W, V) or not choose.fused(c, r, W, V, fixed=(value,)):
        return plain_logits(c, r, W, V, value)
    return fused_logits(c, r, W, V, value)


def plain_log_prob(c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor) -> Tensor:
    return bernoulli.plain_log_prob(plain_logits(c, r, W, V, value), value)


def plain_logits(c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor) -> Tensor:
    a = c.expand(*_shape(c, r, value)[:-1], -1)
    # autograd would keep a hidden layer for each output; it keeps one for each block, and makes the others again
    size = max(1, math.isqrt(len(V)))
    blocks, keeping = [], choose.wants_grad(c, r, W, V, value)
    for block in zip(W.split(size), V.split(size), value.split(size, -1), strict=True):
        if keeping:
            a, part = checkpoint(_outputs, a, *block, use_reentrant=False, preserve_rng_state=False)
        else:
            a, part = _outputs(a, *block)
        blocks.append(part)
    return torch.cat(blocks, -1) + r


def _outputs(a: Tensor, W: Tensor, V: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """V_i . sigmoid(a) for some outputs, and the `a` after them."""
    outputs = []
    for w, v, x in zip(W, V, value.unbind(-1), strict=True):
        outputs.append(torch.sigmoid(a) @ v)
        a = a + x.unsqueeze(-1) * w
    return a, torch.stack(outputs, -1)


def plain_draw(
    c: Tensor, r: Tensor, W: Tensor, V: Tensor, rng: torch.Generator, draws: int | None = None
) -> tuple[Tensor, Tensor]:
    value = torch.empty(_drawn_shape(c, r, draws), dtype=c.dtype, device=c.device)
    conditional = torch.empty_like(value)
    with torch.no_grad():
        a = c.expand(*value.shape[:-1], -1)
        for i, (w, v) in enumerate(zip(W, V, strict=True)):
            conditional[..., i] = torch.sigmoid(a) @ v + r[..., i]
            value[..., i] = bernoulli.plain_draw(conditional[..., i], rng)
            a = a + value[..., i, None] * w
    if choose.wants_grad(c, r, W, V):
        return value, plain_log_prob(c, r, W, V, value)
    return value, bernoulli.plain_log_prob(conditional, value)


def fused_log_prob(c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor) -> Tensor:
    return _fused(c, r, W, V, value, None, _shape(c, r, value))


def fused_logits(c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor) -> Tensor:
    shape = _shape(c, r, value)
    rows = _rows(c, r, W, V, value, shape)
    return _run(*rows, None, math.prod(shape[:-1]), asked=True).logits.view(shape)


def fused_draw(
    c: Tensor, r: Tensor, W: Tensor, V: Tensor, rng: torch.Generator, draws: int | None = None
) -> tuple[Tensor, Tensor]:
    value = torch.empty(_drawn_shape(c, r, draws), dtype=c.dtype, device=c.device)
    return value, _fused(c, r, W, V, value, rng, tuple(value.shape))


def _shape(c: Tensor, r: Tensor, value: Tensor) -> tuple[int, ...]:
    return *broadcast(c.shape[:-1], r.shape[:-1], value.shape[:-1]), r.shape[-1]


def _drawn_shape(c: Tensor, r: Tensor, draws: int | None) -> tuple[int, ...]:
    shape = *broadcast(c.shape[:-1], r.shape[:-1]), r.shape[-1]
    return shape if draws is None else (draws, *shape)


def _fused(
    c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor, rng: torch.Generator | None, shape: tuple[int, ...]
) -> Tensor:
    """log_prob; with a generator, the value is drawn first, into the tensor that is given."""
    rows, n = _rows(c, r, W, V, value, shape), math.prod(shape[:-1])
    log_prob = _LogProb.apply(*rows, rng, n) if choose.wants_grad(c, r, W, V) else _run(*rows, rng, n).log_prob
    return log_prob.view(shape[:-1])


def _rows(c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor, shape: tuple[int, ...]) -> Rows:
    width = c.shape[-1]
    if value.shape[-1] != shape[-1] or W.shape != (shape[-1], width) or V.shape != (shape[-1], width):
        raise ValueError(
            f"W {tuple(W.shape)} and V {tuple(V.shape)} must be (outputs, hidden units), as the last axes of r "
            f"{tuple(r.shape)}, value {tuple(value.shape)} and c {tuple(c.shape)} say"
        )
    return as_rows(c, (*shape[:-1], width)), as_rows(r, shape), W.contiguous(), V.contiguous(), as_rows(value, shape)


class _Run(NamedTuple):
    """Of n rows: log_prob; logits if asked for; for a backward pass, value - sigmoid(logits) and the last hidden layer.

    `exact` says in which form each tile of rows has that hidden layer.
    """

    log_prob: Tensor
    logits: Tensor
    residual: Tensor
    end: Tensor
    exact: Tensor


def _run(
    c: Tensor,
    r: Tensor,
    W: Tensor,
    V: Tensor,
    value: Tensor,
    rng: torch.Generator | None,
    n: int,
    *,
    asked: bool = False,
    backward: bool = False,
) -> _Run:
    loops = choose.loops()
    width, n_hidden = V.shape
    logits, residual = c.new_empty(n * asked, width), c.new_empty(n * backward, width)
    end, exact = c.new_empty(n * backward, n_hidden), torch.empty(math.ceil(n / loops.ROWS), dtype=torch.bool)
    run = _Run(c.new_empty(n), logits, residual, end, exact)
    drawn = rng is not None, *(NO_KEY if rng is None else key(rng))
    loops.nade(*as_arrays(c, r, W, V, value), *drawn, *as_arrays(*run))
    return run


class _LogProb(torch.autograd.Function):
    """The gradient needs no hidden layer but the last: the steps that led to it are undone one by one."""

    @staticmethod
    def forward(
        ctx: Any, c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor, rng: torch.Generator | None, n: int
    ) -> Tensor:
        run = _run(c, r, W, V, value, rng, n, backward=True)
        ctx.n_c, ctx.n_r = len(c), len(r)
        ctx.save_for_backward(W, V, value, run.residual, run.end, run.exact)
        return run.log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        W, V, value, residual, end, exact = ctx.saved_tensors
        n, counted = len(grad), None if exact.any() else rows_that_count(grad)  # a tile is exact as a whole
        if counted is not None:
            (value,), (end, residual, grad) = taken(counted % len(value), value), taken(counted, end, residual, grad)
            exact = exact[: math.ceil(len(counted) / choose.loops().ROWS)]
        weight = residual * grad.unsqueeze(-1)
        grad_c, grad_W, grad_V = torch.empty_like(end), torch.empty_like(W), torch.empty_like(V)
        choose.loops().nade_backward(*as_arrays(W, V, value, weight, end, exact, grad_c, grad_W, grad_V))
        if counted is not None:
            grad_c, weight = _at(counted, grad_c, n), _at(counted, weight, n)
        return _summed(grad_c, ctx.n_c), _summed(weight, ctx.n_r), grad_W, grad_V, None, None, None


def _at(index: np.ndarray, rows: Tensor, n: int) -> Tensor:
    """n rows that are zero but for those that have this index."""
    return rows.new_zeros(n, rows.shape[1]).index_copy_(0, torch.from_numpy(index), rows)


def _summed(rows: Tensor, n: int) -> Tensor:
    """The rows that wrap around to each of n, added up."""
    return rows if len(rows) == n else rows.view(-1, n, rows.shape[1]).sum(0)
