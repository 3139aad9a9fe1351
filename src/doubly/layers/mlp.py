"""Layers whose parameters are computed by a multilayer perceptron: what the paper calls VAE layers."""

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import bernoulli, gaussian, linear
from doubly.layers.layer import Drawn, Layer, Params

ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu, "softplus": F.softplus}
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
        activation = ACTIVATIONS[self.activation]
        for i in range(len(self._sizes()) - 1):
            given = activation(F.linear(given, params[f"W{i}"], params[f"b{i}"]))
        return given

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

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        found: Tensor = torch.broadcast_tensors(torch.sigmoid(self._heads(params, given)[0]), value)[0]
        return found

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return bernoulli.cells(self._heads(params, given)[0], value)


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

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        found: Tensor = torch.broadcast_tensors(self._heads(params, given)[0], value)[0]
        return found

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return gaussian.cells(*self._parameters(params, given), value)

    def _parameters(self, params: Params, given: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_sigma = self._heads(params, given)
        return mu, log_sigma.clamp(*LOG_SIGMA)


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
