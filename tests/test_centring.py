"""Coordinates in which weights multiply centred values: the same density, the right gradient, the right law."""

import math

import pytest
import torch
from torch import Tensor

from doubly.core.codec import to_tensors
from doubly.layers import SBN, Chain
from doubly.samplers import SMSUBU, Thermostat
from doubly.training.centring import MEMORY, Centring, Coordinates, centring
from doubly.training.protocol import fit
from doubly.training.state import decode, init
from doubly.training.tuning import untuned
from test_training import method, rows
from test_tuning import same, tuned_method

MODEL = Chain.build("sbn,darn,sbn", data=5, hidden=(4, 3))


def drawn(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", ["sbn", "darn"])
def test_the_bias_takes_up_what_centring_moves(name: str):
    """W (z - m) + c is W z + b: the density of the weights `plain` is that of the weights `centred` at z - m."""
    chain = Chain.build(name, data=4, hidden=(3,))
    into = centring(chain)
    assert into.width == 3
    theta, means = drawn(chain.size, 0), drawn(3, 1)
    x, z = torch.tensor([[1.0, 0, 1, 1]]).double(), torch.tensor([[1.0, 0, 1]]).double()
    layer, params = chain.layers[0], chain.unflatten(theta)[0]
    moved = chain.unflatten(into.centred(theta, means))[0]
    torch.testing.assert_close(layer.log_prob(moved, x, z - means), layer.log_prob(params, x, z))


def test_there_and_back_and_the_gradient_is_the_transposed_map():
    into = centring(MODEL)
    assert into.width == 4 + 3
    theta, means, along = drawn(MODEL.size, 0), drawn(7, 1), drawn(MODEL.size, 2)
    torch.testing.assert_close(into.plain(into.centred(theta, means), means), theta)
    seen = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(into.plain(seen, means) @ along, seen)
    torch.testing.assert_close(into.gradient(along, means), expected)
    # of determinant 1, for the posterior is that of the weights
    matrix = torch.stack([into.plain(unit, means) for unit in torch.eye(MODEL.size, dtype=torch.float64)])
    torch.testing.assert_close(matrix.logdet(), torch.zeros((), dtype=torch.float64))


def test_centres_make_gradients_uncorrelated():
    """Gradients r (z, 1)' with residuals r of mean 0 that are independent of z: the centre is the mean of z.

    A ratio of means over MEMORY steps and n_out outputs, r normal: its variance is 3 var(z) / (MEMORY n_out) at most,
    E[r^4] being 3. The memory is that of a running mean, worth twice as many steps; three times the bound is allowed.
    """
    chain, rng = Chain.build("sbn", data=50, hidden=(3,)), torch.Generator().manual_seed(3)
    into, p = centring(chain), torch.tensor([0.1, 0.5, 0.8])
    centre = into.unmeasured(torch.zeros(chain.size))
    assert (centre.means() == 0).all()
    for t in range(1, 3 * MEMORY):
        z = torch.bernoulli(p, generator=rng)
        grad = torch.zeros(chain.size)
        r = torch.randn(50, generator=rng)
        grad[:150], grad[150:200] = torch.outer(r, z).flatten(), r
        centre = centre.after(into, grad, t)
    error = (p * (1 - p) * 3 / MEMORY).sqrt()  # z is the same for all outputs of a step
    assert ((centre.means() - p).abs() < 3 * error).all()


def test_models_without_a_matrix_are_left_as_they_are():
    chain = Chain.build("sbn", data=4, hidden=())
    theta = drawn(chain.size, 0)
    assert centring(chain) == Centring(())
    assert centring(chain).centred(theta, theta) is theta
    assert untuned(theta, centring(chain)).centre.means().shape == (0,)


@pytest.mark.parametrize("sampler", [Thermostat(), SMSUBU()], ids=["thermostat", "sms-ubu"])
def test_the_law_is_that_of_the_weights(sampler):
    """W and b, normal and independent, are moved in (W, W m + b): each keeps its variance, and they do not correlate.

    Precision 1 and step eta = 0.05: the step's bias of the variance is eta k / 4 in the coordinates that move, whose
    precision is at most 1 + 2 |m|^2 + 2 (the largest eigenvalue of the map's square is below 2 + |m|^2). Correlation
    time is alpha / (eta k), for the smallest k, which is 1 over the largest: 16,000 chains need not wait long for it.
    """
    chains, rng = 16_000, torch.Generator().manual_seed(4)
    chain = Chain.build("sbn", data=chains, hidden=(1,))
    into, means = centring(chain), torch.tensor([0.8])
    theta = torch.randn(chain.size, generator=rng)
    theta[-1:] = 0  # the bias of the latent unit has no part in this
    state, coordinates = sampler.init(theta, rng), Coordinates(into, means)
    for _ in range(400):
        state = coordinates.ask(sampler, state, 0.05, rng)
        state = coordinates.tell(sampler, state, -state.theta, 0.05, rng)
    found = state.theta
    W, b = found[:chains].double(), found[chains : 2 * chains].double()
    largest = 2 + 0.8**2
    slack = 0.05 * largest / 4 + 0.01  # the thermostat's own, (a + b) / settle, as in test_thermostat.py
    for value in (W, b):
        assert abs(value.mean()) < 5 / math.sqrt(chains)
        assert abs(value.var() - 1) < 5 * math.sqrt(2 / chains) + slack
    assert abs((W * b).mean()) < 5 / math.sqrt(chains) + slack


def test_centres_are_measured_in_the_burn_in_and_held_then():
    chosen = tuned_method()
    burn_in: list[Tensor] = []
    held: list[Tensor] = []
    for state, _ in fit(chosen, rows(30), rows(5), init(chosen, rows(30))):
        assert state.tuned is not None
        (burn_in if state.began is None else held).append(state.tuned.centre.means())
    assert len(burn_in) > 2
    assert not torch.equal(burn_in[0], burn_in[1])
    assert all(torch.equal(one, held[0]) for one in held)
    assert (held[0] != 0).all()


def test_a_checkpoint_from_before_there_were_centres_goes_on_as_it_was():
    """Centres at 0 are no centres: the state moves as it did, until they are measured."""
    chosen = tuned_method()
    encoded = to_tensors(init(chosen, rows(30)))
    for name in [name for name in encoded.tensors if name.startswith("tuned.centre.")]:
        del encoded.tensors[name]
    found = decode(chosen, encoded, 30)
    assert found.tuned is not None
    assert (found.tuned.centre.means() == 0).all()
    assert same(found, init(chosen, rows(30)))


def test_a_step_that_was_set_knows_no_centres():
    chosen = method(sampler=Thermostat(), step=0.1)
    assert init(chosen, rows(30)).tuned is None


def test_a_subclass_with_other_parameters_is_not_centred():
    class Renamed(SBN):
        def shapes(self):
            return {"V": (self.n_out, self.n_in), "b": (self.n_out,)}

    assert centring(Chain((Renamed(3, 4), SBN(0, 3)))) == Centring(())
