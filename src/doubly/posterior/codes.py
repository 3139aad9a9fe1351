"""What weighted draws of the latent variables say of rows: the codes E[z | x], and log p(x) beside them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.latents import Pair, normalised, propose
from doubly.latents.importance import log_mean_weight

ROWS = 256  # at a time


class Reading(NamedTuple):
    """What the draws say of each row."""

    log_likelihood: Tensor
    """The bound L_K on log p(x) by each pair (pairs, rows)."""
    codes: list[Tensor]
    """E[z | x] for each latent layer (rows, H), from the data upward, averaged over the pairs."""


@torch.no_grad()
def read(pairs: Sequence[Pair], rows: Tensor, draws: int, rng: torch.Generator) -> Reading:
    """Draw the latents of these rows from each proposal, weigh the draws, and average them."""
    log_likelihoods, codes = [], []
    for pair in pairs:
        drawn = propose(pair, rows.float(), draws, rng)
        weight = normalised(drawn.log_weight)[..., None]
        log_likelihoods.append(log_mean_weight(drawn.log_weight))
        codes.append([(weight * z).sum(0) for z in drawn.latents])
    return Reading(torch.stack(log_likelihoods), [torch.stack(each).mean(0) for each in zip(*codes, strict=True)])


def encode(pairs: Sequence[Pair], rows: Tensor, draws: int, rng: torch.Generator) -> list[Tensor]:
    """E[z | x] for each latent layer, some rows at a time."""
    blocks = [read(pairs, block, draws, rng).codes for block in rows.split(ROWS)]
    return [torch.cat(layer) for layer in zip(*blocks, strict=True)]
