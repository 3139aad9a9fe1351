"""Draws of the latent variables from the proposal, their importance weights, and what can be read off them.

Values of a row may be missing (NaN) where the proposal is masked. Then p(x_observed, z) takes the place of p(x, z), if
the values of the data layer are independent. If they have an order, x_missing is drawn along with z, by
r = prod_missing p(x_i | x_<i, z), which counts as a part of the proposal. Either way the mean weight is p(x_observed).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.latents.pair import Pair
from doubly.layers import Chain, Drawn, Values


class Draws(NamedTuple):
    """S draws for each of B rows: latents (S, B, H), from the data upward, and log densities (S, B)."""

    latents: Values
    log_p: Tensor
    log_q: Tensor
    completed: Tensor | None = None
    """The rows with what was drawn for their missing values (S, B, D), where that is drawn along."""

    @property
    def log_weight(self) -> Tensor:
        """log p(x, z) - log q(z | x)."""
        return self.log_p - self.log_q


def propose(
    pair: Pair,
    x: Tensor,
    draws: int,
    rng: torch.Generator,
    pathwise: bool = False,
    shifts: Tensor | None = None,
) -> Draws:
    """z ~ q(z | x; phi), with log p(x, z | theta) and log q(z | x; phi), both ready to be differentiated.

    With `pathwise`, z itself carries the gradient with respect to phi. `shifts` are what each row adds to the proposal
    (see `refine`).
    """
    values, log_q = pair.proposal.draw(pair.phi, x, rng, draws, pathwise, shifts)
    latents = values[::-1]  # the proposal ends in the top layer, where the model starts

    def complete() -> Drawn:
        layer, params = pair.data_layer
        return layer.impute(params, x.expand(draws, *x.shape), x.isnan(), pair.given(latents), rng)

    return _weighed(pair, x, latents, log_q, complete)


def weigh(pair: Pair, x: Tensor, latents: Values, completed: Tensor) -> Draws:
    """What `propose` tells of its draws, of latents that are there already; `completed` is x with nothing missing."""

    def complete() -> Drawn:
        layer, params = pair.data_layer
        cells = layer.cells(params, completed, pair.given(latents))
        return Drawn(completed, cells.masked_fill(x.isnan(), 0).sum(-1))

    return _weighed(pair, x, latents, pair.proposal.log_prob(pair.phi, latents[::-1], x), complete)


def _weighed(pair: Pair, x: Tensor, latents: Values, log_q: Tensor, complete: Callable[[], Drawn]) -> Draws:
    """Draws with their densities; `complete` gives completed rows, and the log density of what was observed."""
    if not pair.proposal.masked:
        return Draws(latents, pair.model.log_prob(pair.theta, (x, *latents)), log_q)
    (layer, params), given = pair.data_layer, pair.given(latents)
    log_z = pair.model.log_prob_latents(pair.theta, latents)
    if layer.factorised:
        return Draws(latents, log_z + layer.log_prob_observed(params, x, given), log_q)
    with torch.no_grad():
        rows, log_observed = complete()
    log_x = layer.log_prob(params, rows, given)
    # what is not of the observed is log r
    return Draws(latents, log_z + log_x, log_q + (log_x - log_observed).detach(), rows)


def join(one: Draws, other: Draws) -> Draws:
    """All of these draws."""
    completed = None
    if one.completed is not None and other.completed is not None:
        completed = torch.cat([one.completed, other.completed])
    latents = tuple(torch.cat(both) for both in zip(one.latents, other.latents, strict=True))
    return Draws(latents, torch.cat([one.log_p, other.log_p]), torch.cat([one.log_q, other.log_q]), completed)


def choose(log_weight: Tensor, rng: torch.Generator) -> Tensor:
    """One of the candidates (candidates, …), with probabilities in proportion to the weights."""
    uniform = torch.rand(log_weight.shape, generator=rng, dtype=log_weight.dtype, device=log_weight.device)
    return (log_weight - torch.log(-torch.log(uniform.clamp(1e-30, 1 - 1e-7)))).argmax(0)  # the Gumbel trick


def pick(candidates: Tensor, chosen: Tensor) -> Tensor:
    """Those that were chosen, of candidates (candidates, …, H)."""
    index = chosen[None, ..., None].expand(1, *candidates.shape[1:])
    return candidates.gather(0, index).squeeze(0)


class Survivors(NamedTuple):
    """Some of S draws for each of B rows: which draw of which row each is, and its weight in the place of the lost."""

    draw: Tensor
    row: Tensor
    weight: Tensor


def survivors(weight: Tensor, number: int, rng: torch.Generator) -> Survivors:
    """Systematic resampling: points, evenly spaced from a random start, are laid on the weights (S, B) of each row.

    A draw of weight w is hit number * w times in the mean, rounded up or down; hits / number is its new weight. What is
    estimated with these is in the mean what all the draws estimate.
    """
    edges = weight.double().cumsum(0)
    start = torch.rand(weight.shape[1], generator=rng, dtype=edges.dtype, device=weight.device)
    below = (number * edges / edges[-1] - start).ceil_()  # points below each edge; below the last, all
    hits = below.diff(dim=0, prepend=below.new_zeros(1, len(start)))
    draw, row = hits.nonzero(as_tuple=True)
    return Survivors(draw, row, (hits[draw, row] / number).to(weight.dtype))


def is_exact(model: Chain, proposal: Chain) -> bool:
    """Whether log p(x) needs no draws: there are no latents, and no missing value has to be drawn."""
    return not proposal.layers and (model.layers[0].factorised or not proposal.masked)


def normalised(log_weight: Tensor) -> Tensor:
    """Weights that sum to one over the draws, and through which no gradient flows."""
    return torch.softmax(log_weight.detach(), 0)


def log_mean_weight(log_weight: Tensor) -> Tensor:
    """log of the mean weight over the draws: an estimate of log p(x), in expectation from below."""
    return torch.logsumexp(log_weight, 0) - math.log(log_weight.shape[0])


def ess(weight: Tensor) -> Tensor:
    """1 / sum w^2 of normalised weights: how many equally weighted draws these are worth."""
    return weight.square().sum(0).reciprocal_()


class Marginal(NamedTuple):
    """log p(x) estimated for each row, with the effective number of draws behind it."""

    log_likelihood: Tensor
    ess: Tensor
