"""A user's own Python file: executed once, known by its path and its checksum.

`my_file.py` is the file as it is now. `my_file.py#0123456789abcdef` is the file as it was when its SHA-256 began with
these digits. A run writes the second into its settings and keeps a copy of the source, which it offers here when it is
opened. So the same source gives the same classes, and a file that changed is never mistaken for what it was.

A plain name is one that the user of this process has typed: naming a file is the word to execute it. A name with a
checksum comes from a run, and maybe from a stranger: it is executed only if that very source was executed before in
this process or was offered, which a run does only where the user has allowed it.
"""

import hashlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from doubly.core.errors import UserError

DIGITS = 16  # of the SHA-256, in a spec


class Source(NamedTuple):
    """The content of a file and where it lies."""

    path: Path
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @classmethod
    def read(cls, path: Path) -> "Source":
        try:
            return cls(path.resolve(), path.read_bytes())
        except FileNotFoundError:
            raise UserError(f"there is no file {path}") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


# of each file, what this process executed first: no other content of it is executed under its plain name
_first: dict[Path, Source] = {}
# what was executed, by checksum, and by path unless it was a copy: copies of one source in several runs are one module
_modules: dict[tuple[Path | None, str], ModuleType] = {}
_offered: dict[str, Source] = {}


def is_own_file(name: str) -> bool:
    """Whether a name is that of a Python file, with or without a checksum.

    >>> is_own_file("my_file.py"), is_own_file("my_file.py#0123456789abcdef"), is_own_file("sbn")
    (True, True, False)
    """
    return _split(name)[0].endswith(".py")


def member(name: str, attribute: str) -> Any:
    """The class or function of this name in an own file, which is executed unless it has been."""
    module = _module(name)
    if not hasattr(module, attribute):
        raise UserError(f"{name} has no class or function {attribute!r}")
    return getattr(module, attribute)


def pinned(name: str) -> str:
    """The name with an absolute path and the checksum of the file as it was executed, or as it is."""
    path, digits = _split(name)
    return name if digits else f"{Path(path).resolve()}#{source(name).sha256[:DIGITS]}"


def source(name: str) -> Source:
    """The source that a name stands for: the file where it lies, or a copy if that has changed or gone away."""
    path, digits = _split(name)
    resolved = Path(path).resolve()
    if resolved in _first and _first[resolved].sha256.startswith(digits):
        return _first[resolved]
    if not digits:
        return Source.read(Path(path))
    if resolved.is_file() and is_allowed((there := Source.read(resolved)).sha256) and there.sha256.startswith(digits):
        return there
    if digits in _offered:
        return _offered[digits]
    raise UserError(
        f"{path} is not the file whose SHA-256 begins with {digits}, or was not allowed, and no copy of it is at hand: "
        "open the run that keeps a copy, with --allow-code (in Python, allow_code=True)"
    )


def offer(copy: Source) -> None:
    """Allow this source, and let the copy stand for the file it was made of, should that have changed or gone away."""
    _offered[copy.sha256[:DIGITS]] = copy


def is_allowed(sha256: str) -> bool:
    """Whether the user of this process has let this very source be executed, by naming its file or by allowing it."""
    executed = any(digest == sha256 for _, digest in _modules)
    return executed or (sha256[:DIGITS] in _offered and _offered[sha256[:DIGITS]].sha256 == sha256)


def _split(name: str) -> tuple[str, str]:
    path, found, digits = name.rpartition("#")
    return (path, digits) if found and re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", digits) else (name, "")


def _module(name: str) -> ModuleType:
    path, digits = _split(name)
    resolved, wanted = Path(path).resolve(), source(name)
    if not digits and Source.read(Path(path)).sha256 != wanted.sha256:
        raise UserError(f"{path} has changed since this process executed it: start a new process to use it")
    in_place = wanted.path == resolved
    key = (resolved if in_place else None, wanted.sha256)
    if key not in _modules:
        _modules[key] = _execute(wanted)
    if in_place:
        _first.setdefault(resolved, wanted)
    return _modules[key]


def _execute(source: Source) -> ModuleType:
    # a name that no other module has; dataclasses look their module up by it
    where = hashlib.sha256(str(source.path).encode()).hexdigest()[:8]
    name = f"doubly_own_{source.path.stem}_{where}_{source.sha256[:8]}"
    spec = importlib.util.spec_from_file_location(name, source.path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(source.content, str(source.path), "exec", dont_inherit=True), module.__dict__)  # these very bytes
    except Exception as error:  # whatever the user's file does wrong is the user's to mend
        del sys.modules[name]
        raise UserError(f"{source.path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
