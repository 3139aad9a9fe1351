"""`doubly impute`: complete the rows of a file, or see how well hidden cells of known rows are imputed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doubly.analysis.accuracy import CellErrors, imputation_accuracy, mask
from doubly.analysis.config import EvaluateConfig
from doubly.analysis.evaluate import at_work
from doubly.analysis.report.files import check_place, save, save_columns, save_figure, save_rows
from doubly.analysis.results import Result, plain
from doubly.core.errors import UserError
from doubly.core.launch import is_first
from doubly.core.types import Hide, Of, Split
from doubly.data import Data, read_rows
from doubly.data.formats import check_room
from doubly.latents.completions import ImputeConfig
from doubly.posterior.store import Posterior
from doubly.runs.folder import Run


@dataclass(frozen=True)
class Imputer:
    """A run and how it imputes."""

    run: Run
    how: ImputeConfig
    draws: int
    of: Of
    refit: int
    seed: int
    threads: int
    refit_shards: int = 0

    @contextmanager
    def posterior(self) -> Iterator[Posterior]:
        """What imputes; ranks of torchrun share the work."""
        settings = EvaluateConfig(refit=self.refit, refit_shards=self.refit_shards, threads=self.threads)
        with at_work(settings, self.run, quiet=False) as open_posterior:
            yield open_posterior(self.run)


@dataclass(frozen=True)
class ImputedFile(Result):
    """A file of rows, completed."""

    rows: int
    missing: int
    """Cells that were missing."""
    empty_rows: int
    """Rows without any value."""
    left_out: tuple[str, ...]
    """Columns of the file that the run does not know."""
    note: str
    """On the columns left out."""
    out: str

    def text(self) -> str:
        lines = [f"{self.missing} missing values of {self.rows} rows imputed: {self.out}"]
        if self.empty_rows:
            lines.append(f"note: {self.empty_rows} rows had no value at all; they are drawn from the model alone")
        return "\n".join([*lines, *[self.note] * bool(self.note)])

    def to_json(self) -> Any:
        found = super().to_json()
        del found["note"]
        return found


@dataclass(frozen=True)
class HiddenCells(Result):
    """How well hidden cells of known rows are imputed, beside simpler imputers."""

    hide: Hide
    split: Split
    n: int
    """Rows."""
    draws: int
    of: Of
    seed: int
    how: ImputeConfig
    hidden_cells: int
    scores: dict[str, CellErrors]
    """By imputer."""
    picture: Path | None
    """Of images: the originals, what was left of them, and a completion of each."""

    def text(self) -> str:
        scores = {imputer: errors.to_json() for imputer, errors in self.scores.items()}
        names = dict.fromkeys(name for found in scores.values() for name in found if not name.endswith("stderr"))
        lines = [f"{'':20}" + "".join(f"{name.replace('_', ' '):>19}" for name in names)]
        for imputer, found in scores.items():
            cells = (f"{found[name]:19.4f}" if found.get(name) is not None else f"{'':19}" for name in names)
            lines.append(f"{imputer:20}" + "".join(cells))
        return "\n".join([*lines, *[f"picture: {self.picture}"] * (self.picture is not None)])

    def to_json(self) -> Any:
        asked = {name: getattr(self, name) for name in ("hide", "split", "n", "draws", "of", "seed")}
        scores = {imputer: errors.to_json() for imputer, errors in self.scores.items()}
        return plain({**asked, **vars(self.how), "hidden_cells": self.hidden_cells, "scores": scores})


def impute_file(imputer: Imputer, input: str, out: str | None) -> ImputedFile:
    """Complete the rows of a file; binary cells are rounded, so that each completed row is a possible one."""
    run = imputer.run
    if out is None or Path(out).suffix.lower() not in (".csv", ".npz", ".npy"):
        raise UserError(f"name a file ending in .csv, .npz or .npy for the completed rows (--out), got {out!r}")
    check_place(Path(out))
    given = read_rows(input, run.columns)
    x, left_out = given.rows, given.left_out
    missing = np.isnan(x)
    check_room(12.0 * imputer.draws * x.size, f"{imputer.draws:,} completions of {len(x):,} rows", "take fewer draws")
    with imputer.posterior() as posterior:
        found = posterior.impute(x, imputer.draws, imputer.how, imputer.of, imputer.seed)
    binary = run.facts.kind == "binary"
    rows = np.where(missing, np.round(found.mean) if binary else found.mean, x)
    if is_first() and Path(out).suffix.lower() == ".npz":
        save_columns(Path(out), {"rows": rows, "missing": missing, **found._asdict()})
    elif is_first():
        save_rows(Path(out), rows.astype(np.uint8) if binary else rows, run.facts.shape, run.columns)
    return ImputedFile(
        rows=len(x),
        missing=int(missing.sum()),
        empty_rows=int(missing.all(1).sum()),
        left_out=tuple(left_out),
        note=given.note,
        out=out,
    )


def impute_hidden(imputer: Imputer, hide: Hide, share: float, split: Split, n: int, out: str | None) -> HiddenCells:
    """Hide cells of known rows, impute them, and compare with the truth; of images, draw a picture too."""
    run = imputer.run
    data = run.data()
    if n < 1:
        raise UserError(f"the number of rows with hidden cells must be at least 1, got {n}")
    x = data.split(split)[:n]
    missing = _hidden(hide, len(x), data, share, imputer.seed)
    with imputer.posterior() as posterior:
        found = imputation_accuracy(
            posterior, x, data.split("train"), missing, imputer.draws, imputer.how, imputer.of, seed=imputer.seed,
            columns=data.columns if data.kind == "mixed" else None,
        )  # fmt: skip
    picture = None
    if len(data.shape) == 2 and is_first():
        from doubly.analysis.report.pictures import completions  # matplotlib is slow to load

        drawn = completions(x, missing, found.imputed.completions[0], data.shape)
        if out:
            save(picture := Path(out), drawn)
        else:
            picture = save_figure(run.path, f"completed-{hide}", drawn)
    return HiddenCells(
        hide=hide,
        split=split,
        n=len(x),
        draws=imputer.draws,
        of=imputer.of,
        seed=imputer.seed,
        how=imputer.how,
        hidden_cells=_cells(found.missing, data),
        scores=found.errors,
        picture=picture,
    )


def _hidden(hide: Hide, rows: int, data: Data, share: float, seed: int) -> np.ndarray:
    """Which entries are hidden; of a table with categories, those of whole cells."""
    if data.columns is None or len(data.columns.columns) == data.width:
        return mask(hide, rows, data.shape, share, seed)
    return mask(hide, rows, (len(data.columns.columns),), share, seed)[:, data.columns.sources]


def _cells(missing: np.ndarray, data: Data) -> int:
    """Hidden cells of the table, of which a category has several entries."""
    if data.columns is None:
        return int(missing.sum())
    first = np.unique(data.columns.sources, return_index=True)[1]
    return int(missing[:, first].sum())
