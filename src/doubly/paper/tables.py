"""The paper's tables beside what was found: a page, and a list for the command line, both made from the results."""

from pathlib import Path

from doubly.paper.history import read_scores, told
from doubly.paper.recipes import Recipe, recipes
from doubly.paper.result import RowResult
from doubly.runs.progress import span

INTRODUCTION = """
`doubly reproduce` makes this page from `results/`; `doubly reproduce NAME` makes a row anew. *Ours* is the mean
log-likelihood of a test row in nats, with its standard error over rows. The weights are the mean of M samples; for
optimisers (M = 0) they are the last. *Estimate* says how the log-likelihood was found. By draws: importance sampling
with K draws of the latent variables for each row, from a proposal that is fitted to these weights and then refined for
each row alone; where many rows have k̂ > 0.7, few of the K draws carry most of the weight, and the true value is higher.
By temperatures: annealing from the proposal or from the prior, with how far apart its bounds from below and above are
on rows drawn from the model. Both are lower bounds in expectation. Rows with recommended settings take the larger of
the two, chosen on validation rows; do not compare such a number with one by draws as if both were the models' own.

*Annealed* is the estimate by annealed importance sampling, where it was made (`doubly reproduce NAME --anneal`). The
number in brackets is the gap between its lower and upper bounds on rows drawn from the model. For rows trained with
Gibbs chains, *ours* is the annealed value: their training does not fit the posterior of the latent variables to the
shape of a proposal, so importance sampling gives a loose bound.

Published numbers in brackets are bounds. *Cut* means that time ran out: training ended while validation still rose or
before all samples were collected, or scoring ended before the recipe's number of draws. *Temperature* is the mean
kinetic temperature of the chain during the collection; results made before it was recorded have none. In trials of the
recommended step for `mnist-vae-50` it was 1.4: take that row as of a tempered posterior. The last column names a
temperature that is off by more than 5 %, every setting in which a result differs from its recipe, and whether its code
was committed and its data checksummed.
"""
COLUMNS = ("row", "name", "paper", "ours", "difference", "estimate", "annealed", "M", "temperature", "hours", "")
SCORES = """
## How often test rows were looked at

Every score that the test rows of a row have had, the oldest first. Most are of different weights; a score by draws
that is followed by one with temperatures may be of the same weights. No setting was chosen by a test score, but whoever
made a row anew knew its earlier scores.
"""


def page(results: str | Path) -> str:
    """All rows, what was published and what was found, as Markdown."""
    found = _read(results)
    lines = ["# The paper's tables", "", *INTRODUCTION.strip().splitlines(), ""]
    by_table: dict[str, list[Recipe]] = {}
    for recipe in recipes().values():
        by_table.setdefault(recipe.table, []).append(recipe)
    for table, rows in by_table.items():
        lines += [f"## {table}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        for recipe in rows:
            mine = [result for result in found if result.name == recipe.name]
            lines += [_line(recipe, result) for result in mine] or [_line(recipe, None)]
        lines.append("")
    if scores := read_scores(results):
        lines += [*SCORES.strip().splitlines(), "", "| row | looks | scores |", "|---|---|---|"]
        for name in recipes():
            if looks := sum(score.row == name for score in scores):
                lines.append(f"| `{name}` | {looks} | {told(scores, name)} |")
        lines.append("")
    return "\n".join(lines)


def listing(results: str | Path) -> str:
    """Every recipe in a line, and every result in a line below it: what was published, what was found."""
    found, lines = _read(results), []
    for name, recipe in recipes().items():
        lines.append(f"{name:32}{recipe.published:8.2f}  {recipe.label}{' (a bound)' * recipe.bound}")
        for result in (result for result in found if result.name == name):
            second = [f"annealed {result.annealed.text()}"] if result.annealed else []
            said = ", ".join([f"in {span(3600 * result.hours)}", *second, *result.marks()])
            lines.append(f"{'':32}{result.value():>16}  {said}")
    return "\n".join(lines)


def _read(results: str | Path) -> list[RowResult]:
    """Every result, in the order of the files' names."""
    return [RowResult.read(file) for file in sorted(Path(results).glob("*.json"))]


def _line(recipe: Recipe, result: RowResult | None) -> str:
    published = f"({recipe.published})" if recipe.bound else f"{recipe.published}"
    if result is None:
        return f"| {recipe.label} | `{recipe.name}` | {published} | not yet | | | | | | | |"
    difference = "" if recipe.bound else f"{result.log_likelihood - recipe.published:+.2f}"
    annealed = result.annealed.text() if result.annealed else ""
    return (
        f"| {recipe.label} | `{recipe.name}` | {published} | {result.value()} | {difference} | {result.estimate()} | "
        f"{annealed} | {result.samples} | {'' if result.temperature is None else f'{result.temperature:.2f}'} | "
        f"{result.hours:.2f} | {', '.join(result.marks())} |"
    )
