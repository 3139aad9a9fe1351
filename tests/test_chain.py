"""Whole chains are distributions: joints sum to one, samples follow them, and their weights are one vector."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from doubly import LAYERS, Chain, UserError
from doubly.latents import bound
from doubly.latents.pair import Pair
from doubly.layers import SBN
from doubly.layers.chain import Values, nothing
from exact import BINARY, assert_same_law, bits, random_params

HIDDEN = [(3,), (2, 2), ()]


def over(build: Callable[..., Chain], depths: list[tuple[int, ...]]) -> pytest.MarkDecorator:
    """A test over chains of every binary layer, of these depths."""
    kinds = [(name, hidden) for name in BINARY for hidden in depths]
    names = ["-".join([name, "4", *map(str, hidden)]) for name, hidden in kinds]
    return pytest.mark.parametrize("chain", [build(name, data=4, hidden=hidden) for name, hidden in kinds], ids=names)


each_chain = over(Chain.build, HIDDEN)
each_proposal = over(Chain.build_proposal, HIDDEN[:2])


def weights(chain: Chain, seed: int = 0) -> Tensor:
    """The weights of `random_params` for every layer, in a row, in double precision."""
    params = [random_params(layer, seed + i) for i, layer in enumerate(chain.layers)]
    parts = [value.flatten() for each in params for value in each.values()]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *parts])


def everything(chain: Chain) -> Values:
    """All joint values of a chain, along one axis, counting fastest in the last layer listed."""
    widths = [layer.n_out for layer in chain.layers]
    return bits(sum(widths)).split(widths, dim=1)


@each_chain
def test_joint_sums_to_one(chain: Chain):
    """sum over (x, z1, …, zL) of p = 1."""
    log_prob = chain.log_prob(weights(chain), everything(chain))
    assert log_prob.exp().sum().item() == pytest.approx(1, abs=1e-10)


@each_proposal
def test_conditional_sums_to_one(chain: Chain):
    """sum over (zL, …, z1) of q(z | x) = 1, for every x, and different x have different laws."""
    values = everything(chain)
    log_prob = chain.log_prob(weights(chain), values, bits(4).unsqueeze(1))
    torch.testing.assert_close(log_prob.exp().sum(1), torch.ones(16, dtype=torch.float64), rtol=0, atol=1e-10)
    assert (log_prob[1:] - log_prob[0]).abs().amax(1).min() > 0.1


@each_chain
def test_joint_is_the_product_of_its_layers(chain: Chain):
    """p(x, z1, …, zL) = p(x | z1) … p(zL), each layer taken by itself."""
    values, theta = everything(chain), weights(chain)
    givens = [*values[1:], torch.zeros(0, dtype=torch.float64)]
    expected = torch.zeros(len(values[0]), dtype=torch.float64)
    for layer, params, value, given in zip(chain.layers, chain.unflatten(theta), values, givens, strict=True):
        expected += layer.log_prob(params, value, given)
    torch.testing.assert_close(chain.log_prob(theta, values), expected, rtol=1e-12, atol=1e-12)


@each_chain
def test_samples_follow_the_joint_and_the_marginal(chain: Chain):
    """Frequencies of 40,000 samples match the enumerated joint, and those of x the enumerated marginal."""
    theta = weights(chain)
    sampled = chain.sample(theta, 40_000, torch.Generator().manual_seed(1))
    assert [tuple(value.shape) for value in sampled] == [(40_000, layer.n_out) for layer in chain.layers]
    joint = chain.log_prob(theta, everything(chain))
    assert_same_law(torch.cat(sampled, 1), joint)
    assert_same_law(sampled[0], joint.view(16, -1).logsumexp(1))


@each_proposal
def test_draws_follow_the_conditional(chain: Chain):
    """Frequencies of 40,000 draws for each of two rows match the enumerated q(z | x)."""
    theta, x = weights(chain), bits(4)[[3, 10]]
    drawn = chain.draw(theta, x, torch.Generator().manual_seed(2), draws=40_000)
    assert [tuple(value.shape) for value in drawn.values] == [(40_000, 2, layer.n_out) for layer in chain.layers]
    for row in range(2):
        log_prob = chain.log_prob(theta, everything(chain), x[row])
        assert_same_law(torch.cat(drawn.values, -1)[:, row], log_prob)


@pytest.mark.parametrize("draws", [None, 3])
@each_proposal
def test_draw_returns_its_log_prob(chain: Chain, draws: int | None):
    """The log density that comes with a draw is that of its values, gradient included."""
    mine, theirs = (weights(chain).requires_grad_() for _ in range(2))
    drawn = chain.draw(mine, bits(4), torch.Generator().manual_seed(3), draws)
    log_prob = chain.log_prob(theirs, drawn.values, bits(4))
    assert log_prob.shape == ((16,) if draws is None else (draws, 16))
    torch.testing.assert_close(drawn.log_prob, log_prob, rtol=1e-12, atol=1e-12)
    drawn.log_prob.sum().backward()
    log_prob.sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-10)


@each_chain
def test_rows_stand_against_draws(chain: Chain):
    """x of (B, D) against hidden values of (S, B, H) gives (S, B), each as if alone."""
    theta, rng = weights(chain), torch.Generator().manual_seed(4)
    values = tuple(
        torch.randint(2, (5, layer.n_out) if i == 0 else (2, 5, layer.n_out), generator=rng).double()
        for i, layer in enumerate(chain.layers)
    )
    log_prob = chain.log_prob(theta, values)
    axes = (2, 5) if len(values) > 1 else (5,)
    assert log_prob.shape == axes
    for row in range(5):
        alone = chain.log_prob(theta, (values[0][row], *(value[1, row] for value in values[1:])))
        torch.testing.assert_close(log_prob[..., row].flatten()[-1], alone, rtol=1e-12, atol=1e-12)


@each_chain
def test_weights_are_one_vector(chain: Chain):
    """`unflatten` gives every weight once, in the order of `shapes`, as views: putting the parts in a row is theta."""
    theta = weights(chain)
    params = chain.unflatten(theta)
    shapes = [{name: tuple(value.shape) for name, value in part.items()} for part in params]
    assert shapes == [layer.shapes() for layer in chain.layers]
    parts = [value for part in params for value in part.values()]
    assert chain.size == sum(part.numel() for part in parts)
    assert torch.equal(torch.cat([part.reshape(-1) for part in parts]), theta)
    for part in parts:
        assert part.numel() == 0 or part.untyped_storage().data_ptr() == theta.untyped_storage().data_ptr()


@each_chain
def test_init_is_the_layers_init(chain: Chain):
    """`init` lays the layers' own parameters in a row; only the data layer is told the mean of the data."""
    mean = torch.tensor([0.1, 0.2, 0.6, 0.9])
    theta = chain.init(torch.Generator().manual_seed(5), mean)
    assert theta.shape == (chain.size,)
    rng = torch.Generator().manual_seed(5)
    expected = [layer.init(rng, mean if i == 0 else None) for i, layer in enumerate(chain.layers)]
    for layer, found, wanted in zip(chain.layers, chain.unflatten(theta), expected, strict=True):
        for name in layer.shapes():
            assert torch.equal(found[name], wanted[name])


@pytest.mark.parametrize("name", BINARY)
def test_with_nothing_hidden_the_likelihood_is_exact(name: str):
    """hidden=() leaves one layer from width 0: log_prob is log p(x), and L_K is that for every K."""
    model, proposal = Chain.build(name, data=4), Chain.build_proposal(name, data=4, hidden=())
    theta, phi = weights(model), weights(proposal)
    exact = model.layers[0].log_prob(model.unflatten(theta)[0], bits(4), nothing(theta))
    assert torch.equal(model.log_prob(theta, (bits(4),)), exact)
    assert exact.exp().sum().item() == pytest.approx(1, abs=1e-10)
    assert proposal.size == 0
    for draws in (1, 7):
        found = bound(Pair(model, theta, proposal, phi), bits(4), draws, torch.Generator().manual_seed(6))
        torch.testing.assert_close(found.log_likelihood, exact, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Other(SBN):
    """A second kind of layer, to see which goes where."""


def test_model_goes_from_the_data_up(monkeypatch: pytest.MonkeyPatch):
    """`build` takes names and widths from the data upward, and lists its layers in that order."""
    monkeypatch.setitem(LAYERS, "other", Other)
    model = Chain.build("other,sbn,sbn", data=4, hidden=(3, 2))
    assert model.layers == (Other(3, 4), SBN(2, 3), SBN(0, 2))
    assert model.n_given == 0


def test_proposal_goes_from_x_up(monkeypatch: pytest.MonkeyPatch):
    """`build_proposal` takes names and widths from the data upward too, but its last layer is the one given x."""
    monkeypatch.setitem(LAYERS, "other", Other)
    proposal = Chain.build_proposal("other,sbn,sbn", data=5, hidden=(4, 3, 2))
    assert proposal.layers == (SBN(3, 2), SBN(4, 3), Other(5, 4))
    assert proposal.n_given == 5
    assert Chain.build_proposal("sbn", data=4, hidden=(3,)).layers == (SBN(4, 3),)
    values = proposal.draw(weights(proposal), torch.zeros(6, 5, dtype=torch.float64), torch.Generator()).values
    assert [value.shape[1] for value in values] == [2, 3, 4]  # (z3, z2, z1)


@pytest.mark.parametrize(
    ("layers", "given", "message"),
    [
        ((SBN(3, 4), SBN(0, 2)), 0, "layer 0 takes 3 values but layer 1 draws 2"),
        ((SBN(3, 4), SBN(1, 3)), 0, "layer 1 takes 1 values but the chain is given 0"),
        ((SBN(4, 3),), 5, "layer 0 takes 4 values but the chain is given 5"),
    ],
)
def test_widths_must_meet(layers: tuple, given: int, message: str):
    with pytest.raises(UserError, match=f"{message}: widths must meet"):
        Chain(layers, given)


@pytest.mark.parametrize(
    ("names", "data", "hidden", "message"),
    [
        ("sbn", 0, (), "at least one unit"),
        ("sbn", 4, (3, 0), "at least one unit"),
        ("sbn", 4, (-2,), "at least one unit"),
        ("sbn,sbn", 4, (3, 2), "2 layer types .* for 3 layers"),
        ("sbnn", 4, (), "no layer is called 'sbnn' \\(did you mean sbn\\?\\); there are: "),
    ],
)
def test_bad_architectures_are_refused(names: str, data: int, hidden: tuple, message: str):
    with pytest.raises(UserError, match=message):
        Chain.build(names, data=data, hidden=hidden)


@each_chain
def test_number_of_values_must_fit(chain: Chain):
    """log_prob wants one value for each layer."""
    for values in (everything(chain)[:-1], (*everything(chain), everything(chain)[0])):
        with pytest.raises(UserError, match=f"draws {len(chain.layers)} values, got {len(values)}"):
            chain.log_prob(weights(chain), values)


@each_chain
def test_number_of_weights_must_fit(chain: Chain):
    """A vector of another length, or a matrix, is not this chain's weights."""
    for theta in (torch.zeros(chain.size + 1), torch.zeros(chain.size - 1), torch.zeros(1, chain.size)):
        with pytest.raises(UserError, match=f"this chain has {chain.size} weights"):
            chain.unflatten(theta)
