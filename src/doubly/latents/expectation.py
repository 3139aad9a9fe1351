"""E[z | x]: what is expected of the latents of a row, by chains that start from the proposal and move."""

import math

import torch
from torch import Tensor

from doubly.latents.batch import Batch
from doubly.latents.importance import normalised, propose
from doubly.latents.moves import has_move
from doubly.latents.pair import Pair
from doubly.latents.persistent import Persistent

CHAINS, FRESH = 4, 5  # states of each row, and fresh draws that compete with them in each round


@torch.no_grad()
def expected_latents(pair: Pair, x: Tensor, draws: int, rng: torch.Generator) -> list[Tensor]:
    """E[z | x] for each latent layer (B, H), from the data upward, with about so many weighted draws behind it.

    The posterior of z need not be of the proposal's shape, and then few of its draws carry all the weight. So chains
    start from the proposal; in each round they move and compete with fresh draws, and the weighted means of the later
    half of the rounds are averaged. Where no move serves the model, these are importance-weighted means of plain draws.
    """
    if not has_move(pair.model):
        drawn = propose(pair, x, draws, rng)
        weight = normalised(drawn.log_weight)[..., None]
        return [(weight * z).sum(0) for z in drawn.latents]
    estimator = Persistent(
        FRESH, chains=CHAINS, remembers_rows=pair.proposal.masked and not pair.data_layer[0].factorised
    )
    memory, index = estimator.init(pair.model, len(x), rng), torch.arange(len(x), device=x.device)
    rounds = max(2, math.ceil(2 * draws / (CHAINS + FRESH)))
    total = [x.new_zeros(len(x), layer.n_out) for layer in pair.model.layers[1:]]
    for i in range(rounds):
        found = estimator.advance(Batch(pair, x, index, memory, rng, tuning=i < rounds // 2))
        memory = found.memory
        if i >= rounds // 2:  # the first half forgets where it started
            for sum_, z in zip(total, found.draws.latents, strict=True):
                sum_ += (found.weight[..., None] * z).sum(0)
    return [sum_ / (rounds - rounds // 2) for sum_ in total]
