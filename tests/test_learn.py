"""Learning a table under a budget: base lines in closed form, the start from them, the race, and the answers."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import doubly
from doubly import Posterior, UserError, cli
from doubly.analysis import table_runs
from doubly.analysis.table_files import complete_file, odd_rows
from doubly.analysis.tables import complete, log_missing, log_prob, odd_cells
from doubly.data import Column, Columns, guess
from doubly.data.columns import sheet_of
from doubly.latents import Pair
from doubly.layers import Chain, Mixed
from doubly.runs import learn as learning
from doubly.runs import stack
from doubly.runs.automatic import candidates
from doubly.runs.baseline import baselines, gaussian_by_em, started_from
from doubly.runs.build import Facts, build
from doubly.runs.learn import Learnt, learn
from doubly.runs.mixture import Layout, Mixture
from exact import MISSING, ROW, MissingCase, bits, numbers, random_params
from test_completions import another, together
from test_mixed import Small
from test_tables import table, written

MEAN = torch.tensor([0.2, -0.1, 0.3], dtype=torch.float64)
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 0.3, 0.7]], dtype=torch.float64)


def incomplete(n: int = 2000, share: float = 0.3) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    rows = MEAN + torch.randn(n, 3, generator=rng, dtype=torch.float64) @ ROOT.T
    return rows.masked_fill(torch.rand(n, 3, generator=rng) < share, math.nan)


# Base lines


def test_em_finds_the_normal_behind_incomplete_rows():
    """Within five standard errors: of a mean sd / sqrt(n observed), of a covariance sqrt(2) / 0.7 of that at most."""
    found = gaussian_by_em(incomplete())
    covariance = ROOT @ ROOT.T
    error = covariance.diagonal().sqrt() / math.sqrt(2000 * 0.7)
    assert ((found.mean - MEAN).abs() < 5 * error).all()
    bound = 5 * math.sqrt(2) * torch.outer(error, covariance.diagonal().sqrt()) / 0.7 + 0.002  # the ridge
    assert ((found.covariance - covariance).abs() < bound).all()


def test_em_of_complete_rows_is_the_sample_covariance():
    rows = incomplete(share=0.0)
    found = gaussian_by_em(rows)
    exact = torch.cov(rows.T, correction=0) + 1e-3 * torch.eye(3)
    torch.testing.assert_close(found.covariance, exact)
    torch.testing.assert_close(found.mean, rows.mean(0))


def test_em_never_loses_likelihood():
    """What EM is known by: the likelihood of the observed does not fall; here from the first iteration to the last."""
    rows = incomplete(300)
    found = gaussian_by_em(rows)
    alone = stats.norm(rows.nanmean(0).numpy(), (rows - rows.nanmean(0)).square().nanmean(0).sqrt().numpy())
    independent = np.nansum(alone.logpdf(rows.numpy()), 1).mean()
    assert found.log_prob(rows).mean() > independent + 0.1


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_em_ends_where_the_likelihood_is_highest(factor):
    """Along the size of the covariance, by which a conditional covariance that is left out would show."""
    rows = incomplete()
    found = gaussian_by_em(rows)
    other = found._replace(covariance=factor * found.covariance)
    assert found.log_prob(rows).mean() > other.log_prob(rows).mean()


@pytest.mark.parametrize("observed", [(0, 1, 2), (0, 2), (1,), ()])
def test_the_density_of_the_observed_is_that_of_scipy(observed):
    gaussian = gaussian_by_em(incomplete())
    row = torch.full((1, 3), math.nan, dtype=torch.float64)
    row[0, list(observed)] = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)[list(observed)]
    at = np.ix_(observed, observed)
    exact = 0.0
    if observed:
        law = stats.multivariate_normal(gaussian.mean[list(observed)].numpy(), gaussian.covariance.numpy()[at])
        exact = law.logpdf(row[0, list(observed)].numpy())
    assert gaussian.log_prob(row).item() == pytest.approx(exact, abs=1e-9)


def test_base_lines_are_densities_of_the_whole_table():
    """Independent columns: the product of frequencies and normals, by hand."""
    rows = torch.tensor([[0.5, 1, 0, 0], [-0.5, 0, 1, 1], [1.0, 1, 0, math.nan], [-1.0, 1, 0, 0]])
    found = baselines("r-c2-b", rows).log_prob(rows)["independent columns"]
    variance = rows[:, 0].square().mean().item()
    normal = stats.norm(0, math.sqrt(variance + 0.01**2)).logpdf(rows[:, 0].numpy())
    level, bit = np.log([0.75, 0.25, 0.75, 0.75]), np.log([2 / 3, 1 / 3, 1, 2 / 3])
    np.testing.assert_allclose(found.numpy(), normal + level + bit, atol=1e-5)


def test_the_start_is_the_normal_itself():
    """With as many latents as columns, the linear model that learning starts from has the covariance of EM, exactly
    where no variance of a column by itself is below the least that a start allows (0.1)."""
    rows = incomplete().float()
    base = baselines("3r", rows)
    assert base.gaussian is not None
    model = Chain.build(["mixed:columns=3r", "normal"], data=3, hidden=(3,))
    params = model.unflatten(started_from(base, model, model.init(torch.Generator())))[0]
    sigma2 = 0.01**2 + torch.exp(2 * params["b_sigma"])
    got = params["W_scores"] @ params["W_scores"].T + torch.diag(sigma2)
    off = ~torch.eye(3, dtype=torch.bool)
    torch.testing.assert_close(got.double()[off], base.gaussian.covariance[off], atol=1e-5, rtol=0)
    assert (got.double() - base.gaussian.covariance).diagonal().min() > -1e-6
    torch.testing.assert_close(params["b_scores"].double(), base.gaussian.mean, atol=1e-6, rtol=0)


@pytest.mark.parametrize("columns", ["b-r-r", "c3-r-r", "o4-r-r"])
def test_the_slopes_of_the_start_are_the_loadings_to_first_order(columns):
    """d mean / d z at z = 0, by autograd, is the loading that was asked for; of grades, its best fit."""
    width = {"b": 1, "c": 3, "o": 4}[columns[0]]
    layer = Mixed(1, width + 2, columns=columns)
    share = torch.tensor({"b": [0.3], "c": [0.5, 0.3, 0.2], "o": [0.1, 0.4, 0.3, 0.2]}[columns[0]])
    mean = torch.cat([share, torch.tensor([0.1, -0.2])])
    params = layer.init(torch.Generator(), mean)
    loadings = torch.tensor({"b": [0.1], "c": [0.1, -0.02, -0.08], "o": [-0.09, -0.1, 0.06, 0.13]}[columns[0]])
    wanted = torch.cat([loadings, torch.tensor([0.5, -0.4])])[:, None]
    layer.start_linear(params, wanted, mean, torch.eye(width + 2))
    z = torch.zeros(1, requires_grad=True)
    got = torch.autograd.functional.jacobian(lambda z: layer.mean(params, mean, z), z)
    torch.testing.assert_close(got, wanted, atol=0.03 if columns[0] == "o" else 1e-5, rtol=0)


# The race


def mixed_rows(n: int = 150) -> tuple[Columns, torch.Tensor]:
    """A factor behind two numbers and a category."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=n)
    data = {
        "x": z + 0.3 * rng.normal(size=n),
        "y": 10 - 3 * z + rng.normal(size=n),
        "c": np.where(z + 0.3 * rng.normal(size=n) > 0, "up", "down").tolist(),
    }
    sheet = sheet_of({name: list(values) for name, values in data.items()})
    columns = guess(sheet).columns
    rows = columns.encode(sheet)
    hidden = rng.random((n, 3)) < 0.2
    rows[hidden[:, columns.sources]] = np.nan
    return columns, torch.as_tensor(rows.astype(np.float32))


@pytest.fixture(scope="module")
def learnt() -> tuple[Columns, torch.Tensor, Learnt]:
    columns, rows = mixed_rows()
    return columns, rows, learn(columns, rows, minutes=60, seed=0, epochs=10)


def test_the_stack_beats_the_base_lines_and_says_what_won(learnt):
    """The category depends on the numbers, which the base lines do not know."""
    _, _, found = learnt
    assert {"independent columns", "normal by EM", "2 classes", "linear, normal latents"} < set(found.scores)
    assert found.scores[found.name] > found.scores["normal by EM"] > found.scores["independent columns"]
    assert found.notes[0].startswith(found.name)
    assert sum(weight for weight, _ in found.members) == pytest.approx(1)
    assert found.pairs


def test_without_latents_mixtures_answer_alone():
    columns, rows = mixed_rows(60)
    found = learn(columns, rows, minutes=60, latents=False)
    assert found.share == 0
    assert len(found.members) == len(found.mixtures)
    assert not any("latents" in name for name in found.scores)
    whole = rows.nan_to_num()
    whole[:, 2:] = torch.eye(2)[0]
    rest = whole.masked_fill(rows.isnan(), math.nan)
    exact = sum(w * (mix.log_prob(whole) - mix.log_prob(rest)).exp() for w, mix in found.mixtures)
    np.testing.assert_allclose(np.exp(log_missing(found, whole, rest)), exact, rtol=1e-6)


def test_the_budget_is_counted_by_the_clock():
    """A clock that jumps over the deadline at its second look: one mixture, an epoch of each candidate."""
    columns, rows = mixed_rows(60)
    ticks = iter([0.0, *([1e9] * 10_000)])
    found = learn(columns, rows, minutes=1, clock=lambda: next(ticks))
    assert [name for name in found.scores if "latents" not in name] == ["independent columns", "normal by EM", "stack"]
    assert np.isfinite(log_prob(found, rows)).all()


def test_mixtures_that_answer_have_time_of_their_own(monkeypatch):
    """Sampling and the proposal may take all that is left: the fits of a bootstrap are there before."""
    columns, rows = mixed_rows(60)
    now, asked = [0.0], []

    def answering(*args: Any) -> list[tuple[float, Mixture]]:
        asked.append(args[-1]())
        return stack.answering(*args)

    def endless(racer: Any, *_: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
        now[0] = 1e9
        return [racer.pair.theta], racer.pair.phi

    monkeypatch.setattr(learning, "answering", answering)
    monkeypatch.setattr(learning, "_sampled_and_fitted", endless)
    # both have a weight, whatever they say of hidden cells
    monkeypatch.setattr(learning, "stacked", lambda scores: torch.full((len(scores),), 1 / len(scores)).double())
    monkeypatch.setattr(
        learning, "contest", lambda layout, held, seed, _: stack.contest(layout, held, seed, lambda: False)
    )
    found = learn(columns, rows, minutes=1, epochs=1, clock=lambda: now[0])
    assert asked == [True]
    assert now == [1e9]
    assert found.share == pytest.approx(0.5)
    assert len(found.mixtures) == 2


def test_without_a_stack_no_time_goes_to_mixtures():
    columns, rows = mixed_rows(40)
    found = learn(columns, rows, minutes=60, epochs=1, stack=False)
    assert "stack" not in found.scores
    assert [name for name in found.scores if "latents" not in name] == ["independent columns", "normal by EM"]
    assert found.share == 1
    assert found.mixtures == ()
    assert found.name in found.scores


def test_the_same_seed_learns_the_same():
    columns, rows = mixed_rows(40)
    one, other = (learn(columns, rows, minutes=60, seed=3, epochs=2) for _ in range(2))
    assert one.scores == other.scores
    assert torch.equal(one.thetas[0], other.thetas[0])


def test_completions_are_near_what_was_hidden(learnt):
    """x and y have a correlation of -0.9: of a hidden x three quarters of the variance are explained; half will do."""
    _, rows, found = learnt
    full = rows[~rows.isnan().any(1)]
    hidden = full.clone()
    hidden[:, 0] = math.nan
    done = complete(found, hidden, 20)
    assert done.copies.shape == (20, len(full), 4)
    np.testing.assert_array_equal(done.expected[:, 1:], full[:, 1:])
    np.testing.assert_array_equal(done.copies[:, :, 1:], np.broadcast_to(full[:, 1:], (20, *full[:, 1:].shape)))
    error = np.mean((done.expected[:, 0] - full[:, 0].numpy()) ** 2) / full[:, 0].var().item()
    assert error < 0.5
    blank = torch.full((400, 4), math.nan)
    levels = complete(found, blank, 20).copies[:, :, 2:]
    assert (levels.sum(-1) == 1).all()
    assert 0.3 < levels[..., 0].mean() < 0.7


def test_completions_and_copies_follow_the_enumerated_law():
    """A small table with a proposal that knows little: levels of a hidden category, by expectation and in the copies,
    are those of p(category | rest). 300 rows alike: within five standard errors over rows, and the bias of resampling
    from 200 draws, of the order of 1 / 200, ten times over."""
    small = Small()
    pair = small.pair._replace(theta=small.theta.float(), phi=3 * small.phi.float())
    row = small.rows[13].float()
    fits = (small.rows[:, 0] == row[0]) & (small.rows[:, 4:] == row[4:]).all(1)
    law = small.law()[fits].softmax(0).numpy()
    rows = row.repeat(300, 1)
    rows[:, 1:4] = math.nan
    done = complete(SimpleNamespace(members=[(1.0, [pair])]), rows, 10)  # type: ignore[arg-type]
    for found in (done.expected[:, 1:4], done.copies[:, :, 1:4].mean(0)):
        error = found.std(0) / math.sqrt(300)
        assert (abs(found.mean(0) - law) < 5 * error + 10 * law * (1 - law) / 200).all()


def two_samples(name: str) -> tuple[list[MissingCase], Any]:
    """Weights of four bits of which the second explain what is observed three times as well, as one member."""
    cases = [MissingCase(name, masked=True)]
    cases.append(another(cases[0], 39))
    pairs = [case.pair._replace(theta=case.theta.float(), phi=case.phi.float()) for case in cases]
    return cases, SimpleNamespace(members=[(1.0, pairs)])


@pytest.mark.parametrize("name", ["sbn", "nade:order=reversed"])
def test_samples_of_the_weights_complete_rows_by_their_shares(name):
    """A sample counts by p(x_observed | theta_m), in what is expected, in the copies and in log p of what was missing.

    200 rows alike, ten copies: the error is the spread over rows, of which five standard errors are allowed, and the
    bias of resampling from 200 draws, of the order of 1 / 200, ten times over (or what 20 sweeps of chains leave).
    """
    cases, learnt = two_samples(name)
    law, halves = together(cases), (cases[0].target() + cases[1].target()) / 2
    for wrong in (halves, *(case.target() for case in cases)):
        assert (wrong - law).abs().max() > 0.1, "or the test could not tell them apart"
    rows = torch.where(MISSING, math.nan, ROW).float().repeat(200, 1)
    done = complete(learnt, rows, 10)
    ones = bits(4)[cases[0].fits()][:, MISSING].T @ law
    for found in (done.expected, done.copies.mean(0)):
        values = found[:, MISSING.numpy()]
        allowed = 5 * values.std(0) / math.sqrt(200) + 10 * 0.25 / 200
        assert (abs(values.mean(0) - ones.numpy()) < allowed).all()
    counts = np.bincount(numbers(torch.as_tensor(done.copies)), minlength=4) / 2000
    # copies of a row share its draws, which is in the second part of what is allowed
    np.testing.assert_allclose(counts, law.numpy(), atol=4 * 0.5 / math.sqrt(2000) + 10 * 0.25 / 200)
    for place in (0, 9):  # no place has a favourite
        here = np.bincount(numbers(torch.as_tensor(done.copies[place])), minlength=4) / 200
        np.testing.assert_allclose(here, law.numpy(), atol=4 * 0.5 / math.sqrt(200))
    whole = bits(4)[cases[0].fits()].float().repeat(100, 1)
    found = np.exp(log_missing(learnt, whole, whole.masked_fill(MISSING, math.nan))).reshape(100, 4)
    # a ratio of two estimates by 200 draws: its bias is of the order of 1 / 200, ten times over
    np.testing.assert_allclose(found.mean(0), law.numpy(), atol=5 * found.std() / 10 + 10 * 0.25 / 200)


def test_with_nothing_observed_samples_of_the_weights_count_alike():
    cases, learnt = two_samples("sbn")
    found = complete(learnt, torch.full((500, 4), math.nan), 10)
    marginals = torch.stack([case.log_joint().logsumexp(1).exp() @ bits(4) for case in cases])
    np.testing.assert_allclose(found.expected.mean(0), marginals.mean(0), atol=10 * 0.25 / 200)
    np.testing.assert_allclose(found.copies.mean((0, 1)), marginals.mean(0), atol=5 * 0.5 / math.sqrt(500))


@pytest.mark.parametrize("name", ["sbn", "nade:order=reversed"])
def test_bits_are_odd_by_the_enumerated_law(name):
    """log p(cell | others) = log of sums over samples; without latents the sums over missing bits are exact.

    With latents there are 200 draws of a proposal that knows nothing, of which 50 or more are effective: each log has
    an error of 1 / sqrt(50) = 0.14 at most, and a cell's that of two, of which two and a half are allowed.
    """
    cases, learnt = two_samples(name)
    columns, rows = Columns(tuple(Column(f"b{i}", "binary") for i in range(4))), bits(4).float()
    odd = odd_cells(learnt, columns, rows)
    density = torch.stack([case.log_joint().logsumexp(1) for case in cases]).logsumexp(0) - math.log(2)
    cells = np.empty((16, 4))
    for at in range(4):
        flipped = density[[i ^ (8 >> at) for i in range(16)]]
        cells[:, at] = (density - torch.logaddexp(density, flipped)).numpy()
    allowed = 1e-4 if not cases[0].proposal.layers else 2.5 * 0.14 * math.sqrt(2)
    np.testing.assert_allclose(odd.log_prob, density.numpy(), atol=allowed)
    np.testing.assert_allclose(odd.excess, cells.mean(0) - cells, atol=allowed)


def test_many_missing_bits_are_drawn_and_few_are_summed():
    """Six bits in an order: of four missing the density is exact, of five by draws it is right within their error."""
    model = Chain.build("darn", data=6, hidden=())
    theta = torch.cat([value.flatten() for value in random_params(model.layers[0], 3).values()]).float()
    pair = Pair(model, theta, Chain.build_proposal("sbn", data=6, hidden=(), masked=True), torch.zeros(0))
    every = model.log_prob(theta.double(), (bits(6),))
    for missing, allowed in ((4, 1e-5), (5, 5 * 0.03)):  # relative error of 200 draws: below 0.4 / sqrt(200)
        row = bits(6)[21].float()
        row[6 - missing :] = math.nan
        fits = (bits(6)[:, : 6 - missing] == row[: 6 - missing]).all(1)
        found = log_prob(SimpleNamespace(members=[(1.0, [pair])]), row[None])  # type: ignore[arg-type]
        assert found[0] == pytest.approx(every[fits].logsumexp(0).item(), abs=allowed)


def test_complete_tables_of_bits_have_odd_cells_and_complete_rows():
    """Whichever family answers, it can be asked of rows with missing cells though the table had none."""
    columns = Columns(tuple(Column(f"b{i}", "binary") for i in range(4)))
    rng = np.random.default_rng(0)
    rows = torch.as_tensor((rng.random((60, 1)) < 0.5) ^ (rng.random((60, 4)) < 0.1)).float()
    for only in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learning, "candidates", lambda *args, only=only: [candidates(*args)[only]])
            found = learn(columns, rows, minutes=60, epochs=2)
        odd = odd_cells(found, columns, torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]))
        assert np.isfinite(odd.excess).all()
        assert odd.strangeness.std() > 0
        done = complete(found, rows[:3].masked_fill(torch.tensor([True, False, False, False]), math.nan), 4)
        assert np.isfinite(done.expected).all()
        assert set(np.unique(done.copies)) <= {0.0, 1.0}


def test_a_run_of_several_chains_completes_rows_with_each_chain_s_own_proposal(monkeypatch):
    """Latent units of chains need not correspond: a proposal of one chain says nothing of the weights of another."""
    rng = torch.Generator().manual_seed(0)
    columns = Columns(tuple(Column(f"b{i}", "binary") for i in range(4)))
    config = doubly.Config(model="sbn", hidden=(3,), proposal="sbn", batch=50)
    facts = Facts(4, "binary", (4,))
    method = build(config, facts)
    first, second = (torch.randn(2, method.model.size, generator=rng) for _ in range(2))
    train = torch.bernoulli(torch.full((100, 4), 0.5), generator=rng)
    phi = torch.zeros(method.proposal.size)
    chains = [Posterior(method, phi, of[-1], of[0], list(of), lambda: train) for of in (first, second)]
    chains[0].others = chains[1:]
    run = SimpleNamespace(
        posterior=lambda: chains[0], facts=facts, columns=columns, config=config, path="run",
        data=lambda: SimpleNamespace(split=lambda _: train.numpy()),
    )  # fmt: skip
    monkeypatch.setattr(table_runs, "MASKED_PASSES", 1)
    pairs = table_runs.learnt_of(run).pairs  # type: ignore[arg-type]
    assert [pair.theta.tolist() for pair in pairs] == [theta.tolist() for theta in (*first, *second)]
    assert torch.equal(pairs[0].phi, pairs[1].phi)
    assert torch.equal(pairs[2].phi, pairs[3].phi)
    assert not torch.equal(pairs[0].phi, pairs[2].phi)


def says(value: float) -> Mixture:
    """A mixture of one class and one real column that is sure of its value."""
    tiny = torch.full((1, 1, 1), 1e-12, dtype=torch.float64)
    return Mixture(Layout.of("r", 1), torch.ones(1).double(), torch.tensor([[value]]).double(), tiny, ())


def test_copies_are_of_the_members_as_their_weights_say():
    """0 with weight 0.9, 1 with 0.1, two copies: one of them is 1 in a fifth of the seeds. The mean of two has a
    standard deviation of 0.2; 400 seeds within five standard errors of 0.1. The expectation is 0.1 each time."""
    both, rows = SimpleNamespace(members=[(0.9, says(0.0)), (0.1, says(1.0))]), torch.full((1, 1), math.nan)
    done = [complete(both, rows, 2, seed) for seed in range(400)]  # type: ignore[arg-type]
    assert {each.copies.shape for each in done} == {(2, 1, 1)}
    assert abs(np.mean([each.copies for each in done]) - 0.1) < 5 * 0.2 / math.sqrt(400)
    assert abs(np.mean([each.copies[0] for each in done]) - 0.1) < 5 * 0.3 / math.sqrt(400)  # no place has a favourite
    np.testing.assert_allclose([each.expected[0, 0] for each in done], 0.1, atol=1e-6)
    ten = complete(both, rows, 10)  # type: ignore[arg-type]
    assert ten.copies.round().sum() == 1


def test_an_odd_cell_is_found(learnt):
    """A row whose y is three standard deviations off what x and c say stands first, and y is to blame."""
    columns, rows, found = learnt
    full = rows[~rows.isnan().any(1)][:40].clone()
    full[7] = torch.tensor([-1.5, -1.8, 0.0, 1.0])  # x low and c up, y low: x and y go opposite ways
    odd = odd_cells(found, columns, full)
    assert odd.strangeness.argmax() == 7
    assert np.isfinite(odd.excess).all()
    np.testing.assert_allclose(odd.excess.mean(0), 0, atol=1e-9)


def test_cells_are_odd_by_the_law_that_completes_them():
    """Two members of half the weight each, normals of independent columns around 0 and around 4: whatever the other
    cell is, a cell has the density of both by half, and the cells of a column are compared by it."""
    one = Layout.of("2r", 2), torch.ones(1).double(), torch.zeros(1, 2).double(), torch.eye(2).double()[None], ()
    members = [(0.5, Mixture(*one)), (0.5, Mixture(*one)._replace(mean=torch.full((1, 2), 4.0).double()))]
    columns = Columns((Column("a", "real"), Column("b", "real")))
    rows = torch.tensor([[0.0, 0.0], [4.0, 0.0], [1.0, 4.0], [-2.0, math.nan]])
    odd = odd_cells(SimpleNamespace(members=members), columns, rows)  # type: ignore[arg-type]
    each = np.log((stats.norm.pdf(rows) + stats.norm.pdf(rows - 4)) / 2)
    np.testing.assert_allclose(odd.excess, np.nanmean(each, 0) - each, atol=1e-6)
    both = np.nansum(stats.norm.logpdf(rows), 1), np.nansum(stats.norm.logpdf(rows - 4), 1)
    np.testing.assert_allclose(odd.log_prob, np.logaddexp(*both) - math.log(2), atol=1e-6)


def test_densities_of_small_tables_sum_to_one():
    """Bits and levels alone, all 12 rows: exp of the bound is unbiased; 200 draws, a sum of 12 with weights near 1."""
    rng = np.random.default_rng(0)
    data = {"a": rng.integers(0, 2, 80).tolist(), "c": [["x", "y", "z"][i] for i in rng.integers(0, 3, 80)]}
    data["b"] = [int(value == "x") for value in data["c"]]
    columns = guess(sheet_of(data)).columns
    rows = torch.as_tensor(columns.encode(data).astype(np.float32))
    found = learn(columns, rows, minutes=60, epochs=8)
    every = torch.tensor([[a, *np.eye(3)[c], b] for a in (0, 1) for c in range(3) for b in (0, 1)], dtype=torch.float32)
    assert np.exp(log_prob(found, every)).sum() == pytest.approx(1, abs=0.05)


def test_pure_noise_has_no_structure():
    """What answers is hardly worse on the hidden cells than the best, and says of noise little more than its columns
    alone.

    The one observation more of `stacked` adds (1/m) sum_k log w_k to the log-likelihood L of N rows under m models.
    Against w = (1 - 1/N) on the best of them and 1/N spread over all, the maximum has L >= L_best - 1 - log N.
    """
    rng = np.random.default_rng(1)
    columns = Columns((Column("a", "real"), Column("b", "real"), Column("c", "real")))
    rows = torch.as_tensor(rng.normal(size=(60, 3)).astype(np.float32))
    found = learn(columns, rows, minutes=60, epochs=4)
    cells = 60 * 3 * 0.05  # hidden at the least
    assert found.scores[found.name] >= found.scores["normal by EM"] - (1 + math.log(60)) / cells
    assert np.isfinite(log_prob(found, rows)).all()
    done = complete(found, rows.masked_fill(torch.tensor([True, False, False]), math.nan), 3)
    assert done.copies.shape == (3, 60, 3)
    assert done.expected[:, 0].std() < 0.6


def test_bits_get_families_of_bits():
    columns = Columns(tuple(Column(f"b{i}", "binary") for i in range(4)))
    assert [each.config.model for each in candidates(columns, 100)] == ["nade:width=50", "darn", "sbn"]
    rng = np.random.default_rng(0)
    rows = torch.as_tensor((rng.random((60, 1)) < 0.5) ^ (rng.random((60, 4)) < 0.1)).float()
    rows[0, :2] = math.nan
    found = learn(columns, rows, minutes=60, epochs=4)
    assert np.isfinite(log_prob(found, rows)).all()
    copies = complete(found, rows[:3], 4).copies
    assert set(np.unique(copies)) <= {0.0, 1.0}


def test_a_table_of_a_few_rows_is_refused():
    columns = Columns((Column("a", "real"), Column("b", "real")))
    with pytest.raises(UserError, match="at least 5"):
        learn(columns, torch.zeros(4, 2))


# In files


def cells_of(text: str) -> list[list[str]]:
    return [line.split(",") for line in text.splitlines()]


def test_fill_leaves_what_was_there_and_completes_the_rest(tmp_path, capsys):
    before = table(60).replace("\n", "\r\n").replace("dark red", '"dark red"')
    path = written(tmp_path, before)
    out, cells = tmp_path / "out.csv", tmp_path / "cells.csv"
    command = ["fill", str(path), "--out", str(out), "--copies", "2", "--cells", str(cells), "--epochs", "4"]
    cli.main(command)
    said = capsys.readouterr()
    assert "size    real" in said.err
    assert "id      left out" in said.err
    gaps = 0
    for name in (out, tmp_path / "out-1.csv", tmp_path / "out-2.csv"):
        after = name.read_bytes().decode()
        assert after.count("\r\n") == before.count("\r\n")
        for old, new in zip(cells_of(before), cells_of(after), strict=True):
            for a, b in zip(old, new, strict=True):
                assert a == b or (a == "" and b != "")
                gaps += a == ""
    assert gaps
    assert f"{gaps // 3} of {gaps // 3} missing cells completed" in said.out
    assert (tmp_path / "out-1.csv").read_bytes() != (tmp_path / "out-2.csv").read_bytes()
    lines = cells_of(cells.read_text())
    assert len(lines) == 1 + gaps // 3
    assert lines[0][:3] == ["line", "column", "value"]


def test_a_complete_table_comes_back_as_it_is(tmp_path):
    path = written(tmp_path, table(40, missing=0.0))
    complete_file(str(path), str(tmp_path / "out.csv"))
    assert (tmp_path / "out.csv").read_bytes() == path.read_bytes()


def test_decimal_commas_and_semicolons_come_back(tmp_path):
    text = table(40).replace(",", ";").replace(".", ",")
    path = written(tmp_path, text)
    complete_file(f"{path}:decimal=comma", str(tmp_path / "out.csv"), epochs=2)
    sizes = [line.split(";")[5] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    assert all("," in size and "." not in size for size in sizes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,x\n2,y\n3,\n", "at least 5"),
        ("a,b\n1,1\n,1\n", "no column to learn from"),
        ("a,b\n1,2\n1,2,3\n", "line 3"),
        ("a,b\n1.5,x\n2.5,y\nthree,z\n", "which is no number"),
        ("", "is empty"),
    ],
)
def test_bad_tables_are_one_line_and_nothing_is_written(text, said, tmp_path, capsys):
    path = written(tmp_path, text)
    with pytest.raises(SystemExit):
        cli.main(["fill", str(path), "--out", str(tmp_path / "out.csv")])
    err = capsys.readouterr().err.strip().splitlines()
    assert said in err[-1]
    assert not (tmp_path / "out.csv").exists()


def test_the_table_itself_is_never_overwritten(tmp_path):
    path = written(tmp_path, table())
    with pytest.raises(UserError, match="the table itself"):
        complete_file(str(path), str(path))


def test_odd_rows_name_the_row_and_the_cell(tmp_path, capsys):
    lines = table(80, missing=0.05).splitlines()
    odd = lines[21].split(",")
    odd[5] = "99.9"
    lines[21] = ",".join(odd)
    path = written(tmp_path, "\n".join(lines) + "\n")
    found = odd_rows(str(path), n=3, out=str(tmp_path / "odd.csv"), epochs=4)
    first = found.rows[0]
    assert first.line == 22
    assert first.names == {"id": "120", "note": "remark 20"}
    assert first.cells[0].column == "size"
    assert first.cells[0].value == "99.9"
    assert "±" in first.cells[0].expected
    assert len((tmp_path / "odd.csv").read_text().splitlines()) == 81
    assert "line 22, id 120" in found.text()


# Pooling


def test_rubins_rules_by_hand():
    found = doubly.pool([[1.0, 5.0], [3.0, 5.0]], [[0.5, 2.0], [1.5, 2.0]])
    np.testing.assert_allclose(found.estimate, [2, 5])
    np.testing.assert_allclose(found.within, [1, 2])
    np.testing.assert_allclose(found.between, [2, 0])
    np.testing.assert_allclose(found.variance, [1 + 1.5 * 2, 2])
    np.testing.assert_allclose(found.dof, [1 / (3 / 4) ** 2, math.inf])
    np.testing.assert_allclose(found.missing_information, [0.75, 0])
    low, high = found.interval(0.9)
    assert high[0] - low[0] == pytest.approx(2 * 2 * stats.t.ppf(0.95, 16 / 9))
    exact = doubly.pool([1.0, 3.0], [0.5, 1.5], complete_dof=10)
    observed = 11 / 13 * 10 * 0.25
    assert float(exact.dof) == pytest.approx(1 / (1 / (16 / 9) + 1 / observed))


@pytest.mark.parametrize(
    ("estimates", "variances", "said"),
    [
        ([1.0], [1.0], "at least 2"),
        ([1, 2], [1], "same shape"),
        ([1, math.nan], [1, 1], "finite"),
        ([1, 2], [1, -1], "negative"),
    ],
)
def test_what_cannot_be_pooled_is_refused(estimates, variances, said):
    with pytest.raises(UserError, match=said):
        doubly.pool(estimates, variances)


def test_pooled_standard_errors_are_right():
    """A slope from five copies that are drawn from the right law: over 400 tables, intervals of 90 % cover in
    0.9 ± 4 sqrt(0.09 / 400) = 0.84 to 0.96 of the cases; without the variance between the copies, in fewer.

    x is standard normal, y = x + e, and half of the y are missing. Given the observed, the slope and the noise have a
    closed posterior, from which each copy draws first: this is what a completed copy has to do.
    """
    rng = np.random.default_rng(0)
    covered, naive = 0, 0
    for _ in range(400):
        n = 60
        x = rng.normal(size=n)
        y = x + rng.normal(size=n)
        seen = rng.random(n) < 0.5
        slopes, variances = [], []
        a = np.stack([np.ones(n), x], 1)
        known = np.linalg.inv(a[seen].T @ a[seen])
        fit = known @ a[seen].T @ y[seen]
        rest = ((y[seen] - a[seen] @ fit) ** 2).sum()
        for _ in range(5):
            sigma2 = rest / rng.chisquare(seen.sum() - 2)
            beta = rng.multivariate_normal(fit, sigma2 * known)
            copy = np.where(seen, y, a @ beta + math.sqrt(sigma2) * rng.normal(size=n))
            around = x - x.mean()
            slope = around @ copy / (around @ around)
            noise = ((copy - copy.mean() - slope * around) ** 2).sum() / (n - 2)
            slopes.append(slope)
            variances.append(noise / (around @ around))
        found = doubly.pool(slopes, variances, complete_dof=n - 2)
        low, high = found.interval(0.9)
        covered += int(low < 1 < high)
        naive += int(abs(found.estimate - 1) < 1.645 * math.sqrt(found.within))
    assert 0.84 < covered / 400 < 0.96
    assert naive / 400 < 0.84
