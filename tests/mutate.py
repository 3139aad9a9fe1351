"""Plants the small bugs of mutations.toml, one at a time, in a copy of the tree, and runs the tests that must see them.

    python tests/mutate.py                 all of them
    python tests/mutate.py --only sgld     those whose file or description has this word, or one of several
    python tests/mutate.py --slice 0/4     the first quarter

A bug that all its tests pass is a survivor: they are listed at the end, and the exit code is 1. A bug whose tests were
not run (a name that is gone, a package that is not there) counts as not planted, not as seen. Each bug has a process of
its own, forked from one that has loaded PyTorch already. The tree itself is only read.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("mutations.toml")
LIMIT = 900  # seconds, after which a bug has made a test run for ever, which is a way to be seen
Verdict = Literal["seen", "SURVIVES", "NOT RUN"]
COPIED = ("src", "tests", "docs", "benchmarks", "examples", "pyproject.toml", "README.md", "Makefile")


class Mutation(NamedTuple):
    """A small bug."""

    what: str
    file: str
    """Of src/doubly."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: list[str]
    """Files or tests of tests/; paths that begin with src are doctests."""

    def applied(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times, not once: {self.old}")
        return text.replace(self.old, self.new)

    def paths(self) -> list[str]:
        return [test if test.startswith("src/") else f"tests/{test}" for test in self.tests]


def mutations() -> list[Mutation]:
    return [Mutation(**each) for each in tomllib.loads(LIST.read_text())["mutation"]]


def verdict(tree: Path, paths: list[str], log: Path) -> Verdict:
    """Whether one of the tests fails, in a process of their own."""
    child = multiprocessing.get_context("fork").Process(target=_run, args=(tree, paths, log))
    child.start()
    child.join(LIMIT)
    if child.is_alive():
        child.kill()
        child.join()
        return "seen"
    code = child.exitcode or 0
    if code == 0:
        return "SURVIVES"
    # what ends the process itself has been seen, too; codes above 1 are pytest's for tests that it could not run
    return "seen" if code <= 1 else "NOT RUN"


def _run(tree: Path, paths: list[str], log: Path) -> None:
    os.setpgrp()  # what the tests start ends with them
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")
    sys.path[:0] = [str(tree / "src")]
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *paths])
    os._exit(int(code))


def plant(tree: Path, mutation: Mutation, log: Path) -> Verdict:
    """Whether the tests see the bug; the tree is afterwards as it was, times of its files included."""
    path = tree / "src" / "doubly" / mutation.file
    text, times = path.read_text(), path.stat()
    path.write_text(mutation.applied(text))
    try:
        return verdict(tree, mutation.paths(), log)
    finally:
        path.write_text(text)
        # compiled kernels are cached by the time of their file
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="words, of which the file or the description has one")
    parser.add_argument("--slice", default="0/1", help="I/N: the I-th of N parts of the list, from 0")
    parser.add_argument("--unharmed", action="store_true", help="run the tests of the list without any bug first")
    args = parser.parse_args()
    part, parts = map(int, args.slice.split("/"))
    every = [each for each in mutations() if any(word in f"{each.file} {each.what}" for word in args.only)]
    chosen = every[len(every) * part // parts : len(every) * (part + 1) // parts]
    found: list[tuple[Verdict, Mutation]] = []
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        tree, log = Path(folder) / "tree", Path(folder) / "log"
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, _made(tree / name))
        every_path = sorted({path for each in chosen for path in each.paths()})
        if args.unharmed and verdict(tree, every_path, log) != "SURVIVES":
            print(log.read_text()[-3000:], "the tests do not pass as they are: mend them first", sep="\n")
            return 1
        for each in chosen:
            start = time.monotonic()
            found.append((plant(tree, each, log), each))
            print(f"{found[-1][0]:8} {time.monotonic() - start:5.0f} s  {each.file}: {each.what}", flush=True)
    return _summary(found)


def _summary(found: list[tuple[Verdict, Mutation]]) -> int:
    """Print how many were seen in each room, and the others by name; 1 if there are others."""
    seen, planted = Counter(_room(each) for was, each in found if was == "seen"), Counter(_room(e) for _, e in found)
    print(", ".join(f"{room} {seen[room]}/{planted[room]}" for room in planted))
    print(f"{seen.total()} of {len(found)} bugs were seen")
    for was, each in found:
        if was != "seen":
            print(f"  {was}  {each.file}: {each.what} ({', '.join(each.tests)})")
    return 0 if seen.total() == len(found) else 1


def _room(mutation: Mutation) -> str:
    return Path(mutation.file).parts[0]


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    import numba  # noqa: F401 - loaded once, for all that are forked from here
    import pandas  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn  # noqa: F401
    import torch

    torch.set_num_threads(1)
    sys.exit(main())
