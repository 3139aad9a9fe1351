"""The paper's protocol: epochs, validation, when to stop and when to collect.

`fit` is a generator: it yields the state after every mini-batch, so that its caller can stop anywhere, save the state,
and go on from it bit for bit.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import Diverged
from doubly.core.random import generator
from doubly.core.statistics import stderr
from doubly.latents.pair import Pair
from doubly.layers.chain import Chain
from doubly.training.method import Method, latest_start, mover, watched_from
from doubly.training.state import State, finished, healthy
from doubly.training.step import batches, rows_at, step


class Record(NamedTuple):
    """What one epoch came to; log-likelihoods are means over rows, in nats."""

    epoch: int
    phase: str
    train: float
    ess: float
    valid: float
    valid_stderr: float | None
    largest_gradient: float
    collected: int
    sampler: dict[str, float]
    norms: dict[str, float]
    """Root mean square of the weights of each layer."""
    predicted: dict[str, float]
    """Of rows drawn from the model: the mean of a cell, and the spread of the rows' own means."""


def fit(method: Method, train: Tensor, valid: Tensor, state: State) -> Iterator[tuple[State, Record | None]]:
    """Train to the end of the protocol, yielding the state after every mini-batch and a record after every epoch.

    Where samples are collected in the middle of an epoch, the state is yielded after each of them, too.
    """
    n_data = len(train)
    while not finished(method, state):
        if state.batch == 0:
            order = torch.randperm(n_data, generator=state.rng, device=train.device)
            state = state._replace(order=order, totals=torch.zeros_like(state.totals))
        for index in batches(state.order, method.batch)[state.batch :]:
            x = rows_at(method, train, index, state.rng)
            for _ in range(state.inner, method.theta_steps):
                state = step(method, state, x, index, n_data)
                state = state._replace(inner=state.inner + 1)
                if method.collect_every.unit == "step" and state.began is not None:
                    before, state = state, _wait_or_collect(method, state)
                    if state.collected > before.collected:
                        yield state, None
            state = state._replace(batch=state.batch + 1, inner=0)
            yield state, None
        state, record = _end_epoch(method, state, valid, n_data)
        yield state, record


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


def _end_epoch(method: Method, state: State, valid: Tensor, n_data: int) -> tuple[State, Record]:
    """Validate on a generator of its own, then collect a sample or watch for the levelling off."""
    rows_seen, train, ess, largest = state.totals.tolist()
    theta, epoch = state.theta.theta, state.epoch + 1
    if not healthy(state):
        name = "warmup_step" if state.epoch < method.warmup else "step"
        size = getattr(method, name)
        raise Diverged(
            f"the chain diverged in epoch {epoch}: the largest gradient was {largest:.3g} "
            f"with {name} {size:g}; try {name} {size / 3:.2g}"
        )
    rng = generator(valid.device, method.seed, "valid")  # the same draws every epoch make epochs comparable
    rows = method.estimator.validate(
        Pair(method.model, theta, method.proposal, state.phi.theta), valid, method.valid_draws, rng
    )
    score, spread = rows.log_likelihood.double().mean().item(), stderr(rows.log_likelihood)
    collects = state.began is not None
    if collects and method.collect_every.unit == "epoch":
        state = _wait_or_collect(method, state)
    elif not collects:
        counts = epoch >= watched_from(method)
        better = counts and score > state.best
        settling = max(method.min_epochs, watched_from(method))
        stale = 0 if better or epoch <= settling else state.stale + 1
        # with nothing to collect, the last epoch is the end, but more of them may be asked for later
        in_time = method.collect > 0 and epoch >= latest_start(method, n_data)
        levelled = (stale >= method.patience and epoch >= settling) or in_time
        state = state._replace(best=score if better else state.best, stale=stale, began=epoch if levelled else None)
    record = Record(
        epoch=epoch,
        phase="collect" if collects else "burn-in",
        train=train / rows_seen,
        ess=ess / rows_seen,
        valid=score,
        valid_stderr=spread,
        largest_gradient=largest,
        collected=state.collected,
        sampler={name: value.item() for name, value in mover(method, state.epoch).sampler.stats(state.theta).items()},
        norms=_norms(method.model, theta),
        predicted=_predicted(method, theta),
    )
    if epoch == method.warmup:
        state = state._replace(theta=method.sampler.init(theta, state.rng))
    return state._replace(epoch=epoch, batch=0), record


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
