"""Completions of rows with missing values, and how likely their true values are."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from doubly.core.random import generator
from doubly.latents import Annealing, LikelihoodConfig, Pair, log_likelihood
from doubly.latents.completions import ChainCompletions, ImputeConfig, Moments, log_observed
from doubly.latents.completions import impute as run_chains
from doubly.latents.importance import survivors
from doubly.posterior.estimates import ScoreConfig

Member = TypeVar("Member")
MOST_CELLS = 2**24  # candidates x completions x columns at a time
GUESSES = 8  # completions of a row that tell the proposal where its latents are
PILOT = 10  # sweeps that make such completions, before it is known which members explain a row
OBSERVED = ScoreConfig(draws=LikelihoodConfig(draws=1000), temperatures=100)  # how well a member explains a row


class Imputed(NamedTuple):
    """Completed rows."""

    completions: np.ndarray
    """Completed rows (draws, rows, D): each is a draw given what was there."""
    mean: np.ndarray
    """What is expected of each entry (rows, D); of a binary one, the probability that it is 1."""
    spread: np.ndarray
    """The standard deviation of each entry over the completions; 0 where it was there."""


class Incomplete(NamedTuple):
    """Rows, and where their values are missing: there, what the rows have is not looked at."""

    rows: Tensor
    missing: Tensor
    start: Moments
    """The moments of the columns, from which chains start."""

    @property
    def observed(self) -> Tensor:
        """The rows with NaN where values are missing."""
        return self.rows.float().masked_fill(self.missing, math.nan)


class Scorer(NamedTuple):
    """How log p(x) and log p(x_observed) are estimated: both by the same means."""

    draws: int
    annealing: Annealing | None
    """Where rows are scored by annealing."""
    seed: int


def spaced(members: Sequence[Member], most: int) -> list[Member]:
    """At most so many of the members, evenly spaced over all of them.

    >>> spaced(["a1", "a2", "a3", "b1", "b2", "b3"], 2)  # of two chains, one of each
    ['a2', 'b2']
    """
    n = min(most, len(members))
    return [members[(2 * i + 1) * len(members) // (2 * n)] for i in range(n)]


def allocate(log_evidence: Tensor, draws: int, rng: torch.Generator) -> Tensor:
    """Which member makes each completion of each row, (draws, rows): in the mean, by its share of p(x_observed).

    `log_evidence` (members, rows) is log p(x_observed | theta_m). By systematic resampling a member's number differs
    from draws x share by less than one; the order is random, so that every single completion is a draw by the shares.
    """
    shares = torch.softmax(log_evidence.double(), 0)
    chosen = survivors(shares, draws, rng)
    counts = torch.zeros_like(shares, dtype=torch.int64)
    counts[chosen.draw, chosen.row] = (chosen.weight * draws).round().long()
    place = torch.arange(draws, device=shares.device)[:, None, None]
    member = (place >= counts.cumsum(0)[None]).sum(1)
    order = torch.rand(member.shape, generator=rng, device=rng.device).argsort(0)
    return member.gather(0, order)


def impute(
    pairs: Sequence[Pair],
    given: Incomplete,
    draws: int,
    how: ImputeConfig,
    scorer: Scorer,
    tell: Callable[[float], None],
) -> ChainCompletions:
    """Rows completed by chains of the pairs, so many at a time as memory allows.

    p(x_missing | x_observed) of an ensemble is that of its members by their shares p(x_observed | theta_m).
    """
    device = given.rows.device
    log_evidence = given.rows.new_zeros(1, len(given.rows))
    if len(pairs) > 1:
        parts = [_log_evidence(pair, given, how, scorer, i) for i, pair in enumerate(pairs)]
        log_evidence = torch.stack(parts)
    member = allocate(log_evidence, draws, generator(device, scorer.seed, "members"))
    shape = (draws, *given.rows.shape)
    found = ChainCompletions(torch.empty(shape, device=device), torch.empty(shape, device=device))
    at_once, done = max(1, MOST_CELLS // (how.candidates * shape[-1])), 0

    def progress(share: float) -> None:
        tell((done + share * len(row)) / member.numel())

    for i, pair in enumerate(pairs):
        if not (member == i).any():  # it explains no row well enough
            continue
        rng = generator(device, scorer.seed, "impute", i)
        for place, row in zip(*(each.split(at_once) for each in (member == i).nonzero(as_tuple=True)), strict=True):
            made = run_chains(pair, given.rows[row], given.missing[row], given.start, 1, how, rng, progress)
            for into, values in zip(found, made, strict=True):
                into[place, row] = values[0].to(into)
            done += len(row)
    return found


def _log_evidence(pair: Pair, given: Incomplete, how: ImputeConfig, scorer: Scorer, member: int) -> Tensor:
    """log p(x_observed) of each row; rows with nothing observed are explained by any member alike."""
    guesses = given.rows[None]  # a proposal that has learnt from rows with missing values does not look at them
    if not pair.proposal.masked:
        rng, pilot = generator(given.rows.device, scorer.seed, "pilot", member), dataclasses.replace(how, sweeps=PILOT)
        at_once = max(1, MOST_CELLS // (GUESSES * how.candidates * given.rows.shape[1]))
        parts = zip(given.rows.split(at_once), given.missing.split(at_once), strict=True)
        blocks = [run_chains(pair, x, where, given.start, GUESSES, pilot, rng).rows for x, where in parts]
        guesses = torch.cat(blocks, 1)
    found = log_observed_rows(pair, given, guesses, scorer, member)
    return found.masked_fill(given.missing.all(1), 0)


def log_observed_rows(pair: Pair, given: Incomplete, guesses: Tensor, scorer: Scorer, member: int) -> Tensor:
    """log p(x_observed) of each row; completions (guesses, rows, D) tell a proposal that needs it where z is."""
    x, rng = given.observed, generator(given.rows.device, scorer.seed, "conditional", member)
    if scorer.annealing is not None and pair.data_layer[0].factorised:
        return scorer.annealing.log_likelihood(pair, x, rng, seen=guesses.float().mean(0)).log_likelihood
    if pair.proposal.masked:  # it has learnt from rows with missing values, and needs no guesses
        how = LikelihoodConfig(draws=scorer.draws, seed=scorer.seed, member=member)
        return log_likelihood(pair, x, how).log_likelihood
    at_once = max(1, MOST_CELLS // (2 * scorer.draws * given.rows.shape[1]))
    blocks = zip(given.rows.split(at_once), given.missing.split(at_once), guesses.split(at_once, 1), strict=True)
    parts = [log_observed(pair, x.float(), where, guess, scorer.draws, rng) for x, where, guess in blocks]
    return torch.cat(parts)


def log_conditional(pairs: Iterable[Pair], given: Incomplete, guesses: Tensor, scorer: Scorer) -> Tensor:
    """log p(x_missing | x_observed) of each row, whose missing values are known after all.

    It is the difference of two estimates, log p(x) and log p(x_observed), by the same means, each of an ensemble.
    """
    whole, observed = [], []
    for i, pair in enumerate(pairs):
        rng = generator(given.rows.device, scorer.seed, "whole", i)
        if scorer.annealing is not None and pair.data_layer[0].factorised:
            whole.append(scorer.annealing.log_likelihood(pair, given.rows.float(), rng).log_likelihood)
        else:
            how = LikelihoodConfig(draws=scorer.draws, seed=scorer.seed, member=i)
            whole.append(log_likelihood(pair, given.rows, how).log_likelihood)
        observed.append(log_observed_rows(pair, given, guesses, scorer, i))
    return torch.stack(whole).logsumexp(0) - torch.stack(observed).logsumexp(0)
