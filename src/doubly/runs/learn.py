"""Learning a table under a budget of time: candidates compete, and those that suit hidden cells best are stacked.

Tables of bits alone have a race of families by successive halving, decided by rows held out. Others have mixtures in
closed form and models with latents; some observed cells are hidden from all of them, and what each says of these cells
gives its weight.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import Diverged, UserError
from doubly.core.random import generator
from doubly.data import Columns
from doubly.latents import propose
from doubly.latents.importance import log_mean_weight
from doubly.latents.pair import Pair
from doubly.runs.automatic import candidates
from doubly.runs.baseline import baselines
from doubly.runs.build import Facts, build
from doubly.runs.config import Config
from doubly.runs.mixture import Layout, Mixture
from doubly.runs.race import FIRST_PASSES, Clock, Racer, Time, race
from doubly.runs.stack import Held, answering, contest, hold_out, pruned, stacked
from doubly.training import protocol
from doubly.training.method import Method
from doubly.training.refit import Halfway, refit
from doubly.training.state import init

LEAST_ROWS = 5
MIXTURES = 0.25  # of the time is for the mixtures that compete,
PREPARING = 0.6  # of the rest for the candidates with latents, then for sampling; the last is to fit the proposal
ANSWERING = 0.15  # of what the candidates leave is for the mixtures that answer
MASKED_PASSES = 20  # over all rows, as they are and with more columns hidden
CHECKED_ROWS, CHECK_DRAWS = 400, 50
MOST_CELLS = 2**21  # draws x rows x entries at a time
ALL_OF_IT = 0.97  # a weight that is called the whole

Tell = Callable[[str], None]


class Learnt(NamedTuple):
    """What was learnt of a table, ready to answer."""

    name: str
    """Of what answers: `stack`, or the one candidate or base line."""
    config: Config
    facts: Facts
    thetas: list[Tensor]
    """Samples of the weights of the best model with latents, or without if the table is of bits."""
    phi: Tensor
    """Of the proposal: one for all samples, or (samples, weights) one for each, where they come from several chains."""
    scores: dict[str, float]
    """Of every candidate and base line, in scaled units: mean log-likelihood of a hidden cell given those that are
    seen; of tables of bits, of a held-out row."""
    notes: tuple[str, ...]
    share: float = 1.0
    """Weight of these samples in the stack, together."""
    mixtures: tuple[tuple[float, Mixture], ...] = ()
    """The others, each with its weight."""

    @property
    def pairs(self) -> list[Pair]:
        """The weights that were sampled, with their proposal."""
        method = build(self.config, self.facts)
        phis = self.phi if self.phi.dim() > 1 else self.phi.expand(len(self.thetas), -1)
        return [
            Pair(method.model, *each) for each in zip(self.thetas, [method.proposal] * len(phis), phis, strict=True)
        ]

    @property
    def members(self) -> list[tuple[float, list[Pair] | Mixture]]:
        """All that answer, with weights that sum to one; the samples of a model's weights are one member together."""
        return [*([(self.share, self.pairs)] if self.share else []), *self.mixtures]


def learn(
    columns: Columns,
    rows: Tensor,
    *,
    minutes: float = 0.75,
    seed: int = 0,
    epochs: int = 0,
    keep: int = 5,
    latents: bool = True,
    stack: bool = True,
    tell: Tell = lambda line: None,
    clock: Clock = time.monotonic,
) -> Learnt:
    """The best that can be learnt of rows of a table within the budget.

    Mixtures that answer have seen all cells of all rows, and so have samples of weights; where these are worse on the
    hidden cells than the weights that had not seen them, or none were drawn, the latter answer. `epochs` bounds the
    epochs of each candidate, for tests; else the budget does. Without `latents`, mixtures alone compete; without
    `stack`, the best model with latents answers alone, for those who want its codes, and there is one mixture, to
    compare with. `clock` counts the seconds of the budget.
    """
    if len(rows) < LEAST_ROWS:
        raise UserError(f"the table has {len(rows)} rows: at least {LEAST_ROWS} are needed to learn anything")
    time_left = Time(clock, clock() + 60 * minutes)
    if all(column.kind == "binary" for column in columns.columns):
        return _learn_bits(columns, rows, seed, epochs, keep, tell, time_left)
    return _learn_mixed(columns, rows, seed, epochs, keep, latents, stack or not latents, tell, time_left)


def _learn_mixed(
    columns: Columns, rows: Tensor, seed: int, epochs: int, keep: int, latents: bool, stack: bool, tell: Tell,
    left: Time,
) -> Learnt:  # fmt: skip
    rng = generator("cpu", seed, "automatic")
    layout = Layout.of(columns.layout(), rows.shape[1])
    held = hold_out(layout, rows, rng)
    base = baselines(columns.layout(), held.seen)
    scores: dict[str, Tensor] = {"independent columns": held.score(lambda x: base.log_prob(x)["independent columns"])}
    # without a stack, the first of the mixtures is there to compare with
    entrants = contest(layout, held, seed, left.part(MIXTURES).more if stack else lambda: False)
    scores |= {each.design.name: each.scores for each in entrants}
    for name, found in scores.items():
        tell(f"{name}: log p of a hidden cell {float(found.sum()) / held.cells:.3f}")
    facts = Facts(rows.shape[1], "mixed", (rows.shape[1],), has_missing=True)
    some = torch.randperm(len(rows), generator=rng)[:CHECKED_ROWS]
    cells = max(1.0, held.cells * len(some) / len(rows))
    checked = Held(rows[some], held.seen[some], round(cells))

    def score(pair: Pair) -> Tensor:
        return checked.score(lambda x: _log_prob(pair, x, seed))

    every = candidates(columns, len(rows), seed, epochs)[: None if latents else 1]
    passes = FIRST_PASSES if latents else 0
    racing = [Racer(each, facts, base, held.seen, held.seen[some[:8]], score, passes) for each in every]
    if latents:
        racing = race(
            racing,
            left.part(PREPARING),
            lambda name, found: tell(f"{name}: log p of a hidden cell {found * len(some) / cells:.3f}"),
        )
        for racer in racing:
            scores[racer.name] = held.score(functools.partial(_log_prob, racer.pair, seed=seed))
    best = racing[0]
    stackable = entrants if stack else []
    names = [*(each.design.name for each in stackable), *([best.name] if latents else [])]
    weight = pruned(stacked(torch.stack([scores[name] for name in names])))
    together = torch.stack([scores[name] + weight[at].log() for at, name in enumerate(names) if weight[at] > 0])
    told = {name: float(found.sum()) / held.cells for name, found in scores.items()}
    if stack:
        told["stack"] = float(together.logsumexp(0).sum()) / held.cells
    share = float(weight[-1]) if latents else 0.0
    chosen = [(each.design, float(w)) for each, w in zip(stackable, weight, strict=False) if w > 0]
    # mixtures first: samples and their proposal take all the time that there is
    designs, weights = [design for design, _ in chosen], [w for _, w in chosen]
    turn = left.part(ANSWERING) if share else left
    mixtures = answering(designs, weights, layout, rows, seed, turn.more) if chosen else []
    thetas, phi = [best.best_state.theta.theta], best.best_state.phi.theta
    if share:
        thetas, phi = _sampled_and_fitted(best, rows, keep, seed, left, lambda pair: float(score(pair).mean()))
    parts = [(design.name, w) for design, w in chosen] + ([(best.name, share)] if share else [])
    parts.sort(key=lambda part: -part[1])
    name = parts[0][0] if parts[0][1] > ALL_OF_IT else "stack"
    notes = [f"{name}: " + ", ".join(f"{part} {w:.2f}" for part, w in parts)]
    if share:
        notes.append(f"{best.name}: {len(thetas)} sample{'s' * (len(thetas) > 1)} of the weights")
    elif latents:
        notes.append(f"no candidate with latents improved on the mixtures for hidden cells ({best.name} came nearest)")
    for note in notes:
        tell(note)
    return Learnt(name, best.config, facts, thetas, phi, told, tuple(notes), share, tuple(mixtures))


def _learn_bits(columns: Columns, rows: Tensor, seed: int, epochs: int, keep: int, tell: Tell, left: Time) -> Learnt:
    """A tenth of the rows is held out while families compete; what wins is then sampled with all the rows."""
    rng = generator("cpu", seed, "automatic")
    order = torch.randperm(len(rows), generator=rng)
    n_valid = min(max(2, len(rows) // 10), 1000)
    valid, train = rows[order[:n_valid]], rows[order[n_valid:]]
    base = baselines(columns.layout(), train)
    facts = Facts(rows.shape[1], "binary", (rows.shape[1],), has_missing=bool(rows.isnan().any()))
    scores = {name: float(found.mean()) for name, found in base.log_prob(valid).items()}
    racing = [Racer(each, facts, base, train, valid) for each in candidates(columns, len(train), seed, epochs)]
    racing = race(racing, left.part(PREPARING), lambda name, found: tell(f"{name}: {found:.3f} for each row held out"))
    scores |= {racer.name: racer.best for racer in racing}
    best = racing[0]
    thetas, phi = _sampled_and_fitted(best, rows, keep, seed, left)
    facts = facts._replace(has_missing=True)  # it may be asked of rows with missing cells, whatever the table's were
    note = f"{best.name}: {len(thetas)} sample{'s' * (len(thetas) > 1)} of the weights"
    tell(note)
    return Learnt(best.name, best.config, facts, thetas, phi, scores, (note,))


@torch.no_grad()
def _log_prob(pair: Pair, rows: Tensor, seed: int) -> Tensor:
    rng = generator("cpu", seed, "check")
    blocks = rows.split(max(1, MOST_CELLS // (CHECK_DRAWS * rows.shape[1])))
    return torch.cat([log_mean_weight(propose(pair, block, CHECK_DRAWS, rng).log_weight) for block in blocks])


def _sampled_and_fitted(
    racer: Racer, rows: Tensor, keep: int, seed: int, left: Time, score: Callable[[Pair], float] | None = None
) -> tuple[list[Tensor], Tensor]:
    """Samples of the weights with all the rows, and a proposal that was fitted to them; else the best weights.

    The proposal knows of missing cells; where that of the race does not, another one learns of them.
    """
    samples = _sampled(racer, rows, keep, left.part(PREPARING))
    passes = min(MASKED_PASSES, 2 * racer.method.epochs)
    pair, method = racer.pair, racer.method
    if not method.proposal.masked:
        method, passes = build(racer.config, racer.facts._replace(has_missing=True)), 3 * passes
        pair = Pair(method.model, pair.theta, method.proposal, init(method, rows).phi.theta)
    if samples:
        phi = fit_proposal(method, samples[-1], pair.phi, rows, seed, left, passes)
        # the hidden cells are no longer hidden from these: they must not be worse there
        if score is None or score(pair._replace(theta=samples[-1], phi=phi)) >= racer.best:
            return samples, phi
    return [pair.theta], fit_proposal(method, pair.theta, pair.phi, rows, seed, left, passes)


def _sampled(racer: Racer, rows: Tensor, keep: int, left: Time) -> list[Tensor]:
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
    found: list[Tensor] = []
    try:
        for state, record in protocol.fit(method, rows, racer.valid, state):  # noqa: B020
            if record is None:
                continue
            if state.began is not None:
                found.append(state.theta.theta.clone())
            if not left.more():
                break
    except Diverged:
        found = []
    if len(found) <= keep:
        return found
    return [found[at] for at in torch.linspace(0, len(found) - 1, keep).long().tolist()]


def fit_proposal(
    method: Method, theta: Tensor, phi: Tensor, rows: Tensor, seed: int, left: Time, passes: int = MASKED_PASSES
) -> Tensor:
    """The proposal fitted to the weights that answer, also on rows of which further columns are hidden.

    It will be asked for rows with other missing cells than those of the table.
    """
    if not method.proposal.layers:
        return phi
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
        if not left.more():
            raise _Enough

    try:
        return refit(method, theta, phi, both, passes, watch)
    except _Enough:
        return found
