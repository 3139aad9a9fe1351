"""The plain settings of training: numbers, each with what it does, and the checks on them.

`Config` adds names and what a run folder needs; `Method` adds the objects that the names stand for. Nothing heavy is
imported here, so that `doubly --help` is quick.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from doubly.core.errors import UserError
from doubly.core.types import Step


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long, how often and by which steps."""

    step: Step = 0.005
    """Step size of the sampler, like a learning rate for the mean over rows; auto measures one for each weight during
    burn-in (thermostat, sms-ubu), or takes the sampler's usual one."""
    phi_step: float = 3e-4
    """Learning rate of the proposal (Adam)."""
    warmup: int = 0
    """Epochs of plain optimisation (Adam) before sampling starts; the chain then has `patience` epochs to settle before
    validation counts."""
    warmup_step: float = 1e-3
    """Learning rate of that optimisation."""
    batch: int = 100
    """Rows in a mini-batch."""
    theta_steps: int = 10
    """Steps of the sampler on each mini-batch."""
    phi_steps: int = 1
    """Steps of the proposal after each step of the sampler."""
    resample: bool = False
    """Draw the latent variables afresh for the proposal's update, as the paper does; doubles the cost of a step."""
    phi_first: bool = False
    """Move the proposal before the weights in each step, as the paper's released code does."""
    valid_draws: int = 100
    """Draws for the validation log-likelihood after each epoch; temperatures of annealing where latent variables are
    remembered."""
    patience: int = 10
    """Burn-in ends once validation has not risen for this many epochs…"""
    min_epochs: int = 10
    """…but not before this many."""
    epochs: int = 1000
    """Passes over the data in all, at most, samples included."""
    collect: int = 100
    """Samples of the weights to take after burn-in."""
    window: int = 1
    """Average this many consecutive samples, and store such averages in place of single samples."""
    seed: int = 0
    """Seed of every random number."""

    def __post_init__(self) -> None:
        for name in ("step", "phi_step", "warmup_step"):
            if getattr(self, name) != "auto" and not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be positive and finite, got {getattr(self, name)}")
        for name in ("batch", "theta_steps", "valid_draws", "window"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.epochs < self._least_epochs():
            raise UserError(f"epochs must be at least {self._least_epochs()}, got {self.epochs}")
        for name in ("phi_steps", "patience", "min_epochs", "collect", "warmup", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.collect and 0 < self.epochs <= self.warmup:
            raise UserError(
                f"a warm-up of {self.warmup} epochs leaves none of {self.epochs} to sample: "
                "raise epochs or shorten warmup"
            )
        if self.collect and self.window > self.collect:
            raise UserError(f"a window of {self.window} samples is never full with {self.collect}: raise collect")

    def _least_epochs(self) -> int:
        return 1

    def plain(self) -> dict[str, Any]:
        """These settings by name, without what a subclass adds."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Settings)}
