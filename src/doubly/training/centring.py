"""Coordinates in which the weights of a layer multiply centred values: their gradients and that of the bias come apart.

W z + b = W (z - m) + c with c = b + W m. In (W, c) the same layer has the gradients g_W - g_b m' and g_b. Latents are 0
or 1, seldom near 0 in the mean. So in (W, b) a step of any weight also moves the level that the bias has found, and no
choice of a step for each weight mends that. Here m is what makes the two gradients uncorrelated,

m_j = sum_i E[g_W,ij g_b,i] / sum_i E[g_b,i^2],

a mean of z_j over rows, weighted by how much they have yet to teach. The map is linear, and its determinant is 1: the
posterior is the same in both coordinates, and a chain that moves in these has the law of its sampler, for any m that
stands still. So m is measured while the chain burns in, with a memory of MEMORY steps. (Centring is known from
Boltzmann machines: Montavon & Mueller 2012; Cho, Raiko & Ilin 2013.)
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubly.layers.chain import Chain
from doubly.samplers.sampler import Eta, Sampler

MEMORY = 200


class Biased(NamedTuple):
    """A matrix of weights (n_out, n_in) and the bias that is added to what it gives: where they stand in theta."""

    weight: slice
    bias: slice
    n_in: int

    def matrix(self, theta: Tensor) -> Tensor:
        """The weights among all."""
        return theta[self.weight].view(-1, self.n_in)


class Centre(NamedTuple):
    """What the centres are made of: running means, of all matrices one after the other."""

    along: Tensor
    """sum_i g_W,ij g_b,i, for each value that a matrix multiplies."""
    size: Tensor
    """sum_i g_b,i^2, in the same order."""

    def means(self) -> Tensor:
        """m, which is 0 as long as nothing was measured."""
        return torch.where(self.size > 0, self.along / self.size, 0)

    def after(self, centring: "Centring", grad: Tensor, t: int) -> "Centre":
        """With the gradient of step t, counted from 1, in the coordinates (W, b)."""
        share = 1 / min(t, MEMORY)
        along, size = [], []
        for each in centring.biased:
            bias = grad[each.bias]
            along.append(bias @ each.matrix(grad))
            size.append((bias @ bias).expand(each.n_in))
        if not along:
            return self
        return Centre(torch.lerp(self.along, torch.cat(along), share), torch.lerp(self.size, torch.cat(size), share))


class Centring(NamedTuple):
    """The matrices of a chain that have a bias, and the change of coordinates."""

    biased: tuple[Biased, ...]

    @property
    def width(self) -> int:
        """How many values have a centre."""
        return sum(each.n_in for each in self.biased)

    def unmeasured(self, theta: Tensor) -> Centre:
        """Before the first step."""
        return Centre(theta.new_zeros(self.width), theta.new_zeros(self.width))

    def centred(self, theta: Tensor, means: Tensor) -> Tensor:
        """(W, c) from (W, b)."""
        return self._shifted(theta, means, 1)

    def plain(self, theta: Tensor, means: Tensor) -> Tensor:
        """(W, b) from (W, c)."""
        return self._shifted(theta, means, -1)

    def _shifted(self, theta: Tensor, means: Tensor, sign: int) -> Tensor:
        if not self.biased:
            return theta
        found = theta.clone()
        for each, mean in zip(self.biased, self._split(means), strict=True):
            # two matrices may share a bias; neither is changed
            found[each.bias].addmv_(each.matrix(theta), mean, alpha=sign)
        return found

    def gradient(self, grad: Tensor, means: Tensor) -> Tensor:
        """That with respect to (W, c), from that with respect to (W, b)."""
        if not self.biased:
            return grad
        found = grad.clone()
        for each, mean in zip(self.biased, self._split(means), strict=True):
            each.matrix(found).addr_(grad[each.bias], mean, alpha=-1)
        return found

    def _split(self, means: Tensor) -> tuple[Tensor, ...]:
        return torch.split(means, [each.n_in for each in self.biased])


NONE = Centring(())


class Coordinates(NamedTuple):
    """Where a sampler moves; outside of its steps, weights are (W, b)."""

    centring: Centring
    means: Tensor

    def ask(self, sampler: Sampler, state: Any, eta: Eta, rng: torch.Generator) -> Any:
        """Where the sampler wants the gradient."""
        if type(sampler).ask is Sampler.ask:  # it is there
            return state
        state = state._replace(theta=self.centring.centred(state.theta, self.means))
        state = sampler.ask(state, eta, rng)
        return state._replace(theta=self.centring.plain(state.theta, self.means))

    def tell(self, sampler: Sampler, state: Any, grad: Tensor, eta: Eta, rng: torch.Generator) -> Any:
        """After the gradient, which is with respect to (W, b)."""
        state = state._replace(theta=self.centring.centred(state.theta, self.means))
        state = sampler.tell(state, self.centring.gradient(grad, self.means), eta, rng)
        return state._replace(theta=self.centring.plain(state.theta, self.means))


PLAIN = Coordinates(NONE, torch.empty(0))
"""(W, b) themselves."""


@functools.lru_cache(maxsize=64)
def centring(chain: Chain) -> Centring:
    """Of a chain, by what its layers say of their biases.

    >>> centring(Chain.build("sbn", data=4, hidden=(3,))).biased
    (Biased(weight=slice(0, 12, None), bias=slice(12, 16, None), n_in=3),)
    """
    found, start = [], 0
    for layer in chain.layers:
        ends, shapes = {}, layer.shapes()
        for name, shape in shapes.items():
            size = torch.Size(shape).numel()
            ends[name], start = slice(start, start + size), start + size
        for weight, bias in layer.bias_of().items():
            has = weight in shapes and bias in shapes  # a subclass may have other parameters
            if has and shapes[weight] == (*shapes[bias], layer.n_in) and torch.Size(shapes[weight]).numel():
                found.append(Biased(ends[weight], ends[bias], shapes[weight][1]))
    return Centring(tuple(found))
