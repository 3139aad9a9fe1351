"""Learning a table under a budget of time: candidates compete by successive halving, and the base line is the bar."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import Diverged, UserError
from doubly.core.random import generator
from doubly.data import Columns
from doubly.latents.pair import Pair
from doubly.runs.automatic import Candidate, candidates, of_table
from doubly.runs.baseline import Baselines, as_normal, baselines, started_from
from doubly.runs.build import Facts, build
from doubly.runs.config import Config, from_dict
from doubly.training import protocol
from doubly.training.method import Method, mover
from doubly.training.refit import Halfway, refit
from doubly.training.state import init

LEAST_ROWS = 5
PREPARING = 0.6  # of the time is for the candidates, the rest for sampling and for fitting the proposal
MASKED_PASSES = 20  # over all rows, as they are and with more columns hidden
FIRST_PASSES = 10  # that fit the proposal to the weights that learning starts from


class Learnt(NamedTuple):
    """What was learnt of a table, ready to answer."""

    name: str
    """Of the candidate or base line that answers."""
    config: Config
    facts: Facts
    thetas: list[Tensor]
    """Samples of the weights; of a base line, one."""
    phi: Tensor
    scores: dict[str, float]
    """Mean log-likelihood of the held-out rows, in scaled units, of every candidate and base line."""
    notes: tuple[str, ...]

    @property
    def pairs(self) -> list[Pair]:
        """The weights that answer, with their proposal."""
        method = build(self.config, self.facts)
        return [Pair(method.model, theta, method.proposal, self.phi) for theta in self.thetas]


def learn(
    columns: Columns,
    rows: Tensor,
    *,
    minutes: float = 2.0,
    seed: int = 0,
    epochs: int = 0,
    keep: int = 5,
    tell: Callable[[str], None] = lambda line: None,
) -> Learnt:
    """The best model for rows of a table that fits into the budget, by successive halving.

    A tenth of the rows is held out while candidates compete, from weights that begin at the base line. Each rung
    doubles the epochs and drops the worse half. What wins is then sampled with all the rows. Where none of the
    candidates beats the base lines on the rows held out, the better base line answers. `epochs` bounds the epochs of
    each, for tests; else the budget does.
    """
    if len(rows) < LEAST_ROWS:
        raise UserError(f"the table has {len(rows)} rows: at least {LEAST_ROWS} are needed to learn anything")
    deadline = time.monotonic() + 60 * minutes
    rng = generator("cpu", seed, "automatic")
    order = torch.randperm(len(rows), generator=rng)
    n_valid = min(max(2, len(rows) // 10), 1000)
    valid, train = rows[order[:n_valid]], rows[order[n_valid:]]
    facts = Facts(rows.shape[1], "mixed", (rows.shape[1],), has_missing=True)
    binary = all(column.kind == "binary" for column in columns.columns)
    base = baselines(columns.layout(), train)
    scores = {name: float(found.mean()) for name, found in base.log_prob(valid).items()}
    if binary:
        facts = facts._replace(kind="binary", has_missing=bool(rows.isnan().any()))
    racing = [_Racer(each, facts, base, train, valid) for each in candidates(columns, len(train), seed, epochs)]
    rungs = max(1, math.ceil(math.log2(len(racing))))
    for rung in range(rungs):
        share = deadline - time.monotonic()
        for racer in racing:
            until = time.monotonic() + share * PREPARING / rungs / len(racing)
            racer.advance(max(1, racer.warmup >> (rungs - 1 - rung)), until)
            scores[racer.name] = racer.best
            tell(f"{racer.name}: held-out log-likelihood {racer.best:.3f} after {racer.epoch} epochs")
        racing = sorted(racing, key=lambda racer: -racer.best)[: max(1, len(racing) // 2)]
    return _finish(racing[0], base, columns, rows, scores, keep, deadline, seed, tell)


class _Racer:
    """A candidate under way: Adam from the base line, with the best weights on the rows held out."""

    def __init__(self, candidate: Candidate, facts: Facts, base: Baselines, train: Tensor, valid: Tensor):
        self.name, self.config, self.facts = candidate.name, candidate.config, facts
        self.method = build(candidate.config, facts)
        self._train, self._valid = train, valid
        state = init(self.method, train)
        theta = started_from(base, self.method.model, state.theta.theta)
        # a proposal that knows nothing would lead good weights astray
        phi = refit(self.method, theta, state.phi.theta, train, min(FIRST_PASSES, self.method.epochs))
        optimiser = self.method.optimiser.init(phi, state.rng)
        state = state._replace(theta=mover(self.method, 0).sampler.init(theta, state.rng), phi=optimiser)
        self._steps = protocol.fit(self.method, train, valid, state)
        self.state, self.best, self.best_state, self.epoch = state, -math.inf, state, 0
        self.warmup = self.method.warmup

    def advance(self, epochs: int, until: float) -> None:
        """Go on to so many epochs in all, or to the time, but for one epoch at least."""
        try:
            while self.epoch < min(epochs, self.warmup):
                self.state, record = next(self._steps)
                if record is None:
                    continue
                self.epoch = record.epoch
                if record.valid > self.best:
                    self.best, self.best_state = record.valid, self.state
                if time.monotonic() > until:
                    break
        except Diverged:
            self.epoch = self.warmup  # what it was before counts


def _finish(
    racer: _Racer, base: Baselines, columns: Columns, rows: Tensor, scores: dict[str, float], keep: int,
    deadline: float, seed: int, tell: Callable[[str], None],
) -> Learnt:  # fmt: skip
    """Sample the weights of what won with all the rows, or take the base line; fit the proposal to what answers."""
    plain = {name: scores[name] for name in ("independent columns", "normal by EM") if name in scores}
    best = max(plain, key=lambda name: plain[name])
    if racer.best <= plain[best] and racer.facts.kind == "mixed":
        note = f"no candidate beat {best} on the rows held out ({racer.best:.3f} against {plain[best]:.3f}): it answers"
        return _as_baseline(best, base, columns, rows, scores, seed, note)
    state = racer.best_state
    theta, phi = state.theta.theta, state.phi.theta
    samples = _sampled(racer, rows, keep, deadline)
    thetas = samples or [theta]
    note = f"{racer.name}: {len(samples)} samples of the weights" if samples else f"{racer.name}: one set of weights"
    tell(note)
    passes = min(MASKED_PASSES, 2 * racer.method.epochs)
    phi = _fit_proposal(racer.method, thetas[-1], phi, rows, seed, deadline, passes)
    return Learnt(racer.name, racer.config, racer.facts, thetas, phi, scores, (note,))


def _sampled(racer: _Racer, rows: Tensor, keep: int, deadline: float) -> list[Tensor]:
    """Samples of the weights given all rows, from the best weights on; none where the chain diverges."""
    method, state = racer.method, racer.best_state
    state = state._replace(
        theta=method.sampler.init(state.theta.theta, state.rng),
        epoch=method.warmup,
        batch=0,
        inner=0,
        began=None,
        memory=method.estimator.init(method.model, len(rows), state.rng),  # there are more rows now
    )
    until = time.monotonic() + (deadline - time.monotonic()) * PREPARING
    found: list[Tensor] = []
    try:
        for state, record in protocol.fit(method, rows, racer._valid, state):  # noqa: B020
            if record is None:
                continue
            if state.began is not None and record.valid > racer.best - 0.02 * abs(racer.best):
                found.append(state.theta.theta.clone())
            if time.monotonic() > until:
                break
    except Diverged:
        found = []
    if len(found) <= keep:
        return found
    return [found[at] for at in torch.linspace(0, len(found) - 1, keep).long().tolist()]


def _as_baseline(
    name: str, base: Baselines, columns: Columns, rows: Tensor, scores: dict[str, float], seed: int, note: str
) -> Learnt:
    """A base line as a model of the same family: without latents, or linear over as many normal ones as columns."""
    base = baselines(columns.layout(), rows)
    n = len(base.reals) if name == "normal by EM" else 0
    fields: dict[str, Any] = of_table(columns, len(rows)) | {"seed": seed, "threads": 1, "hidden": (n,) if n else ()}
    layer = f"mixed:columns={columns.layout()}"
    config = from_dict(fields | {"model": f"{layer},normal" if n else layer} | ({} if n else {"objective": "wake"}))
    facts = Facts(rows.shape[1], "mixed", (rows.shape[1],), has_missing=True)
    method = build(config, facts)
    state = init(method, rows)
    if not n:
        return Learnt(name, config, facts, [base.theta], state.phi.theta, scores, (note,))
    theta = as_normal(base, method.model, state.theta.theta)
    phi = _fit_proposal(method, theta, state.phi.theta, rows, seed, math.inf, passes=3 * MASKED_PASSES)
    return Learnt(name, config, facts, [theta], phi, scores, (note,))


def _fit_proposal(
    method: Method, theta: Tensor, phi: Tensor, rows: Tensor, seed: int, deadline: float, passes: int = MASKED_PASSES
) -> Tensor:
    """The proposal fitted to the weights that answer, also on rows of which further columns are hidden.

    It will be asked for rows with other missing cells than those of the table.
    """
    if not method.proposal.layers:
        return phi
    if not method.proposal.masked:
        return refit(method, theta, phi, rows, passes)
    rng = generator("cpu", seed, "masks")
    layer = method.model.layers[0]
    widths = torch.tensor([block.width for block in layer.blocks()])
    share = torch.rand(len(rows), 1, generator=rng) * 0.5
    hidden = (torch.rand(len(rows), len(widths), generator=rng) < share).repeat_interleave(widths, 1)
    both = torch.cat([rows, rows.masked_fill(hidden, math.nan)])

    class _Enough(Exception):
        pass

    found = phi

    def watch(halfway: Halfway) -> None:
        nonlocal found
        found = halfway.optimiser.theta
        if time.monotonic() > deadline:
            raise _Enough

    try:
        return refit(method, theta, phi, both, passes, watch)
    except _Enough:
        return found
