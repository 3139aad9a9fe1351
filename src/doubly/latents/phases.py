"""The two phases from which the proposal learns: wake, on weighted draws, and sleep, on rows of the model."""

import torch
from torch import Tensor

from doubly.latents.batch import Batch, Wanted
from doubly.latents.objectives import Objective, sleep_draw
from doubly.layers.chain import ChainVJP


def sleep_phase(objective: Objective, batch: Batch, wanted: Wanted) -> ChainVJP | None:
    """log q(z | x) of rows drawn from the model, where the objective has a sleep phase."""
    if wanted == "theta" or not objective.sleep_weight:
        return None
    x, *latents = sleep_draw(batch)
    proposal = batch.pair.proposal
    return proposal.log_prob_vjp(batch.pair.phi.detach(), tuple(latents[::-1]), proposal.seen(x))


def phi_gradient(
    objective: Objective, batch: Batch, wanted: Wanted, wake_grad: Tensor | None, slept: ChainVJP | None
) -> Tensor | None:
    """The wake phase, which has its weight already, and the sleep phase by its own."""
    if wanted == "theta":
        return None
    phi, rows = batch.pair.phi.detach(), len(batch.x)
    grad = torch.zeros_like(phi) if wake_grad is None else wake_grad
    if slept is not None:
        grad += slept.vjp(phi.new_full((rows,), objective.sleep_weight / rows))
    return grad
