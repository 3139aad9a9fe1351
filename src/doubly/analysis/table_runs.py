"""What a run has learnt of a table, ready to answer cell by cell as `doubly fill` and `doubly odd` ask."""

import math
import time
from collections.abc import Callable

import torch

from doubly.core.errors import UserError
from doubly.runs.build import build
from doubly.runs.folder import Run
from doubly.runs.learn import MASKED_PASSES, Learnt, fit_proposal
from doubly.runs.race import Time
from doubly.training.state import init

MOST_SAMPLES = 5  # of the weights, evenly spaced


def learnt_of(run: Run, seed: int = 0, tell: Callable[[str], None] = lambda line: None) -> Learnt:
    """The samples of a run, with a proposal that knows of missing cells wherever they are.

    The run's own proposal knows of those of its training rows, if they had any. So it is fitted to rows of which
    further columns are hidden; the run has stored its rows. Of several chains, each has a proposal of its own, for
    their latent units need not correspond.
    """
    posterior, facts = run.posterior(), run.facts
    if run.columns is None:
        raise UserError(f"{run.path} was not fitted to a table: expected a run of doubly fit --data TABLE.csv")
    rows = torch.as_tensor(run.data().split("train")).float()
    method = build(run.config, facts._replace(has_missing=True))
    if method.proposal.layers:
        tell("fitting the proposal of the run to rows with missing cells")
    passes = MASKED_PASSES if facts.has_missing else 3 * MASKED_PASSES
    thetas: list[torch.Tensor] = []
    phis: list[torch.Tensor] = []
    for chain in posterior.thinned(MOST_SAMPLES).chains:
        own = [theta.cpu() for theta in (chain.thetas if posterior.pairs() else [chain.last()])]
        if not own:  # it has not come so far as others have
            continue
        phi = chain.phi.cpu() if facts.has_missing else init(method, rows).phi.theta
        phi = fit_proposal(method, own[-1], phi, rows, seed, Time(time.monotonic, math.inf), passes)
        thetas += own
        phis += [phi] * len(own)
    return Learnt(
        name=str(run.path), config=run.config, facts=facts._replace(has_missing=True), thetas=thetas,
        phi=torch.stack(phis), scores={}, notes=(),
    )  # fmt: skip
