"""What bounds a training step: `python benchmarks/bounds.py [--record]`.

The steps of benchmarks/steps.py, taken apart: the matrix products, the other operations of PyTorch, the fused loops,
and what is left of the whole, which is the way from one call to the next in Python. The whole is timed without a
watch, before and after; the parts are the own times that PyTorch's profiler gives its operations, and a clock's around
the loops. The profiler costs some microseconds a call, which the other operations, being short, look the longer for.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from doubly.kernels import choose
from peers.floor import Floor
from peers.own import Own, start
from results import Table, record
from steps import STEPS, TASKS, weights_are_here

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::dot")
AT_ONCE = 20  # steps of a reading


class Parts(NamedTuple):
    """Milliseconds of a step, and how many calls of PyTorch's operations and of loops it has."""

    whole: float
    products: float
    others: float
    loops: float
    operations: float
    calls: float

    @property
    def rest(self) -> float:
        return self.whole - self.products - self.others - self.loops


class Watch:
    """A clock around every compiled loop."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0
        loops = choose.loops()
        self.originals = {name: loop for name, loop in vars(loops).items() if hasattr(loop, "py_func")}

    def around(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(loop)
        def call(*args: Any) -> Any:
            started = time.perf_counter()
            found = loop(*args)
            self.seconds += time.perf_counter() - started
            self.calls += 1
            return found

        return call

    def __enter__(self) -> "Watch":
        for name, loop in self.originals.items():
            setattr(choose.loops(), name, self.around(loop))
        return self

    def __exit__(self, *_: object) -> None:
        for name, loop in self.originals.items():
            setattr(choose.loops(), name, loop)


class Counts(NamedTuple):
    """Of a step, whatever else the machine does: calls of PyTorch's operations and of loops, and the floating-point
    operations of its matrix products beside those of its floor."""

    operations: float
    calls: float
    flops: float
    floor: float


def counts(name: str, steps: int = 10) -> Counts:
    """The same on every machine for one version of PyTorch."""
    own, floor = Own(), Floor()
    for side in (own, floor):
        side.load(TASKS[name], start(TASKS[name]))
    own.run(2)
    with Watch() as watch, profile(activities=[ProfilerActivity.CPU]) as seen:
        own.run(steps)
    operations = sum(event.count for event in seen.key_averages() if event.key.startswith("aten::"))
    flops = []
    for side in (own, floor):
        with FlopCounterMode(display=False) as counter:
            side.run(steps)
        flops.append(counter.get_total_flops() / steps)
    return Counts(operations / steps, watch.calls / steps, *flops)


def reading(own: Own) -> Parts:
    def whole() -> float:
        started = time.perf_counter()
        own.run(AT_ONCE)
        return time.perf_counter() - started

    before = whole()
    with Watch() as watch, profile(activities=[ProfilerActivity.CPU]) as seen:
        own.run(AT_ONCE)
    after = whole()
    events = [event for event in seen.key_averages() if event.key.startswith("aten::")]
    products = sum(event.self_cpu_time_total for event in events if event.key in PRODUCTS)
    others = sum(event.self_cpu_time_total for event in events if event.key not in PRODUCTS)
    return Parts(
        1e3 * (before + after) / 2 / AT_ONCE,
        1e-3 * products / AT_ONCE,
        1e-3 * others / AT_ONCE,
        1e3 * watch.seconds / AT_ONCE,
        sum(event.count for event in events) / AT_ONCE,
        watch.calls / AT_ONCE,
    )


def parts(name: str, rounds: int) -> Parts:
    own = Own()
    own.load(TASKS[name], start(TASKS[name]))
    own.run(AT_ONCE)  # what is to be compiled is
    return Parts(*(statistics.median(column) for column in zip(*(reading(own) for _ in range(rounds)), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--counts", action="store_true", help="only count, which no other work on the machine disturbs")
    parser.add_argument("--record", action="store_true", help="write results.json and docs/reports/performance.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.counts:
        for name in options.tasks:
            if weights_are_here(name):
                of = counts(name)
                ratio = f"{of.flops / of.floor:.3f} of the floor's products"
                print(f"{TASKS[name].name}: {of.operations:.0f} operations, {of.calls:.0f} loops, {ratio}")
        return
    found = {name: parts(name, options.rounds) for name in options.tasks if weights_are_here(name)}
    rows = []
    for name, of in found.items():
        shares = [f"{part:.1f} ({part / of.whole:.0%})" for part in (of.products, of.loops, of.others, of.rest)]
        rows.append([TASKS[name].name, f"{of.whole:.1f}", *shares, f"{of.operations:.0f}", f"{of.calls:.0f}"])
    head = [
        "model",
        "step, ms",
        "matrix products",
        "fused loops",
        "other operations",
        "the rest",
        "operations",
        "loops",
    ]
    table = Table(head, rows)
    print(table)
    if options.record:
        record("bounds", {name: of._asdict() for name, of in found.items()}, table, "python benchmarks/bounds.py")


if __name__ == "__main__":
    main()
