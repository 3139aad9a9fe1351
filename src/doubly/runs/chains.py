"""Several chains at the same time: each in a process of its own, in a run folder of its own, under one display.

The chains lie in RUN/chains, by their numbers from 0. Each has the settings of the run and a seed of its own; chain 0
has the seed of the run, so it is the chain that would run alone. The processes are started anew, not forked, and share
nothing but the display: one that diverges, or is killed, does not touch the others. Each is stopped by a signal to it,
and also stops, with all saved, when the process that started it is gone.
"""

import base64
import dataclasses
import hashlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from doubly.core.errors import Diverged, UserError
from doubly.core.launch import OF_TORCHRUN
from doubly.core.ranks import Ranks, Team
from doubly.data import Data
from doubly.runs.config import Config
from doubly.runs.folder import CHAINS, Run
from doubly.runs.progress import Progress
from doubly.runs.stops import Interrupted, stop_signal
from doubly.runs.trackers import Listeners, numbers

# the process finds its modules where this one does
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from doubly.runs.worker import main; main(sys.argv[2])"
)
LOOK = 0.2  # seconds between two looks at whether somebody wants to stop
WORD = 1.0  # seconds between two words that a rank leaves for the others
PATIENCE = 30.0  # seconds in which a chain saves and ends


class How(NamedTuple):
    """How chains go on."""

    quiet: bool = False
    until: float = float("inf")
    """When to stop early, by `time.monotonic`."""
    threads: int = 0
    """Of each chain; 0 takes those that it began with."""
    notes: tuple[str, ...] = ()


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fair_threads(enough: int, chains: int) -> int:
    """The threads of each of some chains: no more than are of use, and no more in all than there are cores.

    >>> fair_threads(1, 4), fair_threads(8, 1)
    (1, 8)
    """
    return enough if chains == 1 else max(1, min(enough, cores() // chains))


def chain_config(config: Config, number: int) -> Config:
    """The settings of a chain of a run: those of the run, with a seed of its own."""
    return dataclasses.replace(config, chains=1, seed=chain_seed(config.seed, number))


def chain_seed(seed: int, number: int) -> int:
    """The seed of a chain: that of the run for chain 0, else one that no other seed of a run is likely to give.

    >>> chain_seed(7, 0), chain_seed(0, 1) == chain_seed(1, 0), chain_seed(0, 2) == chain_seed(0, 1)
    (7, False, False)
    """
    digest = hashlib.sha256(repr((seed, "chain", number)).encode()).digest()
    return seed if number == 0 else int.from_bytes(digest[:4], "little") >> 1


def go_on(run: Run, data: Data, in_memory: bool, how: How, listeners: Listeners, ranks: Ranks) -> Run:
    """Run all chains that are not finished, from their last checkpoints or from the start; `run` is locked.

    Of several ranks, each takes some of the chains, and the first shows where all of them stand.
    """
    if ranks.first:
        create(run, data, in_memory)
        wait_for_locks(run)
        run.lose({})  # whatever became of them, they are tried again
    ranks.agreed(None)
    with Progress(how.quiet or not ranks.first) as progress, stop_signal() as stopped:
        for note in how.notes:
            progress.say(note)
        _warn_of_crowding(progress, run)
        if listeners.tracker:
            listeners.tracker.start(str(run.path), dataclasses.asdict(run.config))
        told, board = _Told(progress, listeners), Board(ranks, run.numbers)
        own = [number for number in run.numbers if number % ranks.size == ranks.rank]
        with started(run, own, how, listeners.on_sample is not None) as processes:
            watch(processes, told, stopped, board)
            lost = board.ended(told, stopped)
        if ranks.first:
            run.lose(lost)
            _end(run, lost, progress, stopped)
    return run


def create(run: Run, data: Data, in_memory: bool) -> None:
    """Make the folders of chains that are not there."""
    for number in run.numbers:
        if not run.folder.exists(f"{CHAINS}/{number}/config.json"):
            run.folder.make(f"{CHAINS}/{number}")  # refuses links
            place, asked = run.path / CHAINS / str(number), run.asked if run.config.minutes else None
            with Run.create(place, chain_config(run.config, number), data, in_memory=in_memory, asked=asked):
                pass


def wait_for_locks(run: Run) -> None:
    """Wait a little for processes of an earlier attempt, which save and end when the one that started them is gone."""
    deadline = time.monotonic() + PATIENCE
    for number in run.numbers:
        while True:
            try:
                with run.chain(number).folder.locked():
                    break
            except UserError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK)


def _end(run: Run, lost: dict[int, str], progress: Progress, stopped: list[int]) -> None:
    """Say what became of the chains; an error where none is left."""
    for number, why in lost.items():
        progress.say(f"warning: chain {number} is lost: {why}")
    if stopped:
        saved = f"{run.config.chains - len(lost)} of " if lost else ""
        raise Interrupted(
            f"stopped {saved}{run.config.chains} chains, all saved; go on with: doubly resume "
            f"{shlex.quote(str(run.path))}",
            stopped[0],
        )
    if len(lost) == run.config.chains:
        reasons = sorted(set(lost.values()))
        kind = Diverged if all("diverged" in why for why in reasons) else UserError
        raise kind(reasons[0] if len(reasons) == 1 else f"all chains are lost: {'; '.join(reasons)}")
    if lost:
        left = run.config.chains - len(lost)
        progress.say(
            f"{left} of {run.config.chains} chains are left and answer; doubly resume {shlex.quote(str(run.path))} "
            "tries the others again"
        )


# Processes


@dataclass
class Stand:
    """Where a chain stands."""

    number: int
    ended: str = ""
    """finished, or stopped; empty where it has not said so."""
    lost: str = ""
    """Why the chain is lost."""
    line: str = ""
    """Where it stands, in words."""
    share: float = 0.0
    """How much of its work is done."""
    trace: list[float] = field(default_factory=list)
    """Its validation log-likelihoods."""

    def word(self) -> dict[str, Any]:
        """What another rank is told of it."""
        return {
            "ended": self.ended,
            "lost": self.lost,
            "line": self.line,
            "share": self.share,
            "trace": self.trace[-24:],
        }


@dataclass(kw_only=True)
class Process(Stand):
    """The process of a chain, and what it has said."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    """What it has written to standard error."""
    _rest: bytes = b""

    def heard(self) -> Iterator[dict[str, Any]] | None:
        """The messages that have come; None if there will be no more."""
        content = os.read(self.output.fileno(), 2**16)
        if not content:
            return None
        *lines, self._rest = (self._rest + content).split(b"\n")
        return (json.loads(line) for line in lines)

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def stop(self) -> None:
        """Ask it to save and end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Wait for its end, and find out why it died if it has not said how it ended."""
        code = self.process.wait()
        if not self.ended and not self.lost:
            self.lost = self._why(code)

    def _why(self, code: int) -> str:
        if code < 0:
            name = signal.Signals(-code).name if -code in {each.value for each in signal.Signals} else f"signal {-code}"
            return f"its process was killed ({name})"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with code {code}" + (f": {lines[-1][:300]}" if lines else "")


@contextmanager
def started(run: Run, which: Iterable[int], how: How, samples: bool) -> "Iterator[list[Process]]":
    """The processes of some chains of a run; in the end none of them is left running."""
    found: list[Process] = []
    try:
        for number in which:
            found.append(_start(run, number, how, samples))
        yield found
    finally:
        for each in found:
            if each.process.poll() is None:
                each.process.kill()
            each.process.wait()
            for stream in (each.process.stdin, each.process.stdout, each.errors):
                if stream is not None:
                    stream.close()


def _start(run: Run, number: int, how: How, samples: bool) -> Process:
    task = {
        "path": str(run.chain(number).path),
        "threads": how.threads,
        "until": None if how.until == float("inf") else how.until,
        "allow_code": True,  # for it was opened here, where that was decided
        "samples": samples,
    }
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, json.dumps([str(Path(each).absolute()) for each in sys.path]), json.dumps(task)],
        stdin=subprocess.PIPE,  # it ends when this process does, however that comes about
        stdout=subprocess.PIPE,
        stderr=errors,
        # a chain is no rank of torchrun
        env={name: value for name, value in os.environ.items() if not OF_TORCHRUN.fullmatch(name)},
        start_new_session=True,  # a signal from the terminal goes to this process, which passes it on
    )
    return Process(number, process=process, errors=errors)


# What the processes say


def watch(processes: list[Process], told: "_Told", stopped: list[int], board: "Board") -> None:
    """Listen to the processes until all have ended; a signal to stop is passed on to all."""
    passed_on = False
    with selectors.DefaultSelector() as selector:
        for each in processes:
            selector.register(each.output, selectors.EVENT_READ, each)
        while selector.get_map():
            for key, _ in selector.select(LOOK):
                process: Process = key.data
                messages = process.heard()
                if messages is None:
                    selector.unregister(process.output)
                    process.wait()
                    told.end_of(process)
                    continue
                for message in messages:
                    told.hear(process, message)
            told.show(board.with_others(processes))
            if (stopped or told.enough) and not passed_on:
                passed_on = True
                for each in processes:
                    each.stop()


class _Told:
    """Passes on what the chains say, to the display and to the listeners."""

    def __init__(self, progress: Progress, listeners: Listeners):
        self._progress, self._listeners = progress, listeners
        self._said: set[str] = set()
        self.enough = False
        """Whether a listener has said that it is."""

    def hear(self, process: Process, message: dict[str, Any]) -> None:
        if "say" in message and message["say"] not in self._said:  # what all have to say is said once
            self._said.add(message["say"])
            self._progress.say(f"chain {process.number}: {message['say']}")
        if "show" in message:
            process.line, process.share = message["show"], message["share"]
        if "epoch" in message:
            self._epoch(process, message["epoch"])
        if "sample" in message and self._listeners.on_sample:
            theta = torch.from_numpy(np.frombuffer(base64.b64decode(message["theta"]), dtype=np.float32).copy())
            self.enough |= self._listeners.on_sample(message["sample"], theta) is True
        process.ended = message.get("ended", process.ended)
        process.lost = message.get("lost", process.lost)

    def _epoch(self, process: Process, record: dict[str, Any]) -> None:
        process.trace.append(record["valid"])
        if self._listeners.tracker:
            named = {f"chain{process.number}/{name}": value for name, value in numbers(record).items()}
            self._listeners.tracker.log(record["epoch"], named)
        if self._listeners.on_epoch:
            self.enough |= self._listeners.on_epoch({**record, "chain": process.number}) is True

    def end_of(self, process: Process) -> None:
        if process.lost:
            self._progress.say(f"warning: chain {process.number} is lost: {process.lost}; the others go on")
        elif process.ended == "finished":
            process.share = 1.0
            self._progress.say(f"chain {process.number} has finished: {process.line}")

    def show(self, processes: "Sequence[Stand]") -> None:
        """One line for all: how far they are, their validation, and where the slowest stands."""
        running = [each for each in processes if each.line and not (each.ended or each.lost)]
        if running:
            slowest = min(running, key=lambda each: each.share)
            message = f"{summary(processes)}; chain {slowest.number}: {slowest.line}"
            self._progress.show(message, share=slowest.share, trace=slowest.trace)


class Board:
    """Where ranks leave word of their chains for the others; one process keeps it to itself."""

    def __init__(self, ranks: Ranks, numbers: Iterable[int]):
        self._ranks, self._numbers, self._next = ranks, list(numbers), 0.0
        self._store = ranks.store if isinstance(ranks, Team) else None
        self._own: list[Process] = []
        self._others: dict[int, Stand] = {}

    def with_others(self, processes: "list[Process]") -> "list[Stand]":
        """Leave word of one's own chains, now and then; at the first rank, with where the others stood lately."""
        self._own = processes
        found: dict[int, Stand] = {each.number: each for each in processes}
        if self._store is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + WORD
            for each in processes:
                self._store.set(f"chain-{each.number}", json.dumps(each.word()))
            for number in self._numbers if self._ranks.first else ():
                if number not in found and self._store.check([f"chain-{number}"]):
                    self._others[number] = Stand(number, **json.loads(self._store.get(f"chain-{number}")))
        found = self._others | found
        return [found[number] for number in sorted(found)]

    def ended(self, told: "_Told", stopped: list[int]) -> dict[int, str]:
        """The chains that are lost, of all ranks at the first: it waits for the others to end."""
        lost = {each.number: each.lost for each in self._own if each.lost}
        if self._store is None:
            return lost
        self._next = 0.0
        self.with_others(self._own)
        self._store.set(f"ended-{self._ranks.rank}", json.dumps(lost))
        if self._ranks.first:
            for rank in range(self._ranks.size):
                while not self._store.check([f"ended-{rank}"]):
                    told.show(self.with_others(self._own))
                    time.sleep(LOOK)
                lost |= {int(n): why for n, why in json.loads(self._store.get(f"ended-{rank}")).items()}
            self._store.set("all-ended", "yes")
        while not self._store.check(["all-ended"]) and not stopped:  # torchrun may end with its first rank
            time.sleep(LOOK)
        return lost


def summary(processes: "Sequence[Stand]") -> str:
    """How many chains there are, and their latest validation log-likelihoods."""
    valid = " ".join(f"{each.trace[-1]:.2f}" if each.trace else "-" for each in processes if not each.lost)
    lost, done = sum(bool(each.lost) for each in processes), sum(each.ended == "finished" for each in processes)
    counts = [f"{done} finished"] * bool(done) + [f"{lost} lost"] * bool(lost)
    return f"{len(processes)} chains{f' ({chr(44).join(counts)})' if counts else ''}, valid {valid}"


def _warn_of_crowding(progress: Progress, run: Run) -> None:
    """Chains share the cores fairly, but more of them than there are cores take turns."""
    wanted, there = run.config.chains * max(1, run.config.threads), cores()
    if wanted > there:
        progress.say(
            f"{run.config.chains} chains with {run.config.threads} thread{'s' * (run.config.threads > 1)} each take "
            f"turns on {there} cores: all will take about {wanted / there:.2g} times as long as one alone"
        )
