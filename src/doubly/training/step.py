"""One training step: ask the sampler, estimate both gradients, tell the sampler, move the proposal."""

import functools
import math

import torch
from torch import Tensor

from doubly.core.ranks import ALONE, Ranks
from doubly.core.rows import StoredRows
from doubly.latents import Batch, Estimate, Pair, Wanted
from doubly.layers.chain import Prepared
from doubly.samplers.sampler import Eta
from doubly.training.centring import PLAIN, centring
from doubly.training.method import Method, mover
from doubly.training.shards import sharded_estimate
from doubly.training.state import State


def step(method: Method, state: State, x: Tensor, index: Tensor, n_data: int, ranks: Ranks = ALONE) -> State:
    """Move theta, then phi, on one mini-batch x, whose rows stand at `index` in the training data.

    Of several ranks, all move the same theta and phi, by gradients to which each has added its shards.
    """
    theta, phi, memory, rng = state.theta, state.phi, state.memory, state.rng
    time = state.epoch + state.batch / math.ceil(n_data / method.batch)
    sampler, size, automatic = mover(method, time)
    size = size / 3.0**state.retried
    eta: Eta = sampler.eta(size, n_data)
    tuned, coordinates = state.tuned, PLAIN
    if automatic:
        assert tuned is not None
        eta, coordinates = size * tuned.eta(), tuned.coordinates(centring(method.model))
    phi_eta = method.optimiser.eta(method.phi_step * method.phi_schedule(time), n_data)
    phi_steps = method.phi_steps if method.proposal.layers else 0
    prepared: Prepared = {}
    shared = phi_steps > 0 and not (method.resample or method.phi_first)

    def estimate(wanted: Wanted) -> Estimate:  # at the present theta and phi
        pair = Pair(method.model, theta.theta, method.proposal, phi.theta)
        if method.shards > 1:
            batch = Batch(pair, x, index, memory, rng, tuning=state.began is None)
            return sharded_estimate(method, batch, n_data, wanted, ranks)
        batch = Batch(pair, x, index, memory, rng, tuning=state.began is None, prepared=prepared)
        return method.estimator(batch, wanted)

    def ascend_phi(grad: Tensor | None) -> None:
        nonlocal phi, prepared
        assert grad is not None  # it was wanted
        grad = method.phi_prior.added(phi.theta, grad, 1 / n_data)
        phi = method.optimiser.tell(method.optimiser.ask(phi, phi_eta, rng), grad, phi_eta, rng)
        prepared = {}

    for _ in range(phi_steps if method.phi_first else 0):
        found = estimate("phi")
        memory = found.memory
        ascend_phi(found.phi_grad)
    theta = coordinates.ask(sampler, theta, eta, rng)
    found = estimate("both" if shared else "theta")
    memory = found.memory
    assert found.theta_grad is not None
    grad = method.prior.given(state.prior, method.model.groups).added(theta.theta, n_data * found.theta_grad)
    if tuned is not None and (state.began is None or not tuned.measured):
        tuned = tuned.after(theta.theta, grad, centring(method.model))
        coordinates = tuned.coordinates(centring(method.model)) if automatic else PLAIN
    theta = coordinates.tell(sampler, theta, grad, eta, rng)
    prior = state.prior
    if sampler.noisy:  # an optimiser would find the mode where the weights and their scale are 0
        prior = method.prior.update(prior, method.model.groups, theta.theta, rng, sampler.temperature)
    totals = _add(state.totals, len(x), found.stats, grad, sampler.stats(theta))
    for i in range(0 if method.phi_first else phi_steps):
        if not shared or i > 0:
            found = estimate("phi")
            memory = found.memory
        ascend_phi(found.phi_grad)
    return state._replace(theta=theta, phi=phi, memory=memory, prior=prior, totals=totals, tuned=tuned)


def rows_at(method: Method, train: Tensor | StoredRows, index: Tensor, rng: torch.Generator) -> Tensor:
    """Some of the training rows; they are stored as bytes and become floats here."""
    rows = train[index].float()
    return torch.bernoulli(rows / 255, generator=rng) if method.dynamic else rows


def batches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """The rows in mini-batches of at most that size; their lengths differ by at most one row.

    A short last batch would be right on average, but its noise would heat the chain just before a sample is taken.
    """
    return order.tensor_split(math.ceil(len(order) / size))


def _add(totals: Tensor, n: int, stats: dict[str, Tensor], grad: Tensor, watched: dict[str, Tensor]) -> Tensor:
    """Add one step on n rows to an epoch's totals, without waiting for the device."""
    lowest, highest = torch.aminmax(grad)  # in a twentieth of the time of vector_norm
    largest = torch.maximum(highest, -lowest).nan_to_num_(nan=0.0)
    one, zero = _numbers(totals.device)
    # an epoch that an older version began has no place for what is watched
    rest = watched.values() if len(totals) == 4 + len(watched) else (zero,) * (len(totals) - 4)
    sums = totals.add(torch.stack([one, stats["train"], stats["ess"], zero, *rest]), alpha=n)
    torch.maximum(totals[3], largest, out=sums[3])
    return sums


@functools.cache
def _numbers(device: torch.device) -> Tensor:
    return torch.tensor([1.0, 0.0], device=device)
