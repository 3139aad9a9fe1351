"""What commands share: run folders as arguments, settings among the flags, results as text or JSON."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import tyro

from doubly.core.errors import UserError, near, printable
from doubly.core.launch import is_first

if TYPE_CHECKING:
    from doubly.analysis.results import Result

RunFolder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="A run folder.")]
RunFolders = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN …]", help="Run folders.")]
AllowCode = Annotated[
    bool, tyro.conf.arg(help="Let code that the run brings along be executed: only if you trust who made it.")
]
Settings = TypeVar("Settings")


def some(folders: tuple[str, ...]) -> tuple[str, ...]:
    """The run folders, of which there must be one at least."""
    if not folders:
        raise UserError("name a run folder, as in: doubly evaluate runs/mine (see doubly --help)")
    return folders


def check_folders(command: object) -> None:
    """Refuse a run folder that is not there, before PyTorch is imported."""
    for folder in map(Path, (*getattr(command, "folders", ()), getattr(command, "folder", ""))):
        try:
            if not folder.name or folder.exists():
                continue
            beside = [str(each) for each in folder.parent.iterdir()] if folder.parent.is_dir() else []
        except OSError:  # a name that is too long, a folder that may not be read: opening the run says so
            continue
        else:
            raise UserError(
                f"{folder} holds no run{near(str(folder), beside)}: there is no such folder; make one with doubly fit "
                f"--out {folder}"
            )


def allow_code(command: object) -> None:
    """Where a command says so, let the code of its runs be executed in this process."""
    if getattr(command, "allow_code", False):
        from doubly.runs.folder import Run

        for folder in getattr(command, "folders", ()) or (getattr(command, "folder", ""),):
            Run(folder, allow_code=True)


def settings(command: object, kind: type[Settings]) -> Settings:
    """The flags of a command that are settings of this kind."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(command, name) for name in names})


def show(result: "Result", as_json: bool) -> None:
    """Print a result: one JSON value, or text for people. Of several ranks, the first does."""
    if not is_first():
        return
    print(json.dumps(result.to_json()) if as_json else printable(result.text()))
