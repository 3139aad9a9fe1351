"""Layers whose values depend on each other in an order."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.errors import UserError
from doubly.layers.layer import Layer


@dataclass(frozen=True)
class Autoregressive(Layer):
    """p(value | given) = prod_i p(value_i | those before it in the order, given).

    The parameters stand in the order too: position i of b, V, … is the variable that comes i-th.
    """

    order: str | int = "identity"
    """identity, reversed, or a number: the seed of a random order."""
    kind = "binary"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("identity", "reversed") and not isinstance(self.order, int):
            raise UserError(f"order must be identity, reversed or a whole number (a seed), got {self.order!r}")

    def in_order(self, value: Tensor) -> Tensor:
        """The last axis put into the order."""
        return value if self.order == "identity" else value[..., _order(self.order, self.n_out, value.device)]

    def out_of_order(self, value: Tensor) -> Tensor:
        """The last axis put back."""
        return value if self.order == "identity" else value[..., _order(self.order, self.n_out, value.device).argsort()]


@functools.lru_cache(maxsize=64)
def _order(order: str | int, n: int, device: torch.device) -> Tensor:
    if order == "reversed":
        return torch.arange(n - 1, -1, -1, device=device)
    return torch.randperm(n, generator=torch.Generator().manual_seed(int(order))).to(device)
