"""By which estimate of log p(x) a run is evaluated, and whether the number is settled.

`posterior.estimates` says which estimates there are. Here the trial rows are of the validation split. A number is
called settled if it is known to be near: the bounds of annealing from below and above lie within half a nat on rows
drawn from the model, or ten times the work moves it by less than that and by less than its own standard error, and
leaves few rows with heavy tails.
"""

from dataclasses import dataclass

import numpy as np

from doubly.analysis.config import EvaluateConfig
from doubly.core.statistics import stderr
from doubly.latents import RELIABLE, LikelihoodConfig, RowLikelihoods
from doubly.posterior.estimates import Chosen, Estimator, ScoreConfig, trial_stride
from doubly.posterior.scores import cannot_tell
from doubly.posterior.store import Posterior

NEAR = 0.5  # nats between the bounds, within which a number is settled
MORE = 10  # times the work
HEAVY = 0.05  # of the rows may have a heavy tail: half of HEAVY_ROWS, for a number that is settled needs no warning
GAP_ROWS = 100  # at most, simulated to see how far apart the bounds of annealing are


@dataclass(frozen=True)
class Trust:
    """How near an estimate is known to be."""

    settled: bool
    gap: float | None = None
    """Nats between the bounds of annealing on rows drawn from the model, where it is annealed."""
    moved: float | None = None
    """What ten times the work added on the trial rows, where that was tried."""
    heavy: float | None = None
    """The share of the trial rows whose weights have a heavy tail (k̂ > 0.7) even then."""
    unknown: float | None = None
    """The share of the trial rows of which the draws cannot tell even then (`posterior.scores.cannot_tell`), where
    annealing was not tried."""


def choose(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray, valid: np.ndarray) -> Chosen:
    """By the settings, or where they leave it open, by the larger bound on a few validation rows."""
    trial = posterior.rows(trial_rows(valid))
    return posterior.choose(scoring(settings), posterior.rows(rows), trial, settings.of, settings.samples)


def trial_rows(valid: np.ndarray) -> np.ndarray:
    """Some of the validation rows, evenly spaced."""
    return valid[:: trial_stride(len(valid))]


def score(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray, estimator: Estimator) -> RowLikelihoods:
    """log p(x) of each row by that estimate."""
    how = scoring(settings)
    return posterior.score_by(estimator, posterior.rows(rows), how, settings.of, settings.samples)


def scoring(settings: EvaluateConfig) -> ScoreConfig:
    """How rows are scored, as the settings have it."""
    draws = LikelihoodConfig(
        settings.draws, settings.adaptive, refine=settings.refine, memory=settings.memory, seed=settings.seed
    )
    return ScoreConfig(settings.by, draws, settings.temperatures, settings.states)


def trust(
    settings: EvaluateConfig, posterior: Posterior, chosen: Chosen, valid: np.ndarray, error: float | None
) -> Trust:
    """Whether the estimate is settled: two standard errors of what is measured count against it.

    `error` is the standard error of the number over its rows, None where there is a single row.
    """
    if chosen.estimator == "exact":
        return Trust(True)
    gap, how = None, scoring(settings)
    annealed = chosen.estimator == "annealing"
    if annealed and settings.of != "ensemble" and not posterior.others:  # z comes with one set of weights
        path = how.annealing(posterior.model, posterior.method.proposal)
        found = posterior.annealing_gap(GAP_ROWS, path, settings.of, settings.samples, settings.seed)
        gap = found.difference.mean
        if gap + 2 * (found.difference.stderr or 0.0) <= NEAR:
            return Trust(True, gap)
    some = posterior.rows(trial_rows(valid))
    once, more = (
        posterior.score_by(chosen.estimator, some, how.multiplied(times), settings.of, settings.samples)
        for times in (1, MORE)
    )
    moved = (more.log_likelihood - once.log_likelihood).double()
    near = abs(moved.mean().item()) + 2 * (stderr(moved) or 0.0) < (NEAR if error is None else min(NEAR, error))
    if annealed or chosen.estimator == "short-chain":  # neither has a tail of weights to look at
        return Trust(near, gap, moved.mean().item())
    # heavy tails: draws that would move the number have not occurred yet
    heavy = more.khat > RELIABLE
    # of these rows the draws cannot tell; annealing, which moves, has found no more where it was tried
    unknown = more.khat.isnan() | (cannot_tell(more) & ~heavy & (chosen.by_annealing is None))
    few = (heavy | unknown).double().mean().item() <= HEAVY
    return Trust(near and few, gap, moved.mean().item(), heavy.double().mean().item(), unknown.double().mean().item())
