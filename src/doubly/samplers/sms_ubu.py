"""Symmetric passes over the mini-batches, with a splitting whose friction and motion are solved together."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.samplers.sampler import Eta, Sampler, check_friction, check_temperature, drifted, noise


class UBUState(NamedTuple):
    theta: Tensor
    v: Tensor
    """The momentum u / sqrt(eta), which is N(0, T)."""


@dataclass(frozen=True)
class SMSUBU(Sampler):
    """Langevin dynamics by U-B-U, forward and backward over the same mini-batches (Paulin et al. 2024, SMS-UBU).

    U  half a step of dv = -a v dt + sqrt(2 a T) dw, dtheta = sqrt(eta) v dt, exactly      ask, and at the end of tell
    B  v <- v + sqrt(eta) grad

    One gradient a step. Mini-batches are a random partition of the rows; an epoch goes through them, the next one goes
    back, and then there is a new partition. What a batch pushes too far on the way there, it pushes too far on the way
    back: to first order in h = sqrt(eta) the noise of the mini-batches cancels, and the bias is of order h^2, as it is
    with the whole data. Noise that a batch does not repeat, as of latent variables that are drawn, does not cancel,
    and there is no thermostat to take it up: watch the temperature.
    """

    friction: float = 0.1
    temperature: float = 1.0
    state_type = UBUState
    takes_scales = True
    there_and_back = True
    too_cold = "the chain moves less than its temperature asks for; burn in longer"

    def __post_init__(self) -> None:
        check_friction(self.friction)
        check_temperature(self.temperature)

    def init(self, theta: Tensor, rng: torch.Generator) -> UBUState:
        return UBUState(theta, noise(theta, rng) * math.sqrt(self.temperature))

    def ask(self, state: UBUState, eta: Eta, rng: torch.Generator) -> UBUState:
        return self._U(state, eta, rng)

    def tell(self, state: UBUState, grad: Tensor, eta: Eta, rng: torch.Generator) -> UBUState:
        return self._U(self._B(state, grad, eta), eta, rng)

    def stats(self, state: UBUState) -> dict[str, Tensor]:
        return {"temperature": (state.v**2).mean()}

    def expected_temperature(self) -> float:
        return self.temperature

    def _B(self, state: UBUState, grad: Tensor, eta: Eta) -> UBUState:
        return state._replace(v=drifted(state.v, grad, eta, 1.0))

    def _U(self, state: UBUState, eta: Eta, rng: torch.Generator) -> UBUState:
        a, T = self.friction, self.temperature
        lost = -math.expm1(-a / 2)  # what half a step takes of v
        # the noises of v and of the way have a joint normal law: that of the way given that of v, and the rest of it
        spread = math.sqrt(T * lost * (2 - lost))
        together = T * lost**2 / a / spread
        rest = math.sqrt(max(0.0, T * (a - lost * (2 + lost)) / a**2 - together**2))
        z = noise(state.theta, rng)
        way = state.v * (lost / a) + z.mul(together).add_(noise(state.theta, rng), alpha=rest)
        return UBUState(drifted(state.theta, way, eta, 1.0), (1 - lost) * state.v + spread * z)
