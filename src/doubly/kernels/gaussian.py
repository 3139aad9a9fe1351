"""Normal variables by their mean and log standard deviation."""

import math

import torch
from torch import Tensor

from doubly.kernels import choose
from doubly.kernels.noise import normal


@choose.compilable
def log_prob(mu: Tensor, log_sigma: Tensor, value: Tensor) -> Tensor:
    """sum_i -((value_i - mu_i) / sigma_i)^2 / 2 - log sigma_i - log(2 pi) / 2 over the last axis."""
    return cells(mu, log_sigma, value).sum(-1)


def cells(mu: Tensor, log_sigma: Tensor, value: Tensor) -> Tensor:
    """The terms of `log_prob`, one for each entry."""
    scaled = (value - mu) * torch.exp(-log_sigma)
    return -(scaled**2 / 2 + log_sigma + math.log(2 * math.pi) / 2)


def draw(mu: Tensor, log_sigma: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    """mu + sigma noise; with `draws`, that many of each along a new leading axis."""
    shape = mu.shape if draws is None else (draws, *mu.shape)
    return mu + torch.exp(log_sigma) * normal(shape, rng, mu.dtype, mu.device)
