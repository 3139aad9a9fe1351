"""What, when, where: the settings, the data, the machine, the versions, and the command that makes the run again."""

import dataclasses
import datetime
import shlex
import subprocess
from pathlib import Path
from typing import Any

from doubly import __version__
from doubly.analysis.report.page import Section, Table, Words
from doubly.analysis.report.story import Story
from doubly.analysis.report.svg import plain_text
from doubly.data import SPLITS
from doubly.runs.config import Config
from doubly.runs.folder import Run
from doubly.runs.progress import span


def settings(story: Story) -> Section:
    """Everything that is needed to make the run again."""
    config = {name: plain_text(_words(value), 200) for name, value in dataclasses.asdict(story.run.config).items()}
    defaults = {field.name: _words(field.default) for field in dataclasses.fields(Config)}
    lines = [
        [name, value, "" if value == defaults[name] else f"default: {defaults[name]}"] for name, value in config.items()
    ]
    return Section(
        "Settings and origin",
        "What made this run, and how to make it again:",
        [
            Words(plain_text(command(story.run.config, story.run.path), 4000), code=True),
            Table(["", ""], origin(story), numbers=False),
            Table(["setting", "value", ""], lines, numbers=False, folded="All settings"),
        ],
    )


def origin(story: Story) -> list[list[str]]:
    """What, when and where, line by line."""
    data, run = story.data, story.run
    shape = "×".join(str(n) for n in data.shape) if len(data.shape) > 1 else f"{data.width} columns"
    if story.table and data.columns is not None:
        shape = f"{len(data.columns.columns)} columns"
    counts = ", ".join(f"{len(data.split(split))} {split}" for split in SPLITS)
    began, ended = _when(run, "config.json"), _when(run.chains[0], "metrics.jsonl")
    seconds = span(sum(record["seconds"] for record in story.metrics))
    made = ", ".join(f"{plain_text(name)} {plain_text(value)}" for name, value in run.made.items())
    return [
        ["data", f"{plain_text(data.name, 100)}: {counts} rows of {shape}"],
        ["checksum of the data", f"SHA-256 {plain_text(run.data_digest, 64)}"],
        ["when", f"begun {began}, last epoch {ended} (UTC, by the files' dates); {seconds} of training"],
        ["where", made or "not written down"],
        ["folder", plain_text(run.path, 300)],
        ["this page", f"doubly {__version__}{commit()}"],
    ]


def _when(run: Run, name: str) -> str:
    """The date of a file; of a copied folder it is that of the copy."""
    try:
        stamp = (run.path / name).lstat().st_mtime
    except OSError:
        return "at an unknown time"
    return datetime.datetime.fromtimestamp(stamp, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def commit() -> str:
    """The commit of the code, where it is run from its repository."""
    folder = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty"],
            check=True,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return f", commit {plain_text(found.stdout)}"


def command(config: Config, folder: str | Path) -> str:
    """The command that makes the run again: what differs from the defaults."""
    words = ["doubly", "fit"]
    for field in dataclasses.fields(Config):
        value, flag = getattr(config, field.name), "--" + field.name.replace("_", "-")
        if value == field.default:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, *map(str, value if isinstance(value, tuple) else [value])]
    return shlex.join([*words, "--out", str(folder)])


def _words(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
