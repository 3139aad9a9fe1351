"""All that stays fixed in a run: what is learnt, and how."""

import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple

from doubly.core.errors import UserError
from doubly.latents import Estimator
from doubly.layers.chain import Chain
from doubly.samplers import Adam, Sampler
from doubly.samplers.priors import Flat, Prior
from doubly.samplers.schedules import Constant, Schedule


@dataclass(frozen=True)
class Method:
    """What is learnt and how."""

    model: Chain
    proposal: Chain
    prior: Prior
    sampler: Sampler
    estimator: Estimator
    optimiser: Sampler
    refitter: Estimator
    """What fits a copy of the proposal to weights that stand still."""
    schedule: Schedule = field(default_factory=Constant)
    phi_schedule: Schedule = field(default_factory=Constant)
    phi_prior: Prior = field(default_factory=Flat)
    step: float = 0.005
    phi_step: float = 3e-4
    batch: int = 100
    theta_steps: int = 10
    phi_steps: int = 1
    resample: bool = False
    phi_first: bool = False
    warmup: int = 0
    warmup_step: float = 1e-3
    valid_draws: int = 100
    patience: int = 10
    min_epochs: int = 10
    epochs: int = 1000
    collect: int = 100
    collect_every: "Every" = field(default_factory=lambda: Every(1, "epoch"))
    window: int = 1
    dynamic: bool = False
    """Whether the training rows are greys from 0 to 255, whose bits are drawn anew whenever they are used."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("step", "phi_step", "warmup_step"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be positive and finite, got {getattr(self, name)}")
        for name in ("batch", "theta_steps", "valid_draws", "epochs", "window"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("phi_steps", "patience", "min_epochs", "collect", "warmup"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.collect and self.warmup >= self.epochs:
            raise UserError(
                f"a warm-up of {self.warmup} epochs leaves none of {self.epochs} to sample: "
                "raise epochs or shorten warmup"
            )
        if self.collect and self.window > self.collect:
            raise UserError(f"a window of {self.window} samples is never full with {self.collect}: raise collect")


class Every(NamedTuple):
    """How often a sample is collected."""

    number: int
    unit: Literal["epoch", "step"]

    @classmethod
    def parse(cls, text: str) -> "Every":
        """From a number of epochs or of steps of the sampler.

        >>> Every.parse("2"), Every.parse("50 steps")
        (Every(number=2, unit='epoch'), Every(number=50, unit='step'))
        """
        found = re.fullmatch(r"(\d+) *(epoch|step|)s?", text.strip())
        if not found or int(found[1]) < 1:
            raise UserError(
                f"collect_every must be a number of epochs or steps, as in 1, 2epochs or 50steps, got {text!r}"
            )
        return cls(int(found[1]), "step" if found[2] == "step" else "epoch")


class Mover(NamedTuple):
    """What moves the weights at some time, and by which step."""

    sampler: Sampler
    step: float


def mover(method: Method, time: float) -> Mover:
    """After `time` epochs: Adam while warming up, then the sampler with its step as scheduled."""
    if time < method.warmup:
        return Mover(Adam(), method.warmup_step)
    return Mover(method.sampler, method.step * method.schedule(time - method.warmup))


def latest_start(method: Method, n_data: int) -> int:
    """The epoch after which samples are collected even if validation still rises.

    It is so early that `collect` samples fit in before `epochs` run out, or if that many never fit, half of the epochs;
    but never before the warm-up is over, which is no sampling.
    """
    wanted = math.ceil(method.collect / samples_per_epoch(method, n_data))
    return max(method.warmup, method.epochs - wanted if wanted < method.epochs else method.epochs // 2)


def watched_from(method: Method) -> int:
    """The first epoch whose validation counts for the levelling off.

    Single draws are worse than the mode in which a warm-up ends, and it takes the chain some epochs to get there:
    neither the mode nor what lies on the way from it is a mark for them to reach.
    """
    return method.warmup + method.patience if method.warmup else 1


def samples_per_epoch(method: Method, n_data: int) -> Fraction:
    """How many samples an epoch gives once collecting has started."""
    steps = math.ceil(n_data / method.batch) * method.theta_steps if method.collect_every.unit == "step" else 1
    return Fraction(steps, method.collect_every.number)
