"""Scores: what evaluations have found, and the model beside independent columns and a mixture on the same rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from doubly.analysis.evaluation import FiledEvaluation
from doubly.analysis.report.page import Figure, Level, Remark, Section, Table
from doubly.analysis.report.story import Record, Story, is_curve, scores
from doubly.analysis.report.svg import Chart, around, finite, number, plain_text
from doubly.latents import ESTIMATORS, OBJECTIVES
from doubly.runs.baseline import WIDEST, baselines
from doubly.runs.config import Config

NEEDED = 2.0  # standard errors by which a model must be ahead


class Result(NamedTuple):
    """A log-likelihood with its error bar, as text, and how it was found."""

    name: str
    value: str
    stderr: str
    how: str


class Fact(NamedTuple):
    """A line in words."""

    name: str
    text: str


def quality(story: Story) -> Section:
    """Scores in a table, and row by row beside the mixture."""
    found = results(story)
    graded = story.graded
    rivals = simple_scores(story)
    n = len(graded.rows)
    head = ["on the same rows", "nats a row", "model is ahead by", "±"]
    mean, own_error = _mean(graded.log_likelihood)
    lines = [["this model", f"{mean:.2f} ± {own_error:.2f}", "", ""]]
    levels: list[Level | None] = [None]
    for name, values in rivals.items():
        gap, error = _mean(graded.log_likelihood - values)
        lines.append([name, f"{values.mean():.2f}", f"{gap:+.2f}", f"{error:.2f}"])
        levels.append("good" if gap > NEEDED * error else "bad" if gap < -NEEDED * error else "note")
    lines = [[cell.replace("-", "−") if i else cell for i, cell in enumerate(line)] for line in lines]
    which = f"{n} of {len(story.data.test)}" if n < len(story.data.test) else f"All {n}"
    return Section(
        "Scores",
        "The log-likelihood of held-out rows, in nats for each row: higher is better. A model with latent variables "
        "has to beat columns that know nothing of each other, and should beat a mixture.",
        [
            Table(
                ["evaluated", "nats a row", "±", "how"],
                [[r.name, r.value.replace("-", "−"), r.stderr, r.how] for r in found],
                numbers=False,
            ),
            Table(
                head,
                lines,
                levels=levels,
                note=f"{which} test rows, {graded.how()}, with {story.whose}. Scores of models with latent variables "
                "are lower bounds; those of the others are exact.",
            ),
            _scatter(story, rivals),
        ],
        remarks=_remarks(story, rivals),
    )


def simple_scores(story: Story) -> dict[str, np.ndarray]:
    """log p of the graded rows by simpler densities, fitted to the training rows."""
    rows = story.graded.rows
    alone, mixture = story.simple
    units = story.units(rows)
    found = {"independent columns": alone.log_prob(rows) - units}
    if mixture.components > 1:
        found[f"mixture of {mixture.components}"] = mixture.log_prob(rows) - units
    if story.table and story.data.columns is not None and story.data.width <= WIDEST:
        train = torch.as_tensor(story.data.train)
        normal = baselines(story.data.columns.layout(), train).log_prob(torch.as_tensor(rows)).get("normal by EM")
        if normal is not None:
            found["normal of the real columns"] = normal.numpy() - units
    return found


def _mean(values: np.ndarray) -> tuple[float, float]:
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), error


def _scatter(story: Story, rivals: dict[str, np.ndarray]) -> Figure:
    name, values = list(rivals.items())[1 if len(rivals) > 1 else 0]
    graded = story.graded
    limits = around(finite(values, graded.log_likelihood))
    chart = Chart(limits, limits, f"log-likelihood by the {name}", "log-likelihood by this model", tall=330)
    chart.diagonal()
    tips = [
        f"test row {row}\nmodel {number(own, 4)}\n{name} {number(other, 4)}"
        for row, own, other in zip(graded.numbers, graded.log_likelihood, values, strict=True)
    ]
    chart.points(values.tolist(), graded.log_likelihood.tolist(), "f1", tips, 3)
    ahead = float(np.mean(graded.log_likelihood > values))
    note = (
        f"Each point is a test row; above the dotted line the model gives it more. That is so for {ahead:.0%} of them."
    )
    return Figure("scores-by-row", chart.svg(f"Log-likelihood of test rows by model and {name}"), "Row by row", note)


def _remarks(story: Story, rivals: dict[str, np.ndarray]) -> list[Remark]:
    own, found = story.graded.log_likelihood, []
    bound = "" if story.exact else " (a lower bound)"
    mean, error = _mean(own)
    for rank, (name, values) in enumerate(rivals.items()):
        gap, gap_error = _mean(own - values)
        said = f"{abs(gap):.2f} ± {gap_error:.2f} nats"
        article = "" if name == "independent columns" else "the " if name.startswith("normal") else "a "
        if gap > NEEDED * gap_error:
            found.append(Remark("good", f"{said} a row better than {article}{name}.", 0))
        elif gap < -NEEDED * gap_error:
            text = f"{said} a row worse than {article}{name}: "
            text += "the model has learnt nothing of use yet." if rank == 0 else "it is not worth its complexity yet."
            found.append(Remark("bad", text + " Train longer, or change the model.", 0))
        else:
            found.append(
                Remark(
                    "note",
                    f"Not clearly different from {article}{name} ({number(gap, 2)} ± {number(gap_error, 2)} nats a "
                    f"row).",
                    0,
                )
            )
    head = f"Held-out rows get {number(mean, 4)} ± {number(error, 2)} nats each{bound}."
    first = found[0]
    return [Remark(first.level, f"{head} That is {first.text[0].lower()}{first.text[1:]}", 0), *found[1:]]


# What was filed


def results(story: Story) -> list[Result]:
    """The best validation score, and what `doubly evaluate` has found."""
    exact = not story.run.config.hidden
    found = [result(each, exact) for each in scores(story.evaluations).values()]
    return [best_validation(story.metrics, story.run.config), *found]


def facts(story: Story) -> list[Fact]:
    """What other files in evaluations/ say, in words."""
    known = scores(story.evaluations)
    return [
        Fact(name, ", ".join(f"{plain_text(key)} {_short(value)}" for key, value in record.items())[:500])
        for name, record in story.evaluations.items()
        if name not in known and not is_curve(name)
    ]


def best_validation(metrics: Sequence[Record], config: Config) -> Result:
    """The best epoch."""
    best = max(metrics, key=lambda record: -math.inf if record["valid"] is None else record["valid"])
    estimator = ESTIMATORS.make(config.estimator, draws=config.draws, objective=OBJECTIVES.make(config.objective))
    draws = f", {estimator.validation}={config.valid_draws}" if config.hidden else ""
    name = "best validation log-likelihood"
    return Result(name, f"{best['valid']:.2f}", f"{best['valid_stderr'] or 0:.2f}", f"epoch {best['epoch']}{draws}")


def result(found: FiledEvaluation, exact: bool) -> Result:
    """An evaluation as a line."""
    draws = "exact" if exact else f"K={found.draws}, {found.ess:.1f} effective"
    if found.estimator == "annealing":
        draws = f"annealed, T={found.temperatures}"
    if found.estimator == "short-chain":
        draws = f"short chains, S={found.states}"
    truth = "" if found.truth is None else f"; truth {found.truth:.2f}"
    samples = f" of {found.samples} samples" if found.samples else ""
    ways = ", adaptive" * found.adaptive + (f", refined by {found.refine} steps" if found.refine else "")
    return Result(
        name=f"{plain_text(found.split)} log-likelihood",
        value=f"{found.log_likelihood:.2f}",
        stderr=f"{found.stderr or 0:.2f}",
        how=f"{plain_text(found.of)}{samples}, {draws}{ways}{truth}",
    )


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else plain_text(value)
