"""What weighted draws of the latent variables say of rows: the codes E[z | x], and log p(x) beside them.

Where the posterior of z is not of the proposal's shape, few of its draws carry all the weight. The codes of such rows
are found by chains that start from the proposal and move (`latents.expected_latents`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.latents import Pair, expected_latents, normalised, propose
from doubly.latents.importance import ess, log_mean_weight

ROWS = 256  # at a time
ENOUGH = 10  # effective draws, without which a weighted mean says little


class Reading(NamedTuple):
    """What the draws say of each row."""

    log_likelihood: Tensor
    """The bound L_K on log p(x) by each pair (pairs, rows)."""
    codes: list[Tensor]
    """E[z | x] for each latent layer (rows, H), from the data upward: of the pairs, by their shares p(x | theta_m)."""


@torch.no_grad()
def read(
    pairs: Sequence[Pair],
    rows: Tensor,
    draws: int,
    rng: torch.Generator,
    moves: bool = False,
    log_likelihood: Tensor | None = None,
) -> Reading:
    """Draw the latents of these rows from each proposal, weigh the draws, and average them.

    With `moves`, the codes of rows with few effective draws are found by chains, which takes much longer. The pairs
    count by p(x | theta_m), for which `log_likelihood` (pairs, rows) takes the place of what the draws say.
    """
    log_likelihoods, codes = [], []
    for pair in pairs:
        drawn = propose(pair, rows.float(), draws, rng)
        weight = normalised(drawn.log_weight)
        log_likelihoods.append(log_mean_weight(drawn.log_weight))
        means = [(weight[..., None] * z).sum(0) for z in drawn.latents]
        few = ess(weight) < ENOUGH
        if moves and means and few.any():
            for mean, better in zip(means, expected_latents(pair, rows[few].float(), draws, rng), strict=True):
                mean[few] = better
        codes.append(means)
    bounds = torch.stack(log_likelihoods) if log_likelihood is None else log_likelihood
    share = torch.softmax(bounds, 0)[..., None]
    return Reading(bounds, [(share * torch.stack(each)).sum(0) for each in zip(*codes, strict=True)])


def encode(
    pairs: Sequence[Pair], rows: Tensor, draws: int, rng: torch.Generator, log_likelihood: Tensor | None = None
) -> list[Tensor]:
    """E[z | x] for each latent layer, some rows at a time."""
    blocks = []
    for first in range(0, len(rows), ROWS):
        part = slice(first, first + ROWS)
        bounds = None if log_likelihood is None else log_likelihood[:, part]
        blocks.append(read(pairs, rows[part], draws, rng, True, bounds).codes)
    return [torch.cat(layer) for layer in zip(*blocks, strict=True)]
