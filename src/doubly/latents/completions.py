"""Completions: draws of missing values given those that are observed, by a Markov chain.

The chain's target is p(x_missing, z | x_observed, theta). A sweep moves z locally where there is a move for it, draws z
given the whole row as it stands, then the missing entries given z and the others. Neither draw can be exact in general:
from a handful of candidates and what is there already, one is chosen by importance weights, which leaves the target as
it is however few candidates there are (iterated sampling importance resampling, Andrieu, Lee & Vihola 2018). A proposal
that was learnt on rows with missing values is shown where they are: what is missing then has no say in z, or is drawn
along with it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.types import ImputeMethod
from doubly.kernels.noise import normal
from doubly.latents.importance import choose, join, pick, propose, weigh
from doubly.latents.moves import choose_move, has_move
from doubly.latents.pair import Pair
from doubly.layers import Chain, Values
from doubly.layers.chain import nothing


class Moments(NamedTuple):
    """The mean and the spread of each column."""

    mean: Tensor
    spread: Tensor


@dataclass(frozen=True)
class ImputeConfig:
    """How missing values are imputed."""

    method: ImputeMethod = "chain"
    """chain: the one above. paper: the paper's own, which takes whatever the proposal and the bottom layer draw, with
    no correction."""
    sweeps: int = 100
    candidates: int = 10
    """Draws of the latent variables from which one is chosen in each sweep; the present one is another."""
    local: bool = True
    """Whether latents also move locally in each sweep: better where the proposal is poor, and slower."""

    def __post_init__(self) -> None:
        for name in ("sweeps", "candidates"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")


class ChainCompletions(NamedTuple):
    """Completed rows (chains, rows, D), and what is expected of their missing values, over the later sweeps."""

    rows: Tensor
    expected: Tensor


@torch.no_grad()
def impute(
    pair: Pair,
    x: Tensor,
    missing: Tensor,
    start: Moments,
    chains: int,
    how: ImputeConfig,
    rng: torch.Generator,
    progress: Callable[[float], None] = lambda share: None,
) -> ChainCompletions:
    """So many independent chains for each row of x (rows, D); what x has where values are missing is not looked at.

    They start from values with the moments of the columns.
    """
    x = _first_guess(pair.model, x, missing, start, chains, rng)
    seen = _seen(pair.proposal, x, missing)
    latents = propose(pair, seen, 1, rng).latents if pair.proposal.layers else ()
    latents = tuple(value.squeeze(0) for value in latents)
    local = choose_move("auto", pair.model) if how.local and has_move(pair.model) else None
    tuned = local.init(pair.model) if local else {}
    total, counted = torch.zeros_like(x), 0
    for sweep in range(how.sweeps):
        if how.method == "paper":
            x = _paper_sweep(pair, x, missing, rng)
        else:
            # first, while the missing values are those drawn with z: the next move may leave them out of account
            if local is not None:
                seen = _seen(pair.proposal, x, missing)
                latents, tuned = local(pair, x, seen, latents, tuned, rng, tuning=sweep < how.sweeps // 2)
            moved = _move_latents(pair, x, missing, latents, how.candidates, rng)
            x, latents = moved[0], moved[1:]
            x = _move_missing(pair, x, missing, latents, how.candidates, rng)
        if sweep >= how.sweeps // 2:  # the first half forgets where it started
            total, counted = total + _expected(pair, x, missing, latents, how), counted + 1
        progress((sweep + 1) / how.sweeps)
    return ChainCompletions(x, total / counted)


def _first_guess(model: Chain, x: Tensor, missing: Tensor, start: Moments, chains: int, rng: torch.Generator) -> Tensor:
    """Missing values drawn from the columns' own distributions, never from the truth."""
    shape = (chains, *x.shape)
    if model.layers[0].kind == "binary":
        drawn = torch.bernoulli(start.mean.expand(shape), generator=rng)
    else:
        drawn = start.mean + start.spread * normal(shape, rng, x.dtype, x.device)
    return torch.where(missing, model.layers[0].nearest(drawn), x)


def _move_latents(
    pair: Pair, x: Tensor, missing: Tensor, latents: Values, candidates: int, rng: torch.Generator
) -> Values:
    """Leaves p(z | x) as it is: of fresh draws and the present z, one is chosen by its weight p(x, z) / q(z | x).

    Gives (x, z1, …): x is as it was, unless missing values have to be drawn along with z.
    """
    if not latents:
        return (x,)
    rows = _seen(pair.proposal, x, missing).flatten(0, 1)
    present, *own = (value.flatten(0, 1)[None] for value in (x, *latents))
    fresh = propose(pair, rows, candidates, rng)
    drawn = join(weigh(pair, rows, tuple(own), present), fresh)
    chosen = choose(drawn.log_weight, rng)
    moved = tuple(pick(values, chosen).view(old.shape) for values, old in zip(drawn.latents, latents, strict=True))
    return (x if drawn.completed is None else pick(drawn.completed, chosen).view(x.shape), *moved)


def _seen(proposal: Chain, x: Tensor, missing: Tensor) -> Tensor:
    """What the proposal is shown of rows: completed ones, or with their values missing if it knows of such."""
    return x.masked_fill(missing, math.nan) if proposal.masked else x


def _move_missing(
    pair: Pair, x: Tensor, missing: Tensor, latents: Values, candidates: int, rng: torch.Generator
) -> Tensor:
    """Leaves p(x_missing | x_observed, z) as it is: a draw of it, or where the layer has an order, one of several."""
    (layer, params), given = pair.data_layer, pair.given(latents)
    if layer.factorised:
        return layer.impute(params, x, missing, given, rng).value
    shape = (candidates, *x.shape)
    fresh = layer.impute(params, x.expand(shape), missing, given, rng)
    own = layer.cells(params, x, given).masked_fill(missing, 0).sum(-1)
    chosen = choose(torch.cat([own[None], fresh.log_prob]), rng)
    return pick(torch.cat([x[None], fresh.value]), chosen)


def _paper_sweep(pair: Pair, x: Tensor, missing: Tensor, rng: torch.Generator) -> Tensor:
    """z1 from the proposal, the missing values from the data layer given z1."""
    seen = _seen(pair.proposal, x, missing).flatten(0, 1)
    (z1, *_) = propose(pair, seen, 1, rng).latents if pair.proposal.layers else [None]
    given = nothing(pair.theta) if z1 is None else z1.view(*x.shape[:-1], -1)
    layer, params = pair.data_layer
    return layer.impute(params, x, missing, given, rng).value


def _expected(pair: Pair, x: Tensor, missing: Tensor, latents: Values, how: ImputeConfig) -> Tensor:
    """The missing values' mean given z where that is known, which varies less than the values themselves."""
    layer, params = pair.data_layer
    if not layer.factorised or how.method == "paper":
        return x
    return torch.where(missing, layer.mean(params, x, pair.given(latents)), x)


@torch.no_grad()
def log_observed(pair: Pair, x: Tensor, missing: Tensor, guesses: Tensor, draws: int, rng: torch.Generator) -> Tensor:
    """log p(x_observed) of each row, by importance sampling: a bound from below, in expectation.

    The proposal sees completed rows, `guesses` (chains, rows, D), whatever they are: z is drawn from the mixture of
    q(z | guess) over them, so a guess that is wrong costs draws, not correctness. The missing values are drawn with z.
    """
    (layer, params), (model, theta, proposal, phi) = pair.data_layer, pair
    if not proposal.layers:
        drawn = layer.impute(params, x.expand(draws, *x.shape), missing, nothing(theta), rng)
        return drawn.log_prob.logsumexp(0) - math.log(draws)
    each = math.ceil(draws / len(guesses))
    latents = _stack([proposal.draw(phi, guess, rng, each).values[::-1] for guess in guesses])
    log_q = torch.stack([proposal.log_prob(phi, latents[::-1], guess) for guess in guesses]).logsumexp(0)
    log_p = model.log_prob_latents(theta, latents)
    log_p = log_p + layer.impute(params, x.expand(len(log_p), *x.shape), missing, latents[0], rng).log_prob
    return (log_p - log_q + math.log(len(guesses))).logsumexp(0) - math.log(len(log_p))


def _stack(draws: list[Values]) -> Values:
    return tuple(torch.cat(layer) for layer in zip(*draws, strict=True))
