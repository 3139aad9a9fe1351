"""Which estimate of log p(x) a run is evaluated by: draws of its proposal, or annealing from it.

Both are lower bounds in the mean, so the larger is the nearer. Which it is, is seen on rows of the validation split,
not on those that are scored. A number is called settled if it is known to be near: the bounds of annealing from below
and above lie within half a nat on rows drawn from the model, or ten times the work moves it by less than its error.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from doubly.analysis.config import EvaluateConfig
from doubly.core.errors import UserError
from doubly.latents import Annealing, LikelihoodConfig, RowLikelihoods, is_exact
from doubly.posterior.store import Posterior

Estimator = Literal["exact", "draws", "annealing"]
TRIAL_ROWS = 50  # of the validation split, by which one is chosen and its work is multiplied
NEAR = 0.5  # nats between the bounds, within which a number is settled
MORE = 10  # times the work
GAP_ROWS = 100  # at most, simulated to see how far apart the bounds of annealing are


@dataclass(frozen=True)
class Chosen:
    """The estimate that was chosen, and what decided."""

    estimator: Estimator
    by_draws: float | None = None
    """What draws of the proposal give the trial rows, where both were tried."""
    by_annealing: float | None = None


@dataclass(frozen=True)
class Trust:
    """How near an estimate is known to be."""

    settled: bool
    gap: float | None = None
    """Nats between the bounds of annealing on rows drawn from the model, where it is annealed."""
    moved: float | None = None
    """What ten times the work added on the trial rows, where that was tried."""


def choose(settings: EvaluateConfig, posterior: Posterior, valid: np.ndarray) -> Chosen:
    """By the settings, or where they leave it open, by the larger bound on a few validation rows."""
    if is_exact(posterior.model, posterior.method.proposal):
        return Chosen("exact")
    if settings.by == "draws" or (settings.by == "auto" and not can_anneal(settings, posterior, valid)):
        return Chosen("draws")
    if settings.by == "annealing":
        check_annealing(settings, posterior, valid)
        return Chosen("annealing")
    some = valid[:TRIAL_ROWS]
    draws = by_draws(settings, posterior, some).log_likelihood.double().mean().item()
    annealed = by_annealing(settings, posterior, some).log_likelihood.double().mean().item()
    return Chosen("annealing" if annealed > draws else "draws", draws, annealed)


def by_draws(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray, more: int = 1) -> RowLikelihoods:
    """log p(x) of each row by draws of the proposal."""
    how = LikelihoodConfig(
        more * settings.draws, settings.adaptive, refine=settings.refine, memory=settings.memory, seed=settings.seed
    )
    return posterior.row_likelihoods(rows, settings.of, how, settings.samples)


def by_annealing(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray, more: int = 1) -> RowLikelihoods:
    """The same by annealing; there is no tail of weights to look at, and one chain says nothing of its noise."""
    how = annealing(settings, posterior, more)
    found = posterior.anneal(rows, how, settings.of, settings.samples, settings.seed)
    none = torch.full_like(found.log_likelihood, math.nan)
    return RowLikelihoods(found.log_likelihood, found.ess, none, none, torch.full_like(none, float(how.chains)))


def trust(settings: EvaluateConfig, posterior: Posterior, chosen: Estimator, valid: np.ndarray, error: float) -> Trust:
    """Whether the estimate is settled, given the standard error of its mean."""
    if chosen == "exact":
        return Trust(True)
    gap, estimate = None, by_draws
    if chosen == "annealing":
        how, estimate = annealing(settings, posterior), by_annealing
        found = posterior.annealing_gap(GAP_ROWS, how, settings.of, settings.samples, settings.seed)
        gap = found.difference.mean
        if gap <= NEAR:
            return Trust(True, gap)
    some = valid[:TRIAL_ROWS]
    rows = [estimate(settings, posterior, some, more).log_likelihood.double().mean().item() for more in (1, MORE)]
    return Trust(abs(rows[1] - rows[0]) < error, gap, rows[1] - rows[0])


def annealing(settings: EvaluateConfig, posterior: Posterior, more: int = 1) -> Annealing:
    """From the proposal where its layers allow it, else from the prior."""
    how = Annealing(more * settings.temperatures, chains=1, start="proposal")
    served = how.serves(posterior.model, posterior.method.proposal)
    return how if served else dataclasses.replace(how, start="prior")


def can_anneal(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray) -> bool:
    """Whether annealing serves this model, these weights and these rows."""
    try:
        check_annealing(settings, posterior, rows)
    except UserError:
        return False
    return True


def check_annealing(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray) -> None:
    """Refuse what cannot be annealed."""
    if settings.of == "ensemble" or posterior.others:
        raise UserError("annealing is for one set of weights: of one run, --of mean or --of last")
    if np.isnan(rows).any():
        raise UserError("annealing needs complete rows, got rows with missing values: take --by draws, or impute first")
    annealing(settings, posterior).check(posterior.model, posterior.method.proposal)
