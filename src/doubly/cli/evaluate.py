"""Evaluating and diagnosing: evaluate, compare, curve, diagnose."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

from doubly.analysis.config import EvaluateConfig
from doubly.cli.formatting import AllowCode, RunFolder, RunFolders, settings, show, some
from doubly.core.launch import is_first
from doubly.core.types import Over


@dataclass(frozen=True)
class Evaluate(EvaluateConfig):
    """Log-likelihood of held-out rows, by importance sampling with a proposal fitted to the weights."""

    folders: RunFolders = ()
    allow_code: AllowCode = False
    input: str | None = None
    """Score the rows of this file (.csv, .npz, .npy) in place of a split of the run's own data."""
    rows: str | None = None
    """Write the log-likelihood of each row to this file (.csv or .npz)."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.evaluate import evaluate
        from doubly.analysis.report.files import check_columns, save_columns
        from doubly.data import read_rows
        from doubly.runs.folder import Run

        if self.rows:
            check_columns(Path(self.rows))
        given = None if self.input is None else read_rows(self.input, Run(some(self.folders)[0]).columns)
        found = evaluate(*some(self.folders), x=given.rows if given else None, **vars(settings(self, EvaluateConfig)))
        if given and given.note and is_first():
            print(f"doubly: {given.note}", file=sys.stderr)
        if self.rows and is_first():
            save_columns(Path(self.rows), {name: values.cpu().numpy() for name, values in found.rows._asdict().items()})
        show(dataclasses.replace(found, file=self.input), self.json)


@dataclass(frozen=True)
class Compare(EvaluateConfig):
    """Several runs on the same rows: the difference of each to the best, row by row, with its standard error."""

    folders: RunFolders = ()
    allow_code: AllowCode = False
    json: bool = False
    """Print one JSON list."""

    def run(self) -> None:
        from doubly.analysis.evaluate import compare

        show(compare(self.folders, **vars(settings(self, EvaluateConfig))), self.json)


@dataclass(frozen=True)
class Curve(EvaluateConfig):
    """Log-likelihood against the samples in the mean, the draws of an evaluation, or the draws of a training step."""

    folder: RunFolder = ""
    allow_code: AllowCode = False
    over: Over = "samples"
    """samples in the mean (M), draws of the evaluation (K), or draws of training (S; fits runs in RUN/curves/)."""
    at: tuple[int, ...] = ()
    """The numbers to evaluate at; by default the means that the run has stored, or 1, 2, 5, 10 and so on."""
    json: bool = False
    """Print one JSON list."""

    def run(self) -> None:
        from doubly.analysis.evaluate import curve
        from doubly.analysis.report.pictures import save_curve

        (folder,) = some((self.folder,) if self.folder else ())
        found = curve(folder, self.over, self.at, **vars(settings(self, EvaluateConfig)))
        show(dataclasses.replace(found, picture=save_curve(folder, found)), self.json)


@dataclass(frozen=True)
class Diagnose:
    """Whether chains have mixed, what their samples are worth, and their temperature; each run is a chain."""

    folders: RunFolders = ()
    allow_code: AllowCode = False
    json: bool = False
    """Print one JSON object."""
    out: str | None = None
    """Write weights and traces to this netCDF file (.nc) for ArviZ."""

    def run(self) -> None:
        from doubly.analysis.diagnose import diagnose
        from doubly.analysis.inference_data import save_inference_data
        from doubly.analysis.report.pictures import save_traces

        found = diagnose(*self.folders)
        if self.out:
            save_inference_data(Path(self.out), *self.folders)
        show(dataclasses.replace(found, picture=save_traces(self.folders[0], found)), self.json)
