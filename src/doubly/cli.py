"""The command line: fit · resume · evaluate · sample · report · list.

Each command is a dataclass, whose fields are its flags, with a `run` method. Results go to standard output, progress to
standard error; a user's mistake is one line and exit code 2. What is heavy is imported when a command runs.
"""

import contextlib
import dataclasses
import io
import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from doubly.config import Config, preset
from doubly.errors import UserError

RunFolder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="A run folder.")]
Of = Literal["mean", "ensemble", "last"]


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
        from doubly.drive import fit_config

        names = [field.name for field in dataclasses.fields(Config)]
        run = fit_config(Config(**{name: getattr(self, name) for name in names}), self.out, self.overwrite)
        _say_finished(run)


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped, bit for bit as if it had not been."""

    folder: RunFolder
    threads: int = 0
    """Threads to compute with; 0 takes the number the run began with (another number changes the last bits)."""

    def run(self) -> None:
        from doubly.drive import resume

        run = resume(self.folder, threads=self.threads)
        _say_finished(run)


@dataclass(frozen=True)
class Evaluate:
    """Log-likelihood of held-out rows, by importance sampling with a proposal fitted to the weights scored."""

    folder: RunFolder
    split: Literal["train", "valid", "test"] = "test"
    """Which rows to score."""
    draws: int = 1000
    """Draws of the hidden variables for each row (the paper's K)."""
    of: Of = "mean"
    """The posterior mean of the weights, an ensemble of samples of them, or the last sample."""
    refit: int = 100
    """Passes over the training rows that fit a copy of the proposal to those weights."""
    seed: int = 0
    """Seed of the draws."""
    threads: int = 0
    """Threads to compute with; 0 takes the number the run was fitted with."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.drive import use_threads
        from doubly.evaluate import summary
        from doubly.progress import Progress
        from doubly.run import Run, write

        run = Run(self.folder)
        data = run.data()
        rows = data.split(self.split)
        if self.refit < 0:
            raise UserError(f"refit must not be negative, got {self.refit}")
        with Progress() as progress, use_threads(self.threads or run.config.threads):
            posterior = run.posterior(
                refit_passes=self.refit,
                progress=lambda what, done, total: progress.show(f"{what}: {done}/{total}"),
            )
            score = summary(posterior.score(rows, self.draws, self.of, self.seed))
        found: dict[str, Any] = {
            **score._asdict(),
            "epoch": posterior.epoch,
            "collected": posterior.collected,
            "draws": self.draws,
            "split": self.split,
            "of": self.of,
            "refit": self.refit,
            "seed": self.seed,
        }
        if data.log_density is not None:
            found["truth"] = float(data.log_density(rows).mean())
        file = run.path / "evaluations" / f"{self.split}-{self.of}-{self.draws}.json"
        write(file, json.dumps(found, indent=2).encode() + b"\n")
        if self.json:
            print(json.dumps(found))
        else:
            error = "" if score.stderr is None else f" ± {score.stderr:.3f}"
            how = f"{self.draws} draws, {score.ess:.1f} of them effective" if run.config.hidden else "exact"
            known = f"\nthe data's own density gives {found['truth']:.3f}" if "truth" in found else ""
            print(
                f"log-likelihood of {score.n} {self.split} rows: {score.log_likelihood:.3f}{error} nats "
                f"({self.of} of the weights, {how}){known}"
            )


@dataclass(frozen=True)
class Sample:
    """Draw new rows from what has been learnt."""

    folder: RunFolder
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 100
    """How many rows."""
    out: str = "samples.png"
    """Where to: a file ending in .npz, .npy, .csv or .png."""
    of: Of = "mean"
    """Weights to draw with: the posterior mean, a sample of them anew for each row, or the last sample."""
    seed: int = 0
    """Seed of the draws."""

    def run(self) -> None:
        from doubly.report.files import save_rows
        from doubly.run import Run

        run = Run(self.folder)
        save_rows(Path(self.out), run.posterior().sample(self.n, self.of, self.seed), run.facts.shape)
        print(f"{self.n} rows in {self.out}")


@dataclass(frozen=True)
class Report:
    """Make RUN/report.html: results, curves, data, samples and weights in one file."""

    folder: RunFolder

    def run(self) -> None:
        from doubly.report import make

        table, path = make(self.folder)
        print(table)
        print(f"report: {path}")


@dataclass(frozen=True)
class List:
    """Every registered layer, sampler, prior, estimator, objective, data set and preset."""

    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.catalogue import catalogue, table

        print(json.dumps(catalogue()) if self.json else table(), end="\n")


COMMANDS: tuple[type, ...] = (Fit, Resume, Evaluate, Sample, Report, List)


def main(args: list[str] | None = None) -> None:
    """Run one command, turning a user's mistake into one line and exit code 2."""
    args = sys.argv[1:] if args is None else args
    try:
        _parse(args).run()
    except UserError as error:
        print(f"doubly: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as stop:
        print(f"doubly: {stop}" if str(stop) else "doubly: interrupted", file=sys.stderr)
        sys.exit(128 + getattr(stop, "number", 2))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def _say_finished(run: Any) -> None:
    next_command = f"doubly evaluate {shlex.quote(str(run.path))}"
    print(f"{run.path}: finished after {len(run.metrics())} epochs; next: {next_command}")


def _parse(args: list[str]) -> Any:
    choices: Any = None
    for command in COMMANDS:
        default: Any = {"default": _fit_default(args)} if command is Fit else {}
        marker = tyro.conf.subcommand(command.__name__.lower(), prefix_name=False, **default)
        kind = Annotated[command, marker]  # type: ignore[valid-type]
        choices = kind if choices is None else choices | kind
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(choices, prog="doubly", description=_first_line(sys.modules["doubly"]), args=args)
    except SystemExit as stop:
        if stop.code:
            raise UserError(_one_line(said.getvalue())) from None
        raise


def _fit_default(args: list[str]) -> Fit:
    """The defaults of `fit`: those of the preset that the arguments name, where they do."""
    names = [
        arg.partition("=")[2] or following
        for arg, following in zip(args, [*args[1:], ""], strict=False)
        if re.match("--preset(=|$)", arg)
    ]
    if not names:
        return Fit()
    return Fit(**dataclasses.asdict(preset(names[-1])), preset=names[-1])


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").split("\n")[0]


def _one_line(box: str) -> str:
    """The parser's boxed message, unboxed: what is wrong, without the repeated help."""
    lines = [re.sub("[╭╮╰╯│─]+", " ", line).strip() for line in box.splitlines()[1:]]
    said = []
    for line in lines:
        if line.startswith(("Argument helptext", "For full helptext")):
            break
        said.append(line)
    return re.sub(r"\s+", " ", " ".join(said)).strip() + " (see doubly --help)"
