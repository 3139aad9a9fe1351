"""The flags of a command: their help in groups, those that do not exist, and settings from a file."""

import dataclasses
import re
import shutil
import sys
import textwrap
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from doubly.core.documented import field_docs
from doubly.core.errors import UserError, near
from doubly.runs.config import GROUPS, Config
from doubly.runs.presets import preset

MOST_TOML = 2**20  # bytes of a file of settings
BOTH_WAYS = ("help",)
METAVARS = {"data": "NAME|FILE", "out": "FOLDER", "config": "FILE.toml", "preset": "NAME", "hidden": "N [N …]"}
KINDS = {int: "N", float: "X", str: "NAME", bool: ""}


def check_flags(command: type, name: str, args: Sequence[str]) -> None:
    """Refuse a flag that the command has not, in one line."""
    known = {*BOTH_WAYS, "tyro-print-completion", "tyro-write-completion"}
    for field in dataclasses.fields(command):
        known |= {_dashed(field.name)} | ({f"no-{_dashed(field.name)}"} if field.type in (bool, "bool") else set())
    for arg in args:
        given = re.match(r"--([A-Za-z][\w-]*)", arg)
        if given and _dashed(given[1]) not in known:
            meant = near(given[1], known - {"tyro-print-completion", "tyro-write-completion"}).replace(
                "mean ", "mean --"
            )
            raise UserError(f"doubly {name} has no flag --{given[1]}{meant}; see doubly {name} --help")


def last_value(args: Sequence[str], flag: str) -> str | None:
    """What the arguments give a flag, the last time they name it."""
    found = [
        arg.partition("=")[2] or following
        for arg, following in zip(args, [*args[1:], ""], strict=False)
        if re.match(f"--{flag}(=|$)", arg)
    ]
    return found[-1] if found else None


def defaults(command: Any, args: Sequence[str]) -> Any:
    """The defaults of `fit` and its like: those of a preset, then those of a file of settings, where they are named."""
    file = last_value(args, "config") if "config" in command.__dataclass_fields__ else None
    fields = read_settings(command, file) if file else {}
    name = last_value(args, "preset") or fields.get("preset")
    base = vars(preset(name)) | {"preset": name} if name else {}
    return command(**base | fields | ({"config": file} if file else {}))


def read_settings(command: type, file: str) -> dict[str, Any]:
    """The settings in a TOML file: flags by name. An unknown name is an error, and so is a value of another type."""
    path = Path(file)
    try:
        with path.open("rb") as opened:  # which may be a pipe, whose size nobody knows before
            text = opened.read(MOST_TOML + 1)
    except OSError as error:
        raise UserError(f"--config {file} cannot be read: {error.strerror or error}") from None
    if len(text) > MOST_TOML:
        raise UserError(f"{file} is larger than {MOST_TOML // 2**20} MB: settings take a few lines")
    try:
        content = tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of the syntax, of the encoding, of numbers with thousands of digits
        raise UserError(f"--config {file} is no TOML: {' '.join(str(error).split())[:200]}") from None
    known = {field.name: field for field in dataclasses.fields(command) if field.name not in ("config", "json")}
    found = {}
    for given, value in content.items():
        name = given.replace("-", "_")
        if name not in known:
            raise UserError(f"{file} has no flag's name in {given!r}{near(name, known)}; see doubly fit --help")
        if isinstance(value, dict):
            raise UserError(f"{given} in {file} must be a value, got a table: write {given} = VALUE")
        kind = type(known[name].default)
        if name not in Config.__dataclass_fields__ and kind in (bool, str) and type(value) is not kind:
            raise UserError(f"{given} in {file} must be {'true or false' if kind is bool else 'a text'}, got {value!r}")
        if name in ("preset", "tracker") and not isinstance(value, str):
            raise UserError(f"{given} in {file} must be a text, got {value!r}")
        found[name] = tuple(value) if isinstance(value, list) else value
    return found


def overview(about: str, commands: Mapping[str, type]) -> str:
    """All commands, with a line on each."""
    width = _width()
    lines = ["usage: doubly COMMAND [flags]", "", about, "", "commands:"]
    for name, command in commands.items():
        first, *more = textwrap.wrap((command.__doc__ or "").split("\n")[0], width - 14, break_on_hyphens=False)
        lines += [f"  {name:<12}{first}", *(" " * 14 + line for line in more)]
    return "\n".join([*lines, "", "doubly COMMAND --help shows the flags of a command; doubly --version the version."])


def help_text(command: Any, name: str, shown: Any, example: str) -> str:
    """All flags in their groups, basic ones first, each with what it does and its default."""
    docs, kinds = field_docs(command), typing.get_type_hints(command)
    there = [field.name for field in dataclasses.fields(command)]
    grouped = {title: [flag for flag in names if flag in there] for title, names in GROUPS.items()}
    grouped["basic"] += [flag for flag in there if not any(flag in names for names in grouped.values())]
    width = _width()
    lines = [f"usage: doubly {name} [flags]", "", f"{(command.__doc__ or '').strip()} For example:", "", f"  {example}"]
    for title, flags in grouped.items():
        lines += ["", f"{title}:"]
        for flag in flags:
            lines += _one_flag(flag, kinds[flag], docs.get(flag, ""), getattr(shown, flag), width)
    return "\n".join(lines)


def _width() -> int:
    return min(100, shutil.get_terminal_size().columns if sys.stdout.isatty() else 100)


def _one_flag(name: str, kind: Any, text: str, default: Any, width: int) -> Iterator[str]:
    given = METAVARS.get(name) or _metavar(kind)
    flag = f"--{_dashed(name)} {given}".rstrip()
    said = "none" if default in (None, ()) else str(default)
    if isinstance(default, tuple) and default:
        said = " ".join(map(str, default))
    text = f"{text} (default: {said})" if kind is not bool else text
    body = textwrap.wrap(text, width - 26, break_on_hyphens=False)
    if len(flag) > 22:
        yield f"  {flag}"
    else:
        yield f"  {flag:<22}  {body.pop(0)}"
    for line in body:
        yield " " * 26 + line


def _metavar(kind: Any) -> str:
    choices = [str(value) for each in (kind, *typing.get_args(kind)) for value in _literals(each)]
    plain = [KINDS[each] for each in (kind, *typing.get_args(kind)) if each in KINDS]
    return "|".join([*plain, *choices])


def _literals(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _dashed(name: str) -> str:
    return name.replace("_", "-").lower()
