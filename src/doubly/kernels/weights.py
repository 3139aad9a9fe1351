"""Importance weights of a mini-batch, from the log densities of model and proposal."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.kernels import choose
from doubly.kernels.rows import as_arrays, new


class Summary(NamedTuple):
    """Normalised weights (S, B), and means over the rows: log of the mean weight, and effective draws."""

    weight: Tensor
    share: Tensor
    """The weights over the number of rows, for means over these."""
    log_mean: Tensor
    ess: Tensor


def summarise(log_p: Tensor, log_q: Tensor) -> Summary:
    """All that is asked of the weights of S draws for B rows, through which no gradient flows."""
    if log_p.requires_grad or log_q.requires_grad:
        log_p, log_q = log_p.detach(), log_q.detach()
    if log_p.shape != log_q.shape:  # with nothing hidden, there is one draw, of nothing
        log_p, log_q = (each.contiguous() for each in torch.broadcast_tensors(log_p, log_q))
    return (fused_summary if choose.fused(log_p, log_q) else plain_summary)(log_p, log_q)


def plain_summary(log_p: Tensor, log_q: Tensor) -> Summary:
    log_weight = log_p - log_q
    weight = torch.softmax(log_weight, 0)
    log_mean = torch.logsumexp(log_weight, 0) - math.log(len(weight))
    return Summary(weight, weight / weight.shape[1], log_mean.mean(), weight.square().sum(0).reciprocal_().mean())


def fused_summary(log_p: Tensor, log_q: Tensor) -> Summary:
    (weight, weights), (share, shares), means = new(*log_p.shape), new(*log_p.shape), np.empty(2, np.float32)
    choose.loops().summarise(*as_arrays(log_p.contiguous(), log_q.contiguous()), weights, shares, means)
    return Summary(weight, share, *(torch.from_numpy(means[i : i + 1].reshape(())) for i in range(2)))
