"""The line that shows where a fit stands: epoch, speed, time left, validation."""

import math
import time
from collections import deque

from doubly.runs.progress import Progress, span
from doubly.training.method import Method, samples_per_epoch
from doubly.training.protocol import Record
from doubly.training.state import State, planned

WINDOW = 30.0  # seconds over which the speed is measured
LEAST = 2.0  # seconds before which nothing is said of it


class Watch:
    """Where a fit stands. The time left is bounded by the plan, and during burn-in no more than a bound is known."""

    def __init__(self, method: Method, n_data: int, records: list[float]):
        """`records` are the validation log-likelihoods of the epochs before."""
        self._method, self._n_data = method, n_data
        self._batches = math.ceil(n_data / method.batch)
        self._seen: deque[tuple[float, int]] = deque()
        self._began = time.monotonic()
        self._valid, self._step = "valid -", ""
        self._trace = list(records)
        self._plans = 0

    def follow(self, method: Method) -> None:
        """The plan has changed."""
        self._method = method
        self._plans += 1

    @property
    def is_first_plan(self) -> bool:
        return self._plans == 1

    def show(self, progress: Progress, state: State, record: Record | None, last: bool, budget: float) -> None:
        """Show where the fit stands; `budget` is the seconds of training that may be left."""
        line = self.line(state, record, budget, last)
        progress.show(line, last, self._share(state, last), self._trace)

    def line(self, state: State, record: Record | None, budget: float = math.inf, last: bool = False) -> str:
        if record:
            self._trace.append(record.valid)
            error = f" ± {record.valid_stderr:.3f}" if record.valid_stderr else ""
            self._valid = f"valid {record.valid:.3f}{error} ({self._how()})"
            self._step = f"  step {record.step:.2g}" if self._method.step == "auto" else ""
        speed = self._speed(state)
        epochs, bound = self._epochs_left(state)
        if state.began is not None:
            phase = f"collecting {state.collected}/{planned(self._method, state, self._n_data)}"
        else:
            phase = f"no better for {state.stale} of {self._method.patience} epochs" if state.stale else "rising"
        if last:
            left = f"took {span(time.monotonic() - self._began)}"
        elif speed is None:
            left = "measuring the time left"
        else:
            seconds = min((epochs * self._batches - state.batch) / speed, max(budget, 0.0))
            left = f"{bound}{span(seconds)} left"
        steps = f"{speed * self._method.theta_steps:.0f} steps/s  " if speed is not None else ""
        return f"epoch {state.epoch + (record is None)}  {steps}{left}  {self._valid}{self._step}  {phase}"

    def _how(self) -> str:
        """How validation is estimated: rows of runs by other estimates are not compared with these."""
        if not self._method.model.layers[1:]:
            return "exact"
        kind = "temperatures" if "annealed" in self._method.estimator.validation else "draws"
        return f"{self._method.valid_draws} {kind}"

    def _epochs_left(self, state: State) -> tuple[int, str]:
        """Epochs to come, and whether that is a bound."""
        left, method = self._method.epochs - state.epoch, self._method
        if state.began is None:
            return left, "at most "
        samples = planned(method, state, self._n_data) - state.collected
        return min(left, math.ceil(samples / samples_per_epoch(method, self._n_data))), "about "

    def _share(self, state: State, last: bool) -> float:
        """How much of the plan is done, as far as is known."""
        done = self._done(state)
        epochs, _ = self._epochs_left(state)
        return 1.0 if last else done / max(1, done + epochs * self._batches - state.batch)

    def _speed(self, state: State) -> float | None:
        """Mini-batches in a second, over the last half minute; None before there is enough to tell."""
        now, done = time.monotonic(), self._done(state)
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > WINDOW:
            self._seen.popleft()
        began, first = self._seen[0]
        return (done - first) / (now - began) if now - began >= LEAST and done > first else None

    def _done(self, state: State) -> int:
        return state.epoch * self._batches + state.batch
