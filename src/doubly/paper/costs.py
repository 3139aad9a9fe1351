"""What a row costs: seconds of one core for a step, an epoch's validation and scoring, measured in a few seconds.

Times are of the process (CPU time) with one thread, so that other programs on the machine hardly change them. They are
of weights as they are at the start; how many epochs a row needs is known from results alike, or guessed by its recipe.
"""

import dataclasses
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubly.analysis.config import EvaluateConfig
from doubly.analysis.estimators import GAP_ROWS
from doubly.analysis.results import Result
from doubly.core.errors import UserError
from doubly.core.files import write
from doubly.core.random import generator
from doubly.core.rows import StoredRows
from doubly.data import Data, load
from doubly.latents import LikelihoodConfig, Pair, is_exact, log_likelihood
from doubly.paper.recipes import Recipe
from doubly.paper.tasks import Task
from doubly.posterior.estimates import ScoreConfig
from doubly.runs.build import build, training_rows, with_plan
from doubly.runs.config import Config
from doubly.runs.fit import use_threads
from doubly.training.method import Method, samples_per_epoch
from doubly.training.state import State, init
from doubly.training.step import batches, rows_at, step

FILE = "costs.jsonl"  # in the folder of the results; one object a line
SECONDS = 2.0  # of steps that are timed…
FEWEST_STEPS = 5  # …at least, after those that compile
FEW_ROWS, FEW_DRAWS, FEW_TEMPERATURES = 20, 100, 50  # for scoring


@dataclass(frozen=True)
class Cost(Result):
    """What a row costs, in seconds of one core."""

    row: str
    """The title of its task, without the seed."""
    settings: str
    """A digest of the settings that these times are of."""
    step: float
    """Seconds of a step of the sampler."""
    steps: int
    """Steps in an epoch."""
    validation: float
    """Seconds of validation after an epoch."""
    scoring: float
    """Seconds of all scoring, the refit included."""
    collecting: int
    """Epochs in which samples are collected."""
    measured: float
    """Seconds that the measurement took."""

    def seconds(self, burn_in: int) -> float:
        """Of the whole row, whose burn-in has so many epochs."""
        return (burn_in + self.collecting) * (self.steps * self.step + self.validation) + self.scoring

    def text(self) -> str:
        return f"{self.row}: {1 / self.step:.1f} steps a second, {self.scoring / 3600:.2f} hours of scoring"


def read_costs(results: str | Path) -> dict[str, Cost]:
    """What was measured, by the title of the task without its seed."""
    file = Path(results) / FILE
    if not file.exists():
        return {}
    try:
        found = [Cost(**json.loads(line)) for line in file.read_text().splitlines()]
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} is no list of costs ({error!r}): remove it, and it is made anew") from None
    return {cost.row: cost for cost in found}


def known_cost(task: Task, costs: Mapping[str, Cost]) -> Cost | None:
    """What was measured of the task with the settings that it has now, if it was."""
    first = dataclasses.replace(task, seed=0)
    found = costs.get(first.title)
    return found if found is not None and found.settings == settings_of(first.recipe()) else None


def cost_of(task: Task, results: str | Path) -> Cost:
    """What a task costs: as measured before, or measured now and filed."""
    costs = read_costs(results)
    if (found := known_cost(task, costs)) is None:
        found = measured(dataclasses.replace(task, seed=0))
        lines = [json.dumps(cost.to_json()) + "\n" for _, cost in sorted((costs | {found.row: found}).items())]
        write(Path(results) / FILE, "".join(lines).encode())
    return found


def settings_of(recipe: Recipe) -> str:
    """A digest of all that the time of a row depends on, but for how long its burn-in is."""
    fields = {name: value for name, value in vars(recipe.config).items() if name not in recipe.free}
    evaluation = dataclasses.replace(recipe.evaluation, threads=0)
    said = sorted((name, value) for name, value in fields.items() if value != getattr(Config(), name))
    asked = sorted(
        (name, value) for name, value in vars(evaluation).items() if value != getattr(EvaluateConfig(), name)
    )
    told = repr((said, asked, recipe.alike, recipe.most_temperatures))  # so that a new setting changes nothing
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def measured(task: Task) -> Cost:
    """The times of a task, measured."""
    began, recipe = time.process_time(), task.recipe(threads=1)
    data = load(recipe.config.data, binarise=recipe.config.binarise)
    config = with_plan(recipe.config, len(data.all_train))
    method, train = build(config, data), training_rows(data, "cpu")
    with use_threads(1):
        one_step, state = _step(method, train)
        pair = Pair(method.model, state.theta.theta, method.proposal, state.phi.theta)
        validation, scoring = _validation(method, pair, data), _scoring(method, recipe, pair, data, one_step)
    return Cost(
        row=task.title,
        settings=settings_of(recipe),
        step=one_step,
        steps=math.ceil(len(train) / method.batch) * method.theta_steps,
        validation=validation,
        scoring=scoring,
        collecting=math.ceil(method.collect / samples_per_epoch(method, len(train))),
        measured=round(time.process_time() - began, 1),
    )


def _took(work: Callable[[], Any]) -> float:
    """Seconds that something takes once all that is done only once has been done."""
    work()
    started = time.process_time()
    work()
    return max(time.process_time() - started, 1e-9)


def _step(method: Method, train: Tensor | StoredRows) -> tuple[float, State]:
    """Seconds of a step, and the state after those that were timed."""
    method = dataclasses.replace(method, warmup=0)  # a step of Adam costs the same
    state = init(method, train)
    watched = method.sampler.stats(state.theta)
    order = torch.randperm(len(train), generator=state.rng)
    state = state._replace(order=order, totals=torch.zeros(4 + len(watched), dtype=torch.float64))
    each: list[float] = []
    for index in _cycled(batches(order, method.batch)):
        started = time.process_time()
        x = rows_at(method, train, index, state.rng)
        state = step(method, state, x, index, len(train))
        each.append(time.process_time() - started)
        if len(each) >= 2 * FEWEST_STEPS and sum(each[FEWEST_STEPS:]) > SECONDS:
            break
    return statistics.median(each[FEWEST_STEPS:]), state


def _cycled(parts: tuple[Tensor, ...]) -> Iterator[Tensor]:
    while True:
        yield from parts


def _validation(method: Method, pair: Pair, data: Data) -> float:
    some = torch.as_tensor(data.valid[:: math.ceil(len(data.valid) / FEW_ROWS)])
    rng = generator("cpu", method.seed, "cost")
    took = _took(lambda: method.estimator.validate(pair, some, method.valid_draws, rng))
    rows = min(len(data.valid), getattr(method.estimator, "valid_rows", len(data.valid)))
    return took / len(some) * rows


def _scoring(method: Method, recipe: Recipe, pair: Pair, data: Data, one_step: float) -> float:
    """All of it: the refit, the row's own estimate, and the annealing that all rows have alike."""
    n, settings = len(data.test), recipe.evaluation
    some = torch.as_tensor(data.test[:: math.ceil(n / FEW_ROWS)])
    if is_exact(method.model, method.proposal):
        return _took(lambda: log_likelihood(pair, some, LikelihoodConfig(1))) / len(some) * n
    refit = settings.refit * math.ceil(len(data.all_train) / method.batch) * one_step
    few = LikelihoodConfig(FEW_DRAWS)
    a_draw = _took(lambda: log_likelihood(pair, some, few)) / (FEW_DRAWS * len(some))
    # a step of refining costs as much as 50 draws
    by_draws = n * (settings.draws + 50 * settings.refine) * a_draw if settings.by != "annealing" else 0.0
    how = ScoreConfig("annealing", temperatures=FEW_TEMPERATURES).annealing(method.model, method.proposal)
    if not how.serves(method.model, method.proposal):
        return refit + by_draws
    rng = generator("cpu", method.seed, "cost")
    a_temperature = _took(lambda: how.log_likelihood(pair, some.float(), rng)) / (FEW_TEMPERATURES * len(some))
    # temperatures are doubled where needed: half of the most are taken to be
    own = 0 if settings.by == "draws" else max(settings.temperatures, recipe.most_temperatures // 2)
    alike = 0 if own == recipe.alike else recipe.alike
    annealing = (own + alike) * (n + 2 * GAP_ROWS) * a_temperature
    return refit + (by_draws if settings.by == "draws" else 0.0) + annealing
