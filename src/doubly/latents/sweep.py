"""Gibbs sweeps over the latent layers of a chain: every unit is drawn in turn, given all others."""

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import gibbs
from doubly.layers import LogOdds
from doubly.layers.chain import Chain, Values, nothing


@torch.no_grad()
def sweep(chain: Chain, theta: Tensor, x: Tensor, latents: Values, rng: torch.Generator, beta: float = 1.0) -> Values:
    """One sweep over all latent layers (…, H), from the bottom to the top; x broadcasts with them.

    It leaves p(z) p(x | z)^beta as it is: with beta = 1, the posterior.
    """
    layers = chain_log_odds(chain, theta)
    values = [x, *latents, nothing(theta)]
    for level in range(1, len(layers)):
        own, below = layers[level], layers[level - 1]
        above, value, under = values[level + 1], values[level], values[level - 1]
        own_logits = F.linear(above, own.given, own.bias)
        power = beta if level == 1 else 1.0  # only the data are tempered
        field = own_logits + power * F.linear(under, below.given.T)
        logits = F.linear(value, below.given, below.bias)
        if below.before is not None:
            logits = logits + F.linear(under, below.before)
        W, V = below.given.T, None
        if own.before is not None:  # the units feed each other as they feed the layer below
            logits = torch.cat([logits, own_logits + F.linear(value, own.before)], -1)
            W, V = torch.cat([W, own.before.T], -1), own.before + own.before.T
            field = field + F.linear(value, V)
        tempered = 0 if power == 1 else below.given.shape[0]
        values[level] = gibbs.sweep(value, field, logits, W, V, rng, tempered, power).value
    return tuple(values[1:-1])


def chain_log_odds(chain: Chain, theta: Tensor) -> list[LogOdds]:
    """The linear log-odds of every layer, data layer first; an error where a layer has none."""
    found = [layer.linear_log_odds(params) for layer, params in zip(chain.layers, chain.unflatten(theta), strict=True)]
    for layer, log_odds in zip(chain.layers, found, strict=True):
        if log_odds is None:
            raise UserError(
                f"Gibbs sampling needs sbn or darn layers, got {type(layer).__name__}: change the model, or take "
                "estimator nais"
            )
    return [log_odds for log_odds in found if log_odds is not None]


def is_swept(chain: Chain) -> bool:
    """Whether Gibbs sweeps serve every layer: binary, with linear log-odds."""
    return all(layer.is_linear for layer in chain.layers)
