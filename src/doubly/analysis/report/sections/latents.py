"""The latent variables: can the proposal find them (k̂, effective draws), and which units does the model use?"""

from typing import NamedTuple

import numpy as np

from doubly.analysis.report.page import Figure, Level, Remark, Section, Table
from doubly.analysis.report.story import DRAWS, Story
from doubly.analysis.report.svg import Chart, finite, number
from doubly.latents import ACTIVE, RowLikelihoods
from doubly.latents.likelihood import HEAVY_ROWS, RELIABLE
from doubly.posterior.scores import summarise

MOVES = 0.1
"""A unit all of whose weights to the layer below are smaller than that, in log-odds, does nothing to it."""
MANY = 0.5  # of the units inactive, from which a smaller model would do


class Activity(NamedTuple):
    """What the units of a latent layer do."""

    name: str
    kind: str
    use: np.ndarray
    """The share of each unit's variance that the row explains (`latents.explained`)."""
    active: np.ndarray
    idle: int | None
    """Units that move no log-odds of the layer below by as much as `MOVES`; None where that cannot be read off."""


def latents(story: Story) -> Section:
    """Histograms of k̂ and of effective draws, and the use of each unit."""
    rows, units = story.graded.by_draws, activities(story)
    khat, ess = rows.khat.cpu().numpy(), rows.ess.cpu().numpy()
    lines = [
        [
            each.name,
            each.kind,
            str(len(each.active)),
            str(int(each.active.sum())),
            str(int((~each.active).sum())),
            "–" if each.idle is None else str(each.idle),
        ]
        for each in units
    ]
    return Section(
        "Latent variables",
        f"For each of {len(khat)} test rows {DRAWS} draws of the latent variables were weighed. k̂ says "
        f"how heavy the tail "
        f"of the weights is: above {RELIABLE} the draws miss much of what the model says of the row, and "
        f"its score by draws "
        "is too low. A unit is inactive if the row explains no more than 1 % of its variance: it is always on, always "
        "off, or does not depend on the row. One without weights does nothing to the layer below.",
        [
            _histogram(
                "khat", finite(khat), "k̂ of each test row", RELIABLE, "Right of the dotted line: not to be relied on."
            ),
            _histogram(
                "effective-draws",
                finite(ess),
                f"Effective draws of {DRAWS}",
                None,
                "Few: the proposal fits the row badly.",
            ),
            *(_use(each) for each in units),
            Table(["latent layer", "kind", "units", "active", "inactive", "without effect below"], lines),
        ],
        [_on_khat(rows, story.graded.estimator), *(remark for each in units for remark in _on_units(each))],
    )


def activities(story: Story) -> list[Activity]:
    """The use of each unit of each latent layer."""
    shares = story.one.explained(of="last" if story.of == "last" else "mean")
    layers = story.posterior.model.layers[1:]
    return [
        Activity(f"z{i + 1}", layer.kind, use, use > ACTIVE, _idle(story, i))
        for i, (layer, use) in enumerate(zip(layers, shares, strict=True))
    ]


def _idle(story: Story, below: int) -> int | None:
    """Where the layer below has a matrix W with a column for each unit."""
    layer = story.posterior.model.layers[below]
    weights = story.posterior.model.unflatten(story.theta)[below].get("W")
    if weights is None or tuple(weights.shape) != (layer.n_out, layer.n_in) or layer.kind != "binary":
        return None
    return int((weights.abs().amax(0) < MOVES).sum())


def _histogram(name: str, values: np.ndarray, title: str, limit: float | None, note: str) -> Figure:
    if not len(values):
        values = np.zeros(1)
    low, high = float(values.min()), float(values.max())
    low, high = (min(low, 0.0), max(high, (limit or 0) + 0.1)) if limit else (min(1.0, low), max(high, low + 1))
    counts, edges = np.histogram(values, 24, (low, high))
    chart = Chart((low, high), (0, max(1.0, float(counts.max()) * 1.08)), "", "rows", tall=190)
    for count, a, b in zip(counts, edges, edges[1:], strict=False):
        beyond = limit is not None and (a + b) / 2 > limit
        chart.bar(a, b, float(count), "f2 soft" if beyond else "f1 soft", f"{number(a)} to {number(b)}: {count} rows")
    if limit is not None:
        chart.upright(limit)
    return Figure(name, chart.svg(title), title, note)


def _use(each: Activity) -> Figure:
    """The units in order of their use."""
    values = np.sort(each.use)[::-1]
    if len(values) > 200:
        values = values[np.linspace(0, len(values) - 1, 200).round().astype(int)]
    chart = Chart((0, len(values)), (0, 1), "units, the most used first", tall=190, x_ticks=[])
    for i, value in enumerate(values):
        text = f"the row explains {value:.1%} of its variance"
        chart.bar(i, i + 1, float(np.clip(value, 0, 1)), "f1 soft" if value > ACTIVE else "f2", text)
    title = f"Layer {each.name}: how much of each unit the row explains"
    return Figure(f"units-{each.name}", chart.svg(title), title, "The second colour marks inactive units.")


def _on_khat(rows: RowLikelihoods, estimator: str) -> Remark:
    n, found = len(rows.khat), summarise(rows)
    heavy, unknown = found.unreliable / n, found.unknown / n
    more = f" Of {found.unknown} rows the draws cannot tell." if unknown else ""
    if heavy > HEAVY_ROWS:
        cure = (
            "scores are therefore by annealing, which does not depend on it"
            if estimator == "annealing"
            else "scores by draws are too low; evaluate with more --draws, a longer --refit or --by annealing"
        )
        said = f"The proposal misses much: {heavy:.0%} of the test rows have k̂ > {RELIABLE}; {cure}.{more}"
        return Remark("note", said, 5)
    if unknown > HEAVY_ROWS:
        why = "their weights are too few, or all alike: those of an exact proposal, or of one that never draws a mode"
        said = (
            f"Of {unknown:.0%} of the test rows the draws cannot tell whether the proposal finds the latent variables"
        )
        return Remark("note", f"{said} ({why}). {heavy:.0%} have k̂ > {RELIABLE}.", 5)
    said = f"The proposal finds the latent variables: {heavy:.0%} of the test rows have k̂ > {RELIABLE}.{more}"
    return Remark("good", said, 5)


def _on_units(each: Activity) -> list[Remark]:
    n, gone = len(each.active), int((~each.active).sum())
    level: Level = "bad" if gone > MANY * n else "note" if gone else "good"
    cure = "; a smaller --hidden would do as well, or longer training may wake them" if gone > MANY * n else ""
    text = f"{gone} of {n} units" if gone else f"All {n} units"
    found = [Remark(level, f"{text} of the latent layer {each.name} are {'inactive' if gone else 'active'}{cure}.", 6)]
    if each.idle:
        level = "bad" if each.idle > MANY * n else "note"
        said = f"{each.idle} of {n} units of {each.name} have no effect on the layer below (no weight beyond {MOVES})"
        found.append(Remark(level, f"{said}: the model is smaller than it looks.", 6))
    return found
