"""The user's files: rows from .npz, .npy and .csv, and the splits that are held out of them.

Lines and columns of a text file are counted from 1 in messages, as editors do; rows of an array from 0.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from doubly.data.dataset import SPLITS, Data, Kind, as_kind, check_finite, is_binary, not_finite
from doubly.errors import UserError

SUFFIXES = (".npz", ".npy", ".csv")


def from_file(path: Path, seed: int, fractions: tuple[float, float]) -> Data:
    """Data from a file; of valid and test, those it lacks are held out of its rows, at random by the seed."""
    with open_arrays(path) as arrays:
        single = _meant(arrays, ("train", "X", "x", "data"), path)
        names = [name for name in SPLITS if name in arrays] if single == "train" else [single]
        tables = [table_in(arrays, name, path) for name in names]
        shape = _stated_shape(arrays, path) or tables[0].shape
    found = dict(zip(names, tables, strict=True))
    for name, table in found.items():
        check_finite(table.rows, f"{name} in {path}")  # before rows are held out: the message says where they lie
    kind: Kind = "binary" if all(is_binary(table.rows) for table in tables) else "real"
    given = {
        "train" if name == single else name: as_kind(table.rows, kind, f"{name} in {path}")
        for name, table in found.items()
    }
    splits = _hold_out(given, seed, fractions, path)
    return Data(path.stem, splits["train"], splits["valid"], splits["test"], shape, kind)


def read_table(path: str | os.PathLike[str]) -> np.ndarray:
    """One float32 array of rows from a file, for scoring or filling in; missing values are NaN."""
    path = Path(path).expanduser()
    with open_arrays(path, nan_allowed=True) as arrays:
        name = _meant(arrays, ("X", "x", "data", "test"), path)
        rows = table_in(arrays, name, path).rows
    check_finite(rows, f"{name} in {path}", nan_allowed=True)
    return as_kind(rows, "real", f"{name} in {path}")


class Table(NamedTuple):
    """Rows of numbers and the shape of one row."""

    rows: np.ndarray
    shape: tuple[int, ...]


@contextmanager
def open_arrays(path: Path, nan_allowed: bool = False) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of a file by name, each read when it is asked for; where a file has but one it is called `data`."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"cannot read {path}: expected a file ending in .npz, .npy or .csv")
    if not os.path.isfile(path):  # Path.is_file raises where a name is too long
        raise UserError(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".csv":
            yield {"data": _read_csv(path, nan_allowed)}
            return
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            yield {"data": loaded}
        else:
            with loaded:
                yield loaded
    except UserError:
        raise
    except Exception as error:  # a damaged file fails in zipfile, zlib, the header's parser, the allocator, …
        if "pickle" in str(error):
            raise UserError(
                f"{path} is no NumPy file or holds Python objects, which are never loaded since they can run code: "
                f"save plain numbers with np.save or np.savez"
            ) from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"cannot read {path}, it may be damaged ({reason}): save or fetch it again") from error


def _meant(arrays: Mapping[str, np.ndarray], preferred: tuple[str, ...], path: Path) -> str:
    """The name of the array to read: the first of those preferred, or the only one there is."""
    names = [name for name in arrays if name not in ("dim", "shape")]
    for name in preferred:
        if name in names:
            return name
    if len(names) != 1:
        found = f"the arrays {', '.join(names)}" if names else "no arrays"
        raise UserError(f"{path} has {found}: expected a single one, or one called {', '.join(preferred)}")
    return names[0]


def table_in(arrays: Mapping[str, np.ndarray], name: str, path: Path) -> Table:
    """The array of that name as a table: bits unpacked, images made flat."""
    array, where = np.asarray(arrays[name]), f"{name} in {path}"
    if "dim" in arrays:
        array = _unpack(array, int(np.asarray(arrays["dim"]).item()), where)
    if array.ndim not in (2, 3):
        raise UserError(f"{where} must be rows by columns or images by height by width, got shape {array.shape}")
    return Table(array.reshape(len(array), math.prod(array.shape[1:])), array.shape[1:])


def _unpack(array: np.ndarray, dim: int, where: str) -> np.ndarray:
    if array.ndim == 2 and array.dtype == np.uint8 and array.shape[1] == (dim + 7) // 8:
        return np.unpackbits(array, axis=1, count=dim)
    if math.prod(array.shape[1:]) == dim:
        return array
    raise UserError(
        f"{where} has shape {array.shape}, neither {dim} columns (dim) nor {(dim + 7) // 8} of packed uint8"
    )


def _stated_shape(arrays: Mapping[str, np.ndarray], path: Path) -> tuple[int, ...] | None:
    if "shape" not in arrays:
        return None
    shape = np.ravel(arrays["shape"])
    if shape.dtype.kind not in "iu":
        raise UserError(f"shape in {path} must be whole numbers such as [8, 8], got type {shape.dtype}")
    return tuple(int(n) for n in shape)


def _hold_out(
    splits: dict[str, np.ndarray], seed: int, fractions: tuple[float, float], path: Path
) -> dict[str, np.ndarray]:
    """Take valid and test, where they are not given, off the rows of train."""
    if min(fractions) < 0 or not sum(fractions) < 1:
        raise UserError(f"the fractions held out must not be negative and add up to less than 1, got {fractions}")
    if seed < 0:
        raise UserError(f"the seed must not be negative, got {seed}")
    rows = splits["train"]
    sizes = {
        name: max(1, round(fraction * len(rows)))
        for name, fraction in zip(("valid", "test"), fractions, strict=True)
        if name not in splits
    }
    if not sizes:
        return splits
    if sum(sizes.values()) >= len(rows):
        raise UserError(
            f"{path} has {len(rows)} rows, too few to hold out {' and '.join(sizes)}: "
            f"give more rows, or smaller fractions"
        )
    *held_out, rest = np.split(np.random.default_rng(seed).permutation(len(rows)), np.cumsum([*sizes.values()]))
    return splits | {"train": rows[rest]} | {name: rows[i] for name, i in zip(sizes, held_out, strict=True)}


def _read_csv(path: Path, nan_allowed: bool) -> np.ndarray:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = (line for line in file if line.strip())
        first = next(lines, None)
        if first is None:
            raise UserError(f"{path} is empty: expected lines of numbers separated by commas")
        if header := _is_header(first):
            first = next(lines, None)
            if first is None:
                raise UserError(f"{path} has a header but no rows: expected lines of numbers separated by commas")
        try:
            rows = np.loadtxt(chain([first], lines), delimiter=",", quotechar='"', comments=None, ndmin=2)
        except ValueError:
            return _parse_csv(path, header, nan_allowed)
    return rows if nan_allowed or np.isfinite(rows).all() else _parse_csv(path, header, nan_allowed)


def _parse_csv(path: Path, header: bool, nan_allowed: bool) -> np.ndarray:
    """The slow way: it knows missing cells, and says in which line something is wrong."""
    rows: list[np.ndarray] = []
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        numbered = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        if header:
            next(numbered)
        for number, line in numbered:
            cells = _cells(line)
            values = [_number(cell) for cell in cells]
            if None in values:
                column = values.index(None)
                raise UserError(
                    f"line {number}, column {column + 1} of {path} is {cells[column][:40]!r}, which is no number: "
                    f"expected numbers separated by commas"
                )
            row = np.array(values, dtype=float)
            if rows and len(row) != len(rows[0]):
                raise UserError(
                    f"line {number} of {path} has {len(row)} cells, but the rows before it have {len(rows[0])}: "
                    f"give every row as many"
                )
            if not nan_allowed and not np.isfinite(row).all():
                column = int(np.isfinite(row).argmin())
                raise UserError(not_finite(f"line {number}, column {column + 1} of {path}", row[column]))
            rows.append(row)
    return np.stack(rows)


def _is_header(line: str) -> bool:
    """Whether it has names and no number; missing cells do not count. A row with one stray cell is no header."""
    values = [_number(cell) for cell in _cells(line)]
    return None in values and all(value is None or math.isnan(value) for value in values)


def _cells(line: str) -> list[str]:
    return [cell.strip().strip('"').strip() for cell in line.split(",")]


def _number(cell: str) -> float | None:
    """The cell's value, NaN where it is missing, None where it is no number."""
    if cell.lower() in ("", "na"):
        return math.nan
    try:
        return float(cell)
    except ValueError:
        return None
