"""Scoring: log-likelihoods and their error bars, after a copy of the proposal was fitted to the weights scored."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.inference import RELIABLE, Scored, Visit
from doubly.kernels.noise import generator
from doubly.samplers.adam import AdamState
from doubly.shelf import Tensors
from doubly.train import Method, batches, rows_at, stderr

OF_MEMORY = "memory."  # before the names of what an estimator remembers


class Score(NamedTuple):
    """What the scores of a set of rows come to."""

    log_likelihood: float
    """The mean over rows of log p(x), in nats."""
    stderr: float | None
    """Its standard error over rows."""
    draw_error: float
    """Its standard error due to the draws of the hidden variables."""
    ess: float
    """The mean effective draws."""
    unreliable: int
    """Rows whose weights have so heavy a tail (k̂ > 0.7) that their score is not to be relied on."""
    draws_used: float
    """The mean draws."""
    n: int


def summary(rows: Scored) -> Score:
    """The score of a set of rows."""
    n = len(rows.log_likelihood)
    return Score(
        rows.log_likelihood.double().mean().item(),
        stderr(rows.log_likelihood),
        rows.noise.double().square().sum().sqrt().item() / n,
        rows.effective.double().mean().item(),
        int((rows.khat > RELIABLE).sum()),
        rows.draws.double().mean().item(),
        n,
    )


def ensemble(members: list[Scored]) -> Scored:
    """The predictive log (1/M) sum_m p(x | theta_m) from the scores of its members.

    All is as if the members' draws, which are independent, had been pooled: with S_m the sum of a member's weights, of
    which it has E_m effective ones, there are (sum S_m)^2 / sum (S_m^2 / E_m). The tail is the heaviest of any.
    """
    log_likelihood, effective, khat, noise, draws = (torch.stack(values) for values in zip(*members, strict=True))
    share = torch.softmax(log_likelihood, 0)
    heaviest = khat.nan_to_num(nan=-math.inf).amax(0)
    return Scored(
        log_likelihood.logsumexp(0) - math.log(len(members)),
        1 / (share**2 / effective).sum(0),
        torch.where(khat.isnan().all(0), math.nan, heaviest),
        (share * noise).square().sum(0).sqrt(),
        draws.sum(0),
    )


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
            visit = Visit(method.model, theta, method.proposal, state.theta, x, index, memory, rng)
            found = method.refitter(visit, wanted="phi")
            memory = found.memory
            state = method.optimiser.tell(state, found.phi_grad, eta, rng)
        numbers = {"t": torch.tensor(state.t), "done": torch.tensor(done + 1), "rng": rng.get_state()}
        vectors = {"theta": state.theta, "m": state.m, "v": state.v}
        watch(vectors | numbers | {OF_MEMORY + name: kept for name, kept in memory.items()}, done + 1)
    return state.theta
