"""The command line: fit, resume, profile, evaluate, compare, curve, diagnose, sample, impute, data, report,
reproduce, list.

Each command is a dataclass, whose fields are its flags, with a `run` method. Results go to standard output, progress to
standard error; a user's mistake is one line and exit code 2. What is heavy is imported when a command runs.
"""

import contextlib
import dataclasses
import io
import json
import math
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from doubly.choices import Filling, Hide, Of, Over, Split
from doubly.config import Config, Question, preset
from doubly.errors import UserError

RunFolder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="A run folder.")]
RunFolders = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN …]", help="Run folders.")]


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
class Profile(Config):
    """Where the time of a training step goes, for the same flags as fit."""

    steps: int = 100
    """Steps to measure."""
    preset: str | None = None
    """Settings by name (see `doubly list`); the flags given beside it win."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.profile import profile

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
        from doubly.drive import resume

        run = resume(self.folder, threads=self.threads)
        _say_finished(run)


@dataclass(frozen=True)
class Evaluate(Question):
    """Log-likelihood of held-out rows, by importance sampling with a proposal fitted to the weights scored."""

    folders: RunFolders = ()
    input: str | None = None
    """Score the rows of this file (.csv, .npz, .npy) in place of a split of the run's own data."""
    rows: str | None = None
    """Write the score of each row to this file (.csv or .npz)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.data import read_rows
        from doubly.judge import evaluate
        from doubly.report.files import check_columns, save_columns
        from doubly.run import Run

        if self.rows:
            check_columns(Path(self.rows))
        given = None if self.input is None else read_rows(self.input, Run(_some(self.folders)[0]).columns)
        facts, scored = evaluate(*_some(self.folders), x=given.rows if given else None, **_question(self))
        if given and given.note:
            print(f"doubly: {given.note}", file=sys.stderr)
        if self.rows:
            save_columns(Path(self.rows), {name: values.cpu().numpy() for name, values in scored._asdict().items()})
        print(json.dumps(_no_nan(facts)) if self.json else _verdict(facts, self.input))


@dataclass(frozen=True)
class Compare(Question):
    """Several runs on the same rows: the difference of each to the best, row by row, with its standard error."""

    folders: RunFolders = ()
    json: bool = False
    """Print one JSON list."""

    def run(self) -> None:
        from doubly.judge import compare

        found = compare(self.folders, **_question(self))
        if self.json:
            print(json.dumps(_no_nan(found)))
            return
        width = max(len(facts["run"]) for facts in found)
        for facts in found:
            behind = f"{facts['difference']:9.3f} ± {facts['difference_stderr'] or 0:.3f}"
            gap = "     best" if facts is found[0] else behind
            doubt = f"  ({facts['unreliable']} rows with k̂ > 0.7)" if facts["unreliable"] else ""
            print(f"{facts['run']:{width}}  {facts['log_likelihood']:9.3f} ± {facts['stderr'] or 0:.3f}  {gap}{doubt}")


@dataclass(frozen=True)
class Curve(Question):
    """Log-likelihood against the samples in the mean, the draws that score, or the draws of a training step."""

    folder: RunFolder = ""
    over: Over = "samples"
    """samples: the paper's M. draws: its K. training-draws: its S, for which runs are fitted into RUN/curves/."""
    at: tuple[int, ...] = ()
    """Where to look; by default at the means that were kept, or at 1, 2, 5, 10 and so on."""
    json: bool = False
    """Print one JSON list."""

    def run(self) -> None:
        from doubly.judge import curve
        from doubly.report.figures import curve as draw
        from doubly.report.figures import png
        from doubly.report.files import save

        points = curve(_some((self.folder,) if self.folder else ())[0], self.over, self.at, **_question(self))
        picture = Path(self.folder) / "figures" / f"curve-over-{self.over}.png"
        save(picture, png(draw(points, self.over)))
        if self.json:
            print(json.dumps(_no_nan(points)))
            return
        for point in points:
            error = "" if point["stderr"] is None else f" ± {point['stderr']:.3f}"
            doubt = f"  ({point['unreliable']} rows with k̂ > 0.7)" if point["unreliable"] else ""
            print(f"{point['at']:8d}  {point['log_likelihood']:9.3f}{error}{doubt}")
        print(f"picture: {picture}")


@dataclass(frozen=True)
class Diagnose:
    """Whether chains have mixed, what their samples are worth, and their temperature; each run is a chain."""

    folders: RunFolders = ()
    json: bool = False
    """Print one JSON object."""
    out: str | None = None
    """Write weights and traces to this netCDF file (.nc) for ArviZ."""

    def run(self) -> None:
        from doubly.diagnose import diagnose, save_inference_data
        from doubly.report.figures import png, traces
        from doubly.report.files import save

        found = diagnose(*self.folders)
        if self.out:
            save_inference_data(Path(self.out), *self.folders)
        picture = Path(self.folders[0]) / "figures" / "traces.png"
        save(picture, png(traces(found.tracks)))
        if self.json:
            print(json.dumps(_no_nan(found.facts() | {"picture": str(picture)})))
            return
        print(found.table())
        print(f"picture: {picture}")


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
        rows = run.posterior().sample(self.n, self.of, self.seed)
        save_rows(Path(self.out), rows, run.facts.shape, run.columns)
        print(f"{self.n} rows in {self.out}")


@dataclass(frozen=True)
class Impute:
    """Fill in missing values (empty cells, NaN) of a file; or hide values of known rows and see how well that goes."""

    folder: RunFolder
    input: str | None = None
    """A file of rows with holes (.csv, .npz, .npy)."""
    out: str | None = None
    """Where to: completed rows in a file ending in .csv, .npz or .npy, or with --hide a picture (.png)."""
    hide: Hide | None = None
    """In place of --input: hide cells of known rows, at random, a block of each, or the lower half of each."""
    share: float = 0.3
    """The share of cells that is hidden at random or in a block."""
    split: Split = "test"
    """Which rows are hollowed."""
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 100
    """How many of them."""
    draws: int = 20
    """Completions of each row, spread over the samples of the weights."""
    of: Of = "ensemble"
    """Weights to fill in with."""
    method: Filling = "chain"
    """chain: draws given what is there. paper: the paper's own way, which does not correct what the proposal draws."""
    sweeps: int = 100
    """Sweeps of each chain."""
    refit: int = 100
    """Passes over the training rows that fit a copy of the proposal to the weights."""
    seed: int = 0
    """Seed of the draws."""
    threads: int = 0
    """Threads to compute with; 0 takes the number the run was fitted with."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.fillin import Filler, fill_file, hollow
        from doubly.impute import Imputation
        from doubly.run import Run

        how = Imputation(method=self.method, sweeps=self.sweeps)
        filler = Filler(Run(self.folder), how, self.draws, self.of, self.refit, self.seed, self.threads)
        if self.input is not None and self.hide is None:
            found = fill_file(filler, self.input, self.out)
        elif self.hide is not None and self.input is None:
            found = hollow(filler, self.hide, self.share, self.split, self.n, self.out)
        else:
            raise UserError("give rows with holes (--input FILE) or hide some of known rows (--hide), one of the two")
        words = found.pop("words")
        print(json.dumps(_no_nan(found)) if self.json else words)


@dataclass(frozen=True)
class Data:
    """The data sets there are (list), what is in one (info), and what is wrong with it (check)."""

    what: Annotated[Literal["list", "info", "check"], tyro.conf.Positional] = "list"
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """For info and check: a data set by name, or a path."""
    download: bool = False
    """Fetch a set that is not here."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from doubly.data import describe

        if self.what == "list":
            print(json.dumps(describe.listing()) if self.json else describe.listing_text())
            return
        if not self.name:
            raise UserError(f"name a data set or a file, as in: doubly data {self.what} digits")
        if self.what == "info":
            text = json.dumps(describe.info(self.name, self.download)) if self.json else None
            print(text or describe.info_text(self.name, self.download))
            return
        problems = describe.check(self.name, self.download)
        print(json.dumps(problems) if self.json else "\n".join(problems) or f"{self.name}: nothing is wrong")


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
class Reproduce:
    """Make a row of the paper's tables: train, collect, refit, score, and write the result beside the published one."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """The row (see --list)."""
    list: bool = False
    """Show every row, what was published and what was found."""
    budget: str = ""
    """The time that all of it may take, as in 2h or 90m: training is cut in time for scoring, and that is said."""
    recommended: bool = False
    """With the settings that were found to be better than the paper's; the result is filed apart."""
    anneal: bool = False
    """Add to a row that is there what annealing says of its test rows; its value stays as it is."""
    results: str = "results"
    """Where results are written."""
    runs: str = "runs/reproduce"
    """Where the runs are; one that was stopped is gone on with."""
    page: str = "docs/results.md"
    """The page that is made of all results."""
    seed: int = 0
    """Seed of every random number."""
    threads: int = 0
    """Threads to compute with; 0 chooses."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly import tables
        from doubly.reproduce import add_annealed, reproduce, seconds
        from doubly.run import write

        if self.list or self == Reproduce(results=self.results):
            print(tables.listing(self.results))
            return
        if not self.name:
            raise UserError("which row is to be made? Name one of those that doubly reproduce --list shows")
        where, which = (self.name, self.results, self.runs), (self.threads, self.seed)
        if self.anneal:
            if self.budget:
                raise UserError("annealing alone has no --budget: leave it out, or --anneal")
            found = add_annealed(*where, *which, recommended=self.recommended)
        else:
            budget = seconds(self.budget) if self.budget else None
            found = reproduce(*where, budget, *which, recommended=self.recommended)
        write(Path(self.page), tables.page(self.results).encode())
        if self.json:
            print(json.dumps(_no_nan(found)))
            return
        second = [f"annealed {annealed}"] if (annealed := tables.annealed(found)) else []
        said = f" ({', '.join(marks)})" if (marks := [*second, *tables.marks(found)]) else ""
        print(
            f"{found['label']}: {found['log_likelihood']:.2f} ± {found['stderr']:.2f}{said}, published "
            f"{found['published']}, {found['hours']:.2f} hours; see {self.page}"
        )


@dataclass(frozen=True)
class List:
    """Every registered layer, sampler, prior, estimator, objective, data set and preset."""

    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.catalogue import catalogue, table

        print(json.dumps(catalogue()) if self.json else table(), end="\n")


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
    Data,
    Report,
    Reproduce,
    List,
)


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


def _question(command: Question) -> dict[str, Any]:
    """The fields of a command that belong to its question."""
    return {field.name: getattr(command, field.name) for field in dataclasses.fields(Question)}


def _some(folders: tuple[str, ...]) -> tuple[str, ...]:
    if not folders:
        raise UserError("name a run folder, as in: doubly evaluate runs/mine (see doubly --help)")
    return folders


def _no_nan(found: Any) -> Any:
    """JSON has no NaN and no infinity: null says as much."""
    if isinstance(found, dict):
        return {name: _no_nan(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_no_nan(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _verdict(facts: dict[str, Any], input: str | None) -> str:
    """An evaluation in words."""
    error = "" if facts["stderr"] is None else f" ± {facts['stderr']:.3f}"
    exact = facts["exact"]
    how = "exact" if exact else f"{facts['draws_used']:.0f} draws, {facts['ess']:.1f} of them effective"
    which = f"rows of {input}" if input else f"{facts['split']} rows"
    whose = {"mean": "mean of the weights", "last": "last sample of the weights", "ensemble": "ensemble of the weights"}
    lines = [
        f"log-likelihood of {facts['n']} {which}: {facts['log_likelihood']:.3f}{error} nats "
        f"({whose[facts['of']]}, {how})"
    ]
    if not exact:
        lines.append(f"± {facts['draw_error']:.3f} of that is due to the draws")
    if facts["unreliable"]:
        lines.append(
            f"warning: {facts['unreliable']} of {facts['n']} rows have k̂ > 0.7: their draws miss much of p(z|x); "
            f"try {' or '.join(facts['advice'])}"
        )
    if "annealed" in facts:
        opinion = facts["annealed"]
        error = "" if opinion["stderr"] is None else f" ± {opinion['stderr']:.3f}"
        apart = "" if opinion["above_score_stderr"] is None else f" ± {opinion['above_score_stderr']:.3f}"
        gap = "" if opinion["gap_stderr"] is None else f" ± {opinion['gap_stderr']:.3f}"
        lines.append(
            f"annealing gives the first {opinion['n']} rows {opinion['log_likelihood']:.3f}{error}, "
            f"{opinion['above_score']:+.3f}{apart} beside their score; on rows drawn from the model its bounds from "
            f"below and above are {opinion['gap_on_simulated_rows']:.3f}{gap} apart"
        )
    if "truth" in facts:
        lines.append(f"the data's own density gives {facts['truth']:.3f}")
    return "\n".join(lines)


def _say_finished(run: Any) -> None:
    next_command = f"doubly evaluate {shlex.quote(str(run.path))}"
    print(f"{run.path}: finished after {len(run.metrics())} epochs; next: {next_command}")


def _parse(args: list[str]) -> Any:
    choices: Any = None
    for command in COMMANDS:
        default: Any = {"default": _preset_default(command, args)} if issubclass(command, Config) else {}
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


def _preset_default(command: Any, args: list[str]) -> Any:
    """The defaults of `fit` and its like: those of the preset that the arguments name, where they do."""
    names = [
        arg.partition("=")[2] or following
        for arg, following in zip(args, [*args[1:], ""], strict=False)
        if re.match("--preset(=|$)", arg)
    ]
    if not names:
        return command()
    return command(**dataclasses.asdict(preset(names[-1])), preset=names[-1])


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
