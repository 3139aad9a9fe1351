"""Training: log-likelihoods against epochs, where collection began, and what the sampler recorded of itself."""

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from doubly.analysis.convergence import ess_bulk
from doubly.analysis.report.page import Figure, Level, Remark, Section, Words
from doubly.analysis.report.story import Record, Story
from doubly.analysis.report.svg import NARROW, WIDE, Chart, Limits, around, finite, number
from doubly.runs.progress import counted, span

HEALTH = {
    "ess": (
        "Effective draws",
        "How many draws of equal weight the draws of a step are worth. Near 1, the proposal fits badly.",
    ),
    "temperature": ("Kinetic temperature", "It should stay near 1. If it is well above, take a smaller step."),
    "thermostat": (
        "Thermostat (mean friction)",
        "It should level off once it has taken up the noise of the gradient.",
    ),
}
CLEAR = 3.0  # standard errors by which a change is more than noise
SMALL = 0.002  # of the log-likelihood: a change that nobody would train longer for


def training(story: Story) -> Section:
    """The curve, what became of it, and the health of the chain."""
    truth = None if story.data.log_density is None else float(story.data.log_density(story.data.valid).mean())
    metrics = story.metrics
    seconds = sum(record["seconds"] for record in metrics)
    first = f" of the first of {story.run.config.chains} chains" if story.run.config.chains > 1 else ""
    began = collection_began(metrics)
    when = f"Samples of the weights were collected from epoch {began} on (shaded)." if began else ""
    if not began:
        when = "No samples of the weights were collected: the last weights answer."
    draws = story.run.config.draws if story.run.config.hidden else 1
    return Section(
        "Training",
        f"{len(metrics)} epochs in {span(seconds)}{first}. {when} The validation curve should rise and level off "
        "before the samples are collected. If it still rises at the end, more epochs would help. If it falls while the "
        "training curve rises, the model overfits.",
        [
            Figure(
                "training",
                curve(metrics, truth, WIDE),
                narrow=curve(metrics, truth, NARROW),
                wide=True,
                title="Log-likelihood of a row (nats), epoch by epoch",
                note="The training bound is of mini-batches with few draws: compare its shape, not its level.",
            ),
            *health_figures(metrics, draws),
            *_retries(metrics),
        ],
        remarks=_remarks(metrics, began),
    )


def column(records: Sequence[Record], name: str) -> np.ndarray:
    """A number of each epoch; NaN where there is none."""
    found = [record.get(name, math.nan) for record in records]
    return np.array([math.nan if value is None else value for value in found], dtype=float)


def collection_began(metrics: Sequence[Record]) -> int | None:
    """The first epoch in which samples were collected."""
    return next((int(record["epoch"]) for record in metrics if record["phase"] == "collect"), None)


def without_bad_start(values: np.ndarray, truth: float | None = None) -> Limits:
    """A range that shows the upper three quarters of the values in a third of the height or more.

    The first epochs may lie far below all others; they leave the frame rather than squash the rest.
    """
    values = finite(values)
    if not len(values):
        return 0.0, 1.0
    high = float(values.max())
    low = max(float(values.min()), high - 3 * (high - float(np.quantile(values, 0.25))))
    return around(np.array([low, high] if truth is None else [low, high, truth]))


def epochs_of(epoch: np.ndarray) -> Limits:
    """The range of an axis of epochs."""
    return float(epoch[0]) - 0.5, float(epoch[-1]) + 0.5


def shade_collecting(chart: Chart, metrics: Sequence[Record]) -> None:
    """Mark the epochs in which samples were collected."""
    if began := collection_began(metrics):
        chart.shade(began - 0.5, float(metrics[-1]["epoch"]) + 0.5)


def curve(metrics: Sequence[Record], truth: float | None, wide: int) -> Markup:
    """Validation log-likelihood with its error band, the training bound, and the truth where it is known."""
    epoch, valid, train = (column(metrics, name) for name in ("epoch", "valid", "train"))
    stderr = np.nan_to_num(column(metrics, "valid_stderr"))
    legend = [("l1", "validation ± standard error"), ("l2 dash", "training bound")]
    legend += [("shade", "samples collected")] * (collection_began(metrics) is not None)
    legend += [] if truth is None else [("l3 dots", f"the data's own density: {number(truth, 4)}")]
    limits = without_bad_start(np.concatenate([valid - stderr, valid + stderr, train]), truth)
    chart = Chart(epochs_of(epoch), limits, "epoch", "nats", wide, 300 if wide > NARROW else 240, legend=legend)
    shade_collecting(chart, metrics)
    chart.spread(epoch.tolist(), (valid - stderr).tolist(), (valid + stderr).tolist(), "f1")
    chart.line(epoch, train, "l2 dash")
    chart.line(epoch, valid, "l1")
    if truth is not None:
        chart.rule(truth, "line l3 dots")
    chart.hover(epoch.tolist(), [_tip(record) for record in metrics])
    if np.isfinite(valid).any():
        best = int(np.nanargmax(np.where(np.isfinite(valid), valid, -np.inf)))
        tip = f"best validation: {number(valid[best], 4)} in epoch {epoch[best]:.0f}"
        chart.points([epoch[best]], [valid[best]], "f1", [tip], 5)
    return chart.svg("Log-likelihood against epoch")


def _tip(record: Record) -> str:
    lines = [f"epoch {record['epoch']} ({record['phase']})"]
    valid, train = column([record], "valid")[0], column([record], "train")[0]
    lines.append(f"validation {number(valid, 4)} ± {number(column([record], 'valid_stderr')[0], 2)}")
    return "\n".join([*lines, f"training {number(train, 4)}"])


# The chain's own records


def health(metrics: Sequence[Record], draws: int) -> dict[str, np.ndarray]:
    """What shows whether the chain is well: the effective draws, and what the sampler records of itself.

    `draws` is the number of draws for each row; of a single one, "ess" says nothing and is left out.
    """
    sampler = [record["sampler"] for record in metrics]
    names = dict.fromkeys(name for record in sampler for name in record)
    series = {name: column(sampler, name) for name in names}
    if draws > 1:
        series = {"ess": column(metrics, "ess")} | series
    return {name: values for name, values in series.items() if np.isfinite(values).any()}


def health_figures(metrics: Sequence[Record], draws: int) -> list[Figure]:
    """A small chart of each."""
    epoch, found = column(metrics, "epoch"), []
    for i, (name, values) in enumerate(list(health(metrics, draws).items())[:6]):
        title, note = HEALTH.get(name, (name, ""))
        late = values[-max(1, len(values) // 2) :]
        limits = around(finite(late, np.quantile(finite(values), [0.05, 0.95])))
        if name == "ess":
            limits = (1.0, max(draws * 1.03, 1.1))
        if name == "temperature":
            limits = (min(limits[0], 0.9), max(limits[1], 1.1))
        chart = Chart(epochs_of(epoch), limits, "epoch", tall=190)
        shade_collecting(chart, metrics)
        if name == "temperature":
            chart.rule(1.0)
        chart.line(epoch, values, f"l{i % 6 + 1}")
        chart.hover(epoch.tolist(), [f"epoch {e:.0f}: {number(v, 4)}" for e, v in zip(epoch, values, strict=True)])
        more = f" (of {draws})" if name == "ess" else ""
        found.append(Figure(f"health-{_file(name)}", chart.svg(f"{title} against epoch"), title + more, note))
    return found


def _file(name: str) -> str:
    """A part of a file name: letters of the name of a record."""
    return "".join(char for char in name if char.isascii() and (char.isalnum() or char in "-_"))[:40] or "other"


def _retries(metrics: Sequence[Record]) -> list[Words]:
    times = max(int(record.get("retried", 0)) for record in metrics)
    said = f"The chain has diverged {counted(times, 'time')} and went on with a third of the step each time."
    return [Words(said)] if times else []


def _remarks(metrics: Sequence[Record], began: int | None) -> list[Remark]:
    found = [Remark(*trend(column(metrics, "valid")), rank=2)]
    if began is None:
        text = "No samples of the weights were collected, so the uncertainty of the weights is not in any answer: "
        found.append(Remark("bad", text + "train longer (doubly resume --epochs), or ask for samples (--collect)", 2))
    return found


def _noise(values: np.ndarray) -> float:
    """The spread of values around a line through them; larger, where neighbours are alike, as samples of a chain are.

    The mean of n such values has the error `_noise(values) / sqrt(n)`.
    """
    epoch = np.arange(len(values))
    rest = values - np.polyval(np.polyfit(epoch, values, 1), epoch)
    worth = min(1.0, ess_bulk(rest[None]) / len(rest)) if len(rest) >= 8 else 1.0
    return float(rest.std(ddof=2)) / math.sqrt(worth)


def trend(valid: np.ndarray) -> tuple[Level, str]:
    """Whether validation has levelled off, still rises, or has fallen; a level and a sentence."""
    valid = finite(valid)
    k = max(2, len(valid) // 10)
    if len(valid) < 3 * k:
        return "note", "Too few epochs to tell whether validation has levelled off."
    last, before = valid[-k:], valid[-3 * k : -k]
    noise = _noise(valid[-3 * k :]) * math.sqrt(1 / k + 1 / (2 * k))
    change, clear = float(last.mean() - before.mean()), max(CLEAR * noise, SMALL * abs(float(last.mean())))
    smooth = np.convolve(valid, np.ones(k) / k, "valid")
    lost = float(smooth.max()) - float(last.mean())
    if change > clear:
        return (
            "bad",
            f"Validation still rose by {number(change)} nats in the last epochs: train longer (more --epochs).",
        )
    if lost > max(10 * SMALL * abs(float(last.mean())), 5 * noise):
        return (
            "bad",
            f"Validation has fallen by {number(lost)} nats from its best: the model overfits, or the step is "
            f"too large.",
        )
    return "good", "Validation has levelled off: more epochs would add little."
