"""Bernoulli variables by their log-odds."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubly.kernels import choose
from doubly.kernels.noise import NO_KEY, key
from doubly.kernels.rows import as_arrays, as_rows, broadcast

CERTAINLY_0 = -1e4  # log-odds whose sigmoid is 0 in any precision


def log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """sum_i value_i logits_i - softplus(logits_i) over the last axis; finite for any finite logits."""
    return (fused_log_prob if choose.fused(logits, fixed=(value,)) else plain_log_prob)(logits, value)


def linear_log_prob(given: Tensor, weight: Tensor, offset: Tensor, value: Tensor) -> Tensor:
    """`log_prob` of the log-odds given W^T + offset, where the offset is one row or as many as there are values."""
    shape = broadcast((*given.shape[:-1], weight.shape[0]), offset.shape, value.shape)
    if given.shape[-1] and given.shape[:-1] == shape[:-1] and choose.fused(given, weight, offset, fixed=(value,)):
        return fused_linear_log_prob(given, weight, offset, value, shape)
    return log_prob(F.linear(given, weight) + offset, value)


def known_log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """The sum over those entries of the value that are not NaN."""
    holes = value.isnan()
    # a 0 that is as good as certain has neither density nor gradient left
    return log_prob(logits.masked_fill(holes, CERTAINLY_0), value.masked_fill(holes, 0))


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


def fused_linear_log_prob(
    given: Tensor, weight: Tensor, offset: Tensor, value: Tensor, shape: tuple[int, ...]
) -> Tensor:
    log_prob: Tensor = _LinearLogProb.apply(
        as_rows(given, given.shape), weight, as_rows(offset, shape), as_rows(value, shape)
    )
    return log_prob if len(shape) == 2 else log_prob.view(shape[:-1])


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
    log_prob = _LogProb.apply(*rows, rng) if choose.wants_grad(logits) else _run(*rows, rng, keep=False)[0]
    return log_prob if len(shape) == 2 else log_prob.view(shape[:-1])


def _run(logits: Tensor, value: Tensor, rng: torch.Generator | None, keep: bool) -> tuple[Tensor, Tensor]:
    """log_prob and residual value - sigmoid(logits), the latter where it is to be kept, of rows that wrap around."""
    n = max(len(logits), len(value))
    log_prob, residual = value.new_empty(n), value.new_empty(n if keep else 0, logits.shape[1])
    drawn = rng is not None, *(NO_KEY if rng is None else key(rng))
    choose.loops().bernoulli(*as_arrays(logits, value), *drawn, *as_arrays(log_prob, residual))
    return log_prob, residual


class _LogProb(torch.autograd.Function):
    """The forward pass gives the residual too, with which the backward pass is a multiplication."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, rng: torch.Generator | None) -> Tensor:
        log_prob, residual = _run(logits, value, rng, keep=True)
        ctx.n_logits = len(logits)
        ctx.save_for_backward(residual)
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (residual,) = ctx.saved_tensors
        return _weighted_sum(grad, residual, ctx.n_logits), None, None


class _LinearLogProb(torch.autograd.Function):
    """The product is written once: its residuals take its place, and rows are weighed on the narrower side."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, offset: Tensor, value: Tensor) -> Tensor:
        log_prob, residual = _score_linear(given, weight, offset, value, keep=any(ctx.needs_input_grad))
        ctx.n_offsets = len(offset)
        ctx.save_for_backward(given, weight, residual)
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        given, weight, residual = ctx.saved_tensors
        to_given, to_weight, to_offset, _ = ctx.needs_input_grad
        of_given = (residual @ weight).mul_(grad[:, None]) if to_given else None
        of_weight = residual.t() @ (given * grad[:, None]) if to_weight else None
        return of_given, of_weight, _weighted_sum(grad, residual, ctx.n_offsets) if to_offset else None, None


def _score_linear(given: Tensor, weight: Tensor, offset: Tensor, value: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """log_prob and, where it is to be kept, the residual, in the place of the product."""
    logits, log_prob = given @ weight.t(), given.new_empty(len(given))
    choose.loops().bernoulli_shifted(*as_arrays(logits, offset, value), keep, *as_arrays(log_prob))
    return log_prob, logits


def _weighted_sum(weight: Tensor, rows: Tensor, n: int) -> Tensor:
    """The rows times their weights, added up for each of n, around which they wrap."""
    if n == 1:
        return (weight @ rows)[None]
    out = rows.new_empty(n, rows.shape[1])
    choose.loops().weighted_sum(*as_arrays(weight.contiguous(), rows, out))
    return out


@dataclass(frozen=True)
class Linear:
    """The log-probability of values whose log-odds are given W^T + b, and what its gradient is made of."""

    log_prob: Tensor
    given: Tensor
    residual: Tensor

    def pull(self, weight: Tensor, of_weight: Tensor, of_bias: Tensor) -> None:
        """Write the gradients with respect to W and b of the weighted sum over the rows."""
        weight = weight.reshape(-1)
        if len(self.given) == len(self.residual):  # rows are weighed on the narrower side
            torch.mm(self.residual.t(), self.given * weight[:, None], out=of_weight)
            torch.mv(self.residual.t(), weight, out=of_bias)
            return
        total = _weighted_sum(weight, self.residual, len(self.given))
        torch.mm(total.t(), self.given, out=of_weight)
        torch.sum(total, 0, out=of_bias)


def track_linear(given: Tensor, weight: Tensor, bias: Tensor, value: Tensor, back: bool) -> Linear:
    """Of a value that is there. Row k of the value is row k % n of the n that are given, or the other way round."""
    shape = broadcast((*given.shape[:-1], weight.shape[0]), value.shape)
    given, rows = _given_rows(given), as_rows(value, shape)
    if len(given) >= len(rows):
        log_prob, residual = _score_linear(given, weight, bias[None], rows, back)
    else:
        log_prob, residual = _run(torch.addmm(bias, given, weight.t()), rows, None, back)
    return Linear(log_prob.view(shape[:-1]), given, residual)


def track_linear_draw(
    given: Tensor, weight: Tensor, bias: Tensor, rng: torch.Generator, draws: int | None, back: bool
) -> tuple[Tensor, Linear]:
    """Of a value that is drawn; with `draws`, so many for each row that is given."""
    shape = (*given.shape[:-1], weight.shape[0]) if draws is None else (draws, *given.shape[:-1], weight.shape[0])
    given, value = _given_rows(given), given.new_empty(shape)
    log_prob, residual = _run(torch.addmm(bias, given, weight.t()), value.view(-1, shape[-1]), rng, back)
    return value, Linear(log_prob.view(shape[:-1]), given, residual)


def _given_rows(given: Tensor) -> Tensor:
    return given.reshape(-1, given.shape[-1]) if given.shape[-1] else given.new_empty(max(1, given[..., :1].numel()), 0)
