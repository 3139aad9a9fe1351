"""Where the time of a training step goes: its phases, measured on the data and the settings of a fit."""

import cProfile
import dataclasses
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from doubly.analysis.results import Result
from doubly.core.errors import UserError
from doubly.core.rows import StoredRows
from doubly.data import load
from doubly.kernels.choose import compiling
from doubly.latents import nais
from doubly.layers.chain import Chain, ChainVJP
from doubly.runs.build import build, training_rows
from doubly.runs.config import Config
from doubly.runs.fit import check_device, enough_threads, use_threads
from doubly.training.method import Method
from doubly.training.state import init
from doubly.training.step import batches, rows_at, step

WARM_UP = 5  # steps before time is taken: the first ones compile kernels


@dataclass(frozen=True)
class Phase:
    """Part of a step: milliseconds, and their share of the whole."""

    name: str
    milliseconds: float
    share: float


@dataclass(frozen=True)
class Profile(Result):
    """A step in parts. A phase counts both estimates, that for the weights and that for the proposal."""

    milliseconds: float
    """Of one whole step, measured without the profiler."""
    phases: list[Phase]
    weights: int
    threads: int

    def text(self) -> str:
        lines = [f"{self.milliseconds:.2f} ms a step: {self.weights} weights, {self.threads} threads"]
        lines += [f"{phase.name:24}{phase.milliseconds:9.2f} ms{phase.share:7.0%}" for phase in self.phases]
        return "\n".join(lines)


def profile(config: Config, steps: int = 100) -> Profile:
    """Take so many steps with these settings, once for their time and once for their phases."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}")
    check_device(config.device)
    data = load(config.data, binarise=config.binarise)
    method = build(dataclasses.replace(config, warmup=0), data)  # a step of the sampler, not of Adam
    threads = config.threads or enough_threads(method, config.draws)
    train = training_rows(data, config.device)
    with use_threads(threads), compiling(config.compile):
        take = _steps(method, train)
        take(WARM_UP)
        start = time.perf_counter()
        take(steps)
        whole = (time.perf_counter() - start) / steps
        watch = cProfile.Profile()
        watch.runcall(take, steps)
    return Profile(1e3 * whole, _phases(method, pstats.Stats(watch), whole), method.model.size, threads)


def _steps(method: Method, train: torch.Tensor | StoredRows) -> Callable[[int], None]:
    state = init(method, train)

    def take(steps: int) -> None:
        nonlocal state
        for i in range(steps):
            if i % method.theta_steps == 0:
                index = batches(torch.randperm(len(train), generator=state.rng), method.batch)[0]
                x = rows_at(method, train, index, state.rng)
            state = step(method, state, x, index, len(train))
        if train.device.type == "cuda":
            torch.cuda.synchronize()

    return take


def _phases(method: Method, stats: Any, whole: float) -> list[Phase]:
    """Each phase by the functions that do its work; these functions do not call each other."""
    prior = method.prior.given(method.prior.init(method.model.groups), method.model.groups)
    functions: dict[str, list[Callable[..., Any]]] = {
        "draw from the proposal": [Chain.draw, Chain.draw_vjp],
        "log p": [Chain.log_prob, Chain.log_prob_vjp],
        "backward": [nais._gradients, ChainVJP.vjp],
        "estimator, the rest": [type(method.estimator).__call__],
        "sampler": [type(method.sampler).ask, type(method.sampler).tell],
        "prior": [type(prior).added, type(method.prior).update],
        "proposal's optimiser": [type(method.optimiser).tell],
    }
    if type(method.sampler) is type(method.optimiser):
        del functions["sampler"]
    seconds = {name: sum(_cumulative(stats, function) for function in found) for name, found in functions.items()}
    inner = sum(seconds[name] for name in ("draw from the proposal", "log p", "backward"))
    seconds["estimator, the rest"] -= inner
    total = stats.total_tt
    seconds["all else"] = total - sum(seconds.values())
    return [Phase(name, 1e3 * whole * spent / total, spent / total) for name, spent in seconds.items()]


def _cumulative(stats: Any, function: Callable[..., Any]) -> float:
    code = function.__code__
    found: float = stats.stats.get((code.co_filename, code.co_firstlineno, code.co_name), (0, 0, 0.0, 0.0))[3]
    return found
