"""The settings of an evaluation."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from doubly.core.types import Of, Refit, Split

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class EvaluateConfig:
    """What is asked of a run."""

    split: Split = "test"
    """Which rows to score."""
    draws: int = 1000
    """Draws of the hidden variables for each row (the paper's K); with --adaptive, at most."""
    of: Of = "mean"
    """The posterior mean of the weights, an ensemble of samples of them, or the last sample."""
    samples: int | None = None
    """Take the mean of the first so many samples (the paper's M), where the run kept it."""
    adaptive: bool = False
    """Spend draws where they are needed: leave a row alone once its draws are worth a hundred of equal weight."""
    refit: int = 100
    """Passes over the training rows that fit a copy of the proposal to those weights."""
    refit_objective: Refit | None = None
    """What that copy climbs: wake unless the run's objective says otherwise, sleep or wake-sleep."""
    refine: int = 0
    """Steps by which the proposal is then refined for each row by itself, each as dear as 50 draws; 200 is usual."""
    ais: int = 0
    """Temperatures of annealed importance sampling, a second opinion that needs no proposal; 0 asks for none…"""
    ais_rows: int = 100
    """…on the first so many rows, and for bounds from both sides on as many, at most 100, drawn from the model…"""
    ais_chains: int = 16
    """…with so many chains for each row."""
    memory: float = 128.0
    """Megabytes that scoring may take at a time."""
    seed: int = 0
    """Seed of the draws."""
    threads: int = 0
    """Threads to compute with; 0 takes the number the run was fitted with."""

    @property
    def name(self) -> str:
        """What the answer is filed under: all that was asked for, where it is not the usual."""
        plain, told = EvaluateConfig(), ("split", "of", "draws", "threads", "memory")
        rest = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(EvaluateConfig)
            if field.name not in told
        }
        others = [f"{name}-{value}" for name, value in rest.items() if value != getattr(plain, name)]
        return "-".join([self.split, self.of, str(self.draws), *others]).replace("_", "-")
