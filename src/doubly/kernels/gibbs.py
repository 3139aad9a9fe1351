"""Gibbs sweeps over a vector z of binary units that feed logistic ones.

log p(z) = sum_k z_k f_k + 1/2 sum_jk z_j V_jk z_k - sum_i c_i softplus(l_i + sum_k z_k W_ki) + constant

is what hidden units have between their layer above, which is in f, and the units i that they feed, those of the layer
below and, in an autoregressive layer, each other (V). c_i is 1, or the power to which the unit i has been raised.
Unit k, given the others, is 1 with log-odds

field_k - sum_i c_i [softplus(logits_i where z_k = 1) - softplus(logits_i where z_k = 0)],

field = f + V z and logits = l + W^T z. These two follow z as it changes, so that one unit costs one pass over the
logits and not a matrix product.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.kernels import bernoulli, choose
from doubly.kernels.noise import NO_KEY, key
from doubly.kernels.rows import as_arrays, as_rows

Blocks = tuple[tuple[int, float], ...]


class Swept(NamedTuple):
    """New values, and the log-odds with which each was drawn; NaN where none was."""

    value: Tensor
    log_odds: Tensor


def sweep(
    value: Tensor,
    field: Tensor,
    logits: Tensor,
    W: Tensor,
    V: Tensor | None,
    rng: torch.Generator,
    blocks: Blocks | None = None,
    chosen: Tensor | None = None,
) -> Swept:
    """Draw units of `value` (..., H) once, in order, each given all the others.

    `field` (..., H) and `logits` (..., I) are those of the present value, and broadcast with it; W is (H, I), and
    V (H, H) is symmetric with a zero diagonal, or None if it is all zero. Nothing is changed in place.

    `blocks` are pairs (count, power) that divide the logits from the first to the last: the softplus of each counts
    power times, by default once. What the field has of them is the caller's to scale.

    `chosen` (..., H), of bool or uint8, broadcasts like the field and says which units are drawn, by default all. The
    others keep their values, and their log-odds are NaN. The sweep leaves the law of z as it is as long as the choice
    does not depend on z.
    """
    tensors = value, field, logits, W, *(() if V is None else (V,))
    run = fused_sweep if choose.fused(*tensors) else plain_sweep
    return run(value, field, logits, W, V, rng, blocks, chosen)


def log_transition(
    value: Tensor,
    field: Tensor,
    logits: Tensor,
    W: Tensor,
    V: Tensor | None,
    to: Tensor,
    blocks: Blocks | None = None,
) -> Tensor:
    """log T(to <- value) (...): how likely it is that a sweep over all units of `value` gives `to` (..., H).

    This is the same pass over the logits as a sweep, in which every unit becomes what `to` has in place of a draw.
    """
    tensors = value, field, logits, W, to, *(() if V is None else (V,))
    run = fused_sweep if choose.fused(*tensors) else plain_sweep
    odds = run(value, field, logits, W, V, to, blocks).log_odds
    return F.logsigmoid((2 * to - 1) * odds).sum(-1)


@torch.no_grad()
def plain_sweep(
    value: Tensor,
    field: Tensor,
    logits: Tensor,
    W: Tensor,
    V: Tensor | None,
    source: torch.Generator | Tensor,
    blocks: Blocks | None = None,
    chosen: Tensor | None = None,
) -> Swept:
    """`source` draws the units, or is what they become (..., H)."""
    counts, powers = _divided(blocks, logits.shape[-1])
    shape, n_units = value.shape, value.shape[-1]
    logits = logits.expand(*shape[:-1], -1).reshape(-1, W.shape[1]).clone()
    value, field = (tensor.expand(shape).reshape(-1, n_units).clone() for tensor in (value, field))
    drawn = None if chosen is None else chosen.expand(shape).reshape(-1, n_units).bool()
    if isinstance(source, Tensor):
        source = source.expand(shape).reshape(-1, n_units)
    log_odds = torch.full_like(value, torch.nan)
    for k in range(n_units):
        # a device is not asked which rows are drawn, for that would make the step wait: all are, and some stay
        stays = None if drawn is None or _is_asked(drawn) else ~drawn[:, k]
        rows = slice(None) if drawn is None or stays is not None else drawn[:, k].nonzero().squeeze(-1)
        here, old = logits[rows], value[rows, k, None].clone()
        on, off = torch.addcmul(here, 1 - old, W[k]), torch.addcmul(here, old, W[k], value=-1)
        fed = (F.softplus(on) - F.softplus(off)).split(counts, -1)
        odds = field[rows, k] - sum(power * part.sum(-1) for part, power in zip(fed, powers, strict=True))
        new = source[rows, k] if isinstance(source, Tensor) else bernoulli.plain_draw(odds, source)
        if stays is not None:
            odds, new = odds.masked_fill(stays, torch.nan), torch.where(stays, old.squeeze(-1), new)
        log_odds[rows, k], value[rows, k] = odds, new
        change = new[:, None] - old
        logits[rows] = torch.addcmul(here, change, W[k])
        if V is not None:
            field[rows] = torch.addcmul(field[rows], change, V[k])
    return Swept(value.view(shape), log_odds.view(shape))


def _is_asked(tensor: Tensor) -> bool:
    return tensor.is_cpu


def fused_sweep(
    value: Tensor,
    field: Tensor,
    logits: Tensor,
    W: Tensor,
    V: Tensor | None,
    source: torch.Generator | Tensor,
    blocks: Blocks | None = None,
    chosen: Tensor | None = None,
) -> Swept:
    n_units, n_fed = value.shape[-1], logits.shape[-1]
    counts, powers = _divided(blocks, n_fed)
    square = value.new_empty(0, n_units) if V is None else V
    if field.shape[-1] != n_units:
        raise ValueError(f"a field for each of {n_units} units is expected, got {tuple(field.shape)}")
    if W.shape != (n_units, n_fed) or square.shape not in ((0, n_units), (n_units, n_units)):
        raise ValueError(f"W {tuple(W.shape)} and V {tuple(square.shape)} do not fit {n_units} units that feed {n_fed}")
    value = value.detach().clone(memory_format=torch.contiguous_format)
    drawn = torch.empty(0, n_units, dtype=torch.uint8) if chosen is None else chosen.to(torch.uint8)
    log_odds = torch.empty_like(value)
    rows = [as_rows(tensor, (*value.shape[:-1], tensor.shape[-1])) for tensor in (value, field, logits)]
    if chosen is not None:
        drawn = as_rows(drawn, tuple(value.shape))
    forced, at = value.new_empty(0, n_units), NO_KEY
    if isinstance(source, Tensor):
        forced = as_rows(source, tuple(value.shape))
    else:
        at = key(source)
    arrays = as_arrays(*rows, drawn, forced, W.contiguous(), square.contiguous(), log_odds.view(-1, n_units))
    choose.loops().gibbs(*arrays, np.array(counts, np.int64), np.array(powers, np.float64), *at)
    return Swept(value, log_odds)


def _divided(blocks: Blocks | None, n_fed: int) -> tuple[list[int], list[float]]:
    """Counts and powers; neighbours with the same power are one block."""
    counts, powers = [n_fed], [1.0]
    if blocks is not None:
        if min((count for count, _ in blocks), default=0) < 0 or sum(count for count, _ in blocks) != n_fed:
            raise ValueError(f"the blocks {blocks} do not divide {n_fed} logits")
        counts, powers = [], []
        for count, power in blocks:
            if powers and powers[-1] == power:
                counts[-1] += count
            else:
                counts.append(count)
                powers.append(float(power))
    return counts, powers
