"""Tables: what is missing, the distribution of each column, and associations, in the data and in the model."""

import math
from collections import Counter

import numpy as np
from markupsafe import Markup

from doubly.analysis.report.page import Figure, Level, Remark, Section, Table, Words
from doubly.analysis.report.story import Story
from doubly.analysis.report.svg import HALF, Chart, heat_map, level_bars, number, plain_text
from doubly.data import Column, Columns

ROWS = 2000
"""Training rows that are looked at, and as many samples."""
COLUMNS = 24
"""Columns whose distributions are drawn: of more, those that differ most."""
LEVELS = 12
"""Levels of a category that are drawn: the most frequent ones."""
ASSOCIATED = 20
"""Columns whose associations are drawn."""
BINS = 20
PATTERNS = 8
FAR, NEAR = 0.15, 0.08
"""Total variation distances from which a column is badly or not well modelled, beyond chance."""
SHUFFLES = 60


def columns_of(story: Story) -> Columns:
    """The columns of a table."""
    assert story.data.columns is not None
    return story.data.columns


def both(story: Story) -> tuple[np.ndarray, np.ndarray]:
    """Training rows and as many samples, which lack the same cells."""
    _, rows = story.some("train", ROWS)
    count = math.ceil(len(rows) / len(story.samples))
    drawn = story.samples if count == 1 else story.posterior.sample(len(rows), story.of)
    drawn = np.resize(drawn, rows.shape) if len(drawn) < len(rows) else drawn[: len(rows)]
    return rows, np.where(np.isnan(rows), np.nan, drawn)


def values_of(columns: Columns, rows: np.ndarray, at: int) -> np.ndarray:
    """A column as numbers: in the units of the table, or the place of its level; NaN where it is missing."""
    column, cells = columns.columns[at], rows[:, columns.sources == at].astype(float)
    if column.has_levels:
        return np.where(np.isnan(cells).any(1), math.nan, np.nan_to_num(cells, nan=-1).argmax(1))
    values = column.offset + column.scale * cells[:, 0]
    return np.asarray(np.round(values) if column.kind == "integer" else values)


# What is missing


def has_missing(story: Story) -> bool:
    """Whether any cell of the training rows is missing."""
    return story.table and bool(np.isnan(story.data.train).any())


def missingness(story: Story) -> Section:
    """Shares of missing cells, and which are missing together."""
    columns, rows = columns_of(story), story.data.train
    gone = np.stack([np.isnan(rows[:, columns.sources == at]).any(1) for at in range(len(columns.columns))], 1)
    share = gone.mean(0)
    order = [at for at in np.argsort(-share, kind="stable") if share[at] > 0]
    names = [plain_text(columns.columns[at].name) for at in order]
    chart = level_bars(names[:30], [[float(share[at]) for at in order[:30]]], ["missing"], "Share of missing cells")
    patterns = Counter(map(bytes, gone.astype(np.uint8)))
    lines = []
    for pattern, count in patterns.most_common(PATTERNS):
        absent = [plain_text(columns.columns[i].name) for i, flag in enumerate(pattern) if flag]
        lines.append([", ".join(absent)[:200] or "nothing", str(count), f"{count / len(rows):.1%}"])
    whole = (
        f"{gone.mean():.1%} of the cells of {len(rows)} training rows are missing, in {len(order)} of "
        f"{len(share)} columns."
    )
    return Section(
        "Missing cells",
        whole
        + " They are left out of the likelihood. What the model says of them rests on the assumption that cells are "
        "missing for reasons that the other cells of the row explain.",
        [
            Figure("missing", chart, "Share of missing cells in each column"),
            Table(["missing together", "rows", "share"], lines),
        ],
    )


# Each column


def distance(column: Column, data: np.ndarray, drawn: np.ndarray) -> tuple[float, float]:
    """The total variation distance of two samples of a column, over its bins or levels, and what chance gives.

    Chance: the distance of the same values dealt anew into two heaps; exceeded once in twenty times.
    """
    a, b = data[~np.isnan(data)], drawn[~np.isnan(drawn)]
    if not len(a) or not len(b):
        return 0.0, 0.0
    both = np.concatenate([a, b])
    edges = _edges(column, a)
    which = np.clip(np.searchsorted(edges, both, "right"), 0, len(edges))

    def apart(mine: np.ndarray, theirs: np.ndarray) -> float:
        shares = [np.bincount(each, minlength=len(edges) + 1) / len(each) for each in (mine, theirs)]
        return float(np.abs(shares[0] - shares[1]).sum() / 2)

    rng = np.random.default_rng(0)
    chance = []
    for _ in range(SHUFFLES):
        dealt = rng.permutation(which)
        chance.append(apart(dealt[: len(a)], dealt[len(a) :]))
    return apart(which[: len(a)], which[len(a) :]), float(np.quantile(chance, 0.95))


def _edges(column: Column, data: np.ndarray) -> np.ndarray:
    """Between levels, or quantiles of the data."""
    if column.has_levels or column.kind == "binary":
        return np.arange(max(1, len(column.levels) - 1, int(data.max(initial=0)))) + 0.5
    return np.unique(np.quantile(data, np.linspace(0, 1, 11)[1:-1]))


def columns(story: Story) -> Section:
    """The distribution of each column in the data and in samples."""
    known, (rows, drawn) = columns_of(story), both(story)
    values = [(values_of(known, rows, at), values_of(known, drawn, at)) for at in range(len(known.columns))]
    apart = [distance(column, *pair) for column, pair in zip(known.columns, values, strict=True)]
    shown = list(range(len(values)))
    if len(shown) > COLUMNS:
        shown = sorted(np.argsort([-far for far, _ in apart])[:COLUMNS].tolist())
    figures = [_distribution(known.columns[at], *values[at], apart[at], at) for at in shown]
    some = f" The {COLUMNS} of {len(values)} columns that differ most are drawn." if len(shown) < len(values) else ""
    bad = [at for at, (far, chance) in enumerate(apart) if far > chance + FAR]
    fair = [at for at, (far, chance) in enumerate(apart) if chance + NEAR < far <= chance + FAR]
    return Section(
        "Columns in data and model",
        f"{len(rows)} training rows beside as many samples of the model, drawn with {story.whose}, which "
        f"lack the same cells. "
        f"The two should have the same shape.{some} The distance is the share of rows that would have to move (total "
        "variation); chance alone gives the number behind it.",
        figures,
        [_on_columns(known, bad, fair)],
    )


def _distribution(column: Column, data: np.ndarray, drawn: np.ndarray, apart: tuple[float, float], at: int) -> Figure:
    name = plain_text(column.name)
    far, chance = apart
    note = f"Distance {far:.2f} (chance {chance:.2f}){', far' if far > chance + FAR else ''}"
    label = f"Distribution of {name} in data and model"
    file = f"column-{at + 1:03d}"
    if column.has_levels or column.kind == "binary":
        levels = [plain_text(level, 22) for level in column.levels] or ["0", "1"]
        shares = [_shares(each, len(levels)) for each in (data, drawn)]
        order = np.arange(len(levels))
        if len(levels) > LEVELS:
            order = np.argsort(-shares[0], kind="stable")[:LEVELS]
            note += f"; the {LEVELS} most frequent of {len(levels)} levels"
        series = [[float(share[i]) for i in order] for share in shares]
        return Figure(file, level_bars([levels[i] for i in order], series, ["data", "model"], label), name, note)
    return Figure(file, _histogram(data, drawn, label), name, note)


def _shares(values: np.ndarray, levels: int) -> np.ndarray:
    there = values[~np.isnan(values)].astype(int)
    return np.bincount(there.clip(0, levels - 1), minlength=levels) / max(1, len(there))


def _histogram(data: np.ndarray, drawn: np.ndarray, label: str) -> Markup:
    a, b = data[~np.isnan(data)], drawn[~np.isnan(drawn)]
    whole = np.concatenate([a, b]) if len(a) + len(b) else np.zeros(1)
    low, high = np.quantile(whole, [0.002, 0.998])
    low, high = (min(low, a.min(initial=low)), max(high, a.max(initial=high)))
    if not high > low:
        low, high = low - 0.5, high + 0.5
    shares = [np.histogram(each.clip(low, high), BINS, (low, high))[0] / max(1, len(each)) for each in (a, b)]
    edges = np.linspace(low, high, BINS + 1)
    top = max(float(np.max(shares)) * 1.08, 1e-9)
    marks = [(t, f"{t:.0%}") for t in (0, round(top / 2, 2), round(top * 0.95, 2))]
    legend = [("f1 soft", "data"), ("l2", "model")]
    chart = Chart((float(low), float(high)), (0, top), tall=190, wide=HALF, y_ticks=marks, legend=legend)
    for share, x1, x2 in zip(shares[0], edges, edges[1:], strict=False):
        chart.bar(x1, x2, float(share), "f1 soft")
    steps = np.repeat(edges, 2)[1:-1]
    chart.line(steps, np.repeat(shares[1], 2), "l2")
    middles = (edges[1:] + edges[:-1]) / 2
    tips = [
        f"{number(x1, 4)} to {number(x2, 4)}\ndata {p:.1%}, model {q:.1%}"
        for x1, x2, p, q in zip(edges, edges[1:], *shares, strict=False)
    ]
    chart.hover(middles.tolist(), tips)
    return chart.svg(label)


def _on_columns(known: Columns, bad: list[int], fair: list[int]) -> Remark:
    n = len(known.columns)

    def named(which: list[int]) -> str:
        return ", ".join(plain_text(known.columns[at].name) for at in which[:5]) + (
            " and more" if len(which) > 5 else ""
        )

    if bad:
        return Remark(
            "bad",
            f"{len(bad)} of {n} columns are distributed otherwise in the model than in the data: {named(bad)}.",
            2,
        )
    if fair:
        return Remark(
            "note", f"{len(fair)} of {n} columns have a somewhat different distribution in the model: {named(fair)}.", 3
        )
    return Remark("good", f"All {n} columns have about the same distribution in the model as in the data.", 3)


# Associations


def association(one: Column, a: np.ndarray, other: Column, b: np.ndarray) -> float:
    """How strongly two columns go together, from 0 to 1; with a sign where both are numbers.

    Numbers: Pearson's correlation. Categories: Cramér's V. A number and a category: the correlation ratio, the root of
    the share of the number's variance between the levels.
    """
    there = ~np.isnan(a) & ~np.isnan(b)
    a, b = a[there], b[there]
    if len(a) < 3:
        return 0.0
    levels = (one.kind == "category", other.kind == "category")
    if not any(levels):
        spread = float(a.std() * b.std())
        return float(((a - a.mean()) * (b - b.mean())).mean()) / spread if spread > 0 else 0.0
    if all(levels):
        return _cramer(a.astype(int), b.astype(int))
    values, groups = (b, a.astype(int)) if levels[0] else (a, b.astype(int))
    count = np.bincount(groups)
    means = np.bincount(groups, values) / np.maximum(count, 1)
    total = float(((values - values.mean()) ** 2).sum())
    return math.sqrt(float((count * (means - values.mean()) ** 2).sum()) / total) if total > 0 else 0.0


def _cramer(a: np.ndarray, b: np.ndarray) -> float:
    """The root of chi-squared / (n (levels of the smaller - 1)).

    >>> _cramer(np.array([0, 0, 1, 1]), np.array([2, 2, 0, 0]))
    1.0
    """
    counts = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(counts, (a, b), 1)
    counts = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
    least = min(counts.shape) - 1
    if least < 1:
        return 0.0
    expected = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
    return math.sqrt(float(((counts - expected) ** 2 / expected).sum()) / (counts.sum() * least))


def associations(story: Story) -> Section:
    """Heat maps of the data and of the model, and the pairs that differ most."""
    known, (rows, drawn) = columns_of(story), both(story)
    chosen = [at for at, column in enumerate(known.columns) if not column.constant][:ASSOCIATED]
    names = [plain_text(known.columns[at].name) for at in chosen]
    matrices = [_matrix(known, each, chosen) for each in (rows, drawn)]
    halves = [_matrix(known, rows[i::2], chosen) for i in (0, 1)]
    titles = ("In the data", "In samples of the model")
    figures = []
    for title, matrix, file in zip(titles, matrices, ("data", "model"), strict=True):
        tips = [
            [f"{a} and {b}\n{title.lower()}: {number(matrix[i, j], 2)}" for j, b in enumerate(names)]
            for i, a in enumerate(names)
        ]
        figures.append(
            Figure(f"associations-{file}", heat_map(names, matrix, tips, f"Associations {title.lower()}"), title)
        )
    upper = np.triu_indices(len(chosen), 1)
    gaps, chance = np.abs(matrices[0] - matrices[1])[upper], np.abs(halves[0] - halves[1])[upper]
    order = np.argsort(-gaps, kind="stable")[:6]
    lines = [
        [
            f"{names[upper[0][i]]} and {names[upper[1][i]]}",
            *(number(m[upper][i], 2) for m in matrices),
            f"{gaps[i]:.2f}",
        ]
        for i in order
    ]
    some = f" The first {ASSOCIATED} columns are shown." if len(known.columns) > ASSOCIATED else ""
    return Section(
        "Associations in data and model",
        "How strongly columns go together: Pearson's correlation of numbers (red positive, blue "
        "negative), Cramér's V of "
        f"categories, the correlation ratio of a number and a category. The two maps should look the same.{some}",
        [*figures, Table(["largest differences", "data", "model", "difference"], lines)]
        if len(chosen) > 1
        else [Words("There is one column only.")],
        [_on_associations(gaps, chance)] if len(gaps) else [],
    )


def _matrix(known: Columns, rows: np.ndarray, chosen: list[int]) -> np.ndarray:
    values = {at: values_of(known, rows, at) for at in chosen}
    found = np.eye(len(chosen))
    for i, a in enumerate(chosen):
        for j, b in enumerate(chosen[:i]):
            found[i, j] = found[j, i] = association(known.columns[a], values[a], known.columns[b], values[b])
    return found


def _on_associations(gaps: np.ndarray, chance: np.ndarray) -> Remark:
    typical, usual = float(np.sqrt(np.mean(gaps**2))), float(np.sqrt(np.mean(chance**2)))
    level: Level = "bad" if typical > max(0.2, 3 * usual) else "note" if typical > max(0.08, 1.5 * usual) else "good"
    said = f"associations differ by {typical:.2f} between data and model (two halves of the data: {usual:.2f})"
    start = {
        "good": "Columns go together in the model as in the data",
        "note": "Columns go together somewhat differently in the model",
        "bad": "The model misses how columns go together",
    }
    return Remark(level, f"{start[level]}: {said}.", 2 if level == "bad" else 3)
