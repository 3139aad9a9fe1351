"""One chain for an array: its weights sampled, with smaller steps where it diverges, and proposals fitted to them."""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import Diverged
from doubly.core.random import generator
from doubly.kernels.noise import normal
from doubly.runs.build import Facts, build
from doubly.runs.config import Config
from doubly.runs.fit import use_threads
from doubly.runs.progress import Progress
from doubly.training import protocol
from doubly.training.refit import refit
from doubly.training.state import finished, init, planned

ATTEMPTS = 8  # with steps that fall by a third each time, 0.05 ends below 1e-4 and 0.001 below 1e-6


class Sampled(NamedTuple):
    """What a chain came to."""

    config: Config
    mean: Tensor
    samples: Tensor
    proposals: Tensor
    """The mean's, then where all samples answer, each sample's."""
    history: list[dict[str, Any]]


class Plan(NamedTuple):
    """How a chain is run, beside its settings."""

    facts: Facts
    blur: float
    """Noise added to the rows, anew in each epoch."""
    refit: int
    """Passes that fit the proposals."""
    ensemble: bool
    """Whether all samples answer, so that each needs a proposal."""
    retry: bool
    """Whether a smaller step may be tried."""


def sample_weights(config: Config, plan: Plan, rows: Tensor, valid: Tensor, progress: Progress) -> Sampled:
    """Run the chain, with smaller steps when it diverges, and fit proposals to what it collected."""
    with use_threads(config.threads):
        for attempt in range(ATTEMPTS):
            try:
                return run_chain(config, plan, rows, valid, progress)
            except Diverged:
                if not plan.retry or config.step == "auto" or attempt + 1 == ATTEMPTS:
                    raise
                progress.say(f"the chain diverged with step {config.step:.2g}: once more with a third of it")
                config = dataclasses.replace(config, step=config.step / 3)
    raise AssertionError("the last attempt returns or raises")


def run_chain(config: Config, plan: Plan, rows: Tensor, valid: Tensor, progress: Progress) -> Sampled:
    """One attempt."""
    method, rng = build(config, plan.facts), generator("cpu", config.seed, "blur")
    seen = _blurred(rows, plan.blur, rng)
    state = init(method, seen)
    samples: list[Tensor] = []
    history: list[dict[str, Any]] = []
    for state, record in protocol.fit(method, seen, valid, state):  # noqa: B020 - each state comes from the last
        if record is None:
            continue
        number = state.collected
        if number and protocol.keeps_sample(number, planned(method, state, len(rows)), config.keep):
            samples.append(state.theta.theta.clone())
        history.append({name: getattr(record, name) for name in ("epoch", "phase", "train", "valid")})
        last = finished(method, state)
        line = f"epoch {record.epoch} of at most {config.epochs}  valid {record.valid:.3f}  {record.phase}"
        progress.show(line, last)
        if plan.blur and not last:
            seen.copy_(_blurred(rows, plan.blur, rng))
    mean = state.mean.float()
    answering = [mean, *(samples if plan.ensemble else [])]
    proposals = []
    for i, theta in enumerate(answering):
        progress.show(f"fitting proposal {i + 1} of {len(answering)}")
        proposals.append(refit(method, theta, state.phi.theta, seen, plan.refit))
    return Sampled(config, mean, torch.stack(samples), torch.stack(proposals), history)


def _blurred(rows: Tensor, blur: float, rng: torch.Generator) -> Tensor:
    return rows + blur * normal(rows.shape, rng) if blur else rows
