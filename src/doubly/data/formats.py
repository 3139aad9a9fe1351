"""The public formats: arrays from .npz, .npy, .mat, .amat, idx, and .pkl.gz without executing pickles; .parquet tables.

No reader here runs code that a file brings along.
"""

import gzip
import io
import math
import os
import pickle
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from doubly.core.errors import UserError
from doubly.core.extras import extra
from doubly.data.columns import Sheet, sheet_of
from doubly.data.matlab import read_matrices

TABLES = (".csv", ".tsv", ".parquet", ".xlsx")
SUFFIXES = (
    ".npz",
    ".npy",
    ".csv",
    ".tsv",
    ".parquet",
    ".xlsx",
    ".mat",
    ".amat",
    ".pkl.gz",
    "-ubyte",
    "-ubyte.gz",
    ".idx",
    ".idx.gz",
)
EXPECTED = ".npz, .npy or .csv (also .tsv, .xlsx, .parquet, .mat, .amat, .pkl.gz and idx)"


def suffix_of(path: Path) -> str:
    """Which of the formats a name tells, or nothing."""
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def check_readable(path: Path) -> None:
    """Refuse a name that tells no format, a file that is not there, and one that memory cannot hold."""
    if os.path.isdir(path):
        raise UserError(
            f"{path} is a folder: name a file in it, ending in {EXPECTED}, or a folder of .png pictures, or of .npy, "
            f".npz or .parquet files of numbers"
        )
    if not suffix_of(path):
        raise UserError(f"cannot read {path}: expected a file ending in {EXPECTED}")
    if not os.path.isfile(path):  # Path.is_file raises where a name is too long
        raise UserError(f"there is no file {path}")
    if suffix_of(path) != ".npz":  # of which only some arrays are read
        check_memory(path, os.path.getsize(path))


COPIES = 2  # as read, and in splits
CELL = 40  # bytes of a cell of a table as a Python object, about


def check_memory(path: Path, size: int) -> None:
    """Refuse rows of so many bytes where memory does not suffice, rather than be killed half way."""
    check_room(COPIES * size, f"{path} holds {size / 1e9:.1f} GB, which", "give fewer rows or columns")


def check_room(size: float, what: str, advice: str) -> None:
    """Refuse what needs so many bytes of memory, if there are not so many."""
    if (free := free_memory()) < size:
        raise UserError(f"{what} needs about {size / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free: {advice}")


def unpacked(path: Path, most: float | None = None) -> bytes:
    """The content of a gzip file, refused as soon as it grows beyond `most` bytes or half of what memory has left."""
    limit = min(free_memory() / COPIES, math.inf if most is None else most)
    content = bytearray()
    with gzip.open(path) as file:
        while block := file.read(1 << 20):
            content += block
            if len(content) > limit:
                told = (
                    f"more than {limit:.0f} bytes" if most is not None and limit == most else "more than memory holds"
                )
                raise UserError(f"{path} unpacks to {told}: it is damaged, or made to do so; fetch it again")
    return bytes(content)


def free_memory() -> float:
    """Bytes that can be had: of the machine and of the container; infinite where neither says."""
    found = [math.inf]
    with suppress(OSError, ValueError, LookupError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].split()[0]))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


@contextmanager
def open_arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of a file by name, each read when it is asked for; where a file has but one it is called `data`."""
    check_readable(path)
    with damage_named(path):
        suffix = suffix_of(path)
        if suffix == ".mat":
            yield read_mat(path)
        elif suffix == ".amat":
            yield {"data": read_amat(path)}
        elif suffix == ".pkl.gz":
            yield read_pickle(path)
        elif suffix in (".npz", ".npy"):
            loaded = np.load(path, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                yield {"data": loaded}
            else:
                with loaded:
                    check_memory(path, max((part.file_size for part in loaded.zip.infolist()), default=0))
                    yield loaded
        else:
            yield {"data": read_idx(path)}


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes fail into one line."""
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:  # a damaged header may also ask for more than there is
        raise UserError(f"{path} does not fit into memory, or is damaged: give fewer rows, or save it again") from error
    except Exception as error:  # a damaged file fails in zipfile, zlib, the header's parser, the allocator, …
        if "pickle" in str(error):
            raise UserError(
                f"{path} is no NumPy file or holds Python objects, which are never loaded since they can run code: "
                f"save plain numbers with np.save or np.savez"
            ) from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"cannot read {path}, it may be damaged ({reason}): save or fetch it again") from error


def read_mat(path: Path) -> dict[str, np.ndarray]:
    """The matrices of a MATLAB file; train_data, val_data and test_data are called train, valid and test."""
    names = {"train_data": "train", "val_data": "valid", "valid_data": "valid", "test_data": "test"}
    found = read_matrices(path, free_memory() / COPIES)
    return {names.get(name, name): values for name, values in found.items()}


def read_amat(path: Path) -> np.ndarray:
    """Rows of numbers separated by spaces; some public copies are MATLAB files with one matrix by the same name."""
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"MATLAB":
        arrays = read_mat(path)
        if len(arrays) != 1:
            raise UserError(f"{path} has the matrices {', '.join(arrays) or 'none'}: expected one")
        return next(iter(arrays.values()))
    content = path.read_bytes()
    if not content.strip():
        raise UserError(f"{path} is empty: expected lines of numbers separated by spaces")
    bits = _bits(content)
    return np.loadtxt(io.BytesIO(content), ndmin=2) if bits is None else bits


def _bits(content: bytes) -> np.ndarray | None:
    """Lines such as `0 1 1`, all equally long, a hundred times as fast as reading numbers; None where they are not."""
    line = content.find(b"\n") + 1
    if line < 2 or line % 2 or len(content) % line:
        return None
    text = np.frombuffer(content, np.uint8).reshape(-1, line)
    digits, gaps = text[:, ::2] - np.uint8(ord("0")), text[:, 1::2]
    if digits.max() > 1 or (gaps[:, :-1] != ord(" ")).any() or (gaps[:, -1] != ord("\n")).any():
        return None
    return digits


IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """The array of an idx file (the format of MNIST): two zeros, a type, the number of axes, their lengths, values."""
    content = unpacked(path, _idx_size(path)) if path.suffix.lower() == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES or not content[3]:
        raise UserError(f"{path} is no idx file: it must begin with two zeros, a type and a number of axes")
    if len(content) < (start := 4 + 4 * content[3]):
        raise UserError(f"{path} is cut short, within its header: fetch it again")
    shape, kind = struct.unpack(f">{content[3]}I", content[4:start]), np.dtype(IDX_TYPES[content[2]])
    expected = start + kind.itemsize * int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise UserError(f"{path} must have {expected} bytes for its shape {shape}, got {len(content)}: fetch it again")
    values = np.frombuffer(content, kind, offset=start).reshape(shape)
    return values.astype(kind.newbyteorder("="))


def _idx_size(path: Path) -> int:
    """How many bytes the header of a gzipped idx file promises, with one more, by which a wrong length is found."""
    with gzip.open(path) as file:
        start = file.read(4)
        axes = start[3] if len(start) == 4 else 0
        lengths = file.read(4 * axes)
    kind = np.dtype(IDX_TYPES.get(start[2], ">u1")) if len(start) == 4 else np.dtype("u1")
    shape = struct.unpack(f">{len(lengths) // 4}I", lengths[: 4 * (len(lengths) // 4)])
    size = 4 + 4 * axes + int(kind.itemsize) * int(math.prod(shape)) + 1
    check_memory(path, size)
    return max(size, 1 << 10)


def read_parquet(path: Path) -> Sheet:
    """The table of a parquet file; rows are counted from 0."""
    with extra("parquet", f"reading {path}"):
        from pyarrow import parquet
    about = parquet.read_metadata(path)
    check_memory(path, CELL * about.num_rows * about.num_columns)  # which a small file can have many of
    table = parquet.read_table(path)
    columns = {}
    for name, values in zip(table.column_names, table.columns, strict=True):
        if name in columns:
            raise UserError(f"{path} has several columns called {name!r}: give each its own name")
        columns[name] = values.to_pylist()
    return sheet_of(columns)._replace(path=str(path))


# Pickles, without executing them


def read_pickle(path: Path) -> dict[str, np.ndarray]:
    """The arrays in a gzipped pickle: one array, names with arrays, or pairs (x, labels) of train, valid and test.

    The pickle's instructions are followed with stand-ins for NumPy's types, and every other name is refused: nothing
    that the file names is ever imported or called.
    """
    content = io.BytesIO(unpacked(path))
    try:
        found = _ArraysOnly(content, encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} is no whole file of arrays ({error}): fetch it again") from None
    return _named_arrays(found, path)


def _named_arrays(found: Any, path: Path) -> dict[str, np.ndarray]:
    if isinstance(found, _Array):
        return {"data": found.values}
    if isinstance(found, dict):
        return {str(name): value.values for name, value in found.items() if isinstance(value, _Array)}
    if isinstance(found, tuple | list) and len(found) in (2, 3):
        parts = [part[0] if isinstance(part, tuple | list) and part else part for part in found]
        if all(isinstance(part, _Array) for part in parts):
            names = ("train", "valid", "test") if len(parts) == 3 else ("train", "test")
            return {name: part.values for name, part in zip(names, parts, strict=True)}
    raise UserError(f"{path} holds a {type(found).__name__}: expected an array, or train, valid and test arrays")


_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class _Dtype:
    """Stands in for numpy.dtype: plain numbers only."""

    def __init__(self, code: Any, *_: Any):
        text = code.decode() if isinstance(code, bytes) else str(code)
        if text.lstrip("<>|=") not in _NUMBERS:
            raise pickle.UnpicklingError(f"it has values of type {text[:20]!r}, not plain numbers")
        self.kind = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        if state[1] in (">", b">"):
            self.kind = self.kind.newbyteorder(">")


class _Array:
    """Stands in for numpy.ndarray: its values come from bytes."""

    def __init__(self, *_: Any):
        self.values = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, content = state
        self.values = _from_bytes(content, kind, shape, "F" if fortran else "C")


def _from_bytes(content: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    raw = content.encode("latin1") if isinstance(content, str) else content
    if not isinstance(raw, bytes | bytearray) or not isinstance(kind, _Dtype) or order not in ("C", "F"):
        raise pickle.UnpicklingError("it has an array that is not made of bytes")
    values = np.frombuffer(raw, kind.kind).reshape(shape, order=order)
    return values.astype(kind.kind.newbyteorder("="))


def _frombuffer(content: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.values = _from_bytes(content, kind, shape, order)
    return array


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("it has bytes in an unknown writing")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}
for _home in ("numpy.core", "numpy._core"):  # NumPy 1 and 2
    _STAND_INS[f"{_home}.multiarray", "_reconstruct"] = lambda *_: _Array()
    _STAND_INS[f"{_home}.numeric", "_frombuffer"] = _frombuffer


class _ArraysOnly(pickle._Unpickler):
    """Python's own reader of pickles rather than that in C, which a damaged file can make ask for all memory."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, _Array | _Dtype):  # so that a file cannot change the stand-ins themselves
            raise pickle.UnpicklingError("it fills something that is no array")
        made.__setstate__(state)

    dispatch[pickle.BUILD[0]] = load_build

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not part of an array and was not run")
        return _STAND_INS[module, name]
