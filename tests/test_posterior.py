"""A posterior's answers, on a chain small enough to enumerate, with weights that are known."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from doubly import Chain, Posterior, UserError
from doubly.core.codec import from_cache, to_cache
from doubly.core.random import generator
from doubly.latents import (
    NAIS,
    OBJECTIVES,
    Gap,
    Gibbs,
    LikelihoodConfig,
    Mean,
    Pair,
    Persistent,
    RowLikelihoods,
    log_likelihood,
)
from doubly.latents.completions import ImputeConfig
from doubly.posterior import codes
from doubly.posterior.codes import read
from doubly.posterior.estimates import ScoreConfig
from doubly.posterior.scores import ensemble, summarise
from doubly.posterior.work import Work
from doubly.samplers import SGNHT, Adam
from doubly.samplers.adam import AdamState
from doubly.samplers.priors import Normal
from doubly.training.method import Method
from doubly.training.refit import Halfway, refit
from exact import bits, random_params

MODEL, PROPOSAL = Chain.build("sbn", data=4, hidden=(3,)), Chain.build_proposal("sbn", data=4, hidden=(3,))


def weights(seed: int) -> torch.Tensor:
    return torch.cat(
        [value.flatten() for layer in MODEL.layers for value in random_params(layer, seed).values()]
    ).float()


SAMPLES = [weights(1), weights(2)]
X = bits(4).numpy()


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    method = Method(MODEL, PROPOSAL, Normal(1.0), SGNHT(), NAIS(), Adam(), NAIS(), phi_step=1e-2, batch=100)
    train = MODEL.sample(SAMPLES[0], 1000, torch.Generator().manual_seed(0))[0]
    return Posterior(
        method=method, phi=torch.zeros(PROPOSAL.size), last_theta=SAMPLES[1], mean_theta=SAMPLES[0], thetas=SAMPLES,
        train=lambda: train, refit_passes=10,
    )  # fmt: skip


def log_joint(theta: torch.Tensor) -> torch.Tensor:
    """log p(x, z) for all 16 x and all 8 z."""
    return MODEL.log_prob(theta.double(), (bits(4).unsqueeze(1), bits(3).expand(16, 8, 3)))


def exact(theta: torch.Tensor) -> np.ndarray:
    return log_joint(theta).logsumexp(1).numpy()


@pytest.mark.parametrize(("of", "theta"), [("mean", SAMPLES[0]), ("last", SAMPLES[1])])
def test_log_likelihood_is_the_enumerated_one(posterior, of, theta):
    """10,000 draws from a proposal with weights of order 1 leave an error of some hundredths at most."""
    np.testing.assert_allclose(posterior.log_likelihood(X, draws=10_000, of=of), exact(theta), atol=0.05)


def test_an_ensemble_averages_densities_not_their_logarithms(posterior):
    both = np.logaddexp(exact(SAMPLES[0]), exact(SAMPLES[1])) - math.log(2)
    found = posterior.log_likelihood(X, draws=10_000, of="ensemble")
    np.testing.assert_allclose(found, both, atol=0.05)
    logarithms = (exact(SAMPLES[0]) + exact(SAMPLES[1])) / 2
    assert abs(found - logarithms).max() > 0.2, "they must differ for the test to see it"


def test_codes_are_the_posterior_means_of_the_hidden_units(posterior):
    (codes,) = posterior.encode(X, draws=10_000)
    posterior_of_z = log_joint(SAMPLES[0]).softmax(1)
    np.testing.assert_allclose(codes, (posterior_of_z @ bits(3)).numpy(), atol=0.05)


def shares() -> torch.Tensor:
    """What each member counts for each of the 16 rows: p(x | theta_m) over their sum, (2, 16)."""
    return torch.stack([torch.as_tensor(exact(theta)) for theta in SAMPLES]).softmax(0)


@pytest.mark.parametrize("estimator", ["draws", "annealing"])
def test_codes_of_an_ensemble_are_those_of_its_members_by_their_shares(posterior, estimator):
    """p(z | x) of the ensemble is sum_m p(x, z | theta_m) / sum_m p(x | theta_m).

    By draws, the shares are some hundredths off at most, as the log-likelihoods are; by annealing with one chain of 200
    temperatures, log p(x | theta_m) is, in these small models, off by 0.2 at most, and a share by a quarter of that.
    """
    deciding = dataclasses.replace(posterior, estimator=estimator)
    (codes,) = deciding.encode(X, draws=10_000, of="ensemble")
    by_member = torch.stack([log_joint(theta).softmax(1) @ bits(3) for theta in SAMPLES])
    expected = (shares()[..., None] * by_member).sum(0).numpy()
    np.testing.assert_allclose(codes, expected, atol=0.06)
    assert abs(by_member.mean(0).numpy() - expected).max() > 0.15, "equal shares must differ for the test to see it"
    assert all(abs(one.numpy() - expected).max() > 0.3 for one in by_member)


def test_codes_of_an_ensemble_do_not_depend_on_the_block_that_a_row_is_in(monkeypatch):
    """By shares that are given, row by row: here each row is explained by one of the members, in turn."""
    pairs = [Pair(MODEL, theta, PROPOSAL, torch.zeros(PROPOSAL.size)) for theta in SAMPLES]
    turn = torch.arange(16) % 2
    bounds = torch.where(turn == torch.arange(2)[:, None], 0.0, -1000.0)
    monkeypatch.setattr(codes, "ROWS", 5)
    (found,) = codes.encode(pairs, bits(4), 5000, torch.Generator().manual_seed(0), bounds)
    by_member = torch.stack([log_joint(theta).softmax(1) @ bits(3) for theta in SAMPLES])
    expected = by_member[turn, torch.arange(16)]
    # 5,000 draws of a proposal that knows nothing, of which some hundreds are effective: a few hundredths
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=0.1)
    assert (by_member[1 - turn, torch.arange(16)] - expected).abs().max() > 0.3


def test_an_annealed_ensemble_averages_densities(posterior):
    """exp of a bound is an unbiased estimate of each p(x | theta_m), so their mean is one of the predictive density.

    300 repetitions of each row: the mean of the ratio to the enumerated density is 1 within 4 of its standard errors.
    """
    rows = np.repeat(X, 300, 0)
    found = posterior.log_likelihood(rows, of="ensemble", by="annealing", temperatures=4).reshape(16, 300)
    both = np.logaddexp(exact(SAMPLES[0]), exact(SAMPLES[1])) - math.log(2)
    ratio = np.exp(found - both[:, None])
    assert (abs(ratio.mean(1) - 1) <= 4 * ratio.std(1) / math.sqrt(300)).all()
    assert (ratio.std(1) / math.sqrt(300) < 0.05).all(), "or the test sees nothing"
    assert abs(exact(SAMPLES[0]) - both).max() > 0.5


def test_annealed_members_have_random_numbers_of_their_own(posterior):
    """Twins would otherwise be one member, with the errors of one."""
    rows, how = posterior.rows(X), ScoreConfig("annealing", temperatures=3)
    one, other = posterior._members("annealing", rows, how, posterior._pairs("mean") * 2)
    assert not torch.equal(one.log_likelihood, other.log_likelihood)


def test_the_nearer_estimate_answers_and_is_remembered(posterior):
    """A poor proposal: annealing gives more. Where it was decided before, or is insisted on, nothing is tried."""
    poor = dataclasses.replace(posterior, refit_passes=0, phi=torch.full((PROPOSAL.size,), 2.0), _chosen={})
    how = {"draws": 2, "temperatures": 50}
    found = poor.log_likelihood(X, **how)
    np.testing.assert_array_equal(found, poor.log_likelihood(X, by="annealing", **how))
    assert list(poor._chosen.values()) == ["annealing"]
    assert found.mean() > poor.log_likelihood(X, by="draws", **how).mean() + 0.1
    no_train = dataclasses.replace(poor, train=lambda: pytest.fail("nothing has to be tried"))
    np.testing.assert_array_equal(no_train.log_likelihood(X, **how), found)
    decided = dataclasses.replace(no_train, estimator="draws", _chosen={})
    np.testing.assert_array_equal(decided.log_likelihood(X, **how), poor.log_likelihood(X, by="draws", **how))
    # other weights are tried for themselves: a single temperature is a single draw, and loses to two
    poor.log_likelihood(X, of="last", draws=1000, temperatures=1)
    assert list(poor._chosen.values()) == ["annealing", "draws"]


def test_samples_of_an_ensemble_come_from_all_its_members(posterior):
    """Frequencies of the 16 rows against the mixture: 40,000 rows have a standard error below 0.0025."""
    rows = posterior.sample(40_000, of="ensemble")
    found = np.bincount((rows @ [8, 4, 2, 1]).astype(int), minlength=16) / 40_000
    np.testing.assert_allclose(found, (np.exp(exact(SAMPLES[0])) + np.exp(exact(SAMPLES[1]))) / 2, atol=5 * 0.0025)


def test_a_sample_that_explains_a_row_badly_makes_none_of_its_completions(posterior):
    """Its share is 0, so that no chain of it runs: the completions are those of the other sample."""
    theta = SAMPLES[0].clone()
    MODEL.unflatten(theta)[0]["b"].fill_(-40)  # all bits are 0, for certain
    both = dataclasses.replace(posterior, thetas=[SAMPLES[0], theta], refit_passes=0, estimator="draws")
    x = np.array([[1, 1, np.nan, np.nan]])
    found = both.impute(x, draws=6, how=ImputeConfig(sweeps=3))
    assert found.completions.shape == (6, 1, 4)
    assert (found.completions[..., :2] == 1).all()


def test_the_public_methods_agree_with_what_they_stand_for(posterior):
    """`draws` are the `samples`, `log_likelihood` the row likelihoods; codes and completions are those of the pairs."""
    for draw, sample, theta in zip(posterior.draws(), posterior.samples(), SAMPLES, strict=True):
        assert torch.equal(draw, sample)
        assert torch.equal(draw, theta)
    assert torch.equal(posterior.mean(), SAMPLES[0])
    assert torch.equal(posterior.last(), SAMPLES[1])
    for of in ("mean", "last", "ensemble"):
        rows = posterior.row_likelihoods(X, of, LikelihoodConfig(draws=10, seed=3))
        found = posterior.log_likelihood(X, 10, of, seed=3, by="draws")
        np.testing.assert_array_equal(found, rows.log_likelihood.numpy())
    (pair,) = posterior._refitted(posterior._pairs("mean"))
    assert isinstance(pair, Pair)
    assert torch.equal(pair.theta, SAMPLES[0])
    assert not torch.equal(pair.phi, posterior.phi), "it was fitted"
    (codes,) = posterior.encode(X, draws=10, seed=3)
    found = read([pair], torch.as_tensor(X), 10, generator("cpu", 3, "encode"), moves=True)
    np.testing.assert_array_equal(codes, found.codes[0].numpy())
    assert found.log_likelihood.shape == (1, 16)
    imputed = posterior.impute(np.where(X == 1, np.nan, X), draws=3, how=ImputeConfig(sweeps=2))
    assert imputed.completions.shape == (3, 16, 4)
    assert (imputed.completions[:, X == 0] == 0).all()
    np.testing.assert_allclose(imputed.spread, imputed.completions.std(0), atol=1e-6)
    assert posterior.sample(7).shape == (7, 4)


class Cache:
    """Tensors by name, in memory."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, torch.Tensor]] = {}

    def get(self, name):
        return self.found.get(name)

    def put(self, name, tensors):
        self.found[name] = {key: value.clone() for key, value in tensors.items()}

    def drop(self, name):
        self.found.pop(name, None)


def test_the_proposal_is_fitted_to_what_is_scored_once_and_remembered(posterior):
    """The bound is tighter than with the proposal of the run, and the second call fits nothing."""
    loose = posterior.method
    stored = Cache()
    fresh = Posterior(
        method=loose, phi=posterior.phi, last_theta=SAMPLES[1], mean_theta=SAMPLES[0], thetas=[], train=posterior.train,
        cache=stored, refit_passes=10,
    )  # fmt: skip
    fitted = fresh.row_likelihoods(X, how=LikelihoodConfig(draws=20))
    assert len(stored.found) == 1, "the proposal; what was scored is finished, and not kept"
    unfitted = Posterior(
        method=loose, phi=posterior.phi, last_theta=SAMPLES[1], mean_theta=SAMPLES[0], thetas=[], train=posterior.train,
        refit_passes=0,
    ).row_likelihoods(X, how=LikelihoodConfig(draws=20))  # fmt: skip
    assert fitted.ess.mean() > unfitted.ess.mean() + 1
    again = Posterior(
        method=loose, phi=posterior.phi, last_theta=SAMPLES[1], mean_theta=SAMPLES[0], thetas=[],
        train=lambda: pytest.fail("nothing has to be fitted"), cache=stored, refit_passes=10,
    )  # fmt: skip
    assert torch.equal(again.row_likelihoods(X, how=LikelihoodConfig(draws=20)).log_likelihood, fitted.log_likelihood)


def test_unfinished_work_comes_back_from_tensors_as_it_was():
    """Tensors, numbers, None, dictionaries and tuples inside; tensors of something else are not taken for it."""
    vector = torch.arange(3.0)
    optimiser = AdamState(vector, vector + 1, vector + 2, t=5)
    halfway = Halfway(optimiser, {"z1": torch.ones(2, dtype=torch.uint8)}, torch.tensor([1, 2]), done=4)
    stored = to_cache(halfway)
    assert sorted(stored) == [
        "done",
        "memory.z1",
        "optimiser.m",
        "optimiser.t",
        "optimiser.theta",
        "optimiser.v",
        "rng",
    ]
    torch.testing.assert_close(from_cache(Halfway, stored), halfway, rtol=0, atol=0)
    assert from_cache(Halfway, to_cache(halfway._replace(memory={}))).memory == {}
    gap = Gap(Mean(-1 / 3, None), Mean(-0.1, 1e-9), Mean(0.2, 0.0))
    assert from_cache(Gap, to_cache(gap)) == gap, "numbers in double precision"
    cache = Cache()
    cache.put("work", stored)
    assert Work(cache, 60.0, lambda what, share: None).load("work", Gap) is None
    assert Work(cache, 60.0, lambda what, share: None).load("nothing", Halfway) is None


def test_an_estimator_takes_another_objective_if_it_takes_any():
    sleep = OBJECTIVES.make("sleep")
    assert NAIS(draws=7).with_objective(sleep) == NAIS(draws=7, objective=sleep)
    assert Gibbs().with_objective(sleep) == Gibbs()


def scored(log_likelihood: list[float], noise: float = 0.0, khat: float = 0.0) -> RowLikelihoods:
    one = torch.ones(len(log_likelihood))
    return RowLikelihoods(torch.tensor(log_likelihood), one, khat * one, noise * one, one)


def test_the_standard_errors_are_those_of_the_mean():
    """Over n rows of spread sd it is sd / sqrt n; draws that give each row an error e give the mean e / sqrt n."""
    found = summarise(scored([1.0, 2.0, 3.0, 4.0], noise=0.2, khat=0.8))
    assert found.stderr == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)
    assert found.draw_error == pytest.approx(0.2 / 2)
    assert found.unreliable == 4
    assert summarise(scored([1.0])).stderr is None


def drawn(log_weight: torch.Tensor, noise: float, khat: float) -> RowLikelihoods:
    """Of draws of one row (K, 1), with these errors."""
    total, draws = log_weight.logsumexp(0), torch.tensor([float(len(log_weight))])
    ess = torch.exp(2 * total - (2 * log_weight).logsumexp(0))
    return RowLikelihoods(total - math.log(len(log_weight)), ess, torch.tensor([khat]), torch.tensor([noise]), draws)


def test_an_ensemble_of_different_members_is_their_draws_pooled():
    """With K draws of each of M members, p = 1/M sum_m 1/K sum_k w_mk is the mean over all M K draws, and its effective
    draws are those of all of them. log p varies by sum_m share_m (variation of log p_m), for d log sum p_m = sum_m
    (p_m / sum p) d log p_m: independent members add their squares. A third member has nearly nothing, and no say.
    """
    rng = torch.Generator().manual_seed(0)
    sets = [shift + spread * torch.randn(50, 1, generator=rng, dtype=torch.float64)
            for shift, spread in ((0.0, 1.0), (1.0, 0.3), (-20.0, 2.0))]  # fmt: skip
    members = [drawn(sets[0], 0.3, 0.2), drawn(sets[1], 0.1, 0.5), drawn(sets[2], 5.0, 0.1)]
    found, pooled = ensemble(members), drawn(torch.cat(sets), 0.0, 0.0)
    torch.testing.assert_close(found.log_likelihood, pooled.log_likelihood)
    torch.testing.assert_close(found.ess, pooled.ess)
    share = torch.cat(sets, 1).exp().sum(0) / torch.cat(sets).exp().sum()
    expected = math.hypot(0.3 * share[0], 0.1 * share[1], 5.0 * share[2])
    assert found.noise.item() == pytest.approx(expected, rel=1e-6)
    assert abs(found.noise.item() - math.hypot(0.3, 0.1, 5.0) / 3) > 0.1, "equal shares would give something else"
    assert found.khat.item() == pytest.approx(0.5)
    assert found.draws.item() == 150


@pytest.mark.parametrize(("khats", "expected"), [
    ((0.2, math.nan), math.nan), ((math.nan, 0.9), 0.9), ((0.1, -math.inf), 0.1), ((math.nan, math.nan), math.nan),
])  # fmt: skip
def test_what_is_not_known_of_a_member_is_not_known_of_the_ensemble(khats, expected):
    """Unless another one is heavy, which is enough."""
    found = ensemble([scored([-1.0], khat=khat) for khat in khats])
    torch.testing.assert_close(found.khat, torch.tensor([expected]), equal_nan=True)


@pytest.mark.parametrize(("change", "unreliable", "unknown"), [
    ({}, 0, 0),
    ({"khat": 0.8}, 1, 0),
    ({"khat": math.nan}, 0, 1),  # too few draws
    ({"ess": 99.9}, 0, 1),  # all weights are the same: an exact proposal, or one that never draws a mode
    ({"noise": 0.0}, 0, 1),
    ({"noise": math.nan, "khat": math.nan, "draws": 1.0, "ess": 1.0}, 0, 1),  # a single draw
    ({"noise": 0.0, "khat": 0.9}, 1, 0),  # one is enough
])  # fmt: skip
def test_a_summary_counts_rows_that_are_unreliable_and_those_of_which_draws_cannot_tell(change, unreliable, unknown):
    fields = {"log_likelihood": -3.0, "ess": 40.0, "khat": 0.3, "noise": 0.1, "draws": 100.0}
    good = RowLikelihoods(**{name: torch.tensor([value, value]) for name, value in fields.items()})
    for name, value in change.items():
        getattr(good, name)[1] = value
    found = summarise(good)
    assert (found.unreliable, found.unknown) == (unreliable, unknown)
    assert found.draw_error_is_least == (unreliable + unknown > 0)
    assert summarise(good, exact=True).unknown == 0


def test_the_error_of_draws_with_a_heavy_tail_is_too_small_and_said_to_be():
    """A proposal that seldom draws one of two modes: nine in ten scores miss it, and say of their error far too little.

    One latent unit, x does not depend on it, p(z = 1) = 1/2 and q(z = 1) = 1e-3: 100 draws have it with chance 0.095.
    Where it is missing, the score is log(0.5 / 0.999) = -0.69 in place of 0 with every weight the same, so that the
    noise is zero: unknown. Where it is there, k̂ has a few draws of one size, and says nothing: unknown, too.
    """
    model, proposal = Chain.build("sbn", data=1, hidden=(1,)), Chain.build_proposal("sbn", data=1, hidden=(1,))
    theta = torch.zeros(model.size)
    below, _ = model.unflatten(theta)
    below["b"].fill_(30.0)  # x = 1 always
    phi = torch.zeros(proposal.size)
    proposal.unflatten(phi)[0]["b"].fill_(math.log(1e-3 / 0.999))
    pair, x = Pair(model, theta, proposal, phi), torch.ones(500, 1)
    found = log_likelihood(pair, x, LikelihoodConfig(draws=100))
    missed = found.log_likelihood < -0.5
    assert 0.8 < missed.double().mean() < 0.97
    assert (found.log_likelihood[missed].abs() > 10 * found.noise[missed]).all(), "the error holds for none of them"
    summary = summarise(found)
    assert summary.unreliable + summary.unknown == 500
    assert summary.draw_error_is_least


def test_an_ensemble_of_twins_is_each_of_them_with_less_noise():
    one = scored([1.0, 2.0], noise=0.2)
    both = ensemble([one, one])
    torch.testing.assert_close(both.log_likelihood, one.log_likelihood)
    torch.testing.assert_close(both.noise, one.noise / math.sqrt(2))
    torch.testing.assert_close(both.ess, 2 * one.ess)
    assert ensemble([scored([1.0], khat=math.nan)] * 2).khat.isnan().all(), "nothing can be said of either"
    assert both.draws.tolist() == [2, 2]


def test_an_ensemble_has_the_samples_of_all_its_chains(posterior):
    """Two chains of one sample each are the ensemble of two, each with its own proposal to start from."""
    chain = dataclasses.replace(
        posterior, thetas=SAMPLES[:1], others=[dataclasses.replace(posterior, thetas=SAMPLES[1:])]
    )
    together, apart = (post.log_likelihood(X, draws=50, of="ensemble") for post in (chain, posterior))
    with pytest.raises(UserError, match="codes of several chains"):
        chain.encode(X)
    np.testing.assert_array_equal(together, apart)
    with pytest.raises(UserError, match="several chains"):
        chain.mean()
    other = Chain.build("sbn", data=4, hidden=(2,))
    with pytest.raises(UserError, match="different models"):
        dataclasses.replace(
            posterior,
            others=[dataclasses.replace(posterior, method=dataclasses.replace(posterior.method, model=other))],
        )


def in_chains(posterior: Posterior, samples: int, chains: int) -> Posterior:
    """Chains of so many samples each, all with weights of their own."""
    every = [
        dataclasses.replace(
            posterior, thetas=(own := [weights(10 * c + s) for s in range(samples)]), last_theta=own[-1]
        )
        for c in range(chains)
    ]
    return dataclasses.replace(every[0], others=every[1:])


def test_the_last_weights_of_several_chains_are_one_of_each(posterior):
    several = in_chains(posterior, 3, 2)
    both = np.logaddexp(exact(weights(2)), exact(weights(12))) - math.log(2)
    np.testing.assert_allclose(several.log_likelihood(X, draws=5000, of="last", by="draws"), both, atol=0.1)
    assert min(abs(exact(weights(seed)) - both).max() for seed in (2, 12)) > 0.3, "or the test sees nothing"


def test_a_thinned_posterior_has_samples_of_every_chain(posterior):
    """Evenly spaced over each; as many in all as are asked for, but one of each chain at least."""
    several = in_chains(posterior, 6, 3)

    def which(most: int) -> list[int]:
        every = [weights(10 * c + s) for c in range(3) for s in range(6)]
        found = several.thinned(most).samples()
        return [10 * (i // 6) + i % 6 for theta in found for i, each in enumerate(every) if torch.equal(theta, each)]

    assert which(6) == [1, 4, 11, 14, 21, 24]
    assert which(1) == which(3) == [3, 13, 23]
    assert len(which(100)) == 18


def test_means_of_the_first_samples_are_found_by_their_number(posterior):
    some = dataclasses.replace(posterior, means={5: SAMPLES[1]}, collected=12)
    assert torch.equal(some.mean(5), SAMPLES[1])
    assert torch.equal(some.mean(12), SAMPLES[0])
    with pytest.raises(UserError, match="of the first 5, 12 samples, not of 7"):
        some.mean(7)
    with pytest.raises(UserError, match="chooses a mean"):
        some.row_likelihoods(X, "last", samples=5)


def test_the_members_of_an_ensemble_have_draws_of_their_own(posterior):
    """Twins scored by 30 draws differ, and over 300 seeds the spread of their ensemble is what its noise says.

    A standard deviation over 300 seeds is known to 1 / sqrt(600) = 4 %, the noise by 20 groups to some 2 % more: 4 of
    these. With common draws the spread would be larger by sqrt 2.
    """
    twins = dataclasses.replace(posterior, thetas=[SAMPLES[0], SAMPLES[0]])
    found = [twins.row_likelihoods(X[:1], "ensemble", LikelihoodConfig(draws=200, seed=seed)) for seed in range(300)]
    spread = torch.stack([each.log_likelihood for each in found]).std().item()
    noise = torch.stack([each.noise for each in found]).square().mean().sqrt().item()
    assert spread == pytest.approx(noise, rel=0.18)


def test_a_score_that_was_stopped_goes_on_where_it_was(posterior):
    """Stopped at each of its parts in turn, it ends in the same bits, and every part was done once."""
    how, cache, seen = LikelihoodConfig(draws=40, memory=16 * 10 * 7 / 2**20), Cache(), []
    whole = posterior.row_likelihoods(X, "last", how)

    def stop(what: str, share: float) -> None:
        if what == "scoring":
            seen.append(share)
            raise KeyboardInterrupt

    stopped = dataclasses.replace(posterior, cache=cache, progress=stop)
    for _ in range(1000):
        try:
            found = stopped.row_likelihoods(X, "last", how)
            break
        except KeyboardInterrupt:
            continue
    torch.testing.assert_close(found, whole, rtol=0, atol=0, equal_nan=True)
    assert len(seen) == len(set(seen)) == 64, "16 rows, one at a time, 4 parts of 10 draws"
    assert [name for name in cache.found if "unfinished" in name] == []


@pytest.mark.parametrize("refitter", [NAIS(), Persistent(5, chains=2)])
@pytest.mark.parametrize("objective", [None, "wake-sleep"])
def test_a_refit_that_was_stopped_goes_on_where_it_was(posterior, objective, refitter):
    """Stopped after each pass, it ends in the same bits, and every pass was made once; states are remembered."""
    how, cache, seen = LikelihoodConfig(draws=10), Cache(), []
    method = dataclasses.replace(posterior.method, refitter=refitter)

    def score(**place: Any) -> RowLikelihoods:
        fields = {"method": method, "refit_passes": 5, "refit_objective": objective, "_fitted": {}}
        afresh = dataclasses.replace(posterior, **fields, **place)
        return afresh.row_likelihoods(X, "last", how)

    def stop(what: str, share: float) -> None:
        if what.startswith("fitting"):
            seen.append(share)
            raise KeyboardInterrupt

    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            score(cache=cache, progress=stop)
    torch.testing.assert_close(score(cache=cache, progress=stop), score(), rtol=0, atol=0, equal_nan=True)
    assert seen == [0.2, 0.4, 0.6, 0.8, 1.0]
    (fitted,) = cache.found
    assert fitted.endswith("-moved") == isinstance(refitter, Persistent), "not taken for one fitted by draws"


def test_a_proposal_fitted_by_states_that_move_is_near_the_posterior(posterior):
    """E[KL(p(z | x), q(z | x))] over the rows that the model draws, enumerated: most of it goes in five passes.

    A proposal linear in x leaves 0.003 whatever fits it, of 0.19 to begin with.
    """
    rows, posterior_of_z = bits(4).float(), log_joint(SAMPLES[0]).log_softmax(1)
    marginal = torch.as_tensor(exact(SAMPLES[0])).exp()
    method = dataclasses.replace(posterior.method, refitter=Persistent(5, chains=2), phi_step=0.1)

    def divergence(phi: torch.Tensor) -> float:
        log_q = PROPOSAL.log_prob(phi, (bits(3).float().expand(16, 8, 3),), rows[:, None]).double()
        return float(marginal @ (posterior_of_z.exp() * (posterior_of_z - log_q)).sum(1))

    assert divergence(posterior.phi) > 0.15
    assert divergence(refit(method, SAMPLES[0], posterior.phi, posterior.train(), 5)) < 0.01


@pytest.mark.parametrize(
    "x",
    [
        np.ones((3, 5)),
        np.ones(4),
        np.ones((0, 4)),
        np.full((2, 4), 0.5),
        np.full((2, 4), np.nan),
        np.array([["a"] * 4]),
    ],
)
def test_rows_that_the_model_cannot_have_are_refused(posterior, x):
    with pytest.raises(UserError):
        posterior.log_likelihood(x)


def test_what_is_not_there_is_said_so(posterior):
    empty = Posterior(posterior.method, posterior.phi, SAMPLES[0], None, [], posterior.train)
    for of in ("mean", "ensemble"):
        with pytest.raises(UserError, match="--of last"):
            empty.sample(1, of=of)
    with pytest.raises(UserError, match="must be one of"):
        empty.sample(1, of="best")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="draws must be at least 1"):
        posterior.encode(X, draws=0)
