"""E[z | x]: what is expected of the latents of a row, by chains that start from the proposal and move.

And from it, which latent units say anything of a row: the share of a unit's variance that the row explains.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.latents.batch import Batch
from doubly.latents.importance import normalised, propose
from doubly.latents.moves import has_move
from doubly.latents.pair import Pair
from doubly.latents.persistent import Persistent

CHAINS, FRESH = 4, 5  # states of each row, and fresh draws that compete with them in each round


ACTIVE = 0.01
"""A unit is active if the row explains more than this share of its variance."""


def expected_latents(pair: Pair, x: Tensor, draws: int, rng: torch.Generator) -> list[Tensor]:
    """E[z | x] for each latent layer (B, H), from the data upward, with about so many weighted draws behind it.

    The posterior of z need not be of the proposal's shape, and then few of its draws carry all the weight. So chains
    start from the proposal; in each round they move and compete with fresh draws, and the weighted means of the later
    half of the rounds are averaged. Where no move serves the model, these are importance-weighted means of plain draws.
    """
    return [layer.mean for layer in _moments(pair, x, draws, rng)]


def explained(pair: Pair, x: Tensor, draws: int, rng: torch.Generator) -> list[Tensor]:
    """For each unit of each latent layer (H,), the share of its variance that the row explains, Var(E[z | x]) / Var(z).

    It is 1 for a unit that x determines, however rarely it is on, and 0 for one that is always on, always off, or a
    coin that does not look at x. Of a standard normal unit it is the variance of its code, which Burda, Grosse and
    Salakhutdinov (2016) compare with 0.01, too. Var(E[z | x]) is the covariance over the rows of two independent
    estimates of E[z | x]: the noise of draws does not raise it. It can come out slightly below 0.
    """
    found = []
    for one, other in zip(*(_moments(pair, x, draws, rng) for _ in range(2)), strict=True):
        first, second = one.mean - one.mean.mean(0), other.mean - other.mean.mean(0)
        between = (first * second).sum(0) / max(1, len(x) - 1)
        whole = ((one.square + other.square) / 2).mean(0) - ((one.mean + other.mean) / 2).mean(0).square()
        found.append(torch.where(whole > LEAST, between / whole.clamp(min=LEAST), 0.0))
    return found


LEAST = 1e-6  # of a variance, below which a unit stands still


class _Moments(NamedTuple):
    """E[z | x] and E[z² | x] of a latent layer, (B, H)."""

    mean: Tensor
    square: Tensor


@torch.no_grad()
def _moments(pair: Pair, x: Tensor, draws: int, rng: torch.Generator) -> list[_Moments]:
    if not has_move(pair.model):
        drawn = propose(pair, x, draws, rng)
        weight = normalised(drawn.log_weight)[..., None]
        return [_Moments((weight * z).sum(0), (weight * z.square()).sum(0)) for z in drawn.latents]
    estimator = Persistent(
        FRESH, chains=CHAINS, remembers_rows=pair.proposal.masked and not pair.data_layer[0].factorised
    )
    memory, index = estimator.init(pair.model, len(x), rng), torch.arange(len(x), device=x.device)
    rounds = max(2, math.ceil(2 * draws / (CHAINS + FRESH)))
    total = [_Moments(*x.new_zeros(2, len(x), layer.n_out)) for layer in pair.model.layers[1:]]
    for i in range(rounds):
        found = estimator.advance(Batch(pair, x, index, memory, rng, tuning=i < rounds // 2))
        memory = found.memory
        if i >= rounds // 2:  # the first half forgets where it started
            share = found.weight[..., None] / (rounds - rounds // 2)
            for sums, z in zip(total, found.draws.latents, strict=True):
                sums.mean.add_((share * z).sum(0))
                sums.square.add_((share * z.square()).sum(0))
    return total
