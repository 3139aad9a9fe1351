"""The laws of a prior: its gradient is that of its log density, and so is the density of a scale that is learnt."""

import dataclasses
import math

import torch

from doubly.analysis.laws.law import Law, LeftOut, expect, expect_close
from doubly.samplers.learnt import LearntScale
from doubly.samplers.priors import PRIORS, Prior

SIZES = (1e-3, 0.1, 1.0, 30.0)
"""Of the weights: from the middle of a prior to its far tails."""


def cases(spec: str) -> dict[str, Prior]:
    return {"": PRIORS.make(spec)}


def shapes_and_types(prior: Prior) -> None:
    """log_prob is a scalar and grad of theta's shape, both of theta's type."""
    for theta in (_theta(1.0), _theta(1.0).float()):
        log_prob, grad = prior.log_prob(theta), prior.grad(theta)
        expect(log_prob.shape == (), f"log_prob: expected a scalar, got shape {tuple(log_prob.shape)}")
        expect(grad.shape == theta.shape, f"grad: expected shape {tuple(theta.shape)}, got {tuple(grad.shape)}")
        for what, got in (("log_prob", log_prob), ("grad", grad)):
            expect(got.dtype == theta.dtype, f"{what} of {theta.dtype}: expected that type, got {got.dtype}")


def grad_is_the_gradient(prior: Prior) -> None:
    """`grad` is what finite differences of `log_prob` find, weight by weight."""
    for size in SIZES:
        theta = _theta(size)
        grad = prior.grad(theta.clone())
        for i in range(len(theta)):
            step = 1e-5 * abs(float(theta[i]))  # so small that no weight passes a kink at 0
            above, below = theta.clone(), theta.clone()
            above[i], below[i] = theta[i] + step, theta[i] - step
            expected = (prior.log_prob(above) - prior.log_prob(below)) / (2 * step)
            noise = 1e-14 * (1 + abs(float(prior.log_prob(theta)))) / step
            expect_close(f"grad at a weight of {float(theta[i]):.3g}", grad[i], expected, 1e-5, 1e-6 + noise)


def added_is_grad_added(prior: Prior) -> None:
    """`added` is the gradient it is handed plus a share of the prior's; what it is handed stays as it was."""
    theta, grad = _theta(1.0), torch.arange(20, dtype=torch.float64)
    handed = theta.clone(), grad.clone()
    expect_close("added", prior.added(theta, grad, 0.3), grad + 0.3 * prior.grad(theta), 1e-9, 1e-12)
    same = torch.equal(theta, handed[0]) and torch.equal(grad, handed[1])
    expect(same, "expected theta and the gradient to stay as they were, got them changed")


def scale_is_drawn_from_log_prob(prior: Prior) -> None:
    """`by_log_scale` is `log_prob` as a function of the logarithm of the scale, concave, with its derivatives."""
    if not isinstance(prior, LearntScale):
        raise LeftOut("it is no LearntScale")
    theta, step = _theta(1.0), 1e-4
    density = prior.by_log_scale(theta)
    for at in (-2.0, 0.0, 2.0):
        scales = [math.exp(at + side * step) for side in (-1, 0, 1)]
        below, here, above = (dataclasses.replace(prior, scale=scale).log_prob(theta) for scale in scales)
        value, first, second = (torch.tensor(each, dtype=torch.float64) for each in density(at))
        zero = dataclasses.replace(prior, scale=1.0).log_prob(theta)
        expect_close(f"by_log_scale at {at:g}", value - density(0.0).value, here - zero, 1e-6, 1e-6)
        expect_close(f"first derivative at {at:g}", first, (above - below) / (2 * step), 1e-4, 1e-4)
        differences = (density(at + step).first - density(at - step).first) / (2 * step)
        expect_close(f"second derivative at {at:g}", second, torch.tensor(differences).double(), 1e-4, 1e-4)
        expect(float(second) <= 0, f"by_log_scale at {at:g}: expected it to be concave, got {float(second):.3g}")


LAWS: dict[str, Law] = {
    "shapes and types are theta's": shapes_and_types,
    "grad is the gradient of log_prob": grad_is_the_gradient,
    "added is grad, added": added_is_grad_added,
    "the law of a learnt scale is log_prob": scale_is_drawn_from_log_prob,
}


def _theta(size: float) -> torch.Tensor:
    return size * torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
