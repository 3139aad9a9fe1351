"""Draws of the hidden variables from the proposal, their importance weights, and what can be read off them.

Rows may have holes (NaN) where the proposal is masked. Then p(x_observed, z) takes the place of p(x, z), if the values
of the data layer are independent. If they have an order, x_missing is drawn along with z, by r = prod_missing
p(x_i | x_<i, z), which counts as a part of the proposal. Either way the mean weight is p(x_observed).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.layers import Drawn, Layer, Params
from doubly.layers.chain import Chain, Values, nothing


class Draws(NamedTuple):
    """S draws for each of B rows: hidden values (S, B, H), from the data upward, and log densities (S, B)."""

    hidden: Values
    log_p: Tensor
    log_q: Tensor
    filled: Tensor | None = None
    """The rows with what was drawn into their holes (S, B, D), where that is drawn along."""

    @property
    def log_weight(self) -> Tensor:
        """log p(x, z) - log q(z | x)."""
        return self.log_p - self.log_q


def propose(
    model: Chain,
    theta: Tensor,
    proposal: Chain,
    phi: Tensor,
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
    values, log_q = proposal.draw(phi, x, rng, draws, pathwise, shifts)
    hidden = values[::-1]  # the proposal ends in the top layer, where the model starts

    def fill(layer: Layer, params: Params, given: Tensor) -> Drawn:
        return layer.fill(params, x.expand(draws, *x.shape), x.isnan(), given, rng)

    return _weighed(model, theta, proposal, x, hidden, log_q, fill)


def weigh(
    model: Chain, theta: Tensor, proposal: Chain, phi: Tensor, x: Tensor, hidden: Values, filled: Tensor
) -> Draws:
    """What `propose` tells of its draws, of values that are there already; `filled` is x with its holes filled in."""

    def fill(layer: Layer, params: Params, given: Tensor) -> Drawn:
        return Drawn(filled, layer.cells(params, filled, given).masked_fill(x.isnan(), 0).sum(-1))

    return _weighed(model, theta, proposal, x, hidden, proposal.log_prob(phi, hidden[::-1], x), fill)


def _weighed(
    model: Chain,
    theta: Tensor,
    proposal: Chain,
    x: Tensor,
    hidden: Values,
    log_q: Tensor,
    fill: Callable[[Layer, Params, Tensor], Drawn],
) -> Draws:
    """Draws with their densities; `fill` gives rows filled in, and the log density of what was there."""
    if not proposal.masked:
        return Draws(hidden, model.log_prob(theta, (x, *hidden)), log_q)
    layer, params, given = model.layers[0], model.unflatten(theta)[0], hidden[0] if hidden else nothing(theta)
    log_z = model.log_prob_hidden(theta, hidden)
    if layer.factorised:
        return Draws(hidden, log_z + layer.known(params, x, given), log_q)
    with torch.no_grad():
        rows, log_known = fill(layer, params, given)
    log_x = layer.log_prob(params, rows, given)
    return Draws(hidden, log_z + log_x, log_q + (log_x - log_known).detach(), rows)  # what is not of the known is log r


def join(one: Draws, other: Draws) -> Draws:
    """All of these draws."""
    filled = None if one.filled is None or other.filled is None else torch.cat([one.filled, other.filled])
    hidden = tuple(torch.cat(pair) for pair in zip(one.hidden, other.hidden, strict=True))
    return Draws(hidden, torch.cat([one.log_p, other.log_p]), torch.cat([one.log_q, other.log_q]), filled)


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
    """Whether log p(x) needs no draws: nothing is hidden, and no holes have to be filled in."""
    return not proposal.layers and (model.layers[0].factorised or not proposal.masked)


def normalised(log_weight: Tensor) -> Tensor:
    """Weights that sum to one over the draws, and through which no gradient flows."""
    return torch.softmax(log_weight.detach(), 0)


def log_mean_weight(log_weight: Tensor) -> Tensor:
    """log of the mean weight over the draws: an estimate of log p(x), in expectation from below."""
    return torch.logsumexp(log_weight, 0) - math.log(log_weight.shape[0])


def effective(weight: Tensor) -> Tensor:
    """1 / sum w^2 of normalised weights: how many equally weighted draws these are worth."""
    return weight.square().sum(0).reciprocal_()


class Marginal(NamedTuple):
    """log p(x) estimated for each row, with the effective number of draws behind it."""

    log_likelihood: Tensor
    effective: Tensor
