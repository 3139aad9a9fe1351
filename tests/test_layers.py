"""Every binary layer is a distribution: it sums to one, draws what it says, and its mean and gradients are its own.

The tests go over `LAYERS`, so a layer registered later inherits them all; layers of real values are left out.
"""

from contextlib import suppress

import pytest
import torch
from torch import Tensor

from doubly import LAYERS, Layer
from doubly.analysis.laws import LeftOut
from doubly.analysis.laws import layers as laws
from doubly.analysis.laws.law import Law
from doubly.layers import SBN, Params
from exact import BINARY, D, bits, random_params

EACH = [pytest.param(LAYERS.make(name, n_in, D), id=f"{name}-from-{n_in}") for name in BINARY for n_in in (0, 3)]
each_layer = pytest.mark.parametrize("layer", EACH)


def saturated_params(layer: Layer, weights: float, dtype: torch.dtype) -> Params:
    """Biases of +50, -50, +50, …, and random matrices of the size `weights`."""
    params = {name: weights * value.to(dtype) for name, value in random_params(layer).items()}
    biases = {name: 50 * (-1.0) ** torch.arange(len(value)) for name, value in params.items() if value.shape == (D,)}
    return params | {name: bias.to(dtype) for name, bias in biases.items()}


def test_some_layer_is_binary():
    """The other tests go over something."""
    assert "sbn" in BINARY


@pytest.mark.parametrize("law", laws.LAWS.values(), ids=lambda law: law.__name__)
@each_layer
def test_laws(layer: Layer, law: Law):
    """Every law that `doubly check` runs on a member of one's own."""
    with suppress(LeftOut):
        law(layer)


@each_layer
def test_log_prob_depends_on_what_is_given(layer: Layer):
    """A conditional law is one: other givens, other laws (from width 0 there is only one given)."""
    log_prob = layer.log_prob(random_params(layer), bits(D), bits(layer.n_in).unsqueeze(1))
    for row in range(1, len(log_prob)):
        assert (log_prob[row] - log_prob[0]).abs().max() > 0.1


@each_layer
@pytest.mark.parametrize("draws", [None, 7])
def test_draw_returns_its_log_prob(layer: Layer, draws: int | None):
    """The log_prob that comes with a draw is the log_prob of the value drawn, and so is its gradient."""
    given = bits(3)[:, : layer.n_in]
    mine, theirs = ({k: v.requires_grad_() for k, v in random_params(layer).items()} for _ in range(2))
    drawn = layer.draw(mine, given, torch.Generator().manual_seed(3), draws)
    log_prob = layer.log_prob(theirs, drawn.value, given)
    torch.testing.assert_close(drawn.log_prob, log_prob, rtol=1e-12, atol=1e-12)
    drawn.log_prob.sum().backward()
    log_prob.sum().backward()
    for name in layer.shapes():
        torch.testing.assert_close(mine[name].grad, theirs[name].grad, rtol=1e-10, atol=1e-10)


@each_layer
def test_draws_come_from_the_generator_alone(layer: Layer):
    """The same generator gives the same values, whatever the global seed, which is left alone."""
    drawn: list[Tensor] = []
    for seed in (4, 4, 5):
        torch.manual_seed(len(drawn))
        before = torch.get_rng_state()
        rng = torch.Generator().manual_seed(seed)
        drawn.append(layer.draw(random_params(layer), laws.some_given(layer), rng, draws=50).value)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@each_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_at_logits_of_50(layer: Layer, dtype: torch.dtype):
    """With no weights but the biases, ±50 by turns, every wrong bit costs 50: log(1 - sigmoid(50)) is not log 0.

    The right bits cost log(1 + exp(-50)) < 1e-21, so the sum is -50 times the wrong bits, to rounding.
    """
    given, value = laws.some_given(layer).to(dtype), bits(D).to(dtype)
    params = saturated_params(layer, 0, dtype)
    wrong = (value != torch.tensor([1, 0, 1, 0])).sum(1)
    torch.testing.assert_close(layer.log_prob(params, value, given), -50.0 * wrong.to(dtype), rtol=1e-6, atol=1e-20)
    drawn = layer.draw(params, given, torch.Generator().manual_seed(6), draws=100)
    assert torch.equal(drawn.value, torch.tensor([1, 0, 1, 0], dtype=dtype).expand(100, D))


@each_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_and_gradients_are_finite_when_saturated(layer: Layer, dtype: torch.dtype):
    """With random weights besides the biases of ±50, log_prob and its gradients are finite at every value."""
    given, value = laws.some_given(layer).to(dtype), bits(D).to(dtype)
    params = {name: value.requires_grad_() for name, value in saturated_params(layer, 1, dtype).items()}
    log_prob = layer.log_prob(params, value, given)
    assert log_prob.isfinite().all()
    for row in log_prob:
        for grad in torch.autograd.grad(row, list(params.values()), retain_graph=True):
            assert grad.isfinite().all()


@pytest.mark.parametrize("name", BINARY)
def test_what_cannot_happen_is_not_drawn(name: str):
    """In single precision too, a bit of probability exp(-50) must not turn up because a uniform number was exactly 0.

    Such a draw would carry a weight of exp(50). torch.rand is 0 once in 2^24, and with this seed it is among the first
    2^22 numbers. By the law, the chance of a single one is 2^22 exp(-50) < 1e-15.
    """
    layer, rng = LAYERS.make(name, 0, D), torch.Generator().manual_seed(1)
    assert (torch.rand(2**20, D, generator=torch.Generator().manual_seed(1)) == 0).any()
    params = {name: -value.abs() for name, value in saturated_params(layer, 0, torch.float32).items()}
    assert layer.draw(params, torch.zeros(0), rng, draws=2**20).value.sum() == 0


@each_layer
def test_mean_is_the_conditional_probability(layer: Layer):
    """mean_i = P(value_i = 1 | value_<i, given), so prod_i mean_i^v_i (1 - mean_i)^(1 - v_i) = p(value | given)."""
    params, given = random_params(layer), bits(layer.n_in).unsqueeze(1)
    value = bits(D).expand(2**layer.n_in, -1, -1)
    mean = layer.mean(params, value, given)
    assert mean.shape == value.shape
    product = torch.where(value == 1, mean, 1 - mean).prod(-1)
    torch.testing.assert_close(product, layer.log_prob(params, value, given).exp(), rtol=1e-10, atol=1e-12)


@each_layer
def test_mean_averages_to_the_mean(layer: Layer):
    """E[mean(value, given)] = E[value | given], both by enumeration; a factorised layer's mean is E[value | given]."""
    params, given = random_params(layer), laws.some_given(layer)
    probability = layer.log_prob(params, bits(D), given).exp()
    mean = layer.mean(params, bits(D), given)
    torch.testing.assert_close(probability @ mean, probability @ bits(D), rtol=1e-10, atol=1e-12)


@each_layer
def test_gradients_of_log_prob(layer: Layer):
    """The gradient with respect to every parameter is that of finite differences (along random directions)."""
    params = random_params(layer)
    names = [name for name, value in params.items() if value.numel()]

    def log_prob(*values: Tensor) -> Tensor:
        return layer.log_prob(params | dict(zip(names, values, strict=True)), bits(D), laws.some_given(layer))

    assert names
    assert torch.autograd.gradcheck(log_prob, [params[name].requires_grad_() for name in names], fast_mode=True)


def test_sbn_starts_at_the_mean_of_the_data():
    """From width 0, the law that `init` gives has the mean it was told, kept 0.005 away from 0 and 1."""
    layer, mean = SBN(0, D), torch.tensor([0.0, 0.2, 0.5, 1.0])
    params = layer.init(torch.Generator().manual_seed(8), mean)
    started = layer.mean(params, mean, torch.zeros(0))
    torch.testing.assert_close(started, torch.tensor([0.005, 0.2, 0.5, 0.995]), rtol=0, atol=1e-6)
