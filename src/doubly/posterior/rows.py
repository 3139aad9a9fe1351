"""Rows of the caller's as the model's data layer takes them, and back."""

from numbers import Integral
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.layers import Layer

LARGEST = float(np.finfo(np.float32).max)


def numbers(x: np.ndarray, width: int) -> np.ndarray:
    """Rows of so many columns, of any numbers."""
    try:
        rows = np.asarray(x)
    except ValueError as error:  # lists that are not equally long
        raise UserError(f"the model's rows have {width} columns each, got rows of different lengths") from error
    if rows.ndim != 2 or rows.shape[1] != width:
        raise UserError(f"the model's rows have {width} columns, got an array of shape {rows.shape}")
    if len(rows) == 0:
        raise UserError("there are no rows: give at least one")
    if rows.dtype.kind not in "biuf":
        raise UserError(f"rows must be numbers, got type {rows.dtype}: convert them, as with x.astype(float)")
    return rows


class RowFormat(NamedTuple):
    """What rows must be like."""

    layer: Layer
    """The model's data layer."""
    takes_missing: bool
    """Whether rows may have missing values (NaN), because the proposal has learnt from such."""
    device: torch.device

    def numbers(self, x: np.ndarray) -> np.ndarray:
        """Rows as wide as the model, of any numbers."""
        return numbers(x, self.layer.n_out)

    def tensor(self, x: np.ndarray) -> Tensor:
        """Rows of values that the data layer can have; bytes where they are all 0 or 1."""
        rows, binary = self.numbers(x), self.layer.kind == "binary"
        missing = np.isnan(rows)
        bad = (rows != 0) & (rows != 1) if binary else ~(np.abs(rows) <= LARGEST)
        if self.layer.kind == "mixed":
            bad |= _impossible(self.layer, rows)
        if self.takes_missing:
            bad &= ~missing
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            expected = "0 or 1" if binary else "a finite number (float32)"
            if self.layer.kind == "mixed" and np.isfinite(rows[row, column]):
                expected = "0 or 1, with one 1 among the levels of a column"
            advice = ": it has learnt from complete rows; impute them first" if missing[row, column] else ""
            value = rows[row, column]
            raise UserError(f"row {row}, column {column} is {value}, but the model expects {expected}{advice}")
        narrow = binary and not missing.any()
        return torch.as_tensor(rows.astype(np.uint8 if narrow else np.float32)).to(self.device)

    def array(self, rows: Tensor) -> np.ndarray:
        """Rows of the model for the caller: of type uint8 where they are 0 or 1."""
        values = rows.cpu().numpy()
        return values.astype(np.uint8) if self.layer.kind == "binary" else values


def _impossible(layer: Layer, rows: np.ndarray) -> np.ndarray:
    """Entries of discrete columns that are no bit, and the first of a column's levels where not one of them is 1."""
    bad, start = np.zeros(rows.shape, dtype=bool), 0
    for block in layer.blocks():
        part, where = rows[:, start : start + block.width], bad[:, start : start + block.width]
        if block.discrete:
            where |= (part != 0) & (part != 1) & ~np.isnan(part)
        if block.width > 1:
            ones, whole = np.nansum(part, 1), ~np.isnan(part).any(1)
            where[:, 0] |= ~where.any(1) & ((ones > 1) | (whole & (ones != 1)))
        start += block.width
    return bad


def check_draws(draws: int) -> None:
    """Refuse a number of draws that is none."""
    if not isinstance(draws, Integral) or draws < 1:
        raise UserError(f"draws must be at least 1, and whole, got {draws}")
