"""Sigmoid belief network layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.kernels import bernoulli, linear
from doubly.kernels.rows import constants
from doubly.layers.layer import Drawn, Layer, LayerVJP, LogOdds, Params


@dataclass(frozen=True)
class SBN(Layer):
    """Sigmoid belief network: independent binary values whose log-odds are linear in what is given.

    p(value_i = 1 | given) = sigmoid(W_i given + b_i); from width 0, the factorised Bernoulli top layer.
    """

    kind = "binary"
    is_linear = True

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"W": (self.n_out, self.n_in), "b": (self.n_out,)}

    def row_biases(self) -> tuple[str, ...]:
        return ("b",)

    def bias_of(self) -> dict[str, str]:
        return {"W": "b"}

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        return {"W": self.weights(rng, self.n_out, self.n_in), "b": self.bias(rng, mean, reference=-1.0)}

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return linear.log_prob(given, params["W"], params["b"], value)

    def log_prob_observed(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return bernoulli.observed_log_prob(self._logits(params, given), value)

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        return Drawn(*bernoulli.draw_with_log_prob(self._logits(params, given), rng, draws))

    def log_prob_vjp(self, params: Params, value: Tensor, given: Tensor, grad: bool = True) -> LayerVJP:
        given, W, b, value = constants(given, params["W"], params["b"], value)
        return self._vjp(value, linear.log_prob_vjp(given, W, b, value, grad))

    def prepare(self, params: Params, given: Tensor) -> Tensor:
        return linear.rows_of_log_odds(*constants(given, params["W"], params["b"]))

    def draw_vjp(
        self,
        params: Params,
        given: Tensor,
        rng: torch.Generator,
        draws: int | None = None,
        grad: bool = True,
        prepared: Tensor | None = None,
    ) -> LayerVJP:
        given, W, b = constants(given, params["W"], params["b"])
        value, found = linear.draw_vjp(given, W, b, rng, draws, grad, logits=prepared)
        return self._vjp(value, found)

    def _vjp(self, value: Tensor, found: linear.Linear) -> LayerVJP:
        return LayerVJP(value, found.log_prob, lambda weight, into: found.vjp(weight, into["W"], into["b"]))

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        found: Tensor = torch.broadcast_tensors(torch.sigmoid(self._logits(params, given)), value)[0]
        return found

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return bernoulli.cells(self._logits(params, given), value)

    def linear_log_odds(self, params: Params) -> LogOdds:
        return LogOdds(params["b"], params["W"])

    def _logits(self, params: Params, given: Tensor) -> Tensor:
        return linear.affine(given, params["W"], params["b"])
