"""Fit and resume: training in a run folder, with progress, checkpoints and clean stops."""

import dataclasses
import math
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from doubly.core.errors import Diverged, UserError
from doubly.core.launch import launched, on_this_machine, restarts, usual_shards
from doubly.core.ranks import Ranks, team
from doubly.core.rows import StoredRows
from doubly.data import Data, absolute, missing_mask, unscaled
from doubly.data.files import Options, from_memory
from doubly.kernels.choose import compile_seconds, compiling, forked
from doubly.kernels.threads import set_threads
from doubly.posterior.store import Posterior
from doubly.runs import automatic, chains, presets, sources
from doubly.runs.build import AUTO, build, chosen_estimator, training_rows, with_plan
from doubly.runs.chains import cores
from doubly.runs.config import MOST_THREADS, Config, from_dict
from doubly.runs.export import load_file
from doubly.runs.fields import ConfigFields, documented, signature_with_fields
from doubly.runs.folder import Run
from doubly.runs.plan import Asked, Budget, spent_in
from doubly.runs.progress import Progress, counted
from doubly.runs.race import best_family
from doubly.runs.stops import Interrupted, stop_signal
from doubly.runs.trackers import NOBODY, Listeners, Tracker, numbers
from doubly.runs.trackers import tracker as find_tracker
from doubly.runs.versions import differences
from doubly.runs.watch import Watch
from doubly.samplers.sampler import NEAR
from doubly.training.method import Method, latest_start
from doubly.training.protocol import Record, keeps_sample
from doubly.training.protocol import fit as train_fit
from doubly.training.state import State, finished, healthy, init, own_part, planned, planned_from, whole

# multiplications in a step below which one thread is as fast as two, and not slowed by other programs
SHARED_WORK = 20_000_000
REPLANNED = ("epochs", "collect_every", "threads", "shards")  # what a budget or another number of ranks changes
IN_MEMORY = "a table in memory"  # what a run says of its data, whose rows it has stored


def fit(
    out: str | Path | None = None,
    *,
    preset: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    on_epoch: Callable[[dict[str, Any]], bool | None] | None = None,
    on_sample: Callable[[int, Tensor], bool | None] | None = None,
    tracker: Tracker | str | None = None,
    **fields: Unpack[ConfigFields],
) -> Run:
    """Learn a model into the run folder `out`; the other arguments are the settings of `doubly fit`.

    `data` may also be a table in memory: a DataFrame, names with lists, rows with names, an array, or a `Data`. Its
    rows are stored in the run. Without `out`, the folder is a temporary one that goes away with the `Run`.

    >>> run = fit(data="bars", hidden=(8,), epochs=2, collect=1, theta_steps=1, quiet=True)
    >>> run.posterior().sample(3).shape
    (3, 16)

    out: the run folder to make; a run that is there is replaced only with `overwrite`.
    preset: settings of a whole method by name (`doubly.PRESETS`); arguments given beside it win over them.
    quiet: show no progress.
    on_epoch: called with the record of each epoch (a dictionary); if it returns True, the fit stops and can be resumed.
    on_sample: called with the number of each sample and the weights; if it returns True, the fit stops likewise.
    tracker: where the numbers of each epoch are also sent: tensorboard, mlflow, wandb, or an object with `start(name,
        settings)` and `log(epoch, numbers)`.
    """
    given: dict[str, Any] = dict(fields)
    data = given.get("data", Config.data)
    named = isinstance(data, str | os.PathLike)
    given["data"] = os.fspath(data) if named else IN_MEMORY
    config = presets.preset(preset, **given) if preset else from_dict(given)
    rows = None
    if not named:
        rows = data if isinstance(data, Data) else _from_memory(data, config)
    listeners = Listeners(on_epoch, on_sample, find_tracker(tracker))
    if out is not None:
        return fit_config(config, out, overwrite, quiet, data=rows, listeners=listeners)
    place = tempfile.TemporaryDirectory(prefix="doubly-")
    run = fit_config(config, Path(place.name) / "run", quiet=quiet, data=rows, listeners=listeners)
    run.temporary = place
    return run


fit.__doc__ = documented(fit.__doc__ or "")
fit.__dict__["__signature__"] = signature_with_fields(fit)


def _from_memory(table: Any, config: Config) -> Data:
    """A table read for the model that is named: each column by its kind, unless another data layer was said."""
    mixed = config.model in automatic.REPLACED or config.model.startswith("mixed")
    return from_memory(table, Options(binarise=config.binarise or ""), mixed=mixed)


def fit_config(
    config: Config,
    out: str | Path,
    overwrite: bool = False,
    quiet: bool = False,
    until: float = math.inf,
    data: Data | None = None,
    listeners: Listeners = NOBODY,
    began: float | None = None,
) -> Run:
    """Learn a model by these settings into the run folder `out`; stop early at the time `until` (`time.monotonic`).

    `data` from memory take the place of those that the settings name. A budget of minutes is counted from `began`, or
    from now on; compiling is not counted.
    """
    began, compiled = began or time.monotonic(), compile_seconds()
    check_device(config.device)
    in_memory = data is not None
    if data is None:
        config, data = automatic.read(dataclasses.replace(config, data=absolute(config.data)))
    asked = Asked(config.epochs or None, config.collect_every == AUTO)
    config, notes = _with_family(config, data) if automatic.is_open(config, data) else automatic.settle(config, data)
    config = with_plan(config, len(data.all_train))
    if config.chains == 1:
        config = dataclasses.replace(config, shards=config.shards or usual_shards())
    method = build(config, data)  # wrong settings are refused here, before a folder is made
    config = dataclasses.replace(
        config,
        estimator=chosen_estimator(config, method.model),
        threads=config.threads
        or chains.fair_threads(
            enough_threads(method, config.draws), config.chains if config.chains > 1 else on_this_machine()
        ),
    )
    config = sources.pinned(config)
    if launched() and restarts() and _is_of(config, Path(out)):  # torchrun has started us again
        return resume(out, quiet, until=until, listeners=listeners)
    ranks, created = (
        team(config.device, config.rank_seconds, config.deterministic),
        Run.create(out, config, data, overwrite, in_memory, asked if config.minutes else None),
    )
    how = chains.How(quiet, until, notes=notes)
    budget = Budget(config.minutes, time.monotonic() - began - (compile_seconds() - compiled), *asked)
    if not ranks.first:
        ranks.agreed(None)  # once the first has made the folder
        return _go(Run(out), data, how, budget, listeners, ranks)
    with created as run:
        ranks.agreed(None)
        return _go(run, data, how, budget, listeners, ranks)


def _is_of(config: Config, out: Path) -> bool:
    """Whether a folder is that of a run with these settings: any other is not gone on with, nor is its code executed.

    Code that the settings name themselves was executed when the model was built, and so is that of the run.
    """
    if not (out / "config.json").exists():
        return False
    there = Run(out).config
    return all(getattr(there, name) == value for name, value in vars(config).items() if name not in REPLANNED)


def _go(run: Run, data: Data, how: chains.How, budget: Budget, listeners: Listeners, ranks: Ranks) -> Run:
    """Train from where the run stands: its chains, each in a process of its own, or the one that it is."""
    if run.config.chains > 1:
        return chains.go_on(run, data, run.has_rows, how, listeners, ranks)
    with use_threads(how.threads or run.config.threads), compiling(run.config.compile):
        method = build(run.config, data)
        return _train(run, data, method, how.quiet, how.until, how.notes, budget, listeners, ranks)


def _with_family(config: Config, data: Data) -> automatic.Choice:
    """The family of models that suits rows of bits best: each learns for a short while, and validation decides."""
    train, valid = (torch.as_tensor(rows) for rows in (data.train, data.valid))
    with use_threads(config.threads or 1):
        best, scores = best_family(train, valid, config.seed, config.epochs)
    chosen = {name: getattr(best.config, name) for name in ("model", "hidden", "prior")}
    ranked = ", ".join(f"{name} {score:.3f}" for name, score in sorted(scores.items(), key=lambda item: -item[1]))
    told = f"chosen for these bits: {automatic.told(chosen)} (validation after a short while: {ranked})"
    return automatic.Choice(dataclasses.replace(config, **chosen), (told,))


def resume(
    path: str | Path,
    quiet: bool = False,
    threads: int = 0,
    until: float = math.inf,
    allow_code: bool = False,
    listeners: Listeners = NOBODY,
) -> Run:
    """Go on with a run as if it had never stopped; another number of threads changes the last bits.

    With `allow_code`, code that the run brings along may be executed. A run with a budget of minutes goes on with what
    is left of it.
    """
    run = Run(path, allow_code)
    check_device(run.config.device)
    data = run.data()
    if launched() and run.config.chains == 1 and not run.config.shards > 1:
        raise UserError(f"{path} has no shards that ranks could share: resume it without torchrun")
    config, how = run.config, chains.How(quiet, until, threads)
    ranks = team(config.device, config.rank_seconds, config.deterministic)
    with run.locked() if ranks.first else nullcontext():
        ranks.agreed(None)  # once the first has the lock
        return _go(run, data, how, Budget(run.config.minutes, spent_in(run.metrics()), *run.asked), listeners, ranks)


@contextmanager
def use_threads(number: int) -> Iterator[None]:
    """Compute with this many threads; afterwards with as many as before. Other threads of Python are not concerned."""
    if not 0 < number <= MOST_THREADS:
        raise UserError(f"threads must be between 1 and {MOST_THREADS}, got {number}")
    before = torch.get_num_threads()
    set_threads(1 if forked() else number)
    try:
        yield
    finally:
        set_threads(before)


def load(path: str | Path, allow_code: bool = False, **options: Any) -> Posterior:
    """The posterior that the run in this folder has learnt, or that is in a file of `doubly export`.

    Of a table with columns of several kinds, it takes and gives tables in their own units and words.
    With `allow_code`, code that a run brings along may be executed; a file brings none.
    """
    if Path(path).is_file():
        return load_file(path, **options)
    return Run(path, allow_code).posterior_in_units(**options)


def _train(
    run: Run, data: Data, method: Method, quiet: bool, until: float, notes: tuple[str, ...], budget: Budget,
    listeners: Listeners, ranks: Ranks,
) -> Run:  # fmt: skip
    """Train from the last checkpoint, or from the start, to the end of the protocol or the time `until`."""
    train = training_rows(data, run.config.device)
    valid = torch.as_tensor(data.valid).to(run.config.device)
    with listeners.progress or Progress(quiet or not ranks.first) as progress, stop_signal() as stopped:
        if listeners.progress is None:
            _warn_of_crowding(progress)
        for note in notes:
            progress.say(note)
        for line in sources.changed(run.folder):
            progress.say(line)
        state = _restore(run, method, train, ranks)
        ranks.same((state.epoch, state.batch, state.inner), "step")
        if ranks.first:
            run.migrate(state)
        if changes := list(differences(run.made, torch.get_num_threads())):
            progress.say(
                f"warning: not the same bits as without a stop, for this is computed with {'; '.join(changes)}"
            )
        if finished(method, state):
            progress.say(f"{run.path} is finished after {state.epoch} epochs: nothing to do")
            return run
        _note_missing(progress, data)
        _warn_of_scale(progress, data)
        _check_plan(run.config, method, len(train))
        if listeners.tracker and ranks.first:
            listeners.tracker.start(str(run.path), dataclasses.asdict(run.config))
        watch = Watch(method, len(train), [record["valid"] for record in run.metrics()])
        told = _Told(progress, watch, stopped, until, budget, listeners if ranks.first else NOBODY, ranks)
        _go_on(run, data, method, (train, valid), state, told)
        return run


def _go_on(
    run: Run, data: Data, method: Method, rows: tuple[Tensor | StoredRows, Tensor], state: State, told: "_Told"
) -> None:
    """Train until all is done, or somebody has enough; a chain that diverges is tried again, and plans may change."""
    train, valid = rows
    while not finished(method, state):
        loop = _Loop(run, method, len(train), state, told)
        try:
            for now, record in train_fit(method, train, valid, state, told.ranks):
                state = now
                if loop.ends(now, record):
                    return
                if loop.changed:
                    break
        except Diverged as error:
            state = _retried(run, method, data, train, state.retried + 1, error, told)
            continue
        if loop.changed:  # by the budget: go on by another plan
            if told.ranks.first:
                run.replan(**loop.changed)
            else:
                run.config = dataclasses.replace(run.config, **loop.changed)
            method = build(run.config, data)
            told.watch.follow(method)
            if told.watch.is_first_plan or told.budget.left <= 0:
                told.progress.say(_plan_in_words(run.config, method, len(train), told.budget))


def _plan_in_words(config: Config, method: Method, n_data: int, budget: Budget) -> str:
    if budget.left <= 0:
        return f"the time of {counted(config.minutes, 'minute')} is over: {counted(method.epochs, 'epoch')} in all"
    every = method.collect_every
    return (
        f"plan for {counted(config.minutes, 'minute')}: at most {counted(method.epochs, 'epoch')}; samples "
        f"{counted(every.number, every.unit)} apart, from epoch {latest_start(method, n_data) + 1} on at the latest"
    )


class _Told(NamedTuple):
    """Who is told of each step, and who may end the fit."""

    progress: Progress
    watch: Watch
    stopped: list[int]
    until: float
    budget: Budget
    listeners: Listeners
    ranks: Ranks


def _retried(
    run: Run, method: Method, data: Data, train: Tensor | StoredRows, number: int, error: Diverged, told: _Told
) -> State:
    """The last good state with a third of the step, saved, so that a stop does not bring the larger step back."""
    if number > run.config.retries:
        columns = 0 if data.kind == "binary" else int(unscaled(data.train).sum())
        scale = f"; {columns} columns are far from mean 0 and standard deviation 1: scale them first" if columns else ""
        after = f" (after {run.config.retries} retries, each with a third of the step)" if run.config.retries else ""
        raise Diverged(f"{error}{after}{scale}") from None
    state = _restore(run, method, train, told.ranks)._replace(retried=number)
    if told.ranks.agreed(run.checkpoint.exists()):  # otherwise it starts over, and comes here again
        _save(run, method, state, told.ranks)
    told.progress.say(
        f"{error}; going back to epoch {state.epoch + 1} with a third of the step (retry {number} of "
        f"{run.config.retries})"
    )
    return state


def _restore(run: Run, method: Method, train: Tensor | StoredRows, ranks: Ranks) -> State:
    """The state of the last checkpoint, or a fresh one; records that are newer than it are dropped.

    A rank has the memory of its own shards alone.
    """
    state = run.restore(method) or init(method, train)
    if ranks.first:
        run.forget_after(state.epoch)
    return own_part(state, method.shards, ranks)


def _save(run: Run, method: Method, state: State, ranks: Ranks) -> None:
    """A checkpoint of what all ranks have, at the same step; the first rank writes it, if its numbers are finite."""
    state = whole(state, method.shards, ranks)
    if ranks.first and healthy(state):  # if it is not, the end of the epoch will say so
        run.save(state)


def _check_plan(config: Config, method: Method, n_data: int) -> None:
    """Samples that were asked for must have time to be collected."""
    latest = latest_start(method, n_data)
    if method.collect and not planned_from(method, latest, n_data):
        raise UserError(f"collect_every {config.collect_every} gives no sample in {config.epochs} epochs: raise epochs")


class _Loop:
    """What happens around each step of training: samples, records, progress, checkpoints and stops."""

    def __init__(self, run: Run, method: Method, n_data: int, state: State, told: _Told):
        self._run, self._method, self._n_data, self._told = run, method, n_data, told
        self._keeper = _Keeper(run, method, n_data, state.collected)
        self._collected = state.collected
        self._saved_at = self._epoch_began = time.monotonic()
        self._compiled = compile_seconds()
        self._enough = False  # whether a listener has said so within the epoch
        self.changed: dict[str, Any] = {}
        """Settings of another plan, by which to go on."""

    def ends(self, state: State, record: Record | None) -> bool:
        """Take note of a new state, with the record of an epoch if one has just ended; True if it is time to end."""
        now, done, ranks = time.monotonic(), finished(self._method, state), self._told.ranks
        over = record is not None and now >= self._told.until
        if ranks.first:
            self._keeper.see(state)
        enough = self._tell(state, record, now)
        if record is not None:  # what depends on time, or on the user's functions, the first rank decides
            over, enough, self.changed = ranks.agreed((over, enough, self.changed))
        ranks.wish_stop = ranks.wish_stop or bool(self._told.stopped)
        ranks.wish_save = ranks.wish_save or (ranks.first and self._is_late(now))
        save, stopped = ranks.heard
        done = done or (self.changed.get("epochs") == state.epoch)
        self._told.watch.show(self._told.progress, state, record, done, self._told.budget.left)
        if done and ranks.first:
            _tell_temperature(self._told.progress, self._method, self._run.metrics())
        if done or over or enough or stopped or self.changed or save or self._is_due(state, record):
            self._save(state)
        if stopped and not done:
            raise Interrupted(
                f"stopped in epoch {state.epoch + 1} after mini-batch {state.batch}, all saved; "
                f"go on with: doubly resume {shlex.quote(str(self._run.path))}",
                self._told.stopped[0] if self._told.stopped else signal.SIGTERM,
            )
        return over or enough if record is not None or ranks.size == 1 else False

    def _tell(self, state: State, record: Record | None, now: float) -> bool:
        """Log the epoch, tell the listeners, and look at the budget; True if a listener has enough."""
        enough, listeners = False, self._told.listeners
        if state.collected > self._collected:
            self._collected = state.collected
            if listeners.on_sample:
                enough = listeners.on_sample(state.collected, state.theta.theta.clone()) is True
        if record is None:
            self._enough = self._enough or enough
            return enough
        if not self._told.ranks.first:
            return False
        seconds = round(now - self._epoch_began, 3)
        compiled = compile_seconds() - self._compiled
        self._epoch_began, self._compiled = now, self._compiled + compiled
        logged = record._asdict() | {"seconds": seconds} | ({"retried": state.retried} if state.retried else {})
        self._run.log(logged)
        self.changed = self._told.budget.look(self._method, state, seconds - compiled, self._n_data)
        if listeners.tracker:
            listeners.tracker.log(record.epoch, numbers(logged))
        if listeners.on_epoch:
            enough = listeners.on_epoch(logged) is True or enough
        return enough or self._enough

    def _is_due(self, state: State, record: Record | None) -> bool:
        """Whether a checkpoint is due by epochs."""
        return record is not None and state.epoch % self._run.config.checkpoint_epochs == 0

    def _is_late(self, now: float) -> bool:
        """Whether a checkpoint is due by minutes."""
        return now - self._saved_at >= 60 * self._run.config.checkpoint_minutes

    def _save(self, state: State) -> None:
        _save(self._run, self._method, state, self._told.ranks)
        self._saved_at = time.monotonic()
        self._told.ranks.wish_save = False


class _Keeper:
    """Writes samples to disk: single ones or averages over windows, and means of the first samples.

    When the first sample is there, the number of all is known. So those on disk are evenly spaced, and none is deleted
    later.
    """

    def __init__(self, run: Run, method: Method, n_data: int, collected: int):
        self._run, self._method, self._n_data, self._collected = run, method, n_data, collected
        self._keep = min(run.config.keep, int(run.config.keep_mb * 2**20 / (4 * max(1, method.model.size))))

    def see(self, state: State) -> None:
        """Write what is new in this state."""
        if state.collected == self._collected:
            return
        self._collected = state.collected
        if state.collected in self._run.config.means:
            self._run.keep_mean(state.collected, state.mean.float())
        in_all = planned(self._method, state, self._n_data)
        if keeps_sample(state.collected, in_all, self._keep, self._method.window):
            self._run.keep(state.collected, state.window.float())


def enough_threads(method: Method, draws: int) -> int:
    """All cores, or one where a step is too little work to share."""
    multiplications = (method.model.size + method.proposal.size) * method.batch * draws
    return cores() if multiplications > SHARED_WORK else 1


def check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device).item()  # the meta device has no numbers to give
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device {device!r} cannot be used here ({reason}); try cpu") from None


def _tell_temperature(progress: Progress, method: Method, records: list[dict[str, Any]]) -> None:
    """The kinetic temperature over the epochs in which samples were collected, with a warning if it is off."""
    expected = method.sampler.expected_temperature()
    watched = [record["sampler"]["temperature"] for record in records
               if record["phase"] == "collect" and "temperature" in record["sampler"]]  # fmt: skip
    if expected is None or not watched:
        return
    mean = sum(watched) / len(watched)
    off = mean / expected - 1
    if abs(off) <= NEAR:
        progress.say(f"kinetic temperature {mean:.3g}, as it should be ({expected:.3g})")
    else:
        side = "wider" if off > 0 else "closer together"
        progress.say(
            f"warning: kinetic temperature {mean:.3g} where it should be {expected:.3g}: samples lie {side} than the "
            "posterior; doubly diagnose says more"
        )


def _note_missing(progress: Progress, data: Data) -> None:
    missing = missing_mask(data.train)
    if missing.any():
        empty = int(missing.all(1).sum())
        rest = f"; {empty} rows have no value at all and add nothing" if empty else ""
        progress.say(f"{missing.mean():.1%} of the training cells are missing and left out of the likelihood{rest}")


def _warn_of_scale(progress: Progress, data: Data) -> None:
    number = 0 if data.kind != "real" else int(unscaled(data.train).sum())
    if number:
        rest = "see doubly data check; scale them, or take DeepGenerativeModel, which scales them itself"
        progress.say(f"warning: {number} of {data.width} columns are far from mean 0 and standard deviation 1: {rest}")


def _warn_of_crowding(progress: Progress) -> None:
    """Threads wait for the one whose core is busy with something else: ten times slower is not rare."""
    number, there = torch.get_num_threads(), cores()
    free = max(1, there - round(os.getloadavg()[0]))
    if number > free:
        progress.say(f"warning: {number} threads, but only {free} of {there} cores look free; try --threads {free}")
