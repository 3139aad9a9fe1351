"""Using a fitted model: sample, impute."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from doubly.cli.formatting import AllowCode, RunFolder, show
from doubly.core.errors import UserError
from doubly.core.types import Hide, ImputeMethod, Of, Split


@dataclass(frozen=True)
class Sample:
    """Draw new rows from the model."""

    folder: RunFolder
    allow_code: AllowCode = False
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 100
    """How many rows."""
    out: str = "samples.png"
    """The file to write, ending in .npz, .npy, .csv or .png."""
    of: Of = "auto"
    """Which weights: the posterior mean, an ensemble (for each row one of the samples), or the last sample; auto takes
    the mean of one chain, and the ensemble of several."""
    seed: int = 0
    """Seed of the draws."""

    def run(self) -> None:
        from doubly.analysis.report.files import save_rows
        from doubly.data.formats import check_room
        from doubly.runs.folder import Run

        run = Run(self.folder)
        check_room(12.0 * self.n * run.facts.width, f"{self.n:,} rows of {run.facts.width} cells", "take fewer (-n)")
        rows = run.posterior().sample(self.n, self.of, self.seed)
        save_rows(Path(self.out), rows, run.facts.shape, run.columns)
        print(f"{self.n} rows in {self.out}")


@dataclass(frozen=True)
class Impute:
    """Impute missing values (empty cells, NaN) of a file; or hide cells of known rows and see how well that works."""

    folder: RunFolder
    allow_code: AllowCode = False
    input: str | None = None
    """A file of rows with missing values (.csv, .npz, .npy)."""
    out: str | None = None
    """The file to write: completed rows (.csv, .npz or .npy), or with --hide a picture (.png)."""
    hide: Hide | None = None
    """In place of --input: hide cells of known rows: at random, a block of each row, or its lower half."""
    share: float = 0.3
    """The share of cells to hide, at random or in a block."""
    split: Split = "test"
    """Which rows have cells hidden."""
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 100
    """How many of these rows."""
    draws: int = 20
    """Completions of each row, spread over the samples of the weights."""
    of: Of = "ensemble"
    """Which weights: the posterior mean, an ensemble of samples, or the last sample."""
    method: ImputeMethod = "chain"
    """chain: draws given the observed values. paper: the paper's method, which does not correct for the proposal."""
    sweeps: int = 100
    """Sweeps of each imputation chain."""
    refit: int = 100
    """Passes over the training rows that fit a copy of the proposal to the weights."""
    refit_shards: int = 0
    """In how many shards the mini-batches of that fit are cut, which ranks of torchrun share; 0 takes those of the
    run."""
    seed: int = 0
    """Seed of the draws."""
    threads: int = 0
    """Threads to compute with; 0 takes the number the run was fitted with."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.impute import Imputer, impute_file, impute_hidden
        from doubly.analysis.results import Result
        from doubly.latents.completions import ImputeConfig
        from doubly.runs.folder import Run

        how = ImputeConfig(method=self.method, sweeps=self.sweeps)
        imputer = Imputer(
            Run(self.folder), how, self.draws, self.of, self.refit, self.seed, self.threads, self.refit_shards
        )
        found: Result
        if self.input is not None and self.hide is None:
            found = impute_file(imputer, self.input, self.out)
        elif self.hide is not None and self.input is None:
            found = impute_hidden(imputer, self.hide, self.share, self.split, self.n, self.out)
        else:
            raise UserError(
                "give rows with missing values (--input FILE) or hide cells of known rows (--hide), one of the two"
            )
        show(found, self.json)
