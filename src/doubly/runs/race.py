"""A race of candidates: each learns by Adam from a base line, and the better ones go on (successive halving)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from doubly.core.errors import Diverged
from doubly.latents.pair import Pair
from doubly.runs.automatic import Candidate, families
from doubly.runs.baseline import Baselines, started_from
from doubly.runs.build import Facts, build
from doubly.training import protocol
from doubly.training.method import mover
from doubly.training.refit import refit
from doubly.training.state import init

FIRST_PASSES = 10  # that fit the proposal to the weights that learning starts from
STEPS = 2000  # of Adam, after which families of models for bits are compared
CHECKS = 10  # looks at the hidden cells while a candidate learns

Clock = Callable[[], float]


class Time(NamedTuple):
    """A budget of time."""

    clock: Clock
    deadline: float

    def part(self, share: float) -> "Time":
        """A share of what is left."""
        now = self.clock()
        return Time(self.clock, now + share * max(0.0, self.deadline - now))

    def more(self) -> bool:
        return self.clock() < self.deadline


class Racer:
    """A candidate under way: Adam from the base line, with the best weights on what is held out."""

    def __init__(
        self,
        candidate: Candidate,
        facts: Facts,
        base: Baselines | None,
        train: Tensor,
        valid: Tensor,
        score: Callable[[Pair], Tensor] | None = None,
        passes: int = FIRST_PASSES,
    ):
        self.name, self.config, self.facts = candidate.name, candidate.config, facts
        self.method = build(candidate.config, facts)
        self.valid, self._score = valid, score
        state = init(self.method, train)
        theta = started_from(base, self.method.model, state.theta.theta) if base else state.theta.theta
        # a proposal that knows nothing would lead good weights astray
        phi = refit(self.method, theta, state.phi.theta, train, min(passes, self.method.epochs))
        optimiser = self.method.optimiser.init(phi, state.rng)
        state = state._replace(theta=mover(self.method, 0).sampler.init(theta, state.rng), phi=optimiser)
        self._steps = protocol.fit(self.method, train, valid, state)
        self.state, self.best, self.best_state, self.epoch = state, -math.inf, state, 0
        self.warmup = self.method.warmup

    @property
    def pair(self) -> Pair:
        """The best weights so far."""
        state = self.best_state
        return Pair(self.method.model, state.theta.theta, self.method.proposal, state.phi.theta)

    def advance(self, epochs: int, left: Time) -> None:
        """Go on to so many epochs in all, or to the time, but for one epoch at least."""
        try:
            while self.epoch < min(epochs, self.warmup):
                self.state, record = next(self._steps)
                if record is None:
                    continue
                self.epoch = record.epoch
                last = not left.more() or self.epoch >= min(epochs, self.warmup)
                self._look(record.valid, last)
                if last:
                    break
        except Diverged:
            self.epoch = self.warmup  # what it was before counts

    def _look(self, valid: float, last: bool) -> None:
        """Keep the weights if they are the best."""
        if self._score is not None:
            if self.epoch % max(1, self.warmup // CHECKS) and not last:
                return
            now = Pair(self.method.model, self.state.theta.theta, self.method.proposal, self.state.phi.theta)
            valid = float(self._score(now).mean())
        if valid > self.best:
            self.best, self.best_state = valid, self.state


def race(racing: list[Racer], left: Time, tell: Callable[[str, float], None]) -> list[Racer]:
    """Successive halving: each rung doubles the epochs and drops the worse half; all, the best first."""
    rungs = max(1, math.ceil(math.log2(len(racing))))
    out: list[Racer] = []
    for rung in range(rungs):
        for at, racer in enumerate(racing):
            turn = left.part(1 / (len(racing) - at) / (rungs - rung))
            racer.advance(max(1, racer.warmup >> (rungs - 1 - rung)), turn)
            tell(f"{racer.name}, after {racer.epoch} epochs", racer.best)
        racing = sorted(racing, key=lambda racer: -racer.best)
        racing, out = racing[: max(1, len(racing) // 2)], racing[max(1, len(racing) // 2) :] + out
    return racing + out


def best_family(train: Tensor, valid: Tensor, seed: int, epochs: int = 0) -> tuple[Candidate, dict[str, float]]:
    """The family that suits rows of bits best after a short while, and the validation log-likelihood of each.

    That of a model with latents is a bound, so that it must be the better by more than the bound is loose.
    """
    incomplete = any(rows.is_floating_point() and bool(rows.isnan().any()) for rows in (train, valid))
    width = train.shape[1]
    facts = Facts(width, "binary", (width,), has_missing=incomplete)
    found, every = {}, families(width, len(train), seed, epochs)
    for name, config in every:
        enough = max(1, STEPS // math.ceil(len(train) / config.batch))
        short = Candidate(name, replace(config, warmup=enough, epochs=enough + 1, collect=1))
        racer = Racer(short, facts, None, train, valid)
        racer.advance(min(enough, epochs or enough), Time(lambda: 0.0, 1.0))
        found[name] = racer.best
    return max(every, key=lambda each: found[each.name]), found
