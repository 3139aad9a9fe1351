"""Scoring by many draws: its errors are what they say, its memory is bounded, and draws are saved where they may be."""

import dataclasses
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubly import Chain, UserError
from doubly.latents import LikelihoodConfig, PartialSums, log_likelihood
from doubly.latents.importance import propose
from doubly.latents.likelihood import GROUPS, RELIABLE, _add, _ess, _khat, _noise, fresh
from doubly.latents.pair import Pair
from exact import bits
from forks import call


def case(off: float) -> Pair:
    rng = torch.Generator().manual_seed(1)
    model, proposal = (build("sbn", data=6, hidden=(5,)) for build in (Chain.build, Chain.build_proposal))
    theta = torch.randn(model.size, generator=rng)
    phi = off * torch.randn(proposal.size, generator=rng)
    return Pair(model, theta, proposal, phi)


def enumerated(given: Pair, x: Tensor) -> Tensor:
    z = bits(5).unsqueeze(1)
    return given.model.log_prob(given.theta.double(), (x.double(), z.expand(32, len(x), 5))).logsumexp(0)


def test_the_noise_of_a_row_is_the_spread_of_its_score():
    """2,000 copies of a row: the mean square of the bootstrap errors is the variance of the scores.

    That variance is known to sqrt(2 / 2000) = 3 % (standard deviations), each row's bootstrap variance from 20 groups
    and 200 replicates to sqrt(2/19 + 2/200) = 34 %, and their mean over 2,000 rows to 0.8 %: 4 of these are 13 %. The
    logarithm is not linear, which adds terms of order 1 / effective draws: below 1 % at the hundreds that there are.
    """
    given = case(off=0.5)
    x = bits(6)[[11]].repeat(2000, 1)
    found = log_likelihood(given, x, LikelihoodConfig(draws=400))
    assert found.ess.mean() > 100
    assert found.noise.square().mean().item() == pytest.approx(found.log_likelihood.var().item(), rel=0.14)


def test_the_score_is_the_enumerated_one_within_its_noise():
    """Errors over 64 rows in units of their noise: a chi-square of 64, whose mean is 64 and standard deviation 11.

    The noise is itself an estimate by 20 groups, so the ratio is a Student's t, and each square has mean 19/17 and
    variance 3 at most: 4 standard deviations of the sum of 64 are 4 * sqrt(64 * 3.4) = 59 above 72.
    """
    given, x = case(off=0.5), bits(6)
    found = log_likelihood(given, x, LikelihoodConfig(draws=20_000))
    assert ((found.log_likelihood - enumerated(given, x)) / found.noise).square().sum() < 72 + 59
    assert (found.draws == 20_000).all()


def test_draws_are_spent_where_they_are_needed():
    """A row gets its last round exactly when the one before was worth enough and had no heavy tail."""
    given, x, how = case(off=1.0), bits(6), LikelihoodConfig(draws=12_800, adaptive=True)
    after: dict[int, PartialSums] = {}  # what each round ended with

    def watch(sums: PartialSums, share: float) -> None:
        after[int(sums.round)] = PartialSums(*(tensor.clone() for tensor in sums))

    found = log_likelihood(given, x, how, watch=watch)
    ends = torch.tensor(how.rounds()).cumsum(0).tolist()
    assert torch.isin(found.draws, torch.tensor(ends[1:]).float()).all(), "a round that decides, and one that is scored"
    assert found.draws.unique().numel() > 2
    for r, end in enumerate(ends[1:-1], start=1):
        settled = (_ess(after[r - 1]) >= how.enough) & (_khat(after[r - 1]) <= RELIABLE)
        still_there = found.draws >= end
        assert torch.equal((found.draws == end)[still_there], settled[still_there]), "no sooner and no later"


def test_stopping_when_it_looks_good_does_not_change_the_score():
    """Over 3,000 copies of each of 8 rows, the mean weight is p(x), within 4 standard errors, as with fixed draws.

    Were the draws that decide averaged too, a row would stop on a lucky round. With so few draws `enough` that shifts
    the mean of a row by 2 %, which is eight standard errors here.
    """
    given, how = case(off=1.0), LikelihoodConfig(draws=1600, adaptive=True, enough=20)
    x = bits(6)[:64:8]
    found = log_likelihood(given, x.repeat(3000, 1), how)
    ratio = (found.log_likelihood.double() - enumerated(given, x).repeat(3000)).exp().view(3000, 8)
    assert found.draws.unique().numel() > 2
    assert ((ratio.mean(0) - 1).abs() <= 4 * ratio.std(0) / math.sqrt(3000)).all()


def test_a_round_whose_tail_is_unknown_does_not_settle_a_row(monkeypatch):
    """Weights of which k̂ can say nothing (NaN) are drawn to the end, however many of them are effective."""
    given, x, how = case(off=0.0), bits(6)[:4], LikelihoodConfig(draws=1600, adaptive=True, enough=1.0)
    assert (log_likelihood(given, x, how).draws < 1600).any()
    monkeypatch.setattr("doubly.latents.likelihood.khat", lambda largest, n: largest[0].double() * math.nan)
    assert (log_likelihood(given, x, how).draws == 1600).all()


def test_groups_are_filled_evenly_however_small_the_parts():
    """7 draws at a time, which end in another group each time: sums and noise are those of all draws in one part."""
    given, how = case(off=0.5), LikelihoodConfig(draws=140)
    x, rows = bits(6)[[11]].repeat(500, 1), torch.arange(500)
    log_weight = propose(given, x.float(), 140, torch.Generator().manual_seed(0)).log_weight
    whole, parts = (fresh(how, x, given.proposal) for _ in range(2))
    _add(whole, rows, log_weight)
    for part in log_weight.split(7):
        _add(parts, rows, part)
    assert (parts.counts == 7).all()
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(_noise(parts, 0), _noise(whole, 0), rtol=1e-9, atol=0)

    counts, totals = [], [-math.inf]

    def watch(sums: PartialSums, share: float) -> None:
        counts.append(sums.counts[:, 0].clone())
        totals.append(float(sums.sums[:, 0].logsumexp(0)))

    log_likelihood(given, x[:1], dataclasses.replace(how, memory=7 * 11 * 16 / 2**20), watch=watch)
    assert [int(count.sum()) for count in counts] == list(range(7, 141, 7))
    assert all(count.max() - count.min() <= 1 for count in counts)
    added = torch.tensor(totals).exp().diff()
    assert len(added.unique()) > 10, "each part has draws of its own"


def test_the_adaptive_score_stops_and_goes_on_bit_for_bit():
    given, x, how = case(off=1.0), bits(6), LikelihoodConfig(draws=3200, adaptive=True, memory=0.2)
    tallies = []

    def keep(sums: PartialSums, share: float) -> None:
        tallies.append((PartialSums(*(tensor.clone() for tensor in sums)), share))

    whole = log_likelihood(given, x, how, watch=keep)
    shares = [share for _, share in tallies]
    assert len(tallies) > 10
    assert shares == sorted(shares)
    for sums, _ in tallies[::5]:
        again = log_likelihood(given, x, how, sums)
        torch.testing.assert_close(again, whole, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("draws", [1, 2, GROUPS - 1, GROUPS, 3 * GROUPS + 1])
def test_any_number_of_draws_is_counted_once(draws):
    given, x = case(off=0.5), bits(6)[:3]
    found = log_likelihood(given, x, LikelihoodConfig(draws=draws))
    assert found.draws.tolist() == [draws] * 3
    assert (found.ess <= draws * (1 + 1e-6)).all()
    assert found.noise.isnan().all() == (draws == 1), "a single draw does not say how much draws vary"
    assert draws == 1 or (found.noise > 0).all()
    assert torch.isfinite(found.log_likelihood).all()


def test_an_exact_model_needs_no_draws():
    chain = Chain.build("sbn", data=6)
    theta = chain.init(torch.Generator().manual_seed(0), torch.full((6,), 0.3))
    found = log_likelihood(
        Pair(chain, theta, Chain.build_proposal("sbn", data=6, hidden=()), torch.zeros(0)), bits(6), LikelihoodConfig()
    )
    torch.testing.assert_close(found.log_likelihood.logsumexp(0), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert (found.noise == 0).all()
    assert (found.khat == -math.inf).all()


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"memory": 0.0}, {"memory": math.inf}, {"enough": -1.0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        LikelihoodConfig(**wrong)


def megabytes(name: str) -> float:
    found = re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def used(memory: float) -> float:
    """In a process of its own: by how many megabytes its memory grows at most while rows are scored."""
    torch.set_num_threads(1)
    model, proposal = (build("sbn", data=784, hidden=(200,)) for build in (Chain.build, Chain.build_proposal))
    rng = torch.Generator().manual_seed(0)
    given = Pair(model, model.init(rng), proposal, proposal.init(rng))
    x = (torch.rand(8, 784, generator=rng) < 0.13).byte()
    log_likelihood(given, x, LikelihoodConfig(draws=20, memory=1.0))  # kernels are compiled
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = megabytes("VmRSS")
    log_likelihood(given, x, LikelihoodConfig(draws=20_000, memory=memory))
    return megabytes("VmHWM") - before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a stretch of work")
def test_memory_stays_within_the_setting():
    """Unbounded, 8 rows of 20,000 draws of 984 cells would be 600 MB for a single tensor."""
    assert 10 < call(used, 96.0) < 96
