"""Completions of rows with missing values, and how likely their true values are."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.core.random import generator
from doubly.latents import LikelihoodConfig, Pair, log_likelihood
from doubly.latents.completions import ChainCompletions, ImputeConfig, Moments, log_observed
from doubly.latents.completions import impute as run_chains

MOST_CELLS = 2**24  # candidates x chains x rows x columns at a time
GUESSES = 8  # completions of a row that tell the proposal where its latents are


class Imputed(NamedTuple):
    """Completed rows."""

    completions: np.ndarray
    """Completed rows (draws, rows, D): each is a draw given what was there."""
    mean: np.ndarray
    """What is expected of each entry (rows, D); of a binary one, the probability that it is 1."""
    spread: np.ndarray
    """The standard deviation of each entry over the completions; 0 where it was there."""


def shares(draws: int, members: int) -> list[int]:
    """How many of the chains each member runs: as equally as can be."""
    return [len(part) for part in np.array_split(np.arange(draws), members)]


def impute(
    pairs: Iterable[Pair],
    chains: Sequence[int],
    rows: Tensor,
    missing: Tensor,
    start: Moments,
    how: ImputeConfig,
    seed: int,
    tell: Callable[[float], None],
) -> ChainCompletions:
    """Rows completed by the chains of each pair, so many at a time as memory allows.

    `chains` is the number for each pair, the largest first. All start from values with the moments of the columns.
    """
    blocks = max(1, math.ceil(rows.numel() * chains[0] * how.candidates / MOST_CELLS))
    done, found = 0, []

    def progress(share: float) -> None:
        tell((done + share) / (blocks * len(chains)))

    for i, (pair, number) in enumerate(zip(pairs, chains, strict=True)):
        rng, parts = generator(rows.device, seed, "impute", i), []
        for part, where in zip(rows.tensor_split(blocks), missing.tensor_split(blocks), strict=True):
            parts.append(run_chains(pair, part, where, start, number, how, rng, progress))
            done += 1
        found.append(ChainCompletions(*(torch.cat(each, 1) for each in zip(*parts, strict=True))))
    return ChainCompletions(*(torch.cat(each) for each in zip(*found, strict=True)))


def log_conditional(
    pairs: Iterable[Pair], rows: Tensor, missing: Tensor, completions: Tensor, draws: int, seed: int
) -> Tensor:
    """log p(x_missing | x_observed) of each row, whose missing values are known after all.

    It is the difference of two estimates by importance sampling, log p(x) and log p(x_observed), each of an ensemble.
    """
    guesses = completions[:GUESSES]
    whole, observed = [], []
    for i, pair in enumerate(pairs):
        how, rng = LikelihoodConfig(draws=draws, seed=seed, member=i), generator(rows.device, seed, "conditional", i)
        whole.append(log_likelihood(pair, rows, how).log_likelihood)
        if pair.proposal.masked:  # it has learnt from rows with missing values, and needs no guesses
            there = rows.float().masked_fill(missing, math.nan)
            observed.append(log_likelihood(pair, there, how).log_likelihood)
        else:
            blocks = zip(rows.split(10), missing.split(10), guesses.split(10, 1), strict=True)
            parts = [log_observed(pair, x.float(), where, guess, draws, rng) for x, where, guess in blocks]
            observed.append(torch.cat(parts))
    return torch.stack(whole).logsumexp(0) - torch.stack(observed).logsumexp(0)
