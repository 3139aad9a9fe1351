"""What a sampler is: asked where it wants the gradient of the log posterior, and told it.

A step size `step` (the paper's gamma) becomes eta = step / n_data, because the gradient is of the whole log posterior,
a sum over n_data rows. A sampler holds its settings and no state: what moves is a NamedTuple of vectors and numbers,
whose first field is theta, so that a checkpoint is these fields and nothing else.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor


class Sampler(ABC):
    """Moves theta through its posterior; an optimiser is a sampler without noise."""

    state_type: ClassVar[type]
    """The NamedTuple that holds what moves; its first field is theta."""

    def eta(self, step: float, n_data: int) -> float:
        """The step in the units of this sampler."""
        return step / n_data

    @abstractmethod
    def init(self, theta: Tensor, rng: torch.Generator) -> Any:
        """The state that starts at theta."""

    def ask(self, state: Any, eta: float, rng: torch.Generator) -> Any:
        """Go to where the gradient is wanted: state.theta."""
        return state

    @abstractmethod
    def tell(self, state: Any, grad: Tensor, eta: float, rng: torch.Generator) -> Any:
        """Use the gradient of the log posterior at state.theta; the new state.theta is the next sample."""

    def stats(self, state: Any, eta: float) -> dict[str, Tensor]:
        """Numbers worth watching, such as the kinetic temperature (1 when all is well)."""
        return {}


def noise(like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normal, of the shape and type of `like`."""
    return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=like.device)
