"""Nosé–Hoover thermostat by symmetric splitting: one gradient a step, and a bias of second order."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.kernels.moves import driven
from doubly.samplers.sampler import noise, rescaled
from doubly.samplers.sgnht import SGNHT, SGNHTState


@dataclass(frozen=True)
class SplitSGNHT(SGNHT):
    """Nosé–Hoover thermostat by the symmetric splitting A-D-B-O-B-D-A (after Leimkuhler & Shang 2016, Li et al. 2016).

    A  theta <- theta + u / 2
    D  alpha <- alpha + rate (u^2 - eta T) / 2
    B  u <- u + eta grad / 2
    O  u <- exp(-alpha) u + N(0, a eta T (1 - exp(-2 alpha)) / alpha),  exact for du = -alpha u dt + sqrt(2 a eta T) dw

    The gradient is wanted in the middle, where theta does not move: once a step. Friction is solved exactly, so it may
    be large, and u is not cooled as it is by Euler's steps.
    """

    def ask(self, state: SGNHTState, eta: float, rng: torch.Generator) -> SGNHTState:
        state = state._replace(u=rescaled(state.u, state.eta, eta), eta=eta)
        return self._D(self._A(state))

    def tell(self, state: SGNHTState, grad: Tensor, eta: float, rng: torch.Generator) -> SGNHTState:
        return self._A(self._D(self._B(self._O(self._B(state, grad), rng), grad)))

    def relative_loss(self, alpha: float) -> float:
        return alpha / self.friction  # friction is solved exactly, so that there is no alpha^2

    def _A(self, state: SGNHTState) -> SGNHTState:
        return state._replace(theta=state.theta.add(state.u, alpha=0.5))

    def _D(self, state: SGNHTState) -> SGNHTState:
        return state._replace(excess=driven(state.excess, state.u, state.eta * self.temperature, self.rate / 2))

    def _B(self, state: SGNHTState, grad: Tensor) -> SGNHTState:
        return state._replace(u=state.u.add(grad, alpha=state.eta / 2))

    def _O(self, state: SGNHTState, rng: torch.Generator) -> SGNHTState:
        alpha, strength = self.friction + state.excess, self.friction * state.eta * self.temperature
        # (1 - exp(-2 alpha)) / alpha, which is 2 where alpha vanishes, and positive where it is negative
        share = torch.where(alpha.abs() < 1e-4, 2 - 2 * alpha, -torch.expm1(-2 * alpha) / alpha)
        u = torch.exp(-alpha) * state.u
        return state._replace(u=u.addcmul_(share.sqrt(), noise(u, rng), value=math.sqrt(strength)))
