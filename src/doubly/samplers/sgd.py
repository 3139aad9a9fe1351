"""Plain stochastic gradient ascent."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.samplers.sampler import Sampler


class SGDState(NamedTuple):
    theta: Tensor
    u: Tensor


@dataclass(frozen=True)
class SGD(Sampler):
    """Stochastic gradient ascent with momentum: no noise, so it finds a mode.

    u     <- momentum u + eta grad
    theta <- theta + u
    """

    momentum: float = 0.0
    noisy = False
    state_type = SGDState

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum must lie in [0, 1), got {self.momentum}")

    def init(self, theta: Tensor, rng: torch.Generator) -> SGDState:
        return SGDState(theta, torch.zeros_like(theta))

    def tell(self, state: SGDState, grad: Tensor, eta: float, rng: torch.Generator) -> SGDState:
        u = (self.momentum * state.u).add_(grad, alpha=eta)
        return SGDState(state.theta + u, u)
