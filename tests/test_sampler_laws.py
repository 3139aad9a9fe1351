"""Every sampler draws from the law that is derived for it: moments and the whole distribution; and it can be restarted.

`test_samplers.py` has the moments of targets that a small step keeps. Here the law at a step of *finite* size is
derived, where it can be had exactly, so that nothing is left to allow for but the error of sampling:

* **sgld** on a Gaussian is linear, theta' = A theta + noise, whose covariance solves S = A S Aᵀ + Q; in one dimension
  its law is the fixed point of a kernel on a grid. Noise of variance sd² in the gradient adds (eta sd)² to Q.
* **psgld** is sgld with steps eta G, and G = 1 / (damping + sqrt(E[grad²])) at its own law, up to what `wander` allows.
* **sghmc** is linear too, in (theta, u), and in general the fixed point of a kernel in two dimensions. When it is told
  the noise, b = eta sd²/2, its law is that without noise.
* **The thermostats** of Euler's kind sample at the temperature 1 - alpha/2, with alpha of `balance`, and those by
  splitting at 1, up to order eta: Euler's error and a temperature wrong by eta, as in `Target.slack`.
* **sms-ubu** has no thermostat: independent noise in the gradient heats it by b / a, up to order eta as well.

At these steps a thermostat hides noise that is too large. `test_laws_where_thermostats_stand_still` has steps so small
that those of the paper stand still, another temperature, and laws that are exact for all samplers.

The chains are the elements of one vector. All but those of sgnht-scalar are independent; its single thermostat couples
20,000 of them (or 10,000), each by as much as one part in that number.
"""

import io
import math
import re
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import interpolate, linalg, optimize, special, stats
from torch import Tensor

from doubly import SAMPLERS
from doubly.samplers.psgld import PSGLDState
from test_samplers import balance, log_gamma, same

CHAINS, SHAPE = 10_000, 2.0
MEAN, COVARIANCE = np.array([1.0, -0.5]), np.array([[1.0, 0.3], [0.3, 0.25]])
PRECISION = np.linalg.inv(COVARIANCE)
# two coordinates, and their difference, which feels the correlation
LOOKS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]])
LATTICE = np.arange(-20, 5.5, 0.04)
NOISY = [name for name in SAMPLERS if SAMPLERS[name].noisy]
EULER = ("sgnht", "sgnht-scalar")


class Setting(NamedTuple):
    """How a sampler is run.

    The slowest mode of both targets decays at a rate of at least 0.9 eta a step, and with a momentum and a friction of
    1 per unit of time at 0.4 sqrt(eta) or more: burn-in leaves less than exp(-15) of where the chains started. For
    psgld it is longer, because the memory of v has to fill.
    """

    eta: float
    friction: float
    sd: float
    """Of the noise in the gradient, where there is any."""
    burn_in: int
    thin: int
    """Steps between the samples kept."""


SETTINGS = {
    "sgld": Setting(0.05, 0, 4, burn_in=350, thin=15),
    "psgld": Setting(0.2, 0, 4, burn_in=3000, thin=20),
    "sghmc": Setting(0.04, 0.2, 2, burn_in=200, thin=8),
}
THERMOSTAT = Setting(0.01, 0.1, 4, burn_in=400, thin=15)
SAMPLES = 40
PSGLD_DECAY = 0.9998


class Law(NamedTuple):
    """What one number drawn is distributed as."""

    cdf: Callable[[np.ndarray], np.ndarray]
    mean: float
    variance: float
    slack: np.ndarray = np.zeros(3)
    """How far mean, variance and distribution function may be off, for a law that is not exact."""


def setting(name: str) -> Setting:
    return SETTINGS.get(name, THERMOSTAT)


def made(name: str, noisy: bool) -> Any:
    chosen = setting(name)
    told = chosen.eta * chosen.sd**2 / 2 if noisy else 0.0
    return SAMPLERS.make(name, friction=chosen.friction, noise_estimate=told, decay=PSGLD_DECAY)


def temperature(name: str, sd: float) -> float:
    """At which a thermostat samples theta; without one, kicks of variance 2 b add b to the noise of the friction a."""
    if name == "sms-ubu":
        return 1 + THERMOSTAT.eta * sd**2 / 2 / THERMOSTAT.friction
    return 1 - balance(THERMOSTAT.eta, THERMOSTAT.friction, sd) / 2 if name in EULER else 1.0


def wander(G: float, v: float, spread: float, rate: float) -> float:
    """The standard deviation of E[G | theta] / G, by which psgld's law is tilted: 0 = d/dtheta (E[G | theta] p e^U).

    A change of v changes G by G/(2 sqrt(v)) of it, relatively. v is the mean of grad² over the past, with weights that
    fall from rho = (1 - b) / (1 - b^t), t the burn-in. Of grad² of j steps ago, whose standard deviation is `spread`,
    theta now tells at most exp(-rate j), so that the sum is at most rho spread / rate. A mean moves by that times the
    standard deviation of what is averaged (Cauchy and Schwarz), a distribution function by half of it. This is derived
    in one dimension and used for each coordinate of two.
    """
    rho = (1 - PSGLD_DECAY) / (1 - PSGLD_DECAY ** SETTINGS["psgld"].burn_in)
    return G / (2 * math.sqrt(v)) * rho * spread / rate


def normal_laws(name: str, sd: float) -> list[Law]:
    """Of the looks at the correlated Gaussian."""
    chosen = setting(name)
    eta, a, eye = chosen.eta, chosen.friction, np.eye(2)
    tilt = np.zeros(2)
    if name in ("sgld", "psgld"):
        G = np.ones(2)
        for _ in range(50):  # to the fixed point of G
            covariance = linalg.solve_discrete_lyapunov(
                eye - eta * G[:, None] * PRECISION, np.diag(2 * eta * G + (eta * G * sd) ** 2)
            )
            if name == "sgld":
                break
            v = np.diag(PRECISION @ covariance @ PRECISION) + sd**2
            G = 1 / (1 + np.sqrt(v))
        if name == "psgld":
            rate = 2 * np.linalg.eigvals(eta * G[:, None] * PRECISION).real.min()  # squares decay twice as fast
            tilt = np.array([wander(G[i], v[i], math.sqrt(2) * (v[i] - sd**2), rate) for i in (0, 1)])
    elif name == "sghmc":  # theta' = theta + u', u' = (1 - a) u - eta P theta + noise
        step = np.block([[eye - eta * PRECISION, (1 - a) * eye], [-eta * PRECISION, (1 - a) * eye]])
        covariance = linalg.solve_discrete_lyapunov(step, 2 * a * eta * np.kron(np.ones((2, 2)), eye))[:2, :2]
    else:
        covariance = temperature(name, sd) * COVARIANCE
    laws = []
    for look in LOOKS:
        mean, variance, slack = look @ MEAN, look @ covariance @ look, np.zeros(3)
        if name == "psgld":
            off = abs(look) @ tilt
            slack = off * np.array([math.sqrt(variance), math.sqrt(2) * variance, 0.5])
        elif name not in SETTINGS:
            # Euler moves the covariance by eta I/2, a temperature wrong by eta by eta C; and a relative change c of the
            # variance moves the distribution function by at most c max(x phi(x)) / 2, at x = 1
            change = eta * (look @ look / 2 + look @ COVARIANCE @ look)
            slack = np.array([0, change, change / variance * stats.norm.pdf(1) / 2])
        laws.append(Law(stats.norm(mean, math.sqrt(variance)).cdf, mean, variance, slack))
    return laws


def on_lattice(density: np.ndarray) -> Law:
    density = density / density.sum()
    mean = density @ LATTICE
    sums = interpolate.CubicSpline(LATTICE, density / 0.04).antiderivative()
    return Law(lambda x: sums(np.clip(x, LATTICE[0], LATTICE[-1])), mean, density @ (LATTICE - mean) ** 2)


def langevin_density(step: float, sd: float) -> np.ndarray:
    """Stationary under theta' = theta + step (k - e^theta) + N(0, 2 step + (step sd)²)."""
    centre, width = LATTICE + step * (SHAPE - np.exp(LATTICE)), math.sqrt(2 * step + (step * sd) ** 2)
    kernel = 0.04 * stats.norm.pdf(LATTICE[:, None], centre, width)
    for _ in range(9):  # 2^9 steps, of which each loses at least 3 % of what is not stationary
        kernel = kernel @ kernel
        kernel /= kernel.sum(0)
    return kernel[:, len(LATTICE) // 2]


@cache
def momentum_density(eta: float, a: float) -> np.ndarray:
    """Stationary under u' = (1 - a) u + eta (k - e^theta) + N(0, 2 a eta), theta' = theta + u'.

    The first is a kernel in u for each theta, the second a shift of theta for each u, made by Fourier transform.
    """
    u = np.linspace(-7, 7, 57) * math.sqrt(eta)
    force = eta * (SHAPE - np.exp(LATTICE))
    kernel = stats.norm.pdf(u[:, None], (1 - a) * u + force[:, None, None], math.sqrt(2 * a * eta))
    shift = np.exp(-2j * np.pi * np.fft.rfftfreq(len(LATTICE), 0.04)[:, None] * u)
    joint = np.exp(SHAPE * LATTICE - np.exp(LATTICE))[:, None] * np.exp(-(u**2) / (2 * eta))
    for _ in range(200):  # each loses some 10 % of what is not stationary
        joint = (kernel @ joint[:, :, None])[:, :, 0]
        joint = np.fft.irfft(np.fft.rfft(joint, axis=0) * shift, len(LATTICE), axis=0)
        joint /= joint.sum()
    return joint.sum(1)


def log_gamma_laws(name: str, sd: float) -> list[Law]:
    """Of theta = the log of a Gamma(2) variable."""
    chosen = setting(name)
    if name == "sgld":
        return [on_lattice(langevin_density(chosen.eta, sd))]
    if name == "sghmc":
        return [on_lattice(momentum_density(chosen.eta, chosen.friction))]
    if name == "psgld":
        G, square = 1.0, (SHAPE - np.exp(LATTICE)) ** 2
        for _ in range(5):  # G hardly depends on the law
            density = langevin_density(chosen.eta * G, sd)
            v = density @ square + sd**2
            G = 1 / (1 + math.sqrt(v))
        law = on_lattice(density)
        spread = math.sqrt(density @ square**2 - (density @ square) ** 2)
        tilt = wander(G, v, spread, chosen.eta * G)  # the generator's gap is 1 for k = 2, where its continuum begins
        fourth = density @ (LATTICE - law.mean) ** 4
        return [law._replace(slack=tilt * np.array([law.variance**0.5, (fourth - law.variance**2) ** 0.5, 0.5]))]
    T = temperature(name, sd)
    tempered = tempered_cdf(LATTICE, T)
    shift, square = log_gamma().moments(T)
    slack = log_gamma().slack(chosen.eta)
    y = np.exp(LATTICE)
    density, M = np.exp(SHAPE * LATTICE - y), (y - SHAPE) ** 2 / 4 - y / 2
    density /= density.sum()
    euler = abs(np.cumsum(density * (M - density @ M))).max()  # |cov(1(theta <= t), M)|
    warmer = abs(tempered_cdf(LATTICE, T + 0.01) - tempered).max() / 0.01
    off = np.array([slack[0], slack[1] + 2 * abs(shift) * slack[0], chosen.eta * (euler + warmer)])
    mean = special.digamma(SHAPE) + shift
    return [Law(lambda x: tempered_cdf(x, T), mean, square - shift**2, off)]


def tempered_cdf(theta: np.ndarray, T: float) -> np.ndarray:
    return special.gammainc(SHAPE / T, np.exp(theta) / T)


def gaussian_gradient(theta: Tensor) -> Tensor:
    vjp = torch.from_numpy(MEAN).to(theta) - theta.view(-1, 2)
    return (vjp @ torch.from_numpy(PRECISION).to(theta)).view(-1)


TARGETS: dict[str, tuple[int, Callable[[Tensor], Tensor], np.ndarray, Callable[[str, float], list[Law]]]] = {
    "gaussian": (2, gaussian_gradient, LOOKS, normal_laws),
    "log-gamma": (1, lambda theta: SHAPE - theta.exp(), np.ones((1, 1)), log_gamma_laws),
}


def sampled(name: str, target: str, noisy: bool) -> np.ndarray:
    """What is seen of the samples kept, (looks, SAMPLES, CHAINS); chains start at 0, off the mean."""
    width, gradient, looks, _ = TARGETS[target]
    sampler, chosen, rng = made(name, noisy), setting(name), torch.Generator().manual_seed(11)
    state, kept = sampler.init(torch.zeros(CHAINS * width), rng), []
    for step in range(chosen.burn_in + SAMPLES * chosen.thin):
        state = sampler.ask(state, chosen.eta, rng)
        grad = gradient(state.theta)
        if noisy:
            grad = grad + chosen.sd * torch.randn(grad.shape, generator=rng)
        state = sampler.tell(state, grad, chosen.eta, rng)
        after = step - chosen.burn_in
        if after >= 0 and after % chosen.thin == chosen.thin - 1:
            kept.append(state.theta.view(CHAINS, width).double().numpy() @ looks.T)
    return np.stack(kept).transpose(2, 0, 1)


def autocorrelation_time(index: np.ndarray) -> float:
    """Of the samples (SAMPLES, CHAINS), given their places F(x): how many of them are worth one.

    Chains are independent, so the spread between their averages tells it, without a window over the lags. It is taken
    of the share of samples below each of nine levels, which is what a distribution function is made of, and the worst
    counts.
    """
    worst = 1.0
    for level in np.arange(0.1, 1, 0.1):
        below = index <= level
        worst = max(worst, len(index) * below.mean(0).var(ddof=1) / (below.mean() * (1 - below.mean())))
    return worst


@pytest.mark.parametrize("noisy", [False, True], ids=["clean", "noise"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NOISY)
def test_samples_have_the_law_derived(name: str, target: str, noisy: bool):
    """Mean and variance within five standard errors, and the distance of Kolmogorov and Smirnov below its critical
    value at 1e-4 for the effective number of samples, both up to the slack of the law."""
    laws = TARGETS[target][3](name, setting(name).sd if noisy else 0)
    for law, seen in zip(laws, sampled(name, target, noisy), strict=True):
        for i, values in enumerate((seen - law.mean, (seen - law.mean) ** 2 - law.variance)):
            chains = values.mean(0)
            assert abs(chains.mean()) <= 5 * chains.std(ddof=1) / math.sqrt(CHAINS) + law.slack[i]
        index = law.cdf(seen)
        n = index.size
        distance = abs(np.sort(index, axis=None) - (np.arange(n) + 0.5) / n).max()
        ess = n / autocorrelation_time(index)
        assert ess > 50_000, "too few samples to tell laws apart"
        assert distance <= stats.kstwobign.isf(1e-4) / math.sqrt(ess) + law.slack[2] + 0.5 / n


class Still(NamedTuple):
    """A Gaussian in units of a step so small that the thermostats of the paper stand still."""

    eta: float = 1e-8
    stiff: float = 0.05
    """eta k."""
    friction: float = 0.1
    temperature: float = 0.6
    burn_in: int = 500
    steps: int = 500


STILL = Still()
HELD_SCALE = 0.5
"""G of psgld, held: 1 / (damping + root mean squared gradient), both of them 1."""


class Stationary(NamedTuple):
    theta: float
    """Variance in units of T / k."""
    momentum: float
    """Variance in units of eta T."""
    friction: float


def still_law(name: str, b: float) -> Stationary:
    """With noise of variance 2 b T / eta in the gradient.

    A step is linear at a friction that stands still: x' = M x + noise, and its covariance solves S = M S Mᵀ + Q. Here
    x = (theta, u) in units of sqrt(eta). Thermostats that move find the friction at which u² is eta T.
    """
    a, k = STILL.friction, STILL.stiff
    if name in ("sgld", "psgld"):  # psgld has the step eta G
        G = HELD_SCALE if name == "psgld" else 1.0
        return Stationary(k * (2 * G + 2 * b * G**2) / (1 - (1 - k * G) ** 2), math.nan, math.nan)
    A, B = np.array([[1, 1], [0, 1]]), np.array([[1, 0], [-k, 1 - a]])
    own, gradient = np.array([0, math.sqrt(2 * a)]), np.array([0, math.sqrt(2 * b)])
    if name in EULER:  # theta' = theta + u; u' = (1 - a) u - k theta' + noise
        return stationary(B @ A, own, gradient, a)
    if name == "sghmc":  # u' = (1 - a) u - k theta + noise; theta' = theta + u'
        return stationary(A @ B, A @ own, A @ gradient, a)
    if name == "sgnht-split":
        return split_law(a, b, a)
    if name == "sms-ubu":
        return ubu_law(a, b)
    return kicked_law(a, b, optimize.brentq(lambda alpha: kicked_law(a, b, alpha).momentum - 1, a, 20))


def ubu_law(a: float, b: float) -> Stationary:
    """Of U-B-U; the noise of half a step is integrated numerically from its definition.

    In half a step noise dw at time s before its end leaves exp(-a s) dw in v and (1 - exp(-a s)) / a dw in theta.
    """
    keep, back = math.exp(-a / 2), (np.arange(1000) + 0.5) / 2000
    left = np.stack([-np.expm1(-a * back) / a, np.exp(-a * back)])
    drawn = 2 * a * left @ left.T / 2000
    U, B = np.array([[1, (1 - keep) / a], [0, keep]]), np.array([[1, 0], [-STILL.stiff, 1]])
    step, kick = U @ B @ U, U @ np.array([0, math.sqrt(2 * b)])
    noise = U @ B @ drawn @ B.T @ U.T + drawn + np.outer(kick, kick)
    covariance = linalg.solve_discrete_lyapunov(step, noise)
    return Stationary(STILL.stiff * covariance[0, 0], covariance[1, 1], a)


def split_law(a: float, b: float, alpha: float) -> Stationary:
    """Of A-B-O-B-A with noise for the friction a and the friction alpha."""
    k, keep = STILL.stiff, math.exp(-alpha)
    A, B = np.array([[1, 0.5], [0, 1]]), np.array([[1, 0], [-k / 2, 1]])
    own = A @ B @ np.array([0, math.sqrt(a * (1 - keep**2) / alpha)])
    gradient = A @ np.array([0, math.sqrt(2 * b) * (1 + keep) / 2])  # the same in both half kicks
    return stationary(A @ B @ np.diag([1, keep]) @ B @ A, own, gradient, alpha)


def kicked_law(a: float, b: float, alpha: float) -> Stationary:
    """Of B-O-B-A with noise for the friction a and the friction alpha."""
    k, keep = STILL.stiff, math.exp(-alpha)
    A, B = np.array([[1, 1], [0, 1]]), np.array([[1, 0], [-k / 2, 1]])
    own = A @ B @ np.array([0, math.sqrt(a * (1 - keep**2) / alpha)])
    gradient = A @ np.array([0, math.sqrt(2 * b) * (1 + keep) / 2])  # the same in both half kicks
    return stationary(A @ B @ np.diag([1, keep]) @ B, own, gradient, alpha)


def stationary(step: np.ndarray, own: np.ndarray, gradient: np.ndarray, friction: float) -> Stationary:
    covariance = linalg.solve_discrete_lyapunov(step, np.outer(own, own) + np.outer(gradient, gradient))
    return Stationary(STILL.stiff * covariance[0, 0], covariance[1, 1], friction)


@pytest.mark.parametrize("kernels", ["0", "1"], ids=["plain", "fused"])
@pytest.mark.parametrize("b", [0.0, 0.1], ids=["clean", "noise"])
@pytest.mark.parametrize("name", NOISY)
def test_laws_where_thermostats_stand_still(name: str, b: float, kernels: str, monkeypatch):
    """At eta = 1e-8 and T = 0.6, moments of theta and u within five standard errors of laws without any slack.

    Noise that is 5 % too large in one place makes a variance some 10 % too large, or the friction of a thermostat that
    moves: many standard errors, which is asserted. The friction of the paper's thermostats moves by eta at most a step.
    """
    monkeypatch.setenv("DOUBLY_KERNELS", kernels)
    eta, T, chains = STILL.eta, STILL.temperature, 4000
    sampler, rng = SAMPLERS.make(name, friction=STILL.friction, temperature=T), torch.Generator().manual_seed(4)
    unit = math.sqrt(eta / STILL.stiff)  # the standard deviation of theta at T = 1
    state = held(sampler.init(torch.zeros(chains), rng), sampler)
    seen = torch.zeros(4, chains, dtype=torch.float64)
    for at in range(STILL.burn_in + STILL.steps):
        state = sampler.ask(state, eta, rng)
        grad = -state.theta / unit**2 + math.sqrt(2 * b * T / eta) * torch.randn(chains, generator=rng)
        state = sampler.tell(state, grad, eta, rng)
        if at >= STILL.burn_in:
            x, momentum, friction = state.theta / unit, torch.zeros(()), torch.zeros(())
            if hasattr(state, "u"):
                momentum = state.u**2 / (eta * T)
            elif hasattr(state, "v") and name != "psgld":  # whose v is no momentum
                momentum, friction = state.v**2 / T, getattr(state, "alpha", friction)
            seen += torch.stack([x, x**2 / T, momentum.expand(chains), friction.expand(chains)]) / STILL.steps
    law = still_law(name, b)
    moves = name.startswith("thermostat")
    # a friction that moves changes the law at second order, by alpha / settle (test_thermostat.py)
    slack = law.friction / 100 if moves else 0.0
    looks = [(seen[0], 0.0, 0.0), (seen[1], law.theta, slack)]
    looks += [] if name in ("sgld", "psgld") else [(seen[2], law.momentum, slack)]
    looks += [(seen[3], law.friction, 2 * slack)] if moves else []
    for values, expected, allowed in looks:
        # a friction shared by all chains has no spread between them: its own is sqrt(alpha / settle / chains)
        spread = values.std().item() or math.sqrt(law.friction / 100)
        margin = 5 * spread / math.sqrt(chains) + allowed
        assert abs(values.mean().item() - expected) <= margin
        if values is (seen[3] if moves else seen[1]):
            assert margin < 0.05 * expected, "noise that is 5 % too large must be seen"


def held(state: Any, sampler: Any) -> Any:
    """psgld's, with gradients of size 1 behind it."""
    if not isinstance(state, PSGLDState):
        return state
    return state._replace(v=torch.full_like(state.theta, 1 - sampler.decay), t=1, held=1)


def noise_of_a_step(name: str, alpha: float) -> np.ndarray:
    """The covariance of (theta, u) after a step from rest without a gradient, at T = 1 and in units of eta.

    The splittings solve du = -alpha u dt + sqrt(2 a) dw exactly over a step, and theta then goes along u, half a step
    in sgnht-split and a whole one in the thermostats; sms-ubu moves theta along with u, whose covariance is an integral
    of the products of what noise leaves in both.
    """
    a = STILL.friction
    if name in ("sgld", "psgld"):
        return np.diag([2 * HELD_SCALE if name == "psgld" else 2.0, 0.0])
    if name in EULER:
        return np.diag([0.0, 2 * a])  # theta moves in the next step
    if name == "sghmc":
        return np.full((2, 2), 2 * a)
    if name == "sms-ubu":
        back = (np.arange(2000) + 0.5) / 2000
        left = np.stack([-np.expm1(-a * back) / a, np.exp(-a * back)])
        return 2 * a * left @ left.T / 2000
    strength = 2 * a if alpha == 0 else a * -math.expm1(-2 * alpha) / alpha
    along = 0.5 if name == "sgnht-split" else 1.0
    return strength * np.outer([along, 1.0], [along, 1.0])


ALPHAS = {name: [STILL.friction] for name in NOISY} | {
    # a friction may be small, of which the kernels know a series, and the paper's may be negative
    name: [-0.3, 0.0, 0.01, 0.04, STILL.friction, 3.0][0 if name == "sgnht-split" else 2 :]
    for name in ("sgnht-split", "thermostat", "thermostat-scalar")
}


STEPS = {name: ["one step", "a step for each"][: 1 + SAMPLERS[name].takes_scales] for name in NOISY}
A_STEP = [(name, alpha, steps) for name in NOISY for alpha in ALPHAS[name] for steps in STEPS[name]]


@pytest.mark.parametrize("kernels", ["0", "1"], ids=["plain", "fused"])
@pytest.mark.parametrize(("name", "alpha", "steps"), A_STEP)
def test_the_noise_of_a_step_is_the_one_derived(name: str, alpha: float, steps: str, kernels: str, monkeypatch):
    """At T = 0.6 and whatever friction: the variance of u, and that of theta which u does not explain and in all.

    Of 200,000 weights a variance has a standard error of 0.3 %, of which five are allowed. Noise that is 5 % too large
    makes it 10 % too large; the noise of sms-ubu that is theta's alone is a quarter of what u does not explain.
    """
    monkeypatch.setenv("DOUBLY_KERNELS", kernels)
    n, T = 200_000, STILL.temperature
    sampler, rng = SAMPLERS.make(name, friction=STILL.friction, temperature=T), torch.Generator().manual_seed(9)
    eta: Any = STILL.eta if steps == "one step" else STILL.eta * (1 + torch.rand(n, generator=rng))
    state = held(sampler.init(torch.zeros(n), rng), sampler)
    momentum = "u" if hasattr(state, "u") else "v" if name != "psgld" and hasattr(state, "v") else ""
    friction = {"excess": alpha - STILL.friction} if hasattr(state, "excess") else {"alpha": alpha}
    at_rest = {momentum: torch.zeros(n)} if momentum else {}
    at_rest |= {of: torch.full_like(getattr(state, of), value) for of, value in friction.items() if hasattr(state, of)}
    state = sampler.ask(state._replace(**at_rest), eta, rng)
    state = sampler.tell(state, torch.zeros(n), eta, rng)
    root = torch.as_tensor(eta, dtype=torch.float64).sqrt() * math.sqrt(T)
    theta, u = state.theta / root, torch.zeros(n, dtype=torch.float64)
    if momentum:
        u = getattr(state, momentum).double() / (root if momentum == "u" else math.sqrt(T))
    law = noise_of_a_step(name, alpha)
    slope = law[0, 1] / law[1, 1] if momentum else 0.0
    for found, expected in ((u, law[1, 1]), (theta, law[0, 0]), (theta - slope * u, law[0, 0] - slope * law[0, 1])):
        assert found.square().mean().item() == pytest.approx(expected, rel=5 * math.sqrt(2 / n), abs=1e-5)


@pytest.mark.parametrize("name", NOISY)
def test_temperature_is_a_unit_and_nothing_else(name: str):
    """With theta, u and gradients in units of sqrt(T), a step at T is the step at 1, on a Gaussian with noise.

    So samples from the same seed agree to rounding if T enters wherever it should. In these units the gradient's scale
    is in psgld's step, the thermostats of the paper are slower by T, and psgld's damping is negligible.
    """
    found = []
    for T in (1.0, 0.6):
        sampler = SAMPLERS.make(name, temperature=T, rate=1 / T, damping=1e-9)
        eta, rng = 0.02 * (math.sqrt(T) if name == "psgld" else 1), torch.Generator().manual_seed(6)
        state = sampler.init(torch.zeros(500, dtype=torch.float64), rng)
        for _ in range(100):
            state = sampler.ask(state, eta, rng)
            grad = math.sqrt(T) * torch.randn(500, generator=rng, dtype=torch.float64) - state.theta
            state = sampler.tell(state, grad, eta, rng)
        found.append(state.theta / math.sqrt(T))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-7)


def test_laws_on_the_lattice_are_stationary():
    """If theta and u do not drift, the gradient is 0 on average, so E[e^theta] = k at any step, which no law of another
    step or temperature has; and the law without a step to speak of is the log of a gamma variable."""
    y = np.exp(LATTICE)
    for density in (langevin_density(0.05, 0), langevin_density(0.05, 4), momentum_density(0.04, 0.2)):
        assert density @ y / density.sum() == pytest.approx(SHAPE, abs=1e-6)
    # Euler's first order says that the mean moves by -eta/4 (see `log_gamma`): 0.0125 at 0.05, and 1 % of it at second
    exact = log_gamma().moments(1)[1]
    assert on_lattice(langevin_density(0.05, 0)).mean == pytest.approx(special.digamma(SHAPE) - 0.05 / 4, abs=0.05**2)
    assert on_lattice(np.exp(SHAPE * LATTICE - y)).variance == pytest.approx(exact, abs=1e-9)


class Kept:
    """A state and a generator, written as tensors and read back."""

    def __init__(self, state: Any, rng: torch.Generator):
        self.type, self.kinds = type(state), [type(field) for field in state]
        buffer = io.BytesIO()
        # a number is kept in double precision, which is Python's own
        fields = [torch.tensor(x, dtype=torch.float64) if isinstance(x, float) else torch.as_tensor(x) for x in state]
        torch.save([*fields, rng.get_state()], buffer)
        self.bytes = buffer.getvalue()

    def read(self) -> tuple[Any, torch.Generator]:
        *fields, stream = torch.load(io.BytesIO(self.bytes))
        rng = torch.Generator()
        rng.set_state(stream)
        pairs = zip(self.kinds, fields, strict=True)
        return self.type(*(x if issubclass(kind, Tensor) else kind(x.item()) for kind, x in pairs)), rng


@pytest.mark.parametrize("place", ["before ask", "before tell"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_restart_gives_the_same_bits(name: str, place: str):
    """Written down after six steps, or in the middle of the seventh, and read back into new objects, a sampler goes on
    as if nothing had happened, while the step changes and the gradient has noise from the same generator."""
    sampler, rng = SAMPLERS.make(name), torch.Generator().manual_seed(7)
    cut, end = (12 if place == "before ask" else 13), 24

    def walk(state: Any, rng: torch.Generator, halves: range) -> Any:
        for half in halves:
            eta = 0.01 / (1 + half // 2)
            if half % 2 == 0:
                state = sampler.ask(state, eta, rng)
            else:
                grad = -state.theta + torch.randn(state.theta.shape, generator=rng)
                state = sampler.tell(state, grad, eta, rng)
        return state

    middle = walk(sampler.init(torch.randn(101, generator=rng), rng), rng, range(cut))
    kept = Kept(middle, rng)
    through = walk(middle, rng, range(cut, end))
    restarted = walk(*kept.read(), range(cut, end))
    assert not torch.equal(through.theta, middle.theta)
    assert same(through, restarted)


DOCS = Path(__file__).parents[1] / "docs" / "reports"


@pytest.mark.parametrize(
    ("name", "steps", "time", "power"),
    [
        ("sgnht", (0.02, 0.04), 200, 1),
        ("sgnht-split", (0.1, 0.2), 100, 2),
        ("sghmc", (0.14, 0.27), 300, 2),
        ("sgld", (0.1, 0.2), 50, 2),
    ],
)
def test_bias_falls_with_the_power_of_the_step_derived(name, steps, time, power):
    """A small version of docs/reports/samplers.py, two steps for each sampler and a straight line through them.

    First order: within three standard errors of 1; alpha = 1 - sqrt(1 - 2h) bends the line by only
    log2((1 + 0.04/2) / (1 + 0.02/2)) = 0.014. Second order: not below 2 by more than three standard errors.
    """
    measure = runpy.run_path(str(DOCS / "samplers.py"))
    found = [measure["bias"](name, h, h, time, seed) for seed, h in enumerate(steps)]
    gradient = measure["order"](steps, found, None)
    assert gradient.stderr < 0.15, "orders must be told apart"
    if power == 1:
        assert abs(gradient.power - 1) < 3 * gradient.stderr
    else:
        assert gradient.power > power - 3 * gradient.stderr


def test_the_page_of_biases_has_the_powers_derived():
    """Every power measured in docs/reports/samplers.md is within three standard errors of the one derived beside it."""
    row = r"^\| `([\w-]+)` \| [^|]* \| (\d) \| ([-\d.]+) ± ([\d.]+) \|"
    rows = re.findall(row, (DOCS / "samplers.md").read_text(), re.M)
    assert len(rows) == len(runpy.run_path(str(DOCS / "samplers.py"))["SERIES"]), "run python docs/reports/samplers.py"
    for _, derived, measured, stderr in rows:
        assert abs(float(measured) - float(derived)) < 3 * float(stderr)
