"""Stochastic gradient Nosé–Hoover thermostat."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.errors import UserError
from doubly.samplers.sampler import Sampler, noise


class SGNHTState(NamedTuple):
    theta: Tensor
    u: Tensor
    alpha: Tensor
    eta: float


@dataclass(frozen=True)
class SGNHT(Sampler):
    """Nosé–Hoover thermostat, one for each weight: the paper's sampler (Ding et al. 2014, reformulated).

    theta <- theta + u                                      ask
    u     <- (1 - alpha) u + eta grad + N(0, 2 a eta)       tell
    alpha <- alpha + (u^2 - eta)

    u starts as N(0, eta), alpha as the friction a. The stationary law of u is N(0, eta): whatever noise the gradient
    carries, alpha grows until the kinetic temperature mean(u^2) / eta is 1.
    """

    friction: float = 0.1
    state_type = SGNHTState

    def __post_init__(self) -> None:
        if not 0 < self.friction < 1:
            raise UserError(f"friction must lie between 0 and 1, got {self.friction}")

    def init(self, theta: Tensor, rng: torch.Generator) -> SGNHTState:
        # eta is not known yet: u is drawn for eta = 1, and the first `ask` brings it to scale
        return SGNHTState(theta, noise(theta, rng), torch.full_like(theta, self.friction), eta=1.0)

    def ask(self, state: SGNHTState, eta: float, rng: torch.Generator) -> SGNHTState:
        theta, u, alpha, old_eta = state
        if eta != old_eta:  # keep the kinetic temperature when the step changes
            u = u * math.sqrt(eta / old_eta)
        return SGNHTState(theta + u, u, alpha, eta)

    def tell(self, state: SGNHTState, grad: Tensor, eta: float, rng: torch.Generator) -> SGNHTState:
        theta, u, alpha, _ = state
        u = torch.addcmul(u, alpha, u, value=-1).add_(grad, alpha=eta)
        u.add_(noise(theta, rng), alpha=math.sqrt(2 * self.friction * eta))
        alpha = torch.addcmul(alpha - eta, u, u)
        return SGNHTState(theta, u, alpha, eta)

    def stats(self, state: SGNHTState, eta: float) -> dict[str, Tensor]:
        return {"temperature": (state.u**2).mean() / eta, "thermostat": state.alpha.mean()}
