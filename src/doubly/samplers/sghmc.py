"""Stochastic gradient Hamiltonian Monte Carlo."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.samplers.sampler import Sampler, check_friction, check_temperature, noise, rescaled


class SGHMCState(NamedTuple):
    theta: Tensor
    u: Tensor
    eta: float


@dataclass(frozen=True)
class SGHMC(Sampler):
    """Hamiltonian Monte Carlo with friction (Chen, Fox & Guestrin 2014).

    u     <- (1 - a) u + eta grad + N(0, 2 (a - b) eta T)
    theta <- theta + u

    b is an estimate of what the noise of the gradient already adds: eta var(grad) / 2.
    """

    friction: float = 0.1
    noise_estimate: float = 0.0
    temperature: float = 1.0
    state_type = SGHMCState
    too_cold = "its noise_estimate may be too large"

    def __post_init__(self) -> None:
        check_friction(self.friction)
        check_temperature(self.temperature)
        if not 0 <= self.noise_estimate <= self.friction:
            raise UserError(
                f"noise_estimate must lie between 0 and friction {self.friction}, got {self.noise_estimate}"
            )

    def init(self, theta: Tensor, rng: torch.Generator) -> SGHMCState:
        return SGHMCState(theta, noise(theta, rng) * math.sqrt(self.temperature), eta=1.0)

    def ask(self, state: SGHMCState, eta: float, rng: torch.Generator) -> SGHMCState:
        return SGHMCState(state.theta, rescaled(state.u, state.eta, eta), eta)

    def tell(self, state: SGHMCState, grad: Tensor, eta: float, rng: torch.Generator) -> SGHMCState:
        u = (1 - self.friction) * state.u
        u.add_(grad, alpha=eta)
        left = self.friction - self.noise_estimate
        u.add_(noise(grad, rng), alpha=math.sqrt(2 * left * eta * self.temperature))
        return SGHMCState(state.theta + u, u, eta)

    def stats(self, state: SGHMCState) -> dict[str, Tensor]:
        return {"temperature": (state.u**2).mean() / state.eta}

    def expected_temperature(self) -> float:
        # a step keeps (1 - a)^2 of u^2 and adds 2 a eta T: they balance at u^2 = eta T / (1 - a / 2)
        return self.temperature / (1 - self.friction / 2)
