"""Completions: every move leaves the enumerated law as it is, and the chain forgets where it began."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from doubly import LAYERS, Posterior, UserError
from doubly.latents import NAIS
from doubly.latents.completions import ImputeConfig, Moments, _move_latents, _move_missing, impute, log_observed
from doubly.posterior.imputation import allocate, spaced
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
    everything = torch.ones(20_000, D, dtype=torch.bool)
    drawn = layer.impute(params, torch.zeros(20_000, D).double(), everything, given, torch.Generator().manual_seed(6))
    counts = np.bincount((drawn.value @ torch.tensor([8.0, 4, 2, 1]).double()).long().numpy(), minlength=16)
    law = layer.log_prob(params, bits(D), given).exp().numpy()
    assert (
        stats.chisquare(counts[law > 1e-3], law[law > 1e-3] / law[law > 1e-3].sum() * counts[law > 1e-3].sum()).pvalue
        > 1e-4
    )
    assert (drawn.log_prob == 0).all()
    there = layer.impute(params, bits(D), ~everything[:16], given, torch.Generator().manual_seed(6))
    assert torch.equal(there.value, bits(D))
    torch.testing.assert_close(there.log_prob, layer.log_prob(params, bits(D), given))


def another(case: MissingCase, seed: int = 42) -> MissingCase:
    """The same with other weights, under which the observed values are three times as likely."""
    other = copy.copy(case)
    params = [random_params(layer, seed + i) for i, layer in enumerate(case.model.layers)]
    other.theta = torch.cat([value.flatten() for each in params for value in each.values()])
    return other


def log_evidence(case: MissingCase) -> Tensor:
    """log p(x_observed)."""
    return case.log_joint()[case.fits()].flatten().logsumexp(0)


def together(cases: list[MissingCase]) -> Tensor:
    """p(x_missing | x_observed) of the ensemble, over the four values that there are."""
    joint = torch.stack([case.log_joint().logsumexp(1)[case.fits()] for case in cases])
    return joint.logsumexp(0).softmax(0)


def posterior(*cases: MissingCase, **fields: Any) -> Posterior:
    """An ensemble of these."""
    case = cases[0]
    method = Method(case.model, case.proposal, Normal(1.0), SGNHT(), NAIS(), Adam(), NAIS())
    thetas, phi = [each.theta.float() for each in cases], case.phi.float()
    train = case.model.sample(thetas[0], 200, torch.Generator().manual_seed(0))[0].byte()
    how: dict[str, Any] = {"refit_passes": 0 if case.proposal.masked else 2} | fields
    return Posterior(method, phi, thetas[0], thetas[0], thetas, lambda: train, **how)


ESTIMATES = pytest.mark.parametrize("estimator", ["draws", "annealing"])


def test_the_members_differ():
    """Or the tests below could not tell an ensemble from one of its members, or shares from halves."""
    one, two = MissingCase("sbn"), another(MissingCase("sbn"))
    mixed, halves = together([one, two]), (one.target() + two.target()) / 2
    assert abs(log_evidence(one) - log_evidence(two)) > 1
    for wrong in (one.target(), two.target(), halves):
        assert (wrong - mixed).abs().max() > 0.1


@ESTIMATES
@pytest.mark.parametrize("masked", [False, True])
def test_an_ensemble_imputes_by_the_shares_of_its_members(masked, estimator):
    """A member counts by p(x_observed | theta_m), not equally: 4,000 completions have the enumerated law.

    The error of log p(x_observed | theta_m), of 1,000 draws or of 100 temperatures of one chain, is 0.1 at most in
    these small models, which moves a share by 0.1 * share (1 - share) < 0.02; the counts of 4,000 completions have a
    standard error below 0.008, and 4 of these are allowed beside it. Halves would be off by 0.16.
    """
    cases = [MissingCase("sbn", masked)]
    cases.append(another(cases[0]))
    x = torch.where(MISSING, math.nan, X)[None].numpy()
    found = posterior(*cases, estimator=estimator).impute(x, draws=4000, how=ImputeConfig(sweeps=20), seed=1)
    counts = np.bincount(numbers(torch.as_tensor(found.completions[:, 0])), minlength=4) / 4000
    np.testing.assert_allclose(counts, together(cases).numpy(), atol=0.02 + 4 * 0.008)
    ones = bits(4)[cases[0].fits()][:, MISSING].T @ together(cases)
    np.testing.assert_allclose(found.mean[0, MISSING.numpy()], ones.numpy(), atol=0.02 + 4 * 0.008)


def test_with_nothing_observed_every_member_counts_alike():
    cases = [MissingCase("sbn"), another(MissingCase("sbn"))]
    found = posterior(*cases, estimator="draws").impute(np.full((1, 4), np.nan), 2000, ImputeConfig(sweeps=10), seed=2)
    marginals = torch.stack([case.log_joint().logsumexp(1).exp() @ bits(4) for case in cases])
    np.testing.assert_allclose(found.mean[0], marginals.mean(0).numpy(), atol=4 * 0.5 / math.sqrt(2000))
    assert (marginals[0] - marginals[1]).abs().max() > 0.3


def test_members_are_taken_from_all_chains():
    """With one completion for two chains of one member each it is the later one; with two, one of each."""
    cases = [MissingCase("sbn"), another(MissingCase("sbn"))]
    chain = posterior(cases[0], others=[posterior(cases[1])], estimator="draws")
    x = np.where(MISSING, np.nan, X)[None].repeat(300, 0)
    for draws, law in ((1, cases[1].target()), (2, together(cases))):
        found = chain.impute(x, draws=draws, how=ImputeConfig(sweeps=20), seed=3).completions
        counts = np.bincount(numbers(torch.as_tensor(found)), minlength=4) / (300 * draws)
        # a standard error of at most 0.5 / sqrt(completions), and 4 of them, beside 0.02 as above
        np.testing.assert_allclose(counts, law.numpy(), atol=4 * 0.5 / math.sqrt(300 * draws) + 0.02)
    assert (together(cases) - cases[1].target()).abs().max() > 0.12, "or the test sees nothing"
    assert [spaced(list(range(6)), n) for n in (1, 2, 3, 6, 9)] == [[3], [1, 4], [1, 3, 5], [*range(6)], [*range(6)]]


def test_completions_are_allocated_by_shares():
    """Each member's number is its share times the draws, rounded up or down; any one completion is a draw by shares.

    Over 20,000 rows the frequency of a member in one place has a standard error of 0.5 / sqrt(20,000) = 0.0035.
    """
    share = torch.tensor([0.52, 0.0, 0.13, 0.35], dtype=torch.float64)
    found = allocate(share.log()[:, None].expand(4, 20_000), 7, torch.Generator().manual_seed(0))
    assert found.shape == (7, 20_000)
    counts = torch.stack([(found == member).sum(0) for member in range(4)])
    assert ((counts - 7 * share[:, None]).abs() < 1).all()
    for place in (0, 6):
        frequency = torch.bincount(found[place], minlength=4) / 20_000
        np.testing.assert_allclose(frequency.numpy(), share.numpy(), atol=4 * 0.0035)
    np.testing.assert_allclose(counts.double().mean(1).numpy() / 7, share.numpy(), atol=4 * 0.0035)


def test_a_posterior_imputes_missing_values_and_says_how_sure_it_is():
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


@pytest.mark.parametrize("masked", [False, True])
def test_the_conditional_density_is_the_enumerated_one(masked):
    """log p(x_missing | x_observed) = log p(x) - log p(x_observed), both by 20,000 draws: a few hundredths off at most.

    Each estimate has a standard error of 1 / sqrt(effective draws), and some thousands of the draws are effective. Of
    an ensemble both are logs of means over the members, and their difference is not the mean of differences.
    """
    cases = [MissingCase("sbn", masked)]
    cases.append(another(cases[0]))
    post, rows = posterior(*cases), bits(4)[cases[0].fits()].numpy()
    missing = MISSING.expand(4, 4).numpy()
    completions = post.impute(np.where(missing, np.nan, rows), draws=8, how=ImputeConfig(sweeps=5)).completions
    found = post.log_conditional(rows, missing, completions, draws=20_000, by="draws")
    np.testing.assert_allclose(found, together(cases).log().numpy(), atol=0.1)
    differences = torch.stack([case.target().log() for case in cases]).mean(0)
    assert (differences - together(cases).log()).abs().max() > 0.2


@pytest.mark.parametrize("masked", [False, True])
def test_the_conditional_density_by_annealing_is_the_enumerated_one(masked):
    """Both sides by 100 temperatures, 200 repetitions of each row: their mean is within 4 standard errors and a bias.

    The bias of each log mean weight is half the variance of what it is the log of: together below 0.03 here, which the
    spread of the repetitions, below 0.25, shows (the variance of a difference is the sum of both variances).
    """
    cases = [MissingCase("sbn", masked)]
    cases.append(another(cases[0]))
    post, rows = posterior(*cases), np.repeat(bits(4)[cases[0].fits()].numpy(), 200, 0)
    missing = MISSING.expand(800, 4).numpy()
    completions = rows[None].repeat(8, 0)
    found = post.log_conditional(rows, missing, completions, by="annealing", temperatures=100).reshape(4, 200)
    assert (found.std(1) < 0.25).all()
    error = np.abs(found.mean(1) - together(cases).log().numpy())
    assert (error <= 4 * found.std(1) / math.sqrt(200) + 0.03).all()


def test_a_conditional_density_that_cannot_be_annealed_is_refused():
    case = MissingCase("darn")
    rows, missing = bits(4)[case.fits()].numpy(), MISSING.expand(4, 4).numpy()
    with pytest.raises(UserError, match="independent given the latents, got a model of DARN4-SBN3: take draws"):
        posterior(case).log_conditional(rows, missing, rows[None], by="annealing")


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
