"""What every data set is: three splits of rows with a kind and a shape, and the checks that hold for every array.

Rows and columns in messages are counted from 0, as NumPy does, unless the data know the lines of a file they came from.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from doubly.core.errors import UserError
from doubly.core.rows import StoredRows, blocks
from doubly.data.columns import Columns

SPLITS = ("train", "valid", "test")

LOOKED_AT = 20_000  # of stored rows

Kind = Literal["binary", "real", "mixed"]
Place = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Origin:
    """Where each row lies in the user's file: what messages name, also after rows were shuffled and held out."""

    path: str
    rows: Mapping[str, np.ndarray]  # of each split: lines from 1 in a text, rows from 0 in an array
    arrays: Mapping[str, str] = field(default_factory=dict)  # of each split: the array it is from
    columns: np.ndarray | None = None  # of each cell of a row: the column of the text, from 1

    def place(self, split: str, at: Place) -> str:
        """Where the value at this row and column of a split stands in the file."""
        row = int(self.rows[split][at[0]])
        if self.columns is not None:
            return f"line {row}, column {self.columns[at[1]]} of {self.path}"
        array = f"{self.arrays[split]} in " if split in self.arrays else ""
        return f"row {row}, column {at[1]} (counting from 0) of {array}{self.path}"


@dataclass(frozen=True, eq=False)
class Data:
    """Rows to learn from, to stop by and to score on: uint8 where all values are 0 or 1, else float32.

    Cells may be missing: NaN in float32, whatever the kind.
    Where training rows are `stored` rather than in memory, `train` has some of them, evenly spaced, to look at.
    Where `dynamic` is true, `train` holds greys, uint8 from 0 to 255: training draws its bits anew each time it sees a
    row, 1 with probability grey / 255. All other rows are fixed, and so is what `split("train")` gives.

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
    dynamic: bool = False
    columns: Columns | None = None  # how the columns of a table became numbers, where there was one
    origin: Origin | None = None
    bits_seed: int = 0  # of the fixed bits that split("train") gives of greys
    stored: StoredRows | None = None  # all training rows, where they are not in memory

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"the kind of {self.name} must be 'binary', 'real' or 'mixed', got {self.kind!r}")
        if self.dynamic and (self.kind != "binary" or np.asarray(self.train).dtype != np.uint8):
            raise UserError(
                f"the train split of {self.name} must be greys of type uint8 and its kind binary, since bits are drawn "
                f"from it; got {np.asarray(self.train).dtype} and {self.kind}"
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        for split in SPLITS:
            rows, where = self._checked(split), f"the {split} split of {self.name}"
            if not (self.dynamic and split == "train"):
                object.__setattr__(self, split, as_kind(rows, self.kind, where))
        if min(self.shape, default=0) < 1 or math.prod(self.shape) != self.width:
            raise UserError(f"{self.name} has {self.width} columns, which do not fill the shape {self.shape}")
        empty = missing_mask(self.train).all(0)
        if empty.any():
            at = int(empty.argmax())
            name = repr(self.columns.columns[self.columns.sources[at]].name) if self.columns else f"{at} (from 0)"
            raise UserError(
                f"column {name} of {self.name} has no value in any row of train, so that nothing can be learnt of it: "
                f"leave it out"
            )

    def _checked(self, split: str) -> np.ndarray:
        """The rows of a split, if they are as wide as those of train, and numbers."""
        rows, where, width = (
            np.asarray(getattr(self, split)),
            f"the {split} split of {self.name}",
            np.shape(self.train)[-1:],
        )
        if rows.ndim != 2:
            raise UserError(f"{where} must have 2 axes, rows and columns, got shape {rows.shape}: reshape it")
        if not len(rows):
            raise UserError(f"{where} has no rows: each split needs at least one")
        if not rows.shape[1]:
            raise UserError(f"{where} has no columns: each row needs at least one value")
        if rows.shape[1:] != width:
            raise UserError(f"{where} has {rows.shape[1]} columns, train has {width[0]}: give all splits as many")
        check_finite(rows, where, nan_allowed=True)
        return rows

    @cached_property
    def has_missing(self) -> bool:
        """Whether any cell of any split is missing."""
        if self.stored is not None and self.stored.dtype.kind == "f" and self.kind == "binary":
            return True  # bits are floats only for that reason
        parts = [*SPLITS[1:], "all_train"]
        return any(bool(missing_mask(block).any()) for part in parts for block in blocks(getattr(self, part)))

    @property
    def all_train(self) -> np.ndarray | StoredRows:
        """All rows to learn from, wherever they are."""
        return self.train if self.stored is None else self.stored

    @property
    def width(self) -> int:
        """The number of columns."""
        found: int = self.train.shape[1]
        return found

    def split(self, name: str) -> np.ndarray:
        """The rows of train, valid or test, to look at and to score: of greys, one fixed draw of their bits."""
        if name not in SPLITS:
            raise UserError(f"no split is called {name!r}; there are: {', '.join(SPLITS)}")
        return self._fixed_bits if self.dynamic and name == "train" else getattr(self, name)

    @cached_property
    def _fixed_bits(self) -> np.ndarray:
        return sample_bits(self.train / np.float32(255), self.bits_seed, "train")


def spaced(rows: np.ndarray | StoredRows, most: int) -> np.ndarray:
    """So many rows at most, evenly spaced, in memory."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(int))]


def sample_bits(p: np.ndarray, seed: int, split: str) -> np.ndarray:
    """Bits that are 1 with probability p, by a generator that is this split's own."""
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    return (rng.random(p.shape, dtype=np.float32) < p).astype(np.uint8)


def check_binary(data: Data, why: str) -> None:
    """Refuse data that has other values than 0 and 1; `why` begins the message: "layer 'sbn' draws 0 or 1"."""
    if data.kind == "binary":
        return
    for split in SPLITS:
        rows = data.split(split)
        if not is_binary(rows):
            at = first_place(_neither(rows))
            where = data.origin.place(split, at) if data.origin else f"{split} {_place(at)}"
            raise UserError(
                f"{why}, but {where} is {rows[at]:.6g}: binarise the data (for example binarise=threshold, 1 from 0.5 "
                f"on), or choose a data layer that draws real numbers"
            )
    if data.stored is not None:  # of which not all were looked at here
        raise UserError(f"{why}, but {data.name} also has other values: choose a data layer that draws real numbers")


# What holds for every array


def is_binary(rows: np.ndarray) -> bool:
    """Whether all values that are there are 0 or 1."""
    return rows.dtype == bool or not _neither(rows).any()


def _neither(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = (rows != 0) & (rows != 1)
    return found & ~np.isnan(rows) if rows.dtype.kind == "f" else found


def missing_mask(rows: np.ndarray) -> np.ndarray:
    """Which cells are missing."""
    return np.isnan(rows) if rows.dtype.kind == "f" else np.broadcast_to(np.False_, rows.shape)


def unscaled(rows: np.ndarray) -> np.ndarray:
    """Which columns are far from mean 0 and standard deviation 1, from where a sampler with one step for all gets lost.

    >>> unscaled(np.array([[0.0, 170, 5], [1, 180, 5]]))
    array([False,  True, False])
    """
    known = np.ma.masked_array(rows, missing_mask(rows))
    mean, sd = np.abs(known.mean(0).filled(0)), known.std(0).filled(0)
    found: np.ndarray = (sd > 0) & ((np.maximum(mean, sd) > 5) | (sd < 0.05))
    return found


def as_kind(rows: np.ndarray, kind: Kind, where: str, place: Callable[[Place], str] | None = None) -> np.ndarray:
    """The rows in the type of their kind, uint8 or float32; refused where they do not fit."""
    if kind == "binary":
        if not is_binary(rows):
            at = first_place(_neither(rows))
            raise UserError(f"{where} is said to be binary, but {_place(at)} is {rows[at]:.6g}: give 0 or 1")
        return np.ascontiguousarray(rows, dtype=np.float32 if missing_mask(rows).any() else np.uint8)
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(rows, dtype=np.float32)
    if np.isinf(narrow).any():
        at = first_place(np.isinf(narrow))
        head = place(at) if place else f"{where}, {_place(at)},"
        raise UserError(f"{head} is {rows[at]:.6g}, too large for float32: scale the data first")
    return narrow


def check_finite(
    rows: np.ndarray, where: str, nan_allowed: bool = False, place: Callable[[Place], str] | None = None
) -> None:
    """Refuse what is no real number, is infinite, or is missing where that is not allowed."""
    if rows.dtype.kind not in "biuf":
        raise UserError(f"{where} holds values of type {rows.dtype}: expected real numbers (bool, integer or float)")
    if rows.dtype.kind == "f":
        bad = np.isinf(rows) if nan_allowed else ~np.isfinite(rows)
        if bad.any():
            at = first_place(bad)
            raise UserError(not_finite(place(at) if place else f"{where}, {_place(at)},", rows[at]))


def not_finite(where: str, value: float) -> str:
    """The message for a value that is missing or infinite."""
    if np.isnan(value):
        return f"{where} is missing (nan): missing values cannot be binarised; drop such rows or fill them first"
    return f"{where} is {value}: only finite numbers can be used; drop such rows or fill them first"


def first_place(bad: np.ndarray) -> Place:
    """The row and column of the first value that is true."""
    row, column = np.unravel_index(int(bad.argmax()), bad.shape)
    return int(row), int(column)


def _place(at: Place) -> str:
    return f"row {at[0]}, column {at[1]} (counting from 0)"
