"""All rows that are missing, several at a time, each in a process of its own; what is stopped goes on where it was.

A row's process saves its state when it is told to stop, and it tells itself so when the process that started it is
gone, however that ended. Its result is filed the moment it is there. So there is nothing to remember here: who starts
again plans anew from the results and the run folders.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from doubly.analysis.results import Result
from doubly.core.errors import UserError
from doubly.core.files import Folder
from doubly.paper.plan import LONGEST, Planned, plan
from doubly.paper.reproduce import reproduce
from doubly.paper.result import RowResult
from doubly.paper.tasks import Task
from doubly.runs.progress import span
from doubly.runs.stops import Interrupted, stop_signal

NICE = 10  # the priority of a row's process: it should not be in anybody's way
LOOK = 1.0  # seconds between two looks at the clock
LATEST = 120.0  # seconds that a row waits for an earlier process to let go of its run
STOPPED, FAILED = 3, 2  # what a row's process ends with, if it is not done


@dataclass(frozen=True)
class Worked(Result):
    """What became of the rows."""

    made: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    """Under way when the time was over: they go on the next time."""
    left: int = 0
    """Rows that are still missing, those under way included."""
    too_long: int = 0
    """Rows whose cost is said in place of their number."""
    seconds: float = field(default=0.0, compare=False)

    def text(self) -> str:
        lines = [f"{len(self.made)} rows made in {span(self.seconds)}, {self.left} are still missing"]
        lines += [f"under way: {', '.join(self.stopped)}"] * bool(self.stopped)
        lines += [f"failed: {', '.join(self.failed)}"] * bool(self.failed)
        lines += [f"{self.too_long} take too long here: see doubly reproduce --plan"] * bool(self.too_long)
        return "\n".join(lines)


def work(
    results: str | Path = "results",
    runs: str | Path = "runs/reproduce",
    budget: float | None = None,
    at_once: int = 2,
    threads: int = 1,
    longest: float = LONGEST,
    filed: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda what: None,
) -> Worked:
    """Make what is missing, the cheapest first, until nothing is left or `budget` seconds are over.

    `filed` is called at the start and whenever a row's process has ended, `tell` with a line for people.
    """
    if at_once < 1:
        raise UserError(f"rows_at_once must be at least 1, got {at_once}")
    began, made, failed = time.monotonic(), list[str](), list[str]()
    end = None if budget is None else began + budget
    found = plan(results, runs, longest, tell=tell)
    filed()
    todo, under_way = list(found.todo), dict[str, _Row]()
    tell(f"{len(todo)} rows to make, {at_once} at a time")
    with stop_signal() as stopped:
        try:
            while (todo or under_way) and not stopped and (end is None or time.monotonic() < end):
                while todo and len(under_way) < at_once:
                    row = _Row(todo.pop(0), results, runs, threads)
                    under_way[row.title] = row
                    tell(f"started {row.planned.text()}")
                ended = wait([row.sentinel for row in under_way.values()], LOOK)
                for row in [row for row in under_way.values() if row.sentinel in ended]:
                    del under_way[row.title]
                    (made if row.done else failed).append(row.title)
                    filed()
                    tell(row.outcome(results))
        finally:
            for row in under_way.values():
                row.stop()
            for row in under_way.values():
                row.join()
    late = [row for row in under_way.values() if row.done]  # it was done when it was told to stop
    filed()
    if stopped:
        raise Interrupted("stopped; all is saved: the same command goes on from there", stopped[0])
    under = tuple(row.title for row in under_way.values() if not row.done)
    made += [row.title for row in late]
    left = len(found.todo) - len(made)
    return Worked(tuple(made), tuple(failed), under, left, len(found.too_long), time.monotonic() - began)


class _Row:
    """A row that is being made, in a process of its own."""

    def __init__(self, planned: Planned, results: str | Path, runs: str | Path, threads: int):
        self.planned, self.title, self._began = planned, planned.task.title, time.monotonic()
        # a fresh interpreter: threads of this one, which may have computed already, do not survive a fork
        context = multiprocessing.get_context("spawn")
        self._process: BaseProcess = context.Process(target=_make, args=(planned.task, results, runs, threads))
        self._process.start()

    @property
    def sentinel(self) -> int:
        """What to wait for."""
        return self._process.sentinel

    @property
    def done(self) -> bool:
        self._process.join()
        return self._process.exitcode == 0

    def stop(self) -> None:
        """Tell the process to save its state and end."""
        self._process.terminate()

    def join(self) -> None:
        self._process.join()

    def outcome(self, results: str | Path) -> str:
        took = span(time.monotonic() - self._began)
        if self.done:
            return f"made {RowResult.read(Path(results) / f'{self.title}.json').text()} ({took} here)"
        return f"{self.title} failed after {took} (exit code {self._process.exitcode}); it goes on when asked again"


def _make(task: Task, results: str | Path, runs: str | Path, threads: int) -> None:
    """What a row's process does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        _wait_for(Path(runs) / task.title)
        reproduce(task, results, runs, threads=threads, quiet=True)
    except KeyboardInterrupt:  # its state is saved
        sys.exit(STOPPED)
    except UserError as error:
        print(f"{task.title}: {error}", file=sys.stderr, flush=True)
        sys.exit(FAILED)


def _end_with_parent() -> None:
    """Stop as if told to when the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for(folder: Path) -> None:
    """Until no other process works on a run: one whose parent was killed needs a moment to save its state."""
    until = time.monotonic() + LATEST
    while folder.exists():
        try:
            with Folder(folder).locked():
                return
        except UserError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK)
