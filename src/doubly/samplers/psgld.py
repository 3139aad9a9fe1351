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
    held: int = 0
    """1 once v stays as it is."""


@dataclass(frozen=True)
class PSGLD(Sampler):
    """Langevin dynamics with a step of its own for each weight (Li et al. 2016).

    v     <- b v + (1 - b) grad^2,   G = 1 / (damping + sqrt(v^)),  v^ corrected for its start at zero
    theta <- theta + eta G grad + N(0, 2 eta G T)

    The gradient's scale is in G, so eta is the step itself. While G follows theta, a drift of G with theta would be
    needed, which takes second derivatives and is left out as usual; on a Gaussian with exact gradients and a decay of
    0.9 that can make the variance half as large again. So v is held from the first collected sample on (`hold`): G is
    then a constant, there is nothing to leave out, and samples have the law of Langevin dynamics with steps eta G.
    """

    decay: float = 0.999
    damping: float = 1.0
    temperature: float = 1.0
    usual_step = 1e-3
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
        theta, v, t, held = state
        if not held:
            t += 1
            v = (self.decay * v).addcmul_(grad, grad, value=1 - self.decay)
        scale = v.div(1 - self.decay**t).sqrt_().add_(self.damping).reciprocal_()
        theta = torch.addcmul(theta, scale, grad, value=eta)
        theta.addcmul_(scale.sqrt_(), noise(grad, rng), value=math.sqrt(2 * eta * self.temperature))
        return PSGLDState(theta, v, t, held)

    def hold(self, state: PSGLDState) -> PSGLDState:
        return state._replace(held=1) if state.t else state  # nothing was measured yet
