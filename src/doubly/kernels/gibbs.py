"""Gibbs sweeps over a vector z of binary units that feed logistic ones.

log p(z) = sum_k z_k f_k + 1/2 sum_jk z_j V_jk z_k - sum_i c_i softplus(l_i + sum_k z_k W_ki) + constant

is what hidden units have between their layer above, which is in f, and the units i that they feed, those of the layer
below and, in an autoregressive layer, each other (V). c_i is 1, or a power beta to which the units i have been raised.
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
from doubly.kernels.noise import key
from doubly.kernels.rows import as_arrays, as_rows


class Swept(NamedTuple):
    """New values, and the log-odds with which each was drawn."""

    value: Tensor
    log_odds: Tensor


def sweep(
    value: Tensor,
    field: Tensor,
    logits: Tensor,
    W: Tensor,
    V: Tensor | None,
    rng: torch.Generator,
    tempered: int = 0,
    beta: float = 1.0,
) -> Swept:
    """Draw every unit of `value` (..., H) once, in order, each given all the others.

    `field` (..., H) and `logits` (..., I) are those of the present value, and broadcast with it; W is (H, I), and
    V (H, H) is symmetric with a zero diagonal, or None if it is all zero. The softplus of the first `tempered` logits
    counts beta times; what the field has of them is the caller's to scale. Nothing is changed in place.
    """
    tensors = value, field, logits, W, *(() if V is None else (V,))
    run = fused_sweep if choose.fused(*tensors) else plain_sweep
    return run(value, field, logits, W, V, rng, tempered, beta)


@torch.no_grad()
def plain_sweep(
    value: Tensor,
    field: Tensor,
    logits: Tensor,
    W: Tensor,
    V: Tensor | None,
    rng: torch.Generator,
    tempered: int = 0,
    beta: float = 1.0,
) -> Swept:
    value, logits = value.clone(), logits.expand(*value.shape[:-1], -1).clone()
    field = field.expand(value.shape).clone()
    log_odds = torch.empty_like(value)
    for k in range(value.shape[-1]):
        old = value[..., k : k + 1].clone()
        on, off = torch.addcmul(logits, 1 - old, W[k]), torch.addcmul(logits, old, W[k], value=-1)
        fed = F.softplus(on) - F.softplus(off)
        log_odds[..., k] = field[..., k] - fed[..., tempered:].sum(-1)
        if tempered:
            log_odds[..., k] -= beta * fed[..., :tempered].sum(-1)
        value[..., k] = bernoulli.plain_draw(log_odds[..., k], rng)
        change = value[..., k : k + 1] - old
        logits.addcmul_(change, W[k])
        if V is not None:
            field.addcmul_(change, V[k])
    return Swept(value, log_odds)


def fused_sweep(
    value: Tensor,
    field: Tensor,
    logits: Tensor,
    W: Tensor,
    V: Tensor | None,
    rng: torch.Generator,
    tempered: int = 0,
    beta: float = 1.0,
) -> Swept:
    n_units, n_fed = value.shape[-1], logits.shape[-1]
    square = value.new_empty(0, n_units) if V is None else V
    if W.shape != (n_units, n_fed) or square.shape not in ((0, n_units), (n_units, n_units)):
        raise ValueError(f"W {tuple(W.shape)} and V {tuple(square.shape)} do not fit {n_units} units that feed {n_fed}")
    value = value.detach().clone(memory_format=torch.contiguous_format)
    log_odds = torch.empty_like(value)
    rows = [as_rows(tensor, (*value.shape[:-1], tensor.shape[-1])) for tensor in (value, field, logits)]
    weights = W.contiguous(), square.contiguous()
    arrays = as_arrays(*rows, *weights, log_odds.view(-1, n_units))
    choose.loops().gibbs(*arrays, tempered, np.float32(beta), *key(rng))
    return Swept(value, log_odds)
