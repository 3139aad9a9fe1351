"""Tables in one command: fill, odd."""

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from doubly.cli.formatting import show

TableFile = Annotated[
    str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE", help="A table as text (.csv, .tsv), with missing cells.")
]


@dataclass(frozen=True)
class Fill:
    """Complete the missing cells of a table: read it, guess the kinds of its columns, learn, complete, write."""

    table: TableFile
    out: str = "filled.csv"
    """The file to write; every cell that was there comes back as it was."""
    copies: int = 0
    """Also write so many copies (filled-1.csv, …) whose missing cells are drawn: for multiple imputation."""
    cells: str | None = None
    """Also write each completed cell with its spread and the probability of each level to this file (.csv)."""
    minutes: float = 2.0
    """Time to learn, at most."""
    seed: int = 0
    """Seed of every random number."""
    epochs: int = 0
    """Epochs of each candidate, at most; 0 lets the time decide."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.table_files import complete_file

        show(
            complete_file(
                self.table, self.out, copies=self.copies, cells=self.cells, minutes=self.minutes, seed=self.seed,
                epochs=self.epochs, tell=_say,
            ),
            self.json,
        )  # fmt: skip


@dataclass(frozen=True)
class Odd:
    """Rank the rows of a table by how odd they are, with the cells to blame and what was expected there."""

    table: TableFile
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 10
    """How many rows to show."""
    out: str | None = None
    """Write all rows, the oddest first, to this file (.csv)."""
    minutes: float = 2.0
    """Time to learn, at most."""
    seed: int = 0
    """Seed of every random number."""
    epochs: int = 0
    """Epochs of each candidate, at most; 0 lets the time decide."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.table_files import odd_rows

        show(
            odd_rows(
                self.table, n=self.n, out=self.out, minutes=self.minutes, seed=self.seed, epochs=self.epochs, tell=_say
            ),
            self.json,
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
