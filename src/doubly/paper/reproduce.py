"""Making a row of the paper's tables by one command: train, collect, refit, score, and file the result."""

import dataclasses
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from doubly.analysis.evaluate import anneal, evaluate
from doubly.analysis.evaluation import Evaluation
from doubly.core.errors import Damaged, UserError
from doubly.core.sealed import MOST_JSON, dump_json, load_json
from doubly.paper.budget import hurried, train, within
from doubly.paper.history import add_score, score_of
from doubly.paper.recipes import FREE, Recipe, recipes, with_recommended
from doubly.paper.result import AnnealedRow, RowResult
from doubly.runs.build import build
from doubly.runs.config import Config
from doubly.runs.folder import Run

TEMPERATURES = 1000  # of annealing that is added to a result
ALL = 10**9  # rows, or as many as there are
ASLEEP = 20.0  # times as long as most epochs: the process was stopped meanwhile, and that is no work
SCORING = "scoring.json"  # in the run folder: how long scoring took so far


def reproduce(
    name: str,
    results: str | Path = "results",
    runs: str | Path = "runs/reproduce",
    budget: float | None = None,
    threads: int = 0,
    seed: int = 0,
    quiet: bool = False,
    recommended: bool = False,
) -> RowResult:
    """Make one row, continuing a run that was stopped or cut; `budget` is the time in seconds for all of it."""
    recipe, title = _row(name, recommended, seed)
    folder = Path(runs) / title
    began, commit = time.monotonic(), _commit()
    config = dataclasses.replace(recipe.config, threads=threads, seed=seed)
    settings = dataclasses.replace(recipe.evaluation, threads=threads, seed=seed)
    run = train(config, folder, budget, settings, quiet)
    with _counted(run):
        if budget is not None:
            settings = within(began + budget, run, settings)
        found = evaluate(run.path, quiet=quiet, **vars(settings))
    file = Path(results) / f"{title}.json"
    result = _result(recipe, run, found, commit)
    if result.annealed is None:
        result = dataclasses.replace(result, annealed=_annealed_before(file, result))
    result.save(file)
    add_score(results, score_of(title, result))
    run.folder.remove(SCORING)
    return result


def add_annealed(
    name: str,
    results: str | Path = "results",
    runs: str | Path = "runs/reproduce",
    threads: int = 0,
    seed: int = 0,
    quiet: bool = False,
    recommended: bool = False,
) -> RowResult:
    """Anneal the test rows of a result and file the estimate beside the result's value, which stays as it is."""
    recipe, title = _row(name, recommended, seed)
    file, folder = Path(results) / f"{title}.json", Path(runs) / title
    if recipe.evaluation.ais:
        raise UserError(f"{name} is annealed as it is made: leave --anneal out")
    if not file.exists():
        raise UserError(f"there is no {file} to add to: make the row first, without --anneal")
    if not (folder / "config.json").exists():
        raise UserError(f"the run behind {file} is not in {folder}: make the row anew, without --anneal")
    result, run = RowResult.read(file), Run(folder)
    there = [len(run.metrics()), run.metrics()[-1]["valid"], run.data_digest, _fixed(run.config)]
    if there != [result.epochs, result.valid_last, result.data_sha256, _fixed(result.config)]:
        raise UserError(f"{file} is not of {folder} as it is now: make the row anew first, without --anneal")
    asked = dataclasses.replace(
        recipe.evaluation, ais=TEMPERATURES, ais_chains=1, ais_rows=ALL, threads=threads, seed=seed
    )
    annealed = AnnealedRow(asked.ais, asked.ais_chains, anneal(folder, quiet, **vars(asked)))
    result = dataclasses.replace(result, annealed=annealed)
    result.save(file)
    value, how = annealed.found.log_likelihood, f"{annealed.temperatures:,} temperatures"
    add_score(results, dataclasses.replace(score_of(title, result), log_likelihood=round(value, 4), how=how))
    return result


def _fixed(config: Config) -> Config:
    """The settings in which a run may not differ from its recipe."""
    default = Config()
    return dataclasses.replace(config, **{name: getattr(default, name) for name in FREE})


def _row(name: str, recommended: bool, seed: int) -> tuple[Recipe, str]:
    """A recipe, and what its run and its result are called."""
    known = recipes()
    if name not in known:
        raise UserError(f"no recipe is called {name!r}; there are: {', '.join(known)}")
    recipe = with_recommended(known[name]) if recommended else known[name]
    return recipe, "-".join([name, *["recommended"] * recommended, *[f"seed-{seed}"] * (seed != 0)])


def _annealed_before(file: Path, result: RowResult) -> AnnealedRow | None:
    """What annealing gave the same weights, if an earlier result has it."""
    if not file.exists():
        return None
    before = RowResult.read(file)
    # two runs that end at the very same validation log-likelihood have the same weights
    same = all(getattr(before, name) == getattr(result, name) for name in ("epochs", "valid_last", "samples"))
    same = same and before.data_sha256 == result.data_sha256 and _fixed(before.config) == _fixed(result.config)
    return before.annealed if same else None


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
    value = found.annealed or summary
    estimator = found.chosen.estimator
    too_few_draws = found.annealed is None and estimator == "draws" and settings.draws < recipe.evaluation.draws
    fewer = found.collected < recipe.config.collect or too_few_draws
    return RowResult(
        name=recipe.name,
        table=recipe.table,
        label=recipe.label,
        preset=recipe.preset,
        published=recipe.published,
        log_likelihood=value.log_likelihood,
        stderr=value.stderr,
        annealed=AnnealedRow(settings.ais, settings.ais_chains, found.annealed) if found.annealed else None,
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


def _commit() -> str | None:
    """The commit of the code as it is loaded, where it is run from its repository."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *args], check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty")
    except (OSError, subprocess.CalledProcessError):
        return None
