"""Moves of a vector of weights that would take many passes over memory, in one.

Each has a plain twin in PyTorch. The random numbers of the two differ, their laws do not.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.kernels import choose
from doubly.kernels.noise import key, normal
from doubly.kernels.rows import as_arrays, new


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
    if u.shape != grad.shape or excess.shape not in ((), u.shape):
        raise ValueError(_unlike(u=u, excess=excess, grad=grad))
    if u.shape == excess.shape and choose.fused(u, excess, grad):
        (moved, of_u), (driven_, of_excess) = new(*u.shape), new(*u.shape)
        numbers = eta, friction, heat, rate
        choose.loops().thermostat(*as_arrays(u, excess, grad.contiguous()), *numbers, of_u, of_excess, *key(rng))
        return Thermostat(moved, driven_)
    u = torch.addcmul((1 - friction) * u, excess, u, value=-1).add_(grad, alpha=eta)
    u.add_(normal(u.shape, rng, u.dtype, u.device), alpha=math.sqrt(2 * friction * heat))
    return Thermostat(u, driven(excess, u, heat, rate))


def driven(excess: Tensor, u: Tensor, heat: float, rate: float) -> Tensor:
    """The excess after it has felt the kinetic energy, each its own weight's or a single one their mean."""
    energy = u**2 if excess.dim() else (u**2).mean()
    return excess.add(energy - heat, alpha=rate)


class Heated(NamedTuple):
    """Weights, their momentum in units in which it is N(0, T), and the friction: for each weight, or one for all."""

    theta: Tensor
    v: Tensor
    alpha: Tensor


class Langevin(NamedTuple):
    """The numbers of a thermostat that has a time constant of its own."""

    friction: float
    """What the noise that is put in on purpose balances."""
    temperature: float
    speed: float
    """1 / the time constant of the thermostat, in steps."""
    most_energy: float = 30.0
    """v^2 / T beyond which the thermostat does not look: a normal v exceeds 30 four times in 10^8, a chain that starts
    far from where it belongs exceeds it often, and would leave a friction that takes long to come back."""


MOST_FRICTION = 20.0
LEAST_FRICTION = 1e-3
"""Of the friction that was set; its stationary law has no mass to speak of outside of these bounds."""


def heated(state: Heated, grad: Tensor, eta: float | Tensor, by: Langevin, rng: torch.Generator) -> Heated:
    """A step of a thermostat: B, O, B, A and D of `samplers.Thermostat`.

    eta is one step for all weights, or one for each. A single friction for all weights is driven by the mean of v^2.
    """
    theta, v, alpha = state
    if alpha.shape == v.shape and choose.fused(theta, v, alpha, grad):
        tensors, arrays = zip(*(new(*theta.shape) for _ in state), strict=True)
        root = eta.sqrt() if isinstance(eta, Tensor) else torch.tensor([math.sqrt(eta)])
        now = as_arrays(theta, v, alpha, grad.contiguous(), root)
        choose.loops().heated(*now, *by, LEAST_FRICTION, MOST_FRICTION, *arrays, *key(rng))
        return Heated(*tensors)
    reach = eta.sqrt() if isinstance(eta, Tensor) else math.sqrt(eta)
    kick = grad * (reach / 2)
    spread = (by.friction * by.temperature * -torch.expm1(-2 * alpha) / alpha).sqrt()
    v = torch.exp(-alpha) * (v + kick)
    v.addcmul_(spread, normal(v.shape, rng, v.dtype, v.device)).add_(kick)
    energy = v.square() / by.temperature
    excess = (energy if alpha.dim() else energy.mean()).clamp(max=by.most_energy) - 1
    alpha = (alpha * torch.exp(by.speed * excess)).clamp(LEAST_FRICTION * by.friction, MOST_FRICTION)
    return Heated(theta + reach * v, v, alpha)


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
    if not theta.shape == m.shape == v.shape == grad.shape:  # the loops write without looking
        raise ValueError(_unlike(theta=theta, m=m, v=v, grad=grad))
    if choose.fused(theta, m, v, grad):
        tensors, arrays = zip(*(new(*theta.shape) for _ in state), strict=True)
        numbers = beta1, beta2, move, correction, epsilon
        choose.loops().adam(*as_arrays(theta, m, v, grad.contiguous()), *numbers, *arrays)
        return Moments(*tensors)
    m = torch.lerp(m, grad, 1 - beta1)
    v = (beta2 * v).addcmul_(grad, grad, value=1 - beta2)
    return Moments(torch.addcdiv(theta, m, v.sqrt().mul_(correction).add_(epsilon), value=move), m, v)


def _unlike(**tensors: Tensor) -> str:
    return "vectors of one length are expected, got " + ", ".join(f"{n} {tuple(t.shape)}" for n, t in tensors.items())
