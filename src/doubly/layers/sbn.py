"""Sigmoid belief network layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.kernels import bernoulli, choose, linear
from doubly.layers.layer import Drawn, Layer, Params, Tracked


@dataclass(frozen=True)
class SBN(Layer):
    """Sigmoid belief network: independent binary values whose log-odds are linear in what is given.

    p(value_i = 1 | given) = sigmoid(W_i given + b_i); from width 0, the factorised Bernoulli top layer.
    """

    kind = "binary"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"W": (self.n_out, self.n_in), "b": (self.n_out,)}

    def row_biases(self) -> tuple[str, ...]:
        return ("b",)

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        return {"W": self.weights(rng, self.n_out, self.n_in), "b": self.bias(rng, mean, reference=-1.0)}

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return linear.log_prob(given, params["W"], params["b"], value)

    def known(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return bernoulli.known_log_prob(self._logits(params, given), value)

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        return Drawn(*bernoulli.draw_with_log_prob(self._logits(params, given), rng, draws))

    def track(self, params: Params, value: Tensor, given: Tensor, back: bool = True) -> Tracked:
        W, b = params["W"], params["b"]
        if not choose.fused(given, W, b, value):
            return super().track(params, value, given, back)
        return self._tracked(value, linear.track(given.detach(), W.detach(), b.detach(), value.detach(), back))

    def track_draw(
        self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None, back: bool = True
    ) -> Tracked:
        W, b = params["W"], params["b"]
        if not choose.fused(given, W, b):
            return super().track_draw(params, given, rng, draws, back)
        value, found = linear.track_draw(given.detach(), W.detach(), b.detach(), rng, draws, back)
        return self._tracked(value, found)

    def _tracked(self, value: Tensor, found: linear.Linear) -> Tracked:
        return Tracked(value, found.log_prob, lambda weight, into: found.pull(weight, into["W"], into["b"]))

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return torch.broadcast_tensors(torch.sigmoid(self._logits(params, given)), value)[0]

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return bernoulli.cells(self._logits(params, given), value)

    def _logits(self, params: Params, given: Tensor) -> Tensor:
        return linear.affine(given, params["W"], params["b"])
