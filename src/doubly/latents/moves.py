"""Local moves of the latents that leave p(z | x, theta) as it is.

A move is chosen by the model: Gibbs sweeps where all log-odds are linear (sbn, darn), a Langevin proposal with its
Metropolis correction for binary latents under any other layers (nade, mlp), Hamiltonian Monte Carlo for real ones. What
a move tunes, its step, is part of the estimator's memory and changes only while it may (`tuning`): in the burn-in.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.registry import Registry
from doubly.kernels.noise import normal
from doubly.latents.batch import Memory
from doubly.latents.pair import Pair
from doubly.latents.sweep import is_swept, sweep
from doubly.layers import Chain, Values

LogDensity = Callable[[Values], Tensor]
LOG_STEP = "move.log_step"
GAIN = 0.05  # of log step, for each visit to a mini-batch in which a step is tuned


class Moved(NamedTuple):
    """Where the latents are after a move, and what it has tuned."""

    latents: Values
    tuned: Memory


class Move(ABC):
    """Moves latents (C, B, H) of complete rows x, which broadcast with them, without changing their law p(z | x)."""

    @abstractmethod
    def serves(self, model: Chain) -> bool:
        """Whether it can move the latents of this model."""

    def init(self, model: Chain) -> Memory:
        """What it tunes, to start from."""
        return {}

    @abstractmethod
    def __call__(
        self, pair: Pair, x: Tensor, seen: Tensor, latents: Values, tuned: Memory, rng: torch.Generator, tuning: bool
    ) -> Moved:
        """One move. `seen` are the rows as the proposal sees them, with NaN where values are missing."""


@dataclass(frozen=True)
class GibbsMove(Move):
    """A Gibbs sweep over all binary units, or over some of them, for layers with linear log-odds.

    With a share below 1, unit k of a row is drawn with a probability between share / 5 and 1 that grows with
    q_k (1 - q_k) of the proposal: where q is certain, there is little to move. It depends on x, not on the present z,
    so that the sweep leaves p(z | x) as it is.
    """

    share: float = 1.0
    """The share of units that is drawn in a sweep, on average at most."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(f"the share of units in a sweep must lie in (0, 1], got {self.share}")

    def serves(self, model: Chain) -> bool:
        return is_swept(model)

    def __call__(
        self, pair: Pair, x: Tensor, seen: Tensor, latents: Values, tuned: Memory, rng: torch.Generator, tuning: bool
    ) -> Moved:
        chosen = None if self.share == 1 else self._chosen(pair, seen, latents, rng)
        return Moved(sweep(pair.model, pair.theta.detach(), x, latents, rng, chosen), tuned)

    @torch.no_grad()
    def _chosen(self, pair: Pair, seen: Tensor, latents: Values, rng: torch.Generator) -> Values:
        """Which units are drawn: for each layer, by the proposal's means, which are passed on from layer to layer."""
        given, found = pair.proposal.seen(seen), []
        weights = reversed(pair.proposal.unflatten(pair.phi.detach()))
        for layer, params, z in zip(reversed(pair.proposal.layers), weights, latents, strict=True):
            given = layer.mean(params, given.new_full((*given.shape[:-1], layer.n_out), 0.5), given)
            spread = 4 * given * (1 - given)
            probability = self.share * (0.2 + 0.8 * spread / spread.mean(-1, keepdim=True).clamp(min=1e-6))
            uniform = torch.rand(z.shape, generator=rng, device=z.device)
            found.append(uniform < probability.clamp(max=1))
        return tuple(found)


@dataclass(frozen=True)
class Langevin(Move):
    """Langevin proposals for binary latents with a Metropolis correction (Zhang, Liu & Liu 2022), for any layers.

    With f = log p(x, z) and g its gradient in z, every unit flips independently with log-odds
    g_k (1 - 2 z_k) / 2 - 1 / (2 eps), and where that leads is accepted as Metropolis and Hastings have it.
    """

    step: float = 0.3
    """eps, to start from; tuned to an acceptance of 0.57 in the burn-in."""

    def __post_init__(self) -> None:
        _check_step(self.step)

    def serves(self, model: Chain) -> bool:
        return all(layer.kind == "binary" for layer in model.layers[1:])

    def init(self, model: Chain) -> Memory:
        return {LOG_STEP: torch.tensor(math.log(self.step))}

    @torch.no_grad()
    def __call__(
        self, pair: Pair, x: Tensor, seen: Tensor, latents: Values, tuned: Memory, rng: torch.Generator, tuning: bool
    ) -> Moved:
        widths = [value.shape[-1] for value in latents]
        z = torch.cat(latents, -1)
        cost = 0.5 / tuned[LOG_STEP].exp()
        density = _joint(pair, x)
        here = _flips(density, z, widths, cost)
        uniform = torch.rand((*z.shape[:-1], z.shape[-1] + 1), generator=rng, dtype=z.dtype, device=z.device)
        flip = uniform[..., 1:] < torch.sigmoid(here.log_odds)
        moved = torch.where(flip, 1 - z, z)
        there = _flips(density, moved, widths, cost)
        forth = torch.where(flip, here.log_odds, 0).sum(-1) - torch.nn.functional.softplus(here.log_odds).sum(-1)
        back = torch.where(flip, there.log_odds, 0).sum(-1) - torch.nn.functional.softplus(there.log_odds).sum(-1)
        acceptance = torch.exp(there.log_density - here.log_density + back - forth).nan_to_num(nan=0.0).clamp(max=1)
        z = torch.where((uniform[..., 0] < acceptance)[..., None], moved, z)
        return Moved(torch.split(z, widths, -1), _tuned(tuned, acceptance, 0.57, tuning))


class _Flips(NamedTuple):
    """log p(x, z), and the log-odds with which each unit flips."""

    log_density: Tensor
    log_odds: Tensor


def _flips(density: LogDensity, z: Tensor, widths: list[int], cost: Tensor) -> _Flips:
    log_density, gradient = log_density_and_gradient(density, z, widths)
    return _Flips(log_density, gradient * (1 - 2 * z) / 2 - cost)


@dataclass(frozen=True)
class HMC(Move):
    """Hamiltonian Monte Carlo on all real latents at once."""

    step: float = 0.1
    """To start from; tuned to an acceptance of 0.65 in the burn-in."""
    leapfrog: int = 5
    """Leapfrog steps of a trajectory."""

    def __post_init__(self) -> None:
        _check_step(self.step)
        if self.leapfrog < 1:
            raise UserError(f"leapfrog steps of a move must be at least 1, got {self.leapfrog}")

    def serves(self, model: Chain) -> bool:
        return all(layer.kind == "real" for layer in model.layers[1:])

    def init(self, model: Chain) -> Memory:
        return {LOG_STEP: torch.tensor(math.log(self.step))}

    def __call__(
        self, pair: Pair, x: Tensor, seen: Tensor, latents: Values, tuned: Memory, rng: torch.Generator, tuning: bool
    ) -> Moved:
        step = tuned[LOG_STEP].exp()
        found = trajectory(_joint(pair, x), latents, step, self.leapfrog, rng)
        return Moved(found.latents, _tuned(tuned, found.acceptance, ACCEPTANCE, tuning))


ACCEPTANCE = 0.65  # where HMC does best for its cost (Beskos et al. 2013)
JITTER = 0.2  # a trajectory as long as an orbit comes back to where it was; lengths that vary do not let that last


class Trajectory(NamedTuple):
    """Where trajectories have led, and with what probability each end was accepted."""

    latents: Values
    acceptance: Tensor


@torch.no_grad()
def trajectory(density: LogDensity, latents: Values, step: Tensor, leapfrog: int, rng: torch.Generator) -> Trajectory:
    """One trajectory of Hamiltonian Monte Carlo for each chain and row, with unit masses (Neal 2011).

    u ~ N(0, I), then `leapfrog` times, with F the log density,
    u <- u + eps/2 grad F(z);  z <- z + eps u;  u <- u + eps/2 grad F(z)
    and where it leads is accepted with probability min(1, exp(F' - |u'|²/2 - F + |u|²/2)).
    """
    widths = [value.shape[-1] for value in latents]
    z = start = torch.cat(latents, -1)
    uniform = torch.rand((2, *z.shape[:-1]), generator=rng, dtype=z.dtype, device=z.device)
    eps = (step * (1 + JITTER * (2 * uniform[0] - 1)))[..., None]
    u = normal(z.shape, rng, z.dtype, z.device)
    log_density, gradient = log_density_and_gradient(density, z, widths)
    energy = u.square().sum(-1) / 2 - log_density
    for _ in range(leapfrog):
        u = u + eps / 2 * gradient
        z = z + eps * u
        log_density, gradient = log_density_and_gradient(density, z, widths)
        u = u + eps / 2 * gradient
    # a trajectory that left the numbers has a change of NaN or infinity, and is refused
    acceptance = torch.exp(energy - u.square().sum(-1) / 2 + log_density).nan_to_num(nan=0.0).clamp(max=1)
    z = torch.where((uniform[1] < acceptance)[..., None], z, start)
    return Trajectory(torch.split(z, widths, -1), acceptance)


def log_density_and_gradient(density: LogDensity, z: Tensor, widths: list[int]) -> tuple[Tensor, Tensor]:
    """log f(z), and its gradient in z (…, all layers beside each other)."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        log_density = density(torch.split(z, widths, -1))
        (gradient,) = torch.autograd.grad(log_density.sum(), z)
    return log_density.detach(), gradient


def _check_step(step: float) -> None:
    if not 0 < step < math.inf:
        raise UserError(f"the step of a move must be positive and finite, got {step}")


def _joint(pair: Pair, x: Tensor) -> LogDensity:
    theta = pair.theta.detach()
    return lambda latents: pair.model.log_prob(theta, (x, *latents))


def _tuned(tuned: Memory, acceptance: Tensor, target: float, tuning: bool) -> Memory:
    """log step <- log step + gain (acceptance - target), while that may change."""
    if not tuning:
        return tuned
    return tuned | {LOG_STEP: tuned[LOG_STEP] + GAIN * (acceptance.mean() - target)}


MOVES = Registry("move", gibbs=GibbsMove, hmc=HMC, langevin=Langevin)


def has_move(model: Chain) -> bool:
    """Whether any move serves the latents of this model, if it has some."""
    return bool(model.layers[1:]) and any(MOVES.make(name).serves(model) for name in MOVES)


def choose_move(spec: str, model: Chain) -> Move:
    """The move of that name, or for "auto" the first that serves the model."""
    names = list(MOVES) if spec == "auto" else [spec]
    for name in names:
        move: Move = MOVES.make(name)
        if move.serves(model):
            return move
    layers = ", ".join(type(layer).__name__ for layer in model.layers)
    if spec != "auto":
        raise UserError(f"the move {spec} does not serve the latents of a model of {layers}: leave --moves out")
    raise UserError(
        f"no move serves the latents of a model of {layers}: take estimator nais, or layers that "
        "are all binary or all real"
    )
