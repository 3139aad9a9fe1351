"""Deep autoregressive network layer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.kernels import bernoulli, linear
from doubly.kernels import darn as darn_kernel
from doubly.layers.autoregressive import Autoregressive
from doubly.layers.layer import Drawn, LogOdds, Params


@dataclass(frozen=True)
class DARN(Autoregressive):
    """Deep autoregressive network: binary values whose log-odds are linear in the given and in the values before.

    p(value_i = 1 | value_<i, given) = sigmoid(U_i given + W_{i,<i} value_<i + b_i); from width 0, an FVSBN.
    W is strictly lower triangular, and only that triangle is stored, row by row.
    """

    is_linear = True

    def shapes(self) -> dict[str, tuple[int, ...]]:
        n = self.n_out
        return {"U": (n, self.n_in), "W": (n * (n - 1) // 2,), "b": (n,)}

    def bias_of(self) -> dict[str, str]:
        return {"U": "b"}

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        square = self.weights(rng, self.n_out, self.n_out)
        bias = self.bias(rng, mean, reference=0.0)
        return {
            "U": self.weights(rng, self.n_out, self.n_in),
            "W": square.flatten()[darn_kernel.below_diagonal(self.n_out, square.device)],
            "b": self.in_order(bias),
        }

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        value = self.in_order(value)
        # one product for the value, which all draws of the given share, and one for the given
        offset = darn_kernel.sums_before(value, params["W"]) + params["b"]
        return linear.log_prob(given, params["U"], offset, value)

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        start = F.linear(given, params["U"], params["b"])
        square = darn_kernel.square(params["W"], self.n_out)
        value = darn_kernel.draw(start.detach(), square.detach(), rng, draws)
        logits = start + F.linear(value, square)
        return Drawn(self.out_of_order(value), bernoulli.log_prob(logits, value))

    def draw_pushed(self, params: Params, given: Tensor, push: Tensor, rng: torch.Generator) -> Tensor:
        start = F.linear(given, params["U"], params["b"]) + push
        return darn_kernel.draw(start, darn_kernel.square(params["W"], self.n_out), rng)

    def logits(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return F.linear(given, params["U"]) + (darn_kernel.sums_before(value, params["W"]) + params["b"])

    def linear_log_odds(self, params: Params) -> LogOdds:
        put_back = self.out_of_order
        square = darn_kernel.square(params["W"], self.n_out)
        return LogOdds(put_back(params["b"]), put_back(params["U"].T).T, put_back(put_back(square).T).T)
