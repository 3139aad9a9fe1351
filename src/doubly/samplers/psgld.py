"""Langevin dynamics preconditioned by the size of the gradient."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.samplers.sampler import Sampler, check_temperature, noise


class PSGLDState(NamedTuple):
    theta: Tensor
    v: Tensor
    t: int


@dataclass(frozen=True)
class PSGLD(Sampler):
    """Langevin dynamics with a step of its own for each weight (Li et al. 2016).

    v     <- b v + (1 - b) grad^2,   G = 1 / (damping + sqrt(v^)),  v^ corrected for its start at zero
    theta <- theta + eta G grad + N(0, 2 eta G T)

    The gradient's scale is in G, so eta is the step itself. As usual the drift of G with theta is left out, which is
    the smaller the nearer `decay` is to 1.
    """

    decay: float = 0.999
    damping: float = 1.0
    temperature: float = 1.0
    state_type = PSGLDState

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if not 0 < self.decay < 1:
            raise UserError(f"decay must lie between 0 and 1, got {self.decay}")
        if not self.damping > 0:
            raise UserError(f"damping must be positive, got {self.damping}")

    def eta(self, step: float, n_data: int) -> float:
        return step

    def init(self, theta: Tensor, rng: torch.Generator) -> PSGLDState:
        return PSGLDState(theta, torch.zeros_like(theta), t=0)

    def tell(self, state: PSGLDState, grad: Tensor, eta: float, rng: torch.Generator) -> PSGLDState:
        theta, v, t = state
        t += 1
        v = (self.decay * v).addcmul_(grad, grad, value=1 - self.decay)
        scale = v.div(1 - self.decay**t).sqrt_().add_(self.damping).reciprocal_()
        theta = torch.addcmul(theta, scale, grad, value=eta)
        theta.addcmul_(scale.sqrt_(), noise(grad, rng), value=math.sqrt(2 * eta * self.temperature))
        return PSGLDState(theta, v, t)
