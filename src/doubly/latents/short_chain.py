"""The short-chain estimator: log p(x | theta) from below, by one Markov chain and no temperatures.

Murray & Salakhutdinov (2008). For any state z*, p(x) = p(x, z*) / p(z* | x), and p(z* | x) is the mean over p(z | x) of
T(z* <- z), the probability that a sweep T over z ends in z*. A chain of S states is laid around z*: s is uniform in
1…S, z^(s) is drawn by the reverse sweep T~(. <- z*), the states after it come by T and those before it by T~. Then

p(x, z*) / ((1/S) sum_s T(z* <- z^(s)))

has the mean p(x), for any S and for any z* that was chosen without a look at this chain, so that its log is on average
below log p(x). With S = 1 it is p(x, z) / T~(z <- z*), the importance weight of what a sweep draws.

Where values of x are missing (NaN) and the data layer is factorised, all this is of p(x_observed, z) and p(x_observed).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.importance import Marginal
from doubly.latents.pair import Pair
from doubly.latents.paths import FromPrior, FromProposal, Path
from doubly.latents.sweep import Odds, Powers, is_swept, log_transition, sweep_back, sweep_path
from doubly.layers.chain import Chain, Values

Progress = Callable[[int, int], None]
Tick = Callable[[int], None]

COLD = 5  # sweeps at a low temperature that end in z*
COLDNESS = 50.0  # the power to which p(x, z) is raised there


def _silent(done: int, total: int) -> None:
    """Nobody is watching."""


@dataclass(frozen=True)
class ShortChain:
    """The estimator for chains of sbn and darn layers, whatever the proposal.

    z* is near a mode of p(z | x), where T(z* <- z) varies least: sweeps along the path from the proposal (`paths`) lead
    towards it, and a few sweeps of p(x, z)^50 end in it.

    >>> rng = torch.Generator().manual_seed(0)
    >>> model = Chain.build("sbn", data=4, hidden=(3,))
    >>> theta = model.init(rng)
    >>> x, z1 = model.sample(theta, 2, rng)
    >>> found = ShortChain(states=1000).log_likelihood(Pair.alone(model, theta), x, rng)
    >>> z = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], dtype=torch.float32)
    >>> exact = model.log_prob(theta, (x, z[:, None])).logsumexp(0)
    >>> ((found.log_likelihood - exact).abs() < 0.05).all()
    tensor(True)
    """

    states: int = 100
    """S, the states of the chain; each costs two sweeps: one that makes it, and one for T(z* <- z)."""
    chains: ClassVar[int] = 1
    burn_in: int = 100
    """Sweeps towards z*, from the proposal if Gibbs sweeps serve it, else from the prior, before the cold ones."""

    def __post_init__(self) -> None:
        if self.states < 1:
            raise UserError(f"states of a short chain must be at least 1, got {self.states}")
        if self.burn_in < 0:
            raise UserError(f"burn_in of a short chain must be at least 0, got {self.burn_in}")

    def check(self, model: Chain) -> None:
        """Refuse models without sweeps."""
        if not is_swept(model):
            names = ", ".join(type(layer).__name__ for layer in model.layers)
            raise UserError(f"a short chain needs sbn and darn layers only, got {names}: take annealing or draws")

    def check_rows(self, model: Chain, x: Tensor) -> None:
        """Refuse missing values where they cannot be summed out."""
        if x.isnan().any() and not model.layers[0].factorised:
            raise UserError(
                "a short chain sums missing values out where they are independent given the latents, got "
                f"{type(model.layers[0]).__name__}: score these rows by draws, or impute them first"
            )

    @torch.no_grad()
    def log_likelihood(
        self, pair: Pair, x: Tensor, rng: torch.Generator, progress: Progress = _silent, *, cells: int = 2**23
    ) -> Marginal:
        """log p(x) of each row from below. One chain is one weight, so the effective number is 1.

        The rows go in blocks, so that no tensor has more than about `cells` numbers.
        """
        self.check(pair.model)
        self.check_rows(pair.model, x)
        x, done = x.to(pair.theta.dtype), 0

        def tick(sweeps: int) -> None:
            nonlocal done
            done += sweeps
            progress(done, len(x) * (self.burn_in + COLD + self.states))

        found = [x.new_zeros(0, dtype=torch.float64)]
        for block in x.split(max(1, cells // sum(layer.n_out for layer in pair.model.layers))):
            law = _Law.of(pair, block)
            star = self._star(_start(pair, block), law, rng, tick)
            found.append(law.log_joint(star) - self._log_posterior(law, star, rng, tick))
        log_likelihood = torch.cat(found)
        return Marginal(log_likelihood, torch.ones_like(log_likelihood))

    def _star(self, start: Path, law: "_Law", rng: torch.Generator, tick: Tick) -> Values:
        """z* of each row."""
        latents = start.draw(1, rng)
        for t in range(self.burn_in):
            latents = start.sweep(latents, (t + 1) / self.burn_in, rng)
            tick(len(law.x))
        latents = tuple(value[0] for value in latents)
        for _ in range(COLD):
            latents = sweep_path(law.odds, law.x, latents, rng, Powers(COLDNESS, COLDNESS))
            tick(len(law.x))
        return latents

    def _log_posterior(self, law: "_Law", star: Values, rng: torch.Generator, tick: Tick) -> Tensor:
        """log (1/S) sum_s T(z* <- z^(s)) of each row, which is there in the place of log p(z* | x)."""
        before = torch.randint(self.states, (len(law.x),), generator=rng, device=rng.device)
        after = self.states - 1 - before
        nearest = law.state(sweep_back(law.odds, law.x, star, rng))
        total = law.log_transition(nearest, star)
        tick(len(law.x))
        for steps, move in ((after, _Law.forward), (before, _Law.back)):
            # rows with the most steps come first, so that those which still move are always the first ones
            order = steps.argsort(descending=True, stable=True)
            moving, state, to = law.at(order), nearest.at(order), _at(star, order)
            for count in _still(steps[order]):
                here = order[:count]
                moving, state, to = moving.at(slice(count)), state.at(slice(count)), _at(to, slice(count))
                state = move(moving, state, rng)
                total[here] = total[here].logaddexp(moving.log_transition(state, to))
                tick(count)
        return total - math.log(self.states)


def _still(steps: Tensor) -> list[int]:
    """How many rows take a first step, a second one, and so on."""
    return [int((steps > t).sum()) for t in range(int(steps.max()))] if len(steps) else []


def _start(pair: Pair, x: Tensor) -> Path:
    """Where the way to z* begins: at the proposal if it is swept and can be shown these rows, else at the prior."""
    shown = pair.proposal.masked or not x.isnan().any()
    swept = FromProposal.can_start(pair.model, pair.proposal) and FromProposal.is_swept(pair.model, pair.proposal)
    return (FromProposal if shown and swept else FromPrior)(pair, x)


class _State(NamedTuple):
    """Latents (rows, H), and the logits of complete rows given the first layer of them, which two passes need."""

    latents: Values
    logits: Tensor | None

    def at(self, rows: Tensor | slice) -> "_State":
        return _State(_at(self.latents, rows), None if self.logits is None else self.logits[rows])


def _at(latents: Values, rows: Tensor | slice) -> Values:
    return tuple(value[rows] for value in latents)


class _Law(NamedTuple):
    """p(x, z) of some rows."""

    pair: Pair
    x: Tensor
    odds: Odds

    @classmethod
    def of(cls, pair: Pair, x: Tensor) -> "_Law":
        return cls(pair, x, FromPrior(pair, x).odds)

    def at(self, rows: Tensor | slice) -> "_Law":
        known = self.odds.of_data
        return self._replace(x=self.x[rows], odds=self.odds._replace(of_data=None if known is None else known[rows]))

    def log_joint(self, latents: Values) -> Tensor:
        """log p(x_observed, z)."""
        return FromPrior(self.pair, self.x).log_density(latents, 1.0).double()

    def state(self, latents: Values) -> _State:
        data = self.odds.model[0]
        return _State(latents, None if self.odds.of_data is None else F.linear(latents[0], data.given, data.bias))

    def forward(self, state: _State, rng: torch.Generator) -> _State:
        """By T."""
        return self.state(sweep_path(self.odds, self.x, state.latents, rng, Powers(), logits=state.logits))

    def back(self, state: _State, rng: torch.Generator) -> _State:
        """By T~."""
        return self.state(sweep_back(self.odds, self.x, state.latents, rng, state.logits))

    def log_transition(self, state: _State, to: Values) -> Tensor:
        """log T(to <- state)."""
        return log_transition(self.odds, self.x, state.latents, to, state.logits).double()
