"""Stochastic gradient Nosé–Hoover thermostats, of the paper's Euler kind."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.kernels.moves import Thermostat, thermostat
from doubly.samplers.sampler import Sampler, check_friction, check_rate, check_temperature, noise, rescaled


class SGNHTState(NamedTuple):
    theta: Tensor
    u: Tensor
    excess: Tensor
    """alpha - a: its moves are as small as eta, which single precision would lose beside the friction itself."""
    eta: float


@dataclass(frozen=True)
class SGNHT(Sampler):
    """Nosé–Hoover thermostat, one for each weight: the paper's sampler (Ding et al. 2014, reformulated).

    theta <- theta + u                                      ask
    u     <- (1 - alpha) u + eta grad + N(0, 2 a eta T)     tell
    alpha <- alpha + rate (u^2 - eta T)

    u starts as N(0, eta T), alpha as the friction a. Whatever noise the gradient carries, alpha grows until the kinetic
    temperature mean(u^2) / eta is T. In the paper T and the rate are 1; a larger rate makes the thermostat quicker,
    which otherwise hardly moves in a run on many rows: at eta <= 1e-6 it does nothing, and noise heats. The sampler
    `thermostat` settles in as many steps at any eta. Euler's step samples theta at T (1 - alpha / 2), which
    sgnht-split does not.
    """

    friction: float = 0.1
    rate: float = 1.0
    temperature: float = 1.0
    state_type = SGNHTState
    has_thermostat = True
    too_cold = "the thermostat has overshot and recovers slowly"
    too_hot = "burn in longer, take a smaller step, or the sampler thermostat, which is as quick at any step"

    def __post_init__(self) -> None:
        check_friction(self.friction)
        check_rate(self.rate)
        check_temperature(self.temperature)

    def init(self, theta: Tensor, rng: torch.Generator) -> SGNHTState:
        # eta is not known yet: u is drawn for eta = 1, and the first `ask` brings it to scale
        u = noise(theta, rng) * math.sqrt(self.temperature)
        return SGNHTState(theta, u, self._no_excess(theta), eta=1.0)

    def ask(self, state: SGNHTState, eta: float, rng: torch.Generator) -> SGNHTState:
        u = rescaled(state.u, state.eta, eta)
        return SGNHTState(state.theta + u, u, state.excess, eta)

    def tell(self, state: SGNHTState, grad: Tensor, eta: float, rng: torch.Generator) -> SGNHTState:
        before = Thermostat(state.u, state.excess)
        u, excess = thermostat(before, grad, eta, self.friction, eta * self.temperature, self.rate, rng)
        return SGNHTState(state.theta, u, excess, eta)

    def stats(self, state: SGNHTState) -> dict[str, Tensor]:
        return {"temperature": (state.u**2).mean() / state.eta, "thermostat": self.friction + state.excess.mean()}

    def expected_temperature(self) -> float:
        return self.temperature

    def relative_loss(self, alpha: float) -> float:
        # Euler's step keeps (1 - alpha)^2 of u^2
        return alpha * (2 - alpha) / (self.friction * (2 - self.friction))

    def _no_excess(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)


@dataclass(frozen=True)
class ScalarSGNHT(SGNHT):
    """Nosé–Hoover thermostat, a single one for all weights (Ding et al. 2014).

    As sgnht, with alpha <- alpha + rate (mean(u^2) - eta T).
    """

    def _no_excess(self, theta: Tensor) -> Tensor:
        return theta.new_zeros(())
