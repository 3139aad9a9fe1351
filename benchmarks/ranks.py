"""What sharing a step costs: `python benchmarks/ranks.py`, and `torchrun --nproc-per-node 2 benchmarks/ranks.py`.

On random rows of the size of MNIST. Alone: the CPU time of one thread for a step of a rank among 1, 2 and 4, without
the sum over ranks, and that of a step that is not cut into shards; all in turn in one process, medians. Under
torchrun: the bytes of the one vector that is summed over the ranks, and the time of that sum: the least on the wall
clock, and the median of the CPU time of one rank, all its threads, which other programs disturb less.
"""

import statistics
import time
from typing import Any

import numpy as np
import torch

from doubly.core.launch import launched
from doubly.core.ranks import Ranks, Team
from doubly.data import Data
from doubly.runs.build import build
from doubly.runs.config import Config
from doubly.training.method import Method
from doubly.training.shards import new_order, sharded_batches
from doubly.training.state import init, own_part
from doubly.training.step import step

MODELS: dict[str, dict[str, Any]] = {
    "sbn 200": {"model": "sbn", "hidden": (200,)},
    "sbn 200-200": {"model": "sbn", "hidden": (200, 200)},
    "nade,sbn 200": {"model": "nade,sbn", "hidden": (200,), "estimator": "nais"},
}
STEPS, ROWS, BATCH, SHARDS = 15, 2000, 100, 4


class Silent(Ranks):
    """The first of some ranks, which hears nothing of the others."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size


def main() -> None:
    torch.set_num_threads(1)
    rows = (np.random.default_rng(0).random((ROWS, 784)) < 0.13).astype(np.uint8)
    data = Data("random", rows, rows[:100], rows[:100], (28, 28), "binary")
    team = Team() if launched() else None
    for name, fields in MODELS.items():
        methods = [
            build(Config(**fields, batch=BATCH, shards=shards, threads=1, step=0.01), data) for shards in (1, SHARDS)
        ]
        size = methods[0].model.size + methods[0].proposal.size + 4
        if team is None:
            print(f"{name:14} {'  '.join(steps(methods, data))}", flush=True)
        else:
            told(team, name, size)
    if team is not None:
        told(team, "latency", 1)


def told(team: Team, name: str, size: int) -> None:
    """Sum a vector over the ranks, many times, and print what that takes."""
    wall, cpu = [], []
    for _ in range(50):
        team.agreed(None)
        began = time.perf_counter(), time.process_time()
        torch.distributed.all_reduce(torch.zeros(size))
        wall.append(1e3 * (time.perf_counter() - began[0]))
        cpu.append(1e3 * (time.process_time() - began[1]))
    if team.first:
        cost = f"least {min(wall):.2f} ms, CPU {statistics.median(cpu):.2f} ms"
        print(f"{name:14} {4 * size / 1e6:.2f} MB, {cost}", flush=True)


def steps(methods: list[Method], data: Data) -> list[str]:
    """Milliseconds of CPU for a step: not cut into shards, and of a rank among 1, 2 and 4."""
    train = torch.as_tensor(data.train)
    cases = [(methods[0], Silent(1)), *((methods[1], Silent(size)) for size in (1, 2, 4))]
    states = [own_part(init(method, train), method.shards, ranks) for method, ranks in cases]
    parts = sharded_batches(new_order(ROWS, SHARDS, states[1].rng), BATCH, SHARDS)
    times: list[list[float]] = [[] for _ in cases]
    for i in range(STEPS + 3):
        index = parts[i % len(parts)]
        for j, (method, ranks) in enumerate(cases):
            began = time.process_time()
            states[j] = step(method, states[j], train[index].float(), index, ROWS, ranks)
            times[j].append(1e3 * (time.process_time() - began))
    whole, *shared = (statistics.median(each[3:]) for each in times)
    return [f"not cut {whole:.1f}", *(f"of {n} ranks {each:.1f}" for n, each in zip((1, 2, 4), shared, strict=True))]


if __name__ == "__main__":
    main()
