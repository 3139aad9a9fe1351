"""How local the features of a data layer are: over how many pixels a unit's weights spread, and how far apart.

A unit's weights are taken as a distribution over the pixels, w_i^2 / sum_j w_j^2.
"""

import numpy as np
from torch import Tensor

from doubly.layers.chain import Chain

ACTIVE = 0.1  # of the largest norm: units with smaller ones are left out, for they add nothing to the data


def features_of(model: Chain, theta: Tensor) -> np.ndarray | None:
    """The weights of each active unit on the pixels (units, pixels); None where the data layer has no such matrix."""
    named = model.unflatten(theta)[0]
    matrix = named.get("W") if len(model.layers) > 1 else None
    if matrix is None or matrix.ndim != 2 or matrix.shape[1] != model.layers[0].n_in:
        return None
    units = matrix.detach().double().cpu().numpy().T
    norms = np.linalg.norm(units, axis=1)
    return np.asarray(units[norms > ACTIVE * norms.max()])


def effective_pixels(features: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Over how many pixels the weights of each unit spread: (sum w^2)^2 / sum w^4.

    >>> effective_pixels(np.array([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, -1]]), (2, 2)).tolist()
    [1.0, 2.0, 4.0]
    """
    squares = features**2
    return np.asarray(squares.sum(1) ** 2 / (squares**2).sum(1))


def radius(features: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The root mean square distance of each unit's weights from their centre, in pixels.

    >>> radius(np.array([[1.0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, -1]]), (2, 2)).round(3).tolist()
    [0.0, 0.5, 0.707]
    """
    share = features**2 / (features**2).sum(1, keepdims=True)
    where = np.indices(shape).reshape(len(shape), -1).astype(float)  # (axes, pixels)
    centre = share @ where.T
    distance = ((where.T[None] - centre[:, None]) ** 2).sum(2)
    return np.asarray(np.sqrt((share * distance).sum(1)))
