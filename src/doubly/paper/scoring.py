"""Scoring the row of a table: its own number, annealing alike for all rows, and one sample beside mean and ensemble.

Only the first two see test rows, and nothing is chosen by them: how many temperatures are enough is seen on rows drawn
from the model, and weights are compared on validation rows.
"""

import dataclasses
import math

from doubly.analysis.config import EvaluateConfig
from doubly.analysis.estimators import GAP_ROWS, NEAR, choose, scoring
from doubly.analysis.evaluate import anneal, at_work, evaluate
from doubly.analysis.evaluation import Annealed, Evaluation, paired
from doubly.core.types import Of
from doubly.paper.recipes import Recipe
from doubly.paper.result import AnnealedRow, RowResult, WeightScores
from doubly.posterior.estimates import ScoreConfig
from doubly.runs.build import build
from doubly.runs.folder import Run

ALL = 10**9  # rows, or as many as there are
COMPARED_ROWS = 200  # of the validation rows, on which weights are compared…
COMPARED_WORK = 1000  # …by at most so many draws or temperatures…
COMPARED_REFIT = 2000  # …with proposals fitted by so many steps
WEIGHTS: tuple[Of, ...] = ("last", "mean", "ensemble")


def score(run: Run, settings: EvaluateConfig, most_temperatures: int, quiet: bool) -> Evaluation:
    """The number of the row: its test rows are scored as the recipe says."""
    enough = _enough_temperatures(run, settings, most_temperatures, quiet)
    return evaluate(run.path, quiet=quiet, **vars(dataclasses.replace(settings, temperatures=enough)))


def _enough_temperatures(run: Run, settings: EvaluateConfig, most: int, quiet: bool) -> int:
    """So many that the bounds of annealing lie near on rows drawn from the model; `most` where that is never so.

    What is found stays in the run's cache until the row is scored, so that a stop loses little.
    """
    enough, data = settings.temperatures, run.data()
    if settings.by == "draws" or settings.of == "ensemble" or most <= enough:
        return enough
    with at_work(settings, run, quiet) as open_posterior:
        posterior = open_posterior(run)
        if choose(settings, posterior, data.split(settings.split), data.valid).estimator != "annealing":
            return enough
        while enough < most:
            how = scoring(dataclasses.replace(settings, temperatures=enough))
            path = how.annealing(posterior.model, posterior.method.proposal)
            if posterior.annealing_gap(GAP_ROWS, path, settings.of, seed=settings.seed).difference.mean <= NEAR:
                break
            enough = min(2 * enough, most)
    return enough


def alike(run: Run, recipe: Recipe, result: RowResult, quiet: bool) -> AnnealedRow:
    """The test rows annealed as those of all rows of the table are, by one chain with as many temperatures."""
    method, settings = build(run.config, run.facts), recipe.evaluation
    start = ScoreConfig("annealing").annealing(method.model, method.proposal).start
    if result.estimator == "annealing" and result.temperatures == recipe.alike and result.gap is not None:
        n = len(run.data().split(settings.split))  # that is the number itself
        return AnnealedRow(recipe.alike, 1, Annealed(n, result.log_likelihood, result.stderr, result.gap, None), start)
    asked = dataclasses.replace(settings, ais=recipe.alike, ais_chains=1, ais_rows=ALL)
    return AnnealedRow(recipe.alike, 1, anneal(run.path, quiet, start, **vars(asked)), start)


def compare_weights(run: Run, settings: EvaluateConfig, result: RowResult, quiet: bool) -> WeightScores:
    """What the last weights, the mean and the ensemble give some of the validation rows, by the row's estimate."""
    data = run.data()
    rows = data.valid[:: math.ceil(len(data.valid) / COMPARED_ROWS)]
    steps = math.ceil(len(data.all_train) / run.config.batch)
    by = "draws" if result.estimator == "exact" else result.estimator
    fields = vars(settings) | {
        "by": by,
        "settle": False,
        "refine": 0,
        "draws": min(settings.draws, COMPARED_WORK),
        "temperatures": min(result.temperatures or settings.temperatures, COMPARED_WORK),
        "refit": max(1, min(settings.refit, COMPARED_REFIT // steps)),
    }
    last, mean, ensemble = (evaluate(run.path, x=rows, quiet=quiet, **fields | {"of": of}) for of in WEIGHTS)
    gains = [paired(mean.rows, last.rows), paired(ensemble.rows, mean.rows)]
    work = {"exact": 0, "draws": fields["draws"], "annealing": fields["temperatures"]}
    return WeightScores(
        n=len(rows),
        estimator=result.estimator,
        work=work[result.estimator],
        refit=fields["refit"],
        members=len(run.posterior().thetas),
        last=last.summary.log_likelihood,
        mean=mean.summary.log_likelihood,
        ensemble=ensemble.summary.log_likelihood,
        mean_over_last=(gains[0].difference, gains[0].difference_stderr),
        ensemble_over_mean=(gains[1].difference, gains[1].difference_stderr),
    )
