"""Annealed importance sampling: moves that keep every law on the way, weights with the mean p(x) for any number of
temperatures, bounds on both sides of the truth. Models are small enough to be enumerated or integrated.

A bound on a mean is four of its standard errors, estimated from independent repetitions: some 150 such means are looked
at, of which a hundredth would fall outside if all is well, and the seeds are fixed.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from scipy import stats
from torch import Tensor

from doubly import Chain, UserError
from doubly.kernels import gibbs as kernel
from doubly.latents.annealing import _HMC, ACCEPTANCE, Annealing, _Target
from doubly.latents.sweep import sweep
from doubly.layers.chain import Values
from exact import BINARY, assert_same_law, bits

BINARY_MODELS = [("sbn", (3,)), ("sbn", (2, 2)), ("darn", (3,)), ("darn:order=3", (2, 2)), ("sbn,darn,sbn", (2, 2))]
X = bits(4)[[3, 10, 13]]
each_model = pytest.mark.parametrize(("names", "hidden"), BINARY_MODELS, ids=str)


@pytest.fixture(params=["0", ""], ids=["plain", "fused"])
def kernels(request, monkeypatch):
    """Both kinds of kernels for single precision; what is in double precision is plain anyway."""
    monkeypatch.setenv("DOUBLY_KERNELS", request.param)
    return request.param


class Known(NamedTuple):
    """A model, rows, and log p(x) of these."""

    model: Chain
    theta: Tensor
    x: Tensor
    exact: Tensor


def tempered(chain: Chain, theta: Tensor, x: Tensor, beta: float) -> Tensor:
    """log p(z) p(x | z)^beta of all z, in the order of bits(), (2^H, …)."""
    widths = [layer.n_out for layer in chain.layers[1:]]
    target = _Target(chain, theta.double(), x.double(), [0.0, 1.0])
    hidden = bits(sum(widths))[:, None].split(widths, -1)
    return target.log_prior(hidden) + beta * target.log_likelihood(hidden)


def enumerated(names: str, hidden: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Known:
    """A model of binary layers whose weights have standard deviation 1."""
    model = Chain.build(names, data=4, hidden=hidden)
    theta = torch.randn(model.size, generator=torch.Generator().manual_seed(32)).to(dtype)
    return Known(model, theta, X.to(dtype), tempered(model, theta, X, 1.0).logsumexp(0))


def assert_mean(values: Tensor, expected: float | Tensor) -> None:
    """The mean over the first axis is what is expected, within four standard errors."""
    values = values.double()
    stderr = values.std(0) / math.sqrt(len(values))
    assert ((values.mean(0) - expected).abs() <= 4 * stderr + 1e-12).all()


def log_weights(known: Known, annealing: Annealing, seed: int) -> Tensor:
    """log w of every chain, (chains, rows): given the steps of a pilot run, they are independent."""
    rng = torch.Generator().manual_seed(seed)
    return annealing._log_weights(known.model, known.theta, known.x, None, rng, lambda done, total: None, 2**23)


def assert_close_in_the_limit(known: Known, annealing: Annealing, seed: int) -> None:
    """log_marginal with 16 chains, over and over, finds log p(x) but for its own bias.

    With weights that vary little the log of their mean over S chains is below log p(x) by Var(w) / (2 S p(x)²).
    The next term is smaller by a factor of about S.
    """
    log_weight, groups = log_weights(known, annealing, seed), annealing.chains // 16
    bias = torch.exp(log_weight - known.exact).var(0) / (2 * 16)
    assert (bias < 0.02).all()  # or nothing would have been found
    found = log_weight.view(groups, 16, -1).logsumexp(1) - math.log(16)
    assert_mean(found + bias, known.exact)


# Gibbs sweeps at a temperature.


@pytest.mark.parametrize("names", ["sbn", "darn", "sbn,darn,sbn", "darn,sbn,darn:order=1"])
@pytest.mark.parametrize(("data", "hidden"), [(4, (3, 2)), (70, (65, 5))], ids=str)
def test_every_unit_is_drawn_from_its_tempered_conditional(
    names: str, data: int, hidden: tuple[int, ...], kernels: str, monkeypatch
):
    """The log-odds of every unit, in the state in which the sweep finds it, from nothing but log_prob."""
    chain, rng, beta = Chain.build(names, data=data, hidden=hidden), torch.Generator().manual_seed(1), 0.3
    theta = torch.randn(chain.size, generator=rng)
    x, *old = (torch.randint(2, (*shape, n), generator=rng).float() for shape, n in zip(
        [(3,), (2, 3), (2, 3)], [data, *hidden], strict=True))  # fmt: skip
    found, real = [], kernel.sweep

    def watched(*args: Any) -> kernel.Swept:
        found.append(real(*args))
        return found[-1]

    monkeypatch.setattr(kernel, "sweep", watched)
    new = sweep(chain, theta, x, tuple(old), rng, beta)
    target, values = _Target(chain, theta.double(), x.double(), [0.0, 1.0]), [value.double() for value in old]
    for level, value in enumerate(values):
        for k in range(value.shape[-1]):
            ends = []
            for bit in (0.0, 1.0):
                value[..., k] = bit
                ends.append(target.log_prior(tuple(values)) + beta * target.log_likelihood(tuple(values)))
            torch.testing.assert_close(found[level].log_odds[..., k].double(), ends[1] - ends[0], rtol=1e-4, atol=1e-3)
            value[..., k] = new[level][..., k]


@each_model
@pytest.mark.parametrize("beta", [0.3, 0.9])
def test_a_sweep_keeps_its_law(names: str, hidden: tuple[int, ...], beta: float, kernels: str):
    """From exact draws of p_beta, one sweep gives exact draws again; from zeros, twenty do."""
    known, rng = enumerated(names, hidden, torch.float32), torch.Generator().manual_seed(2)
    x = X[1]
    law = tempered(known.model, known.theta, x[None], beta).log_softmax(0)[:, 0]
    numbers = torch.multinomial(law.exp(), 20_000, replacement=True, generator=rng)
    found = bits(sum(hidden))[numbers].float().split(list(hidden), 1)
    found = sweep(known.model, known.theta, x.float(), found, rng, beta)
    assert_same_law(torch.cat(found, 1), law)
    found = tuple(torch.zeros(20_000, n) for n in hidden)
    for _ in range(20):
        found = sweep(known.model, known.theta, x.float(), found, rng, beta)
    assert_same_law(torch.cat(found, 1), law)


# Weights of binary models.


@each_model
@pytest.mark.parametrize("temperatures", [1, 4])
def test_the_mean_weight_is_the_likelihood(names: str, hidden: tuple[int, ...], temperatures: int, kernels: str):
    """E[w] = p(x), and down from exact posterior draws E[1/w] = 1 / p(x), however few the temperatures."""
    known, chains = enumerated(names, hidden, torch.float32), 10_000
    assert_mean(torch.exp(log_weights(known, Annealing(temperatures, chains), seed=3) - known.exact), 1)
    rng = torch.Generator().manual_seed(4)
    posterior = tempered(known.model, known.theta, X, 1.0).softmax(0)
    numbers = torch.multinomial(posterior.T, chains, replacement=True, generator=rng).T.flatten()
    z = tuple(bits(sum(hidden))[numbers].float().split(list(hidden), 1))
    rows, annealing = known.x.repeat(chains, 1), Annealing(temperatures, chains=1)
    found = annealing.reverse(known.model, known.theta, rows, z, rng).log_likelihood
    assert_mean(torch.exp(known.exact - found.view(chains, len(X))), 1)


@each_model
@pytest.mark.parametrize("schedule", ["sigmoid", "linear"])
def test_many_temperatures_find_the_likelihood(names: str, hidden: tuple[int, ...], schedule: Any):
    known = enumerated(names, hidden)
    assert_close_in_the_limit(known, Annealing(50, chains=16 * 100, schedule=schedule), seed=5)


def test_one_temperature_is_importance_sampling_from_the_prior():
    known = enumerated("sbn", (2, 2))
    target = _Target(known.model, known.theta, known.x, [0.0, 1.0])
    z = target.prior_draws(7, torch.Generator().manual_seed(7))
    found = Annealing(1, chains=7).log_likelihood(known.model, known.theta, X, torch.Generator().manual_seed(7))
    expected = target.log_likelihood(z)
    torch.testing.assert_close(found.log_likelihood, expected.logsumexp(0) - math.log(7))
    w = torch.softmax(expected, 0)
    torch.testing.assert_close(found.ess, 1 / w.square().sum(0))


# Real hidden values.


def moments(model: Chain, theta: Tensor) -> torch.distributions.MultivariateNormal:
    """The law of x under linear layers with fixed variances: moments that add up from the top down."""
    mean, covariance = torch.zeros(2).double(), torch.eye(2).double()
    for params in model.unflatten(theta)[-2::-1]:
        W = params["W_mu"]
        mean = W @ mean + params["b_mu"]
        covariance = W @ covariance @ W.T + torch.exp(2 * params["b_sigma"]).diag()
    return torch.distributions.MultivariateNormal(mean, covariance)


def linear(depth: int) -> Known:
    """Linear layers with fixed variances, so many of them over two standard normal values."""
    model = Chain.build(["gaussian:widths=none"] * depth + ["normal"], data=3, hidden=(2,) * depth)
    rng = torch.Generator().manual_seed(8)
    theta = torch.randn(model.size, generator=rng, dtype=torch.float64)
    for params in model.unflatten(theta)[:-1]:  # views of theta
        params["W_sigma"].zero_()
        params["b_sigma"].mul_(0.3)
    law = moments(model, theta)
    x = law.mean + torch.randn(3, 3, generator=rng, dtype=torch.float64)
    return Known(model, theta, x, law.log_prob(x))


def integrated(name: str, dtype: torch.dtype = torch.float64) -> Known:
    """A binary data layer over one normal value, integrated out by the trapezium rule.

    The integrand and all its derivatives vanish at both ends, so that the rule is exact to many digits.
    """
    model = Chain.build([name, "normal"], data=4, hidden=(1,))
    theta = torch.randn(model.size, generator=torch.Generator().manual_seed(9)).to(dtype)
    points = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    target = _Target(model, theta.double(), X, [0.0, 1.0])
    hidden = (points[:, None, None],)
    log_p = target.log_prior(hidden) + target.log_likelihood(hidden)
    return Known(model, theta, X.to(dtype), log_p.logsumexp(0) + math.log(18 / 4000))


REAL: dict[str, Callable[[], Known]] = {"linear 1": lambda: linear(1), "linear 2": lambda: linear(2)} | {
    name: partial(integrated, "mlp:widths=5" if name == "mlp" else name) for name in BINARY
}
each_real = pytest.mark.parametrize("name", REAL)


@each_real
@pytest.mark.parametrize("temperatures", [1, 4])
def test_the_mean_weight_is_the_likelihood_with_real_values(name: str, temperatures: int):
    """E[w] = p(x). That the steps were fitted to these rows beforehand changes nothing."""
    known = REAL[name]()
    assert_mean(torch.exp(log_weights(known, Annealing(temperatures, 4000, leapfrog=3), seed=10) - known.exact), 1)


@each_real
def test_many_temperatures_find_the_likelihood_with_real_values(name: str):
    assert_close_in_the_limit(REAL[name](), Annealing(50, chains=16 * 100, leapfrog=5), seed=11)


def exact_draws(known: Known, row: int, beta: float, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """n draws of p_beta(z | x), with its mean and the Cholesky factor of its precision, for a linear model.

    precision = I + beta W' S^-1 W, mean = precision^-1 beta W' S^-1 (x - b)
    """
    below = known.model.unflatten(known.theta)[0]
    scaled = below["W_mu"].T * torch.exp(-2 * below["b_sigma"])
    factor = torch.linalg.cholesky(torch.eye(2).double() + beta * scaled @ below["W_mu"])
    mean = torch.cholesky_solve((beta * scaled @ (known.x[row] - below["b_mu"]))[:, None], factor)[:, 0]
    noise = torch.randn(n, 2, generator=rng, dtype=torch.float64)
    return mean + torch.linalg.solve_triangular(factor.T, noise.T, upper=True).T, mean, factor


@pytest.mark.parametrize("beta", [0.2, 1.0])
@pytest.mark.parametrize("step", [0.1, 0.5, 0.85])
def test_hamiltonian_moves_keep_their_law(beta: float, step: float):
    """Two moves from exact draws of p_beta give exact draws, and so do fifty from zeros, if they are stable.

    Made white, every coordinate is a standard normal and their square length is chi-square: Kolmogorov-Smirnov, at
    significance 1e-4. At beta = 1 the narrowest standard deviation is 0.43, and at the largest step, twice that, half
    of the trajectories run away (beyond that step none is stable): it is the acceptance that keeps the law, and getting
    there from elsewhere would take long.
    """
    known, rng, n = linear(1), torch.Generator().manual_seed(13), 10_000
    target = _Target(known.model, known.theta, known.x[:1], [0.0, beta, 1.0])
    moves = _HMC(target, 2, 4, torch.full((2, 1), step, dtype=torch.float64))
    start, mean, factor = exact_draws(known, 0, beta, n, rng)
    starts = [(start, 1), (torch.zeros_like(start), 25)]
    for z, times in starts if step < 0.7 else starts[:1]:
        hidden: Values = (z[:, None],)
        for _ in range(times):
            hidden = moves(hidden, 1, rng)
        assert (hidden[0][:, 0] != z).any(-1).double().mean() > 0.3  # it moves
        white = (hidden[0][:, 0] - mean) @ factor
        for coordinate in white.T:
            assert stats.kstest(coordinate.numpy(), "norm").pvalue > 1e-4
        assert stats.kstest(white.square().sum(-1).numpy(), "chi2", (2,)).pvalue > 1e-4


@pytest.mark.parametrize("temperatures", [5, 200])
def test_the_pilot_finds_steps_that_are_accepted(temperatures: int):
    """Of a narrow posterior: acceptance near what is aimed at, though the first guess is far too large.

    On exact draws. The pilot leaves log eps within some 0.2 of where it should be (two standard deviations), and where
    acceptance falls from 0.8 to 0.3 log eps rises by 0.25: it is within 0.2 or so, and 0.3 is allowed.
    """
    known = linear(1)
    known.model.unflatten(known.theta)[0]["b_sigma"].fill_(-3.0)
    betas = Annealing(temperatures).betas()
    target = _Target(known.model, known.theta, known.x, betas)
    moves = _HMC.tuned(target, 1, 5, torch.Generator().manual_seed(14), lambda: None)
    assert moves.step.shape == (temperatures, 3)
    t, rng = temperatures - 1, torch.Generator().manual_seed(15)
    for row in range(3):
        one = _Target(known.model, known.theta, known.x[row : row + 1], betas)
        z, *_ = exact_draws(known, row, betas[t], 2000, rng)
        _, acceptance = _HMC(one, 1, 5, moves.step).move((z[:, None],), t, moves.step[t, row], rng)
        assert abs(acceptance.mean() - ACCEPTANCE) < 0.3
    assert (moves.step[t] < moves.step[0] / 3).all()


def test_a_trajectory_that_leaves_the_numbers_is_refused():
    known, rng = linear(1), torch.Generator().manual_seed(16)
    target = _Target(known.model, known.theta, known.x, [0.0, 1.0])
    start = target.prior_draws(2, rng)
    (end,), acceptance = _HMC(target, 1, 50, torch.ones(1, 3)).move(start, 1, torch.full((3,), 1e30).double(), rng)
    assert torch.equal(end, start[0])
    assert (acceptance == 0).all()


# Bounds on both sides.

SIDES = {
    "sbn": Chain.build("sbn", data=6, hidden=(5, 3)),
    "darn": Chain.build("darn", data=6, hidden=(6,)),
    "linear": linear(2).model,
}


def weights_of(name: str) -> Tensor:
    """Of the binary models, wide enough for few temperatures to be too few."""
    if name == "linear":
        return linear(2).theta
    return 1.5 * torch.randn(SIDES[name].size, generator=torch.Generator().manual_seed(17), dtype=torch.float64)


@pytest.mark.parametrize("name", SIDES)
def test_the_truth_lies_between_the_bounds_and_they_close_in(name: str):
    """lower <= truth <= upper on average over rows, and what lies between falls by more than half from T to 4 T.

    As temperatures grow, Var(log w) and with it both distances fall like 1 / T, so that a quarter is to be expected.
    """
    model, theta, n = SIDES[name], weights_of(name), 300 if name == "linear" else 1000
    rng = torch.Generator().manual_seed(18)
    x, *z = model.sample(theta, n, rng)
    if name == "linear":
        exact = moments(model, theta).log_prob(x)
    else:
        exact = tempered(model, theta, x, 1.0).logsumexp(0)
    means, stderrs = [], []
    for temperatures in (4, 16, 64):
        annealing = Annealing(temperatures, chains=2, leapfrog=5)
        lower = annealing.log_likelihood(model, theta, x, rng).log_likelihood
        upper = annealing.reverse(model, theta, x, tuple(z), rng).log_likelihood
        for above in (exact - lower, upper - exact):
            assert above.mean() >= -4 * above.std() / math.sqrt(n)
        means.append((upper - lower).mean().item())
        stderrs.append((upper - lower).std().item() / math.sqrt(n))
    assert means[0] > 4 * stderrs[0]  # or there was nothing to fall
    for i, j in pairwise(range(3)):
        assert means[j] < means[i] / 2 + 4 * math.hypot(stderrs[i] / 2, stderrs[j])
    assert means[2] < means[0] / 4


def test_the_gap_is_that_of_the_models_own_rows():
    """Rows, the way up and the way down, in this order from one generator."""
    model, theta, annealing = SIDES["sbn"], weights_of("sbn"), Annealing(5, chains=2)
    seen: list[tuple[int, int]] = []
    rng = torch.Generator().manual_seed(19)
    found = annealing.gap(model, theta, 50, rng, lambda *counts: seen.append(counts))
    assert seen == [(done, 10) for done in range(1, 11)]
    rng = torch.Generator().manual_seed(19)
    x, *z = model.sample(theta, 50, rng)
    lower = annealing.log_likelihood(model, theta, x, rng).log_likelihood
    upper = annealing.reverse(model, theta, x, tuple(z), rng).log_likelihood
    for mean, rows in zip(found, (lower, upper, upper - lower), strict=True):
        assert mean.mean == pytest.approx(rows.mean().item(), abs=1e-12)
        assert mean.stderr == pytest.approx(rows.std().item() / math.sqrt(50), abs=1e-12)


# Whatever else is promised.


def test_the_betas_go_from_the_prior_to_the_posterior():
    for schedule in ("sigmoid", "linear"):
        betas = torch.tensor(Annealing(10, schedule=schedule).betas(), dtype=torch.float64)
        assert betas[0] == 0
        assert betas[-1] == 1
        assert (betas.diff() > 0).all()
        torch.testing.assert_close(betas + betas.flip(0), torch.ones(11).double())
        # sigmoid'(4) / sigmoid'(0) = 0.07: at the ends the first has much smaller steps than in the middle
        assert (betas.diff()[0] < betas.diff()[5] / 3) == (schedule == "sigmoid")
        assert Annealing(1, schedule=schedule).betas() == [0, 1]


@pytest.mark.parametrize("names", ["sbn", "sbn,normal"])
def test_the_generator_decides_everything(names: str):
    """The same numbers from the same state, and the global generator is left alone."""
    model = Chain.build(names, data=4, hidden=(3,))
    theta = model.init(torch.Generator().manual_seed(19))
    state = torch.get_rng_state()
    annealing = Annealing(10, chains=4)
    first, again, other = (
        annealing.log_likelihood(model, theta, X, torch.Generator().manual_seed(seed)).log_likelihood
        for seed in (20, 20, 21)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)
    one, two = (annealing.gap(model, theta, 5, torch.Generator().manual_seed(22)) for _ in range(2))
    assert one == two


@pytest.mark.parametrize("names", ["sbn", "sbn,normal"])
@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_blocks_change_neither_law_nor_order(names: str, at_once: int):
    """Rows one by one, by sevens, and all at once: E[w] = p(x) for each, and progress is counted to the end."""
    known = enumerated("sbn", (3,)) if names == "sbn" else integrated("sbn")
    seen: list[tuple[int, int]] = []
    annealing, rng, copies = Annealing(3, chains=64, leapfrog=2), torch.Generator().manual_seed(23), 20
    cells = at_once * 64 * sum(layer.n_out for layer in known.model.layers)
    x = known.x.repeat(copies, 1).to(torch.uint8)
    found = annealing.log_likelihood(known.model, known.theta, x, rng, lambda *counts: seen.append(counts), cells=cells)
    assert found.log_likelihood.shape == found.ess.shape == (60,)
    assert ((found.ess >= 1 - 1e-9) & (found.ess <= 64 + 1e-9)).all()
    assert_mean(torch.exp(found.log_likelihood.view(copies, 3) - known.exact), 1)
    total = math.ceil(60 / at_once) * 3 * (1 if names == "sbn" else 2)  # a pilot run goes through them too
    assert seen == [(done, total) for done in range(1, total + 1)]


@pytest.mark.parametrize("name", [*BINARY, "gaussian"])
def test_with_nothing_hidden_it_is_exact(name: str):
    model = Chain.build(name, data=4)
    theta = torch.randn(model.size, generator=torch.Generator().manual_seed(24), dtype=torch.float64)
    exact, rng = model.log_prob(theta, (X,)), torch.Generator().manual_seed(25)
    for found in (Annealing().log_likelihood(model, theta, X, rng), Annealing().reverse(model, theta, X, (), rng)):
        torch.testing.assert_close(found.log_likelihood, exact)
        torch.testing.assert_close(found.ess, torch.ones(3).double())
    assert Annealing().gap(model, theta, 5, rng).difference.mean == pytest.approx(0, abs=1e-12)


def test_a_single_row_has_no_standard_error():
    known = enumerated("sbn", (3,))
    found = Annealing(3, chains=2).gap(known.model, known.theta, 1, torch.Generator().manual_seed(26))
    assert found.lower.stderr is found.difference.stderr is None


@pytest.mark.parametrize("names", ["sbn,nade", "nade,sbn", "mlp:widths=5,sbn", "gaussian:widths=5,sbn"])
def test_models_without_moves_are_refused(names: str):
    model = Chain.build(names, data=4, hidden=(3,))
    with pytest.raises(UserError, match="annealing needs sbn and darn layers only, or real hidden layers"):
        Annealing().check(model)
    with pytest.raises(UserError, match="score this model with its proposal"):
        Annealing().log_likelihood(model, torch.zeros(model.size), X, torch.Generator())


def test_mixed_hidden_layers_are_refused():
    model = Chain.build("sbn,gaussian:widths=5,sbn", data=4, hidden=(3, 2))
    with pytest.raises(UserError, match="got SBN, Gaussian, SBN"):
        Annealing().check(model)


@pytest.mark.parametrize("field", ["temperatures", "chains", "sweeps", "leapfrog"])
def test_amounts_must_be_positive(field: str):
    with pytest.raises(UserError, match=f"{field} of annealing must be at least 1, got 0"):
        Annealing(**{field: 0})  # type: ignore[arg-type]


def test_schedules_have_names():
    with pytest.raises(UserError, match="must be one of sigmoid, linear, got 'steep'"):
        Annealing(schedule="steep")  # type: ignore[arg-type]


def test_every_row_needs_its_hidden_values():
    known = enumerated("sbn", (2, 2))
    with pytest.raises(UserError, match=r"each of the 3 rows, got shapes \(3, 2\)"):
        Annealing().reverse(known.model, known.theta, X, (torch.zeros(3, 2),), torch.Generator())
