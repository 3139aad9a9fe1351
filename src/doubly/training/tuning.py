"""The automatic step: one for each weight, from the size of its gradients, until samples are collected.

eta_i = SHARE / mean(grad_i^2), averaged over the burn-in with a memory of MEMORY steps. In its steady state a chain has
mean(grad_i^2) = s_i^2 + k_i, the noise of its gradient and its curvature (E[grad^2] = -E[grad'] at temperature 1). So

* noise heats like a friction of eta_i s_i^2 / 2 < SHARE / 2 would cool, which a thermostat takes up; a larger step
  would be lost to the friction that it calls for, for the way that a gradient moves a weight is eta / alpha;
* eta_i k_i < SHARE B / N or so where the noise is that of mini-batches of B of N rows: the step resolves the curvature.

Where there is little noise, as for a weight that only its prior holds, the second is not given. So eta_i is at most
REACH mean(theta_i^2), which makes eta_i k_i < REACH for a weight that is spread about 0.

A gradient may be nearly always 0 and now and then be large: that of a pixel which is on in one row of ten thousand. So
many steps may not show it, and a step that is long for what they show turns it into a blow. So mean(grad_i^2) has the
mean over all weights added, seen once in MEMORY steps. (On MNIST with SBN 200 and a learnt prior, the mean kinetic
temperature of steps 1,500 to 2,000 was 1.17 without that, and is 1.04.)

All this is in the coordinates of `centring`, in which weights and biases do not disturb each other.

Nothing moves while the first steps are measured. Once samples are collected the steps are constants, and the chain has
the law of its sampler.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from doubly.training.centring import NONE, Centre, Centring, Coordinates

SHARE = 1.0
MEMORY = 1000
REACH = 0.1
START = 0.01
"""Of the mean square of all weights, which is added to a weight's own: one that starts at 0 has to start."""
FIRST = 10
"""Steps that are measured before anything moves."""


class Tuned(NamedTuple):
    """What the automatic step is made of."""

    square: Tensor
    """The running mean of the squared gradient of each weight."""
    size: Tensor
    """The running mean of the square of each weight."""
    t: int
    """Steps measured."""
    centre: Centre
    """The centres of what the weights multiply."""

    @property
    def measured(self) -> bool:
        """Whether there is enough to move by; a burn-in that was shorter is measured on, for the chain would stand."""
        return self.t >= FIRST

    def eta(self) -> Tensor:
        """The step of each weight, in the sampler's units."""
        if not self.measured:
            return torch.zeros_like(self.square)
        unseen = self.square.mean() / MEMORY
        return torch.minimum(SHARE / (self.square + unseen), REACH * (self.size + START * self.size.mean()))

    def coordinates(self, centring: Centring) -> Coordinates:
        """Those in which the sampler moves."""
        return Coordinates(centring, self.centre.means())

    def after(self, theta: Tensor, grad: Tensor, centring: Centring = NONE) -> "Tuned":
        """With one more gradient, at these weights."""
        t = self.t + 1
        share = 1 / min(t, MEMORY)
        centre = self.centre.after(centring, grad, t)
        means = centre.means()
        theta, grad = centring.centred(theta, means), centring.gradient(grad, means)
        return Tuned(torch.lerp(self.square, grad**2, share), torch.lerp(self.size, theta**2, share), t, centre)


def untuned(theta: Tensor, centring: Centring = NONE) -> Tuned:
    """Before the first step."""
    return Tuned(torch.zeros_like(theta), torch.zeros_like(theta), 0, centring.unmeasured(theta))
