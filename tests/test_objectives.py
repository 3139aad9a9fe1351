"""Objectives for the proposal: each one's gradient, in expectation, is that of what it says it climbs."""

import itertools
import math
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from doubly import OBJECTIVES, Chain, UserError
from doubly.latents import NAIS, Batch, Pair
from doubly.samplers import SGNHT, Adam
from doubly.samplers.priors import Normal
from doubly.training.method import Method
from doubly.training.protocol import fit
from doubly.training.state import init
from exact import bits, wanted

X = torch.tensor([1.0, 0, 1], dtype=torch.float64)
MODEL, PROPOSAL = Chain.build("sbn", data=3, hidden=(2,)), Chain.build_proposal("sbn", data=3, hidden=(2,))
BLOCKS, ROWS = 30, 4000


def weights(chain: Chain, seed: int) -> Tensor:
    return torch.randn(chain.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


THETA, PHI = weights(MODEL, 1), weights(PROPOSAL, 2)


def estimated(
    name: str, draws: int, model: Chain, theta: Tensor, proposal: Chain, phi: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean of the gradient over many repetitions of one row, and its standard error over blocks of them."""
    estimator, rng = NAIS(draws, OBJECTIVES.make(name)), torch.Generator().manual_seed(3)
    memory = {key: value.double() for key, value in estimator.init(model, ROWS, rng).items()}
    x, blocks = X.expand(ROWS, -1), []
    for _ in range(BLOCKS):
        found = estimator(Batch(Pair(model, theta, proposal, phi), x, torch.arange(ROWS), memory, rng), "phi")
        memory = found.memory
        blocks.append(wanted(found.phi_grad))
    stacked = torch.stack(blocks[2:])  # a learnt baseline has then found its feet
    return stacked.mean(0), stacked.std(0) / math.sqrt(len(stacked))


def joint(phi: Tensor) -> tuple[Tensor, Tensor]:
    """log p(x, z) and log q(z | x) for each of the four z."""
    z = bits(2)
    return MODEL.log_prob(THETA, (X.expand(4, -1), z)), PROPOSAL.log_prob(phi, (z,), X.expand(4, -1))


def elbo(phi: Tensor) -> Tensor:
    log_p, log_q = joint(phi)
    return (log_q.exp() * (log_p - log_q)).sum()


def bound(phi: Tensor, draws: int) -> Tensor:
    """E[L_S] over all tuples of S draws."""
    log_p, log_q = joint(phi)
    total = phi.new_zeros(())
    for index in itertools.product(range(4), repeat=draws):
        z = list(index)
        total = total + log_q[z].sum().exp() * (torch.logsumexp((log_p - log_q)[z], 0) - math.log(draws))
    return total


def sleep_weight(phi: Tensor) -> Tensor:
    """E_{p(x,z)}[log q(z | x)]."""
    x, z = bits(3).repeat_interleave(4, 0), bits(2).repeat(8, 1)
    return (MODEL.log_prob(THETA, (x, z)).exp() * PROPOSAL.log_prob(phi, (z,), x)).sum()


@pytest.mark.parametrize(
    ("name", "draws", "exact"),
    [
        ("sleep", 1, sleep_weight),
        ("vimco", 2, lambda phi: bound(phi, 2)),
        ("vimco", 4, lambda phi: bound(phi, 4)),
        ("nvil", 1, elbo),
        ("nvil", 3, elbo),
    ],
)
def test_gradient_is_that_of_what_is_climbed(name, draws, exact):
    """By enumeration, within five standard errors; nvil's is scaled by 1 / max(1, sd), which here is a constant 1."""
    phi = PHI.clone().requires_grad_()
    (expected,) = torch.autograd.grad(exact(phi), phi)
    mean, stderr = estimated(name, draws, MODEL, THETA, PROPOSAL, PHI)
    assert expected.abs().max() > 50 * stderr.max(), "the gradient must stand out from the noise"
    assert ((mean - expected).abs() < 5 * stderr + 1e-12).all()


def test_wake_sleep_is_half_of_each():
    """For the same draws."""
    x = X.expand(7, -1)
    grads = []
    for name in ("wake", "sleep", "wake-sleep"):
        estimator = NAIS(3, OBJECTIVES.make(name))
        rng = torch.Generator().manual_seed(0)
        batch = Batch(Pair(MODEL, THETA, PROPOSAL, PHI), x, torch.arange(7), {}, rng)
        grads.append(wanted(estimator(batch, "phi").phi_grad))
    torch.testing.assert_close(grads[2], (grads[0] + grads[1]) / 2)


@pytest.mark.parametrize("name", ["iwae", "dreg"])
@pytest.mark.parametrize("draws", [1, 2])
def test_pathwise_gradient_is_that_of_the_bound(name, draws):
    """One Gaussian hidden unit: E[L_S] by Gauss–Hermite quadrature in the S standard normals behind the draws."""
    model = Chain.build("sbn,normal", data=3, hidden=(1,))
    proposal = Chain.build_proposal("gaussian:widths=none", data=3, hidden=(1,))
    theta, phi = weights(model, 4), weights(proposal, 5) / 2
    nodes, masses = (torch.from_numpy(array) for array in np.polynomial.hermite_e.hermegauss(60))
    masses = masses / masses.sum()
    grid = torch.cartesian_prod(*[nodes] * draws).view(-1, draws)
    mass = torch.cartesian_prod(*[masses] * draws).view(-1, draws).prod(1)
    followed = phi.clone().requires_grad_()
    params = proposal.unflatten(followed)[0]
    mu = params["W_mu"] @ X + params["b_mu"]
    sigma = torch.exp(params["W_sigma"] @ X + params["b_sigma"])
    z = (mu + sigma * grid.reshape(-1, 1)).view(-1, draws, 1)
    x = X.expand(*z.shape[:2], -1)
    log_w = model.log_prob(theta, (x, z)) - proposal.log_prob(followed, (z,), x)
    bound = (mass * (torch.logsumexp(log_w, 1) - math.log(draws))).sum()
    (expected,) = torch.autograd.grad(bound, followed)
    mean, stderr = estimated(name, draws, model, theta, proposal, phi)
    assert expected.abs().max() > 20 * stderr.max()
    assert ((mean - expected).abs() < 5 * stderr + 1e-9).all()


@pytest.mark.parametrize("name", ["iwae", "dreg"])
def test_one_way_back_for_both_is_that_for_each(name):
    """The bound is climbed by both vectors at once; from the same draws, as by each alone."""
    model = Chain.build("mlp:widths=4,normal", data=3, hidden=(2,))
    proposal = Chain.build_proposal("gaussian:widths=4", data=3, hidden=(2,))
    pair = Pair(model, weights(model, 1), proposal, weights(proposal, 2))
    given = pair, X.expand(6, -1), torch.arange(6)
    estimator = NAIS(4, OBJECTIVES.make(name))
    both, phi = (estimator(Batch(*given, {}, torch.Generator().manual_seed(0)), wanted) for wanted in ("both", "phi"))
    theta = NAIS(4)(Batch(*given, {}, torch.Generator().manual_seed(0)), "theta")
    torch.testing.assert_close(both.theta_grad, theta.theta_grad)
    torch.testing.assert_close(both.phi_grad, phi.phi_grad)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_of_theta_does_not_depend_on_the_objective(name):
    """Whatever phi climbs, theta's gradient is the importance-weighted one, for the same draws."""
    pathwise = OBJECTIVES[name].pathwise
    model = Chain.build("sbn,normal" if pathwise else "sbn", data=3, hidden=(2,))
    proposal = Chain.build_proposal("gaussian:widths=none" if pathwise else "sbn", data=3, hidden=(2,))
    theta, phi, x = weights(model, 1), weights(proposal, 2), X.expand(6, -1)
    grads = []
    for objective in (name, "wake"):
        estimator = NAIS(4, OBJECTIVES.make(objective))
        memory = {key: value.double() for key, value in estimator.init(model, 6, torch.Generator()).items()}
        rng = torch.Generator().manual_seed(0)
        grads.append(
            estimator(Batch(Pair(model, theta, proposal, phi), x, torch.arange(6), memory, rng), "both").theta_grad
        )
    torch.testing.assert_close(*grads)


def test_nvils_baseline_lowers_the_variance():
    """After some rounds the baseline explains the signal, and what it learnt is in the memory."""
    estimator, rng = NAIS(1, OBJECTIVES.make("nvil:baseline_step=0.02")), torch.Generator().manual_seed(0)
    x = bits(3).repeat(50, 1)
    memory = {key: value.double() for key, value in estimator.init(MODEL, len(x), rng).items()}
    spreads = []
    for _ in range(200):
        memory = estimator(
            Batch(Pair(MODEL, THETA * 2, PROPOSAL, PHI), x, torch.arange(len(x)), memory, rng), "phi"
        ).memory
        spreads.append((memory["nvil.variance"] + memory["nvil.mean"] ** 2).item())
    assert np.mean(spreads[-20:]) < 0.7 * np.mean(spreads[5:10])


def test_objectives_refuse_what_they_cannot_serve():
    for name in ("iwae", "dreg"):
        with pytest.raises(UserError, match="needs real latent layers"):
            NAIS(5, OBJECTIVES.make(name)).check(MODEL, PROPOSAL)
    with pytest.raises(UserError, match="at least 2"):
        NAIS(1, OBJECTIVES.make("vimco")).check(MODEL, PROPOSAL)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_proposals_learn_by_every_objective(name):
    """On a fixed model the effective number of draws rises."""
    pathwise = OBJECTIVES[name].pathwise
    model = Chain.build("sbn,normal" if pathwise else "sbn", data=6, hidden=(3,))
    proposal = Chain.build_proposal("gaussian:widths=8" if pathwise else "sbn", data=6, hidden=(3,))
    theta = 2 * torch.randn(model.size, generator=torch.Generator().manual_seed(1))
    train = model.sample(theta, 500, torch.Generator().manual_seed(2))[0]

    class Still(SGNHT):
        def ask(self, state, eta, rng):
            return state

        def tell(self, state, grad, eta, rng):
            return state

    chosen = Method(
        model, proposal, Normal(1.0), Still(), NAIS(5, OBJECTIVES.make(name)), Adam(), NAIS(),
        phi_step=1e-2, theta_steps=1, epochs=25, collect=0, valid_draws=5,
    )  # fmt: skip
    state = init(chosen, train)
    state = state._replace(theta=state.theta._replace(theta=theta))
    ess = [record.ess for state, record in fit(chosen, train, train[:50], state) if record]
    assert ess[-1] > ess[0] + 0.3


DOCS = Path(__file__).parents[1] / "docs" / "reports"
BIASED = {"wake", "wake-sleep"}  # weights normalised over a few draws


def written() -> dict[tuple[str, str], list[float]]:
    """The tables of docs/reports/objectives.md: gradient, bias, bias by chance, variance and its standard error."""
    found = {}
    for section in (DOCS / "objectives.md").read_text().split("\n## ")[1:]:
        number = r"([\d.]+)"
        row = rf"^\| `([\w-]+)` \|.*\| {number} \| {number} \({number}\) \| {number} ± {number} \|"
        for name, *numbers in re.findall(row, section, re.M):
            found[section.splitlines()[0], name] = [float(text) for text in numbers]
    return found


def test_the_page_of_variances_lists_every_objective():
    assert {name for _, name in written()} == set(OBJECTIVES), "run python docs/reports/objectives.py"


@pytest.mark.parametrize(("title", "name"), written())
def test_the_page_of_variances_is_up_to_date(title, name):
    """A twentieth of the draws of `docs/reports/objectives.py` finds the variance written there, within five standard
    errors, and no bias where there should be none.

    The squared norm of a mean without bias is, in units of what chance gives, at worst chi-square with one degree of
    freedom (when one direction has all the noise): it passes 4² once in 16,000 times.
    """
    page = runpy.run_path(str(DOCS / "objectives.py"))
    (case,) = [case for case in page["cases"]() if case.title == title]
    got = page["measure"](case, name, blocks=100)
    gradient, bias, chance, variance, stderr = written()[title, name]
    assert got.gradient == pytest.approx(gradient, abs=1e-4)
    assert abs(got.variance - variance) < 5 * math.hypot(got.variance_stderr, stderr)
    assert (bias > 4 * chance) is (name in BIASED)
    assert got.bias <= 4 * got.noise or name in BIASED


@pytest.mark.parametrize("name", ["wake", "sleep", "wake-sleep", "iwae"])
def test_an_objective_that_inherits_is_asked_what_it_climbs(name):
    """What its parent says of itself, so that its gradient is found in a quicker way, is not true of it."""
    mine: Any = type("Mine", (OBJECTIVES[name],), {"__call__": lambda self, round: None})
    assert not mine.plain
    assert not mine.bound
