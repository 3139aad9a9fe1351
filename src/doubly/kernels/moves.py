"""Moves of a vector of weights that would take many passes over memory, in one.

Each has a plain twin in PyTorch. The random numbers of the two differ, their laws do not.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.kernels import choose
from doubly.kernels.noise import key, normal
from doubly.kernels.rows import as_arrays


class Thermostat(NamedTuple):
    """Momentum, and what the thermostat adds to the friction: one number for each weight, or one for all."""

    u: Tensor
    excess: Tensor


def thermostat(
    state: Thermostat, grad: Tensor, eta: float, friction: float, heat: float, rate: float, rng: torch.Generator
) -> Thermostat:
    """Euler's step of a Nosé–Hoover thermostat, where `heat` is eta times the temperature.

    u <- (1 - friction - excess) u + eta grad + N(0, 2 friction heat),  excess <- excess + rate (u^2 - heat)

    A single thermostat for all weights is driven by the mean of u^2.
    """
    u, excess = state
    if u.shape == excess.shape and choose.fused(u, excess, grad):
        new = Thermostat(torch.empty_like(u), torch.empty_like(excess))
        numbers = eta, friction, heat, rate
        choose.loops().thermostat(*as_arrays(u, excess, grad.contiguous()), *numbers, *as_arrays(*new), *key(rng))
        return new
    u = torch.addcmul((1 - friction) * u, excess, u, value=-1).add_(grad, alpha=eta)
    u.add_(normal(u.shape, rng, u.dtype, u.device), alpha=math.sqrt(2 * friction * heat))
    return Thermostat(u, driven(excess, u, heat, rate))


def driven(excess: Tensor, u: Tensor, heat: float, rate: float) -> Tensor:
    """The excess after it has felt the kinetic energy, each its own weight's or a single one their mean."""
    energy = u**2 if excess.dim() else (u**2).mean()
    return excess.add(energy - heat, alpha=rate)


class Moments(NamedTuple):
    """Weights with running means of their gradient and of its square."""

    theta: Tensor
    m: Tensor
    v: Tensor


def adam(
    state: Moments, grad: Tensor, beta1: float, beta2: float, move: float, correction: float, epsilon: float
) -> Moments:
    """m and v brought up to date, then theta + move m / (correction sqrt(v) + epsilon)."""
    theta, m, v = state
    if choose.fused(theta, m, v, grad):
        new = Moments(torch.empty_like(theta), torch.empty_like(m), torch.empty_like(v))
        numbers = beta1, beta2, move, correction, epsilon
        choose.loops().adam(*as_arrays(theta, m, v, grad.contiguous()), *numbers, *as_arrays(*new))
        return new
    m = torch.lerp(m, grad, 1 - beta1)
    v = (beta2 * v).addcmul_(grad, grad, value=1 - beta2)
    return Moments(torch.addcdiv(theta, m, v.sqrt().mul_(correction).add_(epsilon), value=move), m, v)
