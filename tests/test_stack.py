"""Mixtures by EM and the stack of what suits hidden cells: exact laws of small cases."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from doubly.runs.mixture import Layout, Mixture, by_em, conditioned
from doubly.runs.stack import (
    INFLATIONS,
    TRIAL,
    answering,
    bootstrap,
    contest,
    designs,
    hold_out,
    pruned,
    stacked,
)

LAYOUT = Layout.of("r-c3-r-b", 6)
SHARE = torch.tensor([0.3, 0.7], dtype=torch.float64)
MEAN = torch.tensor([[1.0, -1.0], [0.0, 2.0]], dtype=torch.float64)
COVARIANCE = torch.tensor([[[1.0, 0.6], [0.6, 0.8]], [[0.5, -0.2], [-0.2, 1.5]]], dtype=torch.float64)
LEVELS = (
    torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype=torch.float64),
    torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64),
)
TWO = Mixture(LAYOUT, SHARE, MEAN, COVARIANCE, LEVELS)
NAN = math.nan


def by_hand(x: float | None, level: int | None, y: float | None, bit: int | None) -> float:
    """p of what is given, class by class."""
    total = 0.0
    for k in range(2):
        at = [i for i, value in enumerate((x, y)) if value is not None]
        values = [value for value in (x, y) if value is not None]
        p = float(SHARE[k])
        if at:
            p *= stats.multivariate_normal(MEAN[k, at].numpy(), COVARIANCE[k].numpy()[np.ix_(at, at)]).pdf(values)
        p *= 1 if level is None else float(LEVELS[0][k, level])
        p *= 1 if bit is None else float(LEVELS[1][k, bit])
        total += p
    return total


def row(x: float | None, level: int | None, y: float | None, bit: int | None) -> torch.Tensor:
    hot = [NAN] * 3 if level is None else [float(level == i) for i in range(3)]
    return torch.tensor([[NAN if x is None else x, *hot, NAN if y is None else y, NAN if bit is None else bit]])


CASES = [(0.5, 1, -0.3, 1), (None, 2, 0.4, 0), (1.2, None, None, 1), (None, 0, None, None), (None,) * 4]


@pytest.mark.parametrize("case", CASES)
def test_the_density_of_the_observed_is_that_by_hand(case):
    assert TWO.log_prob(row(*case)).exp().item() == pytest.approx(by_hand(*case), rel=1e-6)


def test_completions_follow_the_law_of_what_is_missing():
    """E[x | level, y, bit] and p(level | x, y) by hand; 4,000 copies within five standard errors of them."""
    seen = row(None, 2, 0.4, 0)
    weight = [by_hand_class(k, 0.4, 2, 0) for k in range(2)]
    gain = COVARIANCE[:, 0, 1] / COVARIANCE[:, 1, 1]
    centres = (MEAN[:, 0] + gain * (0.4 - MEAN[:, 1])).numpy()
    exact = np.dot(weight, centres) / sum(weight)
    mean, copies = TWO.complete(seen, 4000, torch.Generator().manual_seed(0))
    assert mean[0, 0].item() == pytest.approx(exact, abs=1e-5)
    assert abs(copies[:, 0, 0].mean() - exact) < 5 * copies[:, 0, 0].std() / math.sqrt(4000)
    left = (COVARIANCE[:, 0, 0] - gain * COVARIANCE[:, 0, 1]).numpy()
    variance = np.dot(weight, left + centres**2) / sum(weight) - exact**2
    assert copies[:, 0, 0].var().item() == pytest.approx(variance, rel=5 * math.sqrt(3 / 4000))
    assert (copies[:, 0, 1:] == seen[0, 1:]).all()
    mean, copies = TWO.complete(row(1.2, None, -0.5, None), 4000, torch.Generator().manual_seed(0))
    law = np.array([by_hand(1.2, level, -0.5, None) for level in range(3)]) / by_hand(1.2, None, -0.5, None)
    np.testing.assert_allclose(mean[0, 1:4], law, atol=1e-5)
    assert (copies[:, 0, 1:4].sum(1) == 1).all()
    assert (abs(copies[:, 0, 1:4].mean(0).numpy() - law) < 5 * np.sqrt(law * (1 - law) / 4000)).all()
    assert set(copies[:, 0, 5].tolist()) == {0.0, 1.0}


def by_hand_class(k: int, y: float, level: int, bit: int) -> float:
    p = stats.norm(float(MEAN[k, 1]), math.sqrt(float(COVARIANCE[k, 1, 1]))).pdf(y)
    return float(SHARE[k] * LEVELS[0][k, level] * LEVELS[1][k, bit]) * p


def drawn(n: int, share: float, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    rows = TWO.complete(torch.full((n, 6), NAN), 1, rng)[1][0]
    hidden = torch.rand(n, 4, generator=rng) < share
    return rows.masked_fill(hidden[:, [0, 1, 1, 1, 2, 3]], NAN)


def test_em_climbs_and_finds_two_classes():
    """Without priors the likelihood never falls (the ridge and the pull on shares are worth less than 0.01 a row);
    the law that rows were drawn from is at most 0.1 nats a row better on others, for some 14 parameters and 1,000
    rows: half a nat of each in all would be 0.007."""
    rows, others = drawn(1000, 0.2), drawn(500, 0.2, seed=1)
    steps = [by_em(LAYOUT, rows, 2, 0, iterations=i).log_prob(rows).mean().item() for i in (2, 5, 10, 30)]
    assert all(b > a - 0.01 for a, b in itertools.pairwise(steps))
    found = by_em(LAYOUT, rows, 2, 0, iterations=30)
    assert found.log_prob(others).mean() > TWO.log_prob(others).mean() - 0.1
    one = by_em(LAYOUT, rows, 1, 0)
    assert one.log_prob(others).mean() < found.log_prob(others).mean()


def test_em_knows_how_uncertain_missing_entries_are():
    """Independent columns of variance 1, three tenths missing: completed by their means alone, they would lose as much.

    2,800 of 4,000 entries are there: their variance has a standard error of sqrt(2 / 2800), of which five are allowed.
    """
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(4000, 2, generator=rng).masked_fill(torch.rand(4000, 2, generator=rng) < 0.3, NAN)
    found = by_em(Layout.of("2r", 2), rows, 1, 0).covariance[0]
    np.testing.assert_allclose(found.diagonal(), 1, atol=5 * math.sqrt(2 / 2800) + 1e-3)


def test_rows_count_as_their_weights_say():
    """A row of weight two is a row that is there twice, a row of weight zero is not there."""
    rows = drawn(60, 0.2)
    weight = torch.ones(60, dtype=torch.float64)
    weight[:5], weight[5:10] = 2, 0
    twice = torch.cat([rows[:5], rows[:5], rows[10:]])
    one, other = by_em(LAYOUT, rows, 1, 3, 2, weight), by_em(LAYOUT, twice, 1, 3, 2)
    torch.testing.assert_close(one.mean, other.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(one.covariance, other.covariance, atol=1e-6, rtol=0)
    torch.testing.assert_close(one.levels[0], other.levels[0], atol=1e-3, rtol=0)


def test_a_diagonal_draws_columns_apart():
    rows = drawn(100, 0.0)
    loose, tight = (by_em(LAYOUT, rows, 1, 0, diagonal).covariance[0] for diagonal in (0.0, 100.0))
    assert tight[0, 1].item() == pytest.approx(loose[0, 1].item() / 2)
    assert tight[0, 0].item() == pytest.approx(loose[0, 0].item())


def test_conditioning_is_the_schur_complement():
    known = conditioned(MEAN[0], COVARIANCE[0], torch.tensor([[NAN, 0.4]], dtype=torch.float64))
    left = COVARIANCE[0, 0, 0] - COVARIANCE[0, 0, 1] ** 2 / COVARIANCE[0, 1, 1]
    torch.testing.assert_close(known.left[0], torch.tensor([[left, 0], [0, 0]], dtype=torch.float64))
    assert known.completed[0, 0].item() == pytest.approx(1 + 0.6 / 0.8 * 1.4)


# The stack


def test_hidden_cells_were_observed_and_every_row_keeps_one():
    rows = drawn(400, 0.3)
    held = hold_out(LAYOUT, rows, torch.Generator().manual_seed(0))
    gone = held.seen.isnan() & ~rows.isnan()
    assert (gone[:, 1:4].sum(1) % 3 == 0).all()
    assert held.cells == gone[:, [0, 1, 4, 5]].sum()
    there = ~rows.isnan().all(1)
    assert (~held.seen.isnan()).any(1)[there].all()
    share = held.cells / (~rows[:, [0, 1, 4, 5]].isnan()).sum().item()
    assert 0.1 < share < 0.25
    kept_cells = ~held.seen.isnan()
    assert torch.equal(held.seen[kept_cells], rows[kept_cells])


def test_stacking_finds_the_best_weights():
    """Two densities of which each is right for its part of the rows: the weights are these parts; a third that is
    worse everywhere gets nothing."""
    scores = torch.full((3, 1000), -9.0, dtype=torch.float64)
    scores[0, :300], scores[1, 300:], scores[2] = 0.0, 0.0, -30.0
    weight = pruned(stacked(scores))
    np.testing.assert_allclose(weight, [0.3, 0.7, 0], atol=0.01)
    assert pruned(torch.tensor([0.01, 0.99], dtype=torch.float64)).tolist() == [0, 1]
    # rows that belong to one model each: n_k of n, and of one observation more an equal part
    scores = torch.full((3, 10), -1000.0, dtype=torch.float64)
    scores[0, :3], scores[1, 3:] = 0.0, 0.0
    np.testing.assert_allclose(stacked(scores), (np.array([3, 7, 0]) + 1 / 3) / 11, atol=1e-12)


def test_the_right_number_of_classes_is_weighed_and_answers():
    rows = drawn(300, 0.1)
    held = hold_out(LAYOUT, rows, torch.Generator().manual_seed(0))
    entrants = contest(LAYOUT, held, 0, lambda: True)
    assert entrants[0].design.name == "normal by EM"
    sums = {each.design.name: float(each.scores.sum()) for each in entrants}
    assert sums["2 classes"] > sums["normal by EM"]
    assert len(contest(LAYOUT, held, 0, lambda: False)) == 1
    weight = pruned(stacked(torch.stack([each.scores for each in entrants])))
    chosen = [(each.design, float(w)) for each, w in zip(entrants, weight, strict=True) if w > 0]
    found = answering([d for d, _ in chosen], [w for _, w in chosen], LAYOUT, rows, 0, lambda: True)
    assert sum(w for w, _ in found) == pytest.approx(1)
    assert len(found) >= len(chosen)
    assert len(answering([chosen[0][0]], [1.0], LAYOUT, rows, 0, lambda: False)) == 1


def test_the_inflation_is_the_one_that_suits_hidden_cells_best():
    """The scores of a contestant are those of its design with that inflation, and no other has a larger sum."""
    rows = drawn(40, 0.1)  # few rows, for which a mixture is too sure of itself
    held = hold_out(LAYOUT, rows, torch.Generator().manual_seed(0))
    factors = set()
    for each in contest(LAYOUT, held, 0, lambda: True):
        plain = each.design._replace(inflation=1.0).fit(LAYOUT, held.seen, 0, iterations=TRIAL)
        assert torch.equal(plain.inflated(1.5).covariance, 1.5 * plain.covariance)
        sums = {factor: float(held.score(plain.inflated(factor).log_prob).sum()) for factor in INFLATIONS}
        assert each.design.inflation == max(sums, key=sums.__getitem__)
        assert float(each.scores.sum()) == pytest.approx(sums[each.design.inflation])
        factors.add(each.design.inflation)
    assert len(factors) > 1, "or the test sees nothing"


def test_rows_of_a_bootstrap_count_by_an_exponential_law():
    """A KS test fails by chance for one seed in 10,000; EM bears a class of which all rows count next to nothing."""
    count = bootstrap(5000, torch.Generator().manual_seed(0))
    assert stats.kstest(count.numpy(), stats.expon.cdf).pvalue > 1e-4
    rows = drawn(60, 0.2)
    weight = bootstrap(60, torch.Generator().manual_seed(1))
    weight[rows[:, 5] == 1] = 1e-16
    for classes in (1, 3):
        assert by_em(LAYOUT, rows, classes, 2, 0, weight).log_prob(rows).isfinite().all()


def test_no_class_has_too_few_rows():
    assert {each.classes for each in designs(LAYOUT, 40)} == {1, 2, 3}
    assert {each.classes for each in designs(LAYOUT, 5)} == {1}
