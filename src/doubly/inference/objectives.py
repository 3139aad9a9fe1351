"""What the proposal climbs: objectives for phi."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from doubly.inference.draws import Draws
from doubly.registry import Registry


class Objective(ABC):
    """A function of the draws whose gradient with respect to phi is the direction to climb."""

    @abstractmethod
    def __call__(self, draws: Draws, weight: Tensor) -> Tensor:
        """One number for each row; `weight` are the normalised weights (S, B), constants."""


@dataclass(frozen=True)
class Wake(Objective):
    """Wake: E_{p(z|x)}[log q(z|x)], the inclusive KL divergence, so that q covers p.

    The expectation is estimated with the importance weights of the same draws.
    """

    def __call__(self, draws: Draws, weight: Tensor) -> Tensor:
        return (weight * draws.log_q).sum(0)


OBJECTIVES = Registry("objective", wake=Wake)
