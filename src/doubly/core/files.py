"""Files: written whole or not at all, locked, and read with errors that name them."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from doubly.core.errors import UserError


def write(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old content or the new one is there, whole."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from moving the same chain; the lock goes with the process, however it ends."""
    with writing(folder):
        lock = open(folder / "lock", "w")  # noqa: SIM115 - closed below, so that only opening it is guarded
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is working on {folder}: wait for it or stop it") from None
        yield


@contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds {type(found).__name__}, not names and values")
    return found
