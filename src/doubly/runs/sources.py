"""Members of the user's own: their source goes with the run.

When a run is created, every Python file that its settings name is copied to RUN/own_files; sources.json there says
where each came from and its SHA-256. In config.json, such a file has the first digits of its checksum after its name
(see `core/own_files.py`). When the run is opened, the copies are checked. If the user allows it, they are executed, and
stand for files that have changed or gone away since; otherwise a run with code is refused.
"""

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from doubly.core import own_files
from doubly.core.errors import Damaged, RunWarning, UserError
from doubly.core.files import Folder
from doubly.core.own_files import Source
from doubly.core.registry import split
from doubly.core.sealed import MOST_JSON, dump_json, load_json
from doubly.runs.config import Config

FOLDER = "own_files"
LIST = "sources.json"
MOST_CODE = 2**24  # bytes


class OwnFile(NamedTuple):
    """A copy in a run folder, and the file that it was made of."""

    copy: Path
    origin: Path
    sha256: str


def pinned(config: Config) -> Config:
    """The settings, in which every file of the user's own is named by its absolute path and its checksum."""
    changes: dict[str, Any] = {name: _pinned(name, text) for name, text in texts_with_code(config)}
    return dataclasses.replace(config, **changes)


def keep(folder: Folder, config: Config) -> None:
    """Copy the sources that pinned settings name into the run folder."""
    kept: dict[str, dict[str, str]] = {}
    for name in sorted(_names(config)):
        source = own_files.source(name)
        origin = Path(name.rpartition("#")[0])
        copy = _free(origin, kept)
        folder.write(f"{FOLDER}/{copy}", source.content)
        kept[copy] = {"origin": str(origin), "sha256": source.sha256}
    if kept:
        folder.write(f"{FOLDER}/{LIST}", dump_json(kept))


def use_copies(folder: Folder, config: Config, allow_code: bool) -> None:
    """Check the copies in a run folder, and let them be executed if the user of this process says so.

    This is the one place that decides it. What config.json names is executed from a copy, or from a file of the same
    content; code that a run has no copy of is never executed.
    """
    wanted = _names(config)
    if not wanted:
        return
    copies = {each.sha256[: own_files.DIGITS]: each for each in _copies(folder)}
    for name in sorted(wanted):
        digits = name.rpartition("#")[2]
        if digits not in copies:
            raise UserError(
                f"{folder.path} asks for code, {name}, of which it has no copy in {FOLDER}: it cannot be opened, for "
                "only code that a run brings along, with its checksum, can be allowed"
            )
        each = copies[digits]
        copy = _checked(folder, each)
        if not (allow_code or own_files.is_allowed(copy.sha256)):
            raise UserError(
                f"{folder.path} comes with code, {each.copy} (SHA-256 {copy.sha256[:16]}…), which could do anything: "
                "read it, and if you trust it add --allow-code (in Python, allow_code=True)"
            )
        if allow_code and not own_files.is_allowed(copy.sha256):
            said = f"{each.copy} (SHA-256 {copy.sha256[:16]}…) is executed, as allowed"
            warnings.warn(said, RunWarning, stacklevel=4)
        own_files.offer(copy)


def _checked(folder: Folder, each: OwnFile) -> Source:
    content = folder.read(f"{FOLDER}/{each.copy.name}", MOST_CODE)
    if content is None:
        raise Damaged(f"there is no {each.copy}: put it back")
    copy = Source(each.copy.resolve(), content)
    if copy.sha256 != each.sha256:
        raise Damaged(
            f"{each.copy} has changed: expected SHA-256 {each.sha256[:12]}…, got {copy.sha256[:12]}…; put it back"
        )
    return copy


def check_copies(folder: Folder) -> Iterator[tuple[str, UserError | None]]:
    """Each copy by its name in the folder, with what is wrong with it; nothing is executed."""
    for each in _copies(folder):
        try:
            _checked(folder, each)
        except UserError as error:
            yield f"{FOLDER}/{each.copy.name}", error
        else:
            yield f"{FOLDER}/{each.copy.name}", None


def changed(folder: Folder) -> Iterator[str]:
    """A line for each file that is not what it was when the run was created: its copy is used."""
    for each in _copies(folder):
        if not each.origin.is_file():
            yield f"{each.origin} is gone: the run uses its copy, {each.copy}"
        elif Source.read(each.origin).sha256 != each.sha256:
            yield f"{each.origin} has changed since the run was created: the run uses its copy, {each.copy}"


def _copies(folder: Folder) -> Iterator[OwnFile]:
    name = f"{FOLDER}/{LIST}"
    content = folder.read(name, MOST_JSON)
    if content is None:
        return
    file = folder.path / name
    for name, facts in load_json(content, file, required=False).items():
        try:
            yield OwnFile(folder.path / FOLDER / Path(name).name, Path(facts["origin"]), str(facts["sha256"]))
        except (KeyError, TypeError):
            raise Damaged(f"{file} is damaged: {name} has no origin or no sha256; put it back") from None


def _names(config: Config) -> set[str]:
    """Every file of code that the settings name.

    Where settings name code in a way that is not understood, the whole text counts as a name, of which there can be no
    copy: it is refused.
    """
    found = set()
    for field, text in texts_with_code(config):
        own = own_files_in(field, text)
        if not own and field != "data":
            own = [text]
        found.update(own)
    return found


def texts_with_code(config: Config) -> Iterator[tuple[str, str]]:
    """The settings that may name code: field and text."""
    for field in dataclasses.fields(Config):
        if isinstance(text := getattr(config, field.name), str) and ".py" in text:
            yield field.name, text


def _specs(field: str, text: str) -> list[str]:
    return [text] if field == "data" else split(text)  # a path to data may have commas in it


def own_files_in(field: str, text: str) -> list[str]:
    """The files of code that a setting names."""
    return [name for spec in _specs(field, text) if own_files.is_own_file(name := spec.partition(":")[0])]


def _pinned(field: str, text: str) -> str:
    if not own_files_in(field, text):
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
