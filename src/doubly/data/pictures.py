"""Folders of pictures: grey PNG files of one size, as arrays; in folders train, valid and test, or all in one."""

import os
from pathlib import Path

import numpy as np

from doubly.core.errors import UserError
from doubly.core.extras import extra
from doubly.data.formats import check_memory

SPLIT_FOLDERS = ("train", "valid", "test")
MOST_PIXELS = 2**22  # of one picture
GREY = "convert them first, for example with Pillow: Image.open(file).convert('L').save(file)"


def is_picture_folder(path: Path) -> bool:
    """Whether there are PNG files in the folder, or in a folder train of it."""
    return os.path.isdir(path) and bool(_files(path) or _files(path / "train"))


def read_pictures(path: Path) -> dict[str, np.ndarray]:
    """Arrays of pictures by split, or `data`: (pictures, height, width), greys from 0 to 255."""
    folders = {name: path / name for name in SPLIT_FOLDERS if _files(path / name)} or {"data": path}
    files = {name: _files(folder) for name, folder in folders.items()}
    first = _read(files[next(iter(files))][0], None)
    check_memory(path, first.nbytes * sum(map(len, files.values())))
    return {name: np.stack([_read(file, first.shape) for file in each]) for name, each in files.items()}


def _files(folder: Path) -> list[Path]:
    if not os.path.isdir(folder):
        return []
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))
    return [folder / name for name in names if name.lower().endswith(".png")]


def _read(file: Path, shape: tuple[int, ...] | None) -> np.ndarray:
    with extra("data", "reading pictures"):
        from PIL import Image

    try:
        with Image.open(file, formats=("PNG",)) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise UserError(f"{file} has {picture.width} x {picture.height} pixels, at most {MOST_PIXELS} are read")
            if shape is not None and (picture.height, picture.width) != shape:
                raise UserError(
                    f"{file} has {picture.height} x {picture.width} pixels, the first picture {shape[0]} x {shape[1]}: "
                    "give all the same size"
                )
            if picture.mode not in ("1", "L"):
                kind = {"RGB": "colours", "RGBA": "colours", "P": "a palette of colours"}.get(
                    picture.mode, "other values"
                )
                raise UserError(f"{file} has {kind} ({picture.mode}), but pictures must be greys of 8 bits: {GREY}")
            values = np.asarray(picture.convert("L"))
    except UserError:
        raise
    except Exception as error:  # Pillow raises whatever a damaged file brings about
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"cannot read {file}, it may be damaged ({reason}): save it again") from None
    return values
