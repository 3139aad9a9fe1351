"""Filling in what is missing: draws of the missing entries given those that are there, by a Markov chain.

The chain's target is p(x_missing, z | x_observed, theta). A sweep draws z given the whole row as it stands, then the
missing entries given z and the others. Neither can be drawn exactly in general: from a handful of candidates and what
is there already, one is chosen by importance weights, which leaves the target as it is however few candidates there
are (iterated sampling importance resampling, Andrieu, Lee & Vihola 2018). A proposal that was learnt on rows with holes
is shown them: what is missing then has no say in z, or is drawn along with it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.types import Filling
from doubly.kernels.noise import normal
from doubly.latents.importance import choose, join, pick, propose, weigh
from doubly.layers.chain import Chain, Values, nothing


class Moments(NamedTuple):
    """The mean and the spread of each column."""

    mean: Tensor
    spread: Tensor


@dataclass(frozen=True)
class Imputation:
    """How missing entries are filled in."""

    method: Filling = "chain"
    """chain: the one above. paper: the paper's own, which takes whatever the proposal and the bottom layer draw, with
    no correction."""
    sweeps: int = 100
    candidates: int = 10
    """Draws of the hidden variables from which one is chosen in each sweep; the present one is another."""

    def __post_init__(self) -> None:
        for name in ("sweeps", "candidates"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")


class Filled(NamedTuple):
    """Rows with their missing entries filled in, (chains, rows, D); what is expected there, over the later sweeps."""

    rows: Tensor
    expected: Tensor


@torch.no_grad()
def fill(
    model: Chain,
    theta: Tensor,
    proposal: Chain,
    phi: Tensor,
    x: Tensor,
    missing: Tensor,
    start: Moments,
    chains: int,
    how: Imputation,
    rng: torch.Generator,
    progress: Callable[[float], None] = lambda share: None,
) -> Filled:
    """So many independent chains for each row of x (rows, D); what x has where entries are missing is not looked at.

    They start from values with the moments of the columns.
    """
    x = _first_guess(model, x, missing, start, chains, rng)
    seen = _seen(proposal, x, missing)
    hidden = propose(model, theta, proposal, phi, seen, 1, rng).hidden if proposal.layers else ()
    hidden = tuple(value.squeeze(0) for value in hidden)
    total, counted = torch.zeros_like(x), 0
    for sweep in range(how.sweeps):
        if how.method == "paper":
            x = _paper_sweep(model, theta, proposal, phi, x, missing, rng)
        else:
            moved = _move_hidden(model, theta, proposal, phi, x, missing, hidden, how.candidates, rng)
            x, hidden = moved[0], moved[1:]
            x = _move_missing(model, theta, x, missing, hidden, how.candidates, rng)
        if sweep >= how.sweeps // 2:  # the first half forgets where it started
            total, counted = total + _expected(model, theta, x, missing, hidden, how), counted + 1
        progress((sweep + 1) / how.sweeps)
    return Filled(x, total / counted)


def _first_guess(model: Chain, x: Tensor, missing: Tensor, start: Moments, chains: int, rng: torch.Generator) -> Tensor:
    """Missing entries drawn from the columns' own distributions, never from the truth."""
    shape = (chains, *x.shape)
    if model.layers[0].kind == "binary":
        drawn = torch.bernoulli(start.mean.expand(shape), generator=rng)
    else:
        drawn = start.mean + start.spread * normal(shape, rng, x.dtype, x.device)
    return torch.where(missing, drawn, x)


def _move_hidden(
    model: Chain,
    theta: Tensor,
    proposal: Chain,
    phi: Tensor,
    x: Tensor,
    missing: Tensor,
    hidden: Values,
    candidates: int,
    rng: torch.Generator,
) -> Values:
    """Leaves p(z | x) as it is: of fresh draws and the present z, one is chosen by its weight p(x, z) / q(z | x).

    Gives (x, z1, …): x is as it was, unless the proposal sees holes that have to be filled in along with z.
    """
    if not hidden:
        return (x,)
    rows = _seen(proposal, x, missing).flatten(0, 1)
    present, *own = (value.flatten(0, 1)[None] for value in (x, *hidden))
    fresh = propose(model, theta, proposal, phi, rows, candidates, rng)
    drawn = join(weigh(model, theta, proposal, phi, rows, tuple(own), present), fresh)
    chosen = choose(drawn.log_weight, rng)
    moved = tuple(pick(values, chosen).view(old.shape) for values, old in zip(drawn.hidden, hidden, strict=True))
    return (x if drawn.filled is None else pick(drawn.filled, chosen).view(x.shape), *moved)


def _seen(proposal: Chain, x: Tensor, missing: Tensor) -> Tensor:
    """What the proposal is shown of rows: all that is there and has been filled in, or with holes."""
    return x.masked_fill(missing, math.nan) if proposal.masked else x


def _move_missing(
    model: Chain, theta: Tensor, x: Tensor, missing: Tensor, hidden: Values, candidates: int, rng: torch.Generator
) -> Tensor:
    """Leaves p(x_missing | x_observed, z) as it is: a draw of it, or where the layer has an order, one of several."""
    layer, params = model.layers[0], model.unflatten(theta)[0]
    given = hidden[0] if hidden else nothing(theta)
    if layer.factorised:
        return layer.fill(params, x, missing, given, rng).value
    shape = (candidates, *x.shape)
    fresh = layer.fill(params, x.expand(shape), missing, given, rng)
    own = layer.cells(params, x, given).masked_fill(missing, 0).sum(-1)
    chosen = choose(torch.cat([own[None], fresh.log_prob]), rng)
    return pick(torch.cat([x[None], fresh.value]), chosen)


def _paper_sweep(
    model: Chain, theta: Tensor, proposal: Chain, phi: Tensor, x: Tensor, missing: Tensor, rng: torch.Generator
) -> Tensor:
    """z1 from the proposal, the missing entries from the data layer given z1."""
    seen = _seen(proposal, x, missing).flatten(0, 1)
    (z1, *_) = propose(model, theta, proposal, phi, seen, 1, rng).hidden if proposal.layers else [None]
    given = nothing(theta) if z1 is None else z1.view(*x.shape[:-1], -1)
    return model.layers[0].fill(model.unflatten(theta)[0], x, missing, given, rng).value


def _expected(model: Chain, theta: Tensor, x: Tensor, missing: Tensor, hidden: Values, how: Imputation) -> Tensor:
    """The missing entries' mean given z where that is known, which varies less than the entries themselves."""
    layer = model.layers[0]
    if not layer.factorised or how.method == "paper":
        return x
    mean = layer.mean(model.unflatten(theta)[0], x, hidden[0] if hidden else nothing(theta))
    return torch.where(missing, mean, x)


@torch.no_grad()
def log_observed(
    model: Chain,
    theta: Tensor,
    proposal: Chain,
    phi: Tensor,
    x: Tensor,
    missing: Tensor,
    guesses: Tensor,
    draws: int,
    rng: torch.Generator,
) -> Tensor:
    """log p(x_observed) of each row, by importance sampling: a bound from below, in expectation.

    The proposal sees completed rows, `guesses` (chains, rows, D), whatever they are: z is drawn from the mixture of
    q(z | guess) over them, so a guess that is wrong costs draws, not correctness. The missing entries are drawn with z.
    """
    layer, params = model.layers[0], model.unflatten(theta)[0]
    if not proposal.layers:
        drawn = layer.fill(params, x.expand(draws, *x.shape), missing, nothing(theta), rng)
        return drawn.log_prob.logsumexp(0) - math.log(draws)
    each = math.ceil(draws / len(guesses))
    hidden = _stack([proposal.draw(phi, guess, rng, each).values[::-1] for guess in guesses])
    log_q = torch.stack([proposal.log_prob(phi, hidden[::-1], guess) for guess in guesses]).logsumexp(0)
    log_p = model.log_prob_hidden(theta, hidden)
    log_p = log_p + layer.fill(params, x.expand(len(log_p), *x.shape), missing, hidden[0], rng).log_prob
    return (log_p - log_q + math.log(len(guesses))).logsumexp(0) - math.log(len(log_p))


def _stack(draws: list[Values]) -> Values:
    return tuple(torch.cat(layer) for layer in zip(*draws, strict=True))
