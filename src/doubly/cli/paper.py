"""The paper's tables: reproduce."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from doubly.cli.formatting import show
from doubly.core.errors import UserError


@dataclass(frozen=True)
class Reproduce:
    """Make a row of the paper's tables: train, collect, refit, score, and file the result beside the published one."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """The row (see --list)."""
    list: bool = False
    """Show every row: what was published and what was found."""
    budget: str = ""
    """The time for training and scoring together, as in 2h or 90m; a result that it cut short says so."""
    recommended: bool = False
    """Use settings that were found to be better than the paper's; the result has a file of its own."""
    anneal: bool = False
    """Anneal the test rows of a row that was made before; its value stays as it is."""
    results: str = "results"
    """The folder of the results."""
    runs: str = "runs/reproduce"
    """The folder of the runs; a run that was stopped is continued."""
    page: str = "docs/results.md"
    """The page to make from all results."""
    seed: int = 0
    """Seed of every random number."""
    threads: int = 0
    """Threads to compute with; 0 chooses."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.core.files import write
        from doubly.paper import tables
        from doubly.paper.budget import seconds
        from doubly.paper.reproduce import add_annealed, reproduce

        if self.list or self == Reproduce(results=self.results):
            print(tables.listing(self.results))
            return
        if not self.name:
            raise UserError("name a row to make; doubly reproduce --list shows them all")
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
            show(found, as_json=True)
        else:
            print(f"{found.text()}; see {self.page}")
