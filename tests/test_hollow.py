"""Learning from rows with holes: what is missing is summed out, by enumeration; and all the way from a table to answers."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

import doubly
from doubly import LAYERS, Chain, DeepGenerativeModel, UserError, cli
from doubly.config import Facts, build, from_dict
from doubly.data import Data, load
from doubly.evaluate import refit
from doubly.inference import NAIS, OBJECTIVES, Scoring, for_holes, is_exact, log_marginal, propose, score, weigh
from doubly.inference.gibbs import pack, unpack
from doubly.inference.hollow import HollowNAIS
from doubly.train import fit, init
from exact import HOLLOW_MODELS, HOLLOW_X, MISSING, D, HollowCase, assert_law, assert_same_law, bits, numbers
from exact import random_params

HOLLOW = HOLLOW_X.masked_fill(MISSING, math.nan)
ORDERED = [name for name in HOLLOW_MODELS if not LAYERS[name.partition(":")[0]].factorised]
INDEPENDENT = [name for name in HOLLOW_MODELS if name not in ORDERED]


def exact_gradient(case: HollowCase) -> Tensor:
    """The gradient of log p(x_observed), summed over all that is missing and hidden."""
    case.theta.requires_grad_()
    (grad,) = torch.autograd.grad(case.log_joint()[case.fits()].flatten().logsumexp(0), case.theta)
    case.theta.requires_grad_(False)
    return grad


# What is missing drops out


@pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name].factorised])
def test_the_density_of_what_is_known_is_the_sum_over_the_rest(name):
    """Of binary values, over all fillings of all 16 masks; of real ones, the sum of the known cells."""
    layer = LAYERS[name](0 if name == "normal" else 3, D)
    params, given = random_params(layer), torch.ones(layer.n_in, dtype=torch.float64)
    value = layer.draw(params, given, torch.Generator().manual_seed(1)).value
    for mask in bits(D).bool():
        found = layer.known(params, value.masked_fill(mask, math.nan), given)
        if layer.kind == "binary":
            fits = bits(D)[(bits(D) == value)[:, ~mask].all(1)]
            exact = layer.log_prob(params, fits, given).logsumexp(0)
        else:
            exact = layer.cells(params, value, given)[~mask].sum()
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["sbn", "mlp"])
def test_the_fused_kernel_leaves_holes_out(name):
    """In single precision, where the fused kernel is used: densities as by cells, and no gradient from holes."""
    rng = torch.Generator().manual_seed(0)
    layer = LAYERS[name](5, 300)
    params = {key: value.float().requires_grad_() for key, value in random_params(layer).items()}
    given, value = torch.bernoulli(torch.full((2, 40, 5), 0.5), generator=rng), torch.full((40, 300), 0.5)
    value = torch.bernoulli(value, generator=rng)
    value[torch.rand(value.shape, generator=rng) < 0.5] = math.nan
    value[:, 7], value[0] = math.nan, math.nan  # a column and a row of nothing
    found = layer.known(params, value, given)
    torch.testing.assert_close(found, super(type(layer), layer).known(params, value, given), rtol=1e-5, atol=1e-4)
    assert (found[:, 0] == 0).all()
    bias = next(grad for key, grad in zip(params, torch.autograd.grad(found.sum(), list(params.values())), strict=True)
                if key in ("b", "b_logits"))  # fmt: skip
    assert bias[7] == 0
    assert (bias[:7] != 0).all()


@pytest.mark.parametrize("name", INDEPENDENT)
def test_weights_and_gradients_are_those_of_what_is_observed(name):
    """The sum over all z of the weighed densities is log p(x_observed), and so is its gradient: no draws are needed."""
    case = HollowCase(name, masked=True)
    theta = case.theta.clone().requires_grad_()
    drawn = weigh(case.model, theta, case.proposal, case.phi, HOLLOW[None], (case.z[:, None],), HOLLOW[None])
    log_observed = drawn.log_p.logsumexp(0).squeeze()
    torch.testing.assert_close(log_observed, case.log_joint()[case.fits()].flatten().logsumexp(0))
    (grad,) = torch.autograd.grad(log_observed, theta)
    torch.testing.assert_close(grad, exact_gradient(case))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_the_estimator_approaches_the_exact_gradient(name):
    """40 calls with 4,000 draws each: within five standard errors, and the bias is of the order of 1 / 4,000."""
    case, rng = HollowCase(name, masked=True), torch.Generator().manual_seed(0)
    estimator = for_holes(NAIS(4000), case.model)
    assert type(estimator) is NAIS
    grads = torch.stack([
        estimator(*case.chains, HOLLOW[None], torch.tensor([0]), {}, rng, "theta").theta_grad for _ in range(40)
    ])  # fmt: skip
    stderr, exact = grads.std(0) / math.sqrt(40), exact_gradient(case)
    assert ((grads.mean(0) - exact).abs() <= 5 * stderr + 1e-3 * exact.abs() + 1e-6).all()
    assert (stderr < 0.02).all(), "or the test sees nothing"


@pytest.mark.parametrize("name", ["darn", "nade", "darn:order=3", "nade:order=reversed"])
def test_the_fused_kernels_fill_in_by_the_law_of_the_layer(name):
    """In single precision, where they are used: what is there stays, and its density is that of the cells.

    20,000 fillings of each of three masks have the law prod_missing p(x_i | x_<i, given) (chi-square).
    """
    layer = LAYERS.make(name, 3, D, start="glorot")
    exact = random_params(layer)
    params, given = {key: value.float() for key, value in exact.items()}, torch.tensor([1.0, 0.0, 1.0])
    for seed, mask in enumerate(bits(D)[[5, 9, 14]].bool()):
        x = HOLLOW_X.float().masked_fill(mask, math.nan).expand(20_000, D)
        drawn = layer.fill(params, x, mask, given, torch.Generator().manual_seed(seed))
        assert (drawn.value == HOLLOW_X)[:, ~mask].all()
        cells = layer.cells(exact, bits(D), given.double())
        fits = (bits(D) == HOLLOW_X)[:, ~mask].all(1)
        assert_same_law(drawn.value, cells.masked_fill(~mask, 0).sum(1).masked_fill(~fits, -math.inf))
        at = (drawn.value.double() @ torch.tensor([8.0, 4, 2, 1]).double()).long()
        known = cells.masked_fill(mask, 0).sum(1)[at]
        torch.testing.assert_close(drawn.log_prob, known.float(), rtol=1e-4, atol=1e-4)


# Where the data layer has an order, what fills the holes is remembered


def in_law(case: HollowCase, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """n exact draws of x and z given what is observed."""
    joint = case.log_joint()[case.fits()]
    drawn = torch.multinomial(joint.flatten().softmax(0), n, replacement=True, generator=rng)
    return bits(4)[case.fits()][drawn // joint.shape[1]], case.z[drawn % joint.shape[1]]


@pytest.mark.parametrize("name", ORDERED)
def test_a_visit_keeps_the_law_and_its_gradient_is_exact(name):
    """40,000 rows whose fill-ins are exact draws, visited once with two fresh draws each.

    The law of what is remembered is as before (chi-square), and the mean gradient is the exact one, which it would not
    be without the remembered draw: its standard error is that of 50 groups of rows.
    """
    case, n, groups = HollowCase(name, masked=True), 40_000, 50
    rng = torch.Generator().manual_seed(4)
    estimator = for_holes(NAIS(2), case.model)
    x, z = in_law(case, n, rng)
    memory = estimator.init(case.model, n, rng)
    assert memory.keys() == {"hollow.x", *(["hollow.z1"] if z.shape[1] else [])}
    memory["hollow.x"] = pack(x)
    if z.shape[1]:
        memory["hollow.z1"] = pack(z)
    grads = []
    for index in torch.arange(n).chunk(groups):
        found = estimator(*case.chains, HOLLOW.expand(len(index), 4), index, memory, rng)
        grads.append(found.theta_grad)
    mean, stderr = torch.stack(grads).mean(0), torch.stack(grads).std(0) / math.sqrt(groups)
    exact = exact_gradient(case)
    assert ((mean - exact).abs() <= 5 * stderr + 1e-9).all()
    assert (stderr < 0.02).all(), "or the test sees nothing"
    left = unpack(memory["hollow.x"], 4, torch.float64)
    assert (left == HOLLOW_X)[:, ~MISSING].all()
    assert_law(numbers(left), case.target())
    if z.shape[1]:  # and the law of z beside it
        codes = (unpack(memory["hollow.z1"], 3, torch.float64) @ torch.tensor([4.0, 2.0, 1.0]).double()).long().numpy()
        assert_law(numbers(left) * 8 + codes, case.log_joint()[case.fits()].flatten().softmax(0))


@pytest.mark.parametrize("name", ORDERED)
def test_visits_forget_where_they_began(name):
    """5,000 rows whose fill-ins start from zeros have the right law after 30 visits with two draws each."""
    case, rng = HollowCase(name, masked=True), torch.Generator().manual_seed(5)
    estimator = for_holes(NAIS(2), case.model)
    memory = estimator.init(case.model, 5000, rng)
    for _ in range(30):
        memory = estimator(*case.chains, HOLLOW.expand(5000, 4), torch.arange(5000), memory, rng, "theta").memory
    assert_law(numbers(unpack(memory["hollow.x"], 4, torch.float64)), case.target())


def test_real_hidden_values_are_remembered_too():
    model = Chain.build("nade,normal", data=4, hidden=(2,))
    estimator = for_holes(NAIS(3), model)
    rng = torch.Generator().manual_seed(0)
    memory = estimator.init(model, 6, rng)
    proposal = Chain.build_proposal("gaussian:widths=3", data=4, hidden=(2,), masked=True)
    theta, phi = model.init(rng), proposal.init(rng)
    x = HOLLOW.float().expand(2, 4)
    for _ in range(5):
        memory = estimator(model, theta, proposal, phi, x, torch.tensor([1, 4]), memory, rng).memory
    moved = memory["hollow.z1"].abs().sum(1) > 0
    assert moved.tolist() == [False, True, False, False, True, False]


# The proposal sees a mask


def test_what_a_masked_proposal_draws_has_its_density():
    """10,000 draws given a row with holes, over both hidden layers; the density is what `log_prob` says."""
    chain = Chain.build_proposal("sbn", data=4, hidden=(2, 2), masked=True)
    assert chain.layers[-1].n_in == chain.n_given == 8
    phi = torch.randn(chain.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = chain.draw(phi, HOLLOW, torch.Generator().manual_seed(1), 10_000)
    torch.testing.assert_close(drawn.log_prob, chain.log_prob(phi, drawn.values, HOLLOW))
    log_prob = chain.log_prob(phi, bits(4).split([2, 2], 1), HOLLOW)
    assert log_prob.exp().sum().item() == pytest.approx(1, abs=1e-10)
    assert_same_law(torch.cat(drawn.values, 1), log_prob)


def test_a_mask_of_nothing_changes_nothing():
    """On complete rows a masked proposal is the one without the weights for the mask."""
    masked, plain = (Chain.build_proposal("sbn", data=4, hidden=(3,), masked=each) for each in (True, False))
    phi = torch.randn(masked.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (params,) = masked.unflatten(phi)
    without = torch.cat([params["W"][:, :4].flatten(), params["b"]])
    z, x = bits(3), bits(4)[:8]
    torch.testing.assert_close(masked.log_prob(phi, (z,), x), plain.log_prob(without, (z,), x))


@pytest.mark.parametrize("name", HOLLOW_MODELS)
def test_the_mean_weight_is_the_density_of_what_is_observed(name):
    """400 rows with 500 draws each: their mean weight is p(x_observed) within 4 of its standard errors."""
    case = HollowCase(name, masked=True)
    found = score(*case.chains, HOLLOW.expand(400, 4), Scoring(draws=500)).log_likelihood.exp()
    exact = case.log_joint()[case.fits()].flatten().logsumexp(0).exp()
    assert abs(found.mean() - exact) <= 4 * found.std() / math.sqrt(400) + 1e-9
    assert found.std() < 0.3 * found.mean(), "or the test sees nothing"


def test_with_nothing_hidden_and_independent_values_one_look_is_exact():
    case = HollowCase("nade:order=reversed", masked=True)
    assert not is_exact(case.model, case.proposal)
    model = Chain.build("sbn", data=4)
    theta = torch.randn(model.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert is_exact(model, case.proposal)
    found = log_marginal(model, theta, case.proposal, case.phi, HOLLOW[None], 3, torch.Generator())
    exact = model.log_prob(theta, (bits(4)[case.fits()],)).logsumexp(0)
    torch.testing.assert_close(found.log_likelihood[0], exact)


def test_dreams_have_the_holes_of_the_rows():
    """Sleep climbs log q(z | x with holes): with no weights but for the mask, its gradient for those of x is zero where
    all rows have holes."""
    case = HollowCase("sbn", masked=True)
    estimator = for_holes(NAIS(2, OBJECTIVES.make("sleep")), case.model)
    grad = estimator(
        *case.chains, HOLLOW.expand(50, 4), torch.arange(50), {}, torch.Generator().manual_seed(0)
    ).phi_grad
    (of,) = case.proposal.unflatten(grad)
    assert (of["W"][:, :4][:, MISSING] == 0).all()
    assert (of["W"][:, :4][:, ~MISSING] != 0).all()
    assert (of["W"][:, 4:][:, MISSING] != 0).all()


# With nothing missing, nothing is changed


def test_data_without_holes_are_learnt_as_ever():
    config = from_dict({"data": "bars", "hidden": (5,), "model": "nade,sbn"})
    data = load("bars")
    method = build(config, data)
    assert not data.holes
    assert not method.proposal.masked
    assert type(method.estimator) is type(method.refitter) is NAIS
    hollow = build(config, Facts(16, "binary", (16,), holes=True))
    assert hollow.proposal.masked
    assert type(hollow.estimator) is type(hollow.refitter) is HollowNAIS


def test_complete_rows_have_the_same_bits_with_and_without_a_mask_that_is_cut_off():
    """One draw of (z, weights, gradients) for complete rows: a masked proposal whose weights for the mask are zero."""
    rng = torch.Generator()
    model = Chain.build("sbn", data=6, hidden=(3,))
    masked, plain = (Chain.build_proposal("sbn", data=6, hidden=(3,), masked=each) for each in (True, False))
    theta, phi = model.init(rng.manual_seed(0)), plain.init(rng)
    (params,) = plain.unflatten(phi)
    wide = torch.cat([torch.cat([params["W"], torch.zeros(3, 6)], 1).flatten(), params["b"]])
    x = torch.bernoulli(torch.full((9, 6), 0.4), generator=rng)
    one = propose(model, theta, masked, wide, x, 4, rng.manual_seed(1))
    other = propose(model, theta, plain, phi, x, 4, rng.manual_seed(1))
    assert torch.equal(one.hidden[0], other.hidden[0])
    torch.testing.assert_close(one.log_weight, other.log_weight)


# All the way
