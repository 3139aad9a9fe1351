"""The chain: has it mixed? Traces, rank plots, R-hat and effective samples of a few summaries."""

import itertools

import numpy as np

from doubly.analysis.convergence import Summary
from doubly.analysis.diagnose import ASIDE, Diagnosis, diagnose
from doubly.analysis.report.page import Figure, Level, Remark, Section, Table, Words
from doubly.analysis.report.sections.training import epochs_of
from doubly.analysis.report.story import Story
from doubly.analysis.report.svg import Chart, around, number, plain_text
from doubly.analysis.traces import collected, label
from doubly.analysis.verdict import MIXED
from doubly.core.errors import UserError

TITLE = "Convergence of the chain"
ADVICE = (
    "Samples of the weights are worth something once the chain has forgotten where it began. R-hat "
    "compares the chain's "
    "halves (or several chains): near 1 they agree. The effective samples (ESS) say how many independent samples the "
    "correlated ones are worth. Nothing here can prove convergence; it can speak against it."
)
TRACES, RANKS = 4, 2
"""Summaries that are drawn: the validation log-likelihood, and those that mix worst."""
BINS = 8


def chain(story: Story) -> Section:
    """The diagnosis of the run, or of several that are chains of one posterior."""
    try:
        found = _diagnosis(story)
    except UserError as error:
        said = _sentence(plain_text(error, 400))
        return Section(TITLE, ADVICE, [Words(f"Nothing can be said yet. {said}")], [Remark("note", said, 4)])
    names = worst_first(found.relevant)
    shown = (["valid"] if "valid" in names else []) + [name for name in names if name != "valid"]
    return Section(
        TITLE,
        ADVICE,
        [
            _table(found),
            *(_trace(found, name) for name in shown[:TRACES]),
            *(_ranks(found, name) for name in shown[:RANKS]),
            Words(" ".join(_sentence(plain_text(line, 600)) for line in found.verdict)),
        ],
        [Remark(_level(found), _sentence(plain_text(_main(found.verdict), 600)), 4)],
    )


def _main(verdict: list[str]) -> str:
    """The sentence that says whether the chain has mixed; the last one where none speaks of R-hat."""
    return next((line for line in verdict if line.startswith("R-hat")), verdict[-1])


def _diagnosis(story: Story) -> Diagnosis:
    """Of all runs, if they are chains of one posterior; else of the first."""
    if story.others:
        try:
            return diagnose(story.run.path, *(other.run.path for other in story.others))
        except UserError:
            pass
    return diagnose(story.run.path)


def worst_first(traces: dict[str, Summary]) -> list[str]:
    """The traces that vary, the largest R-hat first."""
    moving = {name: summary.rhat for name, summary in traces.items() if summary.sd > 0}
    return sorted(moving, key=lambda name: -np.nan_to_num(moving[name], nan=-1.0))


def _level(found: Diagnosis) -> Level:
    worst = max((summary.rhat for summary in found.relevant.values() if summary.sd > 0), default=1.0)
    if worst > max(MIXED, found.chance_rhat):
        return "bad"
    calm = worst <= MIXED and (found.temperature is None or found.temperature.compatible)
    return "good" if calm else "note"


def _table(found: Diagnosis) -> Table:
    limit = max(MIXED, found.chance_rhat)
    lines, levels = [], []
    for name, s in found.traces.items():
        numbers = (
            number(s.mean, 4),
            number(s.sd, 2),
            number(s.mcse, 2),
            f"{s.rhat:.2f}",
            number(s.ess_bulk),
            number(s.ess_tail),
        )
        lines.append([plain_text(label(name)) + "*" * (name in found.aside), *numbers])
        levels.append(None if name in found.aside else _trace_level(s, limit))
    n, chains = found.samples, len(found.runs)
    counted = f"{n} epochs of {'the chain' if chains == 1 else f'each of {chains} chains'} with collected samples. "
    return Table(
        ["summary", "mean", "sd", "error of the mean", "R-hat", "ESS (bulk)", "ESS (tail)"],
        lines,
        levels=levels,
        note=counted
        + f"As many independent samples would have an R-hat below {found.chance_rhat:.2f} 99 times in 100."
        + f" * {ASIDE}." * bool(found.aside),
    )


def _trace_level(summary: Summary, limit: float) -> Level | None:
    if not summary.sd > 0:
        return None
    return "bad" if summary.rhat > limit else "note" if summary.rhat > MIXED else None


def _trace(found: Diagnosis, name: str) -> Figure:
    histories = found.histories
    late = np.concatenate([history.values[name][history.collecting] for history in histories])
    low, high = around(late, 0.1)
    room = (high - low) / 2
    every = np.concatenate([history.values[name] for history in histories])
    inside = every[(every > low - room) & (every < high + room)]
    epoch = max((history.epoch for history in histories), key=len)
    legend = [(f"l{i % 6 + 1}", plain_text(history.name, 24)) for i, history in enumerate(histories)]
    chart = Chart(epochs_of(epoch), around(inside), "epoch", tall=190, legend=legend if len(histories) > 1 else ())
    for i, history in enumerate(histories):
        chart.line(history.epoch, history.values[name], f"l{i % 6 + 1} pale")
        chart.line(history.epoch[history.collecting], history.values[name][history.collecting], f"l{i % 6 + 1}")
    first = histories[0]
    tips = [f"epoch {e}: {number(v, 4)}" for e, v in zip(first.epoch, first.values[name], strict=True)]
    chart.hover(first.epoch.tolist(), tips)
    said = plain_text(label(name))
    return Figure(
        f"trace-{_file(name)}", chart.svg(f"Trace of the {said}"), f"Trace: {said}", "Pale: before collection."
    )


def _ranks(found: Diagnosis, name: str) -> Figure:
    """How the ranks of the values are spread over each chain, or over its quarters."""
    values = collected(found.histories)[name]
    parts = values if len(values) > 1 else np.array_split(values[0], 2)
    names = [plain_text(h.name, 24) for h in found.histories] if len(values) > 1 else ["first half", "second half"]
    whole = np.concatenate(list(parts))
    ranks = whole.argsort(kind="stable").argsort() / len(whole)
    edges = np.cumsum([0, *(len(part) for part in parts)])
    bins = max(2, min(BINS, len(whole) // 8))
    shares = [np.histogram(ranks[a:b], bins, (0, 1))[0] / max(1, b - a) for a, b in itertools.pairwise(edges)]
    legend = [(f"f{i % 6 + 1} soft", text) for i, text in enumerate(names)]
    ends = [(0.05, "lowest"), (0.94, "highest")]
    chart = Chart(
        (0, 1), (0, max(float(np.max(shares)) * 1.1, 2 / bins)), "rank among all", tall=190, x_ticks=ends, legend=legend
    )
    each = 1 / bins / len(shares)
    for i, share in enumerate(shares):
        for b, value in enumerate(share):
            low = b / bins + i * each
            chart.bar(low, low + each, float(value), f"f{i % 6 + 1} soft", f"{names[i]}: {value:.0%} of its values")
    chart.rule(1 / bins)
    said = plain_text(label(name))
    note = "Each part should have about the same share of low and high values (the dotted line)."
    return Figure(f"ranks-{_file(name)}", chart.svg(f"Ranks of the {said}"), f"Ranks: {said}", note)


def _file(name: str) -> str:
    return "".join(char for char in name if char.isascii() and (char.isalnum() or char in "-_"))[:40] or "other"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
