"""Gibbs sampling: the exact conditionals, hence the exact posterior, hence the exact gradients; and the memory."""

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from doubly import Chain, UserError
from doubly.core.codec import Encoded, to_tensors
from doubly.data import load
from doubly.kernels import gibbs as kernel
from doubly.kernels.gibbs import Swept
from doubly.latents import NAIS, Annealing, Batch, Estimate, Gibbs, Wanted
from doubly.latents.memory import pack, unpack
from doubly.latents.pair import Pair
from doubly.latents.sweep import sweep
from doubly.samplers import SGNHT, Adam
from doubly.samplers.priors import Normal
from doubly.training.method import Method
from doubly.training.protocol import fit
from doubly.training.state import State, decode, init
from exact import assert_same_law, bits, wanted

HIDDEN = [(3,), (2, 2)]
MODELS = ["sbn", "darn", "darn:order=reversed", "darn:order=3"]
X = bits(4)[[3, 10, 13]]
each_depth = pytest.mark.parametrize("hidden", HIDDEN, ids=str)
each_model = pytest.mark.parametrize("names", MODELS)


@pytest.fixture(params=["0", ""], ids=["plain", "fused"])
def kernels(request, monkeypatch):
    """Both kinds of kernels for single precision; what is in double precision is plain anyway."""
    monkeypatch.setenv("DOUBLY_KERNELS", request.param)
    return request.param


def weights(chain: Chain, seed: int = 32) -> Tensor:
    """Weights of standard deviation 1 in single precision."""
    return torch.randn(chain.size, generator=torch.Generator().manual_seed(seed))


def log_posterior(chain: Chain, theta: Tensor, x: Tensor) -> Tensor:
    """log p(z | x) of all z, in the order of bits()."""
    widths = [layer.n_out for layer in chain.layers[1:]]
    log_p = chain.log_prob(theta.double(), (x, *bits(sum(widths)).split(widths, 1)))
    return log_p - log_p.logsumexp(0)


# The conditionals.


class Spy:
    """Notes what the kernel did to each layer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.swept: list[Swept] = []
        real = kernel.sweep

        def watched(*args: Any) -> Swept:
            self.swept.append(real(*args))
            return self.swept[-1]

        monkeypatch.setattr(kernel, "sweep", watched)


def conditional_log_odds(chain: Chain, theta: Tensor, x: Tensor, old: list[Tensor], new: list[Tensor]) -> list[Tensor]:
    """log p(x, z with z_k = 1) - log p(x, z with z_k = 0) as the sweep came by, from nothing but log_prob."""
    values, found = [value.double() for value in old], [torch.empty_like(value).double() for value in old]
    for level, value in enumerate(values):
        for k in range(value.shape[-1]):
            ends = []
            for bit in (0.0, 1.0):
                value[..., k] = bit
                ends.append(chain.log_prob(theta.double(), (x.double(), *values)))
            found[level][..., k] = ends[1] - ends[0]
            value[..., k] = new[level][..., k]
    return found


@pytest.mark.parametrize("names", [*MODELS, "sbn,darn,sbn", "darn,sbn,darn:order=1"])
@pytest.mark.parametrize(("data", "hidden"), [(4, (3, 2)), (70, (65, 5))], ids=str)
@pytest.mark.parametrize("scale", [0.3, 1.0, 10.0])
def test_every_unit_is_drawn_from_its_conditional(
    names: str, data: int, hidden: tuple[int, ...], scale: float, kernels: str, monkeypatch
):
    """The log-odds of every unit of every layer, in the state in which the sweep finds it.

    A scale of 10 has log-odds of hundreds, beyond what products of probabilities can hold.
    """
    chain, rng = Chain.build(names, data=data, hidden=hidden), torch.Generator().manual_seed(1)
    theta = weights(chain) * scale
    x, *old = (torch.randint(2, (*shape, n), generator=rng).float() for shape, n in zip(
        [(3,), (2, 3), (2, 3)], [data, *hidden], strict=True))  # fmt: skip
    spy = Spy(monkeypatch)
    new = sweep(chain, theta, x, tuple(old), rng)
    for found, expected, value in zip(
        spy.swept, conditional_log_odds(chain, theta, x, old, list(new)), new, strict=True
    ):
        assert found.value is value
        assert ((value == 0) | (value == 1)).all()
        torch.testing.assert_close(found.log_odds.double(), expected, rtol=1e-4, atol=1e-3 * scale)
        decided = expected.abs() > 30
        assert torch.equal(value[decided] == 1, expected[decided] > 0)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    monkeypatch.setenv("DOUBLY_KERNELS", "1")
    chain, before = Chain.build("darn", data=30, hidden=(20, 10)), torch.get_num_threads()
    x, *hidden = chain.sample(weights(chain), 50, torch.Generator().manual_seed(2))
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(sweep(chain, weights(chain), x, tuple(hidden), torch.Generator().manual_seed(3)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# The law.


@each_model
@each_depth
def test_a_sweep_keeps_the_posterior(names: str, hidden: tuple[int, ...], kernels: str):
    """From exact draws of z given x, one sweep gives exact draws again."""
    chain, rng = Chain.build(names, data=4, hidden=hidden), torch.Generator().manual_seed(4)
    theta = weights(chain)
    for x in X:
        law = log_posterior(chain, theta, x)
        numbers = torch.multinomial(law.exp(), 40_000, replacement=True, generator=rng)
        start = bits(sum(hidden))[numbers].float().split(list(hidden), 1)
        found = sweep(chain, theta, x.float(), start, rng)
        assert_same_law(torch.cat(found, 1), law)


@each_model
@each_depth
def test_sweeps_find_the_posterior(names: str, hidden: tuple[int, ...], kernels: str):
    """From zeros, thirty sweeps do: whatever the kernel is, it is not the identity."""
    chain, rng = Chain.build(names, data=4, hidden=hidden), torch.Generator().manual_seed(5)
    theta = weights(chain)
    found = tuple(torch.zeros(20_000, n) for n in hidden)
    for _ in range(30):
        found = sweep(chain, theta, X[1].float(), found, rng)
    assert_same_law(torch.cat(found, 1), log_posterior(chain, theta, X[1]))


# The gradients.


def pair(names: str, hidden: tuple[int, ...]) -> Pair:
    model, proposal = Chain.build(names, data=4, hidden=hidden), Chain.build_proposal("sbn", data=4, hidden=hidden)
    return Pair(model, weights(model), proposal, weights(proposal, 33) / 2)


def estimate(given: Pair, chosen: Gibbs, memory: dict[str, Tensor], rng: torch.Generator, wanted: Wanted) -> Estimate:
    return chosen(Batch(given, X.float(), torch.arange(len(X)), memory, rng), wanted)


@cache
def measured(names: str, hidden: tuple[int, ...]) -> list[Estimate]:
    """Independent estimates, each from chains of its own that have had thirty sweeps."""
    given, rng, chosen = pair(names, hidden), torch.Generator().manual_seed(6), Gibbs(draws=100, sweeps=30)
    return [estimate(given, chosen, chosen.init(given.model, len(X), rng), rng, "both") for _ in range(64)]


@each_model
@each_depth
@pytest.mark.parametrize("vector", ["theta", "phi"])
def test_gradients_approach_the_enumerated_ones(names: str, hidden: tuple[int, ...], vector: str):
    """For theta, the gradient of log p(x); for phi, that of E_{p(z|x)} log q(z|x): in every coordinate."""
    model, theta, proposal, phi = pair(names, hidden)
    theta, phi = theta.double().requires_grad_(), phi.double().requires_grad_()
    z = bits(sum(hidden)).split(list(hidden), 1)
    objective = torch.zeros((), dtype=torch.float64)
    for x in X:
        log_p = model.log_prob(theta, (x, *z))
        posterior = torch.softmax(log_p.detach(), 0)
        objective = objective + log_p.logsumexp(0) + (posterior * proposal.log_prob(phi, z[::-1], x)).sum()
    exact = torch.autograd.grad(objective / len(X), theta if vector == "theta" else phi)[0]
    found = torch.stack([getattr(each, f"{vector}_grad").double() for each in measured(names, hidden)])
    stderr = found.std(0) / math.sqrt(len(found))
    assert ((found.mean(0) - exact).abs() <= 5 * stderr + 1e-6).all()
    assert stderr.max() < 0.01  # or the bound would say nothing


@each_depth
def test_train_is_the_mean_joint_and_effective_the_draws(hidden: tuple[int, ...]):
    given = pair("sbn", hidden)
    z = bits(sum(hidden)).split(list(hidden), 1)
    exact = 0.0
    for x in X:
        log_p = given.model.log_prob(given.theta.double(), (x, *z))
        exact += (torch.softmax(log_p, 0) @ log_p).item() / len(X)
    train = torch.stack([each.stats["train"] for each in measured("sbn", hidden)])
    assert abs(train.mean() - exact) <= 5 * train.std() / math.sqrt(len(train))
    assert measured("sbn", hidden)[0].stats["ess"] == 100


def test_phi_learns_from_the_chains_as_they_stand():
    """Only the gradient for theta moves the chains; what is not wanted is empty."""
    given, rng, chosen = pair("sbn", (2, 2)), torch.Generator().manual_seed(7), Gibbs()
    memory = chosen.init(given.model, len(X), rng)
    both = estimate(given, chosen, memory, rng, "both")
    kept = {name: value.clone() for name, value in both.memory.items()}
    phi = estimate(given, chosen, both.memory, rng, "phi")
    assert phi.theta_grad is None
    torch.testing.assert_close(phi.phi_grad, both.phi_grad)
    assert all(torch.equal(kept[name], phi.memory[name]) for name in kept)
    theta = estimate(given, chosen, phi.memory, rng, "theta")
    assert theta.phi_grad is None
    assert theta.theta_grad is not None
    assert theta.theta_grad.shape == given.theta.shape
    assert any(not torch.equal(kept[name], theta.memory[name]) for name in kept)


def test_with_nothing_hidden_it_is_exact():
    given, rng = pair("darn", ()), torch.Generator().manual_seed(8)
    theta = given.theta.clone().requires_grad_()
    (grad,) = torch.autograd.grad(given.model.log_prob(theta, (X.float(),)).mean(), theta)
    found = estimate(given, Gibbs(), Gibbs().init(given.model, 3, rng), rng, "both")
    torch.testing.assert_close(found.theta_grad, grad)
    assert found.phi_grad is not None
    assert found.phi_grad.shape == (0,)


# The memory.


@pytest.mark.parametrize("width", [1, 7, 8, 9, 200])
def test_packing_round_trips(width: int):
    z = torch.randint(2, (3, 5, width), generator=torch.Generator().manual_seed(9)).float()
    packed = pack(z)
    assert packed.dtype == torch.uint8
    assert packed.shape == (3, 5, math.ceil(width / 8))
    assert torch.equal(unpack(packed, width), z)


def test_memory_is_bit_packed_and_no_row_was_visited():
    chain = Chain.build("sbn", data=20, hidden=(200, 13))
    memory = Gibbs(draws=5).init(chain, 400, torch.Generator().manual_seed(10))
    assert {name: (value.shape, value.dtype) for name, value in memory.items()} == {
        "state.z1": ((5, 400, 25), torch.uint8),
        "state.z2": ((5, 400, 2), torch.uint8),
        "visited": ((400,), torch.uint8),
    }
    assert not memory["visited"].any()


def test_chains_start_from_the_proposal():
    """The chains of rows that were never visited are draws of q: phi alone moves nothing, and sees them as they are.

    Its gradient is then that of E_q log q(z | x), which is zero; from coins it would not be.
    """
    given, rng, chosen = pair("sbn", (3,)), torch.Generator().manual_seed(10), Gibbs(draws=100)
    memory = chosen.init(given.model, len(X), rng)
    grads = torch.stack([wanted(estimate(given, chosen, memory, rng, "phi").phi_grad).double() for _ in range(64)])
    stderr = grads.std(0) / math.sqrt(len(grads))
    assert (grads.mean(0).abs() <= 5 * stderr).all()
    coins = {"state.z1": pack(torch.randint(2, (100, len(X), 3), generator=rng)), "visited": torch.ones(3).byte()}
    from_coins = wanted(estimate(given, chosen, coins, rng, "phi").phi_grad)
    assert (from_coins.abs() > 50 * stderr).any(), "or the test sees nothing"


def test_only_the_rows_visited_change():
    given, rng, chosen = pair("sbn", (3,)), torch.Generator().manual_seed(11), Gibbs(draws=50)
    memory = chosen.init(given.model, 10, rng)
    before, index = memory["state.z1"].clone(), torch.tensor([7, 2, 5])
    after = chosen(Batch(given, X.float(), index, memory, rng), "theta").memory
    changed = (after["state.z1"] != before).any(0).any(-1)
    assert sorted(changed.nonzero().flatten().tolist()) == [2, 5, 7]
    assert sorted(after["visited"].nonzero().flatten().tolist()) == [2, 5, 7]


# Whole fits.


def method(names: str = "sbn", hidden: tuple[int, ...] = (10,), **fields: Any) -> Method:
    chosen: dict[str, Any] = {
        "model": Chain.build(names, data=16, hidden=hidden),
        "proposal": Chain.build_proposal("sbn", data=16, hidden=hidden),
        "prior": Normal(1.0),
        "sampler": SGNHT(),
        "estimator": Gibbs(),
        "optimiser": Adam(),
        "refitter": NAIS(),
        "step": 0.05,
        "phi_step": 3e-3,
        "theta_steps": 2,
    }
    return Method(**(chosen | fields))


@pytest.mark.parametrize("names", ["sbn", "darn:order=3"])
def test_a_fit_on_bars_learns(names: str):
    """The validation log-likelihood rises and passes that of independent pixels.

    These have -10.9 nats and the entropy is 5.74; thirty epochs come to about -7.0 (sbn) and -6.0 (darn).
    """
    data = load("bars")
    train, valid = torch.as_tensor(data.train), torch.as_tensor(data.valid)
    chosen = method(names, epochs=30, collect=5)
    records = [record for _, record in fit(chosen, train, valid, init(chosen, train)) if record]
    mean = train.float().mean(0)
    independent = torch.distributions.Bernoulli(mean).log_prob(valid.float()).sum(1).mean().item()
    assert records[-1].valid > independent + 3
    assert records[-1].valid > records[0].valid + 1
    assert records[-1].ess == 5


def test_a_fit_resumes_bit_for_bit():
    """The chains are in the checkpoint: going on from it in the middle of an epoch is going on."""
    train = torch.as_tensor(load("bars").train)[:300]
    chosen = method(hidden=(6, 4), epochs=3, collect=1)

    def saved(state: State) -> Encoded:
        tensors, numbers = to_tensors(state)
        return Encoded({name: tensor.clone() for name, tensor in tensors.items()}, numbers)

    middle, state = None, init(chosen, train)
    for state, _ in fit(chosen, train, train[:50], state):  # noqa: B020 - each state comes from the last
        if (state.epoch, state.batch) == (1, 2):
            middle = saved(state)
    assert middle is not None
    assert middle[0]["memory.state.z1"].shape == (5, 300, 1)
    for again, _ in fit(chosen, train, train[:50], decode(chosen, middle, 300)):
        resumed = again
    one, other = saved(state), saved(resumed)
    assert one[1] == other[1]
    assert one[0].keys() == other[0].keys()
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])


# What is refused.


@pytest.mark.parametrize("names", ["nade,sbn", "sbn,nade", "mlp:widths=5,sbn", "sbn,normal"])
def test_other_layers_are_refused(names: str):
    chain, culprit = Chain.build(names, data=4, hidden=(3,)), names.replace("sbn", "").strip(",").split(":")[0]
    with pytest.raises(UserError, match=rf"(?i)needs sbn or darn layers, got {culprit}"):
        Gibbs().init(chain, 10, torch.Generator())
    with pytest.raises(UserError, match="needs sbn or darn"):
        Gibbs().check(chain, Chain.build_proposal("sbn", data=4, hidden=(3,)))


@pytest.mark.parametrize("field", ["draws", "sweeps"])
def test_at_least_one_chain_and_one_sweep(field: str):
    with pytest.raises(UserError, match=f"{field}.*at least 1, got 0"):
        Gibbs(**{field: 0})


def test_weights_must_fit_the_units(monkeypatch):
    monkeypatch.setenv("DOUBLY_KERNELS", "1")
    value, logits = torch.zeros(2, 3), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="do not fit 3 units that feed 4"):
        kernel.sweep(value, value, logits, torch.zeros(4, 3), None, torch.Generator())


@each_depth
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_an_epoch_is_validated_by_annealing_some_rows_from_the_proposal(hidden: tuple[int, ...], scale: float):
    """With one chain, whose weight over p(x) has the mean 1, whatever the proposal and the temperatures."""
    given, rows = pair("sbn", hidden), bits(4).float()
    given = given._replace(phi=scale * given.phi)
    z = bits(sum(hidden)).split(list(hidden), 1)
    theta = given.theta.double()
    exact = torch.stack([given.model.log_prob(theta, (row, *z)).logsumexp(0) for row in rows.double()])

    def validated(valid_rows: int, times: int = 1) -> Tensor:
        seeded = torch.Generator().manual_seed(5)
        return Gibbs(valid_rows=valid_rows).validate(given, rows.repeat(times, 1), 20, seeded).log_likelihood.double()

    annealed = Annealing(20, 1, "proposal").log_likelihood(given, rows[::4], torch.Generator().manual_seed(5))
    assert torch.equal(validated(5), annealed.log_likelihood.double())  # rows 0, 4, 8 and 12
    weight = (validated(16 * 400, times=400).view(400, 16) - exact).exp()
    error = weight.std(0) / math.sqrt(400)
    assert ((weight.mean(0) - 1).abs() < 5 * error).all()
    assert (error < 0.1).all()
