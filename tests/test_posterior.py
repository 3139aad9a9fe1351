"""A posterior's answers, on a chain small enough to enumerate, with weights that are known."""

import math

import numpy as np
import pytest
import torch

from doubly import Chain, Posterior, UserError
from doubly.evaluate import ensemble, summary
from doubly.inference import NAIS, Marginal
from doubly.priors import Normal
from doubly.samplers import SGNHT, Adam
from doubly.train import Method
from exact import bits, random_params

MODEL, PROPOSAL = Chain.build("sbn", data=4, hidden=(3,)), Chain.build_proposal("sbn", data=4, hidden=(3,))


def weights(seed: int) -> torch.Tensor:
    return torch.cat(
        [value.flatten() for layer in MODEL.layers for value in random_params(layer, seed).values()]
    ).float()


KEPT = [weights(1), weights(2)]
X = bits(4).numpy()


@pytest.fixture(scope="module")
def posterior() -> Posterior:
    method = Method(MODEL, PROPOSAL, Normal(1.0), SGNHT(), NAIS(), Adam(), NAIS(), phi_step=1e-2, batch=100)
    train = MODEL.sample(KEPT[0], 1000, torch.Generator().manual_seed(0))[0]
    return Posterior(
        method=method, phi=torch.zeros(PROPOSAL.size), last_theta=KEPT[1], mean_theta=KEPT[0], kept=KEPT,
        train=lambda: train, refit_passes=10,
    )  # fmt: skip


def log_joint(theta: torch.Tensor) -> torch.Tensor:
    """log p(x, z) for all 16 x and all 8 z."""
    return MODEL.log_prob(theta.double(), (bits(4).unsqueeze(1), bits(3).expand(16, 8, 3)))


def exact(theta: torch.Tensor) -> np.ndarray:
    return log_joint(theta).logsumexp(1).numpy()


@pytest.mark.parametrize(("of", "theta"), [("mean", KEPT[0]), ("last", KEPT[1])])
def test_log_likelihood_is_the_enumerated_one(posterior, of, theta):
    """10,000 draws from a proposal with weights of order 1 leave an error of some hundredths at most."""
    np.testing.assert_allclose(posterior.log_likelihood(X, draws=10_000, of=of), exact(theta), atol=0.05)


def test_an_ensemble_averages_densities_not_their_logarithms(posterior):
    both = np.logaddexp(exact(KEPT[0]), exact(KEPT[1])) - math.log(2)
    found = posterior.log_likelihood(X, draws=10_000, of="ensemble")
    np.testing.assert_allclose(found, both, atol=0.05)
    logarithms = (exact(KEPT[0]) + exact(KEPT[1])) / 2
    assert abs(found - logarithms).max() > 0.2, "they must differ for the test to see it"


def test_codes_are_the_posterior_means_of_the_hidden_units(posterior):
    (codes,) = posterior.encode(X, draws=10_000)
    posterior_of_z = log_joint(KEPT[0]).softmax(1)
    np.testing.assert_allclose(codes, (posterior_of_z @ bits(3)).numpy(), atol=0.05)


def test_samples_of_an_ensemble_come_from_all_its_members(posterior):
    """Frequencies of the 16 rows against the mixture: 40,000 rows have a standard error below 0.0025."""
    rows = posterior.sample(40_000, of="ensemble")
    found = np.bincount((rows @ [8, 4, 2, 1]).astype(int), minlength=16) / 40_000
    np.testing.assert_allclose(found, (np.exp(exact(KEPT[0])) + np.exp(exact(KEPT[1]))) / 2, atol=5 * 0.0025)


def test_the_proposal_is_fitted_to_what_is_scored_once_and_remembered(posterior):
    """The bound is tighter than with the proposal of the run, and the second call fits nothing."""
    loose = posterior.method
    stored: dict[str, torch.Tensor] = {}
    fresh = Posterior(
        method=loose, phi=posterior.phi, last_theta=KEPT[1], mean_theta=KEPT[0], kept=[], train=posterior.train,
        recall=stored.get, remember=stored.__setitem__, refit_passes=10,
    )  # fmt: skip
    fitted = fresh.score(X, draws=20)
    assert len(stored) == 1
    unfitted = Posterior(
        method=loose, phi=posterior.phi, last_theta=KEPT[1], mean_theta=KEPT[0], kept=[], train=posterior.train,
        refit_passes=0,
    ).score(X, draws=20)  # fmt: skip
    assert fitted.effective.mean() > unfitted.effective.mean() + 1
    again = Posterior(
        method=loose, phi=posterior.phi, last_theta=KEPT[1], mean_theta=KEPT[0], kept=[],
        train=lambda: pytest.fail("nothing has to be fitted"), recall=stored.get, refit_passes=10,
    )  # fmt: skip
    assert torch.equal(again.score(X, draws=20).log_likelihood, fitted.log_likelihood)


def test_the_standard_error_is_that_of_the_mean():
    rows = Marginal(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.ones(4))
    assert summary(rows).stderr == pytest.approx(np.std([1, 2, 3, 4], ddof=1) / 2)
    assert summary(Marginal(torch.ones(1), torch.ones(1))).stderr is None
    torch.testing.assert_close(ensemble([rows, rows]).log_likelihood, rows.log_likelihood)


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
    empty = Posterior(posterior.method, posterior.phi, KEPT[0], None, [], posterior.train)
    for of in ("mean", "ensemble"):
        with pytest.raises(UserError, match="--of last"):
            empty.sample(1, of=of)
    with pytest.raises(UserError, match="must be one of"):
        empty.sample(1, of="best")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="draws must be at least 1"):
        posterior.encode(X, draws=0)
