"""Learning: fit, resume, profile."""

import dataclasses
import json
import shlex
from dataclasses import dataclass
from typing import Any

from doubly.cli.formatting import RunFolder
from doubly.runs.config import Config, in_order


@in_order
@dataclass(frozen=True)
class Fit(Config):
    """Learn a model from data into a new run folder."""

    out: str = "runs/latest"
    """The run folder to make."""
    preset: str | None = None
    """Settings by name (see `doubly list`); the flags given beside it win."""
    overwrite: bool = False
    """Replace a run that is already in that folder."""

    def run(self) -> None:
        from doubly.runs.fit import fit_config

        names = [field.name for field in dataclasses.fields(Config)]
        run = fit_config(Config(**{name: getattr(self, name) for name in names}), self.out, self.overwrite)
        _say_finished(run)


@in_order
@dataclass(frozen=True)
class Profile(Config):
    """Where the time of a training step goes, for the same flags as fit."""

    steps: int = 100
    """Steps to measure."""
    preset: str | None = None
    """Settings by name (see `doubly list`); the flags given beside it win."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.profile import profile

        names = [field.name for field in dataclasses.fields(Config)]
        found = profile(Config(**{name: getattr(self, name) for name in names}), self.steps)
        if self.json:
            print(json.dumps(found._asdict() | {"phases": [phase._asdict() for phase in found.phases]}))
            return
        print(f"{found.milliseconds:.2f} ms a step: {found.weights} weights, {found.threads} threads")
        for name, milliseconds, share in found.phases:
            print(f"{name:24}{milliseconds:9.2f} ms{share:7.0%}")


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, bit for bit as if it had not been."""

    folder: RunFolder
    threads: int = 0
    """Threads to compute with; 0 takes the number the run began with (another number changes the last bits)."""

    def run(self) -> None:
        from doubly.runs.fit import resume

        run = resume(self.folder, threads=self.threads)
        _say_finished(run)


def _say_finished(run: Any) -> None:
    next_command = f"doubly evaluate {shlex.quote(str(run.path))}"
    print(f"{run.path}: finished after {len(run.metrics())} epochs; next: {next_command}")
