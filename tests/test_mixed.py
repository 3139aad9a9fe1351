"""The mixed data layer: a true density of real, binary, category and ordinal columns, with missing values in any."""

import itertools
import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from scipy import stats

from doubly import LAYERS, Chain, UserError
from doubly.analysis.laws import LeftOut
from doubly.analysis.laws import layers as laws
from doubly.latents import NAIS, Batch, LikelihoodConfig, Pair, log_likelihood
from doubly.latents.completions import ImputeConfig, Moments, impute
from doubly.layers import Mixed
from doubly.layers.layer import Layer
from doubly.posterior.rows import RowFormat
from doubly.runs.build import Facts, build
from doubly.runs.config import from_dict
from exact import random_params

# every layout linear and from nothing; the other options where they matter
SPECS = {"mixed": "", "mixed:widths=5": "b-r-c3", "mixed:noise=student-t": "2r", "mixed:spread=given,floor=0.3": "o3-r"}
EACH = [
    pytest.param(layer, id=f"{spec}-{what}")
    for spec, columns in SPECS.items()
    for what, layer in laws.cases(spec).items()
    if not columns or what == f"n_in=3, columns={columns}"
]


def made(columns: str, n_in: int = 0, **options) -> Mixed:
    width = sum(int(part.lstrip("co")) if part[0] in "co" else 1 for part in columns.split("-"))
    return Mixed(n_in, width, columns=columns, **options)


@pytest.mark.parametrize("law", laws.LAWS.values(), ids=lambda law: law.__name__)
@pytest.mark.parametrize("layer", EACH)
def test_laws(layer: Layer, law):
    """The laws of every layer: draw = density, enumeration, gradients, missing values; linear and perceptron."""
    with suppress(LeftOut):
        law(layer)


# Each kind of column against its formula


def test_kinds_are_what_they_are_called():
    """log_prob of single columns against SciPy and by hand."""
    given = torch.zeros(0, dtype=torch.float64)

    def log_prob(layer, params, *value):
        tensors = {name: torch.tensor(params.get(name, []), dtype=torch.float64) for name in layer.shapes()}
        tensors["W_scores"] = torch.zeros(layer.shapes()["W_scores"], dtype=torch.float64)
        return layer.log_prob(tensors, torch.tensor(value, dtype=torch.float64), given).item()

    sigma = math.sqrt(0.01**2 + math.exp(2 * -0.5))
    real = {"b_scores": [0.7], "b_sigma": [-0.5]}
    assert log_prob(made("r"), real, 1.3) == pytest.approx(stats.norm.logpdf(1.3, 0.7, sigma), abs=1e-12)
    robust = made("r", noise="student-t", df=3.0)
    assert log_prob(robust, real, 1.3) == pytest.approx(stats.t.logpdf(1.3, 3, 0.7, sigma), abs=1e-12)
    assert log_prob(made("b"), {"b_scores": [0.7]}, 1) == pytest.approx(-math.log1p(math.exp(-0.7)), abs=1e-12)
    scores = [0.1, 2.0, -1.0]
    total = math.log(sum(map(math.exp, scores)))
    assert log_prob(made("c3"), {"b_scores": scores}, 0, 0, 1) == pytest.approx(-1.0 - total, abs=1e-12)

    def sigmoid(a):
        return 1 / (1 + math.exp(-a))

    cuts = [-0.3, -0.3 + math.exp(0.2)]
    middle = sigmoid(cuts[1] - 0.4) - sigmoid(cuts[0] - 0.4)
    ordinal = {"b_scores": [0.4], "b_cuts": [-0.3, 0.2]}
    assert log_prob(made("o3"), ordinal, 1, 0, 0) == pytest.approx(math.log(sigmoid(cuts[0] - 0.4)), abs=1e-12)
    assert log_prob(made("o3"), ordinal, 0, 1, 0) == pytest.approx(math.log(middle), abs=1e-12)
    assert log_prob(made("o3"), ordinal, 0, 0, 1) == pytest.approx(math.log(1 - sigmoid(cuts[1] - 0.4)), abs=1e-12)


@pytest.mark.parametrize("columns", ["r-b-c3-o4", "o4-c3-b-r", "c3-r-o4-b"])
def test_the_start_has_the_means_of_the_data(columns):
    """From width 0, `init` gives the law whose mean is that of the data."""
    layer = made(columns)
    shares = {"r": [0.3], "b": [0.2], "c": [0.5, 0.3, 0.2], "o": [0.1, 0.2, 0.3, 0.4]}
    mean = torch.tensor([share for part in columns.split("-") for share in shares[part[0]]])
    params = layer.init(torch.Generator().manual_seed(0), mean)
    torch.testing.assert_close(layer.mean(params, mean, torch.zeros(0)), mean, rtol=0, atol=1e-5)


def test_levels_that_were_never_seen_stay_possible():
    layer = made("c3-o3")
    params = layer.init(torch.Generator(), torch.tensor([1.0, 0, 0, 0, 1, 0]))
    mean = layer.mean(params, torch.zeros(6), torch.zeros(0))
    assert (mean > 0.001).all()
    torch.testing.assert_close(mean.view(2, 3).sum(1), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_densities_and_gradients_are_finite_when_saturated(dtype):
    """Scores of ±50, and cut points as close as they come: no logarithm of 0."""
    layer = made("r-b-c3-o4")
    for sign in (-50.0, 50.0):
        params = {name: torch.full(shape, sign, dtype=dtype).requires_grad_() for name, shape in layer.shapes().items()}
        for bit, level, grade in itertools.product(range(2), range(3), range(4)):
            value = torch.zeros(9, dtype=dtype)
            value[1], value[2 + level], value[5 + grade] = bit, 1, 1
            log_prob = layer.log_prob(params, value, torch.zeros(0, dtype=dtype))
            assert log_prob.isfinite()
            grads = torch.autograd.grad(log_prob, list(params.values()), allow_unused=True)
            assert all(grad is None or grad.isfinite().all() for grad in grads)


# What is missing


@pytest.mark.parametrize("n_missing", [1, 2, 3])
def test_a_part_of_a_column_may_be_missing(n_missing):
    """A row that says what a category is not: the levels left are summed over, and drawn among."""
    layer = made("c3-b")
    params = random_params(layer)
    row = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    row[:n_missing] = math.nan
    given = torch.zeros(0, dtype=torch.float64)
    probability = layer.mean(params, row, given)
    exact = probability[:n_missing].sum().log() + probability[3].log()
    torch.testing.assert_close(layer.log_prob_observed(params, row, given), exact)
    drawn = layer.impute(params, row.expand(500, -1), row.isnan().expand(500, -1), given, torch.Generator()).value
    assert (drawn[:, :3].sum(1) == 1).all()
    assert (drawn[:, n_missing:3] == 0).all()


class Small:
    """A table of a bit, a category and a grade over two binary latents: 24 rows, all enumerated."""

    model = Chain.build(["mixed:columns=b-c3-o4", "sbn"], data=8, hidden=(2,))
    proposal = Chain.build_proposal("sbn", data=8, hidden=(2,), masked=True)
    theta = torch.cat(
        [value.flatten() for i, layer in enumerate(model.layers) for value in random_params(layer, i).values()]
    )
    phi = 0.3 * torch.randn(proposal.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = laws.bits(2)
    rows = torch.stack([
        torch.cat([torch.tensor([float(bit)]), torch.eye(3)[level], torch.eye(4)[grade]])
        for bit, level, grade in itertools.product(range(2), range(3), range(4))
    ]).double()  # fmt: skip

    @property
    def pair(self) -> Pair:
        return Pair(self.model, self.theta, self.proposal, self.phi)

    def law(self, theta=None):
        values = (self.rows[:, None], self.z.expand(24, 4, 2))
        return self.model.log_prob(self.theta if theta is None else theta, values).logsumexp(1)


def test_a_small_table_sums_to_one_and_its_bound_finds_it():
    """The density by enumeration of rows and latents; the bound with K draws within five standard errors of it.

    The relative variance of a weight is sum_z p(z | x)^2 / q(z | x) - 1, by enumeration; of their mean, 1 / K of that.
    """
    small, draws = Small(), 20_000
    law = small.law()
    torch.testing.assert_close(law.exp().sum(), torch.ones((), dtype=torch.float64))
    joint = small.model.log_prob(small.theta, (small.rows[:, None], small.z.expand(24, 4, 2)))
    log_q = small.proposal.log_prob(small.phi, (small.z.expand(24, 4, 2),), small.rows[:, None])
    variance = (2 * joint - log_q).logsumexp(1).sub(2 * law).exp() - 1
    found = log_likelihood(small.pair, small.rows, LikelihoodConfig(draws=draws, seed=0)).log_likelihood
    assert ((found - law).abs() < 5 * (variance / draws).sqrt()).all()


def test_gradients_of_incomplete_rows_approach_the_enumerated_ones():
    """40 calls of 2,000 draws: within five standard errors and the bias of 1 / 2,000 that importance sampling has."""
    small = Small()
    row = small.rows[13].clone()
    row[1:4] = math.nan
    fits = (small.rows[:, 0] == row[0]) & (small.rows[:, 4:] == row[4:]).all(1)
    theta = small.theta.clone().requires_grad_()
    (exact,) = torch.autograd.grad(small.law(theta)[fits].logsumexp(0), theta)
    rng = torch.Generator().manual_seed(3)
    grads = []
    for _ in range(40):
        batch = Batch(small.pair, row[None], torch.arange(1), {}, rng)
        grad = NAIS(2000)(batch, "theta").theta_grad
        assert grad is not None
        grads.append(grad)
    found = torch.stack(grads)
    error = found.std(0) / math.sqrt(40)
    assert ((found.mean(0) - exact).abs() <= 5 * error + 1e-3).all()


def test_completions_follow_the_enumerated_law():
    """20,000 chains for a row without its category: chi-square against p(category | rest), at significance 1e-4."""
    small = Small()
    row = small.rows[13]
    missing = torch.tensor([False, True, True, True, False, False, False, False])
    fits = (small.rows[:, 0] == row[0]) & (small.rows[:, 4:] == row[4:]).all(1)
    law = small.law()[fits].softmax(0)
    start = Moments(torch.full((8,), 0.4), torch.full((8,), 0.3))
    found = impute(
        small.pair, row[None], missing[None], start, 20_000, ImputeConfig(sweeps=6), torch.Generator().manual_seed(0)
    )
    assert (found.rows[:, 0, [0, 4, 5, 6, 7]] == row[[0, 4, 5, 6, 7]]).all()
    counts = found.rows[:, 0, 1:4].sum(0)
    assert counts.sum() == 20_000
    assert stats.chisquare(counts, 20_000 * law).pvalue > 1e-4
    torch.testing.assert_close(found.expected.mean(0)[0, 1:4], law, atol=0.01, rtol=0)


@pytest.mark.parametrize("above", ["sbn", "mlp:widths=4", "normal", "gaussian:widths=4,normal"])
def test_it_stands_over_binary_and_real_latents(above):
    """A step of the estimator on incomplete rows gives finite gradients for every stack."""
    names = f"mixed:columns=r-b-c3-o4,{above}"
    hidden = (3,) * (1 + above.count(",normal"))
    model = Chain.build(names, data=9, hidden=hidden)
    latent = "sbn" if above[0] in "sm" else "gaussian:widths=4"
    proposal = Chain.build_proposal(latent, data=9, hidden=hidden, masked=True)
    rng = torch.Generator().manual_seed(0)
    theta, phi = model.init(rng), proposal.init(rng)
    x = model.sample(theta, 20, rng)[0]
    x[:5, 2:5] = math.nan
    x[5:9, 0] = math.nan
    found = NAIS(5)(Batch(Pair(model, theta, proposal, phi), x, torch.arange(20), {}, rng))
    for grad in (found.theta_grad, found.phi_grad):
        assert grad is not None
        assert grad.isfinite().all()
        assert grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("mixed:columns=3r", "3 entries, but rows have 4"),
        ("mixed:columns=9999999r", "more than the 4"),
        ("mixed:columns=c1-3r", "at least 2 levels"),
        ("mixed:columns=x4", "written as in"),
        ("mixed:columns=4r-", "written as in"),
        ("mixed:noise=cauchy", "normal or student-t"),
        ("mixed:df=1", "more than 1"),
        ("mixed:floor=0.0", "between 0 and 1"),
        ("mixed:spread=wide", "column or given"),
    ],
)
def test_what_makes_no_sense_is_refused(spec, said):
    with pytest.raises(UserError, match=said):
        LAYERS.make(spec, 2, 4)


def test_rows_that_cannot_be_are_refused():
    """Two levels at once, none, a grade of 0.5, a bit of 2: each is named; an incomplete column is not."""
    layer = made("r-b-c3")
    form = RowFormat(layer, True, torch.device("cpu"))
    fine = np.array([[2.5, 1, 0, 1, 0], [np.nan, np.nan, np.nan, np.nan, np.nan], [0, 0, 0, np.nan, np.nan]])
    assert form.tensor(fine).shape == (3, 5)
    for column, row in {2: [0, 0, 0, 0, 0], 1: [0, 2, 1, 0, 0], 3: [0, 0, 1, 0.5, 0]}.items():
        with pytest.raises(UserError, match=f"row 0, column {column} is"):
            form.tensor(np.array([row], dtype=float))
    with pytest.raises(UserError, match="row 1, column 2 is"):
        form.tensor(np.array([fine[0], [0, 0, 1, 1, 0]]))


def test_it_is_for_data_only():
    with pytest.raises(UserError, match="mixed, which is for data"):
        build(from_dict({"model": "sbn,mixed", "hidden": (3,), "proposal": "mixed"}), Facts(4, "binary", (4,)))
