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
from doubly.latents import NAIS, OBJECTIVES, Gap, Gibbs, LikelihoodConfig, Mean, Pair, RowLikelihoods
from doubly.latents.completions import ImputeConfig
from doubly.posterior.codes import read
from doubly.posterior.scores import ensemble, summarise
from doubly.posterior.work import Work
from doubly.samplers import SGNHT, Adam
from doubly.samplers.adam import AdamState
from doubly.samplers.priors import Normal
from doubly.training.method import Method
from doubly.training.refit import Halfway
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


def test_samples_of_an_ensemble_come_from_all_its_members(posterior):
    """Frequencies of the 16 rows against the mixture: 40,000 rows have a standard error below 0.0025."""
    rows = posterior.sample(40_000, of="ensemble")
    found = np.bincount((rows @ [8, 4, 2, 1]).astype(int), minlength=16) / 40_000
    np.testing.assert_allclose(found, (np.exp(exact(SAMPLES[0])) + np.exp(exact(SAMPLES[1]))) / 2, atol=5 * 0.0025)


def test_the_public_methods_agree_with_what_they_stand_for(posterior):
    """`draws` are the `samples`, `log_likelihood` the row likelihoods; codes and completions are those of the pairs."""
    for draw, sample, theta in zip(posterior.draws(), posterior.samples(), SAMPLES, strict=True):
        assert torch.equal(draw, sample)
        assert torch.equal(draw, theta)
    assert torch.equal(posterior.mean(), SAMPLES[0])
    assert torch.equal(posterior.last(), SAMPLES[1])
    for of in ("mean", "last", "ensemble"):
        rows = posterior.row_likelihoods(X, of, LikelihoodConfig(draws=10, seed=3))
        np.testing.assert_array_equal(posterior.log_likelihood(X, 10, of, seed=3), rows.log_likelihood.numpy())
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


@pytest.mark.parametrize("objective", [None, "wake-sleep"])
def test_a_refit_that_was_stopped_goes_on_where_it_was(posterior, objective):
    """Stopped after each pass, it ends in the same bits, and every pass was made once."""
    how, cache, seen = LikelihoodConfig(draws=10), Cache(), []

    def score(**place: Any) -> RowLikelihoods:
        afresh = dataclasses.replace(posterior, refit_passes=5, refit_objective=objective, _fitted={}, **place)
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
    assert [name for name in cache.found if "unfinished" in name] == []


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
