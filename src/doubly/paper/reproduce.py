"""The rows of the paper's tables, each by one command: train, collect, refit, score, and write the result down."""

import dataclasses
import json
import math
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from doubly.analysis.config import EvaluateConfig
from doubly.analysis.evaluate import GAP_ROWS, anneal, evaluate
from doubly.core.cache import NoCache
from doubly.core.errors import UserError
from doubly.core.files import write
from doubly.latents import Annealing, LikelihoodConfig
from doubly.paper.recipes import FREE, Recipe, recipes, with_recommended
from doubly.runs.build import build
from doubly.runs.config import Config
from doubly.runs.fit import fit_config, resume, use_threads
from doubly.runs.folder import Run
from doubly.training.method import Method, latest_start, samples_per_epoch, watched_from
from doubly.training.state import finished

TRAINING = 0.6  # of a budget, or more where scoring needs less than the rest
PLANNING = (0.1, 0.25, 0.5, 0.7, 0.85)  # of the training, after which it is seen how many epochs there will be
SPARE = 0.85  # of the time that seems to be there for scoring is planned with
LEAST_DRAWS = 100  # for scoring, however short the time
FEW_ROWS = 50  # of the validation rows, to see how long scoring takes…
LONG_ENOUGH = 0.2  # …with so many draws that it takes these seconds
FEW_STEPS = 10  # of refining, to see how long all of them take
TEMPERATURES = 1000  # of annealing that is added to a result
ALL = 10**9  # rows, or as many as there are
ASLEEP = 20.0  # times as long as most epochs: the process was stopped meanwhile, and that is no work
SCORING = "scoring.json"  # in the run folder: how long it took so far


def reproduce(
    name: str,
    results: str | Path = "results",
    runs: str | Path = "runs/reproduce",
    budget: float | None = None,
    threads: int = 0,
    seed: int = 0,
    quiet: bool = False,
    recommended: bool = False,
) -> dict[str, Any]:
    """Make one row, going on with a run that was stopped or cut; `budget` is the time in seconds for all of it."""
    recipe, title = _row(name, recommended, seed)
    folder = Path(runs) / title
    began, commit = time.monotonic(), _commit()
    config = dataclasses.replace(recipe.config, threads=threads, seed=seed)
    settings = dataclasses.replace(recipe.evaluation, threads=threads, seed=seed)
    run = _train(config, folder, budget, settings, quiet)
    with _counted(run):
        if budget is not None:
            settings = _within(began + budget, run, settings)
        facts = evaluate(run.path, quiet=quiet, **vars(settings)).facts
    file = Path(results) / f"{title}.json"
    result = _result(recipe, run, facts) | {"commit": commit}
    result["annealed"] = result["annealed"] or _annealed_before(file, result)
    _file(file, result)
    (run.path / SCORING).unlink()
    return result


def add_annealed(
    name: str,
    results: str | Path = "results",
    runs: str | Path = "runs/reproduce",
    threads: int = 0,
    seed: int = 0,
    quiet: bool = False,
    recommended: bool = False,
) -> dict[str, Any]:
    """Anneal the rows of a row's result, whose value stays as it is, and write what comes of it beside that."""
    recipe, title = _row(name, recommended, seed)
    file, folder = Path(results) / f"{title}.json", Path(runs) / title
    if recipe.evaluation.ais:
        raise UserError(f"{name} is annealed as it is made: leave --anneal out")
    if not file.exists():
        raise UserError(f"there is no {file} to add to: make the row first, without --anneal")
    if not (folder / "config.json").exists():
        raise UserError(f"the run behind {file} is not in {folder}: make the row anew, without --anneal")
    result, run = json.loads(file.read_text()), Run(folder)
    there = [len(run.metrics()), run.metrics()[-1]["valid"], run.data_digest, _plain(dataclasses.asdict(run.config))]
    if there != [result["epochs"], result["valid_last"], result["data_sha256"], _plain(result["config"])]:
        raise UserError(f"{file} is not of {folder} as it is now: make the row anew first, without --anneal")
    asked = dataclasses.replace(
        recipe.evaluation, ais=TEMPERATURES, ais_chains=1, ais_rows=ALL, threads=threads, seed=seed
    )
    result["annealed"] = {"temperatures": asked.ais, "chains": 1} | anneal(folder, quiet, **vars(asked))
    _file(file, result)
    return result


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Settings to compare: as JSON has them, with those that came to be later, and without what a run may differ in."""
    found = dataclasses.asdict(Config()) | config
    return {name: value for name, value in json.loads(json.dumps(found)).items() if name not in FREE}


def _row(name: str, recommended: bool, seed: int) -> tuple[Recipe, str]:
    """A recipe, and what its run and its result are called."""
    known = recipes()
    if name not in known:
        raise UserError(f"no recipe is called {name!r}; there are: {', '.join(known)}")
    recipe = with_recommended(known[name]) if recommended else known[name]
    return recipe, "-".join([name, *["recommended"] * recommended, *[f"seed-{seed}"] * (seed != 0)])


def _annealed_before(file: Path, result: dict[str, Any]) -> dict[str, Any] | None:
    """What annealing has said of the same weights."""
    before = json.loads(file.read_text()) if file.exists() else {}
    # two runs that end at the very same score have the same weights
    same = all(before.get(name) == result[name] for name in ("epochs", "valid_last", "samples", "data_sha256"))
    return before.get("annealed") if same and _plain(before["config"]) == _plain(result["config"]) else None


def _file(file: Path, result: dict[str, Any]) -> None:
    write(file, json.dumps(result, indent=1).encode() + b"\n")


def _train(config: Config, folder: Path, budget: float | None, settings: EvaluateConfig, quiet: bool) -> Run:
    """Train, or go on training, until the budget has to be left to the question.

    How many epochs that makes is planned anew as they go by, since their pace changes. A run that an earlier budget, or
    an earlier plan, had collect before its time waits again.
    """
    began, seconds = time.monotonic(), math.inf if budget is None else TRAINING * budget
    if (folder / "config.json").exists():
        run = Run(folder)
        for name, value in vars(config).items():
            if name not in FREE and (there := getattr(run.config, name)) != value:
                raise UserError(
                    f"{folder} was made with {name} {there}, but the recipe has {value}: "
                    "move it away to make the row anew"
                )
        _plan(run, config, config.epochs)  # whatever an earlier budget said
    for share in (*PLANNING, 1.0) if seconds < math.inf else ():
        run = _go_on(config, folder, quiet, began + share * seconds)
        if _over(run):
            return run
        if share == PLANNING[0] and budget is not None:  # now there is something to try refits and scoring with
            seconds = max(seconds, budget - settings.draws * _seconds_a_draw(run, settings) / SPARE)
            seconds -= settings.refit * _seconds_a_pass(run, settings) + _seconds_of_annealing(run, settings)
            seconds -= _seconds_of_refining(run, settings)
        _plan(run, config, min(config.epochs, _epochs_within(run, began + seconds - time.monotonic())))
    return _go_on(config, folder, quiet)


def _plan(run: Run, config: Config, epochs: int) -> None:
    """Another number of epochs: with more of them, what was collected early for want of time can be waited for."""
    run.plan(epochs)
    method, rows = build(run.config, run.facts), len(run.data().train)
    state = run.restore(method)
    if state is None or state.began is None or state.epoch >= latest_start(method, rows):
        return
    if _hurried(build(config, run.facts), run.metrics(), rows):
        run.forget_samples(state)


def _go_on(config: Config, folder: Path, quiet: bool, until: float = math.inf) -> Run:
    if (folder / "config.json").exists():
        return resume(folder, quiet, config.threads, until)
    return fit_config(config, folder, quiet=quiet, until=until)


def _over(run: Run) -> bool:
    method = build(run.config, run.facts)
    state = run.restore(method)
    return state is not None and finished(method, state)


def _epochs_within(run: Run, seconds: float) -> int:
    """How many epochs there will be after so many seconds more, at the pace of the last; at least until a sample."""
    metrics, method = run.metrics(), build(run.config, run.facts)
    done, recent = len(metrics), [record["seconds"] for record in metrics[-10:]]
    more = max(0, math.floor(seconds * len(recent) / max(sum(recent), 1e-3)))
    least = done
    if method.collect and not metrics[-1]["collected"]:
        interval = math.ceil(1 / samples_per_epoch(method, len(run.data().train)))
        # collecting starts when an epoch is over, after the warm-up, and may wait for half of the epochs
        least = max(done + 1, method.warmup, interval) + interval
    return max(least, done + more)


def _within(end: float, run: Run, settings: EvaluateConfig) -> EvaluateConfig:
    """With as many draws for each row as the time allows, if not all; refined, if that leaves half of it for these."""
    some = run.data().valid[:FEW_ROWS]
    evaluate(run.path, x=some, **vars(settings) | {"draws": 1, "refine": 0, "ais": 0, "quiet": True})  # keeps its fit
    each, refining = _seconds_a_draw(run, settings), _seconds_of_refining(run, settings)
    left = end - _seconds_of_annealing(run, settings) - time.monotonic()
    refine, left = (settings.refine, left - refining) if refining < left / 2 else (0, left)
    draws = min(settings.draws, max(LEAST_DRAWS, math.floor(SPARE * left / each)))
    return dataclasses.replace(settings, draws=draws, refine=refine)


def _seconds_a_draw(run: Run, settings: EvaluateConfig) -> float:
    """How long one draw for every row takes, by the measure of some for a few of the validation rows.

    What it takes with a single draw is no work of draws, and there are so many that they take longer.
    """
    alone, draws = _trial(run, settings, 1), 100
    while (took := _trial(run, settings, draws) - alone) < max(alone, LONG_ENOUGH) and draws < settings.draws:
        draws *= 4
    return max(took, 1e-3 * alone) / (FEW_ROWS * draws) * len(run.data().split(settings.split))


def _seconds_a_pass(run: Run, settings: EvaluateConfig) -> float:
    """How long one pass of a refit takes."""
    once, twice = (_trial(run, settings, 1, passes) for passes in (1, 2))
    return max(0.0, twice - once)


def _seconds_of_refining(run: Run, settings: EvaluateConfig) -> float:
    """How long it takes to refine the proposal for every row, if that is asked for: by a few rows and steps."""
    if not settings.refine:
        return 0.0
    _trial(run, settings, 1, refine=1)  # loads what has to be loaded once
    took = _trial(run, settings, 1, refine=FEW_STEPS) - _trial(run, settings, 1)
    return max(0.0, took) * settings.refine / FEW_STEPS / FEW_ROWS * len(run.data().split(settings.split))


def _seconds_of_annealing(run: Run, settings: EvaluateConfig) -> float:
    """How long annealing takes, if it is asked for: by a few rows and temperatures."""
    if not settings.ais:
        return 0.0
    data, few = run.data(), max(1, settings.ais // 50)
    rows, scored = data.valid[:FEW_ROWS], min(settings.ais_rows, len(data.split(settings.split)))
    posterior = dataclasses.replace(run.posterior(), cache=NoCache())

    def trial(temperatures: int) -> float:
        started = time.monotonic()
        posterior.anneal(rows, Annealing(temperatures, settings.ais_chains), "last")
        return time.monotonic() - started

    with use_threads(settings.threads or run.config.threads):
        trial(1)  # loads what has to be loaded once
        took = trial(few)
    return took * settings.ais / few * (scored + 2 * min(scored, GAP_ROWS)) / len(rows)


def _trial(run: Run, settings: EvaluateConfig, draws: int, passes: int = 0, refine: int = 0) -> float:
    """How long it takes to fit a proposal to the last weights and score a few rows with it; nothing of it is kept."""
    fitted = run.posterior(refit_passes=passes, refit_objective=settings.refit_objective)
    posterior = dataclasses.replace(fitted, cache=NoCache())
    started = time.monotonic()
    with use_threads(settings.threads or run.config.threads):
        posterior.row_likelihoods(
            run.data().valid[:FEW_ROWS], "last", LikelihoodConfig(draws, refine=refine, memory=settings.memory)
        )
    return time.monotonic() - started


@contextmanager
def _counted(run: Run) -> Iterator[None]:
    """Add the time that scoring takes to what it took before it was stopped: the row's hours are all of it."""
    file, started = run.path / SCORING, time.monotonic()
    before = json.loads(file.read_text())["seconds"] if file.exists() else 0.0
    try:
        yield
    finally:
        write(file, json.dumps({"seconds": before + time.monotonic() - started}).encode() + b"\n")


def _result(recipe: Recipe, run: Run, facts: dict[str, Any]) -> dict[str, Any]:
    metrics, config = run.metrics(), run.config
    rows = len(run.data().train)
    training, scoring = _training(metrics), json.loads((run.path / SCORING).read_text())["seconds"]
    annealed = facts.get("annealed")
    too_few_draws = annealed is None and facts["draws"] < recipe.evaluation.draws
    fewer = facts["collected"] < recipe.config.collect or too_few_draws
    return {
        "name": recipe.name,
        "table": recipe.table,
        "label": recipe.label,
        "preset": recipe.preset,
        "published": recipe.published,
        "log_likelihood": (annealed or facts)["log_likelihood"],
        "stderr": (annealed or facts)["stderr"],
        "annealed": annealed and {"temperatures": facts["ais"], "chains": facts["ais_chains"]} | annealed,
        "by_draws": facts["log_likelihood"],
        "draw_error": facts["draw_error"],
        "of": facts["of"],
        "draws": facts["draws"],
        "draws_of_the_recipe": recipe.evaluation.draws,
        "refit": recipe.refit,
        "refine": facts["refine"],
        "ess": facts["ess"],
        "unreliable_share": facts["unreliable"] / facts["n"],
        "samples": facts["collected"],
        "samples_of_the_paper": recipe.config.collect,
        "cut": fewer or _hurried(build(recipe.config, run.facts), metrics, rows),
        "epochs": len(metrics),
        "steps": len(metrics) * math.ceil(rows / config.batch) * config.theta_steps,
        "valid_last": metrics[-1]["valid"],
        "hours": (training + scoring) / 3600,
        "training_hours": training / 3600,
        "cores": os.cpu_count(),
        "threads": config.threads,
        "seed": config.seed,
        "versions": {"doubly": metadata.version("doubly"), "torch": torch.__version__,
                     "python": platform.python_version()},
        "data_sha256": run.data_digest,
        "config": dataclasses.asdict(config),
    }  # fmt: skip


def _training(metrics: list[dict[str, Any]]) -> float:
    """Seconds of all epochs; one during which the process was stopped counts as the others."""
    each = [record["seconds"] for record in metrics]
    usual = statistics.median(each)
    return sum(usual if seconds > ASLEEP * usual else seconds for seconds in each)


def _hurried(method: Method, metrics: list[dict[str, Any]], n_data: int) -> bool:
    """Whether waiting ended, to collect or for good, before validation had levelled off or its time was over."""
    first = watched_from(method)
    waiting = [record for record in metrics if record["phase"] == "burn-in" and record["epoch"] >= first]
    if not waiting:
        return latest_start(method, n_data) > method.warmup
    last, best = waiting[-1]["epoch"], max(waiting, key=lambda record: record["valid"])["epoch"]
    levelled = last - max(best, method.min_epochs) >= method.patience
    return not levelled and last < latest_start(method, n_data)


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


def seconds(text: str) -> float:
    """A time as people write it.

    >>> seconds("90m"), seconds("2h"), seconds("1h30m")
    (5400.0, 7200.0, 5400.0)
    """
    found = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text)
    if not text or not found:
        raise UserError(f"a time is written as 2h, 90m or 1h30m, got {text!r}")
    hours, minutes, rest = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + rest
