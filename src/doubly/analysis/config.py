"""The settings of an evaluation."""

import dataclasses
from dataclasses import dataclass
from typing import get_args

from doubly.core.errors import UserError
from doubly.core.types import By, Of, Refit, Split


@dataclass(frozen=True)
class EvaluateConfig:
    """Which rows are scored, with which weights, and how."""

    split: Split = "test"
    """Which rows to score."""
    draws: int = 1000
    """Draws of the latent variables for each row (K); with --adaptive, at most."""
    of: Of = "auto"
    """Which weights: the posterior mean, an ensemble of samples, or the last sample; auto takes the mean of one chain,
    and the ensemble of several."""
    samples: int | None = None
    """Take the mean of the first so many samples (M), if the run has stored that mean."""
    by: By = "auto"
    """Estimate: draws of the proposal, annealing from it, or auto, the larger of these lower bounds on a few validation
    rows; short-chain is a second opinion of models with sbn and darn layers, and never chosen by itself."""
    temperatures: int = 200
    """Temperatures of annealing, if rows are scored by it."""
    states: int = 100
    """States of the chain, if rows are scored by a short chain; each costs two Gibbs sweeps."""
    settle: bool = True
    """See whether the number is settled: by bounds from both sides, or by ten times the work on a few rows."""
    adaptive: bool = False
    """Spend draws where they are needed: a row is done once its draws are worth a hundred of equal weight."""
    refit: int = 100
    """Passes over the training rows that fit a copy of the proposal to the weights."""
    refit_objective: Refit | None = None
    """The objective of that fit: wake, sleep or wake-sleep; by default wake, unless the run's objective has its own."""
    refit_shards: int = 0
    """In how many shards the mini-batches of that fit are cut, which ranks of torchrun share; 0 takes those of the run.
    The same number gives the same answer with any number of ranks."""
    refine: int = 0
    """Steps that then refine the proposal for each row alone; a step costs as much as 50 draws, and 200 are usual."""
    ais: int = 0
    """Temperatures of annealed importance sampling, a second estimate that needs no proposal; 0 leaves it out."""
    ais_rows: int = 100
    """Anneal the first so many rows; for bounds from both sides as many rows, at most 100, are drawn from the model."""
    ais_chains: int = 16
    """Annealing chains for each row."""
    memory: float = 128.0
    """Megabytes that scoring may use at a time."""
    seed: int = 0
    """Seed of the draws."""
    threads: int = 0
    """Threads to compute with; 0 takes the number the run was fitted with."""

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise UserError(f"by must be one of {', '.join(get_args(By))}, got {self.by!r}")
        if self.temperatures < 1:
            raise UserError(f"temperatures must be at least 1, got {self.temperatures}")
        if self.states < 1:
            raise UserError(f"states must be at least 1, got {self.states}")

    @property
    def name(self) -> str:
        """The name of the file for the result: split, weights and draws, and every other setting not at its default."""
        default, already = EvaluateConfig(), ("split", "of", "draws", "threads", "memory")
        rest = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(EvaluateConfig)
            if field.name not in already
        }
        others = [f"{name}-{value}" for name, value in rest.items() if value != getattr(default, name)]
        return "-".join([self.split, self.of, str(self.draws), *others]).replace("_", "-")
