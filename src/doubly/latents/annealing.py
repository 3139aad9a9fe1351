"""Annealed importance sampling: log p(x | theta) from below, and how far off it may be.

Neal (2001). Laws f_beta(z), 0 = beta_0 < beta_1 < … < beta_T = 1, lead from one that can be drawn from, the prior or
the proposal, to p(x, z) (see `paths`). A chain starts from z_0 ~ f_0, and z_t comes from z_{t-1} by moves that leave
f_beta_t as it is. Its weight

w = prod_t f_beta_t(z_{t-1}) / f_beta_{t-1}(z_{t-1}) = prod_t (f_1 / f_0)(z_{t-1})^(beta_t - beta_{t-1}),  t = 1…T,

has the mean p(x) for any number of temperatures, so that the log of the mean weight is on average below log p(x). The
same down from z ~ p(z | x) to f_0 gives weights with the mean 1 / p(x), hence a bound from above. An exact draw of z
given x is at hand where both were simulated: z is one, given the x it came with (Grosse, Ghahramani & Adams 2015).

Where values of x are missing (NaN) and the data layer is factorised, all this is of p(x_observed, z) and p(x_observed).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.importance import Marginal, ess, log_mean_weight, normalised
from doubly.latents.moves import ACCEPTANCE, Trajectory, trajectory
from doubly.latents.pair import Pair
from doubly.latents.paths import PATHS, Path, Start
from doubly.layers.chain import Chain, Values

Schedule = Literal["sigmoid", "linear"]
Progress = Callable[[int, int], None]

STEEPNESS = 4.0  # of the sigmoid schedule, from Wu et al. (2017)


def _silent(done: int, total: int) -> None:
    """Nobody is watching."""


class Mean(NamedTuple):
    """A mean over rows, in nats, and its standard error; None for a single row."""

    mean: float
    stderr: float | None


class Gap(NamedTuple):
    """Bounds on the mean of log p(x) over simulated rows, in nats.

    The difference is taken row by row, so that its standard error has nothing of how rows differ from each other.
    """

    lower: Mean
    upper: Mean
    difference: Mean


class Bounds(NamedTuple):
    """log p(x) of each of some rows, from below and from above."""

    lower: Tensor
    upper: Tensor

    def gap(self) -> Gap:
        """Their means over the rows, and that of the difference."""
        return Gap(_mean(self.lower), _mean(self.upper), _mean(self.upper - self.lower))


@dataclass(frozen=True)
class Annealing:
    """Annealed importance sampling, with Gibbs sweeps for chains of sbn and darn layers and Hamiltonian Monte Carlo
    (HMC) where all latent layers are real, whatever the data layer.

    >>> rng = torch.Generator().manual_seed(0)
    >>> model = Chain.build("sbn", data=4, hidden=(3,))
    >>> theta = model.init(rng)
    >>> x, z1 = model.sample(theta, 2, rng)
    >>> annealing = Annealing(temperatures=50)
    >>> pair = Pair.alone(model, theta)
    >>> lower, upper = annealing.log_likelihood(pair, x, rng), annealing.reverse(pair, x, (z1,), rng)
    >>> z = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], dtype=torch.float32)
    >>> exact = model.log_prob(theta, (x, z[:, None])).logsumexp(0)
    >>> ((lower.log_likelihood - exact).abs() < 0.05).all() and ((upper.log_likelihood - exact).abs() < 0.05).all()
    tensor(True)
    """

    temperatures: int = 1000
    """T, the number of steps from the start to the posterior; with one step these are plain importance weights."""
    chains: int = 16
    """Chains for each row, whose weights are averaged."""
    start: Start = "prior"
    """Where the path begins: at the prior, or at the proposal."""
    schedule: Schedule = "sigmoid"
    """The betas: sigmoid has more of them towards both ends (Wu, Burda, Salakhutdinov & Grosse 2017)."""
    sweeps: int = 1
    """Moves at each temperature: sweeps over all binary units, or HMC trajectories."""
    leapfrog: int = 10
    """Leapfrog steps of an HMC trajectory."""

    def __post_init__(self) -> None:
        for name in ("temperatures", "chains", "sweeps", "leapfrog"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} of annealing must be at least 1, got {getattr(self, name)}")
        if self.start not in PATHS:
            raise UserError(f"annealing starts from one of {', '.join(PATHS)}, got {self.start!r}")
        if self.schedule not in get_args(Schedule):
            raise UserError(f"schedule must be one of {', '.join(get_args(Schedule))}, got {self.schedule!r}")

    def betas(self) -> list[float]:
        """beta_0 = 0, …, beta_T = 1.

        sigmoid: s_t = sigmoid(4 (2 t / T - 1)), beta_t = (s_t - s_0) / (s_T - s_0)

        >>> [round(beta, 3) for beta in Annealing(temperatures=4).betas()]
        [0.0, 0.105, 0.5, 0.895, 1.0]
        """
        times = [t / self.temperatures for t in range(self.temperatures + 1)]
        if self.schedule == "linear":
            return times
        s = [1 / (1 + math.exp(-STEEPNESS * (2 * time - 1))) for time in times]
        return [0.0, *((each - s[0]) / (s[-1] - s[0]) for each in s[1:-1]), 1.0]

    def serves(self, model: Chain, proposal: Chain) -> bool:
        """Whether there are moves for the latents of this model."""
        path = PATHS[self.start]
        return path.can_start(model, proposal) and (_all_real(model) or path.is_swept(model, proposal))

    def check(self, model: Chain, proposal: Chain) -> None:
        """Refuse models for which there are none."""
        if not self.serves(model, proposal):
            names = ", ".join(type(layer).__name__ for layer in (*model.layers, *proposal.layers))
            raise UserError(
                f"annealing from the {self.start} needs {PATHS[self.start].needs}, got {names}: score this model with "
                "draws of its proposal"
            )

    def check_rows(self, pair: Pair, x: Tensor, seen: Tensor | None) -> None:
        """Refuse missing values where they cannot be summed out, or where the proposal does not know what to see."""
        if not x.isnan().any():
            return
        layer = pair.model.layers[0]
        if not layer.factorised:
            raise UserError(
                "annealing sums missing values out where they are independent given the latents, got "
                f"{type(layer).__name__}: score these rows by draws, or impute them first"
            )
        if self.start == "proposal" and not pair.proposal.masked and seen is None:
            raise UserError(
                "annealing from a proposal that has learnt from complete rows needs completed rows to show it, got "
                "missing values: give `seen`, or start from the prior"
            )

    def log_likelihood(
        self,
        pair: Pair,
        x: Tensor,
        rng: torch.Generator,
        progress: Progress = _silent,
        *,
        seen: Tensor | None = None,
        cells: int = 2**23,
    ) -> Marginal:
        """log p(x) of each row from below: the log of the mean weight over the chains, and their effective number.

        `seen` are completed rows for a proposal that does not know of missing values; how they are completed changes
        how near the bound is, not that it is one. The rows go in blocks, so that no tensor has more than about `cells`
        numbers. `progress` is told of every temperature of every block, those of pilot runs included.
        """
        log_weight = self._log_weights(pair, x, None, rng, progress, cells, seen)
        return Marginal(log_mean_weight(log_weight), ess(normalised(log_weight)))

    def reverse(
        self,
        pair: Pair,
        x: Tensor,
        z: Values,
        rng: torch.Generator,
        progress: Progress = _silent,
        *,
        cells: int = 2**23,
    ) -> Marginal:
        """log p(x) of each row from above: minus the log of the mean of 1 / w, and the effective number of these.

        z = (z1, …, zL), with a row for each row of x, must be exact draws from p(z | x): those with which x was
        simulated. All chains of a row start from the same z.
        """
        if [tuple(value.shape) for value in z] != [(len(x), layer.n_out) for layer in pair.model.layers[1:]]:
            shapes = ", ".join(str(tuple(value.shape)) for value in z)
            raise UserError(f"every latent layer needs a value for each of the {len(x)} rows, got shapes {shapes}")
        log_weight = self._log_weights(pair, x, z, rng, progress, cells)
        return Marginal(-log_mean_weight(log_weight), ess(normalised(log_weight)))

    def gap(self, pair: Pair, n: int, rng: torch.Generator, progress: Progress = _silent) -> Gap:
        """Both bounds on the mean of log p(x) over n rows that the model itself has drawn: bidirectional Monte Carlo.

        What lies between them is more than either is off by, on average. That is of the model's own rows: real ones, to
        which the model is not true, may be harder.
        """
        return self.bounds(pair, n, rng, progress).gap()

    def bounds(self, pair: Pair, n: int, rng: torch.Generator, progress: Progress = _silent) -> Bounds:
        """The same row by row."""
        x, *z = pair.model.sample(pair.theta, n, rng)
        lower = self.log_likelihood(pair, x, rng, lambda done, total: progress(done, 2 * total))
        upper = self.reverse(pair, x, tuple(z), rng, lambda done, total: progress(total + done, 2 * total))
        return Bounds(lower.log_likelihood, upper.log_likelihood)

    @torch.no_grad()
    def _log_weights(
        self,
        pair: Pair,
        x: Tensor,
        z: Values | None,
        rng: torch.Generator,
        progress: Progress,
        cells: int,
        seen: Tensor | None = None,
    ) -> Tensor:
        """log w (chains, rows) of chains up from f_0, or log 1/w of chains down from z."""
        model = pair.model
        self.check(model, pair.proposal)
        self.check_rows(pair, x, seen)
        rows = max(1, cells // (self.chains * sum(layer.n_out for layer in model.layers)))
        betas = self.betas() if model.layers[1:] else [0.0, 1.0]  # without latents, one step is exact
        runs = 2 if _has_pilot(model) else 1
        done, total = 0, runs * (len(betas) - 1) * max(1, math.ceil(len(x) / rows))

        def tick() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        fixed, blocks = pair._replace(theta=pair.theta.detach(), phi=pair.phi.detach()), []
        for first in range(0, max(1, len(x)), rows):
            block = slice(first, first + rows)
            shown = None if seen is None else seen[block].to(fixed.theta.dtype)
            chains = _Chains(PATHS[self.start](fixed, x[block].to(fixed.theta.dtype), shown), betas)
            # the pilot knows nothing of z: with steps that do, z would not be an exact draw any more
            moves = chains.moves(self, rng, tick)
            times = range(len(betas))
            if z is None:
                blocks.append(chains.anneal(chains.path.draw(self.chains, rng), times, moves, rng, tick))
            else:
                start = tuple(value[block].to(fixed.theta.dtype).expand(self.chains, -1, -1) for value in z)
                blocks.append(chains.anneal(start, times[::-1], moves, rng, tick))
        return torch.cat(blocks, 1)


def _mean(values: Tensor) -> Mean:
    values = values.double()
    return Mean(values.mean().item(), (values.std() / math.sqrt(len(values))).item() if len(values) > 1 else None)


def _all_real(model: Chain) -> bool:
    return all(layer.kind == "real" for layer in model.layers[1:])


def _has_pilot(model: Chain) -> bool:
    return _all_real(model) and len(model.layers) > 1


@dataclass(frozen=True)
class _Chains:
    """Chains along a path."""

    path: Path
    betas: Sequence[float]

    def moves(self, annealing: Annealing, rng: torch.Generator, tick: Callable[[], None]) -> "_Moves":
        """Moves that keep f_beta_t, ready to be made."""
        if not _has_pilot(self.path.pair.model):
            return _Gibbs(self, annealing.sweeps)
        # a run of its own, on random numbers of its own: given its steps, the moves that count are like any other
        pilot = torch.Generator(rng.device)
        pilot.manual_seed(int(torch.randint(2**62, (), generator=rng, device=rng.device)))
        return _HMC.tuned(self, annealing.sweeps, annealing.leapfrog, pilot, tick)

    def anneal(
        self, latents: Values, times: Sequence[int], moves: "_Moves", rng: torch.Generator, tick: Callable[[], None]
    ) -> Tensor:
        """The log-weights (chains, rows) of chains that start from `latents` and see these times, up or down.

        sum_t (beta_{t+1} - beta_t) log (f_1 / f_0)(z_t), in double precision: it has as many terms as temperatures
        """
        total = torch.zeros((), dtype=torch.float64, device=self.path.x.device)
        for now, following in pairwise(times):
            total = total + (self.betas[following] - self.betas[now]) * self.path.log_ratio(latents).double()
            if following != times[-1]:  # the last value would be used for nothing
                latents = moves(latents, following, rng)
            tick()
        return total


@dataclass(frozen=True)
class _Moves(ABC):
    """Moves of the latents that leave f_beta_t as it is."""

    chains: _Chains
    count: int
    """How many are made at each temperature."""

    @abstractmethod
    def __call__(self, latents: Values, t: int, rng: torch.Generator) -> Values:
        """Where the values are after `count` moves at temperature t."""


@dataclass(frozen=True)
class _Gibbs(_Moves):
    """Sweeps over all binary units, each drawn given all others."""

    def __call__(self, latents: Values, t: int, rng: torch.Generator) -> Values:
        for _ in range(self.count):
            latents = self.chains.path.sweep(latents, self.chains.betas[t], rng)
        return latents


PILOT_CHAINS = 4
PILOT_MOVES = 50  # at least, over all temperatures
GAIN = 0.2  # in 50 moves a step can fall by e^-6.5; once settled, its logarithm varies by some 0.1


@dataclass(frozen=True)
class _HMC(_Moves):
    """Hamiltonian Monte Carlo on all latents at once."""

    leapfrog: int
    step: Tensor
    """For each temperature but the last and for each row, (T, rows)."""

    @classmethod
    def tuned(
        cls, chains: _Chains, count: int, leapfrog: int, rng: torch.Generator, tick: Callable[[], None]
    ) -> "_HMC":
        """Steps of about the right acceptance, from a pilot run through the temperatures.

        log eps <- log eps + 0.2 (acceptance - 0.65), for each row
        """
        latents = chains.path.draw(PILOT_CHAINS, rng)
        width, temperatures = sum(value.shape[-1] for value in latents), len(chains.betas) - 1
        # to begin with: a standard normal of this width accepts most at width^-1/4
        log_step = chains.path.x.new_full((len(chains.path.x),), -math.log(width) / 4)
        pilot, steps = cls(chains, count, leapfrog, log_step), []
        for t in range(temperatures):
            for _ in range(math.ceil(PILOT_MOVES / temperatures) if t else 0):  # at the prior nothing moves
                latents, acceptance = pilot.move(latents, t, log_step.exp(), rng)
                log_step = log_step + GAIN * (acceptance.mean(0) - ACCEPTANCE)
            steps.append(log_step.exp())
            tick()
        return replace(pilot, step=torch.stack(steps))

    def __call__(self, latents: Values, t: int, rng: torch.Generator) -> Values:
        for _ in range(self.count):
            latents = self.move(latents, t, self.step[t], rng).latents
        return latents

    def move(self, latents: Values, t: int, step: Tensor, rng: torch.Generator) -> Trajectory:
        """One trajectory for each chain."""
        density, beta = self.chains.path.log_density, self.chains.betas[t]
        return trajectory(lambda z: density(z, beta), latents, step, self.leapfrog, rng)
