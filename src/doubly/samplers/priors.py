"""Priors on the weights, in closed form: with a scale that is set, and with scales that are learnt."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.core.registry import Registry
from doubly.samplers.learnt import LearntScale
from doubly.samplers.log_concave import Jet, LogDensity
from doubly.samplers.prior import Prior as Prior
from doubly.samplers.prior import check_positive


@dataclass(frozen=True)
class StudentT(Prior):
    """Student-t: the paper's sparse prior, heavy-tailed so that the weights which matter are left alone.

    log p0 = sum -(df + 1)/2 log(1 + theta^2 / (df scale^2)) + const
    """

    df: float = 2.2
    scale: float = 0.09

    def __post_init__(self) -> None:
        check_positive(df=self.df, scale=self.scale)

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
        check_positive(scale=self.scale)

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
        check_positive(scale=self.scale)

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


@dataclass(frozen=True)
class LearntStudentT(LearntScale, StudentT):
    """Student-t with a scale for each weight matrix and each bias vector, learnt: half-Cauchy with median `scale`.

    With t_i = theta_i^2 / (df s^2), of n weights:
    log p(theta | s) = -n log s - (df + 1)/2 sum log(1 + t_i) + const
    """

    def __post_init__(self) -> None:
        StudentT.__post_init__(self)
        LearntScale.__post_init__(self)

    def by_log_scale(self, theta: Tensor) -> LogDensity:
        square, n, df = theta.square(), theta.numel(), self.df

        def jet(log_scale: float) -> Jet:
            t = square * (_exp(-2 * log_scale) / df)
            logs = torch.log1p(t).sum(dtype=torch.float64)
            share = t.div_(t + 1)
            sums = torch.stack([logs, share.sum(dtype=torch.float64), share.dot(share).double()])
            value, first, second = sums.tolist()
            return Jet(-n * log_scale - (df + 1) / 2 * value, -n + (df + 1) * first, -2 * (df + 1) * (first - second))

        return jet


@dataclass(frozen=True)
class LearntNormal(LearntScale, Normal):
    """Normal with a scale for each weight matrix and each bias vector, learnt: half-Cauchy with median `scale`."""

    def by_log_scale(self, theta: Tensor) -> LogDensity:
        n, total = theta.numel(), theta.double().square().sum().item()

        def jet(log_scale: float) -> Jet:
            relative = total * _exp(-2 * log_scale)
            return Jet(-n * log_scale - relative / 2, relative - n, -2 * relative)

        return jet


@dataclass(frozen=True)
class LearntLaplace(LearntScale, Laplace):
    """Laplace with a scale for each weight matrix and each bias vector, learnt: half-Cauchy with median `scale`."""

    def by_log_scale(self, theta: Tensor) -> LogDensity:
        n, total = theta.numel(), theta.double().abs().sum().item()

        def jet(log_scale: float) -> Jet:
            relative = total * _exp(-log_scale)
            return Jet(-n * log_scale - relative, relative - n, -relative)

        return jet


def _exp(exponent: float) -> float:
    """Of a number that would be out of range: one that is large enough."""
    return math.exp(min(exponent, 600.0))


PRIORS = Registry(
    "prior",
    student_t=StudentT,
    normal=Normal,
    laplace=Laplace,
    flat=Flat,
    learnt_student_t=LearntStudentT,
    learnt_normal=LearntNormal,
    learnt_laplace=LearntLaplace,
)
