"""The paper's protocol: epochs, validation, when to stop and when to collect.

`fit` is a generator: it yields the state after every mini-batch. Its caller can stop anywhere, save the state, and go
on from it bit for bit. `next_epoch` holds the rules.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import Diverged
from doubly.core.random import generator
from doubly.core.ranks import ALONE, Ranks
from doubly.core.rows import StoredRows, shuffled
from doubly.core.statistics import stderr
from doubly.latents.pair import Pair
from doubly.layers.chain import Chain
from doubly.training.method import Method, latest_start, mover, watched_from
from doubly.training.shards import bounds, new_order, sharded_batches
from doubly.training.state import State, finished, healthy, init
from doubly.training.step import batches, rows_at, step

FAR = 3.0
"""Nats a cell that rows may become less likely than with the weights that training starts from. A step that is far too
large need not lead out of the numbers: a friction that adapts, or a gradient that is bounded, keeps weights finite that
have nothing to do with the posterior. (A binary cell of which nothing is known has lost 0.7 nats.)"""


class Record(NamedTuple):
    """What is reported of one epoch; log-likelihoods are means over rows, in nats."""

    epoch: int
    phase: str
    train: float
    ess: float
    valid: float
    valid_stderr: float | None
    largest_gradient: float
    collected: int
    step: float
    """The step at the end of the epoch; of an automatic one, the median over the weights."""
    sampler: dict[str, float]
    """What the sampler watches, such as its temperature: averages over the steps of the epoch."""
    norms: dict[str, float]
    """Root mean square of the weights of each layer."""
    prior: dict[str, float]
    """What the prior has learnt: the scale of each group of weights."""
    predicted: dict[str, float]
    """Of rows drawn from the model: the mean of all cells, and the standard deviation of the row means."""


def fit(
    method: Method, train: Tensor | StoredRows, valid: Tensor, state: State, ranks: Ranks = ALONE
) -> Iterator[tuple[State, Record | None]]:
    """Train to the end of the protocol: yield the state after every mini-batch, and a record after every epoch.

    Where samples are collected within an epoch, the state is also yielded after each of them.
    """
    n_data = len(train)
    while not finished(method, state):
        back = _goes_back(method, state)
        if state.batch == 0:
            order = state.order if back else _new_order(method, train, state.rng)
            state = state._replace(order=order, totals=_no_totals(method, state))
        for index in _batches(method, state.order)[:: -1 if back else 1][state.batch :]:
            x = rows_at(method, train, index, state.rng)
            for _ in range(state.inner, method.theta_steps):
                state = step(method, state, x, index, n_data, ranks)
                state = state._replace(inner=state.inner + 1)
                if method.collect_every.unit == "step" and state.began is not None:
                    before, state = state, _wait_or_collect(method, state)
                    if state.collected > before.collected:
                        yield state, None
            state = state._replace(batch=state.batch + 1, inner=0)
            yield state, None
        state, record = _end_epoch(method, state, train, valid, ranks)
        yield state, record


def _new_order(method: Method, train: Tensor | StoredRows, rng: torch.Generator) -> Tensor:
    return shuffled(train, rng) if method.shards == 1 else new_order(len(train), method.shards, rng)


def _batches(method: Method, order: Tensor) -> tuple[Tensor, ...]:
    if method.shards == 1:
        return batches(order, method.batch)
    return sharded_batches(order, method.batch, method.shards)


def _goes_back(method: Method, state: State) -> bool:
    """Whether this epoch goes back through the mini-batches of the one before it, as some samplers ask."""
    return mover(method, state.epoch).sampler.there_and_back and (state.epoch - method.warmup) % 2 == 1


def _no_totals(method: Method, state: State) -> Tensor:
    """Zeros, for the sums over an epoch of what is recorded of every step."""
    watched = mover(method, state.epoch).sampler.stats(state.theta)
    return torch.zeros(4 + len(watched), dtype=torch.float64, device=state.totals.device)


def next_epoch(method: Method, state: State, score: float) -> State:
    """The state after an epoch whose validation log-likelihood was `score`: this alone decides what comes next.

    Collect once validation has not risen for `patience` epochs, not before `min_epochs`, and in time for `collect`
    samples.
    """
    if state.began is None:
        state = _watch(method, state, score)
    elif method.collect_every.unit == "epoch":
        state = _wait_or_collect(method, state)
    return state._replace(epoch=state.epoch + 1, batch=0)


def _watch(method: Method, state: State, score: float) -> State:
    """Before collecting: has validation levelled off?"""
    epoch = state.epoch + 1
    settling = max(method.min_epochs, watched_from(method))
    better = epoch >= watched_from(method) and score > state.best
    stale = 0 if better or epoch <= settling else state.stale + 1
    levelled = stale >= method.patience and epoch >= settling
    # with nothing to collect, the last epoch is the end, but more of them may be asked for later
    in_time = method.collect > 0 and epoch >= latest_start(method, len(state.order))
    return state._replace(
        best=score if better else state.best, stale=stale, began=epoch if levelled or in_time else None
    )


def _wait_or_collect(method: Method, state: State) -> State:
    """An epoch or a step has passed: take a sample if it is time, into the mean of all and into that of its window."""
    waited, theta = state.waited + 1, state.theta.theta
    if waited < method.collect_every.number or state.collected >= method.collect:
        return state._replace(waited=waited)
    within = state.collected % method.window
    return state._replace(
        waited=0,
        collected=state.collected + 1,
        mean=state.mean + (theta - state.mean) / (state.collected + 1),
        window=state.window + (theta - state.window) / (within + 1) if within else theta.double(),
    )


def _end_epoch(
    method: Method, state: State, train: Tensor | StoredRows, valid: Tensor, ranks: Ranks
) -> tuple[State, Record]:
    """Validate, decide what comes next, and hand over to the sampler where the warm-up ends."""
    if not ranks.all(healthy(state)):
        raise _diverged(method, state, f"the largest gradient was {state.totals[3].item():.3g}")
    rows = _validate(method, state, valid, ranks)
    if (lost := _lost(method, state, train, valid, rows, ranks)) > FAR * valid.shape[1]:
        raise _diverged(method, state, f"rows are {lost:.3g} nats less likely than before the first step,")
    after = next_epoch(method, state, rows.double().mean().item())
    record = _record(method, state, after, rows)
    if after.epoch == method.warmup:
        after = after._replace(theta=method.sampler.init(after.theta.theta, after.rng))
    if after.began == after.epoch:  # samples are collected from here on
        after = after._replace(theta=method.sampler.hold(after.theta))
    return after, record


def _lost(method: Method, state: State, train: Tensor | StoredRows, valid: Tensor, rows: Tensor, ranks: Ranks) -> float:
    """By how much rows are less likely than at the start: those of training over the epoch, and those of validation.

    The smaller of both counts, so that a chain that has learnt its training rows by heart has not diverged.
    """
    now = max(rows.double().mean().item(), (state.totals[1] / state.totals[0]).item())
    if now > -FAR * valid.shape[1]:  # not worth looking at the start for
        return 0.0
    return _validate(method, init(method, train), valid, ranks).double().mean().item() - now


def _diverged(method: Method, state: State, found: str) -> Diverged:
    chosen = mover(method, state.epoch)
    name, size = ("warmup_step" if state.epoch < method.warmup else "step"), chosen.step / 3.0**state.retried
    if chosen.automatic:
        size = step_of(method, state)
    instead = "auto" if chosen.sampler.takes_scales and not chosen.automatic else f"{size / 3:.2g}"
    return Diverged(
        f"the chain diverged in epoch {state.epoch + 1}: {found} with {name} {size:g}; try {name} {instead}"
    )


def _validate(method: Method, state: State, valid: Tensor, ranks: Ranks) -> Tensor:
    """The log-likelihood of each validation row, or of some of them, on a generator of its own."""
    pair = Pair(method.model, state.theta.theta, method.proposal, state.phi.theta)
    if method.shards == 1:
        rng = generator(valid.device, method.seed, "valid")  # the same draws every epoch make epochs comparable
        return method.estimator.validate(pair, valid, method.valid_draws, rng).log_likelihood
    some = method.estimator.validated(pair, valid)
    ends, found = bounds(len(some), method.shards), {}
    for shard in ranks.own(method.shards):
        rng = generator(valid.device, method.seed, "valid", shard)
        rows = some[ends[shard] : ends[shard + 1]]
        if len(rows):
            found[shard] = method.estimator.validate(pair, rows, method.valid_draws, rng).log_likelihood
    return torch.cat(list(ranks.everywhere(found).values()))


def _record(method: Method, state: State, after: State, rows: Tensor) -> Record:
    """The report of the epoch between these two states; `rows` are log-likelihoods of the validation rows."""
    rows_seen, train, ess, largest, *sums = state.totals.tolist()
    theta, watched = state.theta.theta, mover(method, state.epoch).sampler.stats(state.theta)
    if len(sums) == len(watched):
        sampler = {name: total / rows_seen for name, total in zip(watched, sums, strict=True)}
    else:  # an older version began the epoch: what the last step left
        sampler = {name: value.item() for name, value in watched.items()}
    return Record(
        epoch=after.epoch,
        phase="burn-in" if state.began is None else "collect",
        train=train / rows_seen,
        ess=ess / rows_seen,
        valid=rows.double().mean().item(),
        valid_stderr=stderr(rows),
        largest_gradient=largest,
        collected=after.collected,
        step=step_of(method, state),
        sampler=sampler,
        norms=_norms(method.model, theta),
        prior=method.prior.stats(state.prior),
        predicted=_predicted(method, theta),
    )


def step_of(method: Method, state: State) -> float:
    """The step of the epoch that is under way, in units of the setting; of an automatic one the median of the weights.

    An automatic step stands for itself: it is not divided by the rows, as the setting is.
    """
    _, size, automatic = mover(method, state.epoch)
    if not automatic:
        return size / 3.0**state.retried
    assert state.tuned is not None
    return size * len(state.order) * state.tuned.eta().median().item() / 3.0**state.retried


def keeps_sample(collected: int, planned: int, keep: int, window: int = 1) -> bool:
    """Whether the sample of this number (from 1) is kept, or the average over the window that it ends.

    At most `keep` of all that are planned are kept, evenly spaced. Their number is known when the first is there, so
    none is thrown away later.

    >>> [number for number in range(1, 11) if keeps_sample(number, planned=10, keep=3)]
    [4, 7, 10]
    >>> [number for number in range(1, 11) if keeps_sample(number, planned=10, keep=2, window=3)]
    [6, 9]
    """
    windows, within = divmod(collected, window)
    in_all = planned // window
    return within == 0 and windows * keep // in_all > (windows - 1) * keep // in_all


def _norms(model: Chain, theta: Tensor) -> dict[str, float]:
    """Root mean square of each layer's weights; x is the data layer."""
    named = zip(["x", *(f"z{i}" for i in range(1, len(model.layers)))], model.unflatten(theta), strict=True)
    weights = {name: torch.cat([tensor.reshape(-1) for tensor in params.values()]) for name, params in named if params}
    return {name: vector.double().square().mean().sqrt().item() for name, vector in weights.items()}


def _predicted(method: Method, theta: Tensor, rows: int = 100) -> dict[str, float]:
    drawn = method.model.sample(theta, rows, generator(theta.device, method.seed, "predicted"))[0].double()
    return {"mean": drawn.mean().item(), "spread": drawn.mean(1).std().item()}
