"""Deep autoregressive network layer."""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.kernels import bernoulli
from doubly.kernels import darn as darn_kernel
from doubly.layers.autoregressive import Autoregressive
from doubly.layers.layer import Drawn, Params


@dataclass(frozen=True)
class DARN(Autoregressive):
    """Deep autoregressive network: binary values whose log-odds are linear in the given and in the values before.

    p(value_i = 1 | value_<i, given) = sigmoid(U_i given + W_{i,<i} value_<i + b_i); from width 0, an FVSBN.
    W is strictly lower triangular, and only that triangle is stored, row by row.
    """

    def shapes(self) -> dict[str, tuple[int, ...]]:
        n = self.n_out
        return {"U": (n, self.n_in), "W": (n * (n - 1) // 2,), "b": (n,)}

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        square = self.weights(rng, self.n_out, self.n_out)
        bias = self.bias(rng, mean, reference=0.0)
        return {
            "U": self.weights(rng, self.n_out, self.n_in),
            "W": square.flatten()[_below_diagonal(self.n_out, square.device)],
            "b": self.in_order(bias),
        }

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        value = self.in_order(value)
        return bernoulli.log_prob(self._logits(params, value, given), value)

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        start = F.linear(given, params["U"], params["b"])
        value = darn_kernel.draw(start.detach(), self._square(params["W"].detach()), rng, draws)
        logits = start + F.linear(value, self._square(params["W"]))
        return Drawn(self.out_of_order(value), bernoulli.log_prob(logits, value))

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return self.out_of_order(torch.sigmoid(self._logits(params, self.in_order(value), given)))

    def _logits(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        # one product for the value, which all draws of the given share, and one for the given
        return F.linear(value, self._square(params["W"]), params["b"]) + F.linear(given, params["U"])

    def _square(self, triangle: Tensor) -> Tensor:
        """W as a matrix, zero on and above its diagonal."""
        n = self.n_out
        where = _below_diagonal(n, triangle.device)
        return triangle.new_zeros(n * n).index_copy(0, where, triangle).view(n, n)


@functools.lru_cache(maxsize=64)
def _below_diagonal(n: int, device: torch.device) -> Tensor:
    """Where the strictly lower triangle, row by row, stands in a flattened n × n matrix."""
    rows, columns = torch.tril_indices(n, n, offset=-1, device=device)
    return rows * n + columns
