"""Layers whose parameters are computed by a multilayer perceptron: what the paper calls VAE layers."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import bernoulli, gaussian, linear, perceptron
from doubly.kernels.perceptron import ACTIVATIONS, Features, Weights
from doubly.kernels.rows import as_rows, broadcast, constants
from doubly.layers.layer import (
    Drawn,
    DrawPathwiseVJP,
    Layer,
    LayerVJP,
    LogProbPathwiseVJP,
    Params,
    Paths,
)

# log sigma is kept within these: exp stays finite, and the density neither explodes nor vanishes
LOG_SIGMA = (-8.0, 8.0)


@dataclass(frozen=True)
class Perceptron(Layer):
    """Deterministic layers of these widths; what stands on them is said by a subclass."""

    widths: str | int | tuple[int, ...] = "200-200"
    """Widths of the deterministic layers, from the given upward, as in 200-200; `none` is a linear layer."""
    activation: str = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "widths", _widths(self.widths))
        if self.activation not in ACTIVATIONS:
            raise UserError(f"no activation is called {self.activation!r}; there are: {', '.join(ACTIVATIONS)}")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for i, (n_in, n_out) in enumerate(pairwise(self._sizes())):
            found |= {f"W{i}": (n_out, n_in), f"b{i}": (n_out,)}
        return found

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        return {
            name: self.weights(rng, *shape) if len(shape) == 2 else torch.zeros(shape, device=rng.device)
            for name, shape in self.shapes().items()
        }

    def _features(self, params: Params, given: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.activation].of
        for i in range(len(self._sizes()) - 1):
            given = activation(F.linear(given, params[f"W{i}"], params[f"b{i}"]))
        return given

    def _features_of_rows(self, params: Params, rows: Tensor) -> Features:
        """The same of a matrix, whose gradient `_sent_back` takes further down."""
        return perceptron.forward(rows, self._deterministic(params), self.activation)

    def _sent_back(
        self, found: Features, grad: Tensor, params: Params, into: Params | None, to_given: bool
    ) -> Tensor | None:
        grads = None if into is None else self._deterministic(into)
        return perceptron.backward(found, grad, self._deterministic(params), self.activation, grads, to_given)

    def _deterministic(self, params: Params) -> list[Weights]:
        return [Weights(params[f"W{i}"], params[f"b{i}"]) for i in range(len(self._sizes()) - 1)]

    def _sizes(self) -> list[int]:
        assert isinstance(self.widths, tuple)
        return [self.n_in, *self.widths]


@dataclass(frozen=True)
class PerceptronWithHeads(Perceptron):
    """Deterministic layers, then linear heads of n_out values each."""

    heads: ClassVar[tuple[str, ...]]
    """Suffixes of the heads' parameters."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        found = super().shapes()
        for head in self.heads:
            found |= {f"W_{head}": (self.n_out, self._sizes()[-1]), f"b_{head}": (self.n_out,)}
        return found

    def row_biases(self) -> tuple[str, ...]:
        return tuple(f"b_{head}" for head in self.heads)

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        return super().init(rng, mean) | {f"b_{self.heads[0]}": self._output_bias(rng, mean)}

    @abstractmethod
    def _output_bias(self, rng: torch.Generator, mean: Tensor | None) -> Tensor:
        """What the first head's bias starts from."""

    def _heads(self, params: Params, given: Tensor) -> list[Tensor]:
        features = self._features(params, given)
        return [linear.affine(features, params[f"W_{head}"], params[f"b_{head}"]) for head in self.heads]


@dataclass(frozen=True)
class MLP(PerceptronWithHeads):
    """Independent binary values whose log-odds a multilayer perceptron computes; with one layer, a DSBN.

    p(value_i = 1 | given) = sigmoid(W_i f(given) + b_i)
    """

    kind = "binary"
    heads = ("logits",)

    def _output_bias(self, rng: torch.Generator, mean: Tensor | None) -> Tensor:
        return self.bias(rng, mean, reference=0.0)

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        features = self._features(params, given)
        return linear.log_prob(features, params["W_logits"], params["b_logits"], value)

    def log_prob_observed(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return bernoulli.observed_log_prob(self._heads(params, given)[0], value)

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        return Drawn(*bernoulli.draw_with_log_prob(self._heads(params, given)[0], rng, draws))

    def log_prob_vjp(self, params: Params, value: Tensor, given: Tensor, grad: bool = True) -> LayerVJP:
        found = self._density(params, value, given, grad)
        return LayerVJP(value, found.linear.log_prob, lambda weight, into: _nothing(found.vjp(weight, into, False)))

    def draw_vjp(
        self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None, grad: bool = True
    ) -> LayerVJP:
        params = _constant(params)
        features = self._features_of_rows(params, _rows(given.detach(), given.shape))
        above = features.rows.view(*given.shape[:-1], features.rows.shape[1])
        value, found = linear.draw_vjp(above, params["W_logits"], params["b_logits"], rng, draws, grad, binary=False)
        density = _Density(self, params, features, found)
        return LayerVJP(value, found.log_prob, lambda weight, into: _nothing(density.vjp(weight, into, False)))

    def log_prob_pathwise_vjp(
        self, params: Params, value: Tensor, given: Tensor, to_value: bool = True
    ) -> LogProbPathwiseVJP:
        if to_value:  # of 0 or 1, which nobody asks for
            return super().log_prob_pathwise_vjp(params, value, given, to_value)
        found = self._density(params, value, given, grad=True)

        def vjp(weight: Tensor, into: Params | None) -> Paths:
            of_given = found.vjp(weight, into, True)
            assert of_given is not None
            return Paths(None, _as_given(of_given, given, found.linear.log_prob.shape))

        return LogProbPathwiseVJP(found.linear.log_prob, vjp)

    def _density(self, params: Params, value: Tensor, given: Tensor, grad: bool) -> "_Density":
        params, (value, given) = _constant(params), constants(value, given)
        shape = broadcast((*given.shape[:-1], self.n_out), value.shape)
        features = self._features_of_rows(params, _rows(given, shape))
        axes = shape[:-1] if features.rows.shape[0] == math.prod(shape[:-1]) else given.shape[:-1]
        above = features.rows.view(*axes, features.rows.shape[1])
        found = linear.log_prob_vjp(above, params["W_logits"], params["b_logits"], value, grad, binary=False)
        return _Density(self, params, features, found)

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        found: Tensor = torch.broadcast_tensors(torch.sigmoid(self._heads(params, given)[0]), value)[0]
        return found

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return bernoulli.cells(self._heads(params, given)[0], value)


class _Density(NamedTuple):
    """The density of binary values, and the features that their log-odds are linear in."""

    layer: MLP
    params: Params
    features: Features
    linear: linear.Linear

    def vjp(self, weight: Tensor, into: Params | None, to_given: bool) -> Tensor | None:
        """The gradient with respect to the weights, and to the rows that were given, where these are wanted."""
        if into is not None:
            self.linear.vjp(weight, into["W_logits"], into["b_logits"])
        if not (to_given or self.features.outputs):
            return None
        sent = self.linear.to_given(weight, self.params["W_logits"])
        return self.layer._sent_back(self.features, sent, self.params, into, to_given)


@dataclass(frozen=True)
class Gaussian(PerceptronWithHeads):
    """Independent normal values whose means and log standard deviations a multilayer perceptron computes.

    value_i | given ~ N(mu_i, sigma_i^2), mu = W_mu f(given) + b_mu, log sigma = W_sigma f(given) + b_sigma
    """

    kind = "real"
    reparameterised = True
    heads = ("mu", "sigma")

    def _output_bias(self, rng: torch.Generator, mean: Tensor | None) -> Tensor:
        return torch.zeros(self.n_out, device=rng.device) if mean is None else mean

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return gaussian.log_prob(*self._parameters(params, given), value)

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        mu, log_sigma = self._parameters(params, given)
        value = gaussian.draw(mu.detach(), log_sigma.detach(), rng, draws)
        return Drawn(value, gaussian.log_prob(mu, log_sigma, value))

    def draw_pathwise(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        mu, log_sigma = self._parameters(params, given)
        value = gaussian.draw(mu, log_sigma, rng, draws)
        return Drawn(value, gaussian.log_prob(mu, log_sigma, value))

    def log_prob_vjp(self, params: Params, value: Tensor, given: Tensor, grad: bool = True) -> LayerVJP:
        found = self.log_prob_pathwise_vjp(params, value, given)
        return LayerVJP(value, found.log_prob, lambda weight, into: _nothing(found.vjp(weight, into)))

    def prepare(self, params: Params, given: Tensor) -> "_Heads":
        (given,) = constants(given)
        return self._heads_of_rows(_constant(params), _rows(given, given.shape))

    def draw_vjp(
        self,
        params: Params,
        given: Tensor,
        rng: torch.Generator,
        draws: int | None = None,
        grad: bool = True,
        prepared: "_Heads | None" = None,
    ) -> LayerVJP:
        params, (given,) = _constant(params), constants(given)
        features, mu, log_sigma = prepared or self.prepare(params, given)
        value, log_prob, noise = gaussian.draw_rows(mu, log_sigma, rng, draws or 1, LOG_SIGMA)
        axes = (*(() if draws is None else (draws,)), *given.shape[:-1])

        def vjp(weight: Tensor, into: Params) -> None:
            density = gaussian.Density(log_prob, noise)
            heads, _ = gaussian.score_rows_backward(density, log_sigma, weight.reshape(-1), LOG_SIGMA)
            self._heads_sent_back(features, heads, params, into, to_given=False)

        return LayerVJP(value.view(*axes, self.n_out), log_prob.view(axes), vjp)

    def log_prob_pathwise_vjp(
        self, params: Params, value: Tensor, given: Tensor, to_value: bool = True
    ) -> LogProbPathwiseVJP:
        params, (value, given) = _constant(params), constants(value, given)
        shape = broadcast((*given.shape[:-1], self.n_out), value.shape)
        features, mu, log_sigma = self._heads_of_rows(params, _rows(given, shape))
        density = gaussian.score_rows(mu, log_sigma, as_rows(value, shape), LOG_SIGMA)

        def vjp(weight: Tensor, into: Params | None) -> Paths:
            heads, of_value = gaussian.score_rows_backward(density, log_sigma, weight.reshape(-1), LOG_SIGMA)
            sent = self._heads_sent_back(features, heads, params, into, to_given=True)
            assert sent is not None
            return Paths(of_value.view(shape).sum_to_size(value.shape), _as_given(sent, given, shape[:-1]))

        return LogProbPathwiseVJP(density.log_prob.view(shape[:-1]), vjp)

    def draw_pathwise_vjp(
        self,
        params: Params,
        given: Tensor,
        rng: torch.Generator,
        draws: int | None = None,
        prepared: "_Heads | None" = None,
    ) -> DrawPathwiseVJP:
        params, (given,) = _constant(params), constants(given)
        features, mu, log_sigma = prepared or self.prepare(params, given)
        drawn = gaussian.draw_rows(mu, log_sigma, rng, draws or 1, LOG_SIGMA)
        axes = (*(() if draws is None else (draws,)), *given.shape[:-1])

        def vjp(weight: Tensor, of_value: Tensor, into: Params, to_given: bool) -> Tensor | None:
            sent = of_value.reshape(-1, self.n_out)
            heads = gaussian.draw_rows_backward(drawn, log_sigma, weight.reshape(-1), sent, LOG_SIGMA)
            found = self._heads_sent_back(features, heads, params, into, to_given)
            return None if found is None else found.view(given.shape)

        return DrawPathwiseVJP(drawn.value.view(*axes, self.n_out), drawn.log_prob.view(axes), vjp)

    def _heads_of_rows(self, params: Params, rows: Tensor) -> "_Heads":
        features = self._features_of_rows(params, rows)
        biases, matrices = ([params[f"{kind}_{head}"] for head in self.heads] for kind in "bW")
        mu, log_sigma = (
            torch.addmm(bias, features.rows, matrix.transpose(0, 1))
            for bias, matrix in zip(biases, matrices, strict=True)
        )
        return _Heads(features, mu, log_sigma)

    def _heads_sent_back(
        self, features: Features, grads: gaussian.Heads, params: Params, into: Params | None, to_given: bool
    ) -> Tensor | None:
        if into is not None:
            for head, grad in zip(self.heads, grads, strict=True):
                torch.mm(grad.transpose(0, 1), features.rows, out=into[f"W_{head}"])
                torch.sum(grad, 0, out=into[f"b_{head}"])
        if not (to_given or features.outputs):
            return None
        sent = torch.mm(grads.mu, params["W_mu"]).addmm_(grads.log_sigma, params["W_sigma"])
        return self._sent_back(features, sent, params, into, to_given)

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        found: Tensor = torch.broadcast_tensors(self._heads(params, given)[0], value)[0]
        return found

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return gaussian.cells(*self._parameters(params, given), value)

    def _parameters(self, params: Params, given: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_sigma = self._heads(params, given)
        return mu, log_sigma.clamp(*LOG_SIGMA)


class _Heads(NamedTuple):
    """Means and log standard deviations of rows, not yet within their bounds, and the features that they stand on."""

    features: Features
    mu: Tensor
    log_sigma: Tensor


def _constant(params: Params) -> Params:
    return dict(zip(params, constants(*params.values()), strict=True))


def _rows(given: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What is given as a matrix, whose rows wrap around those of the shape."""
    if not given.shape[-1]:
        return given.new_empty(math.prod(given.shape[:-1]), 0)
    return as_rows(given, (*shape[:-1], given.shape[-1]))


def _as_given(rows: Tensor, given: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A gradient by rows in the shape of what was given, whose rows may have been written out for all the axes."""
    if rows.shape[0] == math.prod(given.shape[:-1]):
        return rows.view(given.shape)
    return rows.view(*axes, given.shape[-1]).sum_to_size(given.shape)


def _nothing(found: object) -> None:
    """Where a gradient that comes along is not wanted."""


def _widths(given: str | int | tuple[int, ...]) -> tuple[int, ...]:
    """Widths however they were written.

    >>> _widths("200-100"), _widths(50), _widths("none")
    ((200, 100), (50,), ())
    """
    if isinstance(given, str):
        parts = [] if given in ("none", "") else given.split("-")
        if not all(part.isdigit() for part in parts):
            raise UserError(f"widths are written as in 200-200, or none; got {given!r}")
        given = tuple(int(part) for part in parts)
    widths = (given,) if isinstance(given, int) else tuple(given)
    if any(width < 1 for width in widths):
        raise UserError(f"every deterministic layer needs at least one unit, got widths {widths}")
    return widths
