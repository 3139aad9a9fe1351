"""Scales that are learnt: a half-Cauchy on the scale of each group of weights, drawn from its law given the weights.

p(s) is half-Cauchy, p(theta_i | s) = f(theta_i / s) / s for the weights of a group. For the densities here (Student-t,
normal, Laplace) log p(theta | s) is concave in log s, and so is the half-Cauchy's log density. So p(log s | theta) is
drawn from exactly by rejection (`log_concave`), with all that a mixture of normals would have to add (a variance for
each weight, an auxiliary variable for the half-Cauchy) integrated out. Nothing but s is stored, and each draw is
independent of the scale before it.

A draw needs the density at about five scales: for a normal or a Laplace one sum over the weights, for a Student-t five
(2.1 ms for 156,800 weights on one core of an AMD EPYC). After a step of the sampler the scales are drawn with
probability 1 / every, which depends on nothing, so that the joint law of weights and scales stays invariant.

Given n weights, a Student-t's log scale has a standard deviation of only sqrt((df + 3) / (2 df n)). So the scale
follows the weights, and moves as slowly as they do. It also follows what is wrong with them. If a share r of a normal
group is determined by the data and the sampler gives the rest a variance of (1 - d) s^2 in place of s^2, s^2 ends at
r / (r + (1 - r) d) of what it should be. With `sgnht`, where d is half the friction, 0.05, and with r = 0.1 this is
0.69; `sgnht-split` has no such bias (`tests/test_learnt.py` measures both).
"""

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from doubly.samplers import log_concave
from doubly.samplers.log_concave import Jet, LogDensity
from doubly.samplers.prior import Groups, Prior, PriorState, check_positive

SMALLEST, LARGEST = 1e-15, 1e15  # mean absolute weights whose squares single precision can hold


@dataclass(frozen=True)
class LearntScale(Prior):
    """A density with a scale that is learnt, one for each group of weights.

    It must give `by_log_scale`, beside `log_prob` and `grad`, which are those at its own `scale`.
    """

    scale: float = 0.3
    """The median of the half-Cauchy, and where each scale starts; it stays there while Adam warms up."""
    every: int = 10
    """The scales are drawn once in so many steps, on average."""
    learns = True

    def __post_init__(self) -> None:
        check_positive(scale=self.scale, every=self.every)

    @abstractmethod
    def by_log_scale(self, theta: Tensor) -> LogDensity:
        """log p(theta | scale), up to a constant, as a function of log scale, which must be concave."""

    def init(self, groups: Groups) -> PriorState:
        return dict.fromkeys(groups, self.scale)

    def given(self, state: PriorState, groups: Groups) -> Prior:
        parts = tuple(self._with(state[name]) for name in groups)
        return Grouped(parts, tuple(groups.values()))

    def update(
        self, state: PriorState, groups: Groups, theta: Tensor, rng: torch.Generator, temperature: float = 1.0
    ) -> PriorState:
        if torch.rand((), generator=rng, device=rng.device).item() * self.every >= 1:
            return state
        parts = zip(groups, theta.split(list(groups.values())), strict=True)
        return {name: self.draw_scale(part, state[name], rng, temperature) for name, part in parts}

    def stats(self, state: PriorState) -> dict[str, float]:
        return dict(state)

    def draw_scale(self, theta: Tensor, start: float, rng: torch.Generator, temperature: float = 1.0) -> float:
        """A draw of the scale given the weights of a group, which need not depend on where its search starts."""
        size = theta.abs().mean(dtype=torch.float64).item()
        if not SMALLEST < size < LARGEST:  # weights that have not moved yet, or have diverged, which is told elsewhere
            return start
        density, median = self.by_log_scale(theta), math.log(self.scale)

        def posterior(log_scale: float) -> Jet:
            given, own = density(log_scale), _half_cauchy(log_scale - median)
            joint = [(a + b) / temperature for a, b in zip(given, own, strict=True)]
            return Jet(joint[0] + log_scale, joint[1] + 1, joint[2])  # d scale = scale d log scale

        return math.exp(log_concave.draw(posterior, math.log(start), rng))

    def _with(self, scale: float) -> Self:
        return dataclasses.replace(self, scale=scale)


def _half_cauchy(log_scale: float) -> Jet:
    """-log(1 + scale^2): the density of the scale itself, not of its logarithm."""
    value = -2 * max(log_scale, 0.0) - math.log1p(math.exp(-2 * abs(log_scale)))
    share = -math.expm1(value)  # scale^2 / (1 + scale^2)
    return Jet(value, -2 * share, -4 * share * (1 - share))


@dataclass(frozen=True)
class Grouped(Prior):
    """Groups of weights one after the other, each with a prior of its own."""

    parts: tuple[Prior, ...]
    sizes: tuple[int, ...]

    def log_prob(self, theta: Tensor) -> Tensor:
        found = [part.log_prob(group) for part, group in zip(self.parts, theta.split(self.sizes), strict=True)]
        return torch.stack([theta.new_zeros(()), *found]).sum()

    def grad(self, theta: Tensor) -> Tensor:
        return self.added(theta, torch.zeros_like(theta))

    def added(self, theta: Tensor, grad: Tensor, share: float = 1.0) -> Tensor:
        groups = zip(self.parts, theta.split(self.sizes), grad.split(self.sizes), strict=True)
        return torch.cat([grad.new_zeros(0), *(part.added(own, towards, share) for part, own, towards in groups)])
