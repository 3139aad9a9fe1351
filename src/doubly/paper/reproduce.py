"""Making a row of the paper's tables by one command: train, collect, refit, score, and file the result."""

import dataclasses
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from doubly.analysis.evaluation import Evaluation
from doubly.core.errors import Damaged
from doubly.core.sealed import MOST_JSON, dump_json, load_json
from doubly.paper.budget import hurried, train, within
from doubly.paper.history import add_score, is_listed, score_of
from doubly.paper.recipes import FREE, Recipe
from doubly.paper.result import AnnealedRow, RowResult, WeightScores
from doubly.paper.scoring import alike, compare_weights, score
from doubly.paper.tasks import Task
from doubly.runs.build import build
from doubly.runs.config import Config
from doubly.runs.folder import Run

ASLEEP = 20.0  # times as long as most epochs: the process was stopped meanwhile, and that is no work
SCORING = "scoring.json"  # in the run folder: how long scoring took so far


def reproduce(
    task: Task,
    results: str | Path = "results",
    runs: str | Path = "runs/reproduce",
    budget: float | None = None,
    threads: int = 0,
    quiet: bool = False,
) -> RowResult:
    """Make one row, going on with what was stopped or cut; `budget` is the time in seconds for its own number.

    The number is filed as soon as it is there. Without a budget two more parts follow, each filed when it is done:
    annealing as all rows of the table have it, and what the last weights, the mean and the ensemble give validation
    rows. Test rows are scored once for weights that stand: whoever calls again gets what was filed.
    """
    recipe, file, folder = task.recipe(threads), Path(results) / f"{task.title}.json", Path(runs) / task.title
    began, commit = time.monotonic(), _commit()
    run = train(recipe.config, folder, budget, recipe.evaluation, quiet)
    result = _filed(file, recipe, run)
    if result is None:
        with _counted(run):
            settings = recipe.evaluation
            if budget is not None:
                settings = within(began + budget, run, settings)
            found = score(run, settings, recipe.most_temperatures if budget is None else 0, quiet)
        result = _result(recipe, run, found, commit)
        result.save(file)
    look = score_of(task.title, result)
    if not is_listed(results, look):  # as it is not after a kill just here
        add_score(results, look)
    for part, make in PARTS.items():
        if budget is None and getattr(result, part) is None:
            with _counted(run):
                made = make(run, recipe, result, quiet)
            hours = (_training(run.metrics()) + _scoring(run)) / 3600
            result = dataclasses.replace(result, **{part: made}, hours=hours)
            result.save(file)
    run.folder.remove(SCORING)
    return result


def _annealed(run: Run, recipe: Recipe, result: RowResult, quiet: bool) -> AnnealedRow | None:
    return alike(run, recipe, result, quiet) if recipe.can_anneal else None


def _weights(run: Run, recipe: Recipe, result: RowResult, quiet: bool) -> WeightScores | None:
    return compare_weights(run, recipe.evaluation, result, quiet) if result.samples else None


PARTS: dict[str, Callable[[Run, Recipe, RowResult, bool], Any]] = {"annealed": _annealed, "weights": _weights}


def _fixed(config: Config) -> Config:
    """The settings in which a run may not differ from its recipe."""
    default = Config()
    return dataclasses.replace(config, **{name: getattr(default, name) for name in FREE})


def _filed(file: Path, recipe: Recipe, run: Run) -> RowResult | None:
    """The result that was filed, if it is of these weights and scored as the recipe asks."""
    if not file.exists():
        return None
    before, metrics, asked = RowResult.read(file), run.metrics(), recipe.evaluation
    # two runs that end at the very same validation log-likelihood have the same weights
    there = [before.epochs, before.valid_last, before.samples, before.data_sha256, _fixed(before.config)]
    here = [len(metrics), metrics[-1]["valid"], metrics[-1]["collected"], run.data_digest, _fixed(run.config)]
    same_way = (before.of, before.refit) == (asked.of, recipe.refit)
    enough = {
        "exact": True,
        "draws": before.draws >= asked.draws and before.refine >= asked.refine and asked.by != "annealing",
        "annealing": (before.temperatures or 0) >= asked.temperatures and asked.by != "draws",
    }
    return before if there == here and same_way and enough[before.estimator] else None


@contextmanager
def _counted(run: Run) -> Iterator[None]:
    """Add the time that scoring takes to the time it took before it was stopped: the row's hours count all of it."""
    started = time.monotonic()
    before = _scoring(run) if run.folder.exists(SCORING) else 0.0
    try:
        yield
    finally:
        run.folder.write(SCORING, dump_json({"seconds": before + time.monotonic() - started}))


def _scoring(run: Run) -> float:
    """Seconds that scoring has taken so far."""
    found = load_json(run.folder.read(SCORING, MOST_JSON) or b"", run.path / SCORING, required=False)
    try:
        return float(found["seconds"])
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"{run.path / SCORING} is damaged: it must say seconds; remove it") from None


def _result(recipe: Recipe, run: Run, found: Evaluation, commit: str | None) -> RowResult:
    metrics, config, summary, settings = run.metrics(), run.config, found.summary, found.settings
    rows = len(run.data().all_train)
    training, scoring = _training(metrics), _scoring(run)
    estimator = found.chosen.estimator
    too_few_draws = estimator == "draws" and settings.draws < recipe.evaluation.draws
    fewer = found.collected < recipe.config.collect or too_few_draws
    return RowResult(
        name=recipe.name,
        table=recipe.table,
        label=recipe.label,
        preset=recipe.preset,
        published=recipe.published,
        log_likelihood=summary.log_likelihood,
        stderr=summary.stderr,
        annealed=None,
        by_draws=summary.log_likelihood if estimator == "draws" else None,
        draw_error=None if math.isnan(summary.draw_error) else summary.draw_error,
        of=settings.of,
        draws=settings.draws,
        draws_of_the_recipe=recipe.evaluation.draws,
        refit=recipe.refit,
        refine=settings.refine,
        ess=summary.ess,
        unreliable_share=summary.unreliable / summary.n,
        samples=found.collected,
        samples_of_the_paper=recipe.config.collect,
        cut=fewer or hurried(build(recipe.config, run.facts), metrics, rows),
        epochs=len(metrics),
        steps=len(metrics) * math.ceil(rows / config.batch) * config.theta_steps,
        valid_last=metrics[-1]["valid"],
        hours=(training + scoring) / 3600,
        training_hours=training / 3600,
        cores=os.cpu_count(),
        threads=config.threads,
        seed=config.seed,
        versions={
            "doubly": metadata.version("doubly"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        data_sha256=run.data_digest,
        config=config,
        commit=commit,
        estimator=estimator,
        temperatures=settings.temperatures if estimator == "annealing" else None,
        gap=found.trust.gap if found.trust else None,
        settled=found.trust.settled if found.trust else None,
        temperature=_temperature(metrics),
        burn_in=sum(record["phase"] == "burn-in" for record in metrics),
    )


def _temperature(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean kinetic temperature over the epochs of the collection."""
    each = [record["sampler"].get("temperature") for record in metrics if record["phase"] == "collect"]
    found = [value for value in each if value is not None]
    return statistics.fmean(found) if found else None


def _training(metrics: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of all epochs; an epoch during which the process was stopped counts as most others do."""
    each = [record["seconds"] for record in metrics]
    usual = statistics.median(each)
    found: float = sum(usual if seconds > ASLEEP * usual else seconds for seconds in each)
    return found


def _commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the code in a folder, where that is in a repository; "-dirty" if code there has changed since.

    Other files may have changed: making a row writes its result and the page of results.
    """

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *args], check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", ".")
        changed = git("status", "--porcelain", "--", ".")
        return git("describe", "--always") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
