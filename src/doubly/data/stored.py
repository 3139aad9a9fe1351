"""Rows that stay in their files, or in memory as bits: arrays in files, folders of shards, and views of them."""

import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from doubly.core.errors import UserError
from doubly.core.rows import StoredRows, blocks
from doubly.data.dataset import Kind, check_finite, is_binary, missing_mask
from doubly.data.formats import damage_named, free_memory, open_arrays, read_parquet, suffix_of

BLOCK_BYTES = 2**18
"""Of rows that are read together: so many bytes take as long to read from a disk as to find."""
OPEN = 8
"""Compressed shards that are kept in memory: twice as many as are mixed, since blocks may begin within a shard."""
SHARDS = (".npy", ".npz", ".parquet")
LARGE = 2**28
"""Bytes of an array from which on it stays in its file, unless something else is said."""
PACKED_FROM = 2**26
"""Cells of bits from which on they are kept as bits."""


class ArrayFile(StoredRows):
    """The array of a .npy file, of which rows are read when they are asked for.

    The file is read, not mapped: a mapped file that is cut short ends the process, and its pages count as memory.
    """

    def __init__(self, path: Path):
        with damage_named(path):
            self._path, self._file = path, path.open("rb", buffering=0)
            version = np.lib.format.read_magic(self._file)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_columns, self.dtype = header(self._file)
            self._start = self._file.tell()
        if len(shape) not in (2, 3):
            raise UserError(f"{path} must be rows by columns or images by height by width, got shape {shape}")
        if min(shape) < 1:
            raise UserError(f"{path} has no values: expected rows of numbers, got shape {shape}")
        if self.dtype.kind not in "biuf":
            raise UserError(f"{path} holds values of type {self.dtype}: expected numbers (bool, integer or float)")
        if by_columns:
            raise UserError(f"{path} has its columns one after the other: save np.ascontiguousarray(rows) instead")
        needed = self._start + math.prod(shape) * self.dtype.itemsize
        if (size := os.path.getsize(path)) < needed:
            raise UserError(f"{path} is cut short: it must have {needed} bytes for its shape {shape}, got {size}")
        self.row_shape = tuple(map(int, shape[1:]))
        self.shape = (int(shape[0]), math.prod(self.row_shape))
        self.block = _block(self)
        self._row = self.shape[1] * self.dtype.itemsize

    def read(self, numbers: np.ndarray) -> np.ndarray:
        order = np.argsort(numbers, kind="stable")
        ordered = np.empty((len(numbers), self.shape[1]), self.dtype)
        wanted = numbers[order]
        ends = [*(np.flatnonzero(np.diff(wanted) != 1) + 1), len(wanted)]  # of rows that lie behind each other
        first = 0
        for end in ends:
            self._read_into(ordered[first:end], self._start + int(wanted[first]) * self._row)
            first = end
        found = np.empty_like(ordered)
        found[order] = ordered
        return found

    def _read_into(self, rows: np.ndarray, start: int) -> None:
        content, done = rows.reshape(-1).view(np.uint8).data, 0
        while done < len(content):  # a single call reads at most 2 GB
            if not (got := os.preadv(self._file.fileno(), [content[done:]], start + done)):
                raise UserError(f"{self._path} was cut short while it was read: put it back")
            done += got


class Packed(StoredRows):
    """Bits in memory, eight to a byte."""

    dtype = np.dtype(np.uint8)

    def __init__(self, bits: np.ndarray, width: int):
        """Rows of packed bits, as np.packbits gives them along the columns."""
        self._bits, self.shape = bits, (len(bits), width)

    @classmethod
    def of(cls, rows: "np.ndarray | StoredRows") -> "Packed":
        """Rows of 0 and 1, packed."""
        bits = np.empty((len(rows), -(-rows.shape[1] // 8)), np.uint8)
        done = 0
        for block in blocks(rows):
            bits[done : done + len(block)] = np.packbits(block != 0, axis=1)
            done += len(block)
        return cls(bits, rows.shape[1])

    def read(self, numbers: np.ndarray) -> np.ndarray:
        return np.unpackbits(self._bits[numbers], axis=1, count=self.shape[1])


class Shards(StoredRows):
    """The rows of several files, one after the other. Compressed ones are read whole, and a few are kept."""

    def __init__(self, paths: Sequence[Path]):
        self._paths = tuple(paths)
        self._open: OrderedDict[int, StoredRows | np.ndarray] = OrderedDict()
        sizes, first = [], None
        for at, path in enumerate(self._paths):
            part = self._part(at)
            shape = getattr(part, "row_shape", part.shape[1:])
            if first is None:
                first, self.row_shape, self.dtype = path, shape, part.dtype
            elif shape != self.row_shape:
                raise UserError(f"{path} has rows of shape {shape}, {first.name} of {self.row_shape}: make them alike")
            self.dtype = np.promote_types(self.dtype, part.dtype)
            sizes.append(len(part))
        self._starts = np.cumsum([0, *sizes])
        self.shape = (int(self._starts[-1]), math.prod(self.row_shape))
        apart = all(suffix_of(path) == ".npy" for path in self._paths)
        self.block, self.window = (_block(self), 64) if apart else (max(1, min(sizes)), OPEN // 2)

    def read(self, numbers: np.ndarray) -> np.ndarray:
        found = np.empty((len(numbers), self.shape[1]), self.dtype)
        part_of = np.searchsorted(self._starts, numbers, side="right") - 1
        for at in np.unique(part_of):
            chosen = part_of == at
            found[chosen] = self._part(int(at))[numbers[chosen] - self._starts[at]]
        return found

    def _part(self, at: int) -> StoredRows | np.ndarray:
        if at in self._open:
            self._open.move_to_end(at)
            return self._open[at]
        path = self._paths[at]
        part: StoredRows | np.ndarray = ArrayFile(path) if suffix_of(path) == ".npy" else _whole(path)
        self._open[at] = part
        while sum(isinstance(each, np.ndarray) for each in self._open.values()) > OPEN:
            del self._open[next(key for key, each in self._open.items() if isinstance(each, np.ndarray))]
        return part


class Chosen(StoredRows):
    """Some rows of others, as values of one type."""

    def __init__(self, rows: StoredRows, numbers: np.ndarray | None, dtype: np.dtype[Any]):
        self._rows, self._numbers, self.dtype = rows, numbers, dtype
        self.shape = (len(rows) if numbers is None else len(numbers), rows.shape[1])
        self.block, self.window = rows.block, rows.window

    def read(self, numbers: np.ndarray) -> np.ndarray:
        return self._rows.read(numbers if self._numbers is None else self._numbers[numbers]).astype(self.dtype)


def _block(rows: StoredRows) -> int:
    return max(1, BLOCK_BYTES // (rows.shape[1] * rows.dtype.itemsize))


def _whole(path: Path) -> np.ndarray:
    """The rows of one compressed shard."""
    if suffix_of(path) == ".parquet":
        sheet = read_parquet(path)
        for name, column in zip(sheet.names, sheet.columns, strict=True):
            if column.dtype == object:
                raise UserError(f"column {name!r} of {path} has texts: a folder of shards must have numbers alone")
        return np.stack(sheet.columns, axis=1)
    with open_arrays(path) as arrays:
        names = [name for name in arrays if name not in ("dim", "shape")]
        if len(names) != 1:
            raise UserError(f"{path} has the arrays {', '.join(names) or 'none'}: a shard must have one")
        rows = np.asarray(arrays[names[0]])
        if "dim" in arrays:
            dim = int(np.asarray(arrays["dim"]).item())
            if rows.ndim != 2 or rows.dtype != np.uint8 or dim < 1 or rows.shape[1] != (dim + 7) // 8:
                raise UserError(
                    f"{path} has {rows.dtype} of shape {rows.shape}, which are no rows of {dim} packed bits (dim): "
                    f"save it again"
                )
            rows = np.unpackbits(rows, axis=1, count=dim)
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "biuf":
        raise UserError(f"{path} must have rows by columns of numbers, got {rows.dtype} of shape {rows.shape}")
    return rows


class Seen(NamedTuple):
    """What all rows of a store were seen to be."""

    binary: bool
    missing: bool


def look(rows: StoredRows, where: str) -> Seen:
    """Go through all rows once; infinite values are refused."""
    binary, missing, done = True, False, 0
    for block in blocks(rows):
        first = done  # for the message, whose rows are counted in the whole file

        def place(at: tuple[int, int], first: int = first) -> str:
            return f"{where}, row {first + at[0]}, column {at[1]} (counting from 0),"

        check_finite(block, where, nan_allowed=True, place=place)
        if block.dtype.kind == "f" and (np.abs(np.nan_to_num(block)) > np.finfo(np.float32).max).any():
            raise UserError(f"{where} has values that are too large for float32: scale the data first")
        binary = binary and is_binary(block)
        missing = missing or bool(missing_mask(block).any())
        done += len(block)
    return Seen(binary, missing)


def as_stored(rows: StoredRows, numbers: np.ndarray | None, kind: Kind, missing: bool) -> StoredRows:
    """Some of the rows (None: all), as values of their kind. Bits are packed into memory if a quarter of it holds
    them."""
    wanted = np.dtype(np.uint8 if kind == "binary" and not missing else np.float32)
    found = Chosen(rows, numbers, wanted)
    if wanted == np.uint8 and kind == "binary" and found.shape[0] * found.shape[1] / 8 < free_memory() / 4:
        return Packed.of(found)
    return found


def is_shard_folder(path: Path) -> bool:
    """Whether a folder has files of rows in it."""
    return path.is_dir() and bool(shard_files(path))


def shard_files(path: Path) -> list[Path]:
    """The files of rows in a folder, by name."""
    return sorted(file for file in path.iterdir() if file.is_file() and suffix_of(file) in SHARDS)
