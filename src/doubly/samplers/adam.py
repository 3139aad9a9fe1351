"""Adam, as a sampler without noise."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels.moves import Moments, adam
from doubly.samplers.sampler import Sampler


class AdamState(NamedTuple):
    theta: Tensor
    m: Tensor
    v: Tensor
    t: int


@dataclass(frozen=True)
class Adam(Sampler):
    """Adam, ascending (Kingma & Ba 2015): no noise, so it finds a mode; the proposal is learnt with it.

    m <- b1 m + (1 - b1) grad,  v <- b2 v + (1 - b2) grad^2
    theta <- theta + eta m^ / (sqrt(v^) + eps),  with m^, v^ corrected for their start at zero
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-10
    noisy = False
    usual_step = 1e-3
    state_type = AdamState

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise UserError(f"beta1 and beta2 must lie in [0, 1), got {self.beta1} and {self.beta2}")

    def eta(self, step: float, n_data: int) -> float:
        return step  # Adam's move does not depend on the scale of the gradient

    def init(self, theta: Tensor, rng: torch.Generator) -> AdamState:
        return AdamState(theta, torch.zeros_like(theta), torch.zeros_like(theta), t=0)

    def tell(self, state: AdamState, grad: Tensor, eta: float, rng: torch.Generator) -> AdamState:
        t = state.t + 1
        move, correction = eta / (1 - self.beta1**t), 1 / math.sqrt(1 - self.beta2**t)
        before = Moments(state.theta, state.m, state.v)
        return AdamState(*adam(before, grad, self.beta1, self.beta2, move, correction, self.epsilon), t)
