"""Conditional neural autoregressive distribution estimator."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import nade
from doubly.layers.autoregressive import Autoregressive
from doubly.layers.layer import Drawn, Params


@dataclass(frozen=True)
class NADE(Autoregressive):
    """Conditional NADE: binary values, each predicted by a hidden layer that has seen the given and those before.

    p(value_i = 1 | value_<i, given) = sigmoid(V_i sigmoid(W_{:,<i} value_<i + U given + a) + R_i given + b_i)

    From width 0, plain NADE. W is stored by its columns, without the last, which nothing comes after.
    """

    width: int = 0
    """Units of the hidden layer; 0 takes min(n_in, n_out), at the top n_out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 0:
            raise UserError(f"the width of a nade layer must not be negative, got {self.width}")
        if self.width == 0:
            object.__setattr__(self, "width", min(self.n_in, self.n_out) if self.n_in else self.n_out)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "V": (self.n_out, self.width),
            "W": (self.n_out - 1, self.width),
            "U": (self.width, self.n_in),
            "R": (self.n_out, self.n_in),
            "a": (self.width,),
            "b": (self.n_out,),
        }

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        return {
            "V": self.weights(rng, self.n_out, self.width),
            "W": self.weights(rng, self.width, self.n_out).T[:-1],
            "U": self.weights(rng, self.width, self.n_in),
            "R": self.weights(rng, self.n_out, self.n_in),
            "a": torch.zeros(self.width, device=rng.device),
            "b": self.in_order(self.bias(rng, mean, reference=0.0)),
        }

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return nade.log_prob(*self._parts(params, given), self.in_order(value))

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        value, log_prob = nade.draw(*self._parts(params, given), rng, draws)
        return Drawn(self.out_of_order(value), log_prob)

    def logits(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return nade.logits(*self._parts(params, given), value)

    def draw_pushed(self, params: Params, given: Tensor, push: Tensor, rng: torch.Generator) -> Tensor:
        hidden, output, W, V = self._parts(params, given)
        return nade.draw(hidden, output + push, W, V, rng)[0]

    def _parts(self, params: Params, given: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Where the hidden layer and the outputs start from, and what the values do to the first and it to the last."""
        hidden = F.linear(given, params["U"], params["a"])
        output = F.linear(given, params["R"], params["b"])
        return hidden, output, F.pad(params["W"], (0, 0, 0, 1)), params["V"]
