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

Eta = float | Tensor
"""The step in a sampler's units: one for all weights, or, where the sampler takes it, one for each."""


NEAR = 0.05
"""The share by which a kinetic temperature may be off before people are warned."""


class Sampler(ABC):
    """Moves theta through its posterior; an optimiser is a sampler without noise.

    A sampler is a frozen dataclass whose fields are its options. It must give `state_type` (a NamedTuple of theta and
    what else moves), `init` and `tell`. It may give `ask`, if it wants the gradient elsewhere than at its last sample;
    `hold`, if it tunes itself; `stats`, numbers to record of each epoch; `eta`, if its step has other units;
    `noisy = False`, which makes it an optimiser; and if it has momentum, `expected_temperature` and what follows it.

    >>> from dataclasses import dataclass
    >>> from typing import NamedTuple
    >>> class State(NamedTuple):
    ...     theta: Tensor
    >>> @dataclass(frozen=True)
    ... class Langevin(Sampler):
    ...     state_type = State
    ...     def init(self, theta, rng): return State(theta)
    ...     def tell(self, state, grad, eta, rng):
    ...         return State(state.theta + eta * grad + math.sqrt(2 * eta) * noise(grad, rng))
    >>> rng = torch.Generator().manual_seed(0)
    >>> Langevin().tell(State(torch.zeros(3)), torch.ones(3), 0.01, rng).theta.shape
    torch.Size([3])
    """

    noisy: ClassVar[bool] = True
    """Whether it samples; if not, it ascends to a mode."""
    state_type: ClassVar[type]
    """The NamedTuple that holds what moves; its first field is theta."""
    temperature: float = 1.0
    """The temperature it samples at; 1 is the posterior itself."""
    has_thermostat: ClassVar[bool] = False
    """Whether it has a friction that adapts to the noise of the gradient, recorded as "thermostat"."""
    too_cold: ClassVar[str] = ""
    """Why its kinetic temperature may lie below the expected one."""
    too_hot: ClassVar[str] = "burn in longer, or take a smaller step"
    """What to do where a thermostat leaves it above the expected one."""
    usual_step: ClassVar[float] = 0.03
    """What a run takes where nobody says and a step cannot be measured."""
    takes_scales: ClassVar[bool] = False
    """Whether eta may be a vector, a step for each weight, as an automatic step is. Then theta may also stand in other
    coordinates during a step (`training/centring.py`): the state must hold no second vector of weights beside it."""
    there_and_back: ClassVar[bool] = False
    """Whether every other epoch goes back through the mini-batches of the one before it."""

    def eta(self, step: float, n_data: int) -> float:
        """The step in the units of this sampler."""
        return step / n_data

    @abstractmethod
    def init(self, theta: Tensor, rng: torch.Generator) -> Any:
        """The state that starts at theta."""

    def ask(self, state: Any, eta: Any, rng: torch.Generator) -> Any:
        """Go to where the gradient is wanted: state.theta. eta is a number, or a vector if `takes_scales`."""
        return state

    @abstractmethod
    def tell(self, state: Any, grad: Tensor, eta: Any, rng: torch.Generator) -> Any:
        """Use the gradient of the log posterior at state.theta; the new state.theta is the next sample."""

    def hold(self, state: Any) -> Any:
        """Samples will be collected from here on: whatever the sampler tuned from the past stays as it is."""
        return state

    def stats(self, state: Any) -> dict[str, Tensor]:
        """Numbers worth watching, such as the kinetic temperature (near 1 when all is well)."""
        return {}

    def expected_temperature(self) -> float | None:
        """The kinetic temperature mean(u^2) / eta that exact gradients give; None where there is no momentum u."""
        return None

    def relative_loss(self, alpha: float) -> float:
        """How much of u^2 a step loses to friction alpha, relative to what it loses to the friction it was set to."""
        return 1.0


def noise(like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normal, of the shape and type of `like` and on its device."""
    return normal(like.shape, rng, like.dtype, like.device)


def drifted(theta: Tensor, v: Tensor, eta: Eta, time: float) -> Tensor:
    """theta after a time, in steps, along a momentum v of unit scale: theta + time sqrt(eta) v."""
    if isinstance(eta, Tensor):
        return torch.addcmul(theta, eta.sqrt(), v, value=time)
    return theta.add(v, alpha=time * math.sqrt(eta))


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
