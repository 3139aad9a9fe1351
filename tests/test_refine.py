"""Proposals refined row by row: each row's own weights do what they say, the score stays right and becomes tighter."""

import math

import pytest
import torch
from torch import Tensor

from doubly import Chain, UserError
from doubly.latents import LikelihoodConfig, PartialSums, log_likelihood
from doubly.latents.pair import Pair
from doubly.latents.refine import refine
from exact import bits


def belief_network(off: float = 0.5) -> Pair:
    """6 bits with 5 hidden ones, and a proposal that has learnt nothing."""
    rng = torch.Generator().manual_seed(1)
    model, proposal = (build("sbn", data=6, hidden=(5,)) for build in (Chain.build, Chain.build_proposal))
    return Pair(
        model, torch.randn(model.size, generator=rng), proposal, off * torch.randn(proposal.size, generator=rng)
    )


def posterior(model: Chain, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x) and p(z | x) of a row, by enumeration."""
    z = bits(5)
    joint = model.log_prob(theta.double(), (x.double().expand(len(z), -1), z.double()))
    return joint.logsumexp(0), joint.softmax(0)


@pytest.mark.parametrize("names", ["sbn", "mlp:widths=7", "gaussian:widths=7", "gaussian:widths=none,mlp:widths=3"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_what_a_row_has_of_its_own_is_added_to_the_biases(names, kind):
    """Two rows with shifts of their own are drawn as each alone is from weights into which its shifts were written."""
    chain = Chain.build_proposal(names, data=4, hidden=(3, 2))
    rng = torch.Generator().manual_seed(0)
    theta, x = torch.randn(chain.size, generator=rng).to(kind), torch.randn(2, 4, generator=rng).to(kind)
    shifts = torch.randn(2, chain.n_row_biases, generator=rng).to(kind)
    drawn = chain.draw(theta, x, rng, 50, shifts=shifts)
    for row in range(2):
        moved = theta.clone()
        parts = iter(shifts[row].split([layer.n_out for layer in chain.layers for _ in layer.row_biases()]))
        for layer, params in zip(chain.layers, chain.unflatten(moved), strict=True):
            for name in layer.row_biases():
                params[name] += next(parts)
        values = tuple(value[:, row] for value in drawn.values)
        torch.testing.assert_close(drawn.log_prob[:, row], chain.log_prob(moved, values, x[row].expand(50, -1)))


@pytest.mark.parametrize("row", [0, 11, 37, 63])
def test_refining_finds_the_marginals_of_the_posterior(row):
    """Of independent bits, those with the posterior's own marginals are nearest: nine tenths of the way, in nats."""
    given = belief_network()
    x = bits(6)[[row]].float()
    model, theta, proposal, phi = given
    _, p = posterior(model, theta, x[0])
    layer = proposal.unflatten(phi)[0]
    before = (x @ layer["W"].t() + layer["b"]).double()[0]
    best = torch.logit(p @ bits(5).double())
    after = before + refine(given, x, 400, torch.Generator().manual_seed(0)).double()[0]

    def cross_entropy(logits: Tensor) -> Tensor:
        z = bits(5).double()
        return p @ (torch.nn.functional.softplus(logits) - z * logits).sum(-1)

    away, left = (cross_entropy(logits) - cross_entropy(best) for logits in (before, after))
    assert away > 0.1
    assert left < away / 10


def test_refining_finds_the_moments_of_a_normal_posterior():
    """x = w z + b + noise with z ~ N(0, 1): the posterior is normal, and nine tenths of the way to it are made."""
    model = Chain.build("gaussian:widths=none,normal", data=3, hidden=(1,))
    proposal = Chain.build_proposal("gaussian:widths=none", data=3, hidden=(1,))
    w, log_sigma = torch.tensor([0.8, -0.5, 1.2]), math.log(0.7)
    theta, phi = torch.zeros(model.size), torch.zeros(proposal.size)
    weights = model.unflatten(theta)[0]
    weights["W_mu"].copy_(w[:, None])
    weights["b_sigma"].fill_(log_sigma)
    x = torch.tensor([[1.0, -0.5, 1.5], [-0.4, 0.2, 0.3]])
    shifts = refine(Pair(model, theta, proposal, phi), x, 400, torch.Generator().manual_seed(0))
    precision = 1 + (w**2).sum() / 0.49
    mean, spread = (x @ w) / 0.49 / precision, precision**-0.5

    def apart(mu: Tensor, sigma: Tensor) -> Tensor:
        return sigma.log() - spread.log() + (spread**2 + (mean - mu) ** 2) / (2 * sigma**2) - 0.5

    away, left = apart(torch.zeros(2), torch.ones(2)), apart(shifts[:, 0], shifts[:, 1].exp())
    assert (away > 0.1).all()
    assert (left < away / 10).all()


def test_the_mean_weight_is_still_p_and_the_bound_is_tighter():
    """Over 1,000 copies of each of 8 rows, within 4 standard errors."""
    given, copies = belief_network(off=1.0), 1000
    x = bits(6)[:64:8]
    truth = torch.stack([posterior(*given[:2], row)[0] for row in x])
    scores = [
        log_likelihood(given, x.repeat(copies, 1), LikelihoodConfig(draws=5, refine=steps))
        .log_likelihood.double()
        .view(copies, 8)
        for steps in (0, 20)
    ]
    for found in scores:
        ratio = (found - truth).exp()
        assert ((ratio.mean(0) - 1).abs() <= 4 * ratio.std(0) / math.sqrt(copies)).all()
    plain, refined = (found.mean(1) for found in (scores[0].t(), scores[1].t()))
    error = torch.sqrt(scores[0].var(0) + scores[1].var(0)) / math.sqrt(copies)
    assert ((refined - plain) / error).mean() > 4
    assert (refined - plain > -4 * error).all()


def test_a_unit_that_is_seldom_on_is_not_pushed_off():
    """p(z | x) is the prior, of which the proposal knows all but that ten other units are fair, and not mostly on.

    Of 50 draws, few have any weight then, and most of these sets show a unit that is on once in a hundred as never on.
    Steps of one size for any gradient (a small epsilon) move it by -0.25; it should stay where it is, within 0.1.
    """
    model, proposal = (build("sbn", data=1, hidden=(11,)) for build in (Chain.build, Chain.build_proposal))
    theta, phi = torch.zeros(model.size), torch.zeros(proposal.size)
    seldom = math.log(0.01 / 0.99)
    model.unflatten(theta)[1]["b"][0] = seldom
    proposal.unflatten(phi)[0]["b"][:] = torch.tensor([seldom] + [2.0] * 10)
    shifts = refine(Pair(model, theta, proposal, phi), torch.ones(200, 1), 200, torch.Generator().manual_seed(0))
    assert abs(shifts[:, 0].mean()) < 0.1
    assert (shifts[:, 1:].mean(0) < -1.5).all(), "the others are found"


def test_a_refined_score_stops_and_goes_on_bit_for_bit(monkeypatch):
    given, x = belief_network(), bits(6)
    how = LikelihoodConfig(draws=400, refine=3, memory=0.1)
    tallies: list[PartialSums] = []
    shares: list[float] = []

    def copy(sums: PartialSums) -> PartialSums:  # which is written on
        return PartialSums(*(tensor.clone() for tensor in sums))

    def keep(sums: PartialSums, share: float) -> None:
        tallies.append(copy(sums))
        shares.append(share)

    whole = log_likelihood(given, x, how, watch=keep)
    assert 0 < int(tallies[0].refined) < len(x)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    for sums in tallies[:: max(1, len(tallies) // 8)]:
        torch.testing.assert_close(log_likelihood(given, x, how, copy(sums)), whole, rtol=0, atol=0, equal_nan=True)
    again: list[int] = []
    log_likelihood(given, x, how, copy(tallies[0]), lambda sums, share: again.append(int(sums.refined)))
    assert min(again) > int(tallies[0].refined), "rows that have been refined are not refined again"
    monkeypatch.setattr("doubly.latents.likelihood.refine", None)
    refined = next(sums for sums in tallies if int(sums.refined) == len(x))
    log_likelihood(given, x, how, copy(refined))


@pytest.mark.parametrize("names", ["sbn", "darn", "nade"])
def test_rows_with_holes_are_refined_too(names):
    """The mean weight is p of what is there, within 4 standard errors over 500 copies of each of 4 rows."""
    rng = torch.Generator().manual_seed(2)
    model = Chain.build([names, "sbn"], data=5, hidden=(3,))
    proposal = Chain.build_proposal("sbn", data=5, hidden=(3,), masked=True)
    theta, phi = (0.5 * torch.randn(chain.size, generator=rng) for chain in (model, proposal))
    x = bits(5)[[3, 9, 20, 30]].float()
    x[:, 1], x[2, 3] = math.nan, math.nan
    rows = bits(5).float()
    joint = model.log_prob(theta, (rows[:, None], bits(3).float()[None].expand(32, -1, -1))).logsumexp(1)
    truth = torch.stack([joint[((rows == row) | row.isnan()).all(1)].logsumexp(0) for row in x])
    found = log_likelihood(
        Pair(model, theta, proposal, phi), x.repeat(500, 1), LikelihoodConfig(draws=20, refine=5)
    ).log_likelihood
    ratio = (found.view(500, 4) - truth).exp()
    assert ((ratio.mean(0) - 1).abs() <= 4 * ratio.std(0) / math.sqrt(500)).all()


def test_a_row_that_is_impossible_stays_impossible():
    model = Chain.build("gaussian:widths=none,normal", data=1, hidden=(1,))
    proposal = Chain.build_proposal("gaussian:widths=none", data=1, hidden=(1,))
    pair = Pair(model, torch.zeros(model.size), proposal, torch.zeros(proposal.size))
    x = torch.tensor([[1e20], [0.0]])
    found = log_likelihood(pair, x, LikelihoodConfig(draws=100, refine=3)).log_likelihood
    assert found[0] == -math.inf
    assert torch.isfinite(found[1])


def test_what_cannot_be_refined_is_refused():
    model, proposal = (build("nade", data=6, hidden=(5,)) for build in (Chain.build, Chain.build_proposal))
    rng = torch.Generator().manual_seed(0)
    with pytest.raises(UserError, match="NADE layers cannot be refined row by row: leave --refine out"):
        log_likelihood(
            Pair(model, model.init(rng), proposal, proposal.init(rng)), bits(6), LikelihoodConfig(draws=5, refine=1)
        )
    with pytest.raises(UserError, match="refine must not be negative"):
        LikelihoodConfig(refine=-1)
