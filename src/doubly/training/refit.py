"""Fitting a copy of the proposal to fixed weights of the model."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.cache import Tensors
from doubly.core.codec import from_cache, to_cache
from doubly.core.random import generator
from doubly.latents import Batch, Memory, Pair
from doubly.samplers.adam import AdamState
from doubly.training.method import Method
from doubly.training.state import with_present_names
from doubly.training.step import batches, rows_at


class Halfway(NamedTuple):
    """Where a fit stands after some passes."""

    theta: Tensor
    """The proposal's weights; with m, v and t, the state of Adam."""
    m: Tensor
    v: Tensor
    t: int
    done: int
    """Passes done."""
    rng: torch.Generator
    memory: Memory
    """What the estimator remembers."""


def refit(
    method: Method,
    theta: Tensor,
    phi: Tensor,
    train: Tensor,
    passes: int,
    watch: Callable[[Tensors, int], None] = lambda halfway, done: None,
    halfway: Tensors | None = None,
) -> Tensor:
    """A copy of phi fitted to fixed weights theta, by `passes` passes over the training rows.

    During training the proposal followed the moving weights. The posterior mean is another point: without a fit to it
    the bound is loose. The step falls linearly to zero, so that the last steps average the noise out. After each pass
    `watch` gets the tensors of where the fit stands. Given these as `halfway`, a fit goes on as if it had never
    stopped.
    """
    if not method.proposal.layers:
        return phi
    now = _start(method, phi, train) if halfway is None else _resumed(halfway, train.device)
    state, memory, rng = AdamState(now.theta, now.m, now.v, now.t), now.memory, now.rng
    for done in range(now.done, passes):
        eta = method.optimiser.eta(method.phi_step, len(train)) * (1 - done / passes)
        for index in batches(torch.randperm(len(train), generator=rng, device=train.device), method.batch):
            state = method.optimiser.ask(state, eta, rng)
            x = rows_at(method, train, index, rng)
            batch = Batch(Pair(method.model, theta, method.proposal, state.theta), x, index, memory, rng)
            found = method.refitter(batch, wanted="phi")
            memory = found.memory
            assert found.phi_grad is not None
            state = method.optimiser.tell(state, found.phi_grad, eta, rng)
        watch(to_cache(Halfway(*state, done=done + 1, rng=rng, memory=memory)), done + 1)
    return state.theta


def _start(method: Method, phi: Tensor, train: Tensor) -> Halfway:
    rng = generator(train.device, method.seed, "refit")
    memory = method.refitter.init(method.model, len(train), rng)
    state: AdamState = method.optimiser.init(phi, rng)
    return Halfway(*state, done=0, rng=rng, memory=memory)


def _resumed(halfway: Tensors, device: torch.device) -> Halfway:
    return from_cache(Halfway, with_present_names(halfway), device)
