"""Completions of rows with missing values, and how likely their true values are."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from doubly.core.random import generator
from doubly.core.ranks import Ranks
from doubly.latents import Annealing, LikelihoodConfig, Pair
from doubly.latents.completions import ChainCompletions, ImputeConfig, Moments, log_observed
from doubly.latents.completions import impute as run_chains
from doubly.latents.importance import survivors
from doubly.latents.likelihood import bound
from doubly.posterior.estimates import ScoreConfig
from doubly.posterior.work import Work

Member = TypeVar("Member")
CELLS = 2**21  # candidates x completions x columns at a time: little is lost, and ranks have something to share
MOST_CELLS = 2**24  # draws x rows x columns at a time
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
    pairs: Sequence[Pair], given: Incomplete, draws: int, how: ImputeConfig, scorer: Scorer, work: Work
) -> ChainCompletions:
    """Rows completed by chains of the pairs, some at a time, with random numbers of their own; ranks take turns.

    p(x_missing | x_observed) of an ensemble is that of its members by their shares p(x_observed | theta_m).
    """
    device = given.rows.device
    log_evidence = given.rows.new_zeros(1, len(given.rows))
    if len(pairs) > 1:
        log_evidence = _log_evidence(pairs, given, how, scorer, work.ranks)
    member = allocate(log_evidence, draws, generator(device, scorer.seed, "members"))
    shape = (draws, *given.rows.shape)
    found = ChainCompletions(torch.empty(shape, device=device), torch.empty(shape, device=device))
    tasks = list(_tasks(member, len(pairs), max(1, CELLS // (how.candidates * shape[-1]))))

    def complete(number: int) -> ChainCompletions:
        i, first, _, row = tasks[number]
        rng = generator(device, scorer.seed, "impute", i, first)
        done = sum(len(task.row) for task in tasks[:number])

        def progress(share: float) -> None:
            work.tell("imputing", (done + share * len(row)) / member.numel())

        return run_chains(pairs[i], given.rows[row], given.missing[row], given.start, 1, how, rng, progress)

    for task, made in zip(tasks, work.ranks.in_turn(len(tasks), complete), strict=True):
        for into, values in zip(found, made, strict=True):
            into[task.place, task.row] = values[0].to(into)
    return found


class _Task(NamedTuple):
    """Completions that a member makes at a time."""

    member: int
    first: int
    """How many it has made before."""
    place: Tensor
    row: Tensor


def _tasks(member: Tensor, members: int, at_once: int) -> Iterator[_Task]:
    """The completions of each member (draws, rows); one that explains no row well enough makes none."""
    for i in range(members):
        places, rows = (member == i).nonzero(as_tuple=True)
        for first in range(0, len(rows), at_once):
            some = slice(first, first + at_once)
            yield _Task(i, first, places[some], rows[some])


def _by_blocks(
    pairs: Sequence[Pair], given: Incomplete, ranks: Ranks, score: Callable[[int, Pair, Incomplete, int], Tensor]
) -> Tensor:
    """What each pair gives each row (pairs, rows), some rows at a time; ranks share pairs and rows.

    `score` is told the number of the pair and of the first row, by which its random numbers are its own.
    """
    at_once = max(1, CELLS // (GUESSES * ImputeConfig.candidates * given.rows.shape[1]))
    starts = range(0, len(given.rows), at_once)

    def block(number: int) -> Tensor:
        i, first = number // len(starts), starts[number % len(starts)]
        some = slice(first, first + at_once)
        return score(i, pairs[i], given._replace(rows=given.rows[some], missing=given.missing[some]), first)

    found = ranks.shared(len(pairs) * len(starts), block)
    return torch.cat(found).view(len(pairs), -1)


def _log_evidence(pairs: Sequence[Pair], given: Incomplete, how: ImputeConfig, scorer: Scorer, ranks: Ranks) -> Tensor:
    """log p(x_observed) of each row by each pair; rows with nothing observed are explained by any of them alike."""
    pilot = dataclasses.replace(how, sweeps=PILOT)

    def score(i: int, pair: Pair, some: Incomplete, first: int) -> Tensor:
        guesses = some.rows[None]  # a proposal that has learnt from rows with missing values does not look at them
        if not pair.proposal.masked:
            rng = generator(given.rows.device, scorer.seed, "pilot", i, first)
            guesses = run_chains(pair, some.rows, some.missing, given.start, GUESSES, pilot, rng).rows
        found = log_observed_rows(pair, some, guesses, scorer, i, first)
        return found.masked_fill(some.missing.all(1), 0)

    return _by_blocks(pairs, given, ranks, score)


def log_observed_rows(
    pair: Pair, given: Incomplete, guesses: Tensor, scorer: Scorer, member: int, first: int
) -> Tensor:
    """log p(x_observed) of each row; completions (guesses, rows, D) tell a proposal that needs it where z is."""
    x, rng = given.observed, generator(given.rows.device, scorer.seed, "conditional", member, first)
    if scorer.annealing is not None and pair.data_layer[0].factorised:
        return scorer.annealing.log_likelihood(pair, x, rng, seen=guesses.float().mean(0)).log_likelihood
    if pair.proposal.masked:  # it has learnt from rows with missing values, and needs no guesses
        return bound(pair, x, scorer.draws, rng).log_likelihood
    at_once = max(1, MOST_CELLS // (2 * scorer.draws * given.rows.shape[1]))
    blocks = zip(given.rows.split(at_once), given.missing.split(at_once), guesses.split(at_once, 1), strict=True)
    parts = [log_observed(pair, x.float(), where, guess, scorer.draws, rng) for x, where, guess in blocks]
    return torch.cat(parts)


def log_conditional(pairs: Sequence[Pair], given: Incomplete, guesses: Tensor, scorer: Scorer, ranks: Ranks) -> Tensor:
    """log p(x_missing | x_observed) of each row, whose missing values are known after all.

    It is the difference of two estimates, log p(x) and log p(x_observed), by the same means, each of an ensemble.
    """

    def whole(i: int, pair: Pair, some: Incomplete, first: int) -> Tensor:
        rng = generator(given.rows.device, scorer.seed, "whole", i, first)
        if scorer.annealing is not None and pair.data_layer[0].factorised:
            return scorer.annealing.log_likelihood(pair, some.rows.float(), rng).log_likelihood
        return bound(pair, some.rows, scorer.draws, rng).log_likelihood

    def observed(i: int, pair: Pair, some: Incomplete, first: int) -> Tensor:
        return log_observed_rows(pair, some, guesses[:, first : first + len(some.rows)], scorer, i, first)

    both = (_by_blocks(pairs, given, ranks, score).logsumexp(0) for score in (whole, observed))
    return next(both) - next(both)
