"""A budget of time: how many epochs there will be, and where samples lie, follow from how long epochs take.

The plan is made after the first epochs and made anew on the way, until samples are collected. It is written into
config.json, so that a run that was stopped goes on by it. What the user had said before is in data.json: no plan goes
beyond it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from doubly.core.errors import UserError
from doubly.runs.build import SAMPLE_STEPS
from doubly.training.method import Method
from doubly.training.state import State

TRAINING = 0.85  # of the minutes are for burn-in and samples; the rest is for the evaluation
SAMPLING = 1 / 3  # of the epochs after a warm-up are for samples, at most
PLANNING = (0.05, 0.2, 0.4, 0.6)  # of the time for training, after which a plan is made
RECENT = 5  # epochs by which the pace is measured


class Asked(NamedTuple):
    """What the user has said of a plan, before there was one."""

    most_epochs: int | None = None
    free_interval: bool = False
    """Whether how far samples are apart was left open."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Asked":
        """From a file: its types are checked."""
        found = cls(**fields)
        if not isinstance(found.free_interval, bool) or type(found.most_epochs) not in (int, type(None)):
            raise UserError(f"what was asked of its plan is {dict(fields)}")
        return found


class Budget:
    """Watches the time of a fit: `look` after each epoch gives the settings to change, if any."""

    def __init__(self, minutes: float, spent: float, most_epochs: int | None, free_interval: bool):
        """The last two are what was `Asked`; with `free_interval`, how far samples are apart is planned, too."""
        self._seconds = 60 * TRAINING * minutes if minutes else math.inf
        self._spent, self._most, self._free = spent, most_epochs, free_interval
        self._paces: list[float] = []
        self._due = [share for share in PLANNING if share * self._seconds > spent] if minutes else []
        self._last_plan = False

    @property
    def left(self) -> float:
        """Seconds of training that are left."""
        return self._seconds - self._spent

    def look(self, method: Method, state: State, seconds: float, n_data: int) -> dict[str, Any]:
        """After an epoch that took so many seconds, without compiling: the settings of a new plan, or nothing.

        The first epoch of a process loads much that later ones have at hand: it says nothing of their pace.
        """
        self._paces.append(seconds)
        self._spent += seconds
        if math.isinf(self._seconds) or len(self._paces) == 1:
            return {}
        if self.left <= 0:
            lacking = method.collect > 0 and not state.collected and not self._last_plan
            self._last_plan = True
            if lacking:
                return planned(method, state.epoch, 0, n_data, self)
            return {"epochs": state.epoch} if state.epoch < method.epochs and self._over(method, state) else {}
        if state.began is not None or not self._due or self._spent < self._due[0] * self._seconds:
            return {}
        self._due = [share for share in self._due if share * self._seconds > self._spent]
        paces: Sequence[float] = self._paces[1:][-RECENT:]
        return planned(method, state.epoch, self.left * len(paces) / max(sum(paces), 1e-9), n_data, self)

    def _over(self, method: Method, state: State) -> bool:
        return state.collected > 0 or method.collect == 0 or state.began is not None

    def most(self, epochs: int, method: Method) -> int:
        """No more epochs than the user has asked for; where a warm-up is planned for, than were planned."""
        return self.at_most(min(epochs, method.epochs if method.warmup else epochs))

    def at_most(self, epochs: int) -> int:
        """No more epochs than the user has asked for."""
        return epochs if self._most is None else min(epochs, self._most)

    @property
    def free_interval(self) -> bool:
        return self._free


def spent_in(records: Sequence[Mapping[str, Any]]) -> float:
    """The seconds that recorded epochs took, without what compiling may have added to the first of a process."""
    seconds = [float(record.get("seconds", 0.0)) for record in records]
    usual = sorted(seconds)[len(seconds) // 2] if seconds else 0.0
    return sum(min(each, 3 * usual) for each in seconds)


def planned(method: Method, done: int, more: float, n_data: int, budget: Budget) -> dict[str, Any]:
    """The settings for `more` epochs after those that are done."""
    epochs = budget.at_most(max(done + 2, budget.most(done + math.floor(more), method)))
    found: dict[str, Any] = {"epochs": epochs}
    if done < method.warmup:
        found["warmup"] = min(method.warmup, max(done + 1, epochs // 2))
    warmup = found.get("warmup", method.warmup)
    if budget.free_interval and method.collect:
        steps = math.ceil(n_data / method.batch) * method.theta_steps
        after = SAMPLING * (epochs - warmup) * steps
        apart = max(1, min(SAMPLE_STEPS, math.floor(after / method.collect)))
        found["collect_every"] = f"{apart // steps}epochs" if apart >= steps else f"{apart}steps"
    return found if found["epochs"] != method.epochs else {}
