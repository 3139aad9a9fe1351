"""Torture of run folders: every call that changes a disk is stopped or made to fail, every bit may be flipped.

`make torture` runs it for an hour and prints the counts; tests/test_torture.py runs a short form. The calls are
interposed, not timed: core/files.py changes disks by calls of the module `os` alone, which are counted here. Each case
runs in a forked process, with plain kernels and one thread: one thread leaves no pool behind that a fork would lose.
"""

import argparse
import contextlib
import ctypes
import errno
import gc
import gzip
import hashlib
import io
import itertools
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # not where it is only looked at, for doctests: tests of other files would see it
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"
    os.environ["DOUBLY_KERNELS"] = "0"

# ruff: noqa: E402 - the variables above count only if they are set first
import numpy as np
import torch

torch.set_num_threads(1)

import doubly
import fuzz
from doubly.analysis.evaluate import evaluate
from doubly.analysis.report.story import filed
from doubly.analysis.verify import repair, verify
from doubly.core.errors import RunWarning, UserError
from doubly.core.files import is_temporary
from doubly.core.sealed import load_tensors
from doubly.data import load as load_data
from doubly.kernels import choose
from doubly.runs.export import export, load_file
from doubly.runs.folder import Run

choose.in_use()  # loads Numba once, not in each child

TINY: dict[str, Any] = {"data": "bars", "hidden": (3,), "batch": 1000, "theta_steps": 1, "epochs": 3, "collect": 2}
TINY |= {"keep": 2, "means": (1,), "valid_draws": 2, "checkpoint_minutes": 0.0, "threads": 1, "quiet": True}
EVALUATION: dict[str, Any] = {"refit": 1, "draws": 2, "by": "draws", "settle": False, "quiet": True}
WRITING = os.O_WRONLY | os.O_RDWR
CHANGING = ("open", "write", "fsync", "replace", "unlink", "mkdir", "rmdir")
KILLS = ("before", "halfway")
ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}
UNREADABLE = "unreadable"  # opening a file or a folder to read it fails
WAYS = (*KILLS, *ERRORS, "short", UNREADABLE)


# Calls that change the disk, interposed


class Plan(NamedTuple):
    """What happens to which call: it is the end of the process, or it fails, or it writes only a part."""

    way: str
    call: int

    @property
    def kind(self) -> str:
        """Which calls it counts: those that change a disk, or those that open something to read it."""
        return "read" if self.way == UNREADABLE else "change"


class Interposed:
    """Counts the calls of `os` that change a disk, or open something to read it, and does to one what is planned."""

    def __init__(self, plan: Plan | None = None):
        self.plan, self.calls, self._real = plan, Counter[str](), {name: getattr(os, name) for name in CHANGING}

    def __enter__(self) -> "Interposed":
        for name in CHANGING:
            setattr(os, name, self._wrapped(name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _wrapped(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(*args: Any, **more: Any) -> Any:
            kind = "read" if name == "open" and not args[1] & WRITING else "change"
            self.calls[kind] += 1
            if self.plan is not None and (self.calls[kind], kind) == (self.plan.call, self.plan.kind):
                return self._strike(name, real, args, more)
            return real(*args, **more)

        return call

    def _strike(self, name: str, real: Callable[..., Any], args: Any, more: Any) -> Any:
        assert self.plan is not None
        if self.plan.way in ERRORS or self.plan.way == UNREADABLE:
            number = ERRORS.get(self.plan.way, errno.EIO)
            raise OSError(number, os.strerror(number))
        if self.plan.way == "short" and name == "write":
            return real(args[0], args[1][: max(1, len(args[1]) // 2)])
        if self.plan.way in KILLS:
            with contextlib.suppress(OSError):
                if self.plan.way == "halfway":  # of a write, half; of the others, all
                    real(args[0], args[1][: len(args[1]) // 2]) if name == "write" else real(*args, **more)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)


class Ended(NamedTuple):
    """How a child ended: with an answer, with a user's error in one line, killed, or with a traceback."""

    how: str
    value: Any


def forked(work: Callable[[], Any]) -> Ended:
    """Do it in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            warnings.simplefilter("ignore", RunWarning)
            with contextlib.redirect_stderr(io.StringIO()):
                try:
                    found = ("answer", work())
                except UserError as error:
                    found = ("refused", str(error))
                except BaseException:
                    found = ("traceback", traceback.format_exc())
            with os.fdopen(write, "wb") as file:
                pickle.dump(found, file)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        content = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return Ended("killed", os.WTERMSIG(status))
    return Ended(*pickle.loads(content))


@contextlib.contextmanager
def memory_disk() -> Iterator[Path]:
    """A folder in memory, where there is one: syncing a disk ten thousand times takes hours, and shows nothing more."""
    there = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=there) as place:
        yield Path(place)


def warm_up(place: Path) -> None:
    """Load what is loaded once, so that children do not."""
    doubly.fit(place / "warm", **TINY)
    evaluate(place / "warm", **EVALUATION)


# What a folder has come to


def bits(folder: Path) -> dict[str, str]:
    """A digest of every tensor and record of a run."""
    found = {}
    names = [folder / "checkpoint" / "state.safetensors", *sorted((folder / "posterior").glob("[dm]*.safetensors"))]
    for file in names:
        tensors, texts = load_tensors(file.read_bytes(), file, required=True)
        for name, tensor in tensors.items():
            found[f"{file.name}:{name}"] = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        found[f"{file.name}:state"] = texts.get("state", "")
    for record in Run(folder).metrics():
        found[f"epoch {record['epoch']}"] = repr({k: v for k, v in record.items() if k != "seconds"})
    return found


def left_over(folder: Path) -> list[str]:
    return [file.name for file in folder.rglob("*") if is_temporary(file.name)]


# Kills and errors at every call of a fit, an evaluation, an imputation


class Work(NamedTuple):
    """Something that is done to a folder: it begins, it may be stopped, it goes on; what it comes to is compared."""

    name: str
    prepare: Callable[[Path], Any]
    begin: Callable[[Path], Any]
    go_on: Callable[[Path], Any]
    result: Callable[[Path], Any]


def nothing(folder: Path) -> None:
    """No preparation is needed."""


def fit_tiny(folder: Path, **settings: Any) -> None:
    doubly.fit(folder, **TINY | settings)


def fitting(**settings: Any) -> Work:
    def go_on(folder: Path) -> None:
        try:
            Run(folder)
        except UserError:  # not a run yet
            doubly.fit(folder, overwrite=True, **TINY | settings)
            return
        try:
            doubly.resume(folder, quiet=True)
        except UserError as error:
            if "data.json" not in str(error):  # overwriting an older run had just begun
                raise
            doubly.fit(folder, overwrite=True, **TINY | settings)

    name = " ".join(["fit", *map(str, settings.values())])
    return Work(name, nothing, lambda folder: fit_tiny(folder, **settings), go_on, bits)


def overwriting() -> Work:
    fit = fitting(seed=3)

    def prepare(folder: Path) -> None:
        doubly.fit(folder, **TINY)
        (folder / "my notes.txt").write_text("keep me")

    def again(folder: Path) -> None:
        doubly.fit(folder, overwrite=True, **TINY | {"seed": 3})
        assert (folder / "my notes.txt").read_text() == "keep me"

    return Work("fit --overwrite", prepare, again, again, fit.result)


def evaluating() -> Work:
    def score(folder: Path) -> Any:
        return evaluate(folder, of="ensemble", **EVALUATION).to_json()

    def result(folder: Path) -> Any:
        (filed,) = (folder / "evaluations").glob("*.json")
        assert verify(folder).good
        return [json.loads(filed.read_text())["log_likelihood"], score(folder)["log_likelihood"]]

    return Work("evaluate", fit_tiny, score, score, result)


def imputing() -> Work:
    def impute(folder: Path) -> None:
        from doubly.analysis.impute import Imputer, impute_file
        from doubly.latents.completions import ImputeConfig

        rows = load_data("bars").test[:5].astype(float)
        rows[:, ::3] = np.nan
        np.save(folder / "rows.npy", rows)
        with contextlib.redirect_stderr(io.StringIO()):
            imputer = Imputer(Run(folder), ImputeConfig(sweeps=2), 2, "ensemble", 1, 0, 1)
            impute_file(imputer, str(folder / "rows.npy"), str(folder / "completed.npz"))

    def result(folder: Path) -> Any:
        assert verify(folder).good
        return {name: array.tolist() for name, array in np.load(folder / "completed.npz").items()}

    return Work("impute", fit_tiny, impute, impute, result)


def exporting() -> Work:
    def write(folder: Path) -> None:
        export(Run(folder), folder / "model.doubly", refit=1)

    def result(folder: Path) -> Any:
        assert verify(folder).good
        return hashlib.sha256((folder / "model.doubly").read_bytes()).hexdigest()

    return Work("export", fit_tiny, write, write, result)


def repairing() -> Work:
    """`doubly repair` of a run whose settings, newest checkpoint and records are damaged, and a sample is missing."""

    def prepare(folder: Path) -> None:
        fit_tiny(folder)
        (folder / "posterior" / "draw-00001.safetensors").unlink(missing_ok=True)
        for name in ("config.json", "metrics.jsonl", "checkpoint/state.safetensors"):
            content = bytearray((folder / name).read_bytes())
            content[len(content) // 2] ^= 1
            (folder / name).write_bytes(content)

    def result(folder: Path) -> Any:
        return {**bits(folder), "files": [(each.name, each.condition) for each in verify(folder).findings]}

    return Work("repair", prepare, repair, repair, result)


def filling() -> Work:
    """`doubly fill` of a table with holes, by a run that has learnt it; three files come out."""
    outputs = ("filled.csv", "filled-1.csv", "cells.csv")

    def prepare(folder: Path) -> None:
        doubly.fit(folder, **TINY | {"data": table(60), "batch": 100})
        rows = table(20)
        lines = [
            ",".join("" if value is None else str(value) for value in row) for row in zip(*rows.values(), strict=True)
        ]
        (folder / "table.csv").write_text("\n".join([",".join(rows), *lines]))

    def fill(folder: Path) -> None:
        from doubly.analysis.table_files import complete_file

        names = [str(folder / name) for name in ("table.csv", *outputs)]
        complete_file(names[0], names[1], copies=1, cells=names[3], run=Run(folder))

    def result(folder: Path) -> Any:
        assert verify(folder).good
        return {name: (folder / name).read_bytes() for name in outputs}

    return Work("fill", prepare, fill, fill, result)


def table(rows: int) -> dict[str, list[Any]]:
    """Columns of three kinds, with missing cells."""
    dice = random.Random(0)
    return {
        "size": [None if dice.random() < 0.2 else round(dice.gauss(3, 2), 2) for _ in range(rows)],
        "colour": [None if dice.random() < 0.2 else dice.choice(("red", "green", "blue")) for _ in range(rows)],
        "sold": [None if dice.random() < 0.2 else dice.choice(("yes", "no")) for _ in range(rows)],
    }


def calls_of(work: Work, place: Path) -> tuple[Counter[str], Any]:
    """How many calls of either kind an undisturbed work has, and what it comes to."""
    folder = place / "undisturbed"

    def count() -> tuple[Counter[str], Any]:
        work.prepare(folder)
        with Interposed() as counted:
            work.begin(folder)
        return counted.calls, work.result(folder)

    ended = forked(count)
    assert ended.how == "answer", ended.value
    calls, result = ended.value
    return calls, result


def struck(work: Work, plan: Plan, place: Path, prepared: Path | None) -> tuple[str, Any]:
    """How the work ended when a call was struck, and what it came to when it went on."""
    folder = place / "struck"
    shutil.rmtree(folder, ignore_errors=True)
    if prepared is not None:
        shutil.copytree(prepared, folder)

    def begin() -> None:
        with Interposed(plan):
            work.begin(folder)

    def go_on() -> Any:
        work.go_on(folder)
        assert not left_over(folder), left_over(folder)
        return work.result(folder)

    first, then = forked(begin), forked(go_on)
    assert first.how in ("killed", "refused", "answer"), f"{work.name}, {plan}: {first.value}"
    if plan.way in KILLS:
        assert first == Ended("killed", signal.SIGKILL), f"{work.name}, {plan}: {first}"
    if plan.way == "short":
        assert first.how == "answer", f"{work.name}, {plan}: {first}"
    assert "\n" not in str(first.value or ""), first.value
    assert then.how == "answer", f"{work.name}, {plan}: cannot go on: {then.value}"
    return first.how, then.value


def strikes(work: Work, ways: tuple[str, ...], every: int, place: Path, counts: Counter[str]) -> None:
    """Strike every so many calls of a work, in each of the ways; what it comes to must be the same."""
    place.mkdir(parents=True, exist_ok=True)
    calls, expected = calls_of(work, place)
    prepared = place / "prepared" if work.prepare is not nothing else None
    if prepared is not None:
        assert forked(lambda: work.prepare(prepared)).how == "answer"
    for way in ways:
        number = calls[Plan(way, 0).kind]
        for call in range(1 + hash_of(work.name + way) % every, number + 1, every):
            how, found = struck(work, Plan(way, call), place, prepared)
            assert found == expected, f"{work.name}, {way} call {call} of {number}: the result differs"
            counts[f"{work.name}, {way}: {how}"] += 1


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


# Bits flipped, files cut short


def answers(folder: Path) -> dict[str, Any]:
    """What a run says, in numbers."""
    run = Run(folder)
    posterior = run.posterior(refit_passes=1)
    x = run.data().valid[:4]
    exported = load_file(folder / "model.doubly")
    return {
        "exported": [exported.mean().tolist(), exported.phi.tolist(), *(theta.tolist() for theta in exported.thetas)],
        "exported settings": repr((exported.method, exported.epoch, exported.collected, exported.shape)),
        "mean": posterior.mean().tolist(),
        "last": posterior.last().tolist(),
        "samples": [theta.tolist() for theta in posterior.thetas],
        "means": {number: theta.tolist() for number, theta in posterior.means.items()},
        "log_likelihood": posterior.log_likelihood(x, draws=2, by="draws").tolist(),
        "metrics": run.metrics(),
        "evaluations": repr(filed(run)),
        "facts": repr((run.facts, run.columns, run.n_data, run.data_digest, run.version)),
        "settings": repr(run.config),
    }


def damage(file: Path, dice: random.Random) -> str:
    """Flip a bit of a file, cut it short, or both write and cut."""
    content = bytearray(file.read_bytes()) or bytearray(1)
    way = dice.choice(("flip", "flip", "flip", "cut", "zeros", "swap"))
    at = dice.randrange(max(1, len(content)))
    if way == "flip":
        content[at] ^= 1 << dice.randrange(8)
    elif way == "cut":
        content = content[:at]
    elif way == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    else:
        content = content[at:] + content[:at]
    file.write_bytes(bytes(content))
    return way


def flips(number: int, seed: int, place: Path, counts: Counter[str]) -> None:
    """Damage to a file of a finished run: refused, told, or without effect; after `repair`, it opens again."""
    folder, dice = place / "flipped", random.Random(seed)
    settings = TINY if seed % 2 == 0 else TINY | {"data": table(200), "batch": 100}
    doubly.fit(folder, **settings)
    evaluate(folder, **EVALUATION)
    export(Run(folder), folder / "model.doubly", refit=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunWarning)
        expected = answers(folder)
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size]
        whole = {file: file.read_bytes() for file in files}
        for at in range(number):
            file = dice.choice(files)
            way = damage(file, dice)
            outcome = _outcome(folder, expected)
            counts[f"{way} in {_kind(file, folder)}: {outcome}"] += 1
            assert outcome != "silent", f"{way} in {file} (case {at}, seed {seed}) changed a number silently"
            if at % 10 == 0:
                _check_repair(folder)
            shutil.rmtree(folder)
            for each, content in whole.items():
                each.parent.mkdir(parents=True, exist_ok=True)
                each.write_bytes(content)


def check_one_line(error: UserError) -> None:
    assert "\n" not in str(error), error


def _outcome(folder: Path, expected: dict[str, Any]) -> str:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RunWarning)
        try:
            found = answers(folder)
        except UserError as error:
            check_one_line(error)
            return "refused"
    said = any(issubclass(each.category, RunWarning) for each in told)
    if found == expected:
        return "repaired" if said else "harmless"
    return "told" if said else "silent"


def _check_repair(folder: Path) -> None:
    """After `repair`, the folder opens, or says in a line what it lacks."""
    try:
        found = repair(folder)
        assert found.now.good or "lost before" in found.now.text() or "cannot be restored" in "".join(found.done), (
            found.text()
        )
        doubly.load(folder)
    except UserError as error:
        check_one_line(error)


def _kind(file: Path, folder: Path) -> str:
    return str(file.relative_to(folder)).partition("-")[0]


# Readers of data


def samples_of_data(place: Path) -> list[Path]:
    """A small file of every format."""
    place.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(0).integers(0, 2, (30, 5)).astype(np.uint8)
    np.save(place / "a.npy", rows)
    np.savez(place / "a.npz", train=rows, valid=rows[:5], test=rows[:5])
    np.savez_compressed(place / "b.npz", data=rows)
    (place / "a.csv").write_text("a,b,c\n" + "1,2,x\n0,?,y\n3.5,1e3,x\n" * 10)
    (place / "b.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    (place / "a.amat").write_text("\n".join(" ".join(map(str, row)) for row in rows) + "\n")
    idx = b"\0\0\x08\x02" + (30).to_bytes(4, "big") + (5).to_bytes(4, "big") + rows.tobytes()
    (place / "a-ubyte").write_bytes(idx)
    (place / "b-ubyte.gz").write_bytes(gzip.compress(idx))
    (place / "a.pkl.gz").write_bytes(gzip.compress(pickle.dumps((rows, rows[:5], rows[:5]), protocol=2)))
    with contextlib.suppress(ImportError):
        from scipy.io import savemat

        savemat(place / "a.mat", {"data": rows.astype(float)})
        savemat(place / "b.mat", {"data": rows}, do_compression=True)
    with contextlib.suppress(ImportError):
        from openpyxl import Workbook

        book = Workbook()
        for row in [["a", "b", "c"], *[[1, "x", 2.5], [0, None, 1e3]] * 10]:
            book.active.append(row)
        book.save(place / "a.xlsx")
    with contextlib.suppress(ImportError):
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"a": rows[:, 0], "b": ["x", "y"] * 15}), place / "a.parquet")
    return sorted(place.iterdir())


def readers(number: int, seed: int, place: Path, counts: Counter[str]) -> None:
    """Damaged files of data: rows, or one line."""
    dice, whole = random.Random(seed), {file: file.read_bytes() for file in samples_of_data(place)}
    for _ in range(number):
        file = dice.choice(sorted(whole))
        for _ in range(dice.choice((1, 1, 2, 5))):
            damage(file, dice)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                load_data(file)
                outcome = "read"
            except UserError as error:
                outcome = "refused"
                check_one_line(error)
        counts[f"{file.name.partition('.')[2] or file.name}: {outcome}"] += 1
        file.write_bytes(whole[file])


# Memory

LEAST_BLOCK = 16  # bytes: the smallest that Python gives, so that an object kept of every step grows by this at least
TENSOR = 200  # bytes that a tensor of one number takes at least, with what PyTorch has beside it


def flat(steps: int, most: float, counts: Counter[str]) -> None:
    """Memory does not grow with the steps: after a tenth of them, by less than `most` bytes a step."""
    from doubly.runs.build import build
    from doubly.training.protocol import fit
    from doubly.training.state import init

    data = load_data("bars")
    method = build(
        doubly.Config(**{k: v for k, v in TINY.items() if k != "quiet"} | {"batch": 100, "epochs": 10**9}), data
    )
    train, valid = torch.as_tensor(data.train), torch.as_tensor(data.valid)
    looks = {steps // 10 + i * (steps - steps // 10) // 20 for i in range(21)}
    taken = []
    for at, _ in enumerate(fit(method, train, valid, init(method, train)), start=1):
        if at in looks:
            taken.append((at, in_use(), resident()))
        if at == steps:
            break
    slopes = np.polyfit([at for at, *_ in taken], [sizes for _, *sizes in taken], 1)[0]
    grown = " and ".join(f"{slope:.2f}" for slope in slopes)
    counts[f"steps, over which what is allocated and what is resident grew by {grown} bytes a step"] += steps
    assert slopes.max() < most, f"memory grew by {grown} bytes a step in {steps} steps, at most {most} are allowed"


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Malloc(ctypes.Structure):
    """What mallinfo2 of the GNU C library gives."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    ))  # fmt: skip


def in_use() -> int:
    """Bytes that are allocated: those of malloc, and of Python's own small blocks, of 16 bytes at least.

    Memory that was freed stays with the process, and a small leak would hide in it.
    """
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Malloc
    found = mallinfo()
    return int(found.uordblks + found.hblkhd) + 16 * sys.getallocatedblocks()


# All of it


MAIN = ("fit", "fit --overwrite", "evaluate", "impute", "export", "repair", "fill")


def works(full: bool) -> Iterator[Work]:
    yield fitting()
    yield overwriting()
    yield evaluating()
    yield imputing()
    yield exporting()
    yield repairing()
    yield filling()
    if full:
        for sampler in doubly.SAMPLERS:
            yield fitting(sampler=sampler)
        for estimator in doubly.ESTIMATORS:
            yield fitting(estimator=estimator)
        for prior in doubly.PRIORS:
            yield fitting(prior=prior)
        for objective in doubly.OBJECTIVES:
            if objective not in ("iwae", "vae", "dreg", "stl"):
                yield fitting(objective=objective, draws=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=np.inf, help="stop after the round that is under way then")
    parser.add_argument("--every", type=int, default=1, help="strike every so many calls")
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=20_000, help="damaged files of data")
    parser.add_argument("--steps", type=int, default=100_000, help="of training, with flat memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fuzz", type=int, default=20_000, help="files of runs and exports with good checksums")
    parser.add_argument("--only", default="", help="strikes, steps, flips, files or fuzz")
    parser.add_argument("--work", nargs="*", default=[], help="strike only these, such as fit or evaluate")
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS, help="strike only in these ways")
    parser.add_argument("--short", action="store_true", help="only the default sampler, estimator and objective")
    asked = parser.parse_args()
    started, counts = time.monotonic(), Counter[str]()
    try:
        with memory_disk() as place:
            warm_up(place)
            parts = _parts(asked, place, counts)
            for name, part in itertools.takewhile(lambda _: time.monotonic() - started < 60 * asked.minutes, parts):
                part()
                print(f"{time.monotonic() - started:7.0f} s  {name}", file=sys.stderr, flush=True)
    finally:
        for name, count in sorted(counts.items()):
            print(f"{count:7d}  {name}")
        print(f"{sum(counts.values()):7d}  in all, {sum(os.times()[:4]):.0f} s of one core, seed {asked.seed}")


def _parts(asked: argparse.Namespace, place: Path, counts: Counter[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    if asked.only in ("", "strikes"):
        chosen = [work for work in works(full=not asked.short) if not asked.work or work.name in asked.work]
        for i, work in enumerate(chosen):
            without = () if work.name in MAIN else (UNREADABLE,)  # what is read is the same with every sampler
            ways = tuple(way for way in WAYS if way in asked.ways and way not in without)
            yield work.name, lambda work=work, i=i, ways=ways: strikes(work, ways, asked.every, place / str(i), counts)  # type: ignore[misc]
    if asked.only in ("", "steps"):
        most = LEAST_BLOCK if not asked.short else TENSOR  # few steps show only what is large
        yield "steps", lambda: flat(asked.steps, most, counts)
    if asked.only in ("", "flips"):
        for i in range(max(1, asked.flips // 1000)):
            number = min(1000, asked.flips)
            yield f"flips {i}", lambda i=i, n=number: flips(n, asked.seed + i, place / f"f{i}", counts)  # type: ignore[misc]
    if asked.only in ("", "files"):
        for i in range(max(1, asked.files // 1000)):
            number = min(1000, asked.files)
            yield f"files {i}", lambda i=i, n=number: readers(n, asked.seed + i, place / f"r{i}", counts)  # type: ignore[misc]
    if asked.only in ("", "fuzz"):
        for i in range(max(1, asked.fuzz // 1000)):
            number = min(1000, asked.fuzz)
            yield f"fuzz {i}", lambda i=i, n=number: fuzzed(n, asked.seed + 1000 * i, place / f"z{i}", counts)  # type: ignore[misc]


def fuzzed(number: int, seed: int, place: Path, counts: Counter[str]) -> None:
    """Cases of tests/fuzz.py, in a process of their own whose memory is limited: a crash is a fault, too."""
    place.mkdir(parents=True)

    def work() -> tuple[Counter[str], list[str]]:
        found = Counter[str]()
        return found, fuzz.fuzz(number, seed, place, found)

    ended = forked(work)
    assert ended.how == "answer", f"cases from {seed} on: {ended}"
    found, faults = ended.value
    counts.update(found)
    assert not faults, "\n".join(faults)


if __name__ == "__main__":
    main()
