"""Rows into files: numbers for programs, pictures for people."""

import io
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from doubly.core.errors import UserError
from doubly.core.files import Folder, write
from doubly.data import Columns

MOST_IN_PICTURE = 10_000


def save_rows(path: Path, rows: np.ndarray, shape: tuple[int, ...], columns: Columns | None = None) -> None:
    """Write rows into a file whose ending says how; `shape` is that of one row, such as (8, 8) for an image.

    `columns` make the table of them that they came from, where the file is a .csv.
    """
    suffix = path.suffix.lower()
    if suffix not in WRITERS:
        raise UserError(f"cannot write rows to {path}: expected a file ending in {', '.join(WRITERS)}")
    save(path, columns.csv(rows).encode() if columns and suffix == ".csv" else WRITERS[suffix](rows, shape))


def check_place(path: Path) -> None:
    """Refuse a place where nothing can be written, before hours of work are spent on what goes there."""
    if os.path.isdir(path):
        raise UserError(f"cannot write {path}: it is a folder; name a file in it")
    if path.parent.exists() and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise UserError(f"cannot write {path}: nothing may be written in {path.parent}; choose another place")


def check_columns(path: Path) -> None:
    """Refuse a file that `save_columns` could not write."""
    if path.suffix.lower() not in COLUMN_WRITERS:
        raise UserError(f"cannot write columns to {path}: expected a file ending in {', '.join(COLUMN_WRITERS)}")
    check_place(path)


def save_columns(path: Path, columns: dict[str, np.ndarray]) -> None:
    """Write named columns, one value for each row, into a file whose ending says how."""
    check_columns(path)
    save(path, COLUMN_WRITERS[path.suffix.lower()](columns))


def _columns_npz(columns: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **columns)
    return buffer.getvalue()


def _columns_csv(columns: dict[str, np.ndarray]) -> bytes:
    lines = [",".join(["row", *columns])]
    lines += [
        ",".join(str(value) for value in values) for values in zip(itertools.count(), *columns.values(), strict=False)
    ]
    return ("\n".join(lines) + "\n").encode()


def save(path: Path, content: bytes) -> None:
    """Write a whole file or, where that cannot be, say why in a line."""
    check_place(path)
    try:
        write(path, content)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot write {path} ({reason}): choose another place") from None


def save_figure(folder: str | Path, name: str, content: bytes) -> Path:
    """Write a picture into the figures of a run folder, which is not left by any link."""
    Folder(Path(folder)).write(f"figures/{name}.png", content)
    return Path(folder) / "figures" / f"{name}.png"


def _npz(rows: np.ndarray, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, rows=rows, shape=np.array(shape))
    return buffer.getvalue()


def _npy(rows: np.ndarray, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()


def _csv(rows: np.ndarray, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    numbers = rows.astype(np.uint8) if rows.dtype == bool else rows
    np.savetxt(buffer, numbers, fmt="%s", delimiter=",")  # %s: the shortest text that reads back as the same number
    return buffer.getvalue()


def _png(rows: np.ndarray, shape: tuple[int, ...]) -> bytes:
    from doubly.analysis.report.figures import (
        image_grid,
        png,
    )

    if len(rows) > MOST_IN_PICTURE:
        raise UserError(
            f"a picture holds at most {MOST_IN_PICTURE} rows, got {len(rows)}: take fewer, or write a .npz file"
        )
    return png(image_grid(rows, shape))


WRITERS: dict[str, Callable[[np.ndarray, tuple[int, ...]], bytes]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".csv": _csv,
    ".png": _png,
}

COLUMN_WRITERS: dict[str, Callable[[dict[str, np.ndarray]], bytes]] = {".csv": _columns_csv, ".npz": _columns_npz}
