"""The paper's tables beside what was found: a page, and a list for the command line, both made from the results."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from doubly.paper.history import Score, read_scores, told
from doubly.paper.plan import Plan, Planned, plan, read_results
from doubly.paper.recipes import RECOMMENDED, Recipe, recipes
from doubly.paper.result import RowResult
from doubly.paper.tasks import SAID, WAYS, Task, Way
from doubly.runs.progress import span

INTRODUCTION = """
`doubly reproduce` makes this page from `results/`; `doubly reproduce NAME` makes a row, and `doubly reproduce --all`
all that are missing. Numbers are mean log-likelihoods of a test row in nats, with their standard errors over rows;
where a row was made with several seeds, the mean over them and their standard deviation. Every table comes in three
parts. Do not compare a number of one part with one of another: they are different estimates.

1. **The paper's way**: its method and settings. The weights are the mean of M samples; the proposal is fitted to
   them, and K draws from it for each row give a lower bound, as in the paper. Nothing is refined or annealed (but
   rows of Gibbs chains are, see below). Its rivals stand here, too: they are optimised until validation has levelled
   off, and scored with their last weights (*M* is *last*). Published numbers are of the same kind, so *difference* is
   between like and like; those in brackets are bounds. Do not rank a rival against a sampler by these numbers: a mean
   of weights may score higher than the last ones, for optimisers as well (as in [quality](reports/quality.md), where
   all methods are ranked by the mean). Where many rows have k̂ > 0.7, few of the K draws carry most of the weight,
   and the true value is higher.
2. **Recommended**: our settings, and the best lower bound that we have: by draws or by annealing, whichever gives
   more to validation rows. *Estimate* says which, and how far apart the bounds of annealing from below and above are
   on rows drawn from the model. *Over published* is a difference between two kinds of estimate, of which ours is the
   nearer: a part of it is not the model's.
3. **Annealed alike**: the same weights, all annealed with as many temperatures, from the proposal where its layers
   allow it, else from the prior; in brackets how far apart the bounds are on rows drawn from the model. Here models
   can be compared, between rows and between the two ways, as far as these gaps allow; rivals still have their last
   weights. Models with a NADE layer cannot be annealed.

Learning with Gibbs chains does not fit the posterior of the latent variables to the shape of a proposal, and how the
paper scored it is not known: these rows are annealed in each part.

*Last / mean / ensemble* is what the last weights, the mean of all samples and the ensemble of those stored give 200
validation rows, all three by one estimate (at most 1,000 draws or temperatures, a shorter refit); in brackets the
paired gains of the mean over the last, and of the ensemble over the mean. Test rows have no part in it. *Cut* means
that time ran out: training ended while validation still rose or before all samples were collected, or scoring ended
before the recipe's number of draws. *Temperature* is the mean kinetic temperature of the chain during the collection;
results made before it was recorded have none. *Looks* counts how often test rows were scored for that row and way,
all seeds together. Those of a run are scored once, when it is finished, by its own estimate and annealed alike, and
nothing is chosen by them. The last column names a temperature that is off by more than 5 %, every setting in which a
result differs from its recipe as it is now, and whether its code was committed and its data checksummed. The
recommended row of MNIST SBN 200 was made just before the thermostat took its samples where the gradient is
([study](reports/study.md)). OMNIGLOT is rebuilt from its drawings: a few rows differ from those of the published
numbers.
"""
SCORES = """
## How often test rows were looked at

Every score that the test rows of a row have had, the oldest first. Most are of different weights; a score by draws
that is followed by one with temperatures may be of the same weights. No setting was chosen by a test score, but whoever
made a row anew knew its earlier scores.
"""
MISSING = """
## What is missing, and what it costs

Made by `doubly reproduce --plan`: hours of one core, the cheapest first, further seeds last. Steps a second are
measured in a few seconds of CPU time on one thread; how many epochs the burn-in takes is known from results alike, or
guessed.
`doubly reproduce --all --budget 20h` works through this list, two rows at a time.
"""
TOO_LONG = "These are not made here, by their recipes or because they would take more than {longest} each:"


def page(results: str | Path) -> str:
    """All rows, what was published and what was found, as Markdown."""
    found, scores, missing = (
        [each for _, each in read_results(results)],
        read_scores(results),
        plan(results, measure=False),
    )
    lines = ["# The paper's tables", "", *INTRODUCTION.strip().splitlines(), ""]
    by_table: dict[str, list[Recipe]] = {}
    for recipe in recipes().values():
        by_table.setdefault(recipe.table, []).append(recipe)
    for table, rows in by_table.items():
        lines += [f"## {table}", ""]
        for way in WAYS:
            there = [recipe for recipe in rows if way == "paper" or recipe.preset in RECOMMENDED]
            cells = [_cells(recipe, way, _of(found, recipe, way), missing, scores) for recipe in there]
            lines += _part(SAID[way].capitalize(), list(COLUMNS[way]), cells)
        lines += _part(
            f"Annealed alike, {rows[0].alike:,} temperatures",
            ["row", "name", *(SAID[way] for way in WAYS)],
            [[recipe.label, f"`{recipe.name}`", *(_annealed(recipe, way, _of(found, recipe, way)) for way in WAYS)]
             for recipe in rows if recipe.can_anneal],
        )  # fmt: skip
    if scores:
        lines += [*SCORES.strip().splitlines(), "", "| row | looks | scores |", "|---|---|---|"]
        for name in recipes():
            if looks := sum(score.row == name for score in scores):
                lines.append(f"| `{name}` | {looks} | {told(scores, name)} |")
        lines.append("")
    lines += _plan_lines(missing)
    return "\n".join(lines)


def listing(results: str | Path) -> str:
    """Every recipe in a line, and every result in a line below it: what was published, what was found."""
    found, lines = [each for _, each in read_results(results)], []
    for name, recipe in recipes().items():
        lines.append(f"{name:32}{recipe.published:8.2f}  {recipe.label}{' (a bound)' * recipe.bound}")
        for result in (result for result in found if result.name == name):
            second = [f"annealed alike {result.annealed.text()}"] if result.annealed else []
            said = ", ".join([SAID[result.way], f"in {span(3600 * result.hours)}", *second, *result.marks()])
            lines.append(f"{'':32}{result.value():>16}  {said}")
    return "\n".join(lines)


def _of(found: Sequence[RowResult], recipe: Recipe, way: Way) -> list[RowResult]:
    """The results of a row in one way, by their seeds."""
    mine = [result for result in found if result.name == recipe.name and result.way == way]
    return sorted(mine, key=lambda result: result.seed)


def _part(title: str, columns: list[str], cells: Sequence[Sequence[str]]) -> list[str]:
    if not cells:
        return []
    return [
        f"### {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|",
        *(f"| {' | '.join(row)} |" for row in cells), "",
    ]  # fmt: skip


# The cells of a row in one way: by the heading of the column, from the recipe, its results and their scores

Cell = Callable[[Recipe, list[RowResult], int], str]


def _published(recipe: Recipe, mine: list[RowResult], looks: int) -> str:
    return f"({recipe.published})" if recipe.bound else f"{recipe.published}"


def _ours(recipe: Recipe, mine: list[RowResult], looks: int) -> str:
    return mine[0].value() if len(mine) == 1 else over_seeds([each.log_likelihood for each in mine])


def over_seeds(values: Sequence[float]) -> str:
    """The mean over seeds and their standard deviation.

    >>> over_seeds([-100.0, -101.0, -102.0])
    '-101.00 ± 1.00 (sd of 3 seeds)'
    """
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f} (sd of {len(values)} seeds)"


def _difference(recipe: Recipe, mine: list[RowResult], looks: int) -> str:
    return f"{statistics.fmean(each.log_likelihood for each in mine) - recipe.published:+.2f}" * (not recipe.bound)


def _samples(recipe: Recipe, mine: list[RowResult], looks: int) -> str:
    return "last" if mine[0].of == "last" else " ".join(dict.fromkeys(str(each.samples) for each in mine))


def _temperature(recipe: Recipe, mine: list[RowResult], looks: int) -> str:
    return " ".join("–" if each.temperature is None else f"{each.temperature:.2f}" for each in mine)


def _weights(recipe: Recipe, mine: list[RowResult], looks: int) -> str:
    return next((each.weights.text() for each in mine if each.weights is not None), "")


def _remarks(recipe: Recipe, mine: list[RowResult], looks: int) -> str:
    return ", ".join(dict.fromkeys(mark for each in mine for mark in each.marks() if not mark.startswith("seed ")))


_START: dict[str, Cell] = {"published": _published, "ours": _ours}
_END: dict[str, Cell] = {
    "temperature": _temperature,
    "last / mean / ensemble (validation)": _weights,
    "looks": lambda recipe, mine, looks: str(looks),
    "hours": lambda recipe, mine, looks: " ".join(f"{each.hours:.2f}" for each in mine),
    "": _remarks,
}
_ESTIMATE: dict[str, Cell] = {"estimate": lambda recipe, mine, looks: mine[0].estimate(), "M": _samples}
CELLS: dict[Way, dict[str, Cell]] = {
    "paper": _START | {"difference": _difference} | _ESTIMATE | _END,
    "recommended": _START | {"over published (another estimate)": _difference} | _ESTIMATE | _END,
}
COLUMNS: dict[Way, tuple[str, ...]] = {way: ("row", "name", *cells) for way, cells in CELLS.items()}


def _cells(recipe: Recipe, way: Way, mine: list[RowResult], missing: Plan, scores: Sequence[Score]) -> list[str]:
    start = [recipe.label, f"`{recipe.name}`"]
    if not mine:
        rest = len(CELLS[way]) - 2
        return [*start, _published(recipe, mine, 0), _not_yet(Task(recipe.name, way), missing), *[""] * rest]
    titles = {Task(recipe.name, way, seed).title for seed in range(1000)}
    looks = sum(score.title in titles for score in scores)
    return [*start, *(cell(recipe, mine, looks) for cell in CELLS[way].values())]


def _not_yet(task: Task, missing: Plan) -> str:
    """What stands where there is no number: what it would cost, where that is too much or known."""
    for each in missing.too_long:
        if each.task == task:
            return "not made" + (f": would take {span(each.seconds)} of one core" if each.seconds else "")
    return "not yet"


def _annealed(recipe: Recipe, way: Way, mine: list[RowResult]) -> str:
    found = [each.annealed for each in mine if each.annealed is not None]
    if not found:
        return "" if way == "paper" or recipe.preset in RECOMMENDED else "–"
    if len(found) == 1:
        told = found[0].text()
    else:
        gap = statistics.fmean(each.found.gap_on_simulated_rows for each in found)
        told = f"{over_seeds([each.found.log_likelihood for each in found])} ({gap:.2f})"
    others = {f"{each.temperatures:,} temperatures" for each in found if each.temperatures != recipe.alike}
    return ", ".join([told, *sorted(others)])


def _plan_lines(missing: Plan) -> list[str]:
    if not missing.todo and not missing.too_long:
        return []
    lines = [*MISSING.strip().splitlines(), "", *_plan_table(missing.todo)]
    if missing.too_long:
        lines += [TOO_LONG.format(longest=span(missing.longest)), "", *_plan_table(missing.too_long)]
    return lines


def _plan_table(planned: Sequence[Planned]) -> list[str]:
    rows = []
    for each in planned:
        cost = each.cost
        told = ["", "", "", "not measured"]
        if cost is not None:
            epochs = each.burn_in + cost.collecting
            hours = f"{(each.seconds or 0) / 3600:.1f}"
            told = [f"{1 / cost.step:.1f}", f"{epochs * cost.steps:,}", f"{cost.scoring / 3600:.1f}", hours]
        rows.append([f"`{each.task.title}`", each.column, each.lacks, *told])
    head = ["run", "column", "lacks", "steps a second", "steps", "hours of scoring", "hours in all"]
    table = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *table, ""] if rows else []
