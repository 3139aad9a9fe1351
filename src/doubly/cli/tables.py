"""Tables in one command: fill, odd."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from doubly.cli.formatting import show

if TYPE_CHECKING:
    from doubly.runs.folder import Run


@dataclass(frozen=True)
class Learning:
    """The table, and how it is learnt."""

    table: Annotated[
        str, tyro.conf.Positional,
        tyro.conf.arg(metavar="TABLE", help="A table (.csv, .tsv, .xlsx, .parquet), which may have missing cells."),
    ]  # fmt: skip
    from_run: str | None = None
    """Answer by what this run of `doubly fit` has learnt, for the same columns; nothing is learnt anew."""
    minutes: float = 0.75
    """Time to learn, at most."""
    seed: int = 0
    """Seed of every random number."""
    epochs: int = 0
    """Epochs of each candidate, at most; 0 lets the time decide."""
    json: bool = False
    """Print one JSON object."""

    def _opened(self) -> "Run | None":
        from doubly.runs.folder import Run

        return None if self.from_run is None else Run(self.from_run)


@dataclass(frozen=True)
class Fill(Learning):
    """Complete the missing cells of a table: read it, guess the kinds of its columns, learn, complete, write."""

    out: str = "filled.csv"
    """The file to write; every cell that was there comes back as it was."""
    copies: int = 0
    """Also write so many copies (filled-1.csv, …) whose missing cells are drawn: for multiple imputation."""
    cells: str | None = None
    """Also write each completed cell with its spread and the probability of each level to this file (.csv)."""

    def run(self) -> None:
        from doubly.analysis.table_files import complete_file

        found = complete_file(
            self.table, self.out, copies=self.copies, cells=self.cells, minutes=self.minutes, seed=self.seed,
            epochs=self.epochs, run=self._opened(), tell=_say,
        )  # fmt: skip
        show(found, self.json)


@dataclass(frozen=True)
class Odd(Learning):
    """Rank the rows of a table by how odd they are, with the cells to blame and what was expected there."""

    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 10
    """How many rows to show."""
    out: str | None = None
    """Write all rows, the oddest first, to this file (.csv)."""

    def run(self) -> None:
        from doubly.analysis.table_files import odd_rows

        found = odd_rows(
            self.table, n=self.n, out=self.out, minutes=self.minutes, seed=self.seed, epochs=self.epochs,
            run=self._opened(), tell=_say,
        )  # fmt: skip
        show(found, self.json)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
