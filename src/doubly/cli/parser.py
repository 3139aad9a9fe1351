"""The command line: one command, or one line that says what was wrong.

Each command is a dataclass, whose fields are its flags, with a `run` method; a file for each group of commands. Results
go to standard output, progress to standard error; a user's mistake is one line and exit code 2. What is heavy is
imported when a command runs.
"""

import contextlib
import dataclasses
import io
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import tyro

import doubly
from doubly.cli.check import Check
from doubly.cli.data import Data
from doubly.cli.evaluate import Compare, Curve, Diagnose, Evaluate
from doubly.cli.export import Export
from doubly.cli.fit import Fit, Profile, Resume
from doubly.cli.flags import check_flags, defaults, help_text, overview
from doubly.cli.formatting import allow_code, check_folders
from doubly.cli.hub import Pull, Push
from doubly.cli.impute import Impute, Sample
from doubly.cli.paper import Reproduce
from doubly.cli.registries import List
from doubly.cli.report import Report
from doubly.cli.serve import Serve
from doubly.cli.tables import Fill, Odd
from doubly.cli.verify import Repair, Verify
from doubly.core.errors import RunWarning, UserError, near, one_line
from doubly.runs.config import Config

COMMANDS: tuple[type, ...] = (
    Fit,
    Resume,
    Profile,
    Evaluate,
    Compare,
    Curve,
    Diagnose,
    Sample,
    Impute,
    Fill,
    Odd,
    Export,
    Push,
    Pull,
    Data,
    Report,
    Serve,
    Verify,
    Repair,
    Reproduce,
    List,
    Check,
)
LONGEST = 300  # characters of what the parser says


def main(args: list[str] | None = None) -> None:
    """Run one command, turning a user's mistake into one line and exit code 2."""
    args = sys.argv[1:] if args is None else args
    try:
        with _one_line_warnings():
            command = _parse(args)
            check_folders(command)
            allow_code(command)
            command.run()
    except UserError as error:
        print(f"doubly: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _is_of_memory(error):
            raise
        said = "this needs more memory than there is: take fewer draws, rows or units at a time"
        print(f"doubly: {said} ({one_line(error)[:LONGEST]})", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        print(f"doubly: {stop}" if str(stop) else "doubly: interrupted", file=sys.stderr)
        sys.exit(128 + getattr(stop, "number", 2))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _is_of_memory(error: Exception) -> bool:
    """Whether memory was refused: PyTorch says so in words."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


@contextlib.contextmanager
def _one_line_warnings() -> Iterator[None]:
    """What a user should know of a run is a line of its own on standard error."""

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, RunWarning):
            print(f"doubly: warning: {one_line(message)}", file=sys.stderr)
        else:
            usual(message, category, *rest, **more)

    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.simplefilter("default", RunWarning)
        warnings.showwarning = show
        yield


def _parse(args: list[str]) -> Any:
    """The command that the arguments name, with its flags. Only its own parser is built."""
    by_name = {command.__name__.lower(): command for command in COMMANDS}
    args = args or ["--help"]
    first = args[0]
    if first in ("-V", "--version"):
        print(f"doubly {doubly.__version__}")
        sys.exit(0)
    if first in ("-h", "--help"):
        print(overview(_first_line(doubly), by_name))
        sys.exit(0)
    if not first.startswith("-") and first not in by_name:
        raise UserError(f"doubly has no command {first!r}{near(first, by_name)}; see doubly --help")
    if first in by_name:
        command = by_name[first]
        check_flags(command, first, args[1:])
        if issubclass(command, Config) and {"-h", "--help"} & set(args):
            example = f"doubly {first} --data digits" + (" --minutes 5 --out runs/digits" if command is Fit else "")
            print(help_text(command, first, defaults(command, args), example))
            sys.exit(0)
        by_name = {first: command, "": _Nothing}  # with a second one, the first is still named
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(_choices(by_name, args), prog="doubly", description=_first_line(doubly), args=args)
    except SystemExit as stop:
        if stop.code:
            raise UserError(f"{_one_line(said.getvalue())}; see doubly {first} --help".replace("  ", " ")) from None
        raise


@dataclasses.dataclass(frozen=True)
class _Nothing:
    """No command."""


def _choices(by_name: dict[str, type], args: list[str]) -> Any:
    choices: Any = None
    for name, command in by_name.items():
        default: Any = {"default": defaults(command, args)} if issubclass(command, Config) else {}
        marker = tyro.conf.subcommand(name or "nothing", prefix_name=False, **default)
        kind = Annotated[command, marker]  # type: ignore[valid-type]
        choices = kind if choices is None else choices | kind
    return choices


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").split("\n")[0]


def _one_line(box: str) -> str:
    """The parser's boxed message, unboxed: what is wrong, without the repeated help."""
    lines = [re.sub("[╭╮╰╯│─]+", " ", line).strip() for line in box.splitlines()[1:]]
    said: list[str] = []
    for line in lines:
        if line.startswith(("Argument helptext", "For full helptext", "Perhaps you meant")):
            break
        said.append(line)
    line = re.sub(r"\s+", " ", " ".join(said)).strip()
    return line if len(line) <= LONGEST else line[: LONGEST - 2] + " …"
