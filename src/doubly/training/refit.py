"""Fitting a copy of the proposal to weights that stand still."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from doubly.core.random import generator
from doubly.core.rows import StoredRows, shuffled
from doubly.latents import Batch, Memory, Pair
from doubly.samplers.adam import AdamState
from doubly.training.method import Method
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
    memory = method.refitter.init(method.model, len(train), rng)
    return Halfway(method.optimiser.init(phi, rng), memory, rng.get_state(), 0)


def refit(
    method: Method,
    theta: Tensor,
    phi: Tensor,
    train: Tensor | StoredRows,
    passes: int,
    watch: Callable[[Halfway], None] = lambda halfway: None,
    halfway: Halfway | None = None,
) -> Tensor:
    """A copy of phi fitted to fixed weights theta, by `passes` passes over the training rows.

    The proposal has followed the moving chain; the posterior mean is another point. Unless the proposal is fitted to
    it, the bound is loose. The step falls linearly to zero, so that the last steps average the noise out. After each
    pass, `watch` is shown where things stand; from there, `halfway`, a fit goes on as if it had not been stopped.
    """
    if not method.proposal.layers:
        return phi
    state, memory, rng_state, first = halfway or beginning(method, phi, train)
    rng = generator(train.device, method.seed, "refit")
    rng.set_state(rng_state.cpu())
    for done in range(first, passes):
        eta = method.optimiser.eta(method.phi_step, len(train)) * (1 - done / passes)
        for index in batches(shuffled(train, rng), method.batch):
            state = method.optimiser.ask(state, eta, rng)
            x = rows_at(method, train, index, rng)
            batch = Batch(Pair(method.model, theta, method.proposal, state.theta), x, index, memory, rng, remember=True)
            found = method.refitter(batch, wanted="phi")
            memory = found.memory
            assert found.phi_grad is not None
            state = method.optimiser.tell(state, found.phi_grad, eta, rng)
        watch(Halfway(state, memory, rng.get_state(), done + 1))
    fitted: Tensor = state.theta
    return fitted
