"""What a learnt table answers, cell by cell: completions of what is missing, and how odd what is there looks."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.core.random import generator
from doubly.data import Columns
from doubly.latents import normalised, propose
from doubly.latents.completions import ImputeConfig, Moments
from doubly.latents.completions import impute as run_chains
from doubly.latents.importance import log_mean_weight, pick
from doubly.latents.pair import Pair
from doubly.posterior.imputation import allocate
from doubly.runs.learn import Learnt
from doubly.runs.mixture import Mixture

DRAWS = 200  # of the latents of each row, by each sample of the weights
MOST_CELLS = 2**22  # draws x rows x entries at a time
SPREAD_COPIES = 100  # completions behind the spread of a cell, at least
CHAINS, SWEEPS = 20, 20  # of chains, where the columns have an order
MOST_SUMMED = 4  # missing bits of a row, over whose values is summed


class Completed(NamedTuple):
    """Rows with their missing entries completed, in the model's units."""

    expected: np.ndarray
    """(rows, D): the mean of real entries, the probability of each level of others."""
    copies: np.ndarray
    """(copies, rows, D): draws of the missing entries given the others."""


@torch.no_grad()
def complete(learnt: Learnt, rows: Tensor, copies: int = SPREAD_COPIES, seed: int = 0) -> Completed:
    """Complete rows with missing entries (NaN), with all samples of the weights and all mixtures that were learnt.

    Each member of the stack gives as many of the copies as its weight says, on average over seeds. Mixtures are exact.
    Samples of the weights are one member: each counts for a row by p(what is observed | its weights). Its draws of the
    latents are weighed by what is observed; the expectation is their weighted mean, and each copy has latents that are
    chosen by weight, then the missing entries drawn given them.
    """
    members, rng = learnt.members, generator("cpu", seed, "complete")
    expected, drawn = rows.new_zeros(rows.shape), []
    for number, (weight, member) in zip(_shares([w for w, _ in members], copies, rng), members, strict=True):
        asked = max(1, number)  # one that gives no copy has its say in the expectation
        if isinstance(member, Mixture):
            parts = [member.complete(rows, asked, rng)]
        else:
            parts = [_by_shares(member, block, asked, rng) for block in _blocks(rows)]
        expected += weight * torch.cat([mean for mean, _ in parts])
        drawn.append(torch.cat([copy[:number] for _, copy in parts], 1))
    every = torch.cat(drawn)
    turns = every[torch.randperm(copies, generator=rng)]
    return Completed(torch.where(rows.isnan(), expected, rows).numpy(), turns.numpy())


def _shares(weights: list[float], copies: int, rng: torch.Generator) -> list[int]:
    """How many of the copies each member gives: within one of copies x weight, and that on average."""
    u, at, found = float(torch.rand(1, generator=rng, dtype=torch.float64)), 0.0, []
    for weight in weights[:-1]:
        found.append(math.floor((at + weight) * copies + u) - math.floor(at * copies + u))
        at += weight
    return [*found, copies - sum(found)]


def _by_shares(pairs: list[Pair], rows: Tensor, copies: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """What samples of the weights expect of rows, and copies of them, each sample by its share of the row."""
    log_evidence = rows.new_zeros(1, len(rows))
    if len(pairs) > 1:
        log_evidence = torch.stack([_log_observed(pair, rows, rng) for pair in pairs])
        log_evidence = log_evidence.masked_fill(rows.isnan().all(1), 0)
    share, whose = torch.softmax(log_evidence, 0), allocate(log_evidence, copies, rng)
    expected, drawn = rows.new_zeros(rows.shape), rows.new_zeros(copies, *rows.shape)
    for i, pair in enumerate(pairs):
        mine = whose == i
        mean, made = _completed(pair, rows, max(1, int(mine.sum(0).max())), rng)
        turn = (mine.cumsum(0) - 1).clamp(min=0)  # the first of its copies come where it is first
        expected += share[i, :, None] * mean
        drawn = torch.where(mine[..., None], made.gather(0, turn[..., None].expand_as(drawn)), drawn)
    return expected, drawn


def _completed(pair: Pair, rows: Tensor, copies: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    layer, params = pair.data_layer
    missing = rows.isnan()
    if not layer.factorised:
        start = Moments(torch.full((rows.shape[1],), 0.5), torch.full((rows.shape[1],), 0.5))
        chains = max(copies, CHAINS)
        found = run_chains(pair, rows.nan_to_num(), missing, start, chains, ImputeConfig(sweeps=SWEEPS), rng)
        return found.expected.mean(0), found.rows[:copies]
    if not pair.proposal.layers:
        wide = rows.nan_to_num().expand(copies, *rows.shape)
        mean = torch.where(missing, layer.mean(params, wide[0], pair.given(())), rows)
        return mean, layer.impute(params, wide, missing.expand_as(wide), pair.given(()), rng).value
    draws = propose(pair, rows, DRAWS, rng)
    weight = normalised(draws.log_weight)
    means = layer.mean(params, rows.nan_to_num(), pair.given(draws.latents))
    mean = torch.where(missing, (weight[..., None] * means).sum(0), rows)
    chosen = torch.multinomial(weight.T, copies, replacement=True, generator=rng).T
    z = torch.stack([pick(draws.latents[0], turn) for turn in chosen])
    wide = rows.nan_to_num().expand(copies, *rows.shape)
    return mean, layer.impute(params, wide, missing.expand_as(wide), z, rng).value


@torch.no_grad()
def log_prob(learnt: Learnt, rows: Tensor, seed: int = 0) -> np.ndarray:
    """log p of the observed cells of each row, in the model's units: the weighted mean of the members' densities."""
    return _log_probs(learnt, rows, seed).logsumexp(0).numpy()


@torch.no_grad()
def log_missing(learnt: Learnt, whole: Tensor, rows: Tensor, seed: int = 0) -> np.ndarray:
    """log p(what `whole` has and `rows` lack | what rows have), of each row, in the model's units.

    It is the density of the completions: the mean, by the weights of the stack, of what each member says.
    """
    return _log_conditional(learnt, _log_probs(learnt, whole, seed), rows, seed)


def _log_conditional(learnt: Learnt, whole: Tensor, rows: Tensor, seed: int) -> np.ndarray:
    """log p(the rest of a row | what rows have), where members say `whole` of all of it."""
    log_weight = torch.tensor([weight for weight, _ in learnt.members], dtype=torch.float64).log()[:, None]
    return (whole - _log_probs(learnt, rows, seed) + log_weight).logsumexp(0).numpy()


def _log_probs(learnt: Learnt, rows: Tensor, seed: int) -> Tensor:
    """log of weight and density, (members, rows)."""
    rng, found = generator("cpu", seed, "odd"), []
    for weight, member in learnt.members:
        if isinstance(member, Mixture):
            log_p = member.log_prob(rows)
        else:
            each = [torch.cat([_log_observed(pair, block, rng) for block in _blocks(rows)]) for pair in member]
            log_p = torch.stack(each).double().logsumexp(0) - math.log(len(member))
        found.append(log_p + math.log(weight))
    return torch.stack(found)


def _log_observed(pair: Pair, rows: Tensor, rng: torch.Generator) -> Tensor:
    """log p(what is observed) of each row: exact where few bits are missing and there are no latents."""
    if pair.proposal.layers or pair.data_layer[0].factorised:
        return log_mean_weight(propose(pair, rows, DRAWS if pair.proposal.layers else 1, rng).log_weight)
    missing, found = rows.isnan().sum(1), rows.new_empty(len(rows))
    for number in missing.unique().tolist():
        some = missing == number
        if number <= MOST_SUMMED:
            found[some] = _summed(pair, rows[some], number)
        else:
            found[some] = log_mean_weight(propose(pair, rows[some], DRAWS, rng).log_weight)
    return found


def _summed(pair: Pair, rows: Tensor, number: int) -> Tensor:
    """The same of rows of bits with so many missing ones: the sum over all that these can be."""
    every = (torch.arange(2**number)[:, None, None] >> torch.arange(number) & 1).to(rows)  # (values, 1, number)
    at = rows.isnan().nonzero()[:, 1].view(1, len(rows), number)
    wide = rows.repeat(len(every), 1, 1)
    wide.scatter_(2, at.expand(len(every), -1, -1), every.expand(-1, len(rows), -1))
    return pair.model.log_prob(pair.theta, (wide.flatten(0, 1),)).view(len(every), -1).logsumexp(0)


class OddCells(NamedTuple):
    """How odd rows and their cells are; cells that are missing have NaN."""

    log_prob: np.ndarray
    """(rows,) log p of what is observed."""
    excess: np.ndarray
    """(rows, columns): nats by which a cell is less likely, given the others, than cells of its column are on
    average."""
    strangeness: np.ndarray
    """(rows,) the sum of what is in excess, over the cells."""


@torch.no_grad()
def odd_cells(learnt: Learnt, columns: Columns, rows: Tensor, seed: int = 0) -> OddCells:
    """log p(cell | the other cells of its row) for every observed cell, by the law that also completes cells."""
    whole, sources = _log_probs(learnt, rows, seed), columns.sources
    missing = rows.isnan().numpy()
    cells = np.full((len(rows), len(columns.columns)), np.nan)
    for at in range(len(columns.columns)):
        mine = sources == at
        there = ~missing[:, mine].any(1)
        if there.any():
            some = torch.as_tensor(there)
            without = rows[some].clone()
            without[:, torch.as_tensor(mine)] = math.nan
            cells[there, at] = _log_conditional(learnt, whole[:, some], without, seed)
    excess = np.nanmean(cells, 0) - cells
    average = np.nanmean(cells, 0)
    # what would be expected of the cells that are there, against what is found
    strangeness = np.where(np.isnan(cells), 0, average).sum(1) - np.nansum(cells, 1)
    return OddCells(whole.logsumexp(0).numpy(), excess, strangeness)


def _blocks(rows: Tensor) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = rows.split(max(1, MOST_CELLS // (DRAWS * rows.shape[1])))
    return found
