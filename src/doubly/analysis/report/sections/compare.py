"""Several runs side by side: settings that differ, scores by the same estimator, training curves, samples."""

import dataclasses
import math

import numpy as np
from markupsafe import Markup

from doubly.analysis.report.mosaic import ink, ink_limits, mosaic
from doubly.analysis.report.page import Figure, Level, Remark, Section, Table, Words
from doubly.analysis.report.sections.training import column, without_bad_start
from doubly.analysis.report.story import Graded, Story
from doubly.analysis.report.svg import NARROW, WIDE, Chart, number, plain_text
from doubly.runs.config import Config
from doubly.runs.progress import span

SHOWN = 30


def compare(story: Story) -> Section:
    """The run and the others; where the data differ, without scores."""
    runs = [story, *story.others]
    names = short_names(runs)
    same = len({each.run.data_digest for each in runs}) == 1
    parts: list[Figure | Table | Words] = [_settings(runs, names)]
    remarks: list[Remark] = []
    if same:
        table, remarks = _scores(runs, names)
        parts.insert(0, table)
    else:
        parts.append(Words("The runs were made with different data: their scores cannot be compared."))
    parts.append(
        Figure(
            "training-compared",
            _curves(runs, names, WIDE),
            "Validation log-likelihood of each run",
            "Shapes may be compared. Levels only where the runs validate with the same draws.",
            _curves(runs, names, NARROW),
            wide=True,
        )
    )
    if same and story.images:
        parts += [_samples(each, name, i) for i, (each, name) in enumerate(zip(runs, names, strict=True))]
    return Section(
        "Runs side by side",
        f"What follows this section is of {names[0]} alone.",
        parts,
        remarks,
    )


def short_names(runs: list[Story]) -> list[str]:
    """The last part of each folder; the whole path where two share it."""
    last = [each.name for each in runs]
    texts = [str(each.run.path) if last.count(name) > 1 else name for each, name in zip(runs, last, strict=True)]
    return [plain_text(text, 40) for text in texts]


def _settings(runs: list[Story], names: list[str]) -> Table:
    fields = [field.name for field in dataclasses.fields(Config)]
    values = {name: [_words(getattr(each.run.config, name)) for each in runs] for name in fields}
    lines = [[name, *texts] for name, texts in values.items() if len(set(texts)) > 1]
    same = "All settings are the same." if not lines else "Settings that are the same for all are left out."
    return Table(["setting", *names], lines, numbers=False, note=same)


def _scores(runs: list[Story], names: list[str]) -> tuple[Table, list[Remark]]:
    """All by the same estimator: by annealing where that is nearer for one and possible for all."""
    found = [each.graded for each in runs]
    if len({each.estimator for each in found} - {"exact"}) > 1:
        by = "annealing" if all(each.can_anneal for each in runs) else "draws"
        found = [each.graded if each.exact else each.grade(by) for each in runs]  # type: ignore[arg-type]
    best = max(range(len(runs)), key=lambda i: float(found[i].log_likelihood.mean()))
    lines, levels = [], []
    for i, (each, name) in enumerate(zip(runs, names, strict=True)):
        mean, error, gap, gap_error = _paired(found[i], found[best])
        behind = "best" if i == best else f"{gap:.2f} ± {gap_error:.2f}".replace("-", "−")
        seconds = span(sum(record["seconds"] for record in each.metrics))
        lines.append([name, f"{mean:.2f} ± {error:.2f}".replace("-", "−"), behind, str(len(each.metrics)), seconds])
        level: Level | None = "good" if i == best else None
        levels.append(level)
    n = min(len(each.rows) for each in found)
    note = f"{n} test rows that all have in common, {found[best].how()}. Differences are of the same rows."
    table = Table(["run", "nats a row", "behind the best", "epochs", "time"], lines, levels=levels, note=note)
    return table, _remarks(found, names, best)


def _paired(one: Graded, best: Graded) -> tuple[float, float, float, float]:
    """Mean and error of one, and of its difference to the best, on the rows that both have."""
    _, mine, theirs = np.intersect1d(one.numbers, best.numbers, return_indices=True)
    own, gap = one.log_likelihood[mine], one.log_likelihood[mine] - best.log_likelihood[theirs]
    root = math.sqrt(max(1, len(own)))
    spread = [float(values.std(ddof=1)) / root if len(values) > 1 else math.nan for values in (own, gap)]
    return float(own.mean()), spread[0], float(gap.mean()), spread[1]


def _remarks(found: list[Graded], names: list[str], best: int) -> list[Remark]:
    others = [i for i in range(len(found)) if i != best]
    second = max(others, key=lambda i: float(found[i].log_likelihood.mean()))
    _, _, gap, error = _paired(found[second], found[best])
    if -gap > 2 * error:
        text = (
            f"Of the runs compared, {names[best]} is best: {-gap:.2f} ± {error:.2f} nats a row ahead of "
            f"{names[second]}."
        )
        return [Remark("good" if best == 0 else "note", text, 1)]
    text = f"{names[best]} and {names[second]} cannot be told apart ({-gap:.2f} ± {error:.2f} nats a row)."
    return [Remark("note", text, 1)]


def _curves(runs: list[Story], names: list[str], wide: int) -> Markup:
    series = [(column(each.metrics, "epoch"), column(each.metrics, "valid")) for each in runs]
    last = max(float(epoch[-1]) for epoch, _ in series)
    ends = [without_bad_start(valid) for _, valid in series]
    limits = min(low for low, _ in ends), max(high for _, high in ends)
    legend = [(f"l{i % 6 + 1}", name) for i, name in enumerate(names)]
    chart = Chart((0.5, last + 0.5), limits, "epoch", "nats", wide, 280, legend=legend)
    for i, (epoch, valid) in enumerate(series):
        chart.line(epoch, valid, f"l{i % 6 + 1}" + (" dash" if i >= 6 else ""))
    longest = max((epoch for epoch, _ in series), key=len)
    known = [dict(zip(epoch.tolist(), valid.tolist(), strict=True)) for epoch, valid in series]
    tips = [
        "\n".join(
            [f"epoch {at:.0f}", *(f"{n} {number(v[at], 4)}" for n, v in zip(names, known, strict=True) if at in v)]
        )
        for at in longest.tolist()
    ]
    chart.hover(longest.tolist(), tips)
    return chart.svg("Validation log-likelihood of each run against epoch")


def _samples(story: Story, name: str, i: int) -> Figure:
    rows = story.samples[:SHOWN]
    tips = [f"sample {at + 1} of {name}" for at in range(len(rows))]
    chart = mosaic(ink(rows, ink_limits(story.data.train)), story.data.shape, tips, f"Samples of {name}")
    return Figure(f"samples-of-run-{i + 1}", chart, f"Samples of {name}")


def _words(value: object) -> str:
    return plain_text(" ".join(map(str, value)) or "none" if isinstance(value, tuple) else value, 60)
