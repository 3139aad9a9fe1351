"""Scales that are learnt are drawn from their law given the weights: beside quadrature, and through training."""

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats

import doubly
from doubly import PRIORS, UserError
from doubly.analysis.traces import history
from doubly.core.codec import Encoded, to_tensors
from doubly.runs.build import Facts, build
from doubly.runs.config import from_dict
from doubly.runs.folder import Run
from doubly.samplers import SAMPLERS, log_concave
from doubly.samplers.learnt import LearntScale
from doubly.samplers.log_concave import Jet
from doubly.training.protocol import fit
from doubly.training.state import decode, finished, init
from doubly.training.step import step

# a KS test on draws with a fixed seed fails by chance once in 10,000 seeds
SIGNIFICANCE = 1e-4
LAW: dict[str, Callable[[LearntScale, Any], Any]] = {
    "learnt-student-t": lambda prior, scale: stats.t(prior.df, scale=scale),  # type: ignore[attr-defined]
    "learnt-normal": lambda prior, scale: stats.norm(scale=scale),
    "learnt-laplace": lambda prior, scale: stats.laplace(scale=scale),
}
LEARNT = [name for name in PRIORS if PRIORS[name].learns]
each_learnt = pytest.mark.parametrize("name", LEARNT)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cdf_given(prior: LearntScale, theta: np.ndarray, temperature: float = 1.0) -> Callable[[Any], Any]:
    """The distribution function of log s given weights, by scipy's densities on a fine grid."""
    law = LAW[next(name for name in LEARNT if type(prior) is PRIORS[name])]
    centre = math.log(np.median(np.abs(theta)) + 1e-300)
    grid = np.linspace(min(centre, math.log(prior.scale)) - 12, max(centre, math.log(prior.scale)) + 25, 100_001)
    scales = np.exp(grid)
    log_p = stats.halfcauchy(scale=prior.scale).logpdf(scales)
    log_p = log_p + sum(law(prior, scales).logpdf(each) for each in theta)
    return cumulative(grid, log_p / temperature + grid)


def cumulative(grid: np.ndarray, log_density: np.ndarray) -> Callable[[Any], Any]:
    density = np.exp(log_density - log_density.max())
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return lambda x: np.interp(x, grid, mass / mass[-1])


def test_all_that_learn_are_tested():
    assert set(LAW) == set(LEARNT) >= {"learnt-student-t", "learnt-normal", "learnt-laplace"}


# One variable


DENSITIES: dict[str, tuple[Callable[[float], Jet], Callable[[Any], Any]]] = {
    "normal": (lambda x: Jet(-(x**2) / 2, -x, -1), stats.norm.cdf),
    "narrow and far away": (lambda x: Jet(-((x - 50) ** 2) * 5e3, (50 - x) * 1e4, -1e4), stats.norm(50, 0.01).cdf),
    "log of a gamma, skewed": (
        lambda x: Jet(0.5 * x - math.exp(x), 0.5 - math.exp(x), -math.exp(x)),
        lambda x: stats.gamma(0.5).cdf(np.exp(x)),
    ),
    "logistic": (
        lambda x: Jet(-2 * math.log(math.cosh(x / 2)), -math.tanh(x / 2), -1 / (2 * math.cosh(x / 2) ** 2)),
        stats.logistic.cdf,
    ),
    "flat between steep ends": (  # x in (-10, 10), then down at a rate of 50
        lambda x: Jet(-50 * max(abs(x) - 10, 0), -50 * math.copysign(abs(x) > 10, x), 0),
        cumulative(np.linspace(-11, 11, 200_001), -50 * np.maximum(np.abs(np.linspace(-11, 11, 200_001)) - 10, 0)),
    ),
}


@pytest.mark.parametrize("start", [-3.0, 4.0])
@pytest.mark.parametrize("name", DENSITIES)
def test_draws_of_one_variable_follow_its_density(name, start):
    density, cdf = DENSITIES[name]
    draws = [log_concave.draw(density, start, source) for source in [rng()] for _ in range(3000)]
    assert stats.kstest(draws, cdf).pvalue > SIGNIFICANCE


def test_most_draws_are_accepted():
    """What a draw costs: the search from near the mode, two tangents, and 1 / acceptance values."""
    calls = 0

    def normal(x: float) -> Jet:
        nonlocal calls
        calls += 1
        return Jet(-(x**2) / 2, -x, -1)

    for source in [rng()]:
        for _ in range(1000):
            log_concave.draw(normal, 0.2, source)
    # one at the start, two aside; the hat of the three tangents is less than 1.25 times as large as the density
    assert 4000 <= calls <= 4250


# The scale given the weights


@each_learnt
def test_the_density_by_log_scale_is_the_priors(name):
    """It is log_prob at that scale, up to a constant, and its derivatives are those of finite differences."""
    prior, theta = PRIORS[name](), 0.2 * torch.randn(30, generator=rng(), dtype=torch.float64)
    jet = prior.by_log_scale(theta)

    def log_prob(log_scale: float) -> float:
        return dataclasses.replace(prior, scale=math.exp(log_scale)).log_prob(theta).item()

    for at in (-3.0, -1.5, 0.0, 2.0):
        value, first, second = jet(at)
        assert value - jet(0.0).value == pytest.approx(log_prob(at) - log_prob(0.0), rel=1e-9)
        h = 1e-4
        assert first == pytest.approx((log_prob(at + h) - log_prob(at - h)) / (2 * h), rel=1e-5, abs=1e-5)
        assert second == pytest.approx((jet(at + h).first - jet(at - h).first) / (2 * h), rel=1e-5, abs=1e-5)
        assert second < 0  # concave


@each_learnt
@pytest.mark.parametrize(
    ("n", "size", "temperature"), [(1, 1.0, 1.0), (1, 1e-3, 1.0), (3, 30.0, 1.0), (3, 0.3, 0.5), (2, 1.0, 1.5)]
)
def test_a_scale_is_drawn_from_its_law_given_the_weights(name, n, size, temperature):
    """Quadrature with scipy's densities; with so few weights the half-Cauchy and the Jacobian count as much as they."""
    prior, source = PRIORS[name](), rng(n)
    theta = size * torch.randn(n, generator=source, dtype=torch.float64)
    draws = [math.log(prior.draw_scale(theta, 1.0, source, temperature)) for _ in range(1500)]
    assert stats.kstest(draws, cdf_given(prior, theta.numpy(), temperature)).pvalue > SIGNIFICANCE


@each_learnt
def test_the_joint_law_is_invariant(name):
    """s ~ half-Cauchy, theta ~ p(theta | s), s' ~ update: (s, s') is exchangeable, and s' is half-Cauchy again.

    So log s' - log s has mean 0, within 4 standard errors; there are only two weights, of which half a weight too many
    is much.
    """
    prior, source, numbers = PRIORS[name](scale=0.7, every=1), rng(3), np.random.default_rng(4)
    before = 0.7 * np.abs(numbers.standard_cauchy(1500))
    groups = {"x.W": 2}
    after = []
    for scale in before:
        theta = torch.as_tensor(LAW[name](prior, scale).rvs(2, random_state=numbers))
        after.append(prior.update({"x.W": 1.0}, groups, theta, source)["x.W"])
    assert stats.kstest(after, stats.halfcauchy(scale=0.7).cdf).pvalue > SIGNIFICANCE
    difference = np.log(after) - np.log(before)
    assert abs(difference.mean()) < 4 * difference.std() / math.sqrt(len(difference))


@each_learnt
def test_weights_that_the_data_do_not_touch_leave_the_scale_alone(name):
    """Given s, such weights are draws of p(theta | s): with them in the group, s keeps its law given the others."""
    prior, source, numbers = PRIORS[name](), rng(5), np.random.default_rng(6)
    touched = np.array([0.4, -1.1, 0.05])
    draws = []
    for _ in range(1000):
        scale = prior.draw_scale(torch.as_tensor(touched), 1.0, source)
        idle = LAW[name](prior, scale).rvs(12, random_state=numbers)
        draws.append(math.log(prior.draw_scale(torch.as_tensor(np.concatenate([touched, idle])), 1.0, source)))
    assert stats.kstest(draws, cdf_given(prior, touched)).pvalue > SIGNIFICANCE


def test_single_precision_is_enough():
    """At 150,000 weights the log scale has a standard deviation of 0.0028; the mean of 40 draws one of 0.0005.

    The Fisher information of log s is 2 n df / (df + 3), the log density's mode is the root of its derivative.
    """
    prior, n = PRIORS["learnt-student-t"](), 150_000
    theta = torch.as_tensor(stats.t(prior.df, scale=0.05).rvs(n, random_state=np.random.default_rng(7)))
    jet, mode = prior.by_log_scale(theta), math.log(0.05)
    for _ in range(20):
        mode -= jet(mode).first / jet(mode).second
    source = rng(8)
    draws = np.log([prior.draw_scale(theta.float(), 1.0, source) for _ in range(40)])
    spread = math.sqrt((prior.df + 3) / (2 * prior.df * n))
    assert abs(draws.mean() - mode) < 4 * spread / math.sqrt(40)
    assert spread * 0.5 < draws.std() < spread * 1.5  # chi-square with 39 degrees: 0.75 to 1.25 is two deviations


def test_groups_keep_to_themselves():
    """Weights of very different size: each scale is that of its own group, and so is each gradient."""
    prior, groups = PRIORS["learnt-normal"](every=1), {"x.W": 200, "x.b": 300, "z1.b": 400}
    sizes = torch.cat([torch.full((n,), size) for n, size in zip(groups.values(), (1e-2, 1.0, 1e2), strict=True)])
    theta = sizes * torch.randn(900, generator=rng(9))
    state = prior.update(prior.init(groups), groups, theta, rng())
    # a scale's relative error with n weights is 1 / sqrt(2 n), at most 0.05; so is the sample's
    assert [state[name] for name in groups] == pytest.approx([1e-2, 1.0, 1e2], rel=0.3)
    given = prior.given(state, groups)
    expected = torch.cat(
        [-part / state[name] ** 2 for name, part in zip(groups, theta.split([200, 300, 400]), strict=True)]
    )
    torch.testing.assert_close(given.grad(theta), expected)
    torch.testing.assert_close(given.added(theta, torch.ones(900), 0.3), 1 + 0.3 * expected)
    apart = sum(
        stats.norm(scale=s).logpdf(part).sum()
        for s, part in zip(state.values(), theta.split([200, 300, 400]), strict=True)
    )
    assert given.log_prob(theta.double()).item() == pytest.approx(apart, rel=1e-6)


@each_learnt
@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, 1e30])
def test_weights_that_have_not_moved_or_have_diverged_say_nothing(name, value):
    """All weights 0: p(s | theta) is improper, and the scale waits. A chain that diverged is told by its weights."""
    prior = PRIORS[name](every=1)
    assert prior.update({"x.b": 0.7}, {"x.b": 4}, torch.full((4,), value), rng()) == {"x.b": 0.7}


@each_learnt
@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_very_small_and_very_large_weights_have_their_scale(name, size):
    """In single precision, from a start that is far away; with 100 weights the scale is right within a factor of 2."""
    prior, theta = PRIORS[name](), size * torch.randn(100, generator=rng(2))
    assert size / 2 < prior.draw_scale(theta, 1.0, rng()) < 2 * size


def test_a_density_without_an_end_is_refused():
    with pytest.raises(ArithmeticError, match="falls on both sides"):
        log_concave.draw(lambda x: Jet(0.0, 0.0, 0.0), 0.0, rng())


def test_scales_are_drawn_once_in_so_many_steps():
    """A share of 1 / 4 of 2000 updates, with a standard error of 0.01."""
    prior, theta, source = PRIORS["learnt-normal"](every=4), torch.ones(2), rng()
    state = {"x.b": 0.7}
    moved = [prior.update(state, {"x.b": 2}, theta, source) != state for _ in range(2000)]
    assert np.mean(moved) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize(("sampler", "expected"), [("sgnht", 0.1 / (0.1 + 0.9 * 0.05)), ("sgnht-split", 1.0)])
def test_a_scale_follows_what_a_sampler_does_to_weights_without_data(sampler, expected):
    """100 weights are held at a mean square of 1, 900 are moved by a sampler under their prior alone.

    The paper's thermostat with friction 0.1 gives them a variance of 0.95 s^2 (tests/test_samplers.py derives it), so
    that s^2 = 0.1 + 0.9 * 0.95 s^2. Twenty blocks give the standard error of log s^2 (t with 19 degrees: 5 of them are
    1e-4); a discretisation error of order eta, 0.01 at most, and one of 1 / n are added.
    """
    prior, moved, source = PRIORS["learnt-normal"](scale=1.0, every=1), SAMPLERS.make(sampler, friction=0.1), rng()
    held = torch.randn(100, generator=rng(1))
    held /= held.square().mean().sqrt()
    state, scale, found, eta = moved.init(torch.randn(900, generator=source), source), 1.0, [], 1e-3
    for i in range(25_000):
        state = moved.ask(state, eta, source)
        state = moved.tell(state, -state.theta / scale**2, eta, source)
        if i % 20 == 0:
            scale = prior.draw_scale(torch.cat([held, state.theta]), scale, source)
            found += [2 * math.log(scale)] if i >= 5_000 else []
    blocks = np.reshape(found, (20, -1)).mean(1)
    error = blocks.std(ddof=1) / math.sqrt(20)
    assert abs(blocks.mean() - math.log(expected)) < 5 * error + 0.02
    assert error < 0.03


# Training


def tiny(prior: str, **settings: Any) -> Any:
    fields = {"hidden": (), "model": "sbn", "theta_steps": 1, "batch": 9, "sampler": "sgnht-split", "prior": prior}
    return build(from_dict(fields | settings), Facts(3, "binary", (3,)))


@pytest.mark.parametrize("name", ["learnt-student-t", "learnt-normal"])
def test_weights_and_scale_have_the_joint_posterior_of_quadrature(name):
    """Three biases of three columns, one scale: training takes steps on all rows, without noise of the gradient.

    p(s | x) is half-Cauchy times the product over columns of the integral of p(x_j | b_j) p(b_j | s), on a grid. The
    chain is cut into 20 blocks; their means give the standard error (t with 19 degrees: 5 of them are 1e-4). The
    discretisation adds a bias of the order of eta, 0.01.
    """
    ones, n = np.array([9, 8, 2]), 9
    train = torch.zeros(n, 3)
    for column, count in enumerate(ones):
        train[:count, column] = 1
    chosen = tiny(f"{name}:scale=1,every=1", step=0.03 * n)
    b, log_s = np.linspace(-60, 60, 24_001), np.linspace(-7, 12, 400)
    log_lik = ones[:, None] * special.log_expit(b) + (n - ones[:, None]) * special.log_expit(-b)
    scale = np.exp(log_s)[:, None]
    density = LAW[name](chosen.prior, scale).pdf(b)
    evidence = np.stack([(density * np.exp(each)).sum(1) for each in log_lik], 1)
    means = np.stack([(density * np.exp(each) * np.tanh(b / 4)).sum(1) for each in log_lik], 1) / evidence
    weight = np.exp(log_s - np.log1p(np.exp(2 * log_s))) * evidence.prod(1)
    weight /= weight.sum()
    exact = [*(weight @ means), weight @ np.tanh(log_s), weight @ np.tanh(log_s) ** 2]

    state, found = init(chosen, train), []
    for i in range(10_000):
        state = step(chosen, state, train, torch.arange(n), n)
        if i >= 2_000:
            s = math.tanh(math.log(state.prior["x.b"]))
            found.append([*torch.tanh(state.theta.theta / 4).tolist(), s, s**2])
    blocks = np.array(found).reshape(20, -1, 5).mean(1)
    error = blocks.std(0, ddof=1) / math.sqrt(20)
    assert (np.abs(blocks.mean(0) - exact) < 5 * error + 0.01).all(), (blocks.mean(0), exact, error)


def test_scales_stand_still_while_adam_warms_up():
    """With an optimiser both the weights and their scale would go to 0; the sampler then moves them."""
    chosen = tiny("learnt-student-t:scale=0.6,every=1", warmup=2, epochs=4, collect=1)
    train = torch.randint(2, (18, 3), generator=rng(1), dtype=torch.uint8)
    seen = [state.prior["x.b"] for state, record in fit(chosen, train, train, init(chosen, train)) if record]
    assert seen[:2] == [0.6, 0.6]
    assert len({0.6, *seen[2:]}) == 3


def test_scales_feel_the_temperature_of_the_sampler():
    """At temperature 1/2 the scale is drawn from its law squared: beside quadrature, with the weights held."""
    chosen = tiny("learnt-normal:scale=1,every=1", sampler="sgld:temperature=0.5", step=1e-12)
    train = torch.ones(9, 3)
    state, draws = init(chosen, train), []
    state = state._replace(theta=state.theta._replace(theta=torch.tensor([0.5, -1.0, 2.0])))
    for _ in range(1000):
        state = step(chosen, state, train, torch.arange(9), 9)
        draws.append(math.log(state.prior["x.b"]))
    cdf = cdf_given(chosen.prior, np.array([0.5, -1.0, 2.0]), 0.5)
    assert stats.kstest(draws, cdf).pvalue > SIGNIFICANCE


SETTINGS: dict[str, Any] = {
    "data": "bars", "hidden": (4,), "theta_steps": 2, "warmup": 1, "batch": 500, "epochs": 5, "collect": 2,
    "prior": "learnt-student-t:df=3,every=2", "threads": 1, "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    doubly.fit(folder, **SETTINGS)
    return Run(folder)


def test_a_run_stopped_within_an_epoch_resumes_to_the_same_bits(whole, tmp_path):
    data = whole.data()
    with Run.create(tmp_path / "parts", whole.config, data) as run:
        method = build(run.config, data)
    train, valid = torch.as_tensor(data.train), torch.as_tensor(data.valid)
    state = init(method, train)
    while not finished(method, state):
        for _, (after, record) in zip(range(3), fit(method, train, valid, state), strict=False):  # 4 and an end
            state = after
            if record:
                run.log(record._asdict() | {"seconds": 0})
        run.save(state)
        restored = run.restore(method)
        assert restored is not None
        state = restored
    expected = whole.restore(build(whole.config, data))
    assert expected is not None
    assert torch.equal(state.theta.theta, expected.theta.theta)
    assert state.prior == expected.prior
    assert len(set(state.prior.values()) | {0.3}) == 4  # three groups, and none where it started


def test_scales_are_recorded_and_traced(whole):
    records = whole.metrics()
    assert [list(record["prior"]) for record in records] == [["x.W", "x.b", "z1.b"]] * 5
    assert records[0]["prior"] == {"x.W": 0.3, "x.b": 0.3, "z1.b": 0.3}  # the warm-up
    assert records[-1]["prior"] == whole.restore(build(whole.config, whole.data())).prior
    assert history(whole).values["scale_x.W"].tolist() == [record["prior"]["x.W"] for record in records]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda numbers: numbers.pop("prior.x.W"), r"it lacks prior\.x\.W"),
        (lambda numbers: numbers.update({"prior.x.W": -1.0}), "scale must be positive"),
        (lambda numbers: numbers.update({"prior.other": 1.0}), r"it has prior\.other"),
    ],
)
def test_a_checkpoint_without_proper_scales_is_refused(whole, change, message):
    method = build(whole.config, whole.data())
    state = whole.restore(method)
    encoded = to_tensors(state)
    numbers = json.loads(json.dumps(encoded.numbers))
    change(numbers)
    with pytest.raises((KeyError, TypeError, UserError), match=message):
        decode(method, Encoded(encoded.tensors, numbers), len(whole.data().train))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "adam", "prior": "learnt-normal"}, "adam optimises"),
        ({"phi_prior": "learnt-normal"}, "the proposal is optimised"),
        ({"sampler": "sgld:temperature=3", "prior": "learnt-laplace"}, "temperature below 3"),
        ({"prior": "learnt-student-t:every=0"}, "every must be positive"),
        ({"prior": "learnt-student-t:df=0"}, "df must be positive"),
    ],
)
def test_what_cannot_be_learnt_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        build(from_dict({"hidden": (2,)} | settings), Facts(3, "binary", (3,)))


@pytest.mark.parametrize("name", [name for name in PRIORS if name not in LEARNT])
def test_a_prior_without_a_state_is_itself(name):
    prior, groups, source = PRIORS[name](), {"x.b": 3}, rng()
    before = source.get_state()
    assert prior.init(groups) == prior.stats({}) == {}
    assert prior.given({}, groups) is prior
    assert prior.update({}, groups, torch.ones(3), source) == {}
    assert torch.equal(source.get_state(), before)
