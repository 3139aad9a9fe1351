"""Bernoulli variables whose log-odds are linear in what is given: values and residuals in one pass over the product.

What is given is most often several draws for each row, nearly alike: then the product is taken of what they have in
common, and each adds the few columns in which it is different.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubly.kernels import bernoulli, choose
from doubly.kernels.bernoulli import weighted_sum
from doubly.kernels.noise import NO_KEY, key
from doubly.kernels.rows import as_arrays, as_rows, broadcast, new, rows_that_count, taken

VOTERS = 31  # draws, of which most decide what is common
NARROW = 32  # widths below which there is nothing to be gained
FEW = 3  # draws for which the same is true
# What adding a column costs, in units of its part of a matrix product: in the forward pass and in the backward pass.
FORTH, BACK = 3.5, 7.0
WORK = 2**25  # multiplications of a product, below which no row is left out: picking rows takes calls of its own


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
        log_prob, residual = _score_in_place(given, weight, offset, value, True, given.shape[:1])
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
    where: np.ndarray
    number: np.ndarray

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What the loops read."""
        return *as_arrays(self.given, self.common), self.where, self.number

    def worth(self, counted: np.ndarray | None) -> bool:
        """Whether, in the backward pass, the common rows and the differences take less than the rows that count."""
        number = self.number if counted is None else self.number[counted]
        return _worth(BACK, int(number.sum()), self.common.shape[0], len(number), self.given.shape[1])


def compare(given: Tensor, shape: tuple[int, ...]) -> Alike | None:
    """The draws (along the first axis) for each row, if they are alike enough to be worth it."""
    draws, width = shape[0], given.shape[-1]
    if len(shape) < 3 or draws < FEW or not NARROW <= width <= torch.iinfo(torch.int16).max or len(given) % draws:
        return None
    rows, common = given.shape[0], np.empty((given.shape[0] // draws, width), np.float32)
    where, number = np.empty(given.shape, np.int16), np.empty(rows, np.int32)
    choose.loops().differences(*as_arrays(given), min(draws, VOTERS), common, where, number)
    differences = int(number.sum())
    if not _worth(FORTH, differences, common.shape[0], rows, width):
        return None
    return Alike(given, torch.from_numpy(common), where, number)


def _worth(cost: float, differences: int, common: int, rows: int, width: int) -> bool:
    return common * width + cost * differences < rows * width


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
        one_each = len(self.given) == len(self.residual)
        counted = rows_that_count(weight) if one_each and self.given.numel() * self.residual.shape[1] > WORK else None
        alike = self.alike if self.alike is not None and self.alike.worth(counted) else None
        if alike is None and one_each:  # rows are weighed on the narrower side
            given, residual = self.given, self.residual
            if counted is not None:
                given, residual, weight = taken(counted, given, residual, weight)
            turned = residual.transpose(0, 1)
            torch.mm(turned, given * weight.view(-1, 1), out=of_weight)
            torch.mv(turned, weight, out=of_bias)
            return
        if counted is not None:  # the loop over differences passes rows without weight by
            (weight, light), (heavy,) = new(len(weight)), as_arrays(weight)
            light[:] = 0
            light[counted] = heavy[counted]
        if not self.given.shape[1]:  # only the bias has weights
            torch.mv(self.residual.transpose(0, 1), weight, out=of_bias)
            return
        given = self.given if alike is None else alike.common
        total = weighted_sum(weight, self.residual, len(given))
        torch.sum(total, 0, out=of_bias)
        if alike is None:
            torch.mm(total.transpose(0, 1), given, out=of_weight)
            return
        columns = given.t() @ total  # weighted_sum has checked the weight
        choose.loops().alike_backward(*as_arrays(weight), *alike.arrays, *as_arrays(self.residual, columns))
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
        logits = torch.addmm(offset, given, weight.transpose(0, 1))
        if fused:
            log_prob, residual = bernoulli.run(logits, as_arrays(rows)[0], None, grad, shape[:-1])
        else:
            log_prob, residual = bernoulli.plain_run(logits, rows)
        return Linear(log_prob.view(shape[:-1]), given, residual)
    alike = compare(given, shape) if binary else None
    if alike is not None and len(offset) in (1, len(alike.common)):
        log_prob, residual = _score_alike(alike, weight, offset, as_arrays(rows)[0], None, grad, shape[:-1])
    else:
        alike = None
        log_prob, residual = _score_in_place(given, weight, offset, rows, grad, shape[:-1])
    return Linear(log_prob, given, residual, alike)


def draw_vjp(
    given: Tensor,
    weight: Tensor,
    bias: Tensor,
    rng: torch.Generator,
    draws: int | None,
    grad: bool,
    binary: bool = True,
    logits: Tensor | None = None,
) -> tuple[Tensor, Linear]:
    """Of a value that is drawn; with `draws`, so many for each row that is given, whose log-odds may be there."""
    shape = (*given.shape[:-1], weight.shape[0]) if draws is None else (draws, *given.shape[:-1], weight.shape[0])
    if not choose.fused(given, weight, bias):
        given = _given_rows(given, shape)
        if logits is None:
            logits = torch.addmm(bias, given, weight.transpose(0, 1))
        drawn_rows = bernoulli.plain_draw(logits, rng, draws).view(-1, shape[-1])
        log_prob, residual = bernoulli.plain_run(logits, drawn_rows)
        return drawn_rows.view(shape), Linear(log_prob.view(shape[:-1]), given, residual)
    value, drawn = new(*shape)
    rows, given = drawn.reshape(-1, shape[-1]), _given_rows(given, shape)
    alike = compare(given, shape) if binary and draws is None else None
    if alike is not None:
        log_prob, residual = _score_alike(alike, weight, bias[None], rows, rng, grad, shape[:-1])
    else:
        if logits is None:
            logits = torch.addmm(bias, given, weight.transpose(0, 1))
        log_prob, residual = bernoulli.run(logits, rows, rng, grad, shape[:-1])
    return value, Linear(log_prob, given, residual, alike)


def rows_of_log_odds(given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The log-odds of all rows that are given, as a matrix."""
    return torch.addmm(bias, _given_rows(given, given.shape), weight.transpose(0, 1))


def _score_in_place(
    given: Tensor, weight: Tensor, offset: Tensor, value: Tensor, keep: bool, axes: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """log_prob and, where it is to be kept, the residual, in the place of the product."""
    n = given.shape[0]
    (logits, product), (log_prob, found) = new(n, weight.shape[0]), new(*axes)
    torch.mm(given, weight.transpose(0, 1), out=logits)
    choose.loops().bernoulli_shifted(product, *as_arrays(offset, value), keep, found.reshape(-1))
    return log_prob, logits


def _score_alike(
    alike: Alike,
    weight: Tensor,
    offset: Tensor,
    value: np.ndarray,
    rng: torch.Generator | None,
    keep: bool,
    axes: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """The same of rows that are nearly alike; with a generator, the value is drawn first."""
    columns, n = weight.t().contiguous(), len(alike.given)
    logits = torch.addmm(offset, alike.common, columns)
    (log_prob, found), (residual, left) = new(*axes), new(n if keep else 0, logits.shape[1])
    drawn = rng is not None, *(NO_KEY if rng is None else key(rng))
    choose.loops().alike(*alike.arrays, *as_arrays(columns, logits), value, *drawn, found.reshape(-1), left)
    return log_prob, residual


def _given_rows(given: Tensor, shape: tuple[int, ...]) -> Tensor:
    if not given.shape[-1]:
        return given.new_empty(math.prod(given.shape[:-1]), 0)
    return as_rows(given, (*shape[:-1], given.shape[-1]))
