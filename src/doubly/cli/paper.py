"""The paper's tables: reproduce."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from doubly.cli.formatting import no_nan
from doubly.core.errors import UserError


@dataclass(frozen=True)
class Reproduce:
    """Make a row of the paper's tables: train, collect, refit, score, and write the result beside the published one."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """The row (see --list)."""
    list: bool = False
    """Show every row, what was published and what was found."""
    budget: str = ""
    """The time that all of it may take, as in 2h or 90m: training is cut in time for scoring, and that is said."""
    recommended: bool = False
    """With the settings that were found to be better than the paper's; the result is filed apart."""
    anneal: bool = False
    """Add to a row that is there what annealing says of its test rows; its value stays as it is."""
    results: str = "results"
    """Where results are written."""
    runs: str = "runs/reproduce"
    """Where the runs are; one that was stopped is gone on with."""
    page: str = "docs/results.md"
    """The page that is made of all results."""
    seed: int = 0
    """Seed of every random number."""
    threads: int = 0
    """Threads to compute with; 0 chooses."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.core.files import write
        from doubly.paper import tables
        from doubly.paper.reproduce import add_annealed, reproduce, seconds

        if self.list or self == Reproduce(results=self.results):
            print(tables.listing(self.results))
            return
        if not self.name:
            raise UserError("which row is to be made? Name one of those that doubly reproduce --list shows")
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
            print(json.dumps(no_nan(found)))
            return
        second = [f"annealed {annealed}"] if (annealed := tables.annealed(found)) else []
        said = f" ({', '.join(marks)})" if (marks := [*second, *tables.marks(found)]) else ""
        print(
            f"{found['label']}: {found['log_likelihood']:.2f} ± {found['stderr']:.2f}{said}, published "
            f"{found['published']}, {found['hours']:.2f} hours; see {self.page}"
        )
