"""How the time of a training step grows with every size: `python benchmarks/growth.py [--record]`.

One size at a time is changed, from the paper's SBN 784-200 with batches of 100 and five draws; steps of all values are
taken in turn, and the power is the slope of the line through the logarithms of their medians.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure

from doubly.runs.build import Facts, build
from doubly.runs.config import from_dict
from doubly.training.state import init
from doubly.training.step import step
from results import Table, record

PICTURE = Path(__file__).parents[1] / "docs" / "reports" / "growth.svg"
BASE = {"width": 784, "hidden": 200, "depth": 1, "batch": 100, "draws": 5, "rows": 10_000, "threads": 2}
VALUES = {
    "batch": [25, 50, 100, 200, 400],
    "draws": [1, 2, 5, 10, 20],
    "width": [196, 392, 784, 1568],
    "hidden": [50, 100, 200, 400],
    "depth": [1, 2, 3, 4],
    "rows": [1000, 10_000, 100_000],
    "threads": [1, 2],
}
NAMES = {
    "batch": "rows in a batch (B)",
    "draws": "draws (S)",
    "width": "columns (D)",
    "hidden": "hidden units in a layer (H)",
    "depth": "hidden layers",
    "rows": "training rows (N)",
    "threads": "threads",
}


class Growth(NamedTuple):
    """Median milliseconds of a step at each value of one size, and the power of that size they go with."""

    size: str
    values: list[int]
    milliseconds: list[float]
    power: float


def stepper(sizes: dict[str, int]) -> Callable[[], None]:
    """A function that takes one step of a model of these sizes on random bits."""
    fields: dict[str, Any] = {"hidden": (sizes["hidden"],) * sizes["depth"], "batch": sizes["batch"]}
    method = build(from_dict(fields | {"draws": sizes["draws"], "resample": True}), Facts(sizes["width"], "binary", ()))
    rng = torch.Generator().manual_seed(0)
    train = (torch.rand(sizes["rows"], sizes["width"], generator=rng) < 0.13).byte()
    state = init(method, train)
    index = torch.randperm(sizes["rows"], generator=rng)[: sizes["batch"]]
    x = train[index].float()

    def take() -> None:
        nonlocal state
        torch.set_num_threads(sizes["threads"])
        state = step(method, state, x, index, sizes["rows"])

    return take


def grow(size: str, rounds: int) -> Growth:
    steppers = [stepper(BASE | {size: value}) for value in VALUES[size]]
    for take in steppers:
        take()
    times: list[list[float]] = [[] for _ in steppers]
    for _ in range(rounds):
        for take, taken in zip(steppers, times, strict=True):
            start = time.perf_counter()
            take()
            taken.append(1e3 * (time.perf_counter() - start))
    medians = [statistics.median(taken) for taken in times]
    power = float(np.polyfit(np.log(VALUES[size]), np.log(medians), 1)[0])
    return Growth(size, VALUES[size], medians, power)


def draw(found: list[Growth]) -> None:
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = list(figure.subplots(2, math.ceil(len(found) / 2), sharey=True).flat)
    for axes, growth in zip(panels, found, strict=False):
        axes.plot(growth.values, growth.milliseconds, "o-", color="#0072B2", markersize=4)
        axes.set(xscale="log", yscale="log", xlabel=NAMES[growth.size], title=f"power {growth.power:.2f}")
        axes.set_xticks(growth.values, [f"{value:g}" for value in growth.values], fontsize=7)
        axes.set_yticks([5, 10, 20], ["5", "10", "20"])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(found) :]:
        axes.set_axis_off()
    figure.supylabel("milliseconds of a step")
    figure.savefig(PICTURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--record", action="store_true", help="write results.json and the page, with its picture")
    options = parser.parse_args()
    found = [grow(size, options.rounds) for size in VALUES]
    rows = [
        [NAMES[g.size], ", ".join(f"{v:g}: {t:.1f}" for v, t in zip(g.values, g.milliseconds, strict=True)),
         f"{g.power:.2f}"]
        for g in found
    ]  # fmt: skip
    table = Table(["size", "milliseconds of a step", "power"], rows)
    print(table)
    if options.record:
        draw(found)
        record("growth", [g._asdict() for g in found], table, "python benchmarks/growth.py")


if __name__ == "__main__":
    main()
