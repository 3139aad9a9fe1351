"""Normal variables by their mean and log standard deviation.

Functions that end in `_rows` take matrices, whose rows wrap around: row k of the values goes with row k % n of the n
rows of parameters. Log standard deviations are kept within bounds there, beyond which they have no gradient.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.kernels import choose
from doubly.kernels.noise import normal
from doubly.kernels.rows import as_arrays, new

ANY = (-87.0, 87.0)  # log standard deviations whose exponential single precision can hold
HALF_LOG_2_PI = math.log(2 * math.pi) / 2


@choose.compilable
def log_prob(mu: Tensor, log_sigma: Tensor, value: Tensor) -> Tensor:
    """sum_i -((value_i - mu_i) / sigma_i)^2 / 2 - log sigma_i - log(2 pi) / 2 over the last axis."""
    return cells(mu, log_sigma, value).sum(-1)


@choose.compilable
def standard_log_prob(value: Tensor) -> Tensor:
    """The same for mean 0 and standard deviation 1."""
    return value.square().sum(-1) / -2 - value.shape[-1] * HALF_LOG_2_PI


def cells(mu: Tensor, log_sigma: Tensor, value: Tensor) -> Tensor:
    """The terms of `log_prob`, one for each entry."""
    scaled = (value - mu) * torch.exp(-log_sigma)
    return -(scaled**2 / 2 + log_sigma + math.log(2 * math.pi) / 2)


def draw(mu: Tensor, log_sigma: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    """mu + sigma noise; with `draws`, that many of each along a new leading axis."""
    shape = mu.shape if draws is None else (draws, *mu.shape)
    if mu.shape == log_sigma.shape and not choose.wants_grad(mu, log_sigma) and choose.fused(mu, log_sigma):
        rows = (-1, mu.shape[-1])
        return draw_rows(mu.reshape(rows), log_sigma.reshape(rows), rng, draws or 1, ANY).value.view(shape)
    return mu + torch.exp(log_sigma) * normal(shape, rng, mu.dtype, mu.device)


class Drawn(NamedTuple):
    """Rows that were drawn, their log densities, and the noise that they were made of."""

    value: Tensor
    log_prob: Tensor
    noise: Tensor


def draw_rows(mu: Tensor, log_sigma: Tensor, rng: torch.Generator, draws: int, bounds: tuple[float, float]) -> Drawn:
    """So many draws of each row of parameters, as draws * rows rows; the same numbers as `draw` gives."""
    n, width = mu.shape
    noise = normal((draws * n, width), rng, mu.dtype, mu.device)
    if choose.fused(mu, log_sigma):
        (value, drawn), (log_prob, found) = new(draws * n, width), new(draws * n)
        choose.loops().gaussian_draw(*as_arrays(mu, log_sigma, noise), *bounds, drawn, found)
        return Drawn(value, log_prob, noise)
    log_sigma, over = log_sigma.clamp(*bounds), (draws, n, width)
    value = torch.addcmul(mu, torch.exp(log_sigma), noise.view(over)).view(-1, width)
    log_prob = -(noise.square() / 2).view(over).add_(log_sigma + HALF_LOG_2_PI).sum(-1).view(-1)
    return Drawn(value, log_prob, noise)


class Heads(NamedTuple):
    """Gradients with respect to mean and log standard deviation, a row for each row of parameters."""

    mu: Tensor
    log_sigma: Tensor


def draw_rows_backward(
    drawn: Drawn, log_sigma: Tensor, weight: Tensor, of_value: Tensor, bounds: tuple[float, float]
) -> Heads:
    """Through the draws: value = mu + sigma noise, and log_prob = - sum log sigma + what is constant."""
    n, width = log_sigma.shape
    if choose.fused(log_sigma, weight, of_value):
        (of_mu, means), (of_log_sigma, spreads) = new(n, width), new(n, width)
        given = as_arrays(log_sigma, drawn.noise, weight.contiguous(), of_value.contiguous())
        choose.loops().gaussian_draw_backward(*given, *bounds, means, spreads)
        return Heads(of_mu, of_log_sigma)
    over = (-1, n, width)
    grad = of_value.view(over)
    of_sigma = (grad * drawn.noise.view(over)).sum(0).mul_(torch.exp(log_sigma.clamp(*bounds)))
    of_sigma -= weight.view(-1, n, 1).sum(0)
    return Heads(grad.sum(0), _within(of_sigma, log_sigma, bounds))


class Density(NamedTuple):
    """Log densities of rows, and (value - mu) / sigma."""

    log_prob: Tensor
    scaled: Tensor


def score_rows(mu: Tensor, log_sigma: Tensor, value: Tensor, bounds: tuple[float, float]) -> Density:
    """The log densities of values that are there, one or several for each row of parameters, or the other way round."""
    log_sigma = log_sigma.clamp(*bounds)
    width, least = mu.shape[1], min(mu.shape[0], value.shape[0])
    mu, log_sigma, value = (each.view(-1, least, width) for each in (mu, log_sigma, value))
    scaled = (value - mu).mul_(torch.exp(-log_sigma))
    log_prob = -(scaled.square() / 2).add_(log_sigma + HALF_LOG_2_PI).sum(-1)
    return Density(log_prob.view(-1), scaled.view(-1, width))


def score_rows_backward(
    density: Density, log_sigma: Tensor, weight: Tensor, bounds: tuple[float, float]
) -> tuple[Heads, Tensor]:
    """Gradients for the parameters, and for each value."""
    n, width = log_sigma.shape
    weighed = density.scaled * weight[:, None]
    of_sigma = (weighed * density.scaled).sub_(weight[:, None]).view(-1, n, width).sum(0)
    over = weighed.view(-1, n, width).mul_(torch.exp(-log_sigma.clamp(*bounds)))
    return Heads(over.sum(0), _within(of_sigma, log_sigma, bounds)), weighed.neg_()


def _within(grad: Tensor, log_sigma: Tensor, bounds: tuple[float, float]) -> Tensor:
    low, high = bounds
    return grad.masked_fill_((log_sigma < low) | (log_sigma > high), 0)
