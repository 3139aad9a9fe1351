"""The layer families: their laws on both kinds of kernels and for every order, and their formulas written out."""

import math

import pytest
import torch
from torch import Tensor

from doubly import LAYERS, Chain, UserError
from doubly.layers import Layer
from doubly.layers.layer import log_odds
from doubly.layers.sbn import SBN
from exact import D, assert_same_law, bits, random_params

BINARY = [
    "sbn",
    "darn",
    "darn:order=reversed",
    "darn:order=3",
    "nade",
    "nade:width=7",
    "nade:order=reversed",
    "nade:order=3",
    "mlp:widths=5",
    "mlp:widths=5-3,activation=relu",
    "mlp:widths=none",
]
each_spec = pytest.mark.parametrize("spec", BINARY)
each_width = pytest.mark.parametrize("n_in", [0, 3])


@pytest.fixture(params=["0", "1"], ids=["plain", "fused"])
def kernels(request, monkeypatch):
    """Both kinds of kernels, in single precision."""
    monkeypatch.setenv("DOUBLY_KERNELS", request.param)
    return request.param


def single(layer: Layer) -> dict[str, Tensor]:
    return {name: value.float() for name, value in random_params(layer).items()}


@each_width
@each_spec
@pytest.mark.usefixtures("kernels")
def test_sums_to_one_and_is_drawn_as_it_says(spec: str, n_in: int):
    """By enumeration in float32: sums of 16 numbers, each right to some 1e-6, come to 1 within 1e-5."""
    layer = LAYERS.make(spec, n_in, D)
    params, given = single(layer), (torch.arange(n_in) % 2).float()
    log_prob = layer.log_prob(params, bits(D).float(), given)
    assert log_prob.exp().sum().item() == pytest.approx(1, abs=1e-5)
    drawn = layer.draw(params, given, torch.Generator().manual_seed(0), draws=40_000)
    assert_same_law(drawn.value, log_prob.double() - log_prob.double().logsumexp(0))
    torch.testing.assert_close(drawn.log_prob, layer.log_prob(params, drawn.value, given), rtol=1e-5, atol=1e-5)


@each_width
@each_spec
def test_gradients_are_those_of_double_precision(spec: str, n_in: int, kernels: str, monkeypatch):
    """Gradients in float32 agree with the plain ones in float64, which gradcheck has seen, to rounding of 16 terms."""
    layer = LAYERS.make(spec, n_in, D)
    given = bits(n_in).unsqueeze(1)
    exact = {name: value.requires_grad_() for name, value in random_params(layer).items()}
    rough = {name: value.detach().float().requires_grad_() for name, value in exact.items()}
    monkeypatch.setenv("DOUBLY_KERNELS", "0")
    layer.log_prob(exact, bits(D), given).sum().backward()
    monkeypatch.setenv("DOUBLY_KERNELS", kernels)
    layer.log_prob(rough, bits(D).float(), given.float()).sum().backward()
    for name, value in exact.items():
        assert value.grad is not None
        torch.testing.assert_close(rough[name].grad, value.grad.float(), rtol=1e-4, atol=1e-4)


@each_width
@each_spec
@pytest.mark.parametrize("draws", [None, 4])
@pytest.mark.usefixtures("kernels")
def test_the_way_back_is_that_of_autograd(spec: str, n_in: int, draws: int | None):
    """Of values drawn and of values that are there, several or one of each row that is given, to rounding."""
    layer, rng = LAYERS.make(spec, n_in, D), torch.Generator().manual_seed(0)
    params = {name: value.requires_grad_() for name, value in single(layer).items()}
    given = (torch.rand(3, n_in, generator=rng) < 0.5).float()
    drawn = layer.draw_vjp(params, given, torch.Generator().manual_seed(1), draws)
    again = layer.draw(params, given, torch.Generator().manual_seed(1), draws)
    assert torch.equal(drawn.value, again.value)
    one = again.value[..., :1, :]  # of each draw, for all that is given
    tracked = [layer.log_prob_vjp(params, value, given) for value in (again.value, one)]
    for found in (drawn, *tracked):
        expected = layer.log_prob(params, found.value, given)
        torch.testing.assert_close(found.log_prob, expected.detach(), rtol=1e-5, atol=1e-5)
        weight = torch.rand(expected.shape, generator=rng)
        gradients = torch.autograd.grad(expected, tuple(params.values()), weight, materialize_grads=True)
        into = {name: torch.full_like(value, math.nan) for name, value in params.items()}
        found.vjp(weight, into)
        for name, gradient in zip(params, gradients, strict=True):
            torch.testing.assert_close(into[name], gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "softplus"])
@pytest.mark.parametrize("spec", ["gaussian:widths=6-4", "gaussian:widths=none", "mlp:widths=6-4", "mlp:widths=none"])
@pytest.mark.usefixtures("kernels")
def test_gradients_through_draws_and_values_are_those_of_autograd(spec: str, activation: str):
    """Of a layer whose draws are smooth and of one that is given them, to rounding, for both kinds of kernels."""
    layer, rng = LAYERS.make(f"{spec},activation={activation}", 3, D), torch.Generator().manual_seed(0)
    params = {name: value.requires_grad_() for name, value in single(layer).items()}
    to_value, given = layer.kind == "real", torch.randn(4, 3, generator=rng).requires_grad_()
    value = layer.draw(params, given, torch.Generator().manual_seed(1), 5).value.detach().requires_grad_(to_value)
    found, expected = layer.log_prob_pathwise_vjp(params, value, given, to_value), layer.log_prob(params, value, given)
    torch.testing.assert_close(found.log_prob, expected.detach(), rtol=1e-5, atol=1e-5)
    weight, of_value = torch.rand(expected.shape, generator=rng), torch.randn(value.shape, generator=rng)
    into = {name: torch.full_like(each, math.nan) for name, each in params.items()}
    sent = found.vjp(weight, into)
    gradients = torch.autograd.grad(expected, [*params.values(), given, *([value] if to_value else [])], weight)
    for got, gradient in zip([*into.values(), sent.given, *([sent.value] if to_value else [])], gradients, strict=True):
        torch.testing.assert_close(got, gradient, rtol=1e-5, atol=2e-5)
    if not layer.reparameterised:
        return
    again = layer.draw_pathwise(params, given, torch.Generator().manual_seed(1), 5)
    drawn = layer.draw_pathwise_vjp(params, given, torch.Generator().manual_seed(1), 5)
    for got, expected in zip((drawn.value, drawn.log_prob), again, strict=True):
        torch.testing.assert_close(got, expected.detach(), rtol=1e-4, atol=1e-4)  # value - mu loses digits there
    of_given = drawn.vjp(weight, of_value, into, True)
    objective = (weight * again.log_prob).sum() + (of_value * again.value).sum()
    for got, gradient in zip(
        [*into.values(), of_given], torch.autograd.grad(objective, [*params.values(), given]), strict=True
    ):
        torch.testing.assert_close(got, gradient, rtol=1e-4, atol=3e-4)


@pytest.mark.usefixtures("kernels")
def test_a_standard_deviation_at_its_bound_has_no_gradient():
    layer = LAYERS.make("gaussian:widths=none", 2, 3)
    params = single(layer) | {"b_sigma": torch.tensor([-20.0, 0.0, 20.0])}
    drawn = layer.draw_pathwise_vjp(params, torch.zeros(4, 2), torch.Generator().manual_seed(1), 5)
    into = {name: torch.full_like(each, math.nan) for name, each in params.items()}
    drawn.vjp(torch.ones(5, 4), torch.ones(5, 4, 3), into, False)
    assert into["b_sigma"].eq(0).tolist() == [True, False, True]


def test_a_subclass_with_another_density_does_not_inherit_its_gradient():
    class Steeper(SBN):
        def log_prob(self, params, value, given):
            return 2 * super().log_prob(params, value, given)

    class Named(SBN):
        pass

    assert Steeper.log_prob_vjp is Layer.log_prob_vjp
    assert Named.log_prob_vjp is SBN.log_prob_vjp is not Layer.log_prob_vjp


@pytest.mark.parametrize("order", ["identity", "reversed", 3])
@pytest.mark.parametrize("name", ["darn", "nade"])
def test_each_value_depends_on_those_before_it_only(name: str, order: str | int):
    """mean_i does not change with the values after i in the order, and does with those before."""
    layer = LAYERS.make(f"{name}:order={order}", 0, 6)
    params, given = random_params(layer), torch.zeros(0, dtype=torch.float64)
    index = layer.in_order(torch.arange(6))  # the variable that comes first, second, …
    value = torch.zeros(6, dtype=torch.float64)
    before = layer.mean(params, value, given)
    for place, variable in enumerate(index.tolist()):
        flipped = value.clone()
        flipped[variable] = 1
        changed = (layer.mean(params, flipped, given) - before).abs() > 1e-9
        assert not changed[index[: place + 1]].any()
        assert changed[index[place + 1 :]].all()
    assert torch.equal(layer.out_of_order(layer.in_order(value)), value)
    if order == "reversed":
        assert index.tolist() == [5, 4, 3, 2, 1, 0]


def test_darn_is_its_equation():
    """p(v_i = 1) = sigmoid(U_i y + W_{i,<i} v_<i + b_i), by loops; only the triangle is stored."""
    layer = LAYERS.make("darn", 3, 5)
    params, y = random_params(layer), torch.tensor([1.0, 0, 1], dtype=torch.float64)
    U, W, b = params["U"], params["W"].tolist(), params["b"]
    for v in bits(5)[::3]:
        total, place = 0.0, 0
        for i in range(5):
            logit = sum(float(U[i, j] * y[j]) for j in range(3)) + float(b[i])
            for j in range(i):
                logit += W[place] * float(v[j])
                place += 1
            total += math.log(1 / (1 + math.exp(-logit if v[i] else logit)))
        assert place == len(W) == 10
        assert layer.log_prob(params, v, y).item() == pytest.approx(total, rel=1e-12)


def test_nade_is_its_equation():
    """p(v_i = 1) = sigmoid(V_i sigmoid(W_{:,<i} v_<i + U y + a) + R_i y + b_i), by loops."""
    layer = LAYERS.make("nade:width=3", 2, 5)
    params, y = random_params(layer), [1.0, 1.0]
    V, W, U, R, a, b = (params[name].tolist() for name in ("V", "W", "U", "R", "a", "b"))
    assert len(W) == 4, "the last value has nothing after it"
    given = torch.tensor(y, dtype=torch.float64)
    for v in bits(5)[::3]:
        total = 0.0
        for i in range(5):
            hidden = [
                1
                / (
                    1
                    + math.exp(-(a[k] + sum(U[k][j] * y[j] for j in range(2)) + sum(W[j][k] * v[j] for j in range(i))))
                )
                for k in range(3)
            ]
            logit = b[i] + sum(R[i][j] * y[j] for j in range(2)) + sum(V[i][k] * hidden[k] for k in range(3))
            total += math.log(1 / (1 + math.exp(-logit if v[i] else logit)))
        assert layer.log_prob(params, v, given).item() == pytest.approx(float(total), rel=1e-12)


@pytest.mark.parametrize(("n_in", "n_out", "width"), [(3, 5, 3), (7, 5, 5), (0, 5, 5)])
def test_nade_is_as_wide_as_the_paper_says(n_in: int, n_out: int, width: int):
    assert LAYERS.make("nade", n_in, n_out).width == width


@each_width
def test_gaussian_is_that_of_torch(n_in: int):
    """log_prob against torch.distributions, mean and spread of draws within five standard errors."""
    layer = LAYERS.make("gaussian:widths=5", n_in, 3)
    params, given = random_params(layer), (torch.arange(n_in) % 2).double()
    hidden = torch.tanh(params["W0"] @ given + params["b0"])
    law = torch.distributions.Normal(
        params["W_mu"] @ hidden + params["b_mu"], torch.exp(params["W_sigma"] @ hidden + params["b_sigma"])
    )
    drawn = layer.draw(params, given, torch.Generator().manual_seed(0), draws=20_000)
    torch.testing.assert_close(drawn.log_prob, law.log_prob(drawn.value).sum(-1))
    torch.testing.assert_close(layer.log_prob(params, drawn.value, given), law.log_prob(drawn.value).sum(-1))
    score = (drawn.value - law.mean) / law.stddev
    assert score.mean(0).abs().max() < 5 / math.sqrt(20_000)
    assert (score.var(0) - 1).abs().max() < 5 * math.sqrt(2 / 20_000)
    torch.testing.assert_close(layer.mean(params, drawn.value, given)[0], law.mean)


def test_gaussian_stays_finite_whatever_its_head_says():
    layer = LAYERS.make("gaussian:widths=none", 1, 2)
    params = {name: torch.full(shape, 1e4) for name, shape in layer.shapes().items()}
    for given in (torch.ones(1), -torch.ones(1)):
        params["b_sigma"] = 1e4 * torch.sign(given) * torch.ones(2)
        value, log_prob = layer.draw(params, given, torch.Generator().manual_seed(0))
        assert torch.isfinite(value).all()
        assert torch.isfinite(log_prob)


def test_normal_is_standard_and_only_a_top():
    layer = LAYERS.make("normal", 0, 3)
    drawn = layer.draw({}, torch.zeros(0), torch.Generator().manual_seed(0), draws=20_000)
    law = torch.distributions.Normal(0, 1)
    torch.testing.assert_close(drawn.log_prob, law.log_prob(drawn.value).sum(-1))
    assert drawn.value.mean(0).abs().max() < 5 / math.sqrt(20_000)
    assert (drawn.value.var(0) - 1).abs().max() < 5 * math.sqrt(2 / 20_000)
    with pytest.raises(UserError, match="only be the top"):
        Chain.build("normal,sbn", data=4, hidden=(3,))


@pytest.mark.parametrize("spec", ["sbn", "darn", "nade", "mlp:widths=5"])
def test_starts_are_glorots_with_the_datas_log_odds_or_the_references(spec: str):
    mean = torch.tensor([0.1, 0.5, 0.9, 0.3])
    bias = {"sbn": "b", "darn": "b", "nade": "b", "mlp:widths=5": "b_logits"}[spec]
    matrix = {"sbn": "W", "darn": "U", "nade": "R", "mlp:widths=5": "W_logits"}[spec]
    glorot = LAYERS.make(spec, 200, 4).init(torch.Generator().manual_seed(0), mean)
    torch.testing.assert_close(glorot[bias], log_odds(mean))
    n_in = glorot[matrix].shape[1]
    bound = math.sqrt(6 / (n_in + 4))
    assert 0.95 * bound < glorot[matrix].abs().max() < bound or n_in == 5
    reference = LAYERS.make(spec, 200, 4, start="reference").init(torch.Generator().manual_seed(0), mean)
    assert reference[bias].unique().tolist() == [-1.0 if spec == "sbn" else 0.0]
    torch.testing.assert_close(reference[matrix], glorot[matrix] / n_in)


@pytest.mark.parametrize("spec", ["darn:order=sideways", "nade:width=-1", "mlp:widths=5x5", "mlp:activation=cube"])
def test_options_that_make_no_sense_are_refused(spec: str):
    with pytest.raises(UserError):
        LAYERS.make(spec, 3, 4)
