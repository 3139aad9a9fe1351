"""What is still to be made of the tables, the cheapest first, with what it costs."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubly.analysis.results import Result
from doubly.core.errors import UserError
from doubly.paper.costs import Cost, cost_of, known_cost, read_costs
from doubly.paper.result import RowResult
from doubly.paper.tasks import SAID, Task, tasks
from doubly.runs.folder import Run
from doubly.runs.progress import span

LONGEST = 12 * 3600.0  # seconds of a row, beyond which its cost is said in place of its number


@dataclass(frozen=True)
class Planned(Result):
    """A task that is still to be done."""

    task: Task
    lacks: str
    """What there is not yet."""
    cost: Cost | None
    """None where it was not measured, or could not be."""
    burn_in: int
    """Epochs until validation has levelled off, as results alike have it, or as the recipe guesses."""
    done: float = 0.0
    """Of its training, the share that a run has behind it."""

    @property
    def seconds(self) -> float | None:
        """Of one core, in all."""
        return None if self.cost is None else self.cost.seconds(self.burn_in)

    @property
    def left(self) -> float:
        """Seconds that are left of it."""
        if self.cost is None or self.seconds is None:
            return float("inf")
        return self.seconds - self.done * (self.seconds - self.cost.scoring)

    @property
    def column(self) -> str:
        return SAID[self.task.way]

    def text(self) -> str:
        if self.cost is None:
            return f"{self.task.title}: {self.lacks}; cost not measured"
        steps = (self.burn_in + self.cost.collecting) * self.cost.steps
        left = f", {span(self.left)} left" if self.done else ""
        return (
            f"{self.task.title:44}{span(self.seconds or 0):>8}{left}  ({self.column}: {self.lacks}; {steps:,} steps at "
            f"{1 / self.cost.step:.1f} a second, scoring {span(self.cost.scoring)})"
        )

    def to_json(self) -> Any:
        cost = None if self.cost is None else self.cost.to_json()
        return {
            "title": self.task.title, "row": self.task.name, "way": self.task.way, "seed": self.task.seed,
            "lacks": self.lacks, "burn_in": self.burn_in, "seconds": self.seconds, "done": self.done, "cost": cost,
        }  # fmt: skip


@dataclass(frozen=True)
class Plan(Result):
    """All that is still to be done, in the order in which it is."""

    todo: tuple[Planned, ...]
    too_long: tuple[Planned, ...]
    """What takes longer than a row may, or is not made by its recipe: its cost is said instead."""
    longest: float = LONGEST

    def text(self) -> str:
        lines = [f"{len(self.todo)} to make, {span(sum(each.left for each in self._known))} of one core in all:"]
        lines += [f"{i:4d}  {each.text()}" for i, each in enumerate(self.todo, start=1)]
        if self.too_long:
            lines.append(
                f"{len(self.too_long)} are left out (by their recipes, or for more than {span(self.longest)}):"
            )
            lines += [f"      {each.text()}" for each in self.too_long]
        return "\n".join(lines)

    @property
    def _known(self) -> list[Planned]:
        return [each for each in self.todo if each.cost is not None]

    def to_json(self) -> Any:
        return {"todo": [each.to_json() for each in self.todo], "too_long": [each.to_json() for each in self.too_long]}


def plan(
    results: str | Path,
    runs: str | Path | None = None,
    longest: float = LONGEST,
    measure: bool = True,
    tell: Callable[[str], None] = lambda what: None,
) -> Plan:
    """What is missing, first every row once and then further seeds, the cheapest first.

    What was not measured before is measured now, unless that is not wanted. With `runs`, what a run has behind it is
    not counted again.
    """
    found = read_results(results)
    by_title = dict(found)
    missing = []
    for task in tasks():
        result = by_title.get(task.title)
        lacks = "no result" if result is None else ", ".join(result.missing())
        if lacks:
            burn_in = burn_in_of(task, [each for _, each in found])
            cost = _cost(task, results, measure, tell)
            done = _done(task, runs, burn_in, cost) if runs is not None and cost is not None else 0.0
            missing.append(Planned(task, lacks, cost, burn_in, done))
    missing.sort(key=lambda each: (each.task.seed, each.left))
    is_long = [each.task.recipe().only_cost or (each.seconds or 0) > longest for each in missing]
    return Plan(
        tuple(each for each, long in zip(missing, is_long, strict=True) if not long),
        tuple(each for each, long in zip(missing, is_long, strict=True) if long),
        longest,
    )


def read_results(results: str | Path) -> list[tuple[str, RowResult]]:
    """Every result with its title, in the order of the files' names."""
    return [(file.stem, RowResult.read(file)) for file in sorted(Path(results).glob("*.json"))]


def burn_in_of(task: Task, found: Sequence[RowResult]) -> int:
    """Epochs of burn-in that whole results of the row in this way had, with any seed; else what the recipe guesses."""
    alike = [each for each in found if (each.name, each.way) == (task.name, task.way)]
    each = [result.burn_in for result in alike if result.burn_in is not None and not result.differs()]
    return round(statistics.fmean(each)) if each else task.recipe().burn_in


def _cost(task: Task, results: str | Path, measure: bool, tell: Callable[[str], None]) -> Cost | None:
    if (found := known_cost(task, read_costs(results))) is not None or not measure:
        return found
    tell(f"measuring what {task.title} costs")
    try:
        return cost_of(task, results)
    except UserError as error:  # its data are not there
        tell(f"{task.title}: {error}")
        return None


def _done(task: Task, runs: str | Path, burn_in: int, cost: Cost) -> float:
    folder = Path(runs) / task.title
    if not (folder / "config.json").exists():
        return 0.0
    try:
        return min(1.0, len(Run(folder).metrics()) / max(1, burn_in + cost.collecting))
    except UserError:  # it is told when its turn comes
        return 0.0
