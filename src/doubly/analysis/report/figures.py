"""The figures of a report, each a function from numbers to a matplotlib Figure.

Figures are made as objects, never through pyplot, so that drawing one changes nothing for anybody else.
"""

import io
import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from doubly.analysis.evaluation import Curve
from doubly.analysis.traces import History, label
from doubly.core.extras import extra
from doubly.layers.chain import Chain

with extra("plots", "a picture"):
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

Limits = tuple[float, float]

DPI = 144
WIDTH = 7.2  # inches of a curve
PICTURE = 700  # pixels that a grid of images comes near to, on its longer side

# of the palette of Okabe and Ito, which the colour-blind can tell apart
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
TEXT, QUIET, FAINT = "#222222", "#666666", "#E4E4E4"

INK = LinearSegmentedColormap.from_list("ink", ["#F1F1EE", "#161616"]).with_extremes(bad="white")


def png(figure: Figure) -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


CURVE_LABELS = {
    "samples": "samples of the weights in the mean (M)",
    "draws": "draws of the latent variables for each row (K)",
    "training-draws": "draws of the latent variables in a training step (S)",
}


def curve(found: Curve) -> Figure:
    """Log-likelihoods with their standard errors against a number on a logarithmic scale."""
    at = np.array([point.at for point in found.points], dtype=float)
    summaries = [point.evaluation.summary for point in found.points]
    log_likelihood = [summary.log_likelihood for summary in summaries]
    figure, (axes,) = _panels(1, 4.0, at)
    axes.errorbar(
        at,
        log_likelihood,
        [summary.stderr or 0 for summary in summaries],
        color=BLUE,
        marker="o",
        markersize=5,
        linewidth=1.6,
        capsize=3,
    )
    axes.set_xscale("log")
    axes.set_xticks(at, [f"{value:g}" for value in at])
    axes.minorticks_off()
    axes.set_xlim(at.min() / 1.3, at.max() * 1.3)
    axes.set_xlabel(CURVE_LABELS[found.over])
    axes.set_ylabel("log-likelihood of a row (nats)")
    return figure


def traces(histories: Sequence[History]) -> Figure:
    """Every trace of one or more chains, epoch by epoch; burn-in is pale, and may leave the frame."""
    names = [name for name in histories[0].values if all(name in history.values for history in histories)]
    last = max(histories, key=lambda history: len(history.epoch))
    figure, panels = _panels(len(names), 1.0 + 1.2 * len(names), last.epoch)
    styles = itertools.product(["-", (0, (4, 1.5)), ":"], [BLUE, VERMILION, GREEN, PURPLE])
    for history, (style, colour) in zip(histories, itertools.cycle(styles), strict=False):
        for axes, name in zip(panels, names, strict=True):
            line: dict[str, Any] = {"color": colour, "linestyle": style, "linewidth": 1.3}
            late = history.collecting
            axes.plot(history.epoch, history.values[name], **line, alpha=0.3)
            axes.plot(history.epoch[late], history.values[name][late], **line, label=history.name)
    for axes, name in zip(panels, names, strict=True):
        axes.set_ylabel(textwrap.fill(label(name), 16, break_on_hyphens=False), fontsize=9)
        axes.set_ylim(_around([(history.values[name], history.collecting) for history in histories]))
        if name == "temperature":
            axes.axhline(1, color=TEXT, linewidth=1, linestyle=":")
            low, high = axes.get_ylim()
            axes.set_ylim(min(low, 0.9), max(high, 1.1))
    if len(histories) > 1:
        lines, names = panels[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside upper left", frameon=False, ncols=2, fontsize=9)
    panels[-1].set_xlabel("epoch (pale: burn-in)")
    figure.align_ylabels()
    return figure


def image_rows(lines: Sequence[np.ndarray], labels: Sequence[str], shape: tuple[int, ...]) -> Figure:
    """Lines of images, one below the other, with a label in front of each."""
    n = len(lines[0])
    figure = Figure(figsize=(1.1 + 0.62 * n, 0.72 * len(lines)), dpi=DPI, layout="constrained")
    grid = figure.subplots(len(lines), n, squeeze=False)
    for row, name, axes in zip(lines, labels, grid, strict=True):
        for image, panel in zip(row, axes, strict=True):
            panel.imshow(np.asarray(image, dtype=float).reshape(shape), cmap=INK, vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, color=TEXT)
    return figure


def image_grid(rows: np.ndarray, shape: tuple[int, ...], title: str = "", limits: Limits | None = None) -> Figure:
    """Rows as images side by side, 0 white and 1 black; rows of a table, which are no images, as a heat map.

    `limits` are the values that are lightest and darkest, `ink_limits(rows)` if not given.
    """
    limits = limits or ink_limits(rows)
    if len(shape) != 2:
        return _heat_map(rows, title, limits)
    figure, axes = _exact(_mosaic(rows.reshape(-1, *shape)), INK, limits, above=44 if title else 0)
    axes.set_title(title, fontsize=13, color=TEXT, pad=10)
    return figure


def ink_limits(rows: np.ndarray) -> Limits:
    """0 and 1 where they bound the values, else the least and the largest value."""
    low, high = float(np.nanmin(rows)), float(np.nanmax(rows))
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def weights(theta: torch.Tensor, model: Chain, shape: tuple[int, ...], most: int = 100) -> Figure:
    """What each latent unit adds to the data layer, as images on one scale, the largest norm first."""
    units = model.unflatten(theta)[0]["W"].detach().cpu().numpy().T
    order = np.argsort(-np.linalg.norm(units, axis=1), kind="stable")
    shown = units[order[:most]]
    # a few huge weights would leave all others pale
    largest = float(np.quantile(np.abs(shown), 0.995)) or 1.0
    picture = _mosaic(shown.reshape(-1, *shape))
    figure, axes = _exact(picture, "RdBu_r", (-largest, largest), above=44, right=90)
    n_units = f"{len(shown)} of {len(units)}" if len(shown) < len(units) else f"{len(units)}"
    axes.set_title(f"weights of {n_units} latent units", fontsize=13, color=TEXT, pad=10)
    box = axes.get_position()
    bar = figure.add_axes((box.x1 + 0.02, box.y0 + 0.2 * box.height, 0.02, 0.6 * box.height))
    figure.colorbar(axes.images[0], cax=bar, extend="both")
    bar.tick_params(labelsize=9, colors=QUIET, length=2)
    bar.spines[:].set_visible(False)
    return figure


# Curves


def _panels(n: int, height: float, epoch: np.ndarray) -> tuple[Figure, list[Axes]]:
    """Axes one above the other that share their epochs."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    panels = list(figure.subplots(n, 1, sharex=True, squeeze=False)[:, 0])
    for axes in panels:
        _tidy(axes)
        axes.grid(axis="y", color=FAINT, linewidth=0.8)
        axes.set_xlim(epoch[0] - 0.5, epoch[-1] + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    panels[-1].set_xlabel("epoch")
    return figure, panels


def _tidy(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(QUIET)
    axes.tick_params(colors=QUIET, labelcolor=TEXT, labelsize=9)


def _around(chains: Sequence[tuple[np.ndarray, np.ndarray]]) -> Limits | None:
    """A range for the values collected, and for as much of the burn-in as leaves them half of the height."""
    late = np.concatenate([values[collecting] for values, collecting in chains])
    every = np.concatenate([values for values, _ in chains])
    late, every = late[np.isfinite(late)], every[np.isfinite(every)]
    if not len(late):
        return None
    low, high = float(late.min()), float(late.max())
    room = (high - low) / 2
    low, high = max(float(every.min()), low - room), min(float(every.max()), high + room)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return low - margin, high + margin


# Pictures


def _mosaic(images: np.ndarray) -> np.ndarray:
    """Images side by side in one that is about square, with gaps of one pixel, which hold NaN."""
    n, height, width = images.shape
    columns = min(n, max(1, round(math.sqrt(n * (height + 1) / (width + 1)))))
    lines = math.ceil(n / columns)
    picture = np.full((lines * (height + 1) - 1, columns * (width + 1) - 1), math.nan, dtype=np.float32)
    for i, image in enumerate(images):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        picture[top : top + height, left : left + width] = image
    return picture


def _exact(picture: np.ndarray, colours: Any, limits: Limits, above: int, right: int = 0) -> tuple[Figure, Axes]:
    """A picture, each pixel drawn as the same whole number of pixels, with room above it and to the right."""
    scale = max(1, round(PICTURE / max(picture.shape)))
    height, width, border = picture.shape[0] * scale, picture.shape[1] * scale, 8
    total_width, total_height = width + 2 * border + right, height + 2 * border + above
    figure = Figure(figsize=(total_width / DPI, total_height / DPI), dpi=DPI, facecolor="white")
    axes = figure.add_axes((border / total_width, border / total_height, width / total_width, height / total_height))
    axes.set_axis_off()
    low, high = limits
    axes.imshow(picture, cmap=colours, vmin=low, vmax=high, interpolation="nearest", aspect="auto")
    return figure, axes


def _heat_map(rows: np.ndarray, title: str, limits: Limits) -> Figure:
    figure = Figure(figsize=(WIDTH, 5.4), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    low, high = limits
    picture = axes.imshow(rows, cmap=INK, vmin=low, vmax=high, interpolation="nearest", aspect="auto")
    axes.set(xlabel="column", ylabel="row", title=title)
    axes.tick_params(colors=QUIET, labelcolor=TEXT, labelsize=9)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if rows.dtype.kind == "f":
        figure.colorbar(picture, ax=axes)
    return figure
