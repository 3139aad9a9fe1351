"""The paper's tables: reproduce."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from doubly.cli.formatting import show
from doubly.core.errors import UserError

if TYPE_CHECKING:
    from doubly.analysis.results import Result


@dataclass(frozen=True)
class Reproduce:
    """Make a row of the paper's tables, or all that are missing: train, collect, refit, score, and file the result
    beside the published one."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """The row (see --list)."""
    list: bool = False
    """Show every row: what was published and what was found."""
    all: bool = False
    """Make all rows that are missing, the cheapest first; whatever stops it, the same command goes on from there."""
    plan: bool = False
    """Show what is missing, in the order in which it would be made, with what it costs; measures that first."""
    budget: str = ""
    """The time, as in 2h or 90m. For one row: of training and scoring together; a result that it cut short says so. For
    all rows: after it, those under way are stopped, to go on another time."""
    rows_at_once: int = 2
    """Rows to make at a time, with --all; each is a process of its own."""
    longest: str = "12h"
    """Rows that would take longer are left out of --all, and the page says what they would cost."""
    recommended: bool = False
    """Use settings that were found to be better than the paper's; the result has a file and a column of its own."""
    results: str = "results"
    """The folder of the results."""
    runs: str = "runs/reproduce"
    """The folder of the runs; a run that was stopped is continued."""
    page: str = "docs/results.md"
    """The page to make from all results."""
    seed: int = 0
    """Seed of every random number."""
    threads: int = 0
    """Threads to compute with; 0 chooses, and takes one for each row of --all."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.paper import tables
        from doubly.paper.budget import seconds

        if sum([self.all, self.plan, self.list, bool(self.name)]) > 1:
            raise UserError("name a row, or ask for one of --all, --plan and --list: more than one was given")
        if self.list or self == Reproduce(results=self.results):
            print(tables.listing(self.results))
            return
        budget, longest = seconds(self.budget) if self.budget else None, seconds(self.longest)
        if self.all:
            self._show(self._all(budget, longest))
        elif self.plan:
            self._show(self._plan(longest))
        elif self.name:
            self._row(budget)
        else:
            raise UserError("name a row to make, or give --all; doubly reproduce --list shows them all")

    def _row(self, budget: float | None) -> None:
        from doubly.paper.reproduce import reproduce
        from doubly.paper.tasks import Task

        task = Task(self.name, "recommended" if self.recommended else "paper", self.seed)
        found = reproduce(task, self.results, self.runs, budget, self.threads)
        self._write_page()
        if self.json:
            show(found, as_json=True)
        else:
            print(f"{found.text()}; see {self.page}")

    def _all(self, budget: float | None, longest: float) -> "Result":
        from doubly.paper.queue import work

        return work(
            self.results, self.runs, budget, self.rows_at_once, self.threads or 1, longest, self._write_page, _tell
        )

    def _plan(self, longest: float) -> "Result":
        from doubly.paper.plan import plan

        found = plan(self.results, self.runs, longest, tell=_tell)
        self._write_page()
        return found

    def _show(self, found: "Result") -> None:
        show(found, as_json=self.json)

    def _write_page(self) -> None:
        from doubly.core.files import write
        from doubly.paper import tables

        write(Path(self.page), tables.page(self.results).encode())


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
