"""Draws of the hidden variables from the proposal, their importance weights, and what can be read off them."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.model import Chain, Values


class Draws(NamedTuple):
    """S draws for each of B rows: hidden values (S, B, H), from the data upward, and log densities (S, B)."""

    hidden: Values
    log_p: Tensor
    log_q: Tensor

    @property
    def log_weight(self) -> Tensor:
        """log p(x, z) - log q(z | x)."""
        return self.log_p - self.log_q


def propose(
    model: Chain,
    theta: Tensor,
    proposal: Chain,
    phi: Tensor,
    x: Tensor,
    draws: int,
    rng: torch.Generator,
    pathwise: bool = False,
) -> Draws:
    """z ~ q(z | x; phi), with log p(x, z | theta) and log q(z | x; phi), both ready to be differentiated.

    With `pathwise`, z itself carries the gradient with respect to phi.
    """
    values, log_q = proposal.draw(phi, x, rng, draws, pathwise)
    hidden = values[::-1]  # the proposal ends in the top layer, where the model starts
    return Draws(hidden, model.log_prob(theta, (x, *hidden)), log_q)


def normalised(log_weight: Tensor) -> Tensor:
    """Weights that sum to one over the draws, and through which no gradient flows."""
    return torch.softmax(log_weight.detach(), 0)


def log_mean_weight(log_weight: Tensor) -> Tensor:
    """log of the mean weight over the draws: an estimate of log p(x), in expectation from below."""
    return torch.logsumexp(log_weight, 0) - math.log(log_weight.shape[0])


def effective(weight: Tensor) -> Tensor:
    """1 / sum w^2 of normalised weights: how many equally weighted draws these are worth."""
    return weight.square().sum(0).reciprocal_()


class Marginal(NamedTuple):
    """log p(x) estimated for each row, with the effective number of draws behind it."""

    log_likelihood: Tensor
    effective: Tensor
