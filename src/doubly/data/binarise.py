"""Greys become bits: by a threshold, by one draw that stays, or by draws that training makes anew.

A grey g of white w is a probability p = g / w; a bit is 1 with that probability (Salakhutdinov & Murray 2008).
"""

from collections.abc import Callable
from typing import NamedTuple, get_args

import numpy as np

from doubly.core.errors import UserError
from doubly.core.types import Binarise
from doubly.data.dataset import Place, first_place, is_binary, sample_bits


class Bits(NamedTuple):
    """The splits as bits; where `dynamic`, train as greys from 0 to 255."""

    splits: dict[str, np.ndarray]
    dynamic: bool


def check_way(how: str, where: str) -> None:
    """Refuse a way of making bits that there is not."""
    if how not in get_args(Binarise):
        raise UserError(f"binarise of {where} must be {', '.join(get_args(Binarise))}, got {how!r}")


def binarise(
    how: str,
    splits: dict[str, np.ndarray],
    seed: int,
    where: str,
    white: float | None = None,
    place: Callable[[str, Place], str] | None = None,
) -> Bits:
    """The splits as bits. `threshold`: 1 from half of white on; `sample`: drawn once, by the seed; `dynamic`: train is
    left for training to draw from, the others are sampled.
    """
    check_way(how, where)
    if how == "dynamic" and all(is_binary(rows) for rows in splits.values()):
        raise UserError(f"{where} is binary already, so there is nothing to draw anew: leave binarise=dynamic out")
    white = white or _white(splits, where)
    for split, rows in splits.items():
        bad = ~((rows >= 0) & (rows <= white))
        if bad.any():
            at = first_place(bad)
            at_place = (
                place(split, at) if place else f"{split} row {at[0]}, column {at[1]} (counting from 0) of {where}"
            )
            raise UserError(f"{at_place} is {rows[at]:.6g}: greys to binarise must lie from 0 to {white:g}; scale them")
    found = {}
    for split, rows in splits.items():
        p = rows.astype(np.float32) / np.float32(white)
        if how == "threshold":
            found[split] = (p >= 0.5).astype(np.uint8)
        elif how == "dynamic" and split == "train":
            found[split] = np.rint(p * 255).astype(np.uint8)
        else:
            found[split] = sample_bits(p, seed, split)
    return Bits(found, how == "dynamic")


def _white(splits: dict[str, np.ndarray], where: str) -> float:
    """The value that means 1: 1 or 255, where the largest value leaves no doubt."""
    largest = max(float(rows.max()) for rows in splits.values() if rows.size)
    if largest <= 1:
        return 1.0
    if 128 <= largest <= 255:
        return 255.0
    raise UserError(
        f"greys to binarise lie from 0 to 1 or from 0 to 255, but the largest in {where} is {largest:.6g}: "
        f"say which value is white, as in white={largest:g}"
    )
