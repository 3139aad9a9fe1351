"""Plots of a posterior: samples, weights, training, completions. matplotlib is imported when one is drawn.

Each takes axes to draw on, or makes them, and returns them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.extras import extra
from doubly.layers.chain import Chain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIDDEN = 0.45  # the grey of a cell that is missing, from 0 (white) to 1
MOST_UNITS = 100


def samples(rows: np.ndarray, shape: tuple[int, ...], ax: "Axes | None") -> "Axes":
    """New rows from a model: a grid of images, or a map with a line for each row."""
    return _pictures(rows.astype(float), shape, ax, f"{len(rows)} samples")


def weights(model: Chain, theta: Tensor, shape: tuple[int, ...], most: int, ax: "Axes | None") -> "Axes":
    """What each unit of the first latent layer adds to the log-odds of the data, the largest weights first."""
    weight = model.unflatten(theta)[0].get("W") if len(model.layers) > 1 else None
    if weight is None or weight.shape[0] != model.layers[0].n_out:
        raise UserError("these weights have no picture: the data layer must be linear in the latents, such as sbn")
    units = weight.T.detach().cpu().numpy()
    order = np.argsort(-np.abs(units).sum(1))[:most]
    return _pictures(units[order], shape, ax, f"weights of {len(order)} latent units", signed=True)


def training(records: Sequence[Mapping[str, Any]], ax: "Axes | None") -> "Axes":
    """The validation log-likelihood after each epoch, with the epochs in which samples were collected shaded."""
    if not records:
        raise UserError("there are no records of training here: a run folder has them, an exported file does not")
    axes = _axes(ax, (6.0, 3.2))
    epochs = [record["epoch"] for record in records]
    axes.plot(epochs, [record["valid"] for record in records], color="C0", label="validation")
    collecting = [record["epoch"] for record in records if record["phase"] == "collect"]
    if collecting:
        axes.axvspan(collecting[0] - 0.5, collecting[-1] + 0.5, color="C0", alpha=0.12, lw=0, label="samples collected")
    later = [record["valid"] for record in records[len(records) // 10 :]]
    if len(later) > 2 and min(later) < max(later):  # a bad start does not flatten the rest
        axes.set_ylim(min(later) - 0.05 * (max(later) - min(later)), max(later) + 0.05 * (max(later) - min(later)))
    axes.set_xlabel("epoch")
    axes.set_ylabel("log-likelihood, nats a row")
    axes.legend(frameon=False, loc="lower right")
    return axes


def lower_half_missing(rows: np.ndarray) -> np.ndarray:
    """The same rows with NaN in their second half: of images, the lower half."""
    found = np.array(rows, dtype=float)
    found[:, found.shape[1] // 2 :] = math.nan
    return found


def completions(given: np.ndarray, completed: np.ndarray, shape: tuple[int, ...], ax: "Axes | None") -> "Axes":
    """Rows with missing values (NaN), and below each its completions."""
    left = np.where(np.isnan(given), HIDDEN, given)
    rows = np.concatenate([left, *completed.astype(float)])
    return _pictures(rows, shape, ax, "given (grey is missing), then completions", columns=len(given))


def _axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    if ax is not None:
        return ax
    with extra("plots", "a plot"):
        from matplotlib import pyplot
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def _pictures(
    rows: np.ndarray,
    shape: tuple[int, ...],
    ax: "Axes | None",
    title: str,
    signed: bool = False,
    columns: int | None = None,
) -> "Axes":
    """Rows as a grid of images, or where they are none, as a map with a line for each."""
    limit = float(np.nanquantile(np.abs(rows), 0.99)) or 1.0  # a few weights are far larger than all others
    least = min(0.0, float(np.nanmin(rows)))  # rows of a table may be negative
    look: dict[str, Any] = (
        {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit} if signed else {"cmap": "gray_r", "vmin": least}
    )
    if len(shape) == 2:
        columns = columns or math.ceil(math.sqrt(len(rows)))
        picture = _grid(rows.reshape(-1, *shape), columns)
        lines = math.ceil(len(rows) / columns)
        size = (min(8.0, 0.55 * columns), min(8.0, 0.55 * lines) + 0.4)
    else:
        picture, size = rows, (6.0, 4.0)
    axes = _axes(ax, size)
    axes.imshow(picture, interpolation="nearest", **look)
    axes.set_title(title, fontsize=10)
    axes.set_axis_off()
    return axes


def _grid(images: np.ndarray, columns: int) -> np.ndarray:
    """Images (n, height, width) side by side, a pixel apart; NaN, which stays white, between them and at the end."""
    n, height, width = images.shape
    lines = math.ceil(n / columns)
    found = np.full((lines * (height + 1) - 1, columns * (width + 1) - 1), math.nan)
    for i, image in enumerate(images):
        top, left = (height + 1) * (i // columns), (width + 1) * (i % columns)
        found[top : top + height, left : left + width] = image
    return found
