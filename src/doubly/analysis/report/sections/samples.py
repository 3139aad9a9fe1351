"""Data beside samples: images with their nearest training rows, and the moments of columns and pairs."""

import math

import numpy as np

from doubly.analysis.report.mosaic import ink, ink_limits, mosaic
from doubly.analysis.report.page import Figure, Level, Remark, Section, Table
from doubly.analysis.report.story import TRAINING_ROWS, Story
from doubly.analysis.report.svg import Chart, around, finite, number, plain_text

SHOWN = 50
"""Rows that are shown of the data and of the samples."""
BESIDE = 10
"""Samples that are shown above their nearest training rows."""
WIDEST = 100
"""Columns whose pairs are compared; of more, some."""
MUCH, SOME = 3.0, 1.5
"""How much farther from the data than other rows of the data samples may be before it is bad, or worth a note."""


def samples(story: Story) -> Section:
    """Whether the samples look like the data."""
    parts: list[Figure | Table] = []
    if story.images:
        parts += [_grid(story, "data"), _grid(story, "samples"), _beside(story)]
    means, pairs = means_apart(story), pairs_apart(story)
    parts += [_moments("means", "mean of each column", *means), _moments("pairs", "correlation of each pair", *pairs)]
    return Section(
        "Data and samples",
        f"{len(story.samples)} samples were drawn with {story.whose}. They should look like the data: as clear and as "
        "varied, with the same means and correlations, and not be copies of training rows.",
        parts,
        [_on_moments(means, pairs), *([_on_copies(story)] if story.data.kind == "binary" and story.images else [])],
    )


def _grid(story: Story, which: str) -> Figure:
    limits = ink_limits(story.data.train)
    if which == "data":
        index, rows = story.some("train", SHOWN)
        tips = [f"training row {at}" for at in index]
    else:
        rows = story.samples[:SHOWN]
        tips = [f"sample {at + 1}" for at in range(len(rows))]
    chart = mosaic(ink(rows, limits), story.data.shape, tips, f"{len(rows)} {which} as images")
    return Figure(which, chart, "Training rows" if which == "data" else "Samples of the model")


def nearest(rows: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row the nearest one among others, and how far it is (its square is the bits that differ)."""
    a, b = np.nan_to_num(rows.astype(np.float32)), np.nan_to_num(among.astype(np.float32))
    square = (a * a).sum(1)[:, None] - 2 * a @ b.T + (b * b).sum(1)
    at = square.argmin(1)
    return at, np.sqrt(np.maximum(square[np.arange(len(a)), at], 0))


def _beside(story: Story) -> Figure:
    index, train = story.some("train", TRAINING_ROWS)
    rows = story.samples[:BESIDE]
    at, far = nearest(rows, train)
    limits = ink_limits(story.data.train)
    lines = np.concatenate([ink(rows, limits), ink(train[at], limits)])
    bits = story.data.kind == "binary"
    said = [f"{round(float(d) ** 2)} pixels differ" if bits else f"distance {number(float(d))}" for d in far]
    tips = [f"sample {i + 1}\n{text}" for i, text in enumerate(said)]
    tips += [f"training row {index[j]}\n{text}" for j, text in zip(at, said, strict=True)]
    names = ["samples", "the nearest training row of each"]
    chart = mosaic(lines, story.data.shape, tips, "Samples above their nearest training rows", len(rows), names)
    note = (
        f"Nearest among {len(train)} of {len(story.data.train)} training rows. A model that copies shows "
        f"the same twice."
    )
    return Figure("nearest", chart, "Samples and their nearest training rows", note)


def _on_copies(story: Story) -> Remark:
    """Samples should be as far from the training rows as held-out rows are."""
    _, train = story.some("train", TRAINING_ROWS)
    own = nearest(story.samples[:200], train)[1] ** 2
    held = nearest(story.some("test", 200)[1], train)[1] ** 2
    said = f"a sample differs from its nearest training row in {own.mean():.1f} pixels, a test row in {held.mean():.1f}"
    if own.mean() < held.mean() / 2:
        return Remark(
            "note", f"The samples stay close to the training rows: {said}. Few kinds of rows may be drawn.", 7
        )
    if own.mean() > 1.5 * held.mean():
        return Remark("bad", f"The samples are far from anything in the data: {said}.", 3)
    return Remark("good", f"The samples are as far from the training rows as new rows are: {said}.", 7)


# Moments


Moments = tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]
"""Of the data, of the samples, of other rows of the data; and names."""


def means_apart(story: Story) -> Moments:
    """The mean of each column, in training rows, samples and held-out rows."""
    train, held = story.some("train", 5000)[1], story.data.split("test")
    scale = np.nanstd(train.astype(float), 0) if story.data.kind != "binary" else np.ones(train.shape[1])
    scale = np.where(scale > 0, scale, 1.0)
    found = [np.nanmean(rows.astype(float), 0) / scale for rows in (train, story.samples, held)]
    return found[0], found[1], found[2], [_column(story, at) for at in range(train.shape[1])]


def pairs_apart(story: Story) -> Moments:
    """The correlation of each pair of columns, or of some."""
    train, held = story.some("train", 5000)[1], story.data.split("test")
    chosen = np.unique(np.linspace(0, train.shape[1] - 1, min(WIDEST, train.shape[1])).round().astype(int))
    upper = np.triu_indices(len(chosen), 1)
    found = [_correlations(rows[:, chosen])[upper] for rows in (train, story.samples, held)]
    n = len(upper[0])
    some: np.ndarray = np.unique(np.linspace(0, max(0, n - 1), min(400, n)).round().astype(int))
    names = [f"{_column(story, chosen[upper[0][i]])} and {_column(story, chosen[upper[1][i]])}" for i in some]
    first, second, third = (each[some] for each in found)
    return first, second, third, names


def _correlations(rows: np.ndarray) -> np.ndarray:
    """Correlations of columns; missing cells count as their column's mean, and a column that is constant has none."""
    x = rows.astype(float) - np.nanmean(rows.astype(float), 0)
    x = np.nan_to_num(x)
    spread = np.sqrt((x * x).sum(0))
    x = x / np.where(spread > 0, spread, np.inf)
    return np.asarray(x.T @ x)


def _column(story: Story, at: int) -> str:
    if story.images:
        return f"pixel ({at // story.data.shape[1]}, {at % story.data.shape[1]})"
    if story.data.columns is not None:
        return plain_text(story.data.columns.cells[at])
    return f"column {at}"


def _moments(name: str, what: str, data: np.ndarray, drawn: np.ndarray, held: np.ndarray, names: list[str]) -> Figure:
    limits = around(finite(data, drawn, held)) if len(finite(data, drawn)) else (0.0, 1.0)
    legend = [("f1 mark", "samples"), ("f5 mark", "test rows")]
    chart = Chart(limits, limits, f"{what} in training rows", f"{what} elsewhere", tall=330, legend=legend)
    chart.diagonal()
    chart.points(
        data.tolist(),
        held.tolist(),
        "f5",
        [f"{each}\ntraining {number(a)}, test {number(b)}" for each, a, b in zip(names, data, held, strict=True)],
        2.5,
    )
    chart.points(
        data.tolist(),
        drawn.tolist(),
        "f1",
        [f"{each}\ntraining {number(a)}, samples {number(b)}" for each, a, b in zip(names, data, drawn, strict=True)],
        3,
    )
    own, other = _apart(data, drawn), _apart(data, held)
    note = (
        f"Typical distance from the dotted line: samples {number(own, 2)}, test rows {number(other, 2)}. "
        f"The test rows show "
        "what chance does."
    )
    return Figure(f"moments-{name}", chart.svg(f"The {what} in samples against training rows"), f"The {what}", note)


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    gaps = finite(a - b)
    return float(math.sqrt(np.mean(gaps**2))) if len(gaps) else 0.0


def _on_moments(means: Moments, pairs: Moments) -> Remark:
    ratios = [_apart(data, drawn) / max(_apart(data, held), 1e-6) for data, drawn, held, _ in (means, pairs)]
    worst = max(ratios)
    level: Level = "bad" if worst > MUCH else "note" if worst > SOME else "good"
    said = (
        f"means differ {ratios[0]:.1f} times and correlations {ratios[1]:.1f} times as much from the "
        f"training rows as those of test rows do"
    )
    start = {
        "good": "The samples have the moments of the data",
        "note": "The samples differ somewhat from the data",
        "bad": "The samples differ much from the data",
    }
    return Remark(level, f"{start[level]}: their {said}.", 3)
