"""`doubly impute`: from a run and a file with missing to completed rows, or to scores of how well that goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doubly.analysis.accuracy import imputation_accuracy, mask
from doubly.analysis.report.files import check_place, save, save_columns, save_rows
from doubly.core.errors import UserError
from doubly.core.types import Hide, Of, Split
from doubly.data import read_rows
from doubly.latents.completions import ImputeConfig
from doubly.posterior.store import Posterior
from doubly.runs.fit import use_threads
from doubly.runs.folder import Run
from doubly.runs.progress import Progress

SHOWN = 12  # rows in the picture


@dataclass(frozen=True)
class Imputer:
    """A run and how it fills in."""

    run: Run
    how: ImputeConfig
    draws: int
    of: Of
    refit: int
    seed: int
    threads: int

    @contextmanager
    def posterior(self) -> Iterator[Posterior]:
        with Progress() as progress, use_threads(self.threads or self.run.config.threads):
            yield self.run.posterior(
                refit_passes=self.refit, progress=lambda what, share: progress.show(f"{what}: {share:.0%}")
            )


def impute_file(imputer: Imputer, input: str, out: str | None) -> dict[str, Any]:
    """Complete the rows of a file; binary cells are rounded, so that a row is one that could be."""
    run = imputer.run
    if out is None or Path(out).suffix.lower() not in (".csv", ".npz", ".npy"):
        raise UserError(f"name a file ending in .csv, .npz or .npy for the completed rows (--out), got {out!r}")
    check_place(Path(out))
    x, left_out = given = read_rows(input, run.columns)
    missing = np.isnan(x)
    empty = int(missing.all(1).sum())
    with imputer.posterior() as posterior:
        found = posterior.impute(x, imputer.draws, imputer.how, imputer.of, imputer.seed)
    binary = run.facts.kind == "binary"
    rows = np.where(missing, np.round(found.mean) if binary else found.mean, x)
    if Path(out).suffix.lower() == ".npz":
        save_columns(Path(out), {"rows": rows, "missing": missing, **found._asdict()})
    else:
        save_rows(Path(out), rows.astype(np.uint8) if binary else rows, run.facts.shape, run.columns)
    words = [f"{int(missing.sum())} missing values of {len(x)} rows filled in: {out}"]
    if empty:
        words.append(f"note: {empty} rows had no value at all, and are filled in from the model alone")
    words += [given.note] if left_out else []
    facts = {"rows": len(x), "missing": int(missing.sum()), "empty_rows": empty, "left_out": list(left_out), "out": out}
    return facts | {"words": "\n".join(words)}


def impute_hidden(imputer: Imputer, hide: Hide, share: float, split: Split, n: int, out: str | None) -> dict[str, Any]:
    """Hide cells of known rows, fill them in, and compare; with images, a picture of what was, was left, and came."""
    run = imputer.run
    data = run.data()
    if n < 1:
        raise UserError(f"the number of rows to hollow must be at least 1, got {n}")
    x = data.split(split)[:n]
    missing = mask(hide, len(x), data.shape, share, imputer.seed)
    with imputer.posterior() as posterior:
        report = imputation_accuracy(
            posterior, x, data.split("train"), missing, imputer.draws, imputer.how, imputer.of, seed=imputer.seed
        )
    facts = {"hide": hide, "split": split, "n": len(x), "draws": imputer.draws, "of": imputer.of, "seed": imputer.seed}
    words = _table(report.scores)
    if len(data.shape) == 2:
        picture = Path(out) if out else run.path / "figures" / f"completed-{hide}.png"
        _picture(picture, x, missing, report.imputed.completions[0], data.shape)
        words += f"\npicture: {picture}"
    return facts | vars(imputer.how) | {"hidden_cells": int(missing.sum()), "scores": report.scores, "words": words}


def _picture(path: Path, x: np.ndarray, missing: np.ndarray, completed: np.ndarray, shape: tuple[int, ...]) -> None:
    """Three lines of images: originals, what was left of them (hidden cells grey), and one completion of each."""
    from doubly.analysis.report.figures import image_rows, png  # matplotlib is slow to load

    left = np.where(missing, 0.4, x)
    save(path, png(image_rows([x[:SHOWN], left[:SHOWN], completed[:SHOWN]], ["original", "left", "completed"], shape)))


def _table(scores: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for found in scores.values() for name in found if name != "log_conditional_stderr"))
    lines = [f"{'':20}" + "".join(f"{name.replace('_', ' '):>19}" for name in names)]
    for way, found in scores.items():
        lines.append(f"{way:20}" + "".join(f"{found[name]:19.4f}" if name in found else f"{'':19}" for name in names))
    return "\n".join(lines)
