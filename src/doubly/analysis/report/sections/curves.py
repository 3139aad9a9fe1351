"""Curves that `doubly curve` has filed: the score against draws, samples or training draws."""

import math

from markupsafe import Markup

from doubly.analysis.report.page import Figure, Section
from doubly.analysis.report.story import Record, Story, is_curve
from doubly.analysis.report.svg import Chart, Limits, around, finite, number
from doubly.core.sealed import is_number

LABELS = {
    "samples": ("samples of the weights in the mean (M)", "Score against the samples in the mean"),
    "draws": ("draws of the latent variables for each row (K)", "Score against the draws of an evaluation"),
    "training-draws": ("draws of the latent variables in a training step (S)", "Score against the draws of training"),
}


def has_curves(story: Story) -> bool:
    """Whether any was made."""
    return any(_points(record) for name, record in story.evaluations.items() if is_curve(name))


def curves(story: Story) -> Section:
    """One chart for each."""
    charts = []
    for over, (x_label, title) in LABELS.items():
        points = _points(story.evaluations.get(f"curve-over-{over}", {}))
        if points:
            charts.append(Figure(f"score-over-{over}", _chart(points, x_label, title), title))
    return Section(
        "Curves",
        "The score should rise and level off: where it still rises at the end, more draws or samples would give more. "
        "With few draws a score is a looser lower bound of the same model.",
        charts,
    )


def _points(record: Record) -> list[tuple[float, float, float]]:
    """(number, score, standard error) of each point of a file; what is no number is left out."""
    found = []
    points = record.get("points", [])
    for point in points if isinstance(points, list) else []:
        values = [point.get(name) if isinstance(point, dict) else None for name in ("at", "log_likelihood", "stderr")]
        at, score, error = (float(v) if v is not None and is_number(v) else math.nan for v in values)
        if at > 0 and math.isfinite(at) and math.isfinite(score):
            found.append((at, score, error if math.isfinite(error) else 0.0))
    return sorted(found)[:100]


def _chart(points: list[tuple[float, float, float]], x_label: str, title: str) -> Markup:
    logs = [math.log10(at) for at, _, _ in points]
    limits: Limits = (logs[0] - 0.1, logs[-1] + 0.1)
    values = finite([s - e for _, s, e in points], [s + e for _, s, e in points])
    marks = [(x, f"{at:g}") for x, (at, _, _) in zip(logs, points, strict=True)]
    kept = marks if len(marks) <= 8 else marks[:: math.ceil(len(marks) / 8)]
    chart = Chart(limits, around(values), x_label, "nats a row", tall=240, x_ticks=kept)
    for x, (_, score, error) in zip(logs, points, strict=True):
        chart.whisker(x, score - error, score + error, "l1 pale")
    chart.line(logs, [score for _, score, _ in points], "l1")
    chart.hover(logs, [f"{at:g}: {number(score, 4)} ± {number(error, 2)}" for at, score, error in points])
    return chart.svg(title)
