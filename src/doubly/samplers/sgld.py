"""Stochastic gradient Langevin dynamics."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.samplers.sampler import Sampler, check_temperature, noise


class SGLDState(NamedTuple):
    theta: Tensor


@dataclass(frozen=True)
class SGLD(Sampler):
    """Langevin dynamics without momentum (Welling & Teh 2011).

    theta <- theta + eta grad + N(0, 2 eta T)
    """

    temperature: float = 1.0
    state_type = SGLDState

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def init(self, theta: Tensor, rng: torch.Generator) -> SGLDState:
        return SGLDState(theta)

    def tell(self, state: SGLDState, grad: Tensor, eta: float, rng: torch.Generator) -> SGLDState:
        moved = state.theta.add(grad, alpha=eta)
        return SGLDState(moved.add_(noise(grad, rng), alpha=math.sqrt(2 * eta * self.temperature)))
