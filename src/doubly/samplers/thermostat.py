"""Nosé–Hoover thermostat with a time constant of its own, whatever the step."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels.moves import Heated, Langevin, heated
from doubly.samplers.sampler import Eta, Sampler, check_friction, check_temperature, noise


class ThermostatState(NamedTuple):
    theta: Tensor
    v: Tensor
    """The momentum u / sqrt(eta), which is N(0, T): in these units a change of the step changes nothing."""
    alpha: Tensor
    """The friction as it is now: one for each weight, or one for all."""
    held: int = 0
    """1 once samples are collected: the thermostat then looks at rare, hard kicks, too."""


MOST_RISE = 10
"""Of the logarithm of a friction in a step, once samples are collected."""


@dataclass(frozen=True)
class Thermostat(Sampler):
    """Nosé–Hoover thermostat, one for each weight, that settles in a number of steps of its own.

    B  v     <- v + sqrt(eta) grad / 2
    O  v     <- exp(-alpha) v + N(0, a T (1 - exp(-2 alpha)) / alpha)
    B  again
    A  theta <- theta + sqrt(eta) v
    D  alpha <- alpha exp((v^2 / T - 1) / settle)

    The sample is theta where the gradient is taken. There the variance of a normal law is exact whatever eta k is, k
    being its precision. (Half way through A, where a symmetric step A-B-O-B-A would begin and end, it is too small by
    eta k / 4: weights that only their prior holds would be too near to 0, and a scale that is learnt from them would
    fall with them until the step no longer resolves it.)

    Noise of the gradient of variance s^2 heats v like b = eta s^2 / (2 T) of friction would cool it. The continuous
    dynamics keep exp(-U / T) in theta, N(0, T) in v, and for alpha a Gamma law of mean a + b and variance (a + b) /
    settle: the friction takes up whatever noise there is. Its logarithm moves, so that it is positive, and so that it
    approaches a + b at the rate 1 / settle for any b and any eta. (The thermostat of the paper, sgnht, adds u^2 - eta T
    to alpha and so hardly moves at small eta.) Noise beyond b = 2 is more than any friction takes away: the temperature
    then lies above T.

    In the burn-in, v^2 / T beyond 30 counts as 30, so that a chain that starts far from where it belongs leaves no
    friction behind. A weight whose gradient is nearly always 0 has such energies in its steady state: a pixel that is
    hardly ever on kicks it once in a thousand steps, hard. A friction that overlooks these kicks is too small. So once
    samples are collected (`hold`) the thermostat looks at energies up to ten times `settle`. A normal v has none of
    these, and nothing else changes: a thermostat that became slower then would keep the friction that it had by chance.
    """

    friction: float = 0.1
    settle: float = 100.0
    temperature: float = 1.0
    state_type = ThermostatState
    has_thermostat = True
    takes_scales = True
    too_cold = "the chain moves less than its temperature asks for; burn in longer"
    shared: ClassVar[bool] = False
    """Whether there is one thermostat for all weights."""

    def __post_init__(self) -> None:
        check_friction(self.friction)
        check_temperature(self.temperature)
        if not 2 / self.friction <= self.settle < math.inf:
            # energy decays at the rate 2 alpha; a thermostat that is quicker than a quarter of that oscillates
            raise UserError(
                f"settle must be at least 2 / friction = {2 / self.friction:g} steps, so that the thermostat does not "
                f"oscillate, got {self.settle:g}"
            )

    def init(self, theta: Tensor, rng: torch.Generator) -> ThermostatState:
        v = noise(theta, rng) * math.sqrt(self.temperature)
        alpha = torch.full((), self.friction, dtype=theta.dtype, device=theta.device)
        return ThermostatState(theta, v, alpha if self.shared else alpha.repeat(theta.shape))

    def tell(self, state: ThermostatState, grad: Tensor, eta: Eta, rng: torch.Generator) -> ThermostatState:
        with_settings = Langevin(self.friction, self.temperature, 1 / self.settle)
        if state.held:
            with_settings = with_settings._replace(most_energy=MOST_RISE * self.settle)
        return ThermostatState(*heated(Heated(*state[:3]), grad, eta, with_settings, rng), state.held)

    def hold(self, state: ThermostatState) -> ThermostatState:
        return state._replace(held=1)

    def stats(self, state: ThermostatState) -> dict[str, Tensor]:
        return {"temperature": (state.v**2).mean(), "thermostat": state.alpha.mean()}

    def expected_temperature(self) -> float:
        return self.temperature

    def relative_loss(self, alpha: float) -> float:
        # a step with kicks of variance 2 b balances where 1 - a / alpha = b coth(alpha / 2) / 2; held at a, the
        # friction would leave 1 + b coth(a / 2) / 2
        a = self.friction
        return 1 + (1 - a / alpha) * math.tanh(alpha / 2) / math.tanh(a / 2)


@dataclass(frozen=True)
class ScalarThermostat(Thermostat):
    """Nosé–Hoover thermostat, a single one for all weights, that settles in a number of steps of its own.

    As thermostat, with D driven by the mean of v^2. Noise that differs between the weights leaves some of them too hot
    and others too cold.
    """

    shared = True
