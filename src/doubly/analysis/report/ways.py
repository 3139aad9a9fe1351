"""Simple ways of imputing, to compare with: the mean of the column, the nearest training rows, linear regressions."""

import numpy as np
import torch

from doubly.runs.baseline import WIDEST, gaussian_by_em

NEIGHBOURS = 10


def column_means(train: np.ndarray, incomplete: np.ndarray) -> np.ndarray:
    """Every missing entry becomes the mean of its column."""
    return np.where(np.isnan(incomplete), np.nanmean(train.astype(float), 0), incomplete)


def nearest_rows(train: np.ndarray, incomplete: np.ndarray) -> np.ndarray:
    """Every missing entry becomes its mean over the ten training rows that are nearest by what both have."""
    centre = np.nanmean(train.astype(float), 0)
    seen, there = (~np.isnan(rows.astype(float)) for rows in (incomplete, train))
    a, b = np.where(seen, incomplete, 0.0), np.where(there, train, 0.0)
    together = seen.astype(float) @ there.T.astype(float)
    square = (a * a) @ there.T - 2 * a @ b.T + seen @ (b * b).T
    near = np.argsort(square / np.maximum(together, 1), 1)[:, :NEIGHBOURS]
    mean = np.where(there, train, centre)[near].mean(1)
    return np.where(seen, incomplete, mean)


def regressions(train: np.ndarray, incomplete: np.ndarray) -> np.ndarray | None:
    """Every missing entry becomes its expectation given the others under a normal of all entries (levels as numbers).

    None where there are too many columns for it.
    """
    if train.shape[1] > WIDEST:
        return None
    mean, covariance = (each.numpy() for each in gaussian_by_em(torch.as_tensor(train.astype(np.float32))))
    found = incomplete.astype(float).copy()
    for row in found:
        gone = np.isnan(row)
        if gone.any():
            known = covariance[np.ix_(~gone, ~gone)] + 1e-6 * np.eye(int((~gone).sum()))
            row[gone] = mean[gone] + covariance[np.ix_(gone, ~gone)] @ np.linalg.solve(known, row[~gone] - mean[~gone])
    return found


def simple_ways(train: np.ndarray, incomplete: np.ndarray) -> dict[str, np.ndarray]:
    """All of them, by name."""
    found = {"column alone": column_means(train, incomplete), "nearest rows": nearest_rows(train, incomplete)}
    linear = regressions(train, incomplete)
    return found if linear is None else found | {"regressions": linear}
