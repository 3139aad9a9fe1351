"""Using what was learnt: sample, impute."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from doubly.cli.formatting import RunFolder, no_nan
from doubly.core.errors import UserError
from doubly.core.types import Hide, ImputeMethod, Of, Split


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
        from doubly.analysis.report.files import save_rows
        from doubly.runs.folder import Run

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
    method: ImputeMethod = "chain"
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
        from doubly.analysis.impute import Imputer, impute_file, impute_hidden
        from doubly.latents.completions import ImputeConfig
        from doubly.runs.folder import Run

        how = ImputeConfig(method=self.method, sweeps=self.sweeps)
        imputer = Imputer(Run(self.folder), how, self.draws, self.of, self.refit, self.seed, self.threads)
        if self.input is not None and self.hide is None:
            found = impute_file(imputer, self.input, self.out)
        elif self.hide is not None and self.input is None:
            found = impute_hidden(imputer, self.hide, self.share, self.split, self.n, self.out)
        else:
            raise UserError("give rows with holes (--input FILE) or hide some of known rows (--hide), one of the two")
        words = found.pop("words")
        print(json.dumps(no_nan(found)) if self.json else words)
