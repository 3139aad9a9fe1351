"""Many small data sets in one run: a chain in which every data set has weights of its own.

A step on a model of a dozen weights costs what PyTorch's calls cost, whatever their size. So R data sets of equal size
are put below each other, and R copies of the weights beside each other: row b of data set r is row r B + b, and a layer
computes its densities with the weights of copy r. Prior, samplers, optimiser, importance weights and memory treat
weights and rows one by one anyway. Nothing of theirs is written again here, nor are the layers' formulas: `Stack` maps
the layer's own functions over the copies (torch.func.vmap, which takes the plain kernels only). What a single run has
and this has not are the layers' fused kernels, which tests compare with the plain ones.
"""

import dataclasses
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from doubly.kernels import bernoulli, choose, gaussian
from doubly.latents import Estimator, Pair
from doubly.latents.batch import Memory
from doubly.latents.gibbs import Gibbs
from doubly.latents.moves import Move, Moved, choose_move
from doubly.latents.persistent import Persistent
from doubly.layers import Chain, Drawn, Layer, Values
from doubly.layers.layer import Params
from doubly.layers.mlp import Gaussian
from doubly.training.method import Method


@dataclass(frozen=True)
class Stack(Layer):
    """Copies of a layer, each for the rows of its own data set."""

    inner: Layer | None = None
    copies: int = 1

    @property
    def kind(self) -> Any:  # type: ignore[override]
        return self.layer.kind

    @property
    def reparameterised(self) -> bool:  # type: ignore[override]
        return self.layer.reparameterised

    @property
    def layer(self) -> Layer:
        assert self.inner is not None
        return self.inner

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: (self.copies, math.prod(shape)) for name, shape in self.layer.shapes().items()}

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        drawn = [self.layer.init(rng, mean) for _ in range(self.copies)]
        return {name: torch.stack([each[name].reshape(-1) for each in drawn]) for name in self.shapes()}

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return self._mapped(self.layer.log_prob, params, value, given)

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        return self._draw(params, given, rng, draws, pathwise=False)

    def draw_pathwise(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        return self._draw(params, given, rng, draws, pathwise=True)

    def _draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None, pathwise: bool) -> Drawn:
        if isinstance(self.layer, Gaussian):
            mu, log_sigma = self._mapped(self.layer._parameters, params, given)
            from_ = (mu, log_sigma) if pathwise else (mu.detach(), log_sigma.detach())
            value = gaussian.draw(*from_, rng, draws)
            return Drawn(value, gaussian.log_prob(mu, log_sigma, value))
        logits = self._mapped(self.layer._logits, params, given)  # type: ignore[attr-defined]
        return Drawn(*bernoulli.draw_with_log_prob(logits, rng, draws))

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return self._mapped(self.layer.mean, params, value, given)

    def _mapped(self, function: Any, params: Params, *tensors: Tensor) -> Any:
        """The layer's function of its parameters and of tensors (…, R B, n), as (…, R B, …)."""
        shapes = self.layer.shapes()
        params = {name: value.reshape(self.copies, *shapes[name]) for name, value in params.items()}
        split = [tensor.unflatten(-2, (self.copies, -1)) if tensor.dim() > 1 else tensor for tensor in tensors]
        axes = [tensor.dim() - 3 if tensor.dim() > 1 else None for tensor in split]

        def joined(found: Tensor, trailing: int) -> Tensor:
            return found.movedim(0, -2 - trailing).flatten(-2 - trailing, -1 - trailing)

        if not params:  # nothing to map over
            return function({}, *tensors)
        with _plain():
            found = vmap(function, in_dims=(0, *axes))(params, *split)
        if isinstance(found, tuple):
            return tuple(joined(each, 1) for each in found)
        return joined(found, 1 if function != self.layer.log_prob else 0)


@contextmanager
def _plain() -> Iterator[None]:
    """Plain kernels, without the checkpoints of NADE's, which vmap does not know; they save memory only."""
    wish, wants_grad = os.environ.get(choose.VARIABLE), choose.wants_grad
    os.environ[choose.VARIABLE] = "0"
    choose.wants_grad = lambda *tensors: False
    try:
        yield
    finally:
        choose.wants_grad = wants_grad
        del os.environ[choose.VARIABLE]
        if wish is not None:
            os.environ[choose.VARIABLE] = wish


def stack(chain: Chain, copies: int) -> Chain:
    """A chain of as many copies."""
    layers = tuple(Stack(layer.n_in, layer.n_out, inner=layer, copies=copies) for layer in chain.layers)
    return dataclasses.replace(chain, layers=layers)


def join(stacked: Chain, thetas: Tensor) -> Tensor:
    """Weights (R, size) as those of the stacked chain."""
    sizes = [shape[1] for layer in stacked.layers for shape in layer.shapes().values()]
    return torch.cat([part.reshape(-1) for part in thetas.split(sizes, 1)])


def split(stacked: Chain, theta: Tensor) -> Tensor:
    """Weights of the stacked chain as (R, size), each row the weights of one chain."""
    return torch.cat([value for params in stacked.unflatten(theta) for value in params.values()], 1)


@dataclass(frozen=True)
class EachMove(Move):
    """The move that serves the chain, made for each data set in turn."""

    move: Move
    chain: Chain

    def serves(self, model: Chain) -> bool:
        return True

    def __call__(
        self, pair: Pair, x: Tensor, seen: Tensor, latents: Values, tuned: Memory, rng: torch.Generator, tuning: bool
    ) -> Moved:
        thetas = split(pair.model, pair.theta)
        each = zip(
            thetas,
            x.unflatten(-2, (len(thetas), -1)).unbind(-3),
            zip(*(z.unflatten(-2, (len(thetas), -1)).unbind(-3) for z in latents), strict=True),
            strict=True,
        )
        found = [
            self.move(pair._replace(model=self.chain, theta=theta), rows, rows, z, {}, rng, tuning).latents
            for theta, rows, z in each
        ]
        return Moved(tuple(torch.cat(level, -2) for level in zip(*found, strict=True)), tuned)


@dataclass(frozen=True)
class StackedPersistent(Persistent):
    """Remembered states, of which a Gibbs sweep moves those of each data set in turn; other moves take all at once."""

    chain: Chain | None = None

    def _move(self, model: Chain) -> Move:
        assert self.chain is not None
        move = choose_move(self.moves, self.chain)
        return move if type(move).__name__ != "GibbsMove" else EachMove(move, self.chain)


def stacked(method: Method, copies: int) -> Method:
    """The same way of learning for so many data sets; n_data is that of all of them, so the step is as much larger."""
    model, proposal = stack(method.model, copies), stack(method.proposal, copies)
    estimator: Estimator = method.estimator
    if isinstance(estimator, Gibbs):
        estimator = estimator._states
    if isinstance(estimator, Persistent):
        fields = {each.name: getattr(estimator, each.name) for each in dataclasses.fields(estimator)}
        estimator = StackedPersistent(**fields, chain=method.model)
    # a sampler that takes no notice of the number of rows has its step as it is
    factor = method.sampler.eta(1.0, 1) / method.sampler.eta(1.0, copies)
    assert not isinstance(method.step, str)
    return dataclasses.replace(method, model=model, proposal=proposal, estimator=estimator, step=method.step * factor)
