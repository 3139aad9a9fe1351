"""Gibbs sweeps over the hidden layers of a chain: every unit is drawn in turn, given all others."""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.errors import UserError
from doubly.kernels import darn, gibbs
from doubly.layers import DARN, SBN, Layer, Params
from doubly.model import Chain, Values, nothing


@torch.no_grad()
def sweep(chain: Chain, theta: Tensor, x: Tensor, hidden: Values, rng: torch.Generator, beta: float = 1.0) -> Values:
    """One sweep over all hidden layers (…, H), from the bottom to the top; x broadcasts with them.

    It leaves p(z) p(x | z)^beta as it is: with beta = 1, the posterior.
    """
    layers = chain_log_odds(chain, theta)
    values = [x, *hidden, nothing(theta)]
    for level in range(1, len(layers)):
        own, below = layers[level], layers[level - 1]
        above, value, under = values[level + 1], values[level], values[level - 1]
        own_logits = F.linear(above, own.given, own.bias)
        power = beta if level == 1 else 1.0  # only the data are tempered
        field = own_logits + power * F.linear(under, below.given.T)
        logits = F.linear(value, below.given, below.bias)
        if below.before is not None:
            logits = logits + F.linear(under, below.before)
        W, V, blocks = below.given.T, None, [(below.given.shape[0], power)]
        if own.before is not None:  # the units feed each other as they feed the layer below
            logits = torch.cat([logits, own_logits + F.linear(value, own.before)], -1)
            W, V = torch.cat([W, own.before.T], -1), own.before + own.before.T
            field = field + F.linear(value, V)
            blocks.append((own.before.shape[0], 1.0))
        values[level] = gibbs.sweep(value, field, logits, W, V, rng, tuple(blocks)).value
    return tuple(values[1:-1])


class LogOdds(NamedTuple):
    """Log-odds that are linear: bias + given · (what the layer is given) + before · (its own values before each)."""

    bias: Tensor
    given: Tensor
    before: Tensor | None = None


@functools.singledispatch
def log_odds(layer: Layer, params: Params) -> LogOdds:
    """The log-odds of a layer's values; a layer of one's own is made fit for Gibbs sampling by registering it here."""
    raise UserError(
        f"Gibbs sampling needs sbn or darn layers, got {type(layer).__name__}: change the model, or take estimator nais"
    )


@log_odds.register
def _(layer: SBN, params: Params) -> LogOdds:
    return LogOdds(params["b"], params["W"])


@log_odds.register
def _(layer: DARN, params: Params) -> LogOdds:
    put_back = layer.out_of_order
    square = darn.square(params["W"], layer.n_out)
    return LogOdds(put_back(params["b"]), put_back(params["U"].T).T, put_back(put_back(square).T).T)


def chain_log_odds(chain: Chain, theta: Tensor) -> list[LogOdds]:
    """Those of every layer, data layer first."""
    return [log_odds(layer, params) for layer, params in zip(chain.layers, chain.unflatten(theta), strict=True)]
