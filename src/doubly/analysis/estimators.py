"""Which estimate of log p(x) a run is evaluated by: draws of its proposal, or annealing from it.

Both are lower bounds in the mean, so the larger is the nearer. Which it is, is seen on rows of the validation split,
not on those that are scored. A number is called settled if it is known to be near: the bounds of annealing from below
and above lie within half a nat on rows drawn from the model, or ten times the work moves it by less than that and
leaves few rows with heavy tails.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from doubly.analysis.config import EvaluateConfig
from doubly.core.errors import UserError
from doubly.core.statistics import stderr
from doubly.latents import RELIABLE, Annealing, LikelihoodConfig, RowLikelihoods, is_exact
from doubly.posterior.store import Posterior

Estimator = Literal["exact", "draws", "annealing"]
TRIAL_ROWS = 50  # of the validation split, by which one is chosen and its work is multiplied
NEAR = 0.5  # nats between the bounds, within which a number is settled
MORE = 10  # times the work
HEAVY = 0.05  # of the rows may have a heavy tail
GAP_ROWS = 100  # at most, simulated to see how far apart the bounds of annealing are


@dataclass(frozen=True)
class Chosen:
    """The estimate that was chosen, and what decided."""

    estimator: Estimator
    by_draws: float | None = None
    """What draws of the proposal give the trial rows, where both were tried."""
    by_annealing: float | None = None

    @property
    def can_anneal(self) -> bool:
        """Whether annealing was tried, or taken."""
        return self.estimator == "annealing" or self.by_annealing is not None


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


def choose(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray, valid: np.ndarray) -> Chosen:
    """By the settings, or where they leave it open, by the larger bound on a few validation rows."""
    if is_exact(posterior.model, posterior.method.proposal):
        return Chosen("exact")
    if settings.by == "annealing":
        check_annealing(settings, posterior, rows)
        return Chosen("annealing")
    some = trial_rows(valid)
    if settings.by == "draws" or not all(can_anneal(settings, posterior, each) for each in (rows, some)):
        return Chosen("draws")
    draws = by_draws(settings, posterior, some).log_likelihood.double().mean().item()
    annealed = by_annealing(settings, posterior, some).log_likelihood.double().mean().item()
    return Chosen("annealing" if annealed > draws else "draws", draws, annealed)


def trial_rows(valid: np.ndarray) -> np.ndarray:
    """Some of the validation rows, evenly spaced."""
    return valid[:: math.ceil(len(valid) / TRIAL_ROWS)]


def by_draws(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray, more: int = 1) -> RowLikelihoods:
    """log p(x) of each row by draws of the proposal."""
    how = LikelihoodConfig(
        more * settings.draws, settings.adaptive, refine=settings.refine, memory=settings.memory, seed=settings.seed
    )
    return posterior.row_likelihoods(rows, settings.of, how, settings.samples, tidy=False)


def by_annealing(settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray, more: int = 1) -> RowLikelihoods:
    """The same by annealing; there is no tail of weights to look at, and one chain says nothing of its noise."""
    how = annealing(settings, posterior, more)
    found = posterior.anneal(rows, how, settings.of, settings.samples, settings.seed)
    none = torch.full_like(found.log_likelihood, math.nan)
    return RowLikelihoods(found.log_likelihood, found.ess, none, none, torch.full_like(none, float(how.chains)))


def trust(settings: EvaluateConfig, posterior: Posterior, chosen: Estimator, valid: np.ndarray) -> Trust:
    """Whether the estimate is settled: two standard errors of what is measured count against it."""
    if chosen == "exact":
        return Trust(True)
    gap, estimate = None, by_draws
    if chosen == "annealing":
        how, estimate = annealing(settings, posterior), by_annealing
        found = posterior.annealing_gap(GAP_ROWS, how, settings.of, settings.samples, settings.seed)
        gap = found.difference.mean
        if gap + 2 * (found.difference.stderr or 0.0) <= NEAR:
            return Trust(True, gap)
    some = trial_rows(valid)
    once, more = (estimate(settings, posterior, some, times) for times in (1, MORE))
    moved = (more.log_likelihood - once.log_likelihood).double()
    near = abs(moved.mean().item()) + 2 * (stderr(moved) or 0.0) < NEAR
    # heavy tails: draws that would move the number have not occurred yet
    heavy = (~(more.khat <= RELIABLE)).double().mean().item() if chosen == "draws" else 0.0
    return Trust(near and heavy <= HEAVY, gap, moved.mean().item(), heavy if chosen == "draws" else None)


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
