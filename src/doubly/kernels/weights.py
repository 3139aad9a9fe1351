"""Importance weights of a mini-batch, from the log densities of model and proposal."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.kernels import choose
from doubly.kernels.rows import as_arrays


class Summary(NamedTuple):
    """Normalised weights (S, B), and means over the rows: log of the mean weight, and effective draws."""

    weight: Tensor
    log_mean: Tensor
    ess: Tensor


def summarise(log_p: Tensor, log_q: Tensor) -> Summary:
    """All that is asked of the weights of S draws for B rows, through which no gradient flows."""
    log_p, log_q = log_p.detach(), log_q.detach()
    if log_p.shape != log_q.shape:  # with nothing hidden, there is one draw, of nothing
        log_p, log_q = (each.contiguous() for each in torch.broadcast_tensors(log_p, log_q))
    return (fused_summary if choose.fused(log_p, log_q) else plain_summary)(log_p, log_q)


def plain_summary(log_p: Tensor, log_q: Tensor) -> Summary:
    log_weight = log_p - log_q
    weight = torch.softmax(log_weight, 0)
    log_mean = torch.logsumexp(log_weight, 0) - math.log(len(weight))
    return Summary(weight, log_mean.mean(), weight.square().sum(0).reciprocal_().mean())


def fused_summary(log_p: Tensor, log_q: Tensor) -> Summary:
    weight, means = torch.empty_like(log_p), log_p.new_empty(2)
    choose.loops().summarise(*as_arrays(log_p, log_q, weight, means))
    return Summary(weight, means[0], means[1])
