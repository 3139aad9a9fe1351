"""Importance weights of a mini-batch, from the log densities of model and proposal."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.kernels import choose
from doubly.kernels.rows import as_arrays


class Weighed(NamedTuple):
    """Normalised weights (S, B), and means over the rows: log of the mean weight, and effective draws."""

    weight: Tensor
    log_mean: Tensor
    effective: Tensor


def weigh(log_p: Tensor, log_q: Tensor) -> Weighed:
    """All that is asked of the weights of S draws for B rows, through which no gradient flows."""
    log_p, log_q = log_p.detach(), log_q.detach()
    if log_p.shape != log_q.shape:  # with nothing hidden, there is one draw, of nothing
        log_p, log_q = (each.contiguous() for each in torch.broadcast_tensors(log_p, log_q))
    return (fused_weigh if choose.fused(log_p, log_q) else plain_weigh)(log_p, log_q)


def plain_weigh(log_p: Tensor, log_q: Tensor) -> Weighed:
    log_weight = log_p - log_q
    weight = torch.softmax(log_weight, 0)
    log_mean = torch.logsumexp(log_weight, 0) - math.log(len(weight))
    return Weighed(weight, log_mean.mean(), weight.square().sum(0).reciprocal_().mean())


def fused_weigh(log_p: Tensor, log_q: Tensor) -> Weighed:
    weight, means = torch.empty_like(log_p), log_p.new_empty(2)
    choose.loops().weigh(*as_arrays(log_p, log_q, weight, means))
    return Weighed(weight, means[0], means[1])
