"""The standard normal top layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import gaussian
from doubly.kernels.rows import broadcast, constants
from doubly.layers.layer import Drawn, Layer, LayerVJP, LogProbPathwiseVJP, Params, Paths


@dataclass(frozen=True)
class Normal(Layer):
    """Standard normal: independent N(0, 1) values, without parameters, for the top of a model."""

    kind = "real"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_in:
            raise UserError(f"a normal layer takes nothing, got {self.n_in} values: it can only be the top of a model")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        return {}

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return _with_axes(given.shape[:-1], gaussian.standard_log_prob(value))

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        zeros = given.new_zeros(*given.shape[:-1], self.n_out)
        value = gaussian.draw(zeros, zeros, rng, draws)
        return Drawn(value, self.log_prob(params, value, given))

    def log_prob_vjp(self, params: Params, value: Tensor, given: Tensor, grad: bool = True) -> LayerVJP:
        return LayerVJP(value, self.log_prob(params, *constants(value, given)), lambda weight, into: None)

    def draw_vjp(
        self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None, grad: bool = True
    ) -> LayerVJP:
        return LayerVJP(*self.draw(params, given, rng, draws), lambda weight, into: None)

    def log_prob_pathwise_vjp(
        self, params: Params, value: Tensor, given: Tensor, to_value: bool = True
    ) -> LogProbPathwiseVJP:
        value, given = constants(value, given)
        log_prob = self.log_prob(params, value, given)

        def vjp(weight: Tensor, into: Params | None) -> Paths:
            of_value = (weight[..., None] * value).neg_().sum_to_size(value.shape)
            return Paths(of_value, torch.zeros_like(given))

        return LogProbPathwiseVJP(log_prob, vjp)

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return _with_axes((*given.shape[:-1], 1), torch.zeros_like(value))

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        zero = value.new_zeros(())
        return _with_axes((*given.shape[:-1], 1), gaussian.cells(zero, zero, value))


def _with_axes(axes: tuple[int, ...], found: Tensor) -> Tensor:
    """What was found, with the batch axes of a given that has no values but may have rows."""
    return found.expand(broadcast(found.shape, axes))
