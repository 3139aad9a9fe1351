"""Local moves: each leaves p(z | x) as it is, on models whose posterior is enumerated or known in closed form.

Laws are compared by chi-square or Kolmogorov-Smirnov at significance 1e-4, on independent states that start from exact
draws and make one move: what a move would spoil, it spoils at once.
"""

import math
from typing import NamedTuple

import pytest
import torch
from scipy import stats
from torch import Tensor

from doubly import Chain, UserError
from doubly.latents import MOVES, Pair
from doubly.latents.moves import (
    ACCEPTANCE,
    GAIN,
    HMC,
    LOG_STEP,
    GibbsMove,
    Langevin,
    Move,
    choose_move,
    log_density_and_gradient,
)
from doubly.layers import Values
from exact import X, assert_same_law, in_double, log_posterior, posterior_draws, random_pair


def moved(
    move: Move, pair: Pair, x: Tensor, latents: Values, rng: torch.Generator, times: int = 1, tuning: bool = False
) -> tuple[Values, dict[str, Tensor]]:
    """Where so many moves lead, and what they tuned."""
    tuned = move.init(pair.model)
    for _ in range(times):
        latents, tuned = move(pair, x, x, latents, tuned, rng, tuning)
    return latents, tuned


# Binary latents, by enumeration.

SWEPT = [("sbn", "sbn", (3,)), ("darn:order=3", "sbn", (3,)), ("sbn,darn,sbn", "darn,sbn", (2, 2))]
ANY = [
    ("sbn", "sbn", (3,)),
    ("darn:order=3", "sbn", (3,)),
    ("nade,sbn", "sbn", (3,)),
    ("nade:order=5,darn", "nade", (3,)),
    ("mlp:widths=5,sbn", "mlp:widths=3", (3,)),
    ("sbn", "sbn", (2, 2)),
    ("nade,mlp:widths=3,nade", "sbn", (2, 2)),
]
BINARY_MOVES = [(spec, *case) for spec in ("gibbs", "gibbs:share=0.4") for case in SWEPT] + [
    (spec, *case) for spec in ("langevin:step=0.3", "langevin:step=5") for case in ANY
]
each_binary = pytest.mark.parametrize(("spec", "names", "proposal", "hidden"), BINARY_MOVES, ids=str)


def test_every_move_is_tested():
    assert {spec.partition(":")[0] for spec, *_ in BINARY_MOVES} | {"hmc"} == set(MOVES)


@each_binary
def test_a_move_keeps_the_posterior(spec: str, names: str, proposal: str, hidden: tuple[int, ...]):
    """From exact draws of z given x, one move gives exact draws again, and it does move."""
    pair, rng, move = random_pair(names, proposal, hidden), torch.Generator().manual_seed(1), MOVES.make(spec)
    assert move.serves(pair.model)
    start = posterior_draws(pair, X, 20_000, rng)
    found, _ = moved(move, pair, X.float(), start, rng)
    for row, x in enumerate(X):
        assert_same_law(torch.cat([value[:, row] for value in found], 1), log_posterior(pair, x))
    assert (torch.cat(found, -1) != torch.cat(start, -1)).any(-1).float().mean() > 0.03


@each_binary
def test_moves_find_the_posterior(spec: str, names: str, proposal: str, hidden: tuple[int, ...]):
    """From zeros, a hundred moves do: none of them is stuck, or the identity."""
    pair, rng, move = random_pair(names, proposal, hidden), torch.Generator().manual_seed(2), MOVES.make(spec)
    found, _ = moved(move, pair, X[1:2].float(), tuple(torch.zeros(2000, 1, n) for n in hidden), rng, times=100)
    assert_same_law(torch.cat(found, -1)[:, 0], log_posterior(pair, X[1]))


@pytest.mark.parametrize(("names", "proposal", "hidden"), ANY, ids=str)
def test_langevin_moves_are_reversible_and_some_are_refused(names: str, proposal: str, hidden: tuple[int, ...]):
    """Under the posterior, going from z to z' is as frequent as going from z' to z: the difference of the two counts
    has a variance of at most their sum. With a step so large, acceptance is well below one."""
    pair, rng, move = random_pair(names, proposal, hidden), torch.Generator().manual_seed(3), Langevin(5.0)
    start = posterior_draws(pair, X[1:2], 40_000, rng)
    found, tuned = moved(move, pair, X[1:2].float(), start, rng, tuning=True)
    places, H = 2.0 ** torch.arange(sum(hidden)), sum(hidden)
    a, b = ((torch.cat(values, -1)[:, 0] @ places).long() for values in (start, found))
    counts = torch.bincount(a * 2**H + b, minlength=4**H).view(2**H, 2**H).double()
    both, apart = counts + counts.T, counts - counts.T
    seen = both.triu(1) >= 10
    statistic = (apart[seen].square() / both[seen]).sum().item()
    assert seen.sum() > 5, "or the test sees nothing"
    assert stats.chi2.sf(statistic, int(seen.sum())) > 1e-4
    acceptance = (tuned[LOG_STEP] - math.log(5.0)) / GAIN + 0.57
    assert 0.2 < acceptance < 0.95


@pytest.mark.parametrize(("names", "proposal", "hidden"), ANY, ids=str)
def test_moves_follow_the_gradient_of_the_log_density(names: str, proposal: str, hidden: tuple[int, ...]):
    """In z, of every layer that z is drawn from or given to: central differences in double precision; and single."""
    pair, rng = random_pair(names, proposal, hidden), torch.Generator().manual_seed(4)
    z = torch.randint(2, (5, 3, sum(hidden)), generator=rng).double()

    def density(given: Pair):
        return lambda latents: given.model.log_prob(given.theta, (X.to(given.theta.dtype), *latents))

    value, gradient = log_density_and_gradient(density(in_double(pair)), z, list(hidden))
    for k in range(sum(hidden)):
        ends = []
        for sign in (1, -1):
            shifted = z.clone()
            shifted[..., k] += sign * 1e-5
            ends.append(density(in_double(pair))(shifted.split(list(hidden), -1)))
        torch.testing.assert_close(gradient[..., k], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-6)
    single = log_density_and_gradient(density(pair), z.float(), list(hidden))
    torch.testing.assert_close(single[0].double(), value, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single[1].double(), gradient, rtol=1e-3, atol=1e-4)


def test_a_partial_sweep_leaves_most_units_alone_where_the_proposal_is_certain():
    """Units are drawn as often as promised: the share on average, more where q is undecided, and never none.

    A unit that is drawn has new log-odds and flips or not; here all log-odds are 0, so that half of those drawn flip.
    """
    model, proposal = (build("sbn", data=4, hidden=(6,)) for build in (Chain.build, Chain.build_proposal))
    phi = torch.zeros(proposal.size)
    (params,) = proposal.unflatten(phi)  # views of phi
    params["b"].copy_(torch.tensor([0.0, 0, 0, 8, -8, 8]))
    pair, rng = Pair(model, torch.zeros(model.size), proposal, phi), torch.Generator().manual_seed(5)
    (found,), _ = moved(GibbsMove(0.4), pair, X.float(), (torch.zeros(20_000, 3, 6),), rng)
    drawn = 2 * found.mean((0, 1))
    spread = 4 * torch.sigmoid(params["b"]) * torch.sigmoid(-params["b"])
    expected = 0.4 * (0.2 + 0.8 * spread / spread.mean())
    assert (expected[:3] > 0.5).all()
    assert (expected[3:] > 0.079).all()
    assert ((drawn - expected).abs() < 5 * 2 * 0.5 / math.sqrt(60_000)).all()


# Real latents, whose posterior is normal.


class Normal(NamedTuple):
    """A linear model with its posterior at a row, N(mean, (L L')^-1)."""

    pair: Pair
    x: Tensor
    mean: Tensor
    factor: Tensor

    def draws(self, n: int, rng: torch.Generator) -> Values:
        noise = torch.randn(n, len(self.mean), generator=rng, dtype=torch.float64)
        z = self.mean + torch.linalg.solve_triangular(self.factor.T, noise.T, upper=True).T
        return z[:, None].split(2, -1)

    def white(self, latents: Values) -> Tensor:
        """Coordinates that are independent standard normal values under the posterior."""
        return (torch.cat(latents, -1)[:, 0] - self.mean) @ self.factor


def linear(depth: int) -> Normal:
    """Two real latents in each of so many layers: log p(x, z) is quadratic in z, its Hessian minus the precision."""
    model = Chain.build(["gaussian:widths=none"] * depth + ["normal"], data=3, hidden=(2,) * depth)
    rng = torch.Generator().manual_seed(8)
    theta = torch.randn(model.size, generator=rng, dtype=torch.float64)
    for params in model.unflatten(theta)[:-1]:  # views of theta
        params["W_sigma"].zero_()
        params["b_sigma"].mul_(0.3)
    x = torch.randn(1, 3, generator=rng, dtype=torch.float64)

    def density(z: Tensor) -> Tensor:
        return model.log_prob(theta, (x, *z[None].split(2, -1)))[0]

    zero = torch.zeros(2 * depth, dtype=torch.float64)
    precision = -torch.autograd.functional.hessian(density, zero)
    slope = torch.autograd.functional.jacobian(density, zero)
    factor = torch.linalg.cholesky(precision)
    return Normal(Pair.alone(model, theta), x, torch.cholesky_solve(slope[:, None], factor)[:, 0], factor)


def assert_white(white: Tensor) -> None:
    for coordinate in white.T:
        assert stats.kstest(coordinate.numpy(), "norm").pvalue > 1e-4
    assert stats.kstest(white.square().sum(-1).numpy(), "chi2", (white.shape[1],)).pvalue > 1e-4


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("relative", "least", "most"), [(0.2, 0.98, 1.0), (1.2, 0.5, 0.98), (1.9, 0.2, 0.8)])
def test_hmc_keeps_the_posterior(depth: int, relative: float, least: float, most: float):
    """Steps as a part of the narrowest standard deviation. Beyond twice that, where the largest goes now and then, no
    trajectory is stable, and many are refused: it is the acceptance that keeps the law."""
    known, rng = linear(depth), torch.Generator().manual_seed(6)
    step = relative / torch.linalg.matrix_norm(known.factor, 2).item()
    start = known.draws(10_000, rng)
    found, tuned = moved(HMC(step), known.pair, known.x, start, rng, tuning=True)
    assert_white(known.white(found))
    acceptance = (tuned[LOG_STEP] - math.log(step)) / GAIN + ACCEPTANCE
    assert least < acceptance < most + 1e-3
    assert (torch.cat(found, -1) != torch.cat(start, -1)).any(-1).double().mean() > least - 0.05


@pytest.mark.parametrize("depth", [1, 2])
def test_hmc_finds_the_posterior(depth: int):
    known, rng = linear(depth), torch.Generator().manual_seed(7)
    start = tuple(torch.zeros(2000, 1, 2, dtype=torch.float64) for _ in range(depth))
    found, _ = moved(HMC(0.4), known.pair, known.x, start, rng, times=60)
    assert_white(known.white(found))


# Steps.


@pytest.mark.parametrize("move", [Langevin(0.3), HMC(0.1)], ids=str)
def test_steps_change_only_while_they_may(move: Move):
    """While tuning, log step rises or falls with the acceptance; the move itself is the same either way."""
    if isinstance(move, HMC):
        known = linear(1)
        pair, x, start = known.pair, known.x, known.draws(50, torch.Generator().manual_seed(9))
    else:
        pair, x = random_pair("nade,sbn", "sbn", (3,)), X.float()
        start = posterior_draws(pair, X, 50, torch.Generator().manual_seed(9))
    tuned = move.init(pair.model)
    before = {name: value.clone() for name, value in tuned.items()}
    still = move(pair, x, x, start, tuned, torch.Generator().manual_seed(10), False)
    learnt = move(pair, x, x, start, tuned, torch.Generator().manual_seed(10), True)
    assert all(torch.equal(one, other) for one, other in zip(still.latents, learnt.latents, strict=True))
    assert still.tuned.keys() == learnt.tuned.keys() == before.keys() == {LOG_STEP}
    assert torch.equal(still.tuned[LOG_STEP], before[LOG_STEP])
    assert torch.equal(tuned[LOG_STEP], before[LOG_STEP]), "what was there is not changed in place"
    assert 0 < abs(learnt.tuned[LOG_STEP] - before[LOG_STEP]) < GAIN


def test_a_sweep_has_nothing_to_tune():
    pair = random_pair("sbn", "sbn", (3,))
    start = posterior_draws(pair, X, 5, torch.Generator().manual_seed(11))
    assert moved(GibbsMove(), pair, X.float(), start, torch.Generator(), tuning=True)[1] == {}


def test_hmc_is_tuned_to_its_acceptance():
    """From a step of a twentieth of what it should be. Once there, acceptance stays within some 0.05 of what is aimed
    at, for log step moves by 0.05 times what it is off by."""
    known, rng = linear(1), torch.Generator().manual_seed(12)
    move, latents = HMC(0.03), known.draws(200, rng)
    tuned, steps = move.init(known.pair.model), []
    for _ in range(400):
        latents, tuned = move(known.pair, known.x, known.x, latents, tuned, rng, True)
        steps.append(tuned[LOG_STEP])
    settled = torch.stack(steps[300:])
    acceptance = (settled.diff() / GAIN + ACCEPTANCE).mean()
    assert settled.mean().exp() > 10 * 0.03
    assert abs(acceptance - ACCEPTANCE) < 0.05


# Which move for which model.


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ("sbn", GibbsMove),
        ("darn:order=3,sbn", GibbsMove),
        ("nade,sbn", Langevin),
        ("sbn,nade", Langevin),
        ("mlp:widths=5,darn", Langevin),
        ("gaussian:widths=5,sbn", Langevin),
        ("sbn,normal", HMC),
        ("gaussian:widths=5,normal", HMC),
    ],
)
def test_the_model_chooses_its_move(names: str, kind: type[Move]):
    assert type(choose_move("auto", Chain.build(names, data=4, hidden=(3,)))) is kind


def test_a_move_can_be_insisted_on():
    model = Chain.build("sbn", data=4, hidden=(3,))
    assert choose_move("langevin:step=0.7", model) == Langevin(0.7)
    assert choose_move("gibbs:share=0.4", model) == GibbsMove(0.4)


@pytest.mark.parametrize(
    ("spec", "names", "hidden"),
    [
        ("auto", "sbn,gaussian:widths=5,sbn", (3, 2)),
        ("auto", "sbn,sbn,normal", (3, 2)),
        ("gibbs", "nade,sbn", (3,)),
        ("hmc", "sbn", (3,)),
        ("langevin", "sbn,normal", (3,)),
    ],
)
def test_models_that_no_move_serves_are_refused(spec: str, names: str, hidden: tuple[int, ...]):
    model = Chain.build(names, data=4, hidden=hidden)
    with pytest.raises(UserError) as error:
        choose_move(spec, model)
    (line,) = str(error.value).splitlines()
    layers = ", ".join(type(layer).__name__ for layer in model.layers)
    if spec == "auto":
        assert line.startswith(f"no move serves the latents of a model of {layers}: take estimator nais")
    else:
        assert line == f"the move {spec} does not serve the latents of a model of {layers}: leave --moves out"


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_a_share_of_units_is_a_share(share: float):
    with pytest.raises(UserError, match=rf"must lie in \(0, 1\], got {share}"):
        GibbsMove(share)


@pytest.mark.parametrize("spec", ["langevin:step=0", "langevin:step=-1.0", "hmc:step=0.0", "hmc:leapfrog=0"])
def test_senseless_options_are_refused(spec):
    with pytest.raises(UserError, match="step"):
        MOVES.make(spec)
