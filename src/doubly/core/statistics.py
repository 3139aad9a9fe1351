"""Statistics of rows."""

import math

from torch import Tensor


def stderr(rows: Tensor) -> float | None:
    """The standard error of the mean over rows; None for a single row."""
    return (rows.double().std() / math.sqrt(len(rows))).item() if len(rows) > 1 else None
