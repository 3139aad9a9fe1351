"""Completions: every move leaves the enumerated law as it is, and the chain forgets where it began."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from doubly import LAYERS, Posterior, UserError
from doubly.latents import NAIS
from doubly.latents.completions import ImputeConfig, Moments, _move_latents, _move_missing, impute, log_observed
from doubly.samplers import SGNHT, Adam
from doubly.samplers.priors import Normal
from doubly.training.method import Method
from exact import BINARY, MISSING, MISSING_MODELS, D, MissingCase, assert_law, bits, numbers, random_params
from exact import ROW as X


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MISSING_MODELS)
def test_one_sweep_from_the_law_stays_in_it(name, masked):
    """20,000 exact draws of (x_missing, z) given x_observed, moved once, have the law of x_missing that they had.

    Two candidates, so that the present state is often kept and a wrong weight would show.
    """
    case, n = MissingCase(name, masked), 20_000
    joint = case.log_joint()[case.fits()]
    rng = torch.Generator().manual_seed(2)
    drawn = torch.multinomial(joint.flatten().softmax(0), n, replacement=True, generator=rng)
    x = bits(4)[case.fits()][drawn // joint.shape[1]][:, None]
    hidden: tuple[Tensor, ...] = (case.z[drawn % joint.shape[1]][:, None],) if case.model.layers[1:] else ()
    x, *moved = _move_latents(case.pair, x, MISSING, hidden, 2, rng)
    hidden = tuple(moved)
    x = _move_missing(case.pair, x, MISSING, hidden, 2, rng)
    assert (x == X)[..., ~MISSING].all()
    assert_law(numbers(x), case.target())
    if hidden:  # and the law of z beside it
        both = numbers(x) * 8 + (hidden[0][:, 0] @ torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64)).long().numpy()
        assert_law(both, joint.flatten().softmax(0))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", MISSING_MODELS)
def test_the_chain_forgets_where_it_began(name, masked):
    """5,000 chains that start with the wrong value almost surely end with the right law."""
    case = MissingCase(name, masked)
    start = Moments(torch.full((4,), 0.01, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    completed = impute(
        case.pair,
        X[None],
        MISSING[None],
        start,
        5000,
        ImputeConfig(sweeps=40),
        torch.Generator().manual_seed(3),
    )
    assert_law(numbers(completed.rows), case.target())
    chance = bits(4)[case.fits()][:, MISSING].T @ case.target()  # that each missing entry is 1
    # 5,000 chains have a standard error of at most 0.5 / sqrt(5000) = 0.007; averaging over sweeps makes it no larger
    np.testing.assert_allclose(completed.expected.mean(0)[0, MISSING].numpy(), chance.numpy(), atol=5 * 0.0071)


@pytest.mark.parametrize("name", MISSING_MODELS)
def test_what_is_observed_has_the_enumerated_density(name):
    """400 repetitions of 500 draws: their mean weight is p(x_observed) within 4 of its standard errors."""
    case = MissingCase(name)
    exact = (
        case.log_joint()[case.fits()].logsumexp((0, 1))
        if case.z.shape[1]
        else case.log_joint()[case.fits()].logsumexp(0)
    )
    guesses = torch.bernoulli(
        torch.full((3, 400, 4), 0.5, dtype=torch.float64), generator=torch.Generator().manual_seed(4)
    )
    x, missing = X.expand(400, 4), MISSING.expand(400, 4)
    found = log_observed(case.pair, x, missing, guesses, 500, torch.Generator().manual_seed(5)).exp()
    assert abs(found.mean() - exact.exp()) <= 4 * found.std() / math.sqrt(400)
    assert found.std() < 0.3 * found.mean(), "or the test sees nothing"


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("width", [0, 3])
def test_cells_add_up_to_the_log_density(name, width):
    if name == "normal" and width:
        pytest.skip("a normal layer takes nothing")
    layer = LAYERS[name](width, D)
    params, given = random_params(layer), torch.randn(5, width, generator=torch.Generator().manual_seed(0)).double()
    value = layer.draw(params, given, torch.Generator().manual_seed(1)).value
    torch.testing.assert_close(layer.cells(params, value, given).sum(-1), layer.log_prob(params, value, given))


@pytest.mark.parametrize("name", BINARY)
def test_imputing_everything_is_drawing(name):
    """With every entry missing, `impute` draws from the layer; with none, it gives the value and its log density."""
    layer = LAYERS[name](3, D, **({"order": 5} if name in ("darn", "nade") else {}))
    params, given = random_params(layer), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    nothing_there = torch.ones(20_000, D, dtype=torch.bool)
    drawn = layer.impute(
        params, torch.zeros(20_000, D).double(), nothing_there, given, torch.Generator().manual_seed(6)
    )
    counts = np.bincount((drawn.value @ torch.tensor([8.0, 4, 2, 1]).double()).long().numpy(), minlength=16)
    law = layer.log_prob(params, bits(D), given).exp().numpy()
    assert (
        stats.chisquare(counts[law > 1e-3], law[law > 1e-3] / law[law > 1e-3].sum() * counts[law > 1e-3].sum()).pvalue
        > 1e-4
    )
    assert (drawn.log_prob == 0).all()
    kept = layer.impute(params, bits(D), ~nothing_there[:16], given, torch.Generator().manual_seed(6))
    assert torch.equal(kept.value, bits(D))
    torch.testing.assert_close(kept.log_prob, layer.log_prob(params, bits(D), given))


def posterior(case: MissingCase) -> Posterior:
    method = Method(case.model, case.proposal, Normal(1.0), SGNHT(), NAIS(), Adam(), NAIS())
    theta, phi = case.theta.float(), case.phi.float()
    train = case.model.sample(theta, 200, torch.Generator().manual_seed(0))[0].byte()
    return Posterior(method, phi, theta, theta, [theta, theta], lambda: train, refit_passes=2)


def test_a_posterior_imputes_and_says_how_sure_it_is():
    case = MissingCase("sbn")
    x = torch.where(MISSING, math.nan, X)[None].repeat(3, 1).numpy()
    x[1] = [1, 0, 1, 1]  # nothing is missing
    x[2] = math.nan  # everything is
    found = posterior(case).impute(x, draws=400, how=ImputeConfig(sweeps=20), seed=1)
    assert found.completions.shape == (400, 3, 4)
    assert found.completions.dtype == np.uint8
    assert (found.completions[:, 1] == x[1]).all()
    assert (found.spread[1] == 0).all()
    assert (found.spread[0] > 0).tolist() == MISSING.tolist()
    assert_law(numbers(torch.as_tensor(found.completions[:, 0])), case.target())
    marginal = case.log_joint().logsumexp(1).exp() @ bits(4)
    np.testing.assert_allclose(found.mean[2], marginal.numpy(), atol=5 * 0.5 / math.sqrt(400))


def test_the_conditional_density_is_the_enumerated_one():
    """log p(x_missing | x_observed) = log p(x) - log p(x_observed), both by 20,000 draws: a few hundredths off at most.

    Each estimate has a standard error of 1 / sqrt(effective draws), and some thousands of the draws are effective.
    """
    case = MissingCase("sbn")
    post, rows = posterior(case), bits(4)[case.fits()].numpy()
    missing = MISSING.expand(4, 4).numpy()
    completions = post.impute(np.where(missing, np.nan, rows), draws=8, how=ImputeConfig(sweeps=5)).completions
    found = post.log_conditional(rows, missing, completions, draws=20_000)
    np.testing.assert_allclose(found, case.target().log().numpy(), atol=0.1)


def test_the_papers_way_is_there_and_is_not_the_law():
    """Without correction, a proposal that knows nothing leads the chain astray: the law is missed by far."""
    case = MissingCase("sbn")
    start = Moments(torch.full((4,), 0.5, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    how = ImputeConfig(method="paper", sweeps=40)
    completed = impute(case.pair, X[None], MISSING[None], start, 5000, how, torch.Generator().manual_seed(3))
    counts = np.bincount(numbers(completed.rows), minlength=4)
    assert stats.chisquare(counts, case.target().numpy() * 5000).pvalue < 1e-6


@pytest.mark.parametrize("wrong", [{"sweeps": 0}, {"candidates": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        ImputeConfig(**wrong)
