"""Scores of rows, and what they come to: of one set of weights, and of an ensemble of them."""

import math
from typing import NamedTuple

import torch

from doubly.core.statistics import stderr
from doubly.latents import RELIABLE, RowLikelihoods


class LikelihoodSummary(NamedTuple):
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


def summarise(rows: RowLikelihoods) -> LikelihoodSummary:
    """The score of a set of rows."""
    n = len(rows.log_likelihood)
    return LikelihoodSummary(
        rows.log_likelihood.double().mean().item(),
        stderr(rows.log_likelihood),
        rows.noise.double().square().sum().sqrt().item() / n,
        rows.ess.double().mean().item(),
        int((rows.khat > RELIABLE).sum()),
        rows.draws.double().mean().item(),
        n,
    )


def ensemble(members: list[RowLikelihoods]) -> RowLikelihoods:
    """The predictive log (1/M) sum_m p(x | theta_m) from the scores of its members.

    All is as if the members' draws, which are independent, had been pooled: with S_m the sum of a member's weights, of
    which it has E_m effective ones, there are (sum S_m)^2 / sum (S_m^2 / E_m). The tail is the heaviest of any.
    """
    log_likelihood, ess, khat, noise, draws = (torch.stack(values) for values in zip(*members, strict=True))
    share = torch.softmax(log_likelihood, 0)
    heaviest = khat.nan_to_num(nan=-math.inf).amax(0)
    return RowLikelihoods(
        log_likelihood.logsumexp(0) - math.log(len(members)),
        1 / (share**2 / ess).sum(0),
        torch.where(khat.isnan().all(0), math.nan, heaviest),
        (share * noise).square().sum(0).sqrt(),
        draws.sum(0),
    )
