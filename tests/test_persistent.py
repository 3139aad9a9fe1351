"""Remembered states: a whole visit, local moves and competition, leaves p(z | x) as it is, and its gradients are right
in the mean for any number of fresh draws, by enumeration; and the memory.

Rows start from exact draws of their posterior and are visited once. Laws are compared by chi-square at significance
1e-4, means by five standard errors, which are estimated from independent groups of rows. Some 350 laws are looked at,
of which one falls outside for one seed in thirty if all is well (it did for the first seed tried; with ten times the
rows and 40 other seeds that law had no p-value of 360 below 0.01): the seeds are fixed.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy import stats
from torch import Tensor

import doubly
from doubly import Chain, UserError
from doubly.data import load
from doubly.latents import ESTIMATORS, NAIS, OBJECTIVES, Batch, Gibbs, Memory, Objective, Pair, Persistent, bound
from doubly.latents.memory import pack, unpack
from doubly.latents.moves import LOG_STEP
from doubly.latents.persistent import compete
from doubly.runs.build import Facts, build
from doubly.runs.config import from_dict
from doubly.training.protocol import fit
from doubly.training.state import init
from exact import (
    MISSING,
    MISSING_MODELS,
    ROW,
    MissingCase,
    X,
    assert_same_law,
    bits,
    every_z,
    in_double,
    log_posterior,
    posterior_draws,
    random_pair,
    wanted,
)

PLAIN = {name: objective for name, objective in OBJECTIVES.items() if objective.plain}
GROUPS = 50


# The competition.


def test_weights_sum_to_one_and_say_how_often_each_is_chosen():
    """State c is followed by itself or by a fresh draw, never by another state. The weights are the mean over the
    states of the chances to be chosen, 50,000 times: chi-square of each state's choices, and of all."""
    C, S, n, rng = 3, 4, 50_000, torch.Generator().manual_seed(1)
    log_weight = 2 * torch.randn(C + S, 1, generator=rng, dtype=torch.float64) - 500
    weight, chosen = compete(log_weight.expand(-1, n), C, rng)
    assert weight.shape == (C + S, n)
    assert chosen.shape == (C, n)
    torch.testing.assert_close(weight.sum(0), torch.ones(n, dtype=torch.float64))
    assert (weight >= 0).all()
    for c in range(C):
        candidates = [c, *range(C, C + S)]
        counts = np.bincount(chosen[c].numpy(), minlength=C + S)
        assert counts[candidates].sum() == n
        chance = log_weight[candidates, 0].softmax(0).numpy()
        assert stats.chisquare(counts[candidates], chance * n).pvalue > 1e-4
    counts = np.bincount(chosen.flatten().numpy(), minlength=C + S)
    assert stats.chisquare(counts, weight[:, 0].numpy() * C * n).pvalue > 1e-4


# A visit, of complete rows.

MODELS = {
    "sbn": ("sbn", "sbn", (3,), "auto"),
    "sbn 2": ("sbn", "sbn", (2, 2), "auto"),
    "darn 2": ("darn:order=3,darn,sbn", "darn,sbn", (2, 2), "auto"),
    "darn, random order, partial": ("darn:order=5", "sbn", (3,), "gibbs:share=0.4"),
    "nade": ("nade:order=2,sbn", "sbn", (3,), "auto"),
    "mlp": ("mlp:widths=5,nade", "nade", (3,), "langevin:step=3"),
}
each_model = pytest.mark.parametrize("name", MODELS)
each_size = pytest.mark.parametrize(
    ("chains", "draws", "sweeps"),
    [(1, 1, 0), (1, 1, 1), (1, 4, 1), (3, 1, 0), (3, 1, 1), (3, 4, 0), (3, 4, 1), (2, 0, 1)],
)


class Visit(NamedTuple):
    """What is remembered after it, and both gradients of every group of rows."""

    memory: Memory
    theta_grads: Tensor
    phi_grads: Tensor


def given_states(estimator: Persistent, pair: Pair, latents: tuple[Tensor, ...]) -> Memory:
    """A memory with these latents (C, N, H)."""
    memory = estimator.init(pair.model, latents[0].shape[1], torch.Generator())
    for level, value in enumerate(latents, start=1):
        memory[f"state.z{level}"].copy_(pack(value))
    memory["visited"].fill_(1)
    return memory


def visit(estimator: Persistent, pair: Pair, x: Tensor, memory: Memory, rng: torch.Generator) -> Visit:
    """All rows once, in so many groups."""
    found = []
    for index in torch.arange(len(x)).chunk(GROUPS):
        found.append(estimator(Batch(pair, x[index], index, memory, rng)))
        memory = found[-1].memory
    grads = (torch.stack([wanted(getattr(each, f"{name}_grad")) for each in found]) for name in ("theta", "phi"))
    return Visit(memory, *grads)


def exact_gradients(pair: Pair) -> tuple[Tensor, Tensor]:
    """Of the mean over X of log p(x), and of E_{p(z|x)} log q(z | x)."""
    model, theta, proposal, phi = in_double(pair)
    theta, phi = theta.requires_grad_(), phi.requires_grad_()
    z, total = every_z(model), torch.zeros((), dtype=torch.float64)
    for x in X:
        log_p = model.log_prob(theta, (x, *z))
        log_q = proposal.log_prob(phi, z[::-1], x)
        total = total + (log_p.logsumexp(0) + log_p.detach().softmax(0) @ log_q) / len(X)
    of_theta, of_phi = torch.autograd.grad(total, (theta, phi))
    return of_theta, of_phi


def assert_mean(grads: Tensor, exact: Tensor, least: float = 0.02) -> None:
    """The mean over the groups is what is expected, within five standard errors, which are small."""
    grads = grads.double()
    stderr = grads.std(0) / math.sqrt(len(grads))
    assert ((grads.mean(0) - exact).abs() <= 5 * stderr + 1e-6).all()
    assert stderr.max() < least, "or the test sees nothing"


@each_model
@each_size
def test_a_visit_keeps_the_posterior_and_its_gradients_are_right(name: str, chains: int, draws: int, sweeps: int):
    """Of every one of the states, and for theta and phi in every coordinate, with a single fresh draw as with four."""
    names, proposal, hidden, moves = MODELS[name]
    pair, rng, copies = random_pair(names, proposal, hidden), torch.Generator().manual_seed(20), 100 * GROUPS
    estimator = Persistent(draws, chains=chains, sweeps=sweeps, moves=moves)
    start = posterior_draws(pair, X, chains * copies, rng)
    memory = given_states(estimator, pair, tuple(z.reshape(chains, copies * len(X), -1) for z in start))
    before = memory["state.z1"].clone()
    found = visit(estimator, pair, X.float().repeat(copies, 1), memory, rng)
    states = [unpack(found.memory[f"state.z{i}"], n) for i, n in enumerate(hidden, start=1)]
    for row, x in enumerate(X):
        law = log_posterior(pair, x)
        for state in torch.cat(states, -1)[:, row :: len(X)]:
            assert_same_law(state, law)
    assert (before != found.memory["state.z1"]).float().mean() > 0.02
    exact = exact_gradients(pair)
    assert_mean(found.theta_grads, exact[0])
    assert_mean(found.phi_grads, exact[1])


@pytest.mark.parametrize("chains", [1, 3])
def test_visits_find_the_posterior(chains: int):
    """From zeros, 30 visits without a local move do, and so do 30 with one."""
    pair, rng = random_pair("sbn", "sbn", (3,)), torch.Generator().manual_seed(3)
    for sweeps in (0, 1):
        estimator = Persistent(2, chains=chains, sweeps=sweeps)
        memory = given_states(estimator, pair, (torch.zeros(chains, 5000, 3),))
        x, index = X[1:2].float().expand(5000, -1), torch.arange(5000)
        for _ in range(30):
            memory = estimator(Batch(pair, x, index, memory, rng), "theta").memory
        for state in unpack(memory["state.z1"], 3):
            assert_same_law(state, log_posterior(pair, X[1]))


@pytest.mark.parametrize("name", PLAIN)
def test_phi_follows_its_objective(name: str):
    """Wake is right in the mean as above; sleep is the mean of grad log q(z | x) over all rows that the model draws."""
    pair, rng, copies = random_pair("sbn", "sbn", (3,)), torch.Generator().manual_seed(4), 100 * GROUPS
    objective = PLAIN[name]()
    estimator = Persistent(1, objective)
    (start,) = posterior_draws(pair, X, copies, rng)
    memory = given_states(estimator, pair, (start.reshape(1, copies * len(X), -1),))
    found = visit(estimator, pair, X.float().repeat(copies, 1), memory, rng)
    model, theta, proposal, phi = in_double(pair)
    phi.requires_grad_()
    x, z = bits(4)[:, None], bits(3).expand(16, 8, 3)
    objective_value = (model.log_prob(theta, (x, z)).exp() * proposal.log_prob(phi, (z,), x)).sum()
    (asleep,) = torch.autograd.grad(objective_value, phi)
    share = objective.sleep_weight
    assert_mean(found.phi_grads, (1 - share) * exact_gradients(pair)[1] + share * asleep)
    assert_mean(found.theta_grads, exact_gradients(pair)[0])


# What is wanted.


@pytest.mark.parametrize("name", ["sbn 2", "nade"])
@pytest.mark.parametrize("sweeps", [0, 1])
def test_one_gradient_at_a_time_is_the_same(name: str, sweeps: int):
    """From the same state of generator and memory. Phi alone makes no local move, so there it is the same without."""
    names, proposal, hidden, moves = MODELS[name]
    pair = random_pair(names, proposal, hidden, torch.float64)
    estimator = Persistent(4, chains=2, sweeps=sweeps, moves=moves)
    start = posterior_draws(pair, X, 2, torch.Generator().manual_seed(5))
    found, memories = {}, {}
    for which in ("both", "theta", "phi"):
        memories[which] = given_states(estimator, pair, start)
        batch = Batch(pair, X, torch.arange(3), memories[which], torch.Generator().manual_seed(6))
        found[which] = estimator(batch, which)
    assert found["theta"].phi_grad is None
    assert found["phi"].theta_grad is None
    torch.testing.assert_close(found["both"].theta_grad, found["theta"].theta_grad, rtol=1e-12, atol=1e-12)
    for key in memories["both"]:
        assert torch.equal(found["both"].memory[key], found["theta"].memory[key])
    if not sweeps:
        torch.testing.assert_close(found["both"].phi_grad, found["phi"].phi_grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["sbn", "nade"])
def test_phi_alone_moves_no_state_and_is_right_in_the_mean(name: str):
    """Neither states, nor which rows were visited, nor what is tuned."""
    names, proposal, hidden, moves = MODELS[name]
    pair, rng, copies = random_pair(names, proposal, hidden), torch.Generator().manual_seed(7), 100 * GROUPS
    estimator = Persistent(1, chains=2, moves=moves)
    start = posterior_draws(pair, X, 2 * copies, rng)
    memory = given_states(estimator, pair, tuple(z.reshape(2, copies * len(X), -1) for z in start))
    memory["visited"][:10] = 0
    before = {key: value.clone() for key, value in memory.items()}
    grads, x = [], X.float().repeat(copies, 1)
    for index in torch.arange(len(x)).chunk(GROUPS):
        found = estimator(Batch(pair, x[index], index, memory, rng), "phi")
        grads.append(wanted(found.phi_grad))
        assert found.memory.keys() == before.keys()
        assert all(torch.equal(value, before[key]) for key, value in found.memory.items())
    assert_mean(torch.stack(grads)[1:], exact_gradients(pair)[1])  # but for the rows that count as never visited


def test_train_is_the_bound_of_the_fresh_draws():
    """E[L_1] = E_q[log p(x, z) - log q(z | x)], which is summed over all z; ess lies between 1 and C + S."""
    pair, rng = random_pair("sbn", "sbn", (3,)), torch.Generator().manual_seed(8)
    estimator, copies = Persistent(1), 100
    memory, x = estimator.init(pair.model, 3 * copies, rng), X.float().repeat(copies, 1)
    found = [estimator(Batch(pair, x, torch.arange(len(x)), memory, rng), "theta").stats for _ in range(64)]
    model, theta, proposal, phi = in_double(pair)
    exact = 0.0
    for row in X:
        log_p, log_q = model.log_prob(theta, (row, bits(3))), proposal.log_prob(phi, (bits(3),), row)
        exact += (log_q.exp() @ (log_p - log_q)).item() / len(X)
    train = torch.stack([each["train"] for each in found]).double()
    assert abs(train.mean() - exact) <= 5 * train.std() / 8
    assert all(1 < each["ess"] < 2 for each in found)


# Rows with missing values.

INCOMPLETE = ROW.masked_fill(MISSING, math.nan)


def joint_law(case: MissingCase) -> Tensor:
    """log p(x_missing, z | x_observed), (4, 2^H): the rows that fit, and every z."""
    joint = case.log_joint()[case.fits()]
    return joint - joint.flatten().logsumexp(0)


def exact_missing_gradients(case: MissingCase) -> tuple[Tensor, Tensor]:
    """Of log p(x_observed), and of E_{p(z | x_observed)} log q(z | x_observed)."""
    theta, phi = case.theta.clone().requires_grad_(), case.phi.clone().requires_grad_()
    case.theta = theta
    (of_theta,) = torch.autograd.grad(case.log_joint()[case.fits()].flatten().logsumexp(0), theta)
    case.theta = theta.detach()
    if not case.model.layers[1:]:
        return of_theta, torch.zeros(0, dtype=torch.float64)
    log_q = case.proposal.log_prob(phi, (case.z,), INCOMPLETE)
    return of_theta, torch.autograd.grad(joint_law(case).logsumexp(0).exp() @ log_q, phi)[0]


@pytest.mark.parametrize("name", MISSING_MODELS)
@pytest.mark.parametrize(("chains", "draws", "sweeps"), [(1, 1, 0), (1, 1, 1), (3, 2, 1)])
def test_a_visit_of_rows_with_missing_values_keeps_the_law(name: str, chains: int, draws: int, sweeps: int):
    """That of z given what is observed; where the data layer has an order, that of z and the missing values."""
    case, rng, n = MissingCase(name, masked=True), torch.Generator().manual_seed(9), 200 * GROUPS
    estimator, law = Persistent(draws, chains=chains, sweeps=sweeps).for_missing(case.model), joint_law(case)
    ordered = not case.model.layers[0].factorised
    drawn = torch.multinomial(law.flatten().exp(), chains * n, replacement=True, generator=rng).view(chains, n)
    memory = estimator.init(case.model, n, rng)
    assert ("state.x" in memory) == ordered
    memory["visited"].fill_(1)
    if case.model.layers[1:]:
        memory["state.z1"].copy_(pack(case.z[drawn % law.shape[1]]))
    if ordered:
        memory["state.x"].copy_(pack(bits(4)[case.fits()][drawn // law.shape[1]]))
    found = visit(estimator, case.pair, INCOMPLETE.expand(n, 4), memory, rng)
    x, z = unpack(memory["state.x"], 4) if ordered else None, torch.zeros(chains, n, 0)
    if case.model.layers[1:]:
        z = unpack(memory["state.z1"], 3)
    for c in range(chains):
        if x is None:
            assert_same_law(z[c], law.logsumexp(0))
        else:
            assert (x[c] == ROW)[:, ~MISSING].all()
            assert_same_law(torch.cat([x[c][:, MISSING], z[c]], 1), law.flatten())
    exact = exact_missing_gradients(case)
    assert_mean(found.theta_grads, exact[0], least=0.05)
    if case.model.layers[1:]:
        assert_mean(found.phi_grads, exact[1], least=0.05)


@pytest.mark.parametrize("name", ["sbn", "darn"])
def test_asleep_too_values_are_missing(name: str):
    """Sleep climbs log q(z | x) of drawn rows in which the same values are missing: without weights but for the mask,
    its gradient for those of x is zero where all rows miss them."""
    case, rng = MissingCase(name, masked=True), torch.Generator().manual_seed(10)
    estimator = Persistent(1, PLAIN["sleep"](), sweeps=0).for_missing(case.model)
    memory = estimator.init(case.model, 50, rng)
    grad = estimator(Batch(case.pair, INCOMPLETE.expand(50, 4), torch.arange(50), memory, rng)).phi_grad
    (of,) = case.proposal.unflatten(wanted(grad))
    assert (of["W"][:, :4][:, MISSING] == 0).all()
    assert (of["W"][:, :4][:, ~MISSING] != 0).all()
    assert (of["W"][:, 4:][:, MISSING] != 0).all()


@pytest.mark.parametrize("name", ["nade", "darn:order=3"])
def test_missing_values_that_nothing_moves_are_refused(name: str):
    """A local move leaves remembered missing values as they are: without fresh draws they would never change."""
    case = MissingCase(name, masked=True)
    with pytest.raises(UserError, match=r"^missing values .* need fresh draws, got none: raise draws$"):
        Persistent(0).for_missing(case.model)
    assert not Persistent(0).for_missing(MissingCase("sbn", masked=True).model).remembers_rows


# The first visit.

STILL = {"sbn": "gibbs:share=1e-9", "nade": "langevin:step=1e-6"}


@pytest.mark.parametrize("name", STILL)
def test_a_row_that_was_never_visited_starts_from_the_proposal(name: str):
    """With moves that all but never move and no fresh draws, what is remembered after the first visit is its start: a
    draw of q, for each of the states. The second visit finds it there."""
    names, proposal, hidden, _ = MODELS[name]
    pair, rng, n = random_pair(names, proposal, hidden), torch.Generator().manual_seed(11), 20_000
    estimator = Persistent(0, chains=2, moves=STILL[name])
    memory, index = estimator.init(pair.model, n + 5, rng), torch.arange(n) + 5
    for times in range(2):
        before = memory["state.z1"].clone()
        memory = estimator(Batch(pair, X[:1].float().expand(n, -1), index, memory, rng), "theta").memory
        assert torch.equal(memory["state.z1"], before) == (times == 1)
    assert memory["visited"].sum() == n
    assert not memory["visited"][:5].any()
    law = in_double(pair).proposal.log_prob(pair.phi.double(), (bits(3),), X[0])
    one, other = unpack(memory["state.z1"], 3)[:, 5:]
    assert_same_law(one, law)
    assert_same_law(other, law)
    both = in_double(pair).proposal.log_prob(pair.phi.double(), (bits(6).view(64, 2, 3),), X[0]).sum(1)
    assert_same_law(torch.cat([one, other], 1), both)  # independent of each other


def test_rows_visited_and_new_may_come_together():
    """New rows start from q, which is certain of ones here; the others from what is remembered, zeros."""
    model, proposal = (build("sbn", data=4, hidden=(9,)) for build in (Chain.build, Chain.build_proposal))
    pair = Pair(model, torch.zeros(model.size), proposal, torch.full((proposal.size,), 50.0))
    estimator, rng = Persistent(0, chains=2, moves="gibbs:share=1e-9"), torch.Generator().manual_seed(12)
    memory = estimator.init(model, 3, rng)
    memory["visited"][1] = 1
    memory = estimator(Batch(pair, X.float(), torch.arange(3), memory, rng), "theta").memory
    assert torch.equal(unpack(memory["state.z1"], 9), torch.tensor([1.0, 0, 1])[:, None].expand(2, 3, 9))


def real_pair() -> Pair:
    """A model of real values over two real latents, with a proposal."""
    model = Chain.build("gaussian:widths=3,normal", data=4, hidden=(2,))
    proposal = Chain.build_proposal("gaussian:widths=none", data=4, hidden=(2,))
    rng = torch.Generator().manual_seed(13)
    theta, phi = (0.5 * torch.randn(chain.size, generator=rng) for chain in (model, proposal))
    return Pair(model, theta, proposal, phi)


def test_real_latents_start_from_the_proposal():
    pair, rng, n = real_pair(), torch.Generator().manual_seed(14), 10_000
    estimator, x = Persistent(0, moves="hmc:step=1e-12"), torch.tensor([[0.3, -1.0, 0.5, 2.0]])
    memory = estimator.init(pair.model, n, rng)
    memory = estimator(Batch(pair, x.expand(n, -1), torch.arange(n), memory, rng), "theta").memory
    (params,) = pair.proposal.unflatten(pair.phi)
    mean, log_sigma = (params[f"W_{head}"] @ x[0] + params[f"b_{head}"] for head in ("mu", "sigma"))
    for coordinate in ((memory["state.z1"][0] - mean) / log_sigma.exp()).T:
        assert stats.kstest(coordinate.numpy(), "norm").pvalue > 1e-4


def test_missing_values_start_from_the_model():
    """z ~ q, and the missing values given z and the values before them. The competition needs a fresh draw here, so the
    state is looked at before it."""
    case, rng, n = MissingCase("darn", masked=True), torch.Generator().manual_seed(15), 200 * GROUPS
    estimator = Persistent(1).for_missing(case.model)
    memory = estimator.init(case.model, n, rng)
    state = estimator._recall(Batch(case.pair, INCOMPLETE.expand(n, 4), torch.arange(n), memory, rng))
    assert state.completed is not None
    assert (state.completed == ROW)[..., ~MISSING].all()
    layer, params = case.pair.data_layer
    log_q = case.proposal.log_prob(case.phi, (case.z,), INCOMPLETE)
    fits = bits(4)[case.fits()]
    cells = layer.cells(params, fits[:, None], case.z).masked_fill(~MISSING, 0).sum(-1)
    assert_same_law(torch.cat([state.completed[0][:, MISSING], state.latents[0][0]], 1), (log_q + cells).flatten())


# The memory, and whole fits.


def test_binary_latents_take_a_bit_each_and_real_ones_a_float():
    rng = torch.Generator()
    memory = Persistent(chains=2).init(Chain.build("sbn", data=20, hidden=(200, 13)), 400, rng)
    assert {name: (value.shape, value.dtype) for name, value in memory.items()} == {
        "state.z1": ((2, 400, 25), torch.uint8),
        "state.z2": ((2, 400, 2), torch.uint8),
        "visited": ((400,), torch.uint8),
    }
    memory = Persistent().init(Chain.build("mlp:widths=5,normal", data=20, hidden=(7,)), 40, rng)
    assert {name: (value.shape, value.dtype) for name, value in memory.items()} == {
        "state.z1": ((1, 40, 7), torch.float32),
        "move.log_step": ((), torch.float32),
        "visited": ((40,), torch.uint8),
    }
    model = Chain.build("nade,sbn", data=20, hidden=(9,))
    memory = Persistent().for_missing(model).init(model, 40, rng)
    assert {name: tuple(value.shape) for name, value in memory.items()} == {
        "state.x": (1, 40, 3),
        "state.z1": (1, 40, 2),
        "move.log_step": (),
        "visited": (40,),
    }
    assert memory[LOG_STEP].item() == pytest.approx(math.log(0.3))


def bars(path: Any) -> str:
    np.savez(path, data=load("bars").train[:80, :6])
    return str(path)


def reals(path: Any) -> str:
    rng = np.random.default_rng(0)
    np.savez(path, data=rng.normal(size=(80, 2)) @ rng.normal(size=(2, 6)) + 0.3 * rng.normal(size=(80, 6)))
    return str(path)


RUNS: dict[str, tuple[Callable[[Any], str], dict[str, str]]] = {
    "sbn": (bars, {}),
    "darn, two states": (bars, {"model": "darn", "estimator": "persistent:chains=2,moves=gibbs"}),
    "vae": (reals, {"model": "gaussian:widths=5,normal", "proposal": "gaussian:widths=5"}),
    "nade over sbn": (bars, {"model": "nade,sbn"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumes_to_the_same_bits(name: str, tmp_path):
    """Stopped after 7 mini-batches, in the middle of an epoch of the burn-in, with the states in the checkpoint."""
    table, fields = RUNS[name]
    settings: dict[str, Any] = {"data": table(tmp_path / "a.npz"), "hidden": (3,), "batch": 16, "theta_steps": 2}
    settings |= {"estimator": "persistent", "draws": 2, "epochs": 5, "collect": 2, "threads": 1, "valid_draws": 5}
    whole = doubly.fit(tmp_path / "whole", quiet=True, **(settings | fields))
    data = whole.data()
    with doubly.Run.create(tmp_path / "parts", whole.config, data) as run:
        method = build(run.config, data)
    train, valid = torch.as_tensor(data.train), torch.as_tensor(data.valid)
    for state, record in itertools.islice(fit(method, train, valid, init(method, train)), 7):
        assert state.began is None
        assert record is None or record.epoch == 1
        run.save(state)
    assert state.batch, "in the middle of an epoch"
    doubly.resume(run.path, quiet=True)
    one, other = (safetensors.torch.load_file(each.checkpoint) for each in (whole, run))
    assert one.keys() == other.keys()
    assert {"memory.state.z1", "memory.visited"} <= one.keys()
    assert one["memory.visited"].all()
    assert ("memory.move.log_step" in one) == (name in ("vae", "nade over sbn"))
    for key in one:
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("name", ["vae", "nade over sbn"])
def test_steps_are_tuned_in_the_burn_in_only(name: str, tmp_path):
    table, fields = RUNS[name]
    settings: dict[str, Any] = {"data": table(tmp_path / "a.npz"), "hidden": (3,), "batch": 16, "theta_steps": 1}
    settings |= {"estimator": "persistent", "epochs": 4, "collect": 2, "valid_draws": 3}
    config = doubly.Config(**(settings | fields))
    data = doubly.data.load(config.data)
    method = build(config, data)
    train, valid = torch.as_tensor(data.train), torch.as_tensor(data.valid)
    tuned: list[float] = []
    settled: list[float] = []
    for state, record in fit(method, train, valid, init(method, train)):
        if record is None:
            (tuned if state.began is None else settled).append(state.memory[LOG_STEP].item())
    assert len(set(tuned)) == len(tuned) > 3
    assert set(settled) == {tuned[-1]}
    assert len(settled) > 3


# Corners, and what is refused.


@pytest.mark.parametrize("names", ["sbn", "darn:order=3"])
@pytest.mark.parametrize("chains", [1, 4])
def test_without_fresh_draws_it_is_gibbs(names: str, chains: int):
    """The same numbers, and the same states, visit after visit."""
    pair = random_pair(names, "sbn", (2, 2))
    found: dict[str, list[Any]] = {}
    for which, estimator in {"gibbs": Gibbs(chains), "persistent": Persistent(0, chains=chains)}.items():
        rng = torch.Generator().manual_seed(16)
        memory = estimator.init(pair.model, 3, rng)
        found[which] = [estimator(Batch(pair, X.float(), torch.arange(3), memory, rng)) for _ in range(3)]
    for one, other in zip(*found.values(), strict=True):
        assert torch.equal(one.theta_grad, other.theta_grad)
        assert torch.equal(one.phi_grad, other.phi_grad)
        assert one.stats == other.stats
    assert one.memory.keys() == other.memory.keys()
    assert all(torch.equal(one.memory[key], other.memory[key]) for key in one.memory)


def test_without_latents_it_is_exact():
    pair, rng = random_pair("darn", "sbn", ()), torch.Generator().manual_seed(17)
    theta = pair.theta.clone().requires_grad_()
    (grad,) = torch.autograd.grad(pair.model.log_prob(theta, (X.float(),)).mean(), theta)
    estimator = Persistent()
    found = estimator(Batch(pair, X.float(), torch.arange(3), estimator.init(pair.model, 3, rng), rng))
    torch.testing.assert_close(found.theta_grad, grad)
    assert wanted(found.phi_grad).shape == (0,)


def test_where_annealing_does_not_serve_an_epoch_is_validated_by_draws():
    """With as many of them as it would have temperatures, on every so many rows."""
    pair, rows = random_pair("nade,sbn", "sbn", (3,)), bits(4).float()
    found = Persistent(valid_rows=5).validate(pair, rows, 20, torch.Generator().manual_seed(18))
    expected = bound(pair, rows[::4], 20, torch.Generator().manual_seed(18))
    assert torch.equal(found.log_likelihood, expected.log_likelihood)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"draws": -1}, "draws of remembered states must be at least 0, got -1"),
        ({"chains": 0}, "chains of remembered states must be at least 1, got 0"),
        ({"sweeps": -1}, "sweeps of remembered states must be at least 0, got -1"),
        ({"draws": 0, "sweeps": 0}, "need fresh draws or local moves, got neither"),
    ],
)
def test_amounts_must_make_sense(fields: dict[str, int], said: str):
    with pytest.raises(UserError, match=said):
        ESTIMATORS.make("persistent", **fields)


@pytest.mark.parametrize("objective", [value for name, value in OBJECTIVES.items() if name not in PLAIN])
def test_objectives_of_draws_alone_are_refused(objective: type[Objective]):
    pair = random_pair("sbn", "sbn", (3,))
    with pytest.raises(UserError, match="choose wake, sleep or wake-sleep, or take estimator nais"):
        Persistent(5, objective()).check(pair.model, pair.proposal)


def test_latents_that_no_move_serves_are_refused_unless_none_is_made():
    model = Chain.build("sbn,gaussian:widths=5,sbn", data=4, hidden=(3, 2))
    proposal = Chain.build_proposal("sbn,gaussian:widths=5", data=4, hidden=(3, 2))
    with pytest.raises(UserError, match="no move serves"):
        Persistent().check(model, proposal)
    Persistent(sweeps=0).check(model, proposal)


def test_a_refit_moves_remembered_states():
    """The weights stand still: the visits of a row are a chain, also where only the proposal learns."""
    case = MissingCase("nade", masked=True)
    estimator = Persistent(3, sweeps=0).for_missing(case.model)
    rng = torch.Generator().manual_seed(0)
    memory = {name: value.clone() for name, value in estimator.init(case.model, 50, rng).items()}
    x, index = torch.where(MISSING, math.nan, ROW).expand(50, 4), torch.arange(50)
    estimator(Batch(case.pair, x, index, memory, rng), "phi")
    assert not memory["visited"].any(), "in training, the step for theta moves them"
    estimator(Batch(case.pair, x, index, memory, rng, remember=True), "phi")
    assert memory["visited"].all()


@pytest.mark.parametrize(("settings", "expected"), [
    ({"estimator": "persistent:chains=3", "draws": 2}, Persistent(5, chains=3)),
    ({"estimator": "gibbs", "draws": 4}, Persistent(5, chains=4, moves="gibbs")),
    ({"estimator": "persistent:sweeps=0"}, NAIS(5)),
    ({"estimator": "nais", "draws": 8}, NAIS(8)),
])  # fmt: skip
def test_a_run_refits_by_the_moves_that_it_has(settings: dict[str, Any], expected: Any):
    config = from_dict({"data": "bars", "hidden": (5,)} | settings)
    assert build(config, Facts(16, "binary", (16,))).refitter == expected
