"""The laws of step schedules and of functions that give data."""

import math
from collections.abc import Callable

import numpy as np

from doubly.analysis.laws.law import Law, expect
from doubly.data import SPLITS, Data, load
from doubly.samplers.schedules import SCHEDULES, Schedule


def schedule_cases(spec: str) -> dict[str, Schedule]:
    return {"": SCHEDULES.make(spec)}


def factors_are_positive(schedule: Schedule) -> None:
    """The step is multiplied with a finite number that is not negative, at any time."""
    for time in [0.0, 0.5, *map(float, np.geomspace(1, 1e5, 50))]:
        factor = schedule(time)
        good = isinstance(factor, int | float) and math.isfinite(factor) and factor >= 0
        expect(good, f"factor after {time:g} epochs: expected a finite number, not negative, got {factor!r}")
    expect(schedule(0.0) > 0, "factor at the start: expected a positive number, got 0")


def data_cases(spec: str) -> dict[str, Callable[[], Data]]:
    return {"": lambda: load(spec)}


def data_are_data(function: Callable[[], Data]) -> None:
    """A function without options returns a `Data` with rows to train on."""
    data = function()
    expect(len(data.train) > 0, "train: expected at least one row, got none")


def data_stay_the_same(function: Callable[[], Data]) -> None:
    """Each call gives the same rows: a run is resumed with the data that it began with."""
    one, other = function(), function()
    for split in SPLITS:
        same = np.array_equal(one.split(split), other.split(split), equal_nan=one.split(split).dtype.kind == "f")
        expect(same, f"{split}: expected the same rows from each call, got others: fix the seed")


SCHEDULE_LAWS: dict[str, Law] = {"factors are finite and not negative": factors_are_positive}
DATA_LAWS: dict[str, Law] = {"it returns Data": data_are_data, "each call gives the same rows": data_stay_the_same}
