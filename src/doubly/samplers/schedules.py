"""Step schedules: what the step is multiplied with as the epochs go by."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from doubly.core.errors import UserError
from doubly.core.registry import Registry


class Schedule(ABC):
    """A factor for the step."""

    @abstractmethod
    def __call__(self, time: float) -> float:
        """The factor after `time` epochs, a fraction within an epoch."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The same step throughout, as in the paper."""

    def __call__(self, time: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Annealed as (1 + time / offset)^-power (Welling & Teh 2011), which removes the bias of the step in the end.

    >>> Polynomial(power=0.5, offset=10)(30)
    0.5
    """

    power: float = 0.55
    offset: float = 10.0

    def __post_init__(self) -> None:
        if not (0 < self.power <= 1 and self.offset > 0):
            raise UserError(
                f"polynomial takes a power in (0, 1] and a positive offset, got {self.power}, {self.offset}"
            )

    def __call__(self, time: float) -> float:
        found: float = (1 + time / self.offset) ** -self.power
        return found


@dataclass(frozen=True)
class Cosine(Schedule):
    """Cycles that fall along a cosine, from 1 to `low`, each to explore and then to settle (Zhang et al. 2020).

    >>> [round(Cosine(cycle=20, low=0.2)(time), 3) for time in (0, 10, 19.99, 20)]
    [1.0, 0.6, 0.2, 1.0]
    """

    cycle: float = 20.0
    low: float = 0.05

    def __post_init__(self) -> None:
        if not (self.cycle > 0 and 0 <= self.low < 1):
            raise UserError(f"cosine takes a positive cycle and a low in [0, 1), got {self.cycle}, {self.low}")

    def __call__(self, time: float) -> float:
        fall = (1 + math.cos(math.pi * (time % self.cycle) / self.cycle)) / 2
        return self.low + (1 - self.low) * round(fall, 15)


SCHEDULES = Registry("schedule", constant=Constant, polynomial=Polynomial, cosine=Cosine)
