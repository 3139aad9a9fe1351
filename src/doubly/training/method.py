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
from doubly.training.settings import Settings


@dataclass(frozen=True)
class Method(Settings):
    """What is learnt and how: the plain settings, and the objects that do the work."""

    model: Chain
    proposal: Chain
    prior: Prior
    sampler: Sampler
    estimator: Estimator
    optimiser: Sampler
    """What moves the proposal's weights."""
    refitter: Estimator
    """What fits a copy of the proposal to fixed weights of the model."""
    schedule: Schedule = field(default_factory=Constant)
    phi_schedule: Schedule = field(default_factory=Constant)
    phi_prior: Prior = field(default_factory=Flat)
    collect_every: "Every" = field(default_factory=lambda: Every(1, "epoch"))
    shards: int = 1
    """Parts of the rows with random numbers and a memory of their own, among which ranks share a step."""
    dynamic: bool = False
    """Whether the training rows are greys from 0 to 255, whose bits are drawn anew whenever they are used."""


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
    """What moves the weights at some time, and its step."""

    sampler: Sampler
    step: float
    """Its step; where the step is automatic, the factor of its schedule."""
    automatic: bool = False


def mover(method: Method, time: float) -> Mover:
    """After `time` epochs: Adam while warming up, then the sampler with its step as scheduled."""
    if time < method.warmup:
        return Mover(Adam(), method.warmup_step)
    factor = method.schedule(time - method.warmup)
    if method.step == "auto":
        return Mover(method.sampler, factor, automatic=True)
    return Mover(method.sampler, method.step * factor)


def latest_start(method: Method, n_data: int) -> int:
    """The epoch after which samples are collected even if validation still rises.

    It is early enough for `collect` samples before `epochs` run out. If that many never fit, it is half of the epochs.
    It is never before the end of the warm-up, where nothing is sampled.
    """
    wanted = math.ceil(method.collect / samples_per_epoch(method, n_data))
    return max(method.warmup, method.epochs - wanted if wanted < method.epochs else method.epochs // 2)


def watched_from(method: Method) -> int:
    """The first epoch whose validation counts for the levelling off.

    A warm-up ends in a mode, which validates better than single samples do. The chain takes some epochs to leave it.
    Neither the mode nor these epochs are a mark that samples should have to reach.
    """
    return method.warmup + method.patience if method.warmup else 1


def samples_per_epoch(method: Method, n_data: int) -> Fraction:
    """How many samples an epoch gives once collecting has started."""
    steps = math.ceil(n_data / method.batch) * method.theta_steps if method.collect_every.unit == "step" else 1
    return Fraction(steps, method.collect_every.number)
