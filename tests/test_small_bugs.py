"""What bugs of mutations.toml showed to be untested elsewhere."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from doubly import LAYERS, SAMPLERS, Chain
from doubly.analysis.accuracy import calibration_error
from doubly.core.codec import from_tensors, to_tensors
from doubly.core.rows import blocks
from doubly.data import Data, stored
from doubly.kernels import gaussian
from doubly.kernels.noise import key
from doubly.latents import LikelihoodConfig, Pair, RowLikelihoods, completions, log_likelihood
from doubly.latents.batch import Batch
from doubly.latents.completions import Moments, _first_guess
from doubly.latents.importance import Draws
from doubly.latents.objectives import Round, Wake
from doubly.latents.persistent import Persistent
from doubly.posterior.estimates import larger, trial_stride
from doubly.posterior.scores import summarise
from doubly.runs import chains
from doubly.runs.build import Facts, build
from doubly.runs.config import Config
from doubly.samplers import PSGLD, SGD, Adam
from doubly.training.refit import refit
from doubly.training.state import moments
from doubly.training.step import rows_at
from exact import MissingCase, bits


def test_the_error_of_few_draws_is_their_spread():
    """With two draws of nearly equal weights, log mean weight is linear: the mean of noise² is the variance.

    Of n = 4,000 rows alike, a variance is off by sqrt(2 / n), 2 %, and the mean of noise² (a chi-square of one degree,
    bootstrapped 200 times) by sqrt(2 / n + 2 / (200 n)), as much: within 5 errors of their difference they agree to
    16 %. Without the factor n / (n - 1) it would be half of it, with its inverse a quarter.
    """
    rng = torch.Generator().manual_seed(0)
    model, proposal = Chain.build("sbn", data=4, hidden=(2,)), Chain.build_proposal("sbn", data=4, hidden=(2,))
    pair = Pair(model, 0.1 * torch.randn(model.size, generator=rng), proposal, torch.zeros(proposal.size))
    x = torch.tensor([[1.0, 0.0, 1.0, 1.0]]).expand(4000, -1)
    found = log_likelihood(pair, x, LikelihoodConfig(draws=2))
    assert math.isclose(found.noise.square().mean(), found.log_likelihood.var(), rel_tol=0.16)


def test_white_is_always_one():
    """A grey of 255 is 1 with certainty, one of 0 never, and 128 in 128 of 255: 60,000 cells, 5 errors of 0.002."""
    method = build(Config(model="sbn", hidden=(2,)), Facts(3, "binary", (3,), dynamic=True))
    greys = torch.tensor([0, 128, 255], dtype=torch.uint8).repeat(60_000, 1)
    bits = rows_at(method, greys, torch.arange(len(greys)), torch.Generator().manual_seed(0))
    assert not bits[:, 0].any()
    assert bits[:, 2].all()
    assert abs(bits[:, 1].mean() - 128 / 255) < 5 * math.sqrt(0.25 / len(bits))
    rows = np.zeros((1, 3), np.uint8)
    data = Data("greys", greys.numpy(), rows, rows, (3,), "binary", dynamic=True)
    assert data.split("train")[:, 2].all()
    assert not data.split("train")[:, 0].any()


def test_a_refit_s_step_falls_to_nothing():
    """Linearly, from pass to pass."""
    etas: list[float] = []

    @dataclasses.dataclass(frozen=True)
    class Watched(Adam):
        def tell(self, state, grad, eta, rng):
            etas.append(eta)
            return super().tell(state, grad, eta, rng)

    method = build(Config(model="sbn", hidden=(2,), phi_step=0.01, batch=4), Facts(3, "binary", (3,)))
    method = dataclasses.replace(method, optimiser=Watched())
    theta, phi = torch.zeros(method.model.size), torch.zeros(method.proposal.size)
    refit(method, theta, phi, torch.zeros(4, 3, dtype=torch.uint8), passes=4)
    assert np.allclose(etas, [0.01, 0.0075, 0.005, 0.0025])


def test_calibration_errors_are_means_over_cells():
    """Eight cells of one bin that are right, and two of another that are wrong by 0.9: not the mean over two bins."""
    predicted = np.array([0.5] * 8 + [0.9, 0.9])
    truth = np.array([1.0, 0.0] * 4 + [0.0, 0.0])
    assert math.isclose(calibration_error(predicted, truth), 2 * 0.9 / 10)


def test_missing_values_start_without_the_truth():
    """No sweep has been made, and every column is 0 at the start: the 1s that were hidden are gone."""
    rng = torch.Generator().manual_seed(0)
    model = Chain.build("sbn", data=3, hidden=(2,))
    x, missing = torch.ones(50, 3), torch.tensor([True, False, True]).expand(50, -1)
    start = Moments(torch.zeros(3), torch.zeros(3))
    started = _first_guess(model, x, missing, start, 4, rng)
    assert started.shape == (4, 50, 3)
    assert torch.equal(started, (~missing).float().expand(4, -1, -1))


def test_expected_values_are_those_of_the_later_sweeps(monkeypatch):
    """Of five sweeps, the last three; their expectations are 0, 1 and 2 here, whose mean is 1."""
    called: list[int] = []

    def expected(pair, x, *rest):
        called.append(len(called))
        return torch.full_like(x, len(called) - 1)

    monkeypatch.setattr(completions, "_expected", expected)
    rng = torch.Generator().manual_seed(0)
    model, proposal = Chain.build("sbn", data=3, hidden=(2,)), Chain.build_proposal("sbn", data=3, hidden=(2,))
    pair = Pair(model, torch.zeros(model.size), proposal, torch.zeros(proposal.size))
    x, start = torch.ones(2, 3), Moments(torch.full((3,), 0.5), torch.full((3,), 0.5))
    found = completions.impute(pair, x, x > 0, start, 1, completions.ImputeConfig(sweeps=5), rng)
    assert len(called) == 3
    assert (found.expected == 1).all()


def test_wake_follows_the_weights():
    """sum_s w_s log q(z_s | x), by hand."""
    drawn = Draws((), torch.zeros(2, 1), torch.tensor([[-1.0], [-3.0]]))
    batch: Any = SimpleNamespace(memory={})
    rows = Wake()(Round(batch, drawn, torch.tensor([[0.75], [0.25]]))).rows
    torch.testing.assert_close(rows, torch.tensor([-1.5]))


def test_moments_are_of_the_cells_that_are_there():
    method = build(
        Config(model="gaussian:widths=3,normal", proposal="gaussian:widths=3", hidden=(1,)), Facts(2, "real", (2,))
    )
    found = moments(method, torch.tensor([[1.0, math.nan], [3.0, 5.0], [5.0, 7.0]]))
    assert torch.equal(found.mean, torch.tensor([3.0, 6.0]))
    torch.testing.assert_close(found.spread, torch.tensor([math.sqrt(8 / 3), 1.0]))


def test_a_gaussian_layer_may_be_narrow():
    """log sigma = -2 at value = mean: the density is 2 - log(2 pi) / 2."""
    layer = LAYERS.make("gaussian:widths=none", 1, 1)
    params = {name: torch.zeros(shape) for name, shape in layer.shapes().items()} | {"b_sigma": torch.tensor([-2.0])}
    found = layer.log_prob(params, torch.zeros(1, 1), torch.zeros(1, 1))
    torch.testing.assert_close(found, torch.tensor([2 - math.log(2 * math.pi) / 2]))


def test_normal_draws_have_the_standard_deviation_asked_for():
    """log sigma = 1: of 40,000 draws, the variance e² is off by sqrt(2 / 40000), of which 5 are allowed."""
    found = gaussian.draw(torch.zeros(1), torch.ones(1), torch.Generator().manual_seed(0), 40_000)
    assert math.isclose(found.var(), math.e**2, rel_tol=5 * math.sqrt(2 / 40_000))


def test_keys_differ_in_both_halves():
    rng = torch.Generator().manual_seed(0)
    halves = np.array([key(rng) for _ in range(100)])
    assert len(np.unique(halves[:, 0])) == len(np.unique(halves[:, 1])) == 100


def test_a_tail_of_0_6_can_be_relied_on():
    """Beyond 0.7 a row is unreliable (Vehtari et al. 2024), not before."""
    one = torch.ones(3)
    rows = RowLikelihoods(-one, 50 * one, torch.tensor([0.6, 0.69, 0.71]), 0.1 * one, 100 * one)
    assert summarise(rows).unreliable == 1


def test_sgd_keeps_its_momentum():
    """Two steps by hand: u = eta g, then momentum eta g + eta g."""
    sgd, rng = SGD(momentum=0.5), torch.Generator()
    state = sgd.init(torch.zeros(1), rng)
    for _ in range(2):
        state = sgd.tell(sgd.ask(state, 0.1, rng), torch.ones(1), 0.1, rng)
    torch.testing.assert_close(state.theta, torch.tensor([0.1 + 0.15]))


def test_psgld_takes_its_own_step():
    """The first step of a weight with gradient 3: v, corrected for its start, is 9, so G = 1 / (1 + 3).

    With 40,000 weights the mean is off by sqrt(2 eta G / 40000), and 5 errors of that are allowed.
    """
    psgld, rng, eta = PSGLD(), torch.Generator().manual_seed(0), 0.1
    state = psgld.init(torch.zeros(40_000), rng)
    theta = psgld.tell(state, torch.full((40_000,), 3.0), eta, rng).theta
    assert abs(theta.mean() - eta * 3 / 4) < 5 * math.sqrt(2 * eta / 4 / 40_000)
    assert math.isclose(theta.var(), 2 * eta / 4, rel_tol=5 * math.sqrt(2 / 40_000))


class Place(NamedTuple):
    """A state with a field that may be None, but is not by default."""

    theta: torch.Tensor
    began: int | None = 5


def test_an_absent_field_has_its_default_though_it_may_be_none():
    found = to_tensors(Place(torch.zeros(1)))
    del found.numbers["began"]
    assert from_tensors(Place, found).began == 5


def test_the_options_of_a_spec_win_over_the_settings():
    assert SAMPLERS.make("sghmc:friction=0.3", friction=0.1).friction == 0.3
    assert SAMPLERS.make("sghmc", friction=0.15).friction == 0.15


def test_chains_share_the_cores(monkeypatch):
    monkeypatch.setattr(chains, "cores", lambda: 8)
    assert [chains.fair_threads(8, number) for number in (1, 2, 4, 8, 16)] == [8, 4, 2, 1, 1]
    assert chains.fair_threads(1, 4) == 1


def test_the_summary_of_chains_tells_what_is_so_now():
    """Their latest validation, of those that are left."""
    stands = [
        chains.Stand(0, trace=[-5.0, -3.0]),
        chains.Stand(1, trace=[-9.0], lost="killed"),
        chains.Stand(2, ended="finished", trace=[-4.0, -2.5]),
        chains.Stand(3),
    ]
    assert chains.summary(stands) == "4 chains (1 finished,1 lost), valid -3.00 -2.50 -"


@pytest.mark.parametrize("at", [0, 150, 299])
def test_all_blocks_of_a_store_are_looked_at(at, monkeypatch):
    """One value that is no bit, or is missing, anywhere in the file."""
    monkeypatch.setattr(stored, "blocks", lambda rows: blocks(rows, cells=400))
    rows = np.zeros((300, 4), dtype=np.float32)
    rows[at, 2] = 0.5
    assert stored.look(rows, "rows") == (False, False)  # type: ignore[arg-type]
    rows[at, 2] = math.nan
    assert stored.look(rows, "rows") == (True, True)  # type: ignore[arg-type]
    rows[at, 2] = 1
    assert stored.look(rows, "rows") == (True, False)  # type: ignore[arg-type]


def test_the_larger_bound_must_be_ahead_by_the_margin():
    def found(annealed: float, margin: float) -> str:
        return larger(lambda: torch.tensor([-5.0]), lambda: torch.tensor([annealed]), margin).estimator

    assert [found(-4.9, 0), found(-5.1, 0), found(-4.6, 0.5), found(-4.4, 0.5)] == [
        "annealing", "draws", "draws", "annealing",
    ]  # fmt: skip
    for rows in (1, 49, 50, 51, 99, 1000):
        assert len(range(0, rows, trial_stride(rows))) <= 50


def test_a_remembered_row_has_the_values_that_are_observed_now():
    """As where bits are drawn anew from greys: what is observed is not what it was at the last visit."""
    case = MissingCase("darn", masked=True)
    states, rng = Persistent(draws=2, sweeps=0).for_missing(case.model), torch.Generator().manual_seed(0)
    memory = states.init(case.model, 1, rng)
    pair = case.pair._replace(theta=case.theta.float(), phi=case.phi.float())
    for observed in ([1.0, 0.0], [0.0, 1.0]):
        x = torch.tensor([[*observed, math.nan, math.nan]])
        batch = Batch(pair, x, torch.tensor([0]), memory, rng)
        assert torch.equal(states._recall(batch).completed[..., :2], x[None, :, :2])  # type: ignore[index]
        memory = states(batch).memory


def test_states_without_fresh_draws_are_averaged():
    case, rng = MissingCase("sbn"), torch.Generator().manual_seed(0)
    states = Persistent(draws=0, chains=3)
    batch = Batch(case.pair, bits(4), torch.arange(16), states.init(case.model, 16, rng), rng)
    torch.testing.assert_close(states.advance(batch).weight.sum(0), torch.ones(16, dtype=torch.float64))
