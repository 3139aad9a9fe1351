"""Rows of data as images side by side, each with what it is when the pointer rests on it."""

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from doubly.analysis.report.svg import HALF, Limits, frame, image

PAPER, INK, LACKING = (241, 241, 238), (22, 22, 22), (214, 170, 120)
RED, WHITE, BLUE = (178, 24, 43), (247, 247, 247), (33, 102, 172)


def ink_limits(rows: np.ndarray) -> Limits:
    """0 and 1 where they bound the values, else the least and the largest value."""
    low, high = float(np.nanmin(rows)), float(np.nanmax(rows))
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def ink(values: np.ndarray, limits: Limits) -> np.ndarray:
    """Colours of values: paper to ink; what is missing has a colour of its own."""
    low, high = limits
    share = np.clip((np.asarray(values, dtype=float) - low) / ((high - low) or 1.0), 0, 1)[..., None]
    mixed = (1 - share) * np.array(PAPER) + share * np.array(INK)
    return np.where(np.isnan(share), np.array(LACKING), np.nan_to_num(mixed)).astype(np.uint8)


def warm_and_cold(values: np.ndarray, largest: float) -> np.ndarray:
    """Colours of values around 0: red above, blue below."""
    share = np.clip(np.asarray(values, dtype=float) / (largest or 1.0), -1, 1)[..., None]
    ends = np.where(share >= 0, np.array(RED), np.array(BLUE))
    found: np.ndarray = ((1 - np.abs(share)) * np.array(WHITE) + np.abs(share) * ends).astype(np.uint8)
    return found


def pixels(colours: np.ndarray, shape: tuple[int, ...], per_line: int) -> np.ndarray:
    """Images (n, D, 3) in lines of so many, as one picture with see-through gaps of one pixel."""
    n, (lines, columns) = len(colours), shape
    below = math.ceil(n / per_line)
    found = np.zeros((below * (lines + 1) - 1, min(n, per_line) * (columns + 1) - 1, 4), dtype=np.uint8)
    for i, each in enumerate(colours):
        top, left = i // per_line * (lines + 1), i % per_line * (columns + 1)
        found[top : top + lines, left : left + columns, :3] = each.reshape(lines, columns, 3)
        found[top : top + lines, left : left + columns, 3] = 255
    return found


def mosaic(
    colours: np.ndarray,
    shape: tuple[int, ...],
    tips: Sequence[str],
    label: str,
    per_line: int = 10,
    names: Sequence[str] = (),
    wide: float = HALF,
) -> Markup:
    """Images (n, D, 3) in lines; `names` stand above the lines, one for each."""
    picture = pixels(colours, shape, per_line)
    lines = math.ceil(len(colours) / per_line)
    scale = min(wide / picture.shape[1], 96 / max(shape))
    room = 18 if names else 0
    each = (shape[0] + 1) * scale
    parts = []
    for line in range(lines):
        first = line * (shape[0] + 1)
        strip, top = picture[first : first + shape[0]], line * (each + room) + room
        if names:
            parts.append(Markup('<text class="quiet" x="0" y="{:.1f}">{}</text>').format(top - 5, names[line]))
        parts.append(image(strip, 0, top, strip.shape[1] * scale, strip.shape[0] * scale))
    form = Markup('<rect class="touch frame" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" data-tip="{}"/>')
    for i, tip in enumerate(tips):
        left, top = i % per_line * (shape[1] + 1) * scale, i // per_line * (each + room) + room
        parts.append(form.format(left, top, shape[1] * scale, shape[0] * scale, tip))
    return frame(picture.shape[1] * scale, lines * (each + room), label, parts)
