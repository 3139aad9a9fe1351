"""Driving a fit: between the training loop and the run folder, with progress, checkpoints and clean stops."""

import dataclasses
import math
import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from doubly.runs import presets, sources
from doubly.runs.config import MOST_THREADS, Config, from_dict
from doubly.runs.build import build
from doubly.data import Data, absolute, load, missing_mask, unscaled
from doubly.core.errors import UserError
from doubly.kernels.choose import compiling
from doubly.posterior.store import Posterior
from doubly.runs.progress import Progress, span
from doubly.runs.folder import Run
from doubly.core.files import locked
from doubly.training.method import Method, latest_start, samples_per_epoch
from doubly.training.protocol import Record
from doubly.training.state import State, finished, healthy, init, planned
from doubly.training.protocol import fit as train_fit

# multiplications in a step below which one thread is as fast as two, and not upset by a busy neighbour
SHARED_WORK = 20_000_000


class Interrupted(KeyboardInterrupt):
    """Work stopped by a signal, after what it had come to was written down."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number


def fit(
    out: str | Path, *, preset: str | None = None, overwrite: bool = False, quiet: bool = False, **fields: Any
) -> Run:
    """Learn a model into the run folder `out`; the other arguments are the fields of `Config`.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/run"
    >>> run = fit(folder, data="bars", hidden=(8,), epochs=2, collect=1, theta_steps=1, quiet=True)
    >>> run.posterior().sample(3).shape
    (3, 16)
    """
    return fit_config(
        presets.preset(preset, **fields) if preset else from_dict(fields), out, overwrite, quiet
    )


def fit_config(
    config: Config, out: str | Path, overwrite: bool = False, quiet: bool = False, until: float = math.inf
) -> Run:
    """Learn a model by these settings into the run folder `out`, or what is learnt until then (`time.monotonic`)."""
    check_device(config.device)
    config = dataclasses.replace(config, data=absolute(config.data))
    data = load(config.data, binarise=config.binarise)
    method = build(config, data)  # what is wrong with the settings shows here, before a folder is made
    config = dataclasses.replace(config, threads=config.threads or enough_threads(method, config.draws))
    config = sources.pinned(config)
    with Run.create(out, config, data, overwrite) as run, use_threads(config.threads), compiling(config.compile):
        return _drive(run, data, method, quiet, until)


def resume(path: str | Path, quiet: bool = False, threads: int = 0, until: float = math.inf) -> Run:
    """Go on with a run that was stopped, as if it had not been; other threads change the last bits."""
    run = Run(path)
    check_device(run.config.device)
    data = run.data()
    with locked(run.path), use_threads(threads or run.config.threads), compiling(run.config.compile):
        return _drive(run, data, build(run.config, data), quiet, until)


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Compute with so many threads, then with as many as before."""
    if not 0 < number <= MOST_THREADS:
        raise UserError(f"threads must be between 1 and {MOST_THREADS}, got {number}")
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def open_posterior(path: str | Path, **options: Any) -> Posterior:
    """What the run in this folder has learnt."""
    return Run(path).posterior(**options)


def _drive(run: Run, data: Data, method: Method, quiet: bool, until: float) -> Run:
    config = run.config
    train = torch.as_tensor(data.train).to(config.device)
    valid = torch.as_tensor(data.valid).to(config.device)
    with Progress(quiet) as progress, stop_signal() as stopped:
        _warn_of_crowding(progress)
        for line in sources.changed(run.path):
            progress.say(line)
        state = run.restore(method) or init(method, train)
        run.forget_after(state.epoch)
        if finished(method, state):
            progress.say(f"{run.path} is finished after {state.epoch} epochs: nothing to do")
            return run
        _note_missing(progress, data)
        _warn_of_scale(progress, data)
        if method.collect and not planned(method, state._replace(began=latest_start(method, len(train))), len(train)):
            raise UserError(
                f"collect_every {config.collect_every} gives no sample in {config.epochs} epochs: raise epochs"
            )
        watch = _Watch(method, len(train), state)
        keeper = _Keeper(run, method, len(train), state.collected)
        saved_at, began = time.monotonic(), time.monotonic()
        for state, record in train_fit(method, train, valid, state):  # noqa: B020 - each state comes from the last
            now = time.monotonic()
            keeper.see(state)
            if record:
                run.log(record._asdict() | {"seconds": round(now - began, 3)})
                began = now
            done = finished(method, state)
            progress.show(watch.line(state, record), last=done)
            due = record is not None and state.epoch % config.checkpoint_epochs == 0
            over = record is not None and now >= until
            wanted = due or done or stopped or over or now - saved_at >= 60 * config.checkpoint_minutes
            if wanted and healthy(state):  # the epoch's end will say if it is not
                run.save(state)
                saved_at = time.monotonic()
            if stopped and not done:
                where = f"in epoch {state.epoch + 1} after mini-batch {state.batch}"
                line = f"stopped {where}, all saved; go on with: doubly resume {shlex.quote(str(run.path))}"
                raise Interrupted(line, stopped[0])
            if over:
                break
    return run


class _Keeper:
    """Writes down what is kept of the samples: single ones or averages over windows, and means of the first so many.

    The number to come is known when the first is there, so those kept are spaced evenly and none is thrown away later.
    """

    def __init__(self, run: Run, method: Method, n_data: int, collected: int):
        self._run, self._method, self._n_data, self._collected = run, method, n_data, collected
        self._keep = min(run.config.keep, int(run.config.keep_mb * 2**20 / (4 * max(1, method.model.size))))

    def see(self, state: State) -> None:
        """Keep what this state is the first to have."""
        if state.collected == self._collected:
            return
        self._collected = state.collected
        if state.collected in self._run.config.means:
            self._run.keep_mean(state.collected, state.mean.float())
        windows, within = divmod(state.collected, self._method.window)
        in_all = planned(self._method, state, self._n_data) // self._method.window
        if within == 0 and windows * self._keep // in_all > (windows - 1) * self._keep // in_all:
            self._run.keep(state.collected, state.window.float())


class _Watch:
    """Words for where a fit stands: epoch, speed, time left, validation."""

    def __init__(self, method: Method, n_data: int, state: State):
        self._method = method
        self._n_data = n_data
        self._batches = math.ceil(n_data / method.batch)
        self._started = time.monotonic()
        self._first = self._done(state)
        self._valid = "valid -"

    def line(self, state: State, record: Record | None) -> str:
        if record:
            self._valid = f"valid {record.valid:.3f}" + (f" ± {record.valid_stderr:.3f}" if record.valid_stderr else "")
        speed = (self._done(state) - self._first) / max(time.monotonic() - self._started, 1e-9)
        if state.began is not None:
            in_all = planned(self._method, state, self._n_data)
            phase = f"collecting {state.collected}/{in_all}"
            left = math.ceil((in_all - state.collected) / samples_per_epoch(self._method, self._n_data))
            bound = ""
        else:
            phase = f"no better for {state.stale} of {self._method.patience} epochs" if state.stale else "rising"
            left = self._method.epochs - state.epoch
            bound = "at most "
        left = min(left, self._method.epochs - state.epoch)
        seconds = (left * self._batches - state.batch) / max(speed, 1e-9)
        steps = speed * self._method.theta_steps
        return (
            f"epoch {state.epoch + (record is None)}  {steps:.0f} steps/s  {bound}{span(seconds)} left  "
            f"{self._valid}  {phase}"
        )

    def _done(self, state: State) -> int:
        return state.epoch * self._batches + state.batch


@contextmanager
def stop_signal() -> Iterator[list[int]]:
    """A list that receives the number of a signal that asks to stop; a second one stops at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may set handlers
        return

    def note(number: int, frame: Any) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def enough_threads(method: Method, draws: int) -> int:
    """All the threads PyTorch would use, or one where a step is too little work to share."""
    multiplications = (method.model.size + method.proposal.size) * method.batch * draws
    return _cores() if multiplications > SHARED_WORK else 1


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).item()  # the meta device has no numbers to give
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {device!r} cannot be used here ({reason}); try cpu") from None


def _note_missing(progress: Progress, data: Data) -> None:
    missing = missing_mask(data.train)
    if missing.any():
        empty = int(missing.all(1).sum())
        rest = f"; {empty} rows have no value at all and teach nothing" if empty else ""
        progress.say(f"{missing.mean():.1%} of the training cells are missing and left out of the likelihood{rest}")


def _warn_of_scale(progress: Progress, data: Data) -> None:
    number = 0 if data.kind == "binary" else int(unscaled(data.train).sum())
    if number:
        rest = "see doubly data check; scale them, or take DeepGenerativeModel, which does"
        progress.say(f"warning: {number} of {data.width} columns are far from mean 0 and standard deviation 1: {rest}")


def _warn_of_crowding(progress: Progress) -> None:
    """A core that something else keeps busy makes threads wait for each other: ten times slower is not rare."""
    number, cores = torch.get_num_threads(), _cores()
    free = max(1, cores - round(os.getloadavg()[0]))
    if number > free:
        progress.say(f"warning: {number} threads, but only {free} of {cores} cores look free; try --threads {free}")
