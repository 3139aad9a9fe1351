"""Matrices of numbers from MATLAB files of version 5 to 7 (.mat), read here because scipy's reader can crash on damage.

A file is a header of 128 bytes and elements, each a type, a size and content; a matrix is an element made of elements:
flags, dimensions, name, values. What is no matrix of real numbers (texts, cells, structures) is passed over.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from doubly.core.errors import UserError

MATRIX, COMPRESSED = 14, 15
# how values are stored (MATLAB keeps whole numbers of any class in the smallest type), and what they then are
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
COMPLEX = 0x800

Order = Literal["<", ">"]


def read_matrices(path: Path, most: float = math.inf) -> dict[str, np.ndarray]:
    """The matrices of a file by name; one that unpacks to more than `most` bytes is refused before it is unpacked."""
    content = path.read_bytes()
    if content.startswith(b"MATLAB 7.3"):
        raise UserError(f"{path} is a MATLAB 7.3 file, which cannot be read here: save it with -v7 in MATLAB")
    if content[126:128] not in (b"IM", b"MI"):
        raise UserError(f"{path} is no MATLAB file of version 5 to 7: save it with -v7 in MATLAB, or fetch it again")
    order: Order = "<" if content[126:128] == b"IM" else ">"
    found = {}
    try:
        for kind, body in _elements(content[128:], order):
            if kind == COMPRESSED:
                kind, body = next(_elements(_unpacked(body, order, most), order))
            if kind == MATRIX and (matrix := _matrix(body, order)) is not None:
                found[matrix[0]] = matrix[1]
    except (ValueError, KeyError, StopIteration, zlib.error, struct.error, OverflowError) as error:
        raise UserError(f"cannot read {path}, it may be damaged ({error}): save or fetch it again") from None
    return found


def _unpacked(body: bytes, order: Order, most: float) -> bytes:
    """A compressed element, which says how long it is: no more than that is unpacked."""
    stream = zlib.decompressobj()
    start = stream.decompress(body, 8)
    kind, size = struct.unpack(f"{order}II", start)
    size = 0 if kind >> 16 else size
    if size > most:
        raise ValueError(f"an element unpacks to {size / 1e9:.1f} GB, more than memory holds")
    return start + stream.decompress(stream.unconsumed_tail, max(1, size))


def _elements(content: bytes, order: Order) -> Iterator[tuple[int, bytes]]:
    """The type and the content of each element in a row of them."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from(f"{order}II", content, at)
        if kind >> 16:  # up to four bytes, kept beside a type and size of two bytes each
            kind, size, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        else:
            start = at + 8
            end = start + size + (0 if kind == COMPRESSED else -size % 8)
        if start + size > len(content):
            raise ValueError(f"an element of {size} bytes is cut short")
        yield kind, content[start : start + size]
        at = end


def _matrix(body: bytes, order: Order) -> tuple[str, np.ndarray] | None:
    """The name and the values of a matrix; None where its values are no real numbers."""
    elements = _elements(body, order)
    flags = struct.unpack_from(f"{order}I", next(elements)[1])[0]
    if flags & 0xFF not in CLASSES or flags & COMPLEX:
        return None
    shape = np.frombuffer(next(elements)[1], f"{order}i4")
    name = next(elements)[1].decode("ascii")
    kind, content = next(elements)
    values = np.frombuffer(content, np.dtype(STORED[kind]).newbyteorder(order))
    return name, values.reshape(shape, order="F").astype(CLASSES[flags & 0xFF])
