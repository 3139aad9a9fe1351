"""Learning: fit, resume, profile."""

import math
import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from doubly.cli.formatting import AllowCode, RunFolder, settings, show
from doubly.cli.names import check_names
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
    """Settings of a whole method by name (see `doubly list`); flags given beside it win over them."""
    config: str | None = None
    """A file of settings (TOML), each by its flag's name, as in hidden = [200, 200]; flags win over it."""
    overwrite: bool = False
    """Replace a run that is already in that folder."""
    json: bool = False
    """Print one JSON object at the end; progress goes to standard error."""
    tracker: str | None = None
    """Also send the numbers of each epoch to tensorboard, mlflow or wandb (each an extra to install)."""

    def run(self) -> None:
        began = time.monotonic()
        config = settings(self, Config)
        check_names(config)
        from doubly.kernels.choose import compile_seconds
        from doubly.runs.fit import fit_config
        from doubly.runs.trackers import Listeners, tracker

        listeners = Listeners(tracker=tracker(self.tracker))
        compiled = compile_seconds()
        run = fit_config(config, self.out, self.overwrite, listeners=listeners, began=began)
        _say_finished(run, self.json, began + 60 * config.minutes + compile_seconds() - compiled)


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
        check_names(settings(self, Config))
        from doubly.analysis.profile import profile

        show(profile(settings(self, Config), self.steps), self.json)


@dataclass(frozen=True)
class Resume:
    """Continue a run that was stopped; the result is bit for bit that of a run without the stop."""

    folder: RunFolder
    allow_code: AllowCode = False
    threads: int = 0
    """Threads to compute with; 0 takes the number the run began with (another number changes the last bits)."""

    json: bool = False
    """Print one JSON object at the end; progress goes to standard error."""
    tracker: str | None = None
    """Also send the numbers of each epoch to tensorboard, mlflow or wandb (each an extra to install)."""

    def run(self) -> None:
        from doubly.runs.fit import resume
        from doubly.runs.trackers import Listeners, tracker

        listeners = Listeners(tracker=tracker(self.tracker))
        run = resume(self.folder, False, self.threads, allow_code=self.allow_code, listeners=listeners)
        _say_finished(run, self.json)


def _say_finished(run: "Run", as_json: bool, until: float = math.inf) -> None:
    """What the fit came to; within a budget, after a short evaluation, which ends at the time `until`.

    Of several ranks, the first says it.
    """
    from doubly.core.launch import is_first

    if not is_first():
        return
    from doubly.analysis.outcome import outcome

    show(outcome(run, evaluate=run.config.minutes > 0, until=until), as_json)
    if not as_json:
        folder = shlex.quote(str(run.path))
        print(f"next: doubly evaluate {folder}, doubly report {folder}")
