"""Arrays of bits or of real numbers as rows of the model, and back: real columns are standardised."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.data.dataset import first_place, is_binary, missing_mask
from doubly.posterior.rows import LARGEST, numbers
from doubly.sklearn.frames import FARTHEST


@dataclass(frozen=True)
class ArrayUnits:
    """How the columns of an array are standardised, and which of them are in the model: constant real ones are not."""

    kind: str
    """binary or real."""
    center: np.ndarray
    scale: np.ndarray
    varies: np.ndarray
    mean: np.ndarray
    """Of the columns in the model, as it sees them."""
    spread: np.ndarray
    has_missing: bool

    @property
    def width(self) -> int:
        """Columns in the model."""
        return int(self.varies.sum())

    @property
    def log_scale(self) -> np.ndarray:
        found: np.ndarray = np.log(self.scale[self.varies])
        return found

    def encode(self, X: np.ndarray) -> np.ndarray:
        """Rows as the model sees them: float32, or uint8 where they are bits."""
        X = numbers(X, len(self.scale))
        if self.kind == "real":
            if (bad := np.abs(X) > LARGEST).any():
                row, column = first_place(bad)
                raise UserError(f"row {row}, column {column} is {X[row, column]}, but a finite number is expected")
            standard = (X[:, self.varies] - self.center[self.varies]) / self.scale[self.varies]
            found: np.ndarray = standard.clip(-FARTHEST, FARTHEST).astype(np.float32)
            return found
        missing = missing_mask(X)
        bad = (X != 0) & (X != 1) & ~missing
        if bad.any():
            at = first_place(bad)
            raise UserError(
                f"the data layer draws 0 or 1, but row {at[0]}, column {at[1]} is {X[at]:.6g}: binarise the table (for "
                f"example with sklearn's Binarizer), or fit with a real data layer such as layer='gaussian,normal'"
            )
        return X.astype(np.float32 if missing.any() else np.uint8)

    def decode(self, rows: np.ndarray | Tensor) -> np.ndarray:
        """Rows of the model in the table's own units, with the constant columns."""
        table = np.tile(self.center, (len(rows), 1))
        table[:, self.varies] += np.asarray(rows, dtype=np.float64) * self.scale[self.varies]
        return table

    def two_rows(self) -> Tensor:
        """In place of the training rows, which are not kept: two with their mean and spread, all that is asked."""
        return torch.as_tensor(np.stack([self.mean - self.spread, self.mean + self.spread]))


def units_of(X: np.ndarray, kind: str | None = None) -> ArrayUnits:
    """The units of an array: of bits where all values are, unless the `kind` is said."""
    kind, n = kind or ("binary" if is_binary(X) else "real"), X.shape[1]
    missing = missing_mask(X)
    if missing.all(0).any():
        raise UserError(f"column {int(missing.all(0).argmax())} has no value in any row: leave it out")
    center, scale, varies = np.zeros(n), np.ones(n), np.ones(n, dtype=bool)
    if kind == "binary":
        mean = np.nanmean(X, 0).clip(0, 1)  # what is not 0 or 1 is refused later
        return ArrayUnits(kind, center, scale, varies, mean, np.sqrt(mean * (1 - mean)), bool(missing.any()))
    values = X.astype(np.float64)
    varies = np.nanmin(values, 0) < np.nanmax(values, 0)
    if not varies.any():
        raise UserError(f"all {n} columns are constant: a density needs one that varies; leave constant ones out")
    with np.errstate(over="ignore", invalid="ignore"):
        center = np.where(varies, np.nanmean(values, 0), np.nanmax(values, 0))
        scale = np.where(varies, np.nanstd(values, 0), 1.0)
    bad = ~np.isfinite(center + scale) | (scale == 0)
    if bad.any():
        raise UserError(f"column {int(bad.argmax())} has values too large or too close to square: scale it first")
    return ArrayUnits(kind, center, scale, varies, np.zeros(varies.sum()), np.ones(varies.sum()), bool(missing.any()))
