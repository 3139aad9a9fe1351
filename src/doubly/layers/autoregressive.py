"""Layers whose values depend on each other in an order."""

import functools
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import bernoulli
from doubly.layers.layer import Drawn, Layer, Params

PUSH = 1e6  # log-odds beside which all others are nothing


@dataclass(frozen=True)
class Autoregressive(Layer):
    """p(value | given) = prod_i p(value_i | those before it in the order, given).

    The parameters stand in the order too: position i of b, V, … is the variable that comes i-th.
    """

    order: str | int = "identity"
    """identity, reversed, or a number: the seed of a random order."""
    kind = "binary"
    factorised = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("identity", "reversed") and not isinstance(self.order, int):
            raise UserError(f"order must be identity, reversed or a whole number (a seed), got {self.order!r}")

    @abstractmethod
    def logits(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        """The log-odds of each entry given those before it, with value and log-odds in the order."""

    @abstractmethod
    def draw_pushed(self, params: Params, given: Tensor, push: Tensor, rng: torch.Generator) -> Tensor:
        """A value in the order, with `push` added to the log-odds of its entries."""

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return self.out_of_order(torch.sigmoid(self.logits(params, self.in_order(value), given)))

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        value = self.in_order(value)
        return self.out_of_order(bernoulli.cells(self.logits(params, value, given), value))

    @torch.no_grad()
    def impute(self, params: Params, value: Tensor, missing: Tensor, given: Tensor, rng: torch.Generator) -> Drawn:
        """The missing entries drawn in their order, each given those before it; the density is of the others, likewise.

        What comes after a missing entry has no say in it: such a draw has to be weighed by that density.
        """
        value, missing = (self.in_order(each) for each in torch.broadcast_tensors(value, missing))
        # what is there is pushed so far that nothing else can be drawn
        push = torch.where(missing, 0, PUSH * (2 * value - 1))
        completed = torch.where(missing, self.draw_pushed(params, given, push, rng), value)
        observed = bernoulli.cells(self.logits(params, completed, given), completed).masked_fill(missing, 0).sum(-1)
        return Drawn(self.out_of_order(completed), observed)

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
