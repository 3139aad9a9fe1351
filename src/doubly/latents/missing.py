"""Learning from rows with holes (NaN), where that takes more than leaving their factors out."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.batch import Memory, Visit
from doubly.latents.estimator import Estimator
from doubly.latents.gibbs import pack, unpack
from doubly.latents.importance import Draws, choose, join, pick, weigh
from doubly.latents.nais import NAIS
from doubly.layers import Layer
from doubly.layers.chain import Chain


def for_holes(estimator: Estimator, model: Chain) -> Estimator:
    """The estimator made fit for rows with holes."""
    if not isinstance(estimator, NAIS):
        name = type(estimator).__name__.lower()
        raise UserError(f"the estimator {name} needs complete rows, but the data have holes: take estimator nais")
    if model.layers[0].factorised:
        return estimator
    objective = estimator.objective
    if not objective.weighted:
        raise UserError(
            f"the objective {type(objective).__name__.lower()} needs complete rows or a data layer whose values are "
            f"independent, got holes and {type(model.layers[0]).__name__}: choose wake, sleep or wake-sleep"
        )
    return HollowNAIS(**{field.name: getattr(estimator, field.name) for field in dataclasses.fields(NAIS)})


@dataclass(frozen=True)
class HollowNAIS(NAIS):
    """NAIS for rows with holes under a data layer whose values have an order: what fills the holes is remembered.

    To S fresh draws of (x_missing, z) comes the one that the last visit left, s = 0, with its weight: the gradients are
    those of NAIS over s = 0…S, and one of all, chosen by its weight, is left for the next visit. The visits are a chain
    that leaves p(x_missing, z | x_observed, theta) as it is, and under that law the gradient for theta is right in the
    mean for any S (iterated sampling importance resampling, Andrieu, Lee & Vihola 2018).

    The memory holds hollow.x (N, D) and hollow.z1, …, eight binary values in a byte, and is changed in place, as that
    of `Gibbs`. The statistic `train` has the remembered draw in it, so that it is no bound on log p(x).
    """

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        """Zeros; what they are is forgotten with the first draw that weighs more."""
        kept = {
            name: _put(layer, torch.zeros(n_data, layer.n_out, device=rng.device))
            for name, layer in zip(_names(chain), chain.layers, strict=True)
        }
        return super().init(chain, n_data, rng) | kept

    def look(self, visit: Visit, pathwise: bool) -> Draws:
        fresh = super().look(visit, pathwise)
        chain, theta, proposal, phi, x, index, memory, rng = visit
        names, layers = _names(chain), chain.layers
        present, *hidden = (
            _get(layer, memory[name][index], x)[None] for name, layer in zip(names, layers, strict=True)
        )
        filled = torch.where(x.isnan(), present, x)
        drawn = join(weigh(chain, theta, proposal, phi, x, tuple(hidden), filled), fresh)
        assert drawn.filled is not None
        chosen = choose(drawn.log_weight.detach(), rng)
        for name, layer, values in zip(names, layers, (drawn.filled, *drawn.hidden), strict=True):
            memory[name][index] = _put(layer, pick(values, chosen))
        return drawn


def _names(chain: Chain) -> list[str]:
    return ["hollow.x", *(f"hollow.z{level}" for level in range(1, len(chain.layers)))]


def _put(layer: Layer, value: Tensor) -> Tensor:
    return pack(value) if layer.kind == "binary" else value


def _get(layer: Layer, kept: Tensor, like: Tensor) -> Tensor:
    return unpack(kept, layer.n_out, like.dtype) if layer.kind == "binary" else kept.to(like.dtype)
