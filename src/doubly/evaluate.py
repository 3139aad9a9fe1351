"""Scoring: a log-likelihood with its error bar, after a copy of the proposal has been fitted to the weights scored."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.inference import Marginal, log_marginal
from doubly.train import Method, batches, generator, stderr


class Score(NamedTuple):
    """The mean over rows of log p(x) in nats, its standard error over rows, and the mean effective draws."""

    log_likelihood: float
    stderr: float | None
    ess: float
    n: int


def summary(rows: Marginal) -> Score:
    """The score of a set of rows."""
    values = rows.log_likelihood.double()
    return Score(values.mean().item(), stderr(values), rows.effective.double().mean().item(), len(values))


def ensemble(members: list[Marginal]) -> Marginal:
    """The predictive log (1/M) sum_m p(x | theta_m); its effective draws are those of the mixture's members."""
    log_likelihood = torch.stack([member.log_likelihood for member in members]).logsumexp(0) - math.log(len(members))
    return Marginal(log_likelihood, torch.stack([member.effective for member in members]).mean(0))


def refit(
    method: Method,
    theta: Tensor,
    phi: Tensor,
    train: Tensor,
    passes: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """A copy of phi fitted to fixed weights theta, by `passes` passes over the training rows.

    The proposal has followed the moving chain; the posterior mean is another point, for which it has to be fitted
    anew or the bound is loose. The step falls linearly to zero, so that the last steps average the noise out.
    """
    if not method.proposal.layers:
        return phi
    rng = generator(train.device, method.seed, "refit")
    memory = method.refitter.init(method.model, len(train), rng)
    state = method.optimiser.init(phi, rng)
    for done in range(passes):
        eta = method.optimiser.eta(method.phi_step, len(train)) * (1 - done / passes)
        for index in batches(torch.randperm(len(train), generator=rng, device=train.device), method.batch):
            state = method.optimiser.ask(state, eta, rng)
            x = train[index].float()
            chains = method.model, theta, method.proposal, state.theta
            found = method.refitter(*chains, x, index, memory, rng, wanted="phi")
            memory = found.memory
            state = method.optimiser.tell(state, found.phi_grad, eta, rng)
        progress(done + 1, passes)
    return state.theta


def score_rows(method: Method, theta: Tensor, phi: Tensor, x: Tensor, draws: int, seed: int = 0) -> Marginal:
    """log p(x) of each row by `draws` draws from the proposal: the bound L_K."""
    rng = generator(x.device, seed, "score")
    return log_marginal(method.model, theta, method.proposal, phi, x, draws, rng)
