"""Fitting a copy of the proposal to weights that stand still."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.random import generator
from doubly.core.ranks import ALONE, Ranks
from doubly.core.rows import StoredRows, shuffled
from doubly.latents import Batch, Memory, Pair
from doubly.samplers.adam import AdamState
from doubly.training.method import Method
from doubly.training.shards import (
    init_memory,
    new_order,
    own_memory,
    sharded_batches,
    sharded_estimate,
    whole_memory,
)
from doubly.training.step import batches, rows_at


class Halfway(NamedTuple):
    """Where a fit stands after some of its passes."""

    optimiser: AdamState
    memory: Memory
    """What the estimator remembers."""
    rng: Tensor
    """The state of the generator."""
    done: int
    """Passes made."""


def beginning(method: Method, phi: Tensor, train: Tensor | StoredRows) -> Halfway:
    """Where a fit stands before its first pass."""
    rng = generator(train.device, method.seed, "refit")
    memory = init_memory(_fitter(method), len(train), rng)
    return Halfway(method.optimiser.init(phi, rng), memory, rng.get_state(), 0)


def _fitter(method: Method) -> Method:
    """The same, with the estimator by which proposals are fitted."""
    return dataclasses.replace(method, estimator=method.refitter)


def refit(
    method: Method,
    theta: Tensor,
    phi: Tensor,
    train: Tensor | StoredRows,
    passes: int,
    watch: Callable[[Halfway], None] = lambda halfway: None,
    halfway: Halfway | None = None,
    ranks: Ranks = ALONE,
) -> Tensor:
    """A copy of phi fitted to fixed weights theta, by `passes` passes over the training rows.

    The proposal has followed the moving chain; the posterior mean is another point. Unless the proposal is fitted to
    it, the bound is loose. The step falls linearly to zero, so that the last steps average the noise out. After each
    pass, `watch` is shown where things stand; from there, `halfway`, a fit goes on as if it had not been stopped.
    Several ranks share the shards of each mini-batch, as in training; the first is shown the memory of all.
    """
    if not method.proposal.layers:
        return phi
    state, memory, rng_state, first = halfway or beginning(method, phi, train)
    memory = own_memory(memory, method.shards, ranks)
    fitter, rng = _fitter(method), generator(train.device, method.seed, "refit")
    rng.set_state(rng_state.cpu())
    for done in range(first, passes):
        eta = method.optimiser.eta(method.phi_step, len(train)) * (1 - done / passes)
        for index in _mini_batches(method, train, rng):
            state = method.optimiser.ask(state, eta, rng)
            x = rows_at(method, train, index, rng)
            batch = Batch(Pair(method.model, theta, method.proposal, state.theta), x, index, memory, rng, remember=True)
            if method.shards > 1:
                found = sharded_estimate(fitter, batch, len(train), "phi", ranks)
            else:
                found = fitter.estimator(batch, wanted="phi")
            memory = found.memory
            assert found.phi_grad is not None
            state = method.optimiser.tell(state, found.phi_grad, eta, rng)
        watch(Halfway(state, whole_memory(memory, method.shards, ranks), rng.get_state(), done + 1))
    fitted: Tensor = state.theta
    return fitted


def _mini_batches(method: Method, train: Tensor | StoredRows, rng: torch.Generator) -> tuple[Tensor, ...]:
    """The rows of a pass."""
    if method.shards == 1:
        return batches(shuffled(train, rng), method.batch)
    return sharded_batches(new_order(len(train), method.shards, rng), method.batch, method.shards)
