"""Every sampler keeps the moments of what it samples; an optimiser takes the steps it is known for.

A sampler is elementwise, so one long vector holds thousands of independent chains: each gives a time average, and their
spread gives the standard error of the mean over chains. What is left to derive is the bias of a step of finite size.

**Size of the step.** eta = lambda², where lambda is the step in time of the underlying dynamics, and the friction a is
lambda times the friction per unit of time. So halving lambda means (eta, a) -> (eta/4, a/2), and a first-order sampler
must then halve its bias.

**Error of Euler's scheme**, at order eta. Samples follow not exp(-U) but exp(-U + eta M) with M = |∇U|²/4 - ∆U/2 for
theta <- theta - eta ∇U + N(0, 2 eta) (check: a Gaussian of precision k gets the variance 1 / (k (1 - k eta/2))). With a
momentum the constants are smaller: a Gaussian then gets 1 / (k (1 - k eta / (2 (2 - a)))). A moment E[f] so moves by at
most eta |cov(f, M)|.

**Error of a thermostat**, at order lambda. Stationarity of (theta, u) -> (theta + u, (1 - a) u + eta grad + noise)
gives E[theta u] = -E[u²]/2 and then, for precision k, k E[theta²] = (1 - a/2) E[u²] / eta: at the right temperature of
theta, u is too hot by a/2, because it is taken half a step away. A thermostat that brings E[u²] to eta so samples at
the temperature 1 - alpha/2. Its alpha balances the noise of the step: alpha (2 - alpha) = 2 a + eta sd², with sd the
standard deviation of the noise in the gradient, so alpha = 1 - sqrt(1 - 2a - eta sd²). Since alpha itself fluctuates
(variance eta, covariance with u² of -eta²), this holds up to terms of order eta.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from doubly import SAMPLERS, Sampler, UserError
from doubly.kernels.moves import Moments, Thermostat, adam, thermostat
from doubly.samplers import SGNHT, Adam

# psgld's step varies with theta, which takes a law of its own: test_psgld_keeps_the_moments_that_noise_lets_it_keep
NOISY = [name for name in SAMPLERS if SAMPLERS[name].noisy and name != "psgld"]
ETA, FRICTION, CHAINS = 0.01, 0.1, 3000


@dataclass(frozen=True)
class Target:
    """A density with known moments."""

    width: int
    """Coordinates of one chain."""
    grad: Callable[[Tensor], Tensor]
    """Gradient of the log density, for theta of (chains, width)."""
    features: Callable[[Tensor], Tensor]
    """What is averaged, (chains, features)."""
    moments: Callable[[float], np.ndarray]
    """The means of the features at a temperature T, under exp(-U/T)."""
    euler: np.ndarray
    """|cov(feature, M)| for each feature, M as at the head of this file."""

    def slack(self, eta: float) -> np.ndarray:
        """How far the moments may move at order eta: Euler's error, and that of a temperature wrong by eta."""
        return eta * (self.euler + abs(self.moments(1.01) - self.moments(0.99)) / 0.02)


def gaussian() -> Target:
    """Two correlated coordinates with standard deviations of 1 and 1/2, not centred.

    Their covariance is T C at temperature T, and cov((theta - m)(theta - m)ᵀ, M) = I/2.
    """
    mean = torch.tensor([1.0, -0.5], dtype=torch.float64)
    covariance = torch.tensor([[1.0, 0.3], [0.3, 0.25]], dtype=torch.float64)
    precision = torch.linalg.inv(covariance)

    def features(theta: Tensor) -> Tensor:
        one, two = (theta - mean).T
        return torch.stack([one, two, one**2, two**2, one * two], 1)

    return Target(
        width=2,
        grad=lambda theta: (mean - theta) @ precision,
        features=features,
        moments=lambda T: T * np.array([0, 0, 1, 0.25, 0.3]),
        euler=np.array([0, 0, 0.5, 0.5, 0]),
    )


def log_gamma(k: float = 2.0) -> Target:
    """theta = log of a Gamma(k) variable y: log density k theta - exp(theta), mean digamma(k), variance trigamma(k).

    At temperature T, y/T is Gamma(k/T). M = (y - k)²/4 - y/2, whose covariance with theta is -1/4: both cov(log y, y)
    and cov(log y, (y - k)²) are 1. With the square, s = (theta - m)²: cov(s, y) = E[s y] - k trigamma(k), and E[s y^n]
    is a moment of log y under Gamma(k + n).
    """
    mean = special.digamma(k)

    def moments(T: float) -> np.ndarray:
        shift = special.digamma(k / T) + math.log(T) - mean
        return np.array([shift, special.polygamma(1, k / T) + shift**2])

    def square(n: int) -> float:  # E[s y^n]
        return special.poch(k, n) * (special.polygamma(1, k + n) + (special.digamma(k + n) - mean) ** 2)

    quarter = (square(2) - 2 * k * square(1) + k**2 * square(0) - k * square(0)) / 4
    half = (square(1) - k * square(0)) / 2
    return Target(
        width=1,
        grad=lambda theta: k - theta.exp(),
        features=lambda theta: torch.cat([theta - mean, (theta - mean) ** 2], 1),
        moments=moments,
        euler=abs(np.array([-0.25, quarter - half])),
    )


TARGETS = {"gaussian": gaussian(), "log-gamma": log_gamma()}
each_target = pytest.mark.parametrize("target", TARGETS)
each_sampler = pytest.mark.parametrize("name", NOISY)


class Measured(NamedTuple):
    mean: np.ndarray
    stderr: np.ndarray
    stats: dict[str, float]
    """Means over the steps of what the sampler watches."""


@cache
def measured(name: str, target: str, eta: float, friction: float, sd: float) -> Measured:
    """Averages over the samples, with N(0, sd²) added to every gradient, n_data = 1 and so step = eta.

    Chains start at 0, off the mean. The slowest mode of the targets decays at a rate of at least 0.9 in units of 1/eta
    steps, so that after 15 of them its trace is below 1e-5. With a momentum and a friction of 1 per unit of time, it
    decays at a rate of 0.5 in units of 1/lambda steps: after 40 of them its trace is below 1e-8.
    """
    sampler, law, rng = SAMPLERS.make(name, friction=friction), TARGETS[target], torch.Generator().manual_seed(1)
    state = sampler.init(torch.zeros(CHAINS * law.width, dtype=torch.float64), rng)
    burn_in, steps = round(40 / math.sqrt(eta) if hasattr(state, "u") else 15 / eta), round(10 / eta)
    total, watched = torch.zeros(()), torch.zeros(())
    for step in range(burn_in + steps):
        state = sampler.ask(state, eta, rng)
        grad = law.grad(state.theta.view(CHAINS, law.width)).reshape(-1)
        if sd:
            grad = grad + sd * torch.randn(grad.shape, generator=rng, dtype=grad.dtype)
        state = sampler.tell(state, grad, eta, rng)
        if step >= burn_in:
            total = total + law.features(state.theta.view(CHAINS, law.width))
            watched = watched + torch.tensor(list(sampler.stats(state).values()))
    chains = (total / steps).numpy()
    watching = dict(zip(sampler.stats(state), (watched / steps).tolist(), strict=True))
    return Measured(chains.mean(0), chains.std(0, ddof=1) / math.sqrt(CHAINS), watching)


def has_thermostat(name: str) -> bool:
    sampler = SAMPLERS.make(name)
    state = sampler.ask(sampler.init(torch.zeros(2), torch.Generator()), ETA, torch.Generator())
    return "thermostat" in sampler.stats(state)


def balance(eta: float, friction: float, sd: float = 0) -> float:
    """The alpha at which a thermostat settles."""
    return 1 - math.sqrt(1 - 2 * friction - eta * sd**2)


def coldest(name: str, eta: float, friction: float, sd: float = 0) -> float:
    """The temperature at which a sampler may come to sample by the thermostat's error."""
    return 1 - balance(eta, friction, sd) / 2 if has_thermostat(name) else 1


def assert_moments_kept(found: Measured, target: Target, eta: float, temperature: float) -> None:
    """The moments lie between those at this temperature and at 1, up to order eta and five standard errors."""
    ends = np.stack([target.moments(temperature), target.moments(1)])
    margin = 5 * found.stderr + target.slack(eta)
    assert (found.mean >= ends.min(0) - margin).all()
    assert (found.mean <= ends.max(0) + margin).all()


@pytest.mark.parametrize("k", [2.0, 3.5])
def test_moments_of_the_log_gamma_are_right(k: float):
    """The closed forms of `log_gamma` against sums over a fine grid, at two temperatures."""
    theta = np.linspace(-40, 8, 200_001)
    y, target = np.exp(theta), log_gamma(k)
    features = target.features(torch.from_numpy(theta)[:, None]).numpy()

    def mean(values: np.ndarray, T: float = 1) -> np.ndarray:
        density = np.exp((k * theta - y) / T)
        return density @ values / density.sum()

    M = (y - k) ** 2 / 4 - y / 2
    np.testing.assert_allclose(mean(features), target.moments(1), atol=1e-8)
    np.testing.assert_allclose(mean(features, 0.8), target.moments(0.8), atol=1e-8)
    np.testing.assert_allclose(abs(mean(features * M[:, None]) - mean(features) * mean(M)), target.euler, atol=1e-8)


@each_sampler
@each_target
def test_moments_are_kept(name: str, target: str):
    """With clean gradients, a Gaussian and a skewed target keep their means, variances and covariance."""
    found = measured(name, target, ETA, FRICTION, 0)
    assert_moments_kept(found, TARGETS[target], ETA, coldest(name, ETA, FRICTION))


@each_sampler
@each_target
def test_bias_vanishes_with_the_step(name: str, target: str):
    """Halving the step in time halves (or better) the bias; twice the fine result minus the coarse one is exact.

    A bias of c lambda cancels in 2 fine - coarse; one of c eta leaves -c eta/2; and the tempered moments, not quite
    linear in lambda, leave what their formula says.
    """
    law, ends = TARGETS[target], []
    for eta, friction in ((ETA, FRICTION), (ETA / 4, FRICTION / 2)):
        found = measured(name, target, eta, friction, 0)
        ends.append((found.mean, found.stderr, law.moments(coldest(name, eta, friction)) - law.moments(1)))
    (coarse, coarse_stderr, coarse_bias), (fine, fine_stderr, fine_bias) = ends
    extrapolated, stderr = 2 * fine - coarse, np.hypot(2 * fine_stderr, coarse_stderr)
    rest = law.slack(ETA) / 2 + abs(2 * fine_bias - coarse_bias)
    assert (abs(extrapolated - law.moments(1)) <= 5 * stderr + rest).all()
    fine_error, coarse_error = abs(fine - law.moments(1)), abs(coarse - law.moments(1))
    assert (fine_error <= coarse_error / 2 + 5 * np.hypot(fine_stderr, coarse_stderr / 2) + law.slack(ETA) / 4).all()


@pytest.mark.parametrize("name", [name for name in NOISY if has_thermostat(name)])
@each_target
def test_thermostat_takes_up_the_noise_of_gradients(name: str, target: str):
    """With noise of standard deviation 4 in every gradient, a thermostat keeps the moments all the same.

    That noise puts eta² sd² = 0.0016 into u at every step, almost as much as the 2 a eta = 0.002 put in on purpose: at
    a fixed friction the temperature would be 1.8 (a sampler without thermostat does not claim this law).
    """
    found = measured(name, target, ETA, FRICTION, 4)
    assert_moments_kept(found, TARGETS[target], ETA, coldest(name, ETA, FRICTION, 4))


@each_sampler
@each_target
@pytest.mark.parametrize("sd", [0, 4])
def test_temperature_is_one(name: str, target: str, sd: float):
    """The kinetic temperature that a sampler watches is 1.

    Its mean over n normal u has the standard error sqrt(2/n), averaging over steps only makes it smaller; at a fixed
    friction it is a/2 too high (see above).
    """
    if sd and not has_thermostat(name):
        pytest.skip("without a thermostat, noise in the gradient heats")
    watched = measured(name, target, ETA, FRICTION, sd).stats
    if "temperature" not in watched:
        pytest.skip("no temperature is watched")
    fixed = 0 if has_thermostat(name) else FRICTION / 2
    assert abs(watched["temperature"] - 1) <= 5 * math.sqrt(2 / (CHAINS * TARGETS[target].width)) + fixed


def test_psgld_keeps_the_moments_that_noise_lets_it_keep():
    """Where the gradient's noise sets the preconditioner G, psgld is Langevin dynamics with steps eta G.

    With sd = 4 and precisions k = 1 and 4 in units of the target, E[grad²] = sd² + k, G = 1 / (1 + sqrt(sd² + k)), and
    the variance is that of Euler's scheme heated by the noise: (1 + eta G sd²/2) / (k (1 - k eta G/2)). G wanders
    with theta by var(grad²)/2 relative to v: the part that k theta² has in it, k/(sd² + k) = 6 % to 20 % of v, so 3 %
    to 10 % of G, averaged over the 1000 steps of the memory; half of that is allowed for.
    """
    sd, eta, precision = 4.0, 0.01, torch.tensor([1.0, 4.0], dtype=torch.float64).repeat(CHAINS)
    sampler, rng = SAMPLERS.make("psgld"), torch.Generator().manual_seed(1)
    state = sampler.init(torch.zeros(2 * CHAINS, dtype=torch.float64), rng)
    total = torch.zeros(2 * CHAINS, dtype=torch.float64)
    for step in range(6000):
        grad = -precision * state.theta + sd * torch.randn(2 * CHAINS, generator=rng, dtype=torch.float64)
        state = sampler.tell(sampler.ask(state, eta, rng), grad, eta, rng)
        if step >= 3000:  # relaxation takes 1 / (eta G k), at most 510 steps
            total += state.theta**2
    means = (total / 3000).view(CHAINS, 2)
    k = precision[:2]
    G = 1 / (1 + torch.sqrt(sd**2 + k))
    expected = (1 + eta * G * sd**2 / 2) / (k * (1 - k * eta * G / 2))
    stderr = means.std(0) / math.sqrt(CHAINS)
    assert (abs(means.mean(0) - expected) < 5 * stderr + k / (sd**2 + k) / 4 * expected).all()


@pytest.mark.parametrize("held", [False, True], ids=["moving", "held"])
def test_psgld_has_the_right_law_once_its_preconditioner_is_held(held: bool):
    """With decay 0.9 and exact gradients on a Gaussian, G that follows theta adds half to the variance.

    Held, the step is Langevin's with eta G: the variance is 1 / (1 - eta G / 2) times that of the target for each
    weight, G its own. At a decay of 0.9 G varies between weights; those that are so slow that a chain of 2000 steps
    tells nothing (eta G < 0.01) are left out. The others forget their start, exp(-2 * 0.01 * 1000).
    """
    sampler, rng, n = SAMPLERS.make("psgld:decay=0.9,damping=0.1"), torch.Generator().manual_seed(1), 20_000
    state = sampler.init(torch.randn(n, generator=rng, dtype=torch.float64), rng)
    total = torch.zeros(n, dtype=torch.float64)
    for step in range(3000):
        state = sampler.tell(state, -state.theta, 0.05, rng)
        if step == 499 and held:
            state = sampler.hold(state)
        if step >= 1500:
            total += state.theta**2 / 1500
    if not held:
        assert total.mean() > 1.4, "the case is too mild to show anything"
        return
    assert state.t == 500
    G = 1 / (0.1 + torch.sqrt(state.v / (1 - 0.9**500)))
    ratio = (total * (1 - 0.05 * G / 2))[0.05 * G > 0.01]
    assert len(ratio) > 0.9 * n
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / math.sqrt(len(ratio))


@each_target
@pytest.mark.parametrize("sd", [0, 4])
def test_sgnht_samples_at_the_temperature_derived(target: str, sd: float):
    """The paper's thermostat settles at alpha = 1 - sqrt(1 - 2a - eta sd²) and samples at 1 - alpha/2, up to order eta.

    alpha has the standard deviation lambda in each coordinate, so its mean has a standard error below lambda / sqrt(n).
    """
    law, found = TARGETS[target], measured("sgnht", target, ETA, FRICTION, sd)
    alpha = balance(ETA, FRICTION, sd)
    assert abs(found.stats["thermostat"] - alpha) <= ETA + 5 * math.sqrt(ETA / (CHAINS * law.width))
    assert (abs(found.mean - law.moments(1 - alpha / 2)) <= 5 * found.stderr + law.slack(ETA)).all()


def some_state(sampler: Sampler, n: int = 1000, dtype: torch.dtype = torch.float64) -> tuple[Any, torch.Generator]:
    """The state after a few steps on a standard Gaussian."""
    rng = torch.Generator().manual_seed(2)
    state = sampler.init(torch.randn(n, generator=rng, dtype=dtype), rng)
    for _ in range(3):
        state = sampler.ask(state, ETA, rng)
        state = sampler.tell(state, -state.theta, ETA, rng)
    return state, rng


def copy(state: Any) -> Any:
    return type(state)(*(field.clone() if isinstance(field, Tensor) else field for field in state))


def same(one: Any, other: Any) -> bool:
    """Whether two states have the same bits."""
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_is_vectors_and_numbers(name: str, dtype: torch.dtype):
    """A state is a NamedTuple: theta first, vectors of its shape and type, and plain numbers; that is a checkpoint."""
    sampler = SAMPLERS.make(name)
    started = sampler.init(torch.arange(3, dtype=dtype), torch.Generator())
    assert torch.equal(started.theta, torch.arange(3, dtype=dtype))
    state, _ = some_state(sampler, 7, dtype)
    assert type(state) is type(started)
    assert state._fields[0] == "theta"
    for field in state:
        assert isinstance(field, int | float) or (field.shape in ((7,), ()) and field.dtype == dtype)


@pytest.mark.parametrize("name", SAMPLERS)
def test_ask_and_tell_leave_the_old_state_alone(name: str):
    """`init`, `ask` and `tell` are pure: theta, states and gradients passed in keep their bits."""
    sampler = SAMPLERS.make(name)
    state, rng = some_state(sampler)
    theta = torch.randn(1000, generator=rng, dtype=torch.float64)
    grad = torch.randn(1000, generator=rng, dtype=torch.float64)
    kept = copy(state), theta.clone(), grad.clone()
    started = sampler.init(theta, rng)
    asked = sampler.ask(state, ETA / 2, rng)
    kept_asked = copy(asked)
    told = sampler.tell(asked, grad, ETA / 2, rng)
    sampler.tell(sampler.ask(started, ETA, rng), grad, ETA, rng)
    assert same(state, kept[0])
    assert same(asked, kept_asked)
    assert torch.equal(theta, kept[1])
    assert torch.equal(grad, kept[2])
    assert not torch.equal(sampler.ask(told, ETA / 2, rng).theta, state.theta)


@pytest.mark.parametrize("name", SAMPLERS)
def test_noise_comes_from_the_generator_alone(name: str):
    """The same generator gives the same bits, whatever the global seed, which is left alone; another gives others."""
    sampler = SAMPLERS.make(name)
    found: list[Any] = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(found))
        before = torch.get_rng_state()
        rng = torch.Generator().manual_seed(seed)
        state = sampler.init(torch.ones(100), rng)
        for _ in range(3):
            state = sampler.ask(state, ETA, rng)
            state = sampler.tell(state, -state.theta, ETA, rng)
        assert torch.equal(before, torch.get_rng_state())
        found.append(state)
    assert same(found[0], found[1])
    assert same(found[0], found[2]) is not SAMPLERS[name].noisy


@each_sampler
def test_step_is_shared_out_over_the_data(name: str):
    """eta = step / n_data, since the gradient is of the sum over the data."""
    assert SAMPLERS.make(name).eta(0.5, 1000) == pytest.approx(0.0005, rel=1e-12)


def test_sgnht_starts_at_its_temperature():
    """After the first `ask`, u ~ N(0, eta) (Kolmogorov-Smirnov at 1e-4), theta has moved by it, and alpha = a."""
    theta, rng = torch.ones(20_000, dtype=torch.float64), torch.Generator().manual_seed(5)
    sampler = SGNHT(friction=0.07)
    state = sampler.ask(sampler.init(theta, rng), ETA, rng)
    assert stats.kstest(state.u.numpy() / math.sqrt(ETA), "norm").pvalue > 1e-4
    assert torch.equal(state.theta, theta + state.u)
    assert torch.equal(state.excess, torch.zeros_like(theta))
    assert sampler.stats(state)["thermostat"].item() == pytest.approx(0.07)
    assert sampler.stats(state)["temperature"].item() == pytest.approx(1, abs=5 * math.sqrt(2 / 20_000))
    assert sampler.stats(state)["thermostat"].item() == pytest.approx(0.07, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if SAMPLERS.make(name).expected_temperature()])
def test_momentum_starts_at_its_temperature(name: str):
    """u ~ N(0, eta T), whatever T; five standard errors of 20,000 squares are 5 %, where 5 % of u would be 10 %."""
    rng = torch.Generator().manual_seed(5)
    state = SAMPLERS.make(name, temperature=0.6).init(torch.zeros(20_000), rng)
    start = state.v if hasattr(state, "v") else state.u  # which is in units of eta = 1
    assert (start**2).mean().item() / 0.6 == pytest.approx(1, abs=5 * math.sqrt(2 / 20_000))


def test_sgnht_takes_the_paper_s_step():
    """One `ask` and `tell` are the equations of the paper, and the noise they leave is N(0, 2 a eta), elementwise.

    theta' = theta + u;  u' = (1 - alpha) u + eta grad + noise;  alpha' = alpha + u'² - eta
    """
    sampler = SGNHT(friction=0.07)
    state, rng = some_state(sampler, 20_000)
    grad = 30 * torch.randn(20_000, generator=rng, dtype=torch.float64)
    asked = sampler.ask(state, ETA, rng)
    told = sampler.tell(asked, grad, ETA, rng)
    assert torch.equal(asked.theta, state.theta + state.u)
    assert torch.equal(asked.u, state.u)
    assert torch.equal(told.theta, asked.theta)
    noise = (told.u - (1 - 0.07 - state.excess) * state.u - ETA * grad) / math.sqrt(2 * 0.07 * ETA)
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4
    torch.testing.assert_close(told.excess, state.excess + told.u**2 - ETA, rtol=0, atol=1e-14)
    for other in (grad, state.u, state.theta):  # independent: a correlation of n pairs is N(0, 1/n)
        assert abs(np.corrcoef(noise, other)[0, 1]) < 5 / math.sqrt(20_000)


def test_sgnht_keeps_its_temperature_when_the_step_changes():
    """u has the scale sqrt(eta): a new eta rescales it, and the kinetic temperature stays what it was."""
    sampler = SGNHT()
    state, rng = some_state(sampler)
    asked = sampler.ask(state, ETA / 4, rng)
    torch.testing.assert_close(asked.u, state.u / 2, rtol=1e-12, atol=0)
    before, after = sampler.stats(state), sampler.stats(asked)
    assert after["temperature"].item() == pytest.approx(before["temperature"].item(), rel=1e-12)


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_the_thermostat_does_not_drift_in_single_precision(kernels: str, monkeypatch):
    """At eta = 1e-8, as on large data, u that comes to temperature 1 leaves alpha where it is, on average.

    Its move has mean 0 and standard deviation sqrt(2) eta; over 200,000 weights and 20 moves the mean of it has a
    standard error of eta / sqrt(2e6). Rounding beside a friction of 0.1 (to 7e-9) would move it by half of eta.
    """
    monkeypatch.setenv("DOUBLY_KERNELS", kernels)
    eta, rng, nothing = 1e-8, torch.Generator().manual_seed(0), torch.zeros(200_000)
    excess = torch.full((200_000,), 0.01)
    moves = 0.0
    for _ in range(20):
        u = math.sqrt(eta) / 0.99 * torch.randn(200_000, generator=rng)  # of which the excess leaves 0.99
        moved = thermostat(Thermostat(u, excess), nothing, eta, friction=0.0, heat=eta, rate=1.0, rng=rng)
        moves += (moved.excess.double() - excess).mean().item() / 20
    assert abs(moves) < 5 * eta / math.sqrt(2e6) + 0.01 * eta


@pytest.mark.parametrize("size", [1, 1023, 1024, 5000])
def test_fused_moves_are_the_plain_ones(size: int, monkeypatch):
    """To rounding; where noise comes in, with none of it, and its law is looked at."""
    rng = torch.Generator().manual_seed(0)
    first, second, third, grad = torch.randn(4, size, generator=rng)
    found = []
    for kernels in "01":
        monkeypatch.setenv("DOUBLY_KERNELS", kernels)
        still = thermostat(Thermostat(first, second / 10), grad, 0.3, friction=0.0, heat=0.2, rate=0.7, rng=rng)
        noisy = thermostat(Thermostat(first, second / 10), grad, 0.3, friction=0.4, heat=0.2, rate=0.7, rng=rng)
        noise = (noisy.u - (0.6 - second / 10) * first - 0.3 * grad) / math.sqrt(2 * 0.4 * 0.2)
        torch.testing.assert_close(noisy.excess, second / 10 + 0.7 * (noisy.u**2 - 0.2), rtol=1e-5, atol=1e-6)
        assert size < 1000 or stats.kstest(noise.numpy(), "norm").pvalue > 1e-6
        moments = adam(Moments(first, second, third**2), grad, 0.9, 0.99, 0.1, 1.5, 1e-10)
        found.append((*still, *moments))
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("friction", [0.0, 1.0, -0.1, math.nan])
def test_bad_friction_is_refused(friction: float):
    with pytest.raises(UserError, match="friction must lie between 0 and 1"):
        SGNHT(friction=friction)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_is_torch_s_adam(dtype: torch.dtype):
    """Step by step, Adam is torch.optim.Adam(maximize=True, eps=1e-10), also at other betas, as the step changes."""
    for settings in ({}, {"beta1": 0.8, "beta2": 0.95}):
        rng = torch.Generator().manual_seed(6)
        sampler = Adam(**settings)
        assert sampler.epsilon == 1e-10
        weights = torch.nn.Parameter(torch.randn(50, generator=rng, dtype=dtype))
        betas = (sampler.beta1, sampler.beta2)
        reference = torch.optim.Adam([weights], lr=1, betas=betas, eps=1e-10, maximize=True)
        state = sampler.init(weights.detach().clone(), rng)
        for step in range(100):
            eta = sampler.eta(0.01 / (1 + step), n_data=1000)
            grad = torch.randn(50, generator=rng, dtype=dtype) * torch.logspace(-6, 3, 50, dtype=dtype)
            state = sampler.tell(sampler.ask(state, eta, rng), grad, eta, rng)
            weights.grad = grad
            reference.param_groups[0]["lr"] = 0.01 / (1 + step)
            reference.step()
            torch.testing.assert_close(state.theta, weights.detach(), rtol=0, atol=1e-6)
    assert state.t == 100
