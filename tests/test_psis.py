"""The shape of the tail of importance weights: known laws, another program's numbers, and what has no tail."""

import math

import pytest
import torch
from torch import Tensor

from doubly import UserError
from doubly.latents.psis import PRIOR_DRAWS, PRIOR_SHAPE, khat, tail_length

DRAWS, ROWS = 10_000, 200
TAIL = 300


def pareto(k: float, rng: torch.Generator, draws: int = DRAWS, rows: int = ROWS) -> Tensor:
    """log w of generalised Pareto draws, P(w > y) = (1 + k y)^(-1/k), (draws, rows)."""
    exponential = -torch.rand(draws, rows, generator=rng, dtype=torch.float64).clamp_(min=1e-300).log()
    return (exponential if k == 0 else torch.expm1(k * exponential) / k).log()


@pytest.mark.parametrize("k", [-0.1, 0.0, 0.3, 0.7, 1.5])
def test_the_shape_of_exact_draws_is_found(k: float):
    """Above any threshold, generalised Pareto draws are generalised Pareto with the same k.

    The most likely k of n draws has the variance (1 + k)² / n as n grows (Smith 1987), and the estimate of Zhang and
    Stephens nearly the same; what the prior does to it is undone here. So, with T = 300 and s = (1 + k) / sqrt(T):
    no row is off by more than 5 s (1000 normal draws are all within 5 but for one time in 1700); the mean over 200 rows
    is off by no more than 4 s / sqrt(200) and a bias that falls like 1 / T, for which 3 / T is allowed; and the spread
    over rows is s within 20 %, which is 4 of its standard errors s / sqrt(2 · 200), and 5 % for terms in 1 / T.
    """
    assert tail_length(DRAWS) == TAIL
    found = khat(pareto(k, torch.Generator().manual_seed(1)), DRAWS)
    assert found.shape == (ROWS,)
    without_prior = ((TAIL + PRIOR_DRAWS) * found - PRIOR_DRAWS * PRIOR_SHAPE) / TAIL
    s = (1 + k) / math.sqrt(TAIL)
    assert (without_prior - k).abs().max() < 5 * s
    assert abs(without_prior.mean() - k) < 4 * s / math.sqrt(ROWS) + 3 / TAIL
    assert abs(without_prior.std() / s - 1) < 0.25


def wavy(draws: int, scale: float) -> Tensor:
    """Log-weights that are the same on every machine."""
    i = torch.arange(draws, dtype=torch.float64)
    return (scale * (torch.sin(i * i + 1) - torch.log((i + 0.5) / draws)))[:, None]


REFERENCE = [
    (25, 1.0, 1.0293499257075513),
    (100, 0.1, 0.2856258403016831),
    (100, 0.5, 0.4950510492491008),
    (1000, 0.3, 0.3451322451703584),
    (1000, 1.0, 0.9656816020579592),
    (5000, 0.6, 0.5508501247959208),
]


@pytest.mark.parametrize(("draws", "scale", "expected"), REFERENCE)
def test_another_program_finds_the_same(draws: int, scale: float, expected: float):
    """psislw of ArviZ 0.21, whose tail and prior are those of the R package loo."""
    assert khat(wavy(draws, scale), draws).item() == pytest.approx(expected, abs=1e-9)


def test_rows_do_not_know_of_each_other():
    """All rows at once, of which some have ties and so fewer weights above the threshold, are the rows one by one."""
    rng = torch.Generator().manual_seed(2)
    log_weight = torch.randn(400, 6, generator=rng, dtype=torch.float64) * 2
    log_weight[:, 3:] = log_weight[:, 3:].mul(2).round() / 2
    found = khat(log_weight, 400)
    for row in range(6):
        torch.testing.assert_close(found[row], khat(log_weight[:, row, None], 400)[0], rtol=0, atol=1e-12)


def test_only_ratios_of_weights_matter():
    """A constant added to the log-weights changes nothing, however large or small it makes the weights.

    Log-weights of about 1e4 are kept to 1e-12, which is what k may then change by, times some tens.
    """
    log_weight = pareto(0.5, torch.Generator().manual_seed(3), rows=5)
    found = khat(log_weight, DRAWS)
    for constant in (-1e4, -3.0, 1e4):
        torch.testing.assert_close(khat(log_weight + constant, DRAWS), found, rtol=0, atol=1e-9)


def test_the_largest_suffice_in_any_order_and_precision():
    log_weight = pareto(0.5, torch.Generator().manual_seed(4), rows=5)
    found = khat(log_weight, DRAWS)
    largest = log_weight.topk(TAIL + 1, 0).values
    assert torch.equal(khat(largest, DRAWS), found)
    shuffled = largest[torch.randperm(TAIL + 1, generator=torch.Generator().manual_seed(5))]
    assert torch.equal(khat(shuffled, DRAWS), found)
    single = khat(largest.float(), DRAWS)
    assert single.dtype == torch.float64
    torch.testing.assert_close(single, found, rtol=0, atol=1e-4)


def test_heavier_tails_have_larger_shapes():
    """Powers of Pareto weights: w^c has the shape c k, and the log-weights are the same but for a factor."""
    log_weight = -torch.rand(DRAWS, 1, generator=torch.Generator().manual_seed(6), dtype=torch.float64).log()
    found = khat(log_weight * torch.tensor([0.1, 0.3, 0.5, 0.8, 1.2]), DRAWS)
    assert (found.diff() > 0.1).all()


def test_weights_of_zero_are_weights():
    """Impossible draws, log-weights of -inf, are below the threshold, or are it: then all others are above 0.

    The same is found if they are merely tiny.
    """
    rng = torch.Generator().manual_seed(7)
    log_weight = pareto(0.5, rng, draws=1000, rows=4)
    for share in (0.5, 0.98):
        holes = torch.rand(1000, 4, generator=rng) < share
        found = khat(log_weight.masked_fill(holes, -math.inf), 1000)
        assert found.isfinite().all()
        torch.testing.assert_close(found, khat(log_weight.masked_fill(holes, -800.0), 1000), rtol=0, atol=1e-12)


def test_what_is_not_a_number_has_no_shape():
    log_weight = pareto(0.5, torch.Generator().manual_seed(8), draws=100, rows=4)
    log_weight[3, 0], log_weight[3, 1], log_weight[:, 2] = math.nan, math.inf, -math.inf
    found = khat(log_weight, 100)
    assert found[:3].isnan().all()
    assert found[3].isfinite()


def test_equal_weights_have_no_tail():
    """-inf: an exact proposal, or a largest weight that a fifth of all draws have."""
    assert khat(torch.full((100, 3), -7.0), 100).tolist() == [-math.inf] * 3
    log_weight = -torch.arange(100.0)[:, None]
    log_weight[:21] = 0
    assert khat(log_weight, 100).tolist() == [-math.inf]


def test_too_few_weights_in_the_tail_say_nothing():
    """nan: 20 draws have a tail of 4, and 21 one of 5; ties with the threshold are not above it."""
    log_weight = torch.arange(21.0)[:, None] / 5
    assert khat(log_weight[:20], 20).isnan().all()
    assert khat(log_weight, 21).isfinite().all()
    assert khat(log_weight.clamp(max=3.8), 21).isfinite().all()
    assert khat(log_weight.clamp(min=3.4), 21).isnan().all()


def test_the_length_of_the_tail():
    """min(K / 5, 3 sqrt K) rounded up: they cross at K = 225."""
    assert [tail_length(k) for k in (1, 5, 6, 225, 226, 10_000)] == [1, 1, 2, 45, 46, 300]
    with pytest.raises(UserError, match="tail of 100 weights is 20 of them and a threshold, got only 20"):
        khat(torch.zeros(20, 3), 100)
