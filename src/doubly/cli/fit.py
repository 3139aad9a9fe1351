"""Learning: fit, resume, profile."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from doubly.cli.formatting import AllowCode, RunFolder, settings, show
from doubly.runs.config import Config, in_order

if TYPE_CHECKING:
    from doubly.runs.folder import Run


@in_order
@dataclass(frozen=True)
class Fit(Config):
    """Learn a model from data into a new run folder."""

    out: str = "runs/latest"
    """The run folder to make."""
    preset: str | None = None
    """Settings by name (see `doubly list`); flags given beside it win over them."""
    overwrite: bool = False
    """Replace a run that is already in that folder."""

    def run(self) -> None:
        from doubly.runs.fit import fit_config

        _say_finished(fit_config(settings(self, Config), self.out, self.overwrite))


@in_order
@dataclass(frozen=True)
class Profile(Config):
    """Where the time of a training step goes, for the same flags as fit."""

    steps: int = 100
    """Steps to measure."""
    preset: str | None = None
    """Settings by name (see `doubly list`); flags given beside it win over them."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.profile import profile

        show(profile(settings(self, Config), self.steps), self.json)


@dataclass(frozen=True)
class Resume:
    """Continue a run that was stopped; the result is bit for bit that of a run without the stop."""

    folder: RunFolder
    allow_code: AllowCode = False
    threads: int = 0
    """Threads to compute with; 0 takes the number the run began with (another number changes the last bits)."""

    def run(self) -> None:
        from doubly.runs.fit import resume

        _say_finished(resume(self.folder, threads=self.threads))


def _say_finished(run: "Run") -> None:
    next_command = f"doubly evaluate {shlex.quote(str(run.path))}"
    print(f"{run.path}: finished after {len(run.metrics())} epochs; next: {next_command}")
