"""One side of a comparison: a process that loads a task, answers questions about it, and runs it when told to.

It reads one JSON object a line from its input and writes one a line to its output. Whoever drives it stops the process
(SIGSTOP) while another side is being timed, so that no waiting thread takes time from it.
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Task:
    """What is to be run, in words and numbers that every side understands."""

    name: str
    model: list[str]
    """Layer types from the data upward."""
    proposal: list[str]
    """Layer types from the data upward: x to z1 first."""
    widths: list[int]
    """The data and the hidden layers."""
    objective: str = "wake"
    step: float = 0.005
    phi_step: float = 3e-4
    friction: float = 0.1
    df: float = 2.2
    """Of the Student-t prior."""
    scale: float = 0.09
    n_data: int = 50_000
    batch: int = 100
    draws: int = 5
    ones: float = 0.13
    """Share of ones in the data."""
    work: str = "step"
    """What one run is: a training step, one with remembered states that are swept and compete with fresh draws
    (remembered), an evaluation (score), annealing from the prior (anneal) or a Gibbs sweep (sweep)."""
    states: int = 2
    """Remembered for each row."""
    temperatures: int = 100
    score_draws: int = 10_000
    run: str = ""
    """A folder of runs/reproduce that gives weights and rows; else they are those that a run starts from, and noise."""

    @property
    def eta(self) -> float:
        """The sampler's step for the gradient of the whole log posterior."""
        return self.step / self.n_data


class Side(ABC):
    """How one side does a task."""

    @abstractmethod
    def load(self, task: Task, arrays: Arrays) -> None:
        """Take the weights and rows from which all sides start: x, theta.<layer>.<name>, phi.<layer>.<name>.

        Layers are numbered from the data upward; phi.0 draws z1.
        """

    @abstractmethod
    def run(self, times: int) -> None:
        """Do the work so many times, to its end."""

    def densities(self, arrays: Arrays) -> Arrays:
        """log_p and log_q of z0, z1, … (z1 of the papers first), and gradients with these draws.

        theta_grad.… is that of the log posterior, phi_grad.… that of the objective, a mean over rows.
        """
        return {}

    def summary(self) -> dict[str, float]:
        """Numbers that must come out alike on all sides after as many runs from the same start."""
        return {}


def serve(side: Side) -> None:
    """Answer until there is nothing more to read."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print goes elsewhere
    for line in sys.stdin:
        print(json.dumps(answer(side, **json.loads(line))), file=answers, flush=True)


def answer(side: Side, do: str, **given: Any) -> dict[str, Any]:
    if do == "load":
        side.load(Task(**given["task"]), dict(np.load(given["start"])))
        return {}
    if do == "densities":
        np.savez(given["out"], **side.densities(dict(np.load(given["start"]))))
        return {}
    if do == "run":
        begin, cpu = time.perf_counter(), time.process_time()
        side.run(given["times"])
        return {"wall": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    if do == "summary":
        return side.summary()
    raise ValueError(f"a side can load, densities, run and summary, got {do!r}")
