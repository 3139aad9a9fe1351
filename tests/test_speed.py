"""A step does not drift away from its floor, the matrix products that it cannot do without.

Ratios within one process only, never times. `docs/reports/performance.md` has what an idle machine reaches: about half
of what is allowed here, where another process of the tests keeps the other core busy.
"""

import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ALLOWED = {"sbn": 3.5, "sbn3": 3.5, "vae": 4.0}
ROUNDS, SECONDS = 9, 0.1


@pytest.mark.parametrize("model", ALLOWED)
def test_a_step_stays_near_its_floor(model: str, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    own, floor, steps = (importlib.import_module(name) for name in ("peers.own", "peers.floor", "steps"))
    task, sides = steps.TASKS[model], (own.Own(), floor.Floor())
    for side in sides:
        side.load(task, own.start(task))
        side.run(2)  # kernels are compiled here
    repeats = [max(1, round(SECONDS / seconds(side.run, 3))) for side in sides]
    ratios = []
    for _ in range(ROUNDS):
        step, products = (seconds(side.run, times) for side, times in zip(sides, repeats, strict=True))
        ratios.append(step / products)
    assert statistics.median(ratios) < ALLOWED[model]


def seconds(run: Callable[[int], None], times: int) -> float:
    """Of the processor, not of the clock, which goes on while others have the core: of one run, of so many."""
    begin = time.process_time()
    run(times)
    return (time.process_time() - begin) / times
