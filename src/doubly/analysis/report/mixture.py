"""Simple densities to compare with: independent columns, and mixtures of them by EM, for columns of all kinds.

log p(x) = log sum_c pi_c prod_j p_c(x_j), over the cells that are there: a real cell is normal, a bit is Bernoulli, and
the one-hot cells of a category have the probabilities of its levels. With one component the columns are independent.
"""

import math
from typing import NamedTuple

import numpy as np

from doubly.data import Data

SIZES = (1, 5, 10, 20, 40)
"""Components that are tried; one is the independent columns."""
ITERATIONS = 15
MOST_ROWS = 3000
SMOOTH = 1.0  # rows of the average kind that every component begins with
LEAST_VARIANCE = 1e-3


class CellKinds(NamedTuple):
    """Which cells are real, which are bits, and which are levels of a category (one-hot)."""

    real: np.ndarray
    bit: np.ndarray
    level: np.ndarray
    flat: np.ndarray
    """Of bits and levels, the probability before anything is known."""

    @classmethod
    def of(cls, data: Data) -> "CellKinds":
        """Those of a data set."""
        if data.columns is None or data.kind != "mixed":
            bit = np.full(data.width, data.kind == "binary")
            return cls(~bit, bit, np.zeros(data.width, dtype=bool), np.where(bit, 0.5, 0.0))
        columns = [column for column in data.columns.columns for _ in range(column.width)]
        level = np.array([column.has_levels for column in columns])
        bit = np.array([column.kind == "binary" for column in columns])
        return cls(~(level | bit), bit, level, np.where(level, [1 / c.width for c in columns], np.where(bit, 0.5, 0.0)))


class Mixture(NamedTuple):
    """A mixture of independent columns."""

    log_share: np.ndarray
    mean: np.ndarray
    """(components, cells): of real cells the mean, of others the probability."""
    variance: np.ndarray
    kinds: CellKinds

    @property
    def components(self) -> int:
        return len(self.log_share)

    def joint(self, rows: np.ndarray) -> np.ndarray:
        """log p(x, component), (rows, components)."""
        there = ~np.isnan(rows)
        x = np.where(there, rows, 0.0)
        real, bit, level, _ = self.kinds
        p = self.mean.clip(1e-6, 1 - 1e-6)
        one = np.where(bit | level, np.log(p), 0.0)
        zero = np.where(bit, np.log1p(-p), 0.0)
        found = self.log_share + x @ np.where(real, 0.0, one).T + ((1 - x) * there) @ zero.T
        if real.any():
            v, m, y, seen = self.variance[:, real], self.mean[:, real], x[:, real], there[:, real].astype(float)
            square = (y * y) @ (1 / v).T - 2 * y @ (m / v).T + seen @ (m * m / v + np.log(2 * math.pi * v)).T
            found = found - square / 2
        return np.asarray(found)

    def log_prob(self, rows: np.ndarray) -> np.ndarray:
        """log p of the cells that are there, row by row."""
        return _log_sum(self.joint(np.asarray(rows, dtype=float)))


def best_mixture(train: np.ndarray, valid: np.ndarray, kinds: CellKinds, seed: int = 0) -> tuple[Mixture, Mixture]:
    """The independent columns, and the mixture whose number of components suits the validation rows best."""
    rng = np.random.default_rng(seed)
    train = np.asarray(train[rng.permutation(len(train))[:MOST_ROWS]], dtype=float)
    tried = [fit_mixture(train, kinds, n, rng) for n in SIZES if n == 1 or 4 * n <= len(train)]
    scores = [float(each.log_prob(valid[:MOST_ROWS]).mean()) for each in tried]
    return tried[0], tried[int(np.argmax(scores))]


def fit_mixture(train: np.ndarray, kinds: CellKinds, components: int, rng: np.random.Generator) -> Mixture:
    """A mixture by EM, from components that begin at random rows."""
    there = ~np.isnan(train)
    x = np.where(there, train, 0.0)
    count = there.sum(0) + SMOOTH
    centre = np.where(kinds.real, x.sum(0) / count, (x.sum(0) + SMOOTH * kinds.flat) / count)
    variance = np.maximum(((x - centre) ** 2 * there).sum(0) / count, LEAST_VARIANCE)
    starts = np.where(there, train, centre)[rng.permutation(len(train))[:components]]
    mean = centre + 0.5 * (starts - centre) if components > 1 else centre[None]
    found = Mixture(np.full(components, -math.log(components)), mean, np.tile(variance, (components, 1)), kinds)
    for _ in range(ITERATIONS if components > 1 else 0):
        joint = found.joint(train)
        weight = np.exp(joint - _log_sum(joint)[:, None])
        total = weight.sum(0)
        seen = weight.T @ there + SMOOTH
        mean = (weight.T @ x + SMOOTH * centre) / seen
        spread = (weight.T @ (x * x) + SMOOTH * (variance + centre**2)) / seen - mean**2
        share = np.log((total + SMOOTH) / (len(train) + SMOOTH * components))
        found = Mixture(share, mean, np.maximum(spread, LEAST_VARIANCE), kinds)
    return found


def _log_sum(joint: np.ndarray) -> np.ndarray:
    top = joint.max(1)
    return np.asarray(top + np.log(np.exp(joint - top[:, None]).sum(1)))
