"""Training: one step, one epoch, and the paper's protocol of when to stop and when to collect.

`Method` is all that stays fixed in a run, `State` all that moves. `fit` is a generator: it yields the state after every
mini-batch, so that whoever drives it can stop anywhere, save the state, and go on from it bit for bit.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from doubly.errors import Diverged, UserError
from doubly.inference import Estimate, Estimator, Memory, Visit, Wanted
from doubly.kernels.noise import generator
from doubly.model import Chain
from doubly.priors import Flat, Prior
from doubly.samplers import Adam, Sampler
from doubly.schedules import Constant, Schedule

WIDENED = 2**16  # cells of the training rows that are double numbers at a time


@dataclass(frozen=True)
class Method:
    """What is learnt and how."""

    model: Chain
    proposal: Chain
    prior: Prior
    sampler: Sampler
    estimator: Estimator
    optimiser: Sampler
    refitter: Estimator
    """What fits a copy of the proposal to weights that stand still."""
    schedule: Schedule = field(default_factory=Constant)
    phi_schedule: Schedule = field(default_factory=Constant)
    phi_prior: Prior = field(default_factory=Flat)
    step: float = 0.005
    phi_step: float = 3e-4
    batch: int = 100
    theta_steps: int = 10
    phi_steps: int = 1
    resample: bool = False
    phi_first: bool = False
    warmup: int = 0
    warmup_step: float = 1e-3
    valid_draws: int = 100
    patience: int = 10
    min_epochs: int = 10
    epochs: int = 1000
    collect: int = 100
    collect_every: "Every" = field(default_factory=lambda: Every(1, "epoch"))
    window: int = 1
    dynamic: bool = False
    """Whether the training rows are greys from 0 to 255, whose bits are drawn anew whenever they are used."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("step", "phi_step", "warmup_step"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be positive and finite, got {getattr(self, name)}")
        for name in ("batch", "theta_steps", "valid_draws", "epochs", "window"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("phi_steps", "patience", "min_epochs", "collect", "warmup"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.collect and self.warmup >= self.epochs:
            raise UserError(
                f"a warm-up of {self.warmup} epochs leaves none of {self.epochs} to sample: "
                "raise epochs or shorten warmup"
            )
        if self.collect and self.window > self.collect:
            raise UserError(f"a window of {self.window} samples is never full with {self.collect}: raise collect")


class Every(NamedTuple):
    """How often a sample is collected."""

    number: int
    unit: Literal["epoch", "step"]

    @classmethod
    def parse(cls, text: str) -> "Every":
        """From a number of epochs or of steps of the sampler.

        >>> Every.parse("2"), Every.parse("50 steps")
        (Every(number=2, unit='epoch'), Every(number=50, unit='step'))
        """
        found = re.fullmatch(r"(\d+) *(epoch|step|)s?", text.strip())
        if not found or int(found[1]) < 1:
            raise UserError(
                f"collect_every must be a number of epochs or steps, as in 1, 2epochs or 50steps, got {text!r}"
            )
        return cls(int(found[1]), "step" if found[2] == "step" else "epoch")


class State(NamedTuple):
    """All that moves: vectors and numbers, and the generator (which is advanced in place)."""

    theta: Any
    """The sampler's state; its first field is the weights of the model."""
    phi: Any
    """The optimiser's state; its first field is the weights of the proposal."""
    memory: Memory
    """What the estimator remembers."""
    rng: torch.Generator
    order: Tensor
    """The order of the rows in this epoch."""
    totals: Tensor
    """Sums over the steps of this epoch: what `Record` reports of them, and the largest gradient."""
    mean: Tensor
    """The mean of the samples collected so far, in double precision."""
    window: Tensor
    """The mean of those in the window that is under way."""
    epoch: int = 0
    """Epochs finished."""
    batch: int = 0
    """Mini-batches done in the epoch that is under way."""
    inner: int = 0
    """Steps done on the mini-batch that is under way."""
    waited: int = 0
    """Epochs or steps since the last sample."""
    best: float = -math.inf
    """The best validation log-likelihood of the epochs that were watched before collecting started."""
    stale: int = 0
    """Epochs since then."""
    collected: int = 0
    began: int | None = None
    """Epochs finished when collecting started."""


class Record(NamedTuple):
    """What one epoch came to; log-likelihoods are means over rows, in nats."""

    epoch: int
    phase: str
    train: float
    effective: float
    valid: float
    valid_stderr: float | None
    largest_gradient: float
    collected: int
    sampler: dict[str, float]
    norms: dict[str, float]
    """Root mean square of the weights of each layer."""
    predicted: dict[str, float]
    """Of rows drawn from the model: the mean of a cell, and the spread of the rows' own means."""


def init(method: Method, x: Tensor) -> State:
    """The state from which a run on the training rows x starts."""
    rng = generator(x.device, method.seed, "chain")
    theta = method.model.init(rng, moments(method, x).mean)
    phi = method.proposal.init(rng)
    return State(
        theta=mover(method, 0).sampler.init(theta, rng),
        phi=method.optimiser.init(phi, rng),
        memory=method.estimator.init(method.model, len(x), rng),
        rng=rng,
        order=torch.zeros(0, dtype=torch.int64, device=x.device),
        totals=torch.zeros(4, dtype=torch.float64, device=x.device),
        mean=torch.zeros(theta.shape, dtype=torch.float64, device=x.device),
        window=torch.zeros(theta.shape, dtype=torch.float64, device=x.device),
        began=0 if latest_start(method, len(x)) == 0 else None,
    )


class Moments(NamedTuple):
    """The mean and the spread of each column."""

    mean: Tensor
    spread: Tensor


def moments(method: Method, x: Tensor) -> Moments:
    """Of the training rows x, those cells that are there."""
    total = square = known = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for block in x.split(max(1, WIDENED // x.shape[1])):  # all rows are never widened at once
        holes = block.isnan()
        values = block.masked_fill(holes, 0)
        total = total + values.sum(0, dtype=torch.float64)
        square = square + values.double().square().sum(0)
        known = known + (~holes).sum(0)
    white = 255 if method.dynamic else 1
    spread = (square / known - (total / known) ** 2).clamp(min=0).sqrt()
    return Moments((total / (known * white)).float(), (spread / white).float())


class Mover(NamedTuple):
    """What moves the weights at some time, and by which step."""

    sampler: Sampler
    step: float


def mover(method: Method, time: float) -> Mover:
    """After `time` epochs: Adam while warming up, then the sampler with its step as scheduled."""
    if time < method.warmup:
        return Mover(Adam(), method.warmup_step)
    return Mover(method.sampler, method.step * method.schedule(time - method.warmup))


def step(method: Method, state: State, x: Tensor, index: Tensor, n_data: int) -> State:
    """Move theta, then phi, on one mini-batch x, whose rows stand at `index` in the training data."""
    theta, phi, memory, rng = state.theta, state.phi, state.memory, state.rng
    time = state.epoch + state.batch / math.ceil(n_data / method.batch)
    sampler, size = mover(method, time)
    eta = sampler.eta(size, n_data)
    phi_eta = method.optimiser.eta(method.phi_step * method.phi_schedule(time), n_data)
    phi_steps = method.phi_steps if method.proposal.layers else 0
    shared = phi_steps > 0 and not (method.resample or method.phi_first)

    def estimate(wanted: Wanted) -> Estimate:  # at the present theta and phi
        visit = Visit(method.model, theta.theta, method.proposal, phi.theta, x, index, memory, rng)
        return method.estimator(visit, wanted)

    def climb_phi(grad: Tensor) -> None:
        nonlocal phi
        grad = method.phi_prior.added(phi.theta, grad, 1 / n_data)
        phi = method.optimiser.tell(method.optimiser.ask(phi, phi_eta, rng), grad, phi_eta, rng)

    for _ in range(phi_steps if method.phi_first else 0):
        found = estimate("phi")
        memory = found.memory
        climb_phi(found.phi_grad)
    theta = sampler.ask(theta, eta, rng)
    found = estimate("both" if shared else "theta")
    memory = found.memory
    grad = method.prior.added(theta.theta, n_data * found.theta_grad)
    theta = sampler.tell(theta, grad, eta, rng)
    totals = _add(state.totals, len(x), found.stats, grad)
    for i in range(0 if method.phi_first else phi_steps):
        if not shared or i > 0:
            found = estimate("phi")
            memory = found.memory
        climb_phi(found.phi_grad)
    return state._replace(theta=theta, phi=phi, memory=memory, totals=totals)


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


def rows_at(method: Method, train: Tensor, index: Tensor, rng: torch.Generator) -> Tensor:
    """Some of the training rows, which are kept as bytes and widened as they are used."""
    rows = train[index].float()
    return torch.bernoulli(rows / 255, generator=rng) if method.dynamic else rows


def batches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """The rows in mini-batches of at most that size, all as long as each other but for one row.

    A short last batch would be as right in the mean, but its noise would heat the chain just before a sample is taken.
    """
    return order.tensor_split(math.ceil(len(order) / size))


def finished(method: Method, state: State) -> bool:
    """Whether the protocol has come to its end, which is the end of an epoch."""
    enough = state.began is not None and state.collected >= method.collect
    return state.batch == state.inner == 0 and (enough or state.epoch >= method.epochs)


def wait_again(state: State) -> State:
    """Forget the samples and wait anew for validation to level off; the chain itself goes on as it is."""
    none = torch.zeros_like(state.mean)
    return state._replace(mean=none, window=none.clone(), waited=0, stale=0, collected=0, began=None)


def planned(method: Method, state: State, n_data: int) -> int:
    """How many samples there will be in the end, once collecting has started."""
    if state.began is None:
        return 0
    return min(method.collect, math.floor((method.epochs - state.began) * samples_per_epoch(method, n_data)))


def latest_start(method: Method, n_data: int) -> int:
    """The epoch after which samples are collected even if validation still rises.

    It is so early that `collect` samples fit in before `epochs` run out, or if that many never fit, half of the epochs;
    but never before the warm-up is over, which is no sampling.
    """
    wanted = math.ceil(method.collect / samples_per_epoch(method, n_data))
    return max(method.warmup, method.epochs - wanted if wanted < method.epochs else method.epochs // 2)


def watched_from(method: Method) -> int:
    """The first epoch whose validation counts for the levelling off.

    Single draws are worse than the mode in which a warm-up ends, and it takes the chain some epochs to get there:
    neither the mode nor what lies on the way from it is a mark for them to reach.
    """
    return method.warmup + method.patience if method.warmup else 1


def samples_per_epoch(method: Method, n_data: int) -> Fraction:
    """How many samples an epoch gives once collecting has started."""
    steps = math.ceil(n_data / method.batch) * method.theta_steps if method.collect_every.unit == "step" else 1
    return Fraction(steps, method.collect_every.number)


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


def healthy(state: State) -> bool:
    """Whether all is still a number; the state of a chain that has diverged is worth nothing."""
    vectors = [value for value in (*state.theta, *state.phi, state.totals) if isinstance(value, Tensor)]
    return all(bool(torch.isfinite(vector).all()) for vector in vectors)


def _end_epoch(method: Method, state: State, valid: Tensor, n_data: int) -> tuple[State, Record]:
    """Validate on a generator of its own, then collect a sample or watch for the levelling off."""
    rows_seen, train, effective, largest = state.totals.tolist()
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
        method.model, theta, method.proposal, state.phi.theta, valid, method.valid_draws, rng
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
        effective=effective / rows_seen,
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


def _norms(model: Chain, theta: Tensor) -> dict[str, float]:
    """Root mean square of each layer's weights; x is the data layer."""
    named = zip(["x", *(f"z{i}" for i in range(1, len(model.layers)))], model.unflatten(theta), strict=True)
    weights = {name: torch.cat([tensor.reshape(-1) for tensor in params.values()]) for name, params in named if params}
    return {name: vector.double().square().mean().sqrt().item() for name, vector in weights.items()}


def _predicted(method: Method, theta: Tensor, rows: int = 100) -> dict[str, float]:
    drawn = method.model.sample(theta, rows, generator(theta.device, method.seed, "predicted"))[0].double()
    return {"mean": drawn.mean().item(), "spread": drawn.mean(1).std().item()}


def _add(totals: Tensor, n: int, stats: dict[str, Tensor], grad: Tensor) -> Tensor:
    """Add one step on n rows to an epoch's totals, without waiting for the device."""
    low, high = torch.aminmax(grad)
    finite = torch.nan_to_num(torch.maximum(high, -low), nan=0.0)
    sums = totals[:3].add(torch.stack([torch.ones_like(finite), stats["train"], stats["effective"]]), alpha=n)
    return torch.cat([sums, torch.maximum(totals[3:], finite)])


def stderr(rows: Tensor) -> float | None:
    """The standard error of a mean over rows; None for a single one."""
    return (rows.double().std() / math.sqrt(len(rows))).item() if len(rows) > 1 else None
