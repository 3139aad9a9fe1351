"""Training and scoring within a given time.

How long training and scoring take is measured on the way; the numbers of epochs and draws follow from that.
"""

import dataclasses
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from doubly.analysis.config import EvaluateConfig
from doubly.analysis.estimators import GAP_ROWS
from doubly.analysis.evaluate import evaluate
from doubly.core.cache import NoCache
from doubly.core.errors import UserError
from doubly.latents import LikelihoodConfig
from doubly.paper.recipes import FREE
from doubly.posterior.estimates import ScoreConfig
from doubly.runs.build import build
from doubly.runs.config import Config
from doubly.runs.fit import fit_config, resume, use_threads
from doubly.runs.folder import Run
from doubly.training.method import Method, latest_start, samples_per_epoch, watched_from
from doubly.training.state import finished

TRAINING = 0.6  # of a budget, or more where scoring needs less than the rest
PLANNING = (0.1, 0.25, 0.5, 0.7, 0.85)  # of the training time, after which the number of epochs is planned anew
SPARE = 0.85  # of the time left for scoring is planned with
LEAST_DRAWS = 100  # for scoring, however short the time
FEW_ROWS = 50  # of the validation rows, to measure how long scoring takes…
LONG_ENOUGH = 0.2  # …with so many draws that it takes these seconds
FEW_STEPS = 10  # of refining, to measure how long all of them take


def train(config: Config, folder: Path, budget: float | None, settings: EvaluateConfig, quiet: bool) -> Run:
    """Train, or continue training, as long as the budget leaves enough time for scoring.

    The number of epochs is planned anew as they go by, since their pace changes. A run that had to collect early,
    because of an earlier budget or plan, goes back to waiting for validation to level off.
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
    """Another number of epochs. If there are more, samples that were collected early for want of time are dropped."""
    run.plan(epochs)
    method, rows = build(run.config, run.facts), len(run.data().all_train)
    state = run.restore(method)
    if state is None or state.began is None or state.epoch >= latest_start(method, rows):
        return
    if hurried(build(config, run.facts), run.metrics(), rows):
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
    """How many epochs there will be after so many seconds more, at the pace of the last ones; enough for a sample."""
    metrics, method = run.metrics(), build(run.config, run.facts)
    done, recent = len(metrics), [record["seconds"] for record in metrics[-10:]]
    more = max(0, math.floor(seconds * len(recent) / max(sum(recent), 1e-3)))
    least = done
    if method.collect and not metrics[-1]["collected"]:
        interval = math.ceil(1 / samples_per_epoch(method, len(run.data().all_train)))
        # collecting starts when an epoch is over, after the warm-up, and may wait for half of the epochs
        least = max(done + 1, method.warmup, interval) + interval
    found: int = max(least, done + more)
    return found


def within(end: float, run: Run, settings: EvaluateConfig) -> EvaluateConfig:
    """The settings with as many draws as the time allows; the proposal is refined only if that takes less than half of
    it."""
    some = run.data().valid[:FEW_ROWS]
    evaluate(
        run.path, x=some, **vars(settings) | {"draws": 1, "refine": 0, "by": "draws", "settle": False, "quiet": True}
    )  # the refit stays in the cache
    each, refining = _seconds_a_draw(run, settings), _seconds_of_refining(run, settings)
    left = end - _seconds_of_annealing(run, settings) - time.monotonic()
    refine, left = (settings.refine, left - refining) if refining < left / 2 else (0, left)
    draws = min(settings.draws, max(LEAST_DRAWS, math.floor(SPARE * left / each)))
    return dataclasses.replace(settings, draws=draws, refine=refine)


def _seconds_a_draw(run: Run, settings: EvaluateConfig) -> float:
    """How long one draw for every row takes, measured with some draws on a few of the validation rows.

    The time with a single draw is overhead and is subtracted; there are so many draws that they take longer than that.
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
    """How long it takes to refine the proposal for every row, if asked for; measured on a few rows and steps."""
    if not settings.refine:
        return 0.0
    _trial(run, settings, 1, refine=1)  # loads what is loaded only once
    took = _trial(run, settings, 1, refine=FEW_STEPS) - _trial(run, settings, 1)
    return max(0.0, took) * settings.refine / FEW_STEPS / FEW_ROWS * len(run.data().split(settings.split))


def _seconds_of_annealing(run: Run, settings: EvaluateConfig) -> float:
    """How long annealing takes, where rows may be scored by it; measured on a few rows and temperatures."""
    method = build(run.config, run.facts)
    how = ScoreConfig("annealing").annealing(method.model, method.proposal)
    if settings.by == "draws" or not method.proposal.layers or not how.serves(method.model, method.proposal):
        return 0.0
    data, few = run.data(), max(1, settings.temperatures // 50)
    rows, scored = data.valid[:FEW_ROWS], len(data.split(settings.split))
    posterior = dataclasses.replace(run.posterior(refit_passes=0), cache=NoCache())

    def trial(temperatures: int) -> float:
        started = time.monotonic()
        posterior.anneal(rows, dataclasses.replace(how, temperatures=temperatures), "last")
        return time.monotonic() - started

    with use_threads(settings.threads or run.config.threads):
        trial(1)  # loads what is loaded only once
        took = trial(few)
    return took * settings.temperatures / few * (scored + 2 * GAP_ROWS) / len(rows)


def _trial(run: Run, settings: EvaluateConfig, draws: int, passes: int = 0, refine: int = 0) -> float:
    """How long it takes to fit a proposal to the last weights and score a few rows with it; nothing is stored."""
    fitted = run.posterior(refit_passes=passes, refit_objective=settings.refit_objective)
    posterior = dataclasses.replace(fitted, cache=NoCache())
    started = time.monotonic()
    with use_threads(settings.threads or run.config.threads):
        posterior.row_likelihoods(
            run.data().valid[:FEW_ROWS], "last", LikelihoodConfig(draws, refine=refine, memory=settings.memory)
        )
    return time.monotonic() - started


def hurried(method: Method, metrics: Sequence[Mapping[str, Any]], n_data: int) -> bool:
    """Whether burn-in ended early: before validation had levelled off, and before the last epoch that it may have."""
    first = watched_from(method)
    waiting = [record for record in metrics if record["phase"] == "burn-in" and record["epoch"] >= first]
    if not waiting:
        return latest_start(method, n_data) > method.warmup
    last, best = waiting[-1]["epoch"], max(waiting, key=lambda record: record["valid"])["epoch"]
    levelled = last - max(best, method.min_epochs) >= method.patience
    return not levelled and last < latest_start(method, n_data)


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
