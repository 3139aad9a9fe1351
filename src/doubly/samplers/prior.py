"""What a prior is: a density of the weights, whose parameters may be learnt with them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from doubly.core.errors import UserError

PriorState = dict[str, Any]
"""What a prior learns: numbers or tensors by name. A prior that learns nothing has an empty one."""
Groups = Mapping[str, int]
"""The weights in groups, one for each named tensor of each layer: their sizes, in the order of the weights."""


class Prior(ABC):
    """A density of the weights; independent over them, and the same for each, or for each group of them.

    A prior is a frozen dataclass whose fields are its options. It must give `log_prob` of the whole vector, up to a
    constant, and `grad`. It may give `added`, if the gradient can be added in one pass.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Logistic(Prior):
    ...     scale: float = 0.1
    ...     def log_prob(self, theta): return -2 * torch.log(torch.cosh(theta / (2 * self.scale))).sum()
    ...     def grad(self, theta): return -torch.tanh(theta / (2 * self.scale)) / self.scale
    >>> Logistic().grad(torch.zeros(2))
    tensor([-0., -0.])

    A prior with parameters of its own, which are learnt, sets `learns` and gives three methods more: `init`, where they
    start; `given`, the prior of the weights given them, which has no state; and `update`, a move of them that leaves
    their law given the weights invariant. It may give `stats`, numbers to record. `LearntScale` is such a prior, which
    needs one method for each density.
    """

    learns: ClassVar[bool] = False
    """Whether it has a state, which moves while a sampler moves the weights."""

    @abstractmethod
    def log_prob(self, theta: Tensor) -> Tensor:
        """log p0(theta), a scalar."""

    @abstractmethod
    def grad(self, theta: Tensor) -> Tensor:
        """Its gradient, of theta's shape."""

    def added(self, theta: Tensor, grad: Tensor, share: float = 1.0) -> Tensor:
        """grad + share times the gradient of the prior."""
        return torch.add(grad, self.grad(theta), alpha=share)

    def init(self, groups: Groups) -> PriorState:
        """The state to start from."""
        return {}

    def given(self, state: PriorState, groups: Groups) -> "Prior":
        """The prior of the weights given the state."""
        return self

    def update(
        self, state: PriorState, groups: Groups, theta: Tensor, rng: torch.Generator, temperature: float = 1.0
    ) -> PriorState:
        """The state after a move that leaves p(state | theta) invariant, or its power 1 / temperature."""
        return state

    def stats(self, state: PriorState) -> dict[str, float]:
        """Numbers of the state to record after each epoch."""
        return {}


def check_positive(**values: float) -> None:
    """The options of a prior are positive numbers."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"a prior's {name} must be positive and finite, got {value}")
