"""Scoring and diagnosing: evaluate, compare, curve, diagnose."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubly.analysis.config import EvaluateConfig
from doubly.cli.formatting import RunFolder, RunFolders, no_nan, some
from doubly.core.types import Over


@dataclass(frozen=True)
class Evaluate(EvaluateConfig):
    """Log-likelihood of held-out rows, by importance sampling with a proposal fitted to the weights scored."""

    folders: RunFolders = ()
    input: str | None = None
    """Score the rows of this file (.csv, .npz, .npy) in place of a split of the run's own data."""
    rows: str | None = None
    """Write the score of each row to this file (.csv or .npz)."""
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
        facts, scored = evaluate(*some(self.folders), x=given.rows if given else None, **_settings(self))
        if given and given.note:
            print(f"doubly: {given.note}", file=sys.stderr)
        if self.rows:
            save_columns(Path(self.rows), {name: values.cpu().numpy() for name, values in scored._asdict().items()})
        print(json.dumps(no_nan(facts)) if self.json else _verdict(facts, self.input))


@dataclass(frozen=True)
class Compare(EvaluateConfig):
    """Several runs on the same rows: the difference of each to the best, row by row, with its standard error."""

    folders: RunFolders = ()
    json: bool = False
    """Print one JSON list."""

    def run(self) -> None:
        from doubly.analysis.evaluate import compare

        found = compare(self.folders, **_settings(self))
        if self.json:
            print(json.dumps(no_nan(found)))
            return
        width = max(len(facts["run"]) for facts in found)
        for facts in found:
            behind = f"{facts['difference']:9.3f} ± {facts['difference_stderr'] or 0:.3f}"
            gap = "     best" if facts is found[0] else behind
            doubt = f"  ({facts['unreliable']} rows with k̂ > 0.7)" if facts["unreliable"] else ""
            print(f"{facts['run']:{width}}  {facts['log_likelihood']:9.3f} ± {facts['stderr'] or 0:.3f}  {gap}{doubt}")


@dataclass(frozen=True)
class Curve(EvaluateConfig):
    """Log-likelihood against the samples in the mean, the draws that score, or the draws of a training step."""

    folder: RunFolder = ""
    over: Over = "samples"
    """samples: the paper's M. draws: its K. training-draws: its S, for which runs are fitted into RUN/curves/."""
    at: tuple[int, ...] = ()
    """Where to look; by default at the means that were kept, or at 1, 2, 5, 10 and so on."""
    json: bool = False
    """Print one JSON list."""

    def run(self) -> None:
        from doubly.analysis.evaluate import curve
        from doubly.analysis.report.figures import curve as draw
        from doubly.analysis.report.figures import png
        from doubly.analysis.report.files import save

        points = curve(some((self.folder,) if self.folder else ())[0], self.over, self.at, **_settings(self))
        picture = Path(self.folder) / "figures" / f"curve-over-{self.over}.png"
        save(picture, png(draw(points, self.over)))
        if self.json:
            print(json.dumps(no_nan(points)))
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
        from doubly.analysis.diagnose import diagnose, save_inference_data
        from doubly.analysis.report.figures import png, traces
        from doubly.analysis.report.files import save

        found = diagnose(*self.folders)
        if self.out:
            save_inference_data(Path(self.out), *self.folders)
        picture = Path(self.folders[0]) / "figures" / "traces.png"
        save(picture, png(traces(found.histories)))
        if self.json:
            print(json.dumps(no_nan(found.facts() | {"picture": str(picture)})))
            return
        print(found.table())
        print(f"picture: {picture}")


def _settings(command: EvaluateConfig) -> dict[str, Any]:
    """The fields of a command that belong to its question."""
    return {field.name: getattr(command, field.name) for field in dataclasses.fields(EvaluateConfig)}


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
