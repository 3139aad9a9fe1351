"""The estimates are what they claim, in expectation and in the limit, on chains small enough to enumerate.

Two formulas make the expectations exact for any number of draws. With weights w = p(x, z) / (p(x) q(z|x)), z ~ q,
and B(t) = E[exp(-t w)]:

    E[ sum_s w_s g_s / sum_s w_s ] = S ∫ E[w g exp(-t w)] B(t)^(S-1) dt    since 1/a = ∫ exp(-t a) dt, t from 0 to ∞
    E[ log sum_s w_s ] = ∫ (exp(-t) - B(t)^S) / t dt                       since log a = ∫ (exp(-t) - exp(-t a)) / t dt

so what is drawn at random is compared with a number, not with another program's draws. Every bound on a mean is five of
its standard errors, estimated from independent repetitions.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from doubly import Chain, UserError
from doubly.kernels import linear
from doubly.kernels.weights import fused_summary, plain_summary
from doubly.latents import ACTIVE, NAIS, OBJECTIVES, Batch, Estimate, Objective, Wanted, bound, explained
from doubly.latents.importance import survivors
from doubly.latents.likelihood import BYTES_PER_CELL
from doubly.latents.pair import Pair
from exact import bits

HIDDEN = [(3,), (2, 2)]
PLAIN = {name: objective for name, objective in OBJECTIVES.items() if objective.plain}
X = bits(4)[[3, 10, 13]]  # three different rows; every estimate is a mean over them
each_depth = pytest.mark.parametrize("hidden", HIDDEN, ids=str)
each_vector = pytest.mark.parametrize("vector", ["theta", "phi"])


def pair(hidden: tuple[int, ...]) -> Pair:
    """Random weights: the model's with standard deviation 1, the proposal's 1/2, so that it is wrong but of use.

    The variance of w is then between 0.6 and 2.6 for the rows X, and the bias close to its leading term from S = 4 on.
    """
    model, proposal = (build("sbn", data=4, hidden=hidden) for build in (Chain.build, Chain.build_proposal))
    rngs = [torch.Generator().manual_seed(seed) for seed in (32, 33)]
    theta = torch.randn(model.size, generator=rngs[0], dtype=torch.float64)
    phi = torch.randn(proposal.size, generator=rngs[1], dtype=torch.float64) / 2
    return Pair(model, theta, proposal, phi)


def estimate(
    given: Pair, x: Tensor, draws: int, rng: torch.Generator, wanted: Wanted = "both", **options: Any
) -> Estimate:
    return NAIS(draws, **options)(Batch(given, x, torch.arange(len(x)), {}, rng), wanted)


class Row(NamedTuple):
    """All there is to know of a row: over every hidden value z, the laws, the weights and the gradients."""

    log_evidence: Tensor
    q: Tensor
    weight: Tensor
    theta_grads: Tensor
    phi_grads: Tensor

    def gradient(self, vector: str) -> Tensor:
        """E_{p(z|x)}[grad], which for theta is the gradient of log p(x)."""
        return (self.q * self.weight) @ getattr(self, f"{vector}_grads")

    def expected(self, vector: str, draws: int) -> Tensor:
        """The expectation of the self-normalised estimate with so many draws."""
        scores, t, dt = getattr(self, f"{vector}_grads"), *TIMES
        decay = torch.exp(-t[:, None] * self.weight)
        heads, tails = (decay * self.q * self.weight) @ scores, (decay @ self.q) ** (draws - 1)
        return draws * (tails * dt) @ heads

    def leading_bias(self, vector: str) -> Tensor:
        """lim S · bias = -E_q[w² (grad - E_p grad)], by expanding the ratio of two means about theirs."""
        scores = getattr(self, f"{vector}_grads")
        return -(self.q * self.weight**2) @ (scores - self.gradient(vector))

    def expected_bound(self, draws: int) -> float:
        """E[L_K], the expectation of the log of the mean weight, K = `draws`."""
        t, dt = TIMES
        decay = torch.exp(-t[:, None] * self.weight) @ self.q
        log_sum = ((torch.exp(-t) - decay**draws) / t * dt).sum().item()
        return log_sum - math.log(draws) + self.log_evidence.item()


# the trapezium rule for t = exp(s): the integrands and all their derivatives vanish at both ends, so that its error is
# far below 1e-9 (test_the_integrals_are_right)
_S = torch.linspace(-60, 12, 4001, dtype=torch.float64)
TIMES = (_S.exp(), _S.exp() * (_S[1] - _S[0]))


@cache
def rows(hidden: tuple[int, ...]) -> list[Row]:
    """The rows X by enumeration of their hidden values."""
    model, theta, proposal, phi = pair(hidden)
    theta, phi = theta.requires_grad_(), phi.requires_grad_()
    values = bits(sum(hidden)).split(list(hidden), 1)
    found = []
    for x in X:
        log_p = model.log_prob(theta, (x.expand(len(values[0]), -1), *values))
        log_q = proposal.log_prob(phi, values[::-1], x)
        theta_grads = torch.stack([torch.autograd.grad(term, theta, retain_graph=True)[0] for term in log_p])
        phi_grads = torch.stack([torch.autograd.grad(term, phi, retain_graph=True)[0] for term in log_q])
        log_p, log_q = log_p.detach(), log_q.detach()
        log_evidence = log_p.logsumexp(0)
        found.append(Row(log_evidence, log_q.exp(), (log_p - log_q - log_evidence).exp(), theta_grads, phi_grads))
    return found


def mean_over_rows(hidden: tuple[int, ...], method: str, *args: str | int) -> Tensor:
    return torch.stack([getattr(row, method)(*args) for row in rows(hidden)]).mean(0)


class Measured(NamedTuple):
    mean: Tensor
    covariance: Tensor
    """Of the mean."""

    @property
    def stderr(self) -> Tensor:
        return self.covariance.diagonal().sqrt()


@cache
def measured(hidden: tuple[int, ...], draws: int, copies: int, calls: int, survivors: int = 0) -> dict[str, Measured]:
    """Both gradients over independent calls, each on `copies` of the rows X: the result is the mean over the rows."""
    rng = torch.Generator().manual_seed(draws)
    found = [estimate(pair(hidden), X.repeat(copies, 1), draws, rng, survivors=survivors) for _ in range(calls)]
    results = {}
    for vector in ("theta", "phi"):
        grads = torch.stack([getattr(each, f"{vector}_grad") for each in found])
        results[vector] = Measured(grads.mean(0), torch.cov(grads.T) / calls)
    return results


@each_depth
@each_vector
def test_the_integrals_are_right(hidden: tuple[int, ...], vector: str):
    """The formulas at the head of this file against sums over all pairs of draws (S = 2), and over all single ones."""
    for row in rows(hidden):
        q, w, scores = row.q, row.weight, getattr(row, f"{vector}_grads")
        total = w[:, None] + w
        ratio = (w[:, None, None] * scores[:, None] + w[:, None] * scores) / total[..., None]
        torch.testing.assert_close(row.expected(vector, 2), torch.einsum("i,j,ijk->k", q, q, ratio), rtol=0, atol=1e-9)
        torch.testing.assert_close(row.expected(vector, 1), q @ scores, rtol=0, atol=1e-9)
        bound = torch.einsum("i,j,ij->", q, q, torch.log(total / 2)) + row.log_evidence
        assert row.expected_bound(2) == pytest.approx(bound.item(), abs=1e-9)


@each_depth
def test_the_exact_gradient_is_that_of_log_p(hidden: tuple[int, ...]):
    """Fisher's identity: E_{p(z|x)}[grad log p(x, z)] = grad log p(x), by autograd of the enumerated sum."""
    model, theta, *_ = pair(hidden)
    theta.requires_grad_()
    values = bits(sum(hidden)).split(list(hidden), 1)
    for x, row in zip(X, rows(hidden), strict=True):
        (grad,) = torch.autograd.grad(model.log_prob(theta, (x, *values)).logsumexp(0), theta)
        torch.testing.assert_close(row.gradient("theta"), grad, rtol=1e-10, atol=1e-12)


DRAWS = (4, 8, 16, 32)


@each_depth
@each_vector
@pytest.mark.parametrize("draws", [1, *DRAWS])
def test_nais_gradient_has_its_expectation(hidden: tuple[int, ...], vector: str, draws: int):
    """The mean of the estimate is its exact expectation for this number of draws, in every coordinate."""
    found = measured(hidden, draws, copies=10 * draws, calls=64)[vector]
    error = found.mean - mean_over_rows(hidden, "expected", vector, draws)
    assert (error.abs() <= 5 * found.stderr + 1e-12).all()


@each_depth
@each_vector
@pytest.mark.parametrize("number", [1, 3])
def test_survivors_leave_the_expectation_as_it_is(hidden: tuple[int, ...], vector: str, number: int):
    """Whichever of the eight draws survive, the mean of the estimate is that with all of them."""
    found = measured(hidden, 8, copies=80, calls=64, survivors=number)[vector]
    error = found.mean - mean_over_rows(hidden, "expected", vector, 8)
    assert (error.abs() <= 5 * found.stderr + 1e-12).all()


@pytest.mark.parametrize("number", [1, 4, 25])
def test_survivors_are_hit_as_often_as_their_weights_say(number: int):
    """Each draw number * w times, rounded up or down, and number times in all; over many starts, in the mean as often.

    The points of one row are a grid: hits over 2000 rows of the same weights have a variance below 1/4 each.
    """
    rng = torch.Generator().manual_seed(0)
    weight = torch.softmax(3 * torch.randn(7, generator=rng, dtype=torch.float64), 0)
    draw, row, share = survivors(weight[:, None].repeat(1, 2000), number, rng)
    hits = torch.zeros(7, 2000, dtype=torch.float64)
    hits[draw, row] = share * number
    wanted = number * weight[:, None]
    assert ((hits - wanted).abs() < 1 + 1e-9).all()
    torch.testing.assert_close(hits.sum(0), torch.full((2000,), float(number), dtype=torch.float64))
    assert ((hits.mean(1) - wanted[:, 0]).abs() <= 5 * math.sqrt(0.25 / 2000)).all()


@pytest.mark.parametrize("objective", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("names", ["sbn", "darn", "nade", "mlp:widths=3"])
def test_with_many_points_all_draws_survive(names: str, objective: type[Objective]):
    """A million points give back five weights to within 1e-6 each; the gradients they weigh are below 20."""
    model, proposal = (build(names, data=8, hidden=(6, 4)) for build in (Chain.build, Chain.build_proposal))
    rng = torch.Generator().manual_seed(0)
    theta, phi = (torch.randn(chain.size, generator=rng, dtype=torch.float64) for chain in (model, proposal))
    x = (torch.rand(7, 8, generator=rng) < 0.5).double()
    given = Pair(model, theta, proposal, phi)
    found, whole = (
        estimate(given, x, 5, torch.Generator().manual_seed(1), objective=objective(), survivors=number)
        for number in (1_000_000, 0)
    )
    torch.testing.assert_close(found.theta_grad, whole.theta_grad, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.phi_grad, whole.phi_grad, rtol=0, atol=1e-4)
    assert found.stats == whole.stats


def test_survivors_are_refused_where_the_way_back_is_another():
    """With another objective, with missing values, and without latents: before training starts."""
    model, _, proposal, _ = pair((3,))
    NAIS(5, survivors=2).check(model, proposal)
    with pytest.raises(UserError, match="need the objective wake or sleep or wake-sleep: leave them out"):
        NAIS(5, OBJECTIVES["vimco"](), survivors=2).check(model, proposal)
    masked = Chain.build_proposal("sbn", data=4, hidden=(3,), masked=True)
    with pytest.raises(UserError, match="need complete rows"):
        NAIS(5, survivors=2).check(model, masked)
    flat = pair(())
    with pytest.raises(UserError, match="need latent layers"):
        NAIS(5, survivors=2).check(flat.model, flat.proposal)
    with pytest.raises(UserError, match="got -1"):
        NAIS(5, survivors=-1)


@each_depth
@each_vector
def test_nais_bias_falls_like_one_over_draws(hidden: tuple[int, ...], vector: str):
    """log |bias| against log S has slope -1.

    The bias is measured along its leading direction d (known by enumeration), where it is largest against the noise:
    b_S = d·(mean - exact gradient). Least squares weighs each log b_S with c_S = (x_S - mean x) / sum (x - mean x)²,
    x = log S, so the slope's standard error is sqrt(sum c_S² (se_S / b_S)²). The terms in 1/S² bend the line a little:
    the slope of the exact biases, by the integral, says how much.
    """
    d = mean_over_rows(hidden, "leading_bias", vector)
    exact = mean_over_rows(hidden, "gradient", vector)
    bias, stderr, true_bias = [], [], []
    for draws in DRAWS:
        found = measured(hidden, draws, copies=10 * draws, calls=64)[vector]
        bias.append(d @ (found.mean - exact))
        stderr.append((d @ found.covariance @ d).sqrt())
        true_bias.append(d @ (mean_over_rows(hidden, "expected", vector, draws) - exact))
    b, se, true = (np.array([value.item() for value in values]) for values in (bias, stderr, true_bias))
    assert (b > 5 * se).all()  # every bias is seen, and of the predicted sign
    x = np.log(DRAWS) - np.log(DRAWS).mean()
    c = x / (x @ x)
    gradient, true_slope, slope_stderr = c @ np.log(b), c @ np.log(true), np.sqrt(c**2 @ (se / b) ** 2)
    assert slope_stderr < 0.05  # or the bound below would say nothing
    assert abs(true_slope + 1) < 0.1
    assert abs(gradient + 1) < 4 * slope_stderr + abs(true_slope + 1)


@each_depth
@each_vector
def test_nais_gradient_is_exact_with_many_draws(hidden: tuple[int, ...], vector: str):
    """At S = 2048 the bias d/S is below the standard error, and nothing but Monte Carlo error is left."""
    found = measured(hidden, draws=2048, copies=4, calls=32)[vector]
    assert (mean_over_rows(hidden, "leading_bias", vector).abs() / 2048 < found.stderr + 1e-12).all()
    assert ((found.mean - mean_over_rows(hidden, "gradient", vector)).abs() <= 5 * found.stderr + 1e-12).all()


@each_depth
def test_wanted_gradients_agree(hidden: tuple[int, ...]):
    """From the same generator state, `both` gives what `theta` and `phi` give one at a time; the unwanted is None."""
    found = {w: estimate(pair(hidden), X, 5, torch.Generator().manual_seed(2), w) for w in ("both", "theta", "phi")}
    assert found["theta"].phi_grad is None
    assert found["phi"].theta_grad is None
    torch.testing.assert_close(found["both"].theta_grad, found["theta"].theta_grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["both"].phi_grad, found["phi"].phi_grad, rtol=1e-12, atol=1e-12)
    for one in found.values():
        assert one.stats == found["both"].stats


@pytest.mark.parametrize("kernels", ["plain", "fused", "alike"])
@pytest.mark.parametrize("objective", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("wanted", ["both", "theta", "phi"])
@pytest.mark.parametrize("names", ["sbn", "darn", "nade", "sbn,darn,nade", "mlp:widths=3"])
def test_without_a_graph_all_is_the_same(
    names: str, wanted: Wanted, objective: type[Objective], kernels: str, monkeypatch
):
    """The same draws and, but for rounding, the same gradients as by autograd, also where draws count as alike."""
    monkeypatch.setenv("DOUBLY_KERNELS", "0" if kernels == "plain" else "1")
    if kernels == "alike":
        for name in ("NARROW", "FORTH", "BACK"):
            monkeypatch.setattr(linear, name, 0)
    model = Chain.build(names, data=20, hidden=(9, 5))
    proposal = Chain.build_proposal("sbn", data=20, hidden=(9, 5))
    rng = torch.Generator().manual_seed(0)
    theta, phi = torch.randn(model.size, generator=rng), torch.randn(proposal.size, generator=rng)
    x = (torch.rand(7, 20, generator=rng) < 0.5).float()
    given = Pair(model, theta, proposal, phi), x, torch.arange(7)
    found = NAIS(5, objective())(Batch(*given, {}, torch.Generator().manual_seed(1)), wanted)
    traced = type("Traced", (objective,), {"plain": False})  # so that autograd has to find its gradient
    other = NAIS(5, traced())(Batch(*given, {}, torch.Generator().manual_seed(1)), "both")
    if wanted != "phi":
        torch.testing.assert_close(found.theta_grad, other.theta_grad, rtol=1e-4, atol=1e-5)
    if wanted != "theta":
        torch.testing.assert_close(found.phi_grad, other.phi_grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.stats, other.stats, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("draws", [1, 5])
def test_weights_are_those_of_the_plain_kernel(draws: int):
    """Also where all but one are next to nothing, and where one is no number."""
    rng = torch.Generator().manual_seed(0)
    log_p, log_q = 30 * torch.randn(2, draws, 7, generator=rng) - 1000
    for found, expected in zip(fused_summary(log_p, log_q), plain_summary(log_p.double(), log_q.double()), strict=True):
        torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)
    log_p[-1, 3] = math.nan
    assert fused_summary(log_p, log_q).weight[:, 3].isnan().all()
    assert fused_summary(log_p, log_q).weight.isnan().sum() == draws
    assert fused_summary(log_p, log_q).log_mean.isnan()


@each_depth
def test_nais_reports_the_bound_and_the_effective_draws(hidden: tuple[int, ...]):
    """The statistics are L_S, with its exact expectation, and effective draws between 1 and S."""
    rng = torch.Generator().manual_seed(3)
    found = [estimate(pair(hidden), X.repeat(50, 1), 5, rng, "theta").stats for _ in range(64)]
    train = torch.stack([each["train"] for each in found])
    expected = sum(row.expected_bound(5) for row in rows(hidden)) / len(X)
    assert abs(train.mean() - expected) <= 5 * train.std() / math.sqrt(len(train))
    assert all(1 < each["ess"] < 5 for each in found)


def test_nais_needs_a_draw():
    with pytest.raises(UserError, match="at least 1, got 0"):
        NAIS(draws=0)


def test_nais_with_nothing_hidden_is_exact():
    """hidden=() has an exact likelihood: one draw or many, the gradient is that of log p(x), and phi has no weights."""
    given = pair(())
    theta = given.theta.clone().requires_grad_()
    (grad,) = torch.autograd.grad(given.model.log_prob(theta, (X,)).mean(), theta)
    for draws in (1, 5):
        found = estimate(given, X, draws, torch.Generator().manual_seed(4))
        torch.testing.assert_close(found.theta_grad, grad, rtol=1e-12, atol=1e-12)
        assert found.phi_grad is not None
        assert found.phi_grad.shape == (0,)


BOUNDS = {1: 10_000, 4: 10_000, 16: 10_000, 64: 5_000, 4096: 120}  # draws K, and how many copies of X measure L_K


@cache
def measured_bounds(hidden: tuple[int, ...]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """For each K, mean and standard error of L_K for each of the rows X."""
    results = {}
    for draws, copies in BOUNDS.items():
        rng = torch.Generator().manual_seed(draws)
        found = bound(pair(hidden), X.repeat(copies, 1), draws, rng).log_likelihood.view(copies, len(X)).numpy()
        results[draws] = found.mean(0), found.std(0, ddof=1) / math.sqrt(copies)
    return results


@each_depth
@pytest.mark.parametrize("draws", BOUNDS)
def test_bound_has_its_expectation(hidden: tuple[int, ...], draws: int):
    """The mean of L_K is its exact expectation, for every row."""
    mean, stderr = measured_bounds(hidden)[draws]
    expected = np.array([row.expected_bound(draws) for row in rows(hidden)])
    assert (abs(mean - expected) <= 5 * stderr).all()


@each_depth
def test_bound_rises_to_the_likelihood_from_below(hidden: tuple[int, ...]):
    """E[L_K] < log p(x), rising with K; at K = 4096, where the gap Var(w)/2K is below 4e-4, it is met within error.

    Up to K = 16 the gap and every rise are plainly seen; at K = 64 the gap is near the standard error, so only the
    other direction is held to: it is not passed.
    """
    exact = np.array([row.log_evidence.item() for row in rows(hidden)])
    means, stderrs = (np.stack(parts) for parts in zip(*measured_bounds(hidden).values(), strict=True))
    assert (means[:3] < exact - 5 * stderrs[:3]).all()
    assert (means <= exact + 5 * stderrs).all()
    rises, errors = np.diff(means, axis=0), np.hypot(stderrs[1:], stderrs[:-1])
    assert (rises[:2] > 5 * errors[:2]).all()
    assert (rises >= -5 * errors).all()
    assert (abs(means[-1] - exact) <= 5 * stderrs[-1]).all()


def megabytes(cells: int) -> float:
    """The memory that holds so many cells."""
    return cells * BYTES_PER_CELL / 2**20


@each_depth
@pytest.mark.parametrize("cells", [33, 300])
def test_blocks_do_not_change_the_bound(hidden: tuple[int, ...], cells: int):
    """Blocks of rows and draws leave the law of L_K and of the effective draws as it is.

    At 33 cells, rows one at a time and their draws in blocks of 4, 4 and 2; at 300, rows in blocks of 3 or 4.
    L_K is compared with its expectation, the effective draws with those found in one block, and with 1 and K.
    """
    copies, draws = 300, 10
    x = X.repeat(copies, 1)
    found = bound(pair(hidden), x, draws, torch.Generator().manual_seed(5), megabytes(cells))
    whole = bound(pair(hidden), x, draws, torch.Generator().manual_seed(6))
    assert found.log_likelihood.shape == found.ess.shape == (len(x),)
    for i, row in enumerate(rows(hidden)):
        mine, other = found.log_likelihood[i :: len(X)], found.ess[i :: len(X)]
        assert abs(mine.mean() - row.expected_bound(draws)) <= 5 * mine.std() / math.sqrt(copies)
        whole_effective = whole.ess[i :: len(X)]
        stderr = torch.hypot(other.std(), whole_effective.std()) / math.sqrt(copies)
        assert abs(other.mean() - whole_effective.mean()) <= 5 * stderr
    for ess in (found.ess, whole.ess):
        assert (ess >= 1 - 1e-9).all()
        assert (ess <= draws + 1e-9).all()


def exact_pair(n_data: int) -> Pair:
    """A model with one hidden unit and its exact posterior, which is linear in x, as the proposal.

    log p(x, z=1) - log p(x, z=0) = a + sum_i [ W_i x_i - softplus(W_i + b_i) + softplus(b_i) ]
    """
    model, proposal = (build("sbn", data=n_data, hidden=(1,)) for build in (Chain.build, Chain.build_proposal))
    theta = torch.randn(model.size, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    below, above = model.unflatten(theta)
    weights, bias = below["W"][:, 0], below["b"]
    softplus = torch.nn.functional.softplus
    offset = above["b"] - softplus(weights + bias).sum() + softplus(bias).sum()
    return Pair(model, theta, proposal, torch.cat([weights, offset]))


@pytest.mark.parametrize("cells", [2**23, 33, 1])
def test_exact_posterior_gives_equal_weights(cells: int):
    """With q(z|x) = p(z|x) every weight is p(x): L_K is log p(x) without error and all K draws count, in any blocks."""
    given = exact_pair(4)
    z = torch.tensor([[[0.0]], [[1.0]]], dtype=torch.float64)
    exact = given.model.log_prob(given.theta, (bits(4), z)).logsumexp(0)
    found = bound(given, bits(4), 10, torch.Generator().manual_seed(8), megabytes(cells))
    torch.testing.assert_close(found.log_likelihood, exact, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.ess, torch.full_like(exact, 10), rtol=0, atol=1e-8)
    stats = estimate(given, bits(4), 10, torch.Generator().manual_seed(9)).stats
    assert stats["train"].item() == pytest.approx(exact.mean().item(), abs=1e-10)
    assert stats["ess"].item() == pytest.approx(10, abs=1e-8)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_rows_may_be_of_any_number_type(dtype: torch.dtype):
    """Rows are kept as bytes and widened as they are used: the numbers are the same."""
    given = pair((3,))
    found = bound(given, X.to(dtype), 10, torch.Generator().manual_seed(10))
    expected = bound(given, X, 10, torch.Generator().manual_seed(10))
    assert torch.equal(found.log_likelihood, expected.log_likelihood)


# Which units say anything of a row


@pytest.mark.parametrize("draws", [18, 300])
def test_the_share_of_a_unit_that_the_row_explains_is_the_enumerated_one(draws: int):
    """Of every row of 4 bits, 8 times; a coin that the data do not look at has 0, and so has a unit that is always on.

    Estimates of E[z | x] by few draws are noisy: their own variance would be 0.05 of the coin's with 18 of them.
    """
    model = Chain.build("sbn", data=4, hidden=(4,))
    proposal = Chain.build_proposal("sbn", data=4, hidden=(4,))
    rng = torch.Generator().manual_seed(5)
    theta, phi = 2 * torch.randn(model.size, generator=rng), torch.zeros(proposal.size)
    below, top = model.unflatten(theta)  # views: what is written here is in theta
    below["W"][:, 2:], top["b"][2], top["b"][3] = 0.0, 0.0, 30.0
    given, z = Pair(model, theta, proposal, phi), bits(4).float()
    x = z.repeat(8, 1)
    law = torch.softmax(model.log_prob(theta, (x, z[:, None].expand(-1, len(x), -1))).double(), 0)  # (16, rows)
    codes = law.T @ z.double()
    exact = codes.var(0) / (codes.mean(0) * (1 - codes.mean(0))).clamp(min=1e-9)
    exact[3] = 0
    (found,) = explained(given, x, draws, torch.Generator().manual_seed(1))
    # the covariance of two noisy estimates over 128 rows: each adds 1 / ess of noise, or 0.2 with 18 draws
    assert (found - exact).abs().max() < (0.06 if draws == 18 else 0.02)
    assert abs(found[2]) < ACTIVE if draws == 300 else abs(found[2]) < 0.03
    assert found[3] == 0
    assert (found[:2] > ACTIVE).all()
