"""Which estimate of log p(x) answers: draws of the proposal, annealing from it, or a short chain if it is asked for.

All are lower bounds in the mean, so the larger is the nearer. Which it is, is seen on trial rows that are not those
that are scored. Where p(z | x) is not of the proposal's shape, few draws carry all the weight, and annealing is nearer
by far. Of an ensemble, the log of the mean of its members' bounds is a lower bound again, whichever they are.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.types import By
from doubly.latents import Annealing, LikelihoodConfig
from doubly.layers.chain import Chain

Estimator = Literal["exact", "draws", "annealing", "short-chain"]
TRIAL_ROWS = 50  # by which one is chosen


@dataclass(frozen=True)
class ScoreConfig:
    """How rows are scored, by each estimate."""

    by: By = "auto"
    """Draws, annealing, short-chain, or auto: the larger of the first two lower bounds on trial rows."""
    draws: LikelihoodConfig = field(default_factory=LikelihoodConfig)
    """How many draws, and how they are spent, where rows are scored by draws."""
    temperatures: int = 200
    """Temperatures, where rows are scored by annealing; one chain for each row."""
    states: int = 100
    """States, where rows are scored by a short chain; one chain for each row."""

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise UserError(f"by must be one of {', '.join(get_args(By))}, got {self.by!r}")
        if self.temperatures < 1:
            raise UserError(f"temperatures must be at least 1, got {self.temperatures}")
        if self.states < 1:
            raise UserError(f"states must be at least 1, got {self.states}")

    def annealing(self, model: Chain, proposal: Chain) -> Annealing:
        """From the proposal where its layers allow it, else from the prior."""
        how = Annealing(self.temperatures, chains=1, start="proposal")
        return how if how.serves(model, proposal) else dataclasses.replace(how, start="prior")

    def multiplied(self, times: int) -> "ScoreConfig":
        """The same with so many times the work."""
        draws = dataclasses.replace(self.draws, draws=times * self.draws.draws)
        return dataclasses.replace(
            self, draws=draws, temperatures=times * self.temperatures, states=times * self.states
        )


@dataclass(frozen=True)
class Chosen:
    """The estimate that was chosen, and what decided."""

    estimator: Estimator
    by_draws: float | None = None
    """What draws of the proposal give the trial rows, where both were tried."""
    by_annealing: float | None = None

    @property
    def can_anneal(self) -> bool:
        """Whether annealing was tried, or taken."""
        return self.estimator == "annealing" or self.by_annealing is not None


def larger(by_draws: Callable[[], Tensor], by_annealing: Callable[[], Tensor], margin: float = 0.0) -> Chosen:
    """The estimate that gives the trial rows more: annealing, if it is ahead by more than the margin."""
    draws, annealed = (found().double().mean().item() for found in (by_draws, by_annealing))
    return Chosen("annealing" if annealed > draws + margin else "draws", draws, annealed)


def trial_stride(rows: int, most: int = TRIAL_ROWS) -> int:
    """Every so many rows make at most so many of them, evenly spaced."""
    return max(1, math.ceil(rows / most))
