"""The thermostat holds its temperature whatever the step and whatever the noise of the gradient, and settles in time.

**The problem in the units of the step.** With u = sqrt(eta) v and theta in units of sqrt(eta), a Gaussian of precision
k and noise of variance s² in the gradient enter a step only through eta k and b = eta s² / (2 T). So a Gaussian that is
narrower in the measure of sqrt(eta), with as much more noise, is the same problem at another eta: what differs between
1e-2 and 1e-8 is rounding, and any term that was written with eta itself.

**The law at a finite step.** For a friction that stands still, a step is linear in (theta, v), and its covariance
solves S = M S Mᵀ + Q (`linear`). The friction at which v² = T is `balance`. That it moves changes this at second order,
by products of two rates of a step: less than alpha / settle.

**The kinetic temperature** needs no derivation: a step adds (v²/T - 1) / settle to log alpha, so that the average of
v²/T over n steps is 1 + settle (log alpha_n - log alpha_0) / n, exactly.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import linalg, optimize, stats
from torch import Tensor

from doubly import SAMPLERS, UserError
from doubly.kernels.moves import LEAST_FRICTION, MOST_FRICTION, Heated, Langevin, heated
from doubly.samplers import Thermostat
from doubly.samplers.thermostat import ThermostatState

FRICTION, SETTLE, WEIGHTS = 0.1, 100.0, 8000
STIFF = 0.02
"""eta k of the Gaussians: their slowest motion decays by eta k / (2 alpha), 1 / 125 or more, in a step."""
NOISE = {"none": 0.0, "isotropic": 0.1, "anisotropic": 1.0}
"""The largest b: as much heat as friction 0.1 takes, or up to ten times as much, from weight to weight."""


def noise_of(kind: str) -> Tensor:
    """b for each weight."""
    return torch.linspace(0, NOISE[kind], WEIGHTS) if kind == "anisotropic" else torch.full((WEIGHTS,), NOISE[kind])


def linear(alpha: float, b: float, stiff: float = STIFF) -> np.ndarray:
    """The covariance of (theta, v) at the end of a step, at T = 1 and a friction that stands still."""
    drift, keep = np.array([[1, 1], [0, 1]]), math.exp(-alpha)
    kick = np.array([[1, 0], [-stiff / 2, 1]])
    # both half kicks are by the gradient at the beginning, which nothing moves in between
    step = drift @ kick @ np.diag([1, keep]) @ kick
    own = drift @ kick @ np.array([0, math.sqrt(FRICTION * (1 - keep**2) / alpha)])
    gradient = drift @ np.array([0, math.sqrt(2 * b) * (1 + keep) / 2])  # both half kicks have the same noise
    return linalg.solve_discrete_lyapunov(step, np.outer(own, own) + np.outer(gradient, gradient))


def balance(b: float, stiff: float = STIFF) -> float:
    """The friction at which v² = T. For a Gaussian that is soft it solves 1 - a / alpha = b coth(alpha / 2) / 2."""
    return optimize.brentq(lambda alpha: linear(alpha, b, stiff)[1, 1] - 1, 0.9 * FRICTION, 20)


@pytest.mark.parametrize("b", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("stiff", [0.02, 0.3, 1.0])
def test_the_variance_of_a_normal_law_is_exact_whatever_the_step(stiff: float, b: float):
    """At the friction that gives v² = T, theta has the variance 1 / k for every eta k: no step is too long for it.

    At the ends of a symmetric step A-B-O-B-A it would be (1 - eta k / 4) / k.
    """
    cov = linear(balance(b, stiff), b, stiff)
    np.testing.assert_allclose(cov[0, 0] * stiff, 1, rtol=1e-9)
    back = np.array([[1, -0.5], [0, 1]])
    np.testing.assert_allclose((back @ cov @ back.T)[0, 0] * stiff, 1 - stiff / 4, rtol=1e-9)


@pytest.mark.parametrize("stiff", [0.3, 1.0])
def test_weights_have_that_variance(stiff: float):
    """Independent chains of precision 1, half of the kinetic heat from the gradient: their variance after 600 steps.

    They settle within settle and alpha / stiff steps. The error is that of 20,000 chains, and alpha / settle for the
    friction, which varies; (1 - eta k / 4) would be off by 0.075 or 0.25.
    """
    sampler, rng, chains = Thermostat(friction=FRICTION), torch.Generator().manual_seed(5), 20_000
    state = sampler.init(torch.randn(chains, generator=rng), rng)
    for _ in range(600):
        state = sampler.ask(state, stiff, rng)
        grad = -state.theta + torch.randn(chains, generator=rng) * math.sqrt(2 * FRICTION / stiff)
        state = sampler.tell(state, grad, stiff, rng)
    slack = balance(FRICTION, stiff) / SETTLE
    assert abs(state.theta.double().var().item() - 1) < 5 * math.sqrt(2 / chains) + slack


class Walked(NamedTuple):
    theta: Tensor
    """Averages of (theta - mean) and its square in units in which the variance is 1 at T = 1, (2, weights)."""
    temperature: Tensor
    """The average of v² / T for each weight."""
    alpha: Tensor
    """The average friction of each weight."""
    trace: list[float]
    """v² / T, averaged over the weights, step by step from the start."""
    change: Tensor
    """log alpha at the end minus at the start of the averages."""


def walk(eta: float, kind: str, temperature: float, name: str = "thermostat", burn_in: int = 800, steps: int = 800):
    """A Gaussian of mean 3 standard deviations, from where the chain does not stand."""
    sampler, rng = SAMPLERS.make(name, friction=FRICTION, temperature=temperature), torch.Generator().manual_seed(3)
    sd, b = math.sqrt(eta / STIFF), noise_of(kind)
    strength = torch.sqrt(2 * b * temperature / eta)
    state = sampler.init(torch.zeros(WEIGHTS), rng)
    found = Walked(torch.zeros(2, WEIGHTS), torch.zeros(WEIGHTS), torch.zeros(WEIGHTS), [], torch.zeros(()))
    for step in range(burn_in + steps):
        if step == burn_in:
            start = state.alpha.log()
        state = sampler.ask(state, eta, rng)
        grad = (3 * sd - state.theta) / sd**2 + strength * torch.randn(WEIGHTS, generator=rng)
        state = sampler.tell(state, grad, eta, rng)
        energy = state.v**2 / temperature
        found.trace.append(energy.mean().item())
        if step >= burn_in:
            off = state.theta / sd - 3
            found.theta.add_(torch.stack([off, off**2 / temperature]) / steps)
            found.temperature.add_(energy / steps)
            found.alpha.add_(state.alpha / steps)
    return found._replace(change=state.alpha.log() - start)


def within(chains: Tensor, expected: float, slack: float) -> None:
    """The mean over chains, five standard errors of it allowed and the slack."""
    stderr = chains.double().std().item() / math.sqrt(len(chains))
    assert abs(chains.double().mean().item() - expected) <= 5 * stderr + slack


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("eta", [1e-2, 1e-4, 1e-6, 1e-8])
def test_mean_variance_and_temperature_are_right_at_every_step(eta: float, kind: str, temperature: float):
    """After 800 steps, in the average over 800 more; weights in three groups by their noise, each with its own law."""
    found = walk(eta, kind, temperature)
    identity = found.temperature - 1 - SETTLE * found.change / 800
    assert identity.abs().max() < 1e-2, "the thermostat is not driven by v² / T - 1"
    for group in torch.arange(WEIGHTS).tensor_split(3):
        b = noise_of(kind)[group].mean().item()
        alpha = balance(b)
        slack = alpha / SETTLE
        within(found.theta[0][group], 0.0, 0.0)
        # the law of a group is that of its mean noise: alpha is almost linear in b
        within(found.theta[1][group], STIFF * linear(alpha, b)[0, 0], slack)
        within(found.temperature[group], 1.0, slack)
        within(found.alpha[group], alpha, 2 * slack)
    # stated: within 5 % of T from the step 300 on, within 1 % from 500 on (rate 1 / settle, and 5 standard errors)
    stderr = math.sqrt(2 / WEIGHTS)
    late, later = np.array(found.trace[330:800]), np.array(found.trace[500:800])
    assert abs(np.convolve(late, np.ones(50) / 50, "valid") - 1).max() < 0.05 + 5 * stderr / math.sqrt(5)
    assert abs(later.mean() - 1) < 0.01 + 5 * stderr / math.sqrt(10)


def test_the_step_is_a_unit_and_nothing_else():
    """At a step 4^-8 times as large, on the same problem in its units, momentum and friction have the same bits."""
    found: list[ThermostatState] = []
    for unit in (1.0, 2.0**-8):
        rng, sampler = torch.Generator().manual_seed(5), Thermostat()
        state = sampler.init(torch.zeros(1000), rng)
        for _ in range(50):
            state = sampler.ask(state, 0.01 * unit**2, rng)
            noise = torch.randn(1000, generator=rng)
            state = sampler.tell(state, (noise - state.theta / unit) / unit, 0.01 * unit**2, rng)
        found.append(state._replace(theta=state.theta / unit))
    assert all(torch.equal(one, other) for one, other in zip(*(state[:3] for state in found), strict=True))


def test_a_single_thermostat_takes_up_noise_that_all_weights_share():
    """Where the noise is the same for all weights, one friction serves all; it hardly fluctuates."""
    sampler, rng = SAMPLERS.make("thermostat-scalar"), torch.Generator().manual_seed(0)
    eta, b, total, square = 1e-6, 0.1, 0.0, torch.zeros(WEIGHTS)
    sd = math.sqrt(eta / STIFF)
    state = sampler.init(torch.zeros(WEIGHTS), rng)
    for step in range(1600):
        state = sampler.ask(state, eta, rng)
        grad = -state.theta / sd**2 + math.sqrt(2 * b / eta) * torch.randn(WEIGHTS, generator=rng)
        state = sampler.tell(state, grad, eta, rng)
        if step >= 800:
            total += (state.v**2).mean().item() / 800
            square += (state.theta / sd) ** 2 / 800
    assert state.alpha.shape == ()
    assert abs(state.alpha.item() - balance(b)) < 0.02 * balance(b)
    assert (
        abs(total - 1) < 5 * 1.3e-3
    )  # 8000 weights and 800 steps, of which 1 in 5 is independent: a standard error of 1.3e-3
    within(square, STIFF * linear(balance(b), b)[0, 0], balance(b) / SETTLE)


def test_the_friction_has_the_gamma_law_derived():
    """Mean a + b and shape settle (a + b), at b = 0: by moments, and by Kolmogorov's distance at 1e-4.

    Steps of a finite size change it at second order: by a² / 12 for the exact friction of the step (tanh), and by
    a / settle; each moves the distribution function by half of its size in standard deviations of alpha, or less.
    """
    sampler, rng = Thermostat(friction=FRICTION), torch.Generator().manual_seed(8)
    state = sampler.init(torch.zeros(WEIGHTS), rng)
    for _ in range(1500):
        state = sampler.tell(sampler.ask(state, 1e-6, rng), torch.zeros(WEIGHTS), 1e-6, rng)
    law = stats.gamma(SETTLE * FRICTION, scale=1 / SETTLE)
    slack = (FRICTION**2 / 12 + FRICTION / SETTLE) / law.std() / 2
    distance = stats.kstest(state.alpha.double().numpy(), law.cdf).statistic
    assert distance < stats.kstwobign.isf(1e-4) / math.sqrt(WEIGHTS) + slack


@pytest.mark.parametrize("scales", [False, True], ids=["one step", "a step for each"])
@pytest.mark.parametrize("size", [1, 1023, 1024, 5000])
def test_the_fused_step_is_the_plain_one(size: int, scales: bool, monkeypatch):
    """To rounding without noise (at a temperature of 1e-20 in the noise alone), and the noise has its law."""
    rng = torch.Generator().manual_seed(0)
    theta, v, grad, spread = torch.randn(4, size, generator=rng)
    v[: size // 4] *= 30  # beyond the energy at which the thermostat stops looking
    alpha = 0.01 + spread.abs()  # on both sides of 0.05, where the fused kernel changes its formula
    eta: Any = 0.3 * (1 + torch.rand(size, generator=rng)) if scales else 0.3
    root = eta.sqrt() if scales else math.sqrt(eta)
    found = []
    for kernels in "01":
        monkeypatch.setenv("DOUBLY_KERNELS", kernels)
        new = heated(Heated(theta, v, alpha), grad, eta, Langevin(0.4, 1.5, 0.02), rng)
        mean = torch.exp(-alpha) * (v + root * grad / 2) + root * grad / 2
        noise = (new.v - mean) / torch.sqrt(0.4 * 1.5 * -torch.expm1(-2 * alpha) / alpha)
        assert size < 1000 or stats.kstest(noise.numpy(), "norm").pvalue > 1e-6
        torch.testing.assert_close(new.theta, theta + root * new.v, rtol=1e-5, atol=1e-6)
        expected = (alpha * torch.exp(0.02 * ((new.v**2 / 1.5).clamp(max=30) - 1))).clamp(max=MOST_FRICTION)
        torch.testing.assert_close(new.alpha, expected, rtol=1e-5, atol=1e-7)
        still = heated(Heated(theta, v, alpha), grad, eta, Langevin(1e-12, 1.5, 0.02), rng)
        found.append(still)
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_a_chain_that_falls_from_afar_does_not_leave_a_friction_behind(kernels: str, monkeypatch):
    """A weight thrown at a thousand times its thermal speed: the friction stays in its bounds and comes back.

    Its logarithm falls by at most 1 / settle a step, so from 20 it needs 530 steps for a factor of 200.
    """
    monkeypatch.setenv("DOUBLY_KERNELS", kernels)
    sampler, rng = Thermostat(), torch.Generator().manual_seed(1)
    state = sampler.init(torch.zeros(2000), rng)._replace(v=torch.full((2000,), 1000.0))
    highest = 0.0
    for _ in range(1500):
        state = sampler.tell(sampler.ask(state, 1e-6, rng), torch.zeros(2000), 1e-6, rng)
        highest = max(highest, state.alpha.max().item())
    assert FRICTION * 2 < highest <= MOST_FRICTION
    assert state.alpha.min() >= FRICTION * LEAST_FRICTION
    assert abs(state.alpha.mean().item() - FRICTION) < 5 * math.sqrt(FRICTION / SETTLE / 2000) + FRICTION / SETTLE


@pytest.mark.parametrize("held", [False, True], ids=["burn-in", "held"])
def test_rare_kicks_are_taken_up_once_samples_are_collected(held: bool):
    """Kicks of v² = 100 or so, once in 200 steps, b = 0.25: as of a weight whose gradient is nearly always 0.

    Held, temperature and variance are within 5 %; in the burn-in, whose thermostat does not look beyond
    30, the chain is too hot by a third. Noise of the same size in every step is taken up either way (above).
    """
    rng, sampler, rate, eta, stiff = torch.Generator().manual_seed(0), Thermostat(), 1 / 200, 1e-4, 0.005
    state, sd, size = sampler.init(torch.zeros(2000), rng), math.sqrt(eta / stiff), math.sqrt(0.5 / rate / eta)
    heat = variance = 0.0
    for step in range(3000):
        if step == 1000 and held:
            state = sampler.hold(state)
        state = sampler.ask(state, eta, rng)
        hit = (torch.rand(2000, generator=rng) < rate) * torch.randn(2000, generator=rng).sign()
        state = sampler.tell(state, size * hit - state.theta / sd**2, eta, rng)
        if step >= 2000:
            heat += (state.v**2).mean().item() / 1000
            variance += ((state.theta / sd) ** 2).mean().item() / 1000
    assert state.held == held
    # 2,000 chains over 1,000 steps, of which one in 2 alpha / stiff = 140 is independent, have a standard error of 1 %
    assert (abs(heat - 1) < 0.05) == (abs(variance - 1) < 0.05) == held
    assert held or heat > 1.2


def test_a_state_without_the_last_field_is_one_that_is_not_held():
    """As checkpoints of earlier versions have it."""
    assert ThermostatState(*torch.zeros(3, 4)).held == 0


@pytest.mark.parametrize("settle", [0.0, 19.0, -5.0, math.inf, math.nan])
def test_a_thermostat_that_would_oscillate_is_refused(settle: float):
    with pytest.raises(UserError, match="settle must be at least 2 / friction = 20 steps"):
        Thermostat(settle=settle)
