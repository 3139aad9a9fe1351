"""Processes of their own for tests, forked from one that has imported what all need: PyTorch is loaded once, not each
time. That one has computed nothing, so that its copies start as a new process does."""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from doubly import cli

HANGS = 600  # seconds after which a process hangs, however busy the machine is
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["doubly.cli", "doubly.runs.fit", "numba"])


def call(function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives, called in a new process."""
    with ProcessPoolExecutor(1, mp_context=FORKS) as pool:
        return pool.submit(function, *args).result(HANGS)


class Ended(NamedTuple):
    code: int
    said: str


def command(*args: str, said: Path, first: Callable[[], object] = bool) -> Ended:
    """Run a command in a new process until it ends, which calls `first` and writes what is said to a file."""
    process = FORKS.Process(target=_command, args=(list(args), said, first))
    process.start()
    process.join(HANGS)
    assert process.exitcode is not None, "it hangs"
    return Ended(process.exitcode, said.read_text())


def _command(args: list[str], said: Path, first: Callable[[], object]) -> None:
    with open(said, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    first()
    cli.main(args)
