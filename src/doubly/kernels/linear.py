"""Bernoulli variables whose log-odds are linear in what is given: values and residuals in one pass over the product.

What is given is most often several draws for each row, nearly alike: then the product is taken of what they have in
common, and each adds the few columns in which it is different.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubly.kernels import bernoulli, choose
from doubly.kernels.bernoulli import weighted_sum
from doubly.kernels.noise import NO_KEY, key
from doubly.kernels.rows import as_arrays, as_rows, broadcast

VOTERS = 31  # draws, of which most decide what is common
NARROW = 32  # widths below which there is nothing to be gained
FEW = 3  # draws for which the same is true
# What adding a column costs, in units of its part of a matrix product: in the forward pass and in the backward pass.
FORTH, BACK = 3.5, 7.0


def affine(given: Tensor, weight: Tensor, offset: Tensor) -> Tensor:
    """given W^T + offset, which is one row, or has a row for each row that is given."""
    return F.linear(given, weight, offset) if offset.dim() == 1 else F.linear(given, weight) + offset


def log_prob(given: Tensor, weight: Tensor, offset: Tensor, value: Tensor) -> Tensor:
    """`bernoulli.log_prob` of the log-odds given W^T + offset, which is one row or as many as there are values."""
    shape = broadcast((*given.shape[:-1], weight.shape[0]), offset.shape, value.shape)
    if not (given.shape[-1] and given.shape[:-1] == shape[:-1] and choose.fused(given, weight, offset, fixed=(value,))):
        return bernoulli.log_prob(affine(given, weight, offset), value)
    if not choose.wants_grad(given, weight, offset):
        return log_prob_vjp(given, weight, offset, value, grad=False).log_prob
    rows = as_rows(given, given.shape), weight, as_rows(offset, shape), as_rows(value, shape)
    found: Tensor = _LogProb.apply(*rows)
    return found if len(shape) == 2 else found.view(shape[:-1])


class _LogProb(torch.autograd.Function):
    """The product is written once: its residuals take its place, and rows are weighed on the narrower side."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, offset: Tensor, value: Tensor) -> Tensor:
        log_prob, residual = _score_in_place(given, weight, offset, value, keep=True)
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
        return of_given, of_weight, weighted_sum(grad, residual, ctx.n_offsets) if to_offset else None, None


class Alike(NamedTuple):
    """Rows, what those that wrap around to one have in common, and where each is different from that."""

    given: Tensor
    common: Tensor
    where: Tensor
    number: Tensor

    def worth(self, cost: float) -> bool:
        """Whether the product of the common rows and the differences, at that cost, are less than the whole product."""
        return len(self.common) * self.given.shape[1] + cost * int(self.number.sum()) < self.given.numel()


def compare(given: Tensor, shape: tuple[int, ...]) -> Alike | None:
    """The draws (along the first axis) for each row, if they are alike enough to be worth it."""
    draws, width = shape[0], given.shape[-1]
    if len(shape) < 3 or draws < FEW or not NARROW <= width <= torch.iinfo(torch.int16).max or len(given) % draws:
        return None
    found = Alike(
        given,
        given.new_empty(len(given) // draws, width),
        given.new_empty(given.shape, dtype=torch.int16),
        given.new_empty(len(given), dtype=torch.int32),
    )
    given_, *rest = as_arrays(*found)
    choose.loops().differences(given_, min(draws, VOTERS), *rest)
    return found if found.worth(FORTH) else None


@dataclass(frozen=True)
class Linear:
    """The log-probability of values whose log-odds are given W^T + b, and what its gradient is made of."""

    log_prob: Tensor
    given: Tensor
    residual: Tensor
    alike: Alike | None = None

    def to_given(self, weight: Tensor, matrix: Tensor) -> Tensor:
        """The gradient of the weighted sum with respect to the rows that were given."""
        if self.given.shape[0] == self.residual.shape[0]:  # rows are weighed on the narrower side
            return torch.mm(self.residual, matrix).mul_(weight.view(-1, 1))
        return torch.mm(weighted_sum(weight.reshape(-1), self.residual, self.given.shape[0]), matrix)

    def vjp(self, weight: Tensor, of_weight: Tensor, of_bias: Tensor) -> None:
        """Write the gradients with respect to W and b of the weighted sum over the rows."""
        weight = weight.reshape(-1)
        alike = self.alike if self.alike is not None and self.alike.worth(BACK) else None
        if alike is None and len(self.given) == len(self.residual):  # rows are weighed on the narrower side
            torch.mm(self.residual.t(), self.given * weight[:, None], out=of_weight)
            torch.mv(self.residual.t(), weight, out=of_bias)
            return
        given = self.given if alike is None else alike.common
        total = weighted_sum(weight, self.residual, len(given))
        torch.sum(total, 0, out=of_bias)
        if alike is None:
            torch.mm(total.t(), given, out=of_weight)
            return
        columns = given.t() @ total  # weighted_sum has checked the weight
        choose.loops().alike_backward(*as_arrays(weight, *alike, self.residual, columns))
        of_weight.copy_(columns.t())


def log_prob_vjp(
    given: Tensor, weight: Tensor, offset: Tensor, value: Tensor, grad: bool, binary: bool = True
) -> Linear:
    """Of a value that is there. Row k of the value is row k % n of the n that are given, or the other way round.

    Only `binary` rows that are given may be nearly alike.
    """
    shape = broadcast((*given.shape[:-1], weight.shape[0]), value.shape)
    given, rows, offset = _given_rows(given, shape), as_rows(value, shape), as_rows(offset, shape)
    fused = choose.fused(given, weight, offset, rows)
    if not fused or len(given) < len(rows):
        logits = torch.addmm(offset, given, weight.t())
        log_prob, residual = bernoulli.run(logits, rows, None, grad) if fused else bernoulli.plain_run(logits, rows)
        return Linear(log_prob.view(shape[:-1]), given, residual)
    alike = compare(given, shape) if binary else None
    if alike is not None and len(offset) in (1, len(alike.common)):
        log_prob, residual = _score_alike(alike, weight, offset, rows, None, grad)
    else:
        alike = None
        log_prob, residual = _score_in_place(given, weight, offset, rows, grad)
    return Linear(log_prob.view(shape[:-1]), given, residual, alike)


def draw_vjp(
    given: Tensor,
    weight: Tensor,
    bias: Tensor,
    rng: torch.Generator,
    draws: int | None,
    grad: bool,
    binary: bool = True,
) -> tuple[Tensor, Linear]:
    """Of a value that is drawn; with `draws`, so many for each row that is given."""
    shape = (*given.shape[:-1], weight.shape[0]) if draws is None else (draws, *given.shape[:-1], weight.shape[0])
    given = _given_rows(given, shape)
    if not choose.fused(given, weight, bias):
        logits = torch.addmm(bias, given, weight.t())
        rows = bernoulli.plain_draw(logits, rng, draws).view(-1, shape[-1])
        log_prob, residual = bernoulli.plain_run(logits, rows)
        return rows.view(shape), Linear(log_prob.view(shape[:-1]), given, residual)
    value = given.new_empty(shape)
    rows = value.view(-1, shape[-1])
    alike = compare(given, shape) if binary and draws is None else None
    if alike is not None:
        log_prob, residual = _score_alike(alike, weight, bias[None], rows, rng, grad)
    else:
        log_prob, residual = bernoulli.run(torch.addmm(bias, given, weight.t()), rows, rng, grad)
    return value, Linear(log_prob.view(shape[:-1]), given, residual, alike)


def _score_in_place(given: Tensor, weight: Tensor, offset: Tensor, value: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """log_prob and, where it is to be kept, the residual, in the place of the product."""
    logits, log_prob = given @ weight.t(), given.new_empty(len(given))
    choose.loops().bernoulli_shifted(*as_arrays(logits, offset, value), keep, *as_arrays(log_prob))
    return log_prob, logits


def _score_alike(
    alike: Alike, weight: Tensor, offset: Tensor, value: Tensor, rng: torch.Generator | None, keep: bool
) -> tuple[Tensor, Tensor]:
    """The same of rows that are nearly alike; with a generator, the value is drawn first."""
    columns, n = weight.t().contiguous(), len(alike.given)
    logits = torch.addmm(offset, alike.common, columns)
    log_prob, residual = logits.new_empty(n), logits.new_empty(n if keep else 0, logits.shape[1])
    drawn = rng is not None, *(NO_KEY if rng is None else key(rng))
    choose.loops().alike(*as_arrays(*alike, columns, logits, value), *drawn, *as_arrays(log_prob, residual))
    return log_prob, residual


def _given_rows(given: Tensor, shape: tuple[int, ...]) -> Tensor:
    if not given.shape[-1]:
        return given.new_empty(math.prod(given.shape[:-1]), 0)
    return as_rows(given, (*shape[:-1], given.shape[-1]))
