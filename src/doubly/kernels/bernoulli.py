"""Bernoulli variables by their log-odds."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubly.kernels import choose
from doubly.kernels.noise import NO_KEY, key
from doubly.kernels.rows import as_arrays, as_rows, broadcast, new

CERTAINLY_0 = -1e4  # log-odds whose sigmoid is 0 in any precision


def log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """sum_i value_i logits_i - softplus(logits_i) over the last axis; finite for any finite logits."""
    return (fused_log_prob if choose.fused(logits, fixed=(value,)) else plain_log_prob)(logits, value)


def observed_log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """The sum over those entries of the value that are not NaN."""
    missing = value.isnan()
    # a 0 that is as good as certain has neither density nor gradient left
    return log_prob(logits.masked_fill(missing, CERTAINLY_0), value.masked_fill(missing, 0))


def cells(logits: Tensor, value: Tensor) -> Tensor:
    """The terms of `log_prob`, one for each entry."""
    return value * logits + F.logsigmoid(-logits)


def draw(logits: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    """0 or 1 with these log-odds; with `draws`, that many of each along a new leading axis."""
    return (fused_draw if choose.fused(logits) else plain_draw)(logits, rng, draws)


def draw_with_log_prob(logits: Tensor, rng: torch.Generator, draws: int | None = None) -> tuple[Tensor, Tensor]:
    """What `draw` gives, and its `log_prob`, in one go."""
    if choose.fused(logits):
        return fused_draw_with_log_prob(logits, rng, draws)
    value = plain_draw(logits, rng, draws)
    return value, plain_log_prob(logits, value)


@choose.compilable
def plain_log_prob(logits: Tensor, value: Tensor) -> Tensor:
    return cells(logits, value).sum(-1)


def plain_draw(logits: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    probability = torch.sigmoid(logits.detach())
    shape = probability.shape if draws is None else (draws, *probability.shape)
    uniform = torch.rand(shape, generator=rng, dtype=logits.dtype, device=logits.device)
    # exactly 0 comes up once in 2^24: left alone it would draw what is impossible, with an enormous weight
    return (uniform.clamp_(min=2**-25) < probability).to(logits.dtype)


def fused_log_prob(logits: Tensor, value: Tensor) -> Tensor:
    return _fused(logits, value, None, broadcast(logits.shape, value.shape))


def fused_draw(logits: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    value = _to_be_drawn(logits, draws)
    rows = as_rows(logits, value.shape), as_rows(value, value.shape)
    choose.loops().bernoulli_draw(*as_arrays(*rows), *key(rng))
    return value


def fused_draw_with_log_prob(logits: Tensor, rng: torch.Generator, draws: int | None = None) -> tuple[Tensor, Tensor]:
    value = _to_be_drawn(logits, draws)
    return value, _fused(logits, value, rng, value.shape)


def _to_be_drawn(logits: Tensor, draws: int | None) -> Tensor:
    return logits.new_empty(logits.shape if draws is None else (draws, *logits.shape))


def _fused(logits: Tensor, value: Tensor, rng: torch.Generator | None, shape: tuple[int, ...]) -> Tensor:
    """log_prob; with a generator, the value is drawn first, into the tensor that is given."""
    rows = as_rows(logits, shape), as_rows(value, shape)
    if not choose.wants_grad(logits):
        return run(rows[0], as_arrays(rows[1])[0], rng, False, shape[:-1])[0]
    log_prob: Tensor = _LogProb.apply(*rows, rng)
    return log_prob if len(shape) == 2 else log_prob.view(shape[:-1])


def run(
    logits: Tensor, value: np.ndarray, rng: torch.Generator | None, keep: bool, axes: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """log_prob, in these axes, and where it is to be kept the residual value - sigmoid(logits), of rows that wrap
    around."""
    (n_logits, width), n_values = logits.shape, value.shape[0]
    n = max(n_logits, n_values)
    if width != value.shape[1] or n % max(1, n_logits) or n % max(1, n_values):
        raise ValueError(f"rows {tuple(logits.shape)} of log-odds and {tuple(value.shape)} of values do not fit")
    (log_prob, found), (residual, left) = new(*axes), new(n if keep else 0, width)
    drawn = rng is not None, *(NO_KEY if rng is None else key(rng))
    choose.loops().bernoulli(*as_arrays(logits), value, *drawn, found.reshape(-1), left)
    return log_prob, residual


def plain_run(logits: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """What `run` gives of values that are there."""
    least = min(logits.shape[0], value.shape[0])
    wide = logits.view(-1, least, logits.shape[1]), value.view(-1, least, logits.shape[1])
    return plain_log_prob(*wide).view(-1), (wide[1] - torch.sigmoid(wide[0])).view(-1, logits.shape[1])


class _LogProb(torch.autograd.Function):
    """The forward pass gives the residual too, with which the backward pass is a multiplication."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, rng: torch.Generator | None) -> Tensor:
        n = max(logits.shape[0], value.shape[0])
        log_prob, residual = run(logits, as_arrays(value)[0], rng, True, (n,))
        ctx.n_logits = len(logits)
        ctx.save_for_backward(residual)
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (residual,) = ctx.saved_tensors
        return weighted_sum(grad, residual, ctx.n_logits), None, None


def weighted_sum(weight: Tensor, rows: Tensor, n: int) -> Tensor:
    """The rows times their weights, added up for each of n, around which they wrap."""
    if n == 1:
        return (weight @ rows)[None]
    if weight.shape != rows.shape[:1]:
        raise ValueError(f"one weight for each of {len(rows)} rows is expected, got {tuple(weight.shape)}")
    if not choose.fused(weight, rows):
        return (weight[:, None] * rows).view(-1, n, rows.shape[1]).sum(0)
    out, sums = new(n, rows.shape[1])
    choose.loops().weighted_sum(*as_arrays(weight.contiguous(), rows), sums)
    return out
