"""Rows that are read when they are asked for, so that training data may be larger than memory.

Training asks three things of its rows, whether they are a tensor or stored elsewhere: some of them by number, all of
them in blocks, and an order for an epoch.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

CELLS = 2**20
"""Cells that are read at a time, where all rows are gone through."""


class StoredRows(ABC):
    """A matrix of numbers that is not in memory as such.

    A subclass gives `shape`, `dtype`, and `read`. It may give `block`, the number of rows that lie together and are
    cheap to read together, and `window`, the number of blocks that are cheap to have at hand: an epoch then goes
    through the rows by windows of blocks.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    block: int = 1
    window: int = 64
    ndim = 2
    device = torch.device("cpu")
    """Where rows are put that are asked for by a tensor."""

    @abstractmethod
    def read(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers, in this order, as a new array."""

    def on(self, device: "torch.device | str") -> "StoredRows":
        """The same rows, put on that device when they are asked for."""
        found = copy.copy(self)
        found.device = torch.device(device)
        return found

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, at: Tensor) -> Tensor: ...
    @overload
    def __getitem__(self, at: "slice | int | np.ndarray") -> np.ndarray: ...
    def __getitem__(self, at: "Tensor | slice | int | np.ndarray") -> "Tensor | np.ndarray":
        """Rows by slice, number, numbers or truths, as NumPy has them; a tensor of numbers gives a tensor."""
        if isinstance(at, Tensor):
            return torch.from_numpy(self.read(at.cpu().numpy())).to(self.device)
        found = np.arange(*at.indices(len(self))) if isinstance(at, slice) else np.arange(len(self))[at]
        rows = self.read(np.atleast_1d(found))
        return rows if np.ndim(found) else rows[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows in memory."""
        return self.read(np.arange(len(self))).astype(dtype or self.dtype, copy=False)


def blocks(rows: "Tensor | np.ndarray | StoredRows", cells: int = CELLS) -> Iterator[Any]:
    """All rows in their order, so many cells at a time: tensors of a tensor, arrays otherwise."""
    size = max(1, cells // rows.shape[1])
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def shuffled(rows: "Tensor | StoredRows", rng: torch.Generator) -> Tensor:
    """The numbers of all rows in the order of an epoch.

    Rows of a tensor are in any order. Stored rows lie in blocks that are cheap to read together: blocks are in any
    order, and within a window of W blocks that follow each other, rows are in any order. With rho the share of the
    variance of a gradient that lies between blocks, the variance of a mini-batch of B rows is 1 + rho (B - 1) / W times
    that of rows in any order. Where the file has its rows in any order, rho is 1 / block or so: next to nothing.
    """
    n = len(rows)
    order = torch.randperm(n, generator=rng, device=rows.device)
    if not isinstance(rows, StoredRows) or (number := -(-n // rows.block)) <= rows.window or rows.block == 1:
        return order
    window = torch.randperm(number, generator=rng, device=rows.device) // rows.window  # of each block
    return order[torch.argsort(window[order // rows.block], stable=True)]
