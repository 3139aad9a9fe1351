"""What a sampler is: asked where it wants the gradient of the log posterior, and told it.

A step size `step` (the paper's gamma) becomes eta = step / n_data, because the gradient is of the whole log posterior,
a sum over n_data rows. A sampler holds its settings and no state: what moves is a NamedTuple of vectors and numbers,
whose first field is theta, so that a checkpoint is these fields and nothing else.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels.noise import normal


class Sampler(ABC):
    """Moves theta through its posterior; an optimiser is a sampler without noise."""

    noisy: ClassVar[bool] = True
    """Whether it samples; if not, it ascends to a mode."""
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

    def stats(self, state: Any) -> dict[str, Tensor]:
        """Numbers worth watching, such as the kinetic temperature (near 1 when all is well)."""
        return {}


def noise(like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normal, of the shape and type of `like` and on its device."""
    return normal(like.shape, rng, like.dtype, like.device)


def rescaled(u: Tensor, old_eta: float, eta: float) -> Tensor:
    """Momentum brought from one eta to another with its kinetic temperature kept."""
    return u if eta == old_eta else u * math.sqrt(eta / old_eta)


def check_friction(friction: float) -> None:
    """Friction is the part of the momentum that a step takes away."""
    if not 0 < friction < 1:
        raise UserError(f"friction must lie between 0 and 1, got {friction}")


def check_temperature(temperature: float) -> None:
    """1 is the posterior itself; lower is colder, more peaked."""
    if not temperature > 0:
        raise UserError(f"temperature must be positive, got {temperature}")


def check_rate(rate: float) -> None:
    """How quickly a thermostat answers."""
    if not rate > 0:
        raise UserError(f"rate must be positive, got {rate}")
