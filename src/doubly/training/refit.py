"""Fitting a copy of the proposal to weights that stand still."""

from collections.abc import Callable

import torch
from torch import Tensor

from doubly.core.cache import Tensors
from doubly.core.random import generator
from doubly.latents import Batch, Pair
from doubly.samplers.adam import AdamState
from doubly.training.method import Method
from doubly.training.step import batches, rows_at

OF_MEMORY = "memory."  # before the names of what an estimator remembers


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

    The proposal has followed the moving chain; the posterior mean is another point, for which it has to be fitted
    anew or the bound is loose. The step falls linearly to zero, so that the last steps average the noise out. After
    each pass, `watch` is shown where things stand; from there, `halfway`, a fit goes on as if it had not been stopped.
    """
    if not method.proposal.layers:
        return phi
    rng = generator(train.device, method.seed, "refit")
    memory = method.refitter.init(method.model, len(train), rng)
    state = method.optimiser.init(phi, rng)
    if halfway is not None:
        state = AdamState(halfway["theta"], halfway["m"], halfway["v"], int(halfway["t"]))
        memory = {name.removeprefix(OF_MEMORY): kept for name, kept in halfway.items() if name.startswith(OF_MEMORY)}
        rng.set_state(halfway["rng"].cpu())
    for done in range(int(halfway["done"]) if halfway else 0, passes):
        eta = method.optimiser.eta(method.phi_step, len(train)) * (1 - done / passes)
        for index in batches(torch.randperm(len(train), generator=rng, device=train.device), method.batch):
            state = method.optimiser.ask(state, eta, rng)
            x = rows_at(method, train, index, rng)
            batch = Batch(Pair(method.model, theta, method.proposal, state.theta), x, index, memory, rng)
            found = method.refitter(batch, wanted="phi")
            memory = found.memory
            assert found.phi_grad is not None
            state = method.optimiser.tell(state, found.phi_grad, eta, rng)
        numbers = {"t": torch.tensor(state.t), "done": torch.tensor(done + 1), "rng": rng.get_state()}
        vectors = {"theta": state.theta, "m": state.m, "v": state.v}
        watch(vectors | numbers | {OF_MEMORY + name: kept for name, kept in memory.items()}, done + 1)
    return state.theta
