"""Priors on the weights: the log density of a whole vector, and its gradient in closed form."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.registry import Registry


class Prior(ABC):
    """A density of the weights; independent over them, and the same for each.

    A prior is a frozen dataclass whose fields are its options. It must give `log_prob` of the whole vector, up to a
    constant, and `grad`. It may give `added`, if the gradient can be added in one pass.

    >>> @dataclass(frozen=True)
    ... class Logistic(Prior):
    ...     scale: float = 0.1
    ...     def log_prob(self, theta): return -2 * torch.log(torch.cosh(theta / (2 * self.scale))).sum()
    ...     def grad(self, theta): return -torch.tanh(theta / (2 * self.scale)) / self.scale
    >>> Logistic().grad(torch.zeros(2))
    tensor([-0., -0.])
    """

    @abstractmethod
    def log_prob(self, theta: Tensor) -> Tensor:
        """log p0(theta), a scalar."""

    @abstractmethod
    def grad(self, theta: Tensor) -> Tensor:
        """Its gradient, of theta's shape."""

    def added(self, theta: Tensor, grad: Tensor, share: float = 1.0) -> Tensor:
        """grad + share times the gradient of the prior."""
        return torch.add(grad, self.grad(theta), alpha=share)


@dataclass(frozen=True)
class StudentT(Prior):
    """Student-t: the paper's sparse prior, heavy-tailed so that the weights which matter are left alone.

    log p0 = sum -(df + 1)/2 log(1 + theta^2 / (df scale^2)) + const
    """

    df: float = 2.2
    scale: float = 0.09

    def __post_init__(self) -> None:
        _check_positive(df=self.df, scale=self.scale)

    def log_prob(self, theta: Tensor) -> Tensor:
        df, scale = self.df, self.scale
        const = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2 - math.log(scale)
        return theta.numel() * const - (df + 1) / 2 * torch.log1p(theta**2 / (df * scale**2)).sum()

    def grad(self, theta: Tensor) -> Tensor:
        return self.added(theta, torch.zeros_like(theta))

    def added(self, theta: Tensor, grad: Tensor, share: float = 1.0) -> Tensor:
        spread = theta.square().add_(self.df * self.scale**2)
        return torch.addcdiv(grad, theta, spread, value=-share * (self.df + 1))


@dataclass(frozen=True)
class Normal(Prior):
    """Normal; the default scale gives it a variance of 0.1."""

    scale: float = math.sqrt(0.1)

    def __post_init__(self) -> None:
        _check_positive(scale=self.scale)

    def log_prob(self, theta: Tensor) -> Tensor:
        const = -math.log(2 * math.pi) / 2 - math.log(self.scale)
        return theta.numel() * const - (theta**2).sum() / (2 * self.scale**2)

    def grad(self, theta: Tensor) -> Tensor:
        return -theta / self.scale**2


@dataclass(frozen=True)
class Laplace(Prior):
    """Laplace, sparse with a kink at zero; the default scale gives it a variance of 0.1."""

    scale: float = math.sqrt(0.05)

    def __post_init__(self) -> None:
        _check_positive(scale=self.scale)

    def log_prob(self, theta: Tensor) -> Tensor:
        return -theta.numel() * math.log(2 * self.scale) - theta.abs().sum() / self.scale

    def grad(self, theta: Tensor) -> Tensor:
        return -theta.sign() / self.scale


@dataclass(frozen=True)
class Flat(Prior):
    """Flat: no prior at all, for maximum likelihood."""

    def log_prob(self, theta: Tensor) -> Tensor:
        return theta.new_zeros(())

    def grad(self, theta: Tensor) -> Tensor:
        return torch.zeros_like(theta)

    def added(self, theta: Tensor, grad: Tensor, share: float = 1.0) -> Tensor:
        return grad


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise UserError(f"a prior's {name} must be positive and finite, got {value}")


PRIORS = Registry("prior", student_t=StudentT, normal=Normal, laplace=Laplace, flat=Flat)
