"""What every data set is: three splits of rows with a kind and a shape, and the checks that hold for every array.

Rows and columns in messages are counted from 0, as NumPy does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from doubly.errors import UserError

SPLITS = ("train", "valid", "test")

Kind = Literal["binary", "real"]


@dataclass(frozen=True, eq=False)
class Data:
    """Rows to learn from, to stop by and to score on: uint8 where all values are 0 or 1, else float32.

    >>> from doubly.data import load
    >>> bars = load("bars")
    >>> bars.train.shape, bars.shape, bars.kind
    ((2000, 16), (4, 4), 'binary')
    """

    name: str
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    shape: tuple[int, ...]  # of one row, as the user sees it: (8, 8) for an image, (D,) for a table
    kind: Kind
    log_density: Callable[[np.ndarray], np.ndarray] | None = None  # exact, where it is known

    def __post_init__(self) -> None:
        if self.kind not in ("binary", "real"):
            raise UserError(f"the kind of {self.name} must be 'binary' or 'real', got {self.kind!r}")
        object.__setattr__(self, "shape", tuple(self.shape))
        width = np.shape(self.train)[-1:]
        for split in SPLITS:
            rows, where = np.asarray(getattr(self, split)), f"the {split} split of {self.name}"
            if rows.ndim != 2:
                raise UserError(f"{where} must have 2 axes, rows and columns, got shape {rows.shape}: reshape it")
            if not len(rows):
                raise UserError(f"{where} has no rows: each split needs at least one")
            if not rows.shape[1]:
                raise UserError(f"{where} has no columns: each row needs at least one value")
            if rows.shape[1:] != width:
                raise UserError(f"{where} has {rows.shape[1]} columns, train has {width[0]}: give all splits as many")
            check_finite(rows, where)
            object.__setattr__(self, split, as_kind(rows, self.kind, where))
        if min(self.shape, default=0) < 1 or math.prod(self.shape) != self.width:
            raise UserError(f"{self.name} has {self.width} columns, which do not fill the shape {self.shape}")

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.train.shape[1]

    def split(self, name: str) -> np.ndarray:
        """The rows of train, valid or test."""
        if name not in SPLITS:
            raise UserError(f"no split is called {name!r}; there are: {', '.join(SPLITS)}")
        return getattr(self, name)


def check_binary(data: Data, why: str) -> None:
    """Refuse data that has other values than 0 and 1; `why` begins the message: "layer 'sbn' draws 0 or 1"."""
    if data.kind == "binary":
        return
    for split in SPLITS:
        rows = data.split(split)
        if not is_binary(rows):
            at = _first((rows != 0) & (rows != 1))
            raise UserError(
                f"{why}, but {split} {_place(at)} is {rows[at]:.6g}: binarise the data (for example x > 0.5), "
                f"or choose a data layer that draws real numbers"
            )


# What holds for every array


def is_binary(rows: np.ndarray) -> bool:
    """Whether all values are 0 or 1."""
    return rows.dtype == bool or bool(((rows == 0) | (rows == 1)).all())


def as_kind(rows: np.ndarray, kind: Kind, where: str) -> np.ndarray:
    """The rows in the type of their kind, uint8 or float32; refused where they do not fit."""
    if kind == "binary":
        if not is_binary(rows):
            at = _first((rows != 0) & (rows != 1))
            raise UserError(f"{where} is said to be binary, but {_place(at)} is {rows[at]:.6g}: give 0 or 1")
        return np.ascontiguousarray(rows, dtype=np.uint8)
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(rows, dtype=np.float32)
    if np.isinf(narrow).any():
        at = _first(np.isinf(narrow))
        raise UserError(f"{where}, {_place(at)}, is {rows[at]:.6g}, too large for float32: scale the data first")
    return narrow


def check_finite(rows: np.ndarray, where: str, nan_allowed: bool = False) -> None:
    """Refuse what is no real number, is infinite, or is missing where that is not allowed."""
    if rows.dtype.kind not in "biuf":
        raise UserError(f"{where} holds values of type {rows.dtype}: expected real numbers (bool, integer or float)")
    if rows.dtype.kind == "f":
        bad = np.isinf(rows) if nan_allowed else ~np.isfinite(rows)
        if bad.any():
            at = _first(bad)
            raise UserError(not_finite(f"{where}, {_place(at)},", rows[at]))


def not_finite(where: str, value: float) -> str:
    """The message for a value that is missing or infinite."""
    if np.isnan(value):
        return f"{where} is missing (nan): missing values cannot be trained on; drop such rows or fill them first"
    return f"{where} is {value}: only finite numbers can be used; drop such rows or fill them first"


def _first(bad: np.ndarray) -> tuple[int, int]:
    row, column = np.unravel_index(int(bad.argmax()), bad.shape)
    return int(row), int(column)


def _place(at: tuple[int, int]) -> str:
    return f"row {at[0]}, column {at[1]} (counting from 0)"
