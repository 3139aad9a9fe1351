"""Pooling what several completed copies of a table say: Rubin's rules."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from doubly.core.errors import UserError
from doubly.core.extras import extra


@dataclass(frozen=True)
class Pooled:
    """Estimates from several completed copies as one, with the uncertainty of the missing values in it."""

    estimate: np.ndarray
    variance: np.ndarray
    """within + (1 + 1/m) between, for m copies."""
    within: np.ndarray
    """The mean of the variances that each copy gave."""
    between: np.ndarray
    """The variance of the estimates over the copies."""
    dof: np.ndarray
    """Degrees of freedom of the t distribution of the estimate (Rubin 1987; with `complete_dof`, Barnard & Rubin
    1999)."""

    @property
    def stderr(self) -> np.ndarray:
        found: np.ndarray = np.sqrt(self.variance)
        return found

    @property
    def missing_information(self) -> np.ndarray:
        """The share of the variance that is due to missing values."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found: np.ndarray = np.where(self.variance > 0, 1 - self.within / self.variance, 0.0)
        return found

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper end of a confidence interval."""
        if not 0 < level < 1:
            raise UserError(f"the level of an interval must lie between 0 and 1, got {level}")
        with extra("sklearn", "an interval"):
            from scipy import stats
        half = stats.t.ppf((1 + level) / 2, self.dof) * self.stderr
        return self.estimate - half, self.estimate + half


def pool(estimates: Any, variances: Any, complete_dof: float = math.inf) -> Pooled:
    """Rubin's rules: `estimates` and their squared standard errors `variances`, (copies,) or (copies, parameters).

    `complete_dof` are the degrees of freedom that the estimate would have had with nothing missing, such as rows minus
    coefficients of a regression.

    >>> found = pool([1.0, 1.2, 0.8], [0.04, 0.05, 0.03])
    >>> float(found.estimate), round(float(found.stderr), 3)
    (1.0, 0.306)
    """
    q, u = np.asarray(estimates, dtype=float), np.asarray(variances, dtype=float)
    if q.shape != u.shape or q.ndim not in (1, 2):
        raise UserError(f"estimates and variances must have the same shape, (copies, …), got {q.shape} and {u.shape}")
    copies = len(q)
    if copies < 2:
        raise UserError(f"pooling needs at least 2 completed copies, got {copies}")
    if not (np.isfinite(q).all() and np.isfinite(u).all() and (u >= 0).all()):
        raise UserError("estimates must be finite, and variances finite and not negative (squared standard errors)")
    if not complete_dof > 0:
        raise UserError(f"the degrees of freedom of the complete table must be positive, got {complete_dof}")
    within, between = u.mean(0), q.var(0, ddof=1)
    extra = (1 + 1 / copies) * between
    total = within + extra
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, extra / total, 0.0)
        old = np.where(share > 0, (copies - 1) / share**2, math.inf)
    if math.isfinite(complete_dof):
        observed = (complete_dof + 1) / (complete_dof + 3) * complete_dof * (1 - share)
        old = 1 / (1 / old + 1 / observed)
    return Pooled(q.mean(0), total, within, between, np.asarray(old))
