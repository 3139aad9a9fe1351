"""`doubly verify`: the state of a run folder, file by file. `doubly repair`: what is damaged is set aside.

Neither executes code that a run brings along. Verifying writes nothing.
"""

import dataclasses
import errno
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from doubly.analysis.results import Result, fields_of
from doubly.core.errors import DiskError, UserError
from doubly.core.files import Folder, is_temporary
from doubly.core.sealed import MOST_JSON, load_json, load_tensors, parse_json
from doubly.runs import records, sources
from doubly.runs.build import build
from doubly.runs.checkpoints import OLDER, STATE, Checkpoint, peek_epoch, read_checkpoint, read_sample, write_checkpoint
from doubly.runs.folder import CHAINS, FOLDERS, Run
from doubly.runs.versions import FORMAT
from doubly.training.method import Method

Condition = Literal["good", "unsealed", "damaged", "missing", "unreadable", "incomplete", "left over"]
# what the system says where a link, a folder or a device stands in place of a file; all else is a disk that fails
WRONG_KIND = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
SET_ASIDE = "damaged"


@dataclass(frozen=True)
class Finding:
    """A file of a run and its state."""

    name: str
    condition: Condition
    note: str = ""

    @property
    def bad(self) -> bool:
        return self.condition in ("damaged", "missing", "unreadable")


@dataclass(frozen=True)
class Verified(Result):
    """The state of a run folder."""

    path: str
    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        return not any(finding.bad for finding in self.findings)

    def text(self) -> str:
        lines = [
            f"{finding.condition:10}  {finding.name}" + (f"  ({finding.note})" if finding.note else "")
            for finding in self.findings
            if finding.condition != "good"
        ]
        good = sum(finding.condition == "good" for finding in self.findings)
        end = "nothing is damaged" if self.good else f"see what can be kept with doubly repair {self.path}"
        return "\n".join([*lines, f"{self.path}: {good} of {len(self.findings)} files are as they were written; {end}"])

    def to_json(self) -> Any:
        return {"run": self.path, "good": self.good, "files": [fields_of(finding) for finding in self.findings]}


@dataclass(frozen=True)
class Repaired(Result):
    """What was done to a run folder, and its state now."""

    path: str
    done: tuple[str, ...]
    now: Verified

    def text(self) -> str:
        if not self.done:
            return f"{self.path}: nothing was damaged, nothing was changed"
        return "\n".join([*self.done, self.now.text()])

    def to_json(self) -> Any:
        return {"run": self.path, "done": list(self.done), "now": self.now.to_json()}


def verify(path: str | Path) -> Verified:
    """The state of every file of a run."""
    folder = _folder(path)
    return Verified(str(path), tuple(_findings(folder)))


def _folder(path: str | Path) -> Folder:
    folder = Folder(Path(path))
    there = {file.name for file in folder.path.iterdir()} if folder.path.is_dir() else set()
    if not there & {"config.json", "checkpoint", "data.json"}:
        raise UserError(f"{path} holds no run: name a folder that doubly fit has made")
    return folder


def _findings(folder: Folder) -> Iterator[Finding]:
    run, config = _opened(folder)
    yield config
    sealed = run is None or run.format > 1
    yield _finding(folder, "data.json", lambda: _check_data(folder, run, sealed))
    yield from _metrics(folder, sealed)
    method = _method(run)
    yield from _checkpoints(folder, run, method)
    yield from _others(folder, sealed)
    yield from _left_over(folder)
    for number in run.numbers if run is not None else ():
        inside = Folder(folder.path / CHAINS / str(number))
        if not folder.exists(f"{CHAINS}/{number}/config.json"):
            yield Finding(f"{CHAINS}/{number}", "missing", "doubly resume makes it again")
            continue
        for each in _findings(inside):
            yield dataclasses.replace(each, name=f"{CHAINS}/{number}/{each.name}")


def _opened(folder: Folder) -> tuple[Run | None, Finding]:
    """The run, as far as its settings can be read, and the state of config.json. Its code is not executed."""
    try:
        run = Run(folder.path)
    except UserError as error:
        if "comes with code" in str(error):
            return None, Finding("config.json", "good", "its code was not executed: shapes are not checked")
        if not _stands(folder, "config.json"):
            return None, Finding("config.json", "missing")
        return None, _wrong("config.json", error)
    return run, Finding("config.json", "good" if run.format == FORMAT else "unsealed")


def _finding(folder: Folder, name: str, check: Callable[[], bool]) -> Finding:
    """A file's state; the check tells whether it is sealed, and raises where it is damaged."""
    try:
        if not _stands(folder, name):
            return Finding(name, "missing")
        return Finding(name, "good" if check() else "unsealed")
    except UserError as error:
        return _wrong(name, error)


def _stands(folder: Folder, name: str) -> bool:
    """Whether anything stands there: a file, or a link, a folder or a pipe in its place."""
    return folder.exists(name) or os.path.lexists(folder.path / name)


def _wrong(name: str, error: UserError) -> Finding:
    """A file that is damaged, or one that the disk does not give, which may be good."""
    failing = isinstance(error, DiskError) and error.number not in WRONG_KIND
    return Finding(name, "unreadable" if failing else "damaged", str(error))


def _check_data(folder: Folder, run: Run | None, sealed: bool) -> bool:
    fields = load_json(folder.read("data.json", MOST_JSON) or b"", folder.path / "data.json", required=sealed)
    if run is not None:
        _ = run.facts, run.columns, run.n_data, run.data_digest
    return "format" in fields


def _metrics(folder: Folder, sealed: bool) -> Iterator[Finding]:
    try:
        content = folder.read("metrics.jsonl")
    except UserError as error:
        yield _wrong("metrics.jsonl", error)
        return
    if content is not None:
        found, damaged = records.read(content, sealed)
        lacking = peek_epoch(folder) - len(found)
        if damaged:
            yield Finding("metrics.jsonl", "damaged", f"{damaged} lines are left out, {len(found)} are good")
        elif lacking > 0:
            yield Finding("metrics.jsonl", "incomplete", f"the records of {lacking} epochs are missing")
        else:
            yield Finding("metrics.jsonl", "good")


def _method(run: Run | None) -> Method | None:
    try:
        return None if run is None else build(run.config, run.facts)
    except UserError:
        return None


def _checkpoints(folder: Folder, run: Run | None, method: Method | None) -> Iterator[Finding]:
    """Both checkpoints, and the samples that belong to the newest good one."""
    listed: Checkpoint | None = None
    for name in (STATE, OLDER):
        if not _stands(folder, name):
            if name == STATE and (folder.exists(OLDER) or folder.names("posterior", r"(draw|mean)-.*")):
                yield Finding(name, "missing")
            continue
        try:
            found = _read_checkpoint(folder, run, method, name)
        except UserError as error:
            yield _wrong(name, error)
            continue
        listed = listed or found
        yield Finding(name, "good" if found.samples is not None else "unsealed")
    if listed is not None and listed.samples is not None:
        for name, sha256 in sorted(listed.samples.items()):
            yield _finding(folder, name, functools.partial(_check_sample, folder, name, sha256, method))
        for name in listed.lost:
            yield Finding(name, "missing", "lost before, answers are without it")


def _read_checkpoint(folder: Folder, run: Run | None, method: Method | None, name: str) -> Checkpoint:
    found = read_checkpoint(folder, name, run is None or run.format > 1)
    assert found is not None
    if run is not None and method is not None:
        run.decoded(found, method, name)
    return found


def _check_sample(folder: Folder, name: str, sha256: str, method: Method | None) -> bool:
    read_sample(folder, name, sha256, None if method is None else method.model.size)
    return True


def _others(folder: Folder, sealed: bool) -> Iterator[Finding]:
    """What can be computed again: proposals, evaluations; and copies of code, which cannot."""
    for name in folder.names("posterior", r"proposal-.*\.safetensors"):
        yield _finding(folder, name, functools.partial(_check_tensors, folder, name, sealed))
    for name in folder.names("evaluations", r".*\.safetensors"):
        yield _finding(folder, name, functools.partial(_check_tensors, folder, name, sealed))
    for name in folder.names("evaluations", r".*\.json"):
        yield _finding(folder, name, functools.partial(_check_json, folder, name))
    try:
        for name, error in sources.check_copies(folder):
            yield Finding(name, "damaged" if error else "good", str(error or ""))
    except UserError as error:
        yield Finding("own_files/sources.json", "damaged", str(error))


def _check_tensors(folder: Folder, name: str, sealed: bool) -> bool:
    return "format" in load_tensors(folder.read(name) or b"", folder.path / name, required=sealed).texts


def _check_json(folder: Folder, name: str) -> bool:
    content = folder.read(name, MOST_JSON) or b""
    load_json(content, folder.path / name, required=False)
    return "seal" in parse_json(content, folder.path / name)


def _left_over(folder: Folder) -> Iterator[Finding]:
    for inside in ("", *FOLDERS):
        try:
            names = folder.names(inside)
        except UserError as error:
            yield Finding(inside, "damaged", str(error))
            continue
        for name in names:
            if is_temporary(name.rpartition("/")[2]):
                yield Finding(name, "left over", "of a process that was stopped; swept by resume")


# Repair


def repair(path: str | Path) -> Repaired:
    """Set aside what is damaged in a folder, and restore what another file has a copy of.

    What was good stays as it is. Nothing is deleted: damaged files go to RUN/damaged. A file that the disk does not
    give may be good: it is no damage, and ends the repair.
    """
    folder = _folder(path)
    with folder.locked():
        folder.sweep(*FOLDERS)
        done = list(_repair(folder))
    return Repaired(str(path), tuple(done), verify(path))


def _repair(folder: Folder) -> Iterator[str]:
    yield from _repair_settings(folder)
    run, config = _opened(folder)
    _check_readable(config)
    if config.bad:
        raise UserError(f"{folder.path}/config.json cannot be restored, for no checkpoint has a copy: {config.note}")
    if run is not None and run.numbers:
        for number in run.numbers:
            if folder.exists(f"{CHAINS}/{number}/lock"):
                for line in repair(folder.path / CHAINS / str(number)).done:
                    yield f"chain {number}: {line}"
        return
    method = _method(run)
    yield from _repair_metrics(folder, run is None or run.format > 1)
    yield from _repair_checkpoints(folder, run, method)
    yield from _repair_samples(folder, method)
    for finding in _others(folder, run is None or run.format > 1):
        _check_readable(finding)
        if finding.bad and not finding.name.startswith("own_files"):
            yield _set_aside(folder, finding.name, "it will be computed again")
        elif finding.bad:
            yield f"{finding.name} cannot be restored: put the file back"


def _check_readable(finding: Finding) -> None:
    if finding.condition == "unreadable":
        raise UserError(
            f"{finding.note}: this may be the disk and not the file, so it is not set aside; copy the run to a "
            "sound disk, or take the file out of it, and repair it again"
        )


class _Copies(NamedTuple):
    config: bytes | None
    data: bytes | None


def _repair_settings(folder: Folder) -> Iterator[str]:
    """config.json and data.json from the copies in a checkpoint."""
    copies = _copies(folder)
    for name, copy in (("config.json", copies.config), ("data.json", copies.data)):
        try:
            content = folder.read(name, MOST_JSON) or b""
            fields = parse_json(content, folder.path / name)
            load_json(content, folder.path / name, required="format" in fields or copy is not None)
        except UserError as error:
            _check_readable(_wrong(name, error))
            if copy is None:
                continue
            if _stands(folder, name):
                yield _set_aside(folder, name, str(error))
            folder.write(name, copy)
            yield f"{name} is restored from a checkpoint"


def _copies(folder: Folder) -> _Copies:
    for name in (STATE, OLDER):
        try:
            found = read_checkpoint(folder, name, sealed=True)
        except UserError as error:
            _check_readable(_wrong(name, error))
            continue
        if found is not None and found.copies:
            return _Copies(found.copies.get("config.json"), found.copies.get("data.json"))
    return _Copies(None, None)


def _repair_metrics(folder: Folder, sealed: bool) -> Iterator[str]:
    try:
        content = folder.read("metrics.jsonl")
    except UserError as error:
        _check_readable(_wrong("metrics.jsonl", error))
        yield _set_aside(folder, "metrics.jsonl", str(error))
        return
    found, damaged = records.read(content or b"", sealed)
    if damaged:
        lines = [line for line in (content or b"").splitlines(keepends=True) if records.read(line, sealed)[0]]
        folder.write("metrics.jsonl", b"".join(lines))
        yield f"metrics.jsonl: {damaged} damaged lines are dropped, {len(found)} stay"


def _repair_checkpoints(folder: Folder, run: Run | None, method: Method | None) -> Iterator[str]:
    for name in (STATE, OLDER):
        if not _stands(folder, name):
            continue
        try:
            _read_checkpoint(folder, run, method, name)
        except UserError as error:
            _check_readable(_wrong(name, error))
            yield _set_aside(folder, name, str(error))
    if folder.exists(OLDER) and not folder.exists(STATE):
        folder.move(OLDER, STATE)
        yield "the checkpoint before the damaged one takes its place: doubly resume goes on from there"
    elif not folder.exists(STATE):
        yield "there is no good checkpoint: doubly resume starts the run over"


def _repair_samples(folder: Folder, method: Method | None) -> Iterator[str]:
    """Leave samples that are lost out of the list in the checkpoint, which remembers that they were there."""
    found = read_checkpoint(folder, STATE, sealed=False)
    if found is None or found.samples is None:
        return
    lost = []
    for name, sha256 in sorted(found.samples.items()):
        finding = _finding(folder, name, functools.partial(_check_sample, folder, name, sha256, method))
        _check_readable(finding)
        if finding.bad:
            lost.append(name)
            if finding.condition == "damaged":
                yield _set_aside(folder, name, finding.note)
    if lost:
        kept = {name: sha256 for name, sha256 in found.samples.items() if name not in lost}
        write_checkpoint(folder, found.encoded, kept, [*found.lost, *lost], keep_older=False)
        yield f"{len(lost)} samples are lost, {len(kept)} are kept; the mean of all, in the checkpoint, is not touched"


def _set_aside(folder: Folder, name: str, why: str) -> str:
    folder.move(name, f"{SET_ASIDE}/{name.replace('/', '-')}")
    return f"{name} is set aside into {SET_ASIDE}/: {why}"
