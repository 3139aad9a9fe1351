"""What a run has learnt of a table, ready to answer cell by cell as `doubly fill` and `doubly odd` ask."""

import math
import time
from collections.abc import Callable

import torch

from doubly.core.errors import UserError
from doubly.posterior.imputation import spaced
from doubly.runs.build import build
from doubly.runs.folder import Run
from doubly.runs.learn import MASKED_PASSES, Learnt, fit_proposal
from doubly.runs.race import Time
from doubly.training.state import init

MOST_SAMPLES = 5  # of the weights, evenly spaced


def learnt_of(run: Run, seed: int = 0, tell: Callable[[str], None] = lambda line: None) -> Learnt:
    """The samples of a run, with a proposal that knows of missing cells wherever they are.

    The run's own proposal knows of those of its training rows, if they had any. So it is fitted to rows of which
    further columns are hidden; the run has stored its rows.
    """
    posterior, facts = run.posterior(), run.facts
    if run.columns is None:
        raise UserError(f"{run.path} was not fitted to a table: expected a run of doubly fit --data TABLE.csv")
    thetas = [
        theta.cpu() for theta in spaced(posterior.samples() if posterior.thetas else [posterior.last()], MOST_SAMPLES)
    ]
    rows = torch.as_tensor(run.data().split("train")).float()
    method = build(run.config, facts._replace(has_missing=True))
    phi = posterior.phi.cpu() if facts.has_missing else init(method, rows).phi.theta
    if method.proposal.layers:
        tell("fitting the proposal of the run to rows with missing cells")
    passes = MASKED_PASSES if facts.has_missing else 3 * MASKED_PASSES
    phi = fit_proposal(method, thetas[-1], phi, rows, seed, Time(time.monotonic, math.inf), passes)
    return Learnt(
        name=str(run.path), config=run.config, facts=facts._replace(has_missing=True), thetas=thetas, phi=phi,
        scores={}, notes=(),
    )  # fmt: skip
