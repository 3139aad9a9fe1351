"""Members of the user's own: their source goes with the run.

When a run is created, every Python file that its settings name is copied to RUN/own_files; sources.json there says
where each came from and its SHA-256. In config.json, such a file has the first digits of its checksum after its name
(see `core/own_files.py`). When the run is opened, the copies are checked, and they stand for files that have changed or
gone away since.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from doubly.core import own_files
from doubly.core.errors import UserError
from doubly.core.files import read_json, write
from doubly.core.own_files import Source
from doubly.core.registry import split
from doubly.runs.config import Config

FOLDER = "own_files"


class OwnFile(NamedTuple):
    """A copy in a run folder, and the file that it was made of."""

    copy: Path
    origin: Path
    sha256: str


def may_execute(folder: Path) -> bool:
    """Whether code that came with this run may be executed: the one place where that is decided."""
    return True


def pinned(config: Config) -> Config:
    """The settings, in which every file of the user's own is named by its absolute path and its checksum."""
    changes: dict[str, Any] = {name: _pinned(name, text) for name, text in _texts(config)}
    return dataclasses.replace(config, **changes)


def keep(folder: Path, config: Config) -> None:
    """Copy the sources that pinned settings name into the run folder."""
    kept: dict[str, dict[str, str]] = {}
    for name in sorted({name for field, text in _texts(config) for name in _own_files(field, text)}):
        source = own_files.source(name)
        origin = Path(name.rpartition("#")[0])
        copy = _free(origin, kept)
        write(folder / FOLDER / copy, source.content)
        kept[copy] = {"origin": str(origin), "sha256": source.sha256}
    if kept:
        write(folder / FOLDER / "sources.json", json.dumps(kept, indent=2).encode() + b"\n")


def use_copies(folder: Path, config: Config) -> None:
    """Check the copies in a run folder, and let them stand for the files they were made of."""
    named = [name for field, text in _texts(config) for name in _own_files(field, text)]
    if named and not may_execute(folder):
        raise UserError(f"{folder} comes with code ({named[0]}), which may not be executed here")
    for each in _copies(folder):
        copy = Source.read(each.copy)
        if copy.sha256 != each.sha256:
            raise UserError(
                f"{each.copy} has changed: expected SHA-256 {each.sha256[:12]}…, got {copy.sha256[:12]}…; put it back"
            )
        own_files.offer(copy)


def changed(folder: Path) -> Iterator[str]:
    """A line for each file that is not what it was when the run was created: its copy is used."""
    for each in _copies(folder):
        if not each.origin.is_file():
            yield f"{each.origin} is gone: the run uses its copy, {each.copy}"
        elif Source.read(each.origin).sha256 != each.sha256:
            yield f"{each.origin} has changed since the run was created: the run uses its copy, {each.copy}"


def _copies(folder: Path) -> Iterator[OwnFile]:
    file = folder / FOLDER / "sources.json"
    if not file.exists():
        return
    for name, facts in read_json(file).items():
        try:
            yield OwnFile(folder / FOLDER / Path(name).name, Path(facts["origin"]), str(facts["sha256"]))
        except (KeyError, TypeError):
            raise UserError(f"{file} is damaged: {name} has no origin or no sha256; put it back") from None


def _texts(config: Config) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(Config):
        if isinstance(text := getattr(config, field.name), str) and ".py" in text:
            yield field.name, text


def _specs(field: str, text: str) -> list[str]:
    return [text] if field == "data" else split(text)  # a path to data may have commas in it


def _own_files(field: str, text: str) -> list[str]:
    return [name for spec in _specs(field, text) if own_files.is_own_file(name := spec.partition(":")[0])]


def _pinned(field: str, text: str) -> str:
    if not _own_files(field, text):
        return text
    parts = [spec.partition(":") for spec in _specs(field, text)]
    return ",".join(
        (own_files.pinned(name) if own_files.is_own_file(name) else name) + colon + rest for name, colon, rest in parts
    )


def _free(origin: Path, taken: dict[str, dict[str, str]]) -> str:
    """A name for a copy: that of the file, with a number where two files of different folders have the same."""
    name, number = origin.name, 1
    while name in taken:
        number += 1
        name = f"{origin.stem}-{number}{origin.suffix}"
    return name
