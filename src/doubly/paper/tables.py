"""The paper's tables beside what was found: a page, and a list for the command line, both made from the results."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from doubly.core.errors import UserError
from doubly.paper.recipes import FREE, Recipe, recipes, with_recommended
from doubly.runs.config import Config
from doubly.runs.progress import span

INTRODUCTION = """
Made by `doubly reproduce` from `results/`, not by hand; `doubly reproduce NAME` makes a row anew. Numbers are
log-likelihoods of a test row in nats, with standard errors over rows, of the mean of M samples of the weights
(optimisers, M = 0: of the last), by K draws of the hidden variables for each row, from a proposal that was fitted to
these weights and then refined for each row by itself. They are bounds from below in the mean: where many rows have k̂ >
0.7, few of the K draws carry the weight, and the true value is higher. *Annealed* is by annealed importance sampling,
where that was done (`doubly reproduce NAME --anneal`), and in brackets how far apart its bounds from below and above
are on rows of the model; it is the value of rows learnt with Gibbs chains, whose posterior nothing makes like a
proposal. Published bounds are in brackets. *Cut*: its time ended training while validation still rose or samples were
missing, or scoring before the recipe's number of draws. Settings in which a result differs from what its recipe says
now are named.
"""
COLUMNS = ("row", "name", "paper", "ours", "difference", "annealed", "M", "K", "k̂ > 0.7", "hours", "")


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
            mine = [result for result in found.values() if result["name"] == recipe.name]
            lines += [_line(recipe, result) for result in mine] or [_line(recipe, None)]
        lines.append("")
    return "\n".join(lines)


def _read(results: str | Path) -> dict[str, dict[str, Any]]:
    """Every result by the name of its file."""
    found = {}
    for file in sorted(Path(results).glob("*.json")):
        try:
            found[file.stem] = json.loads(file.read_text())
            _ = found[file.stem]["name"], marks(found[file.stem])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{file} is no result of doubly reproduce ({error!r}): move it away") from None
    return found


def marks(result: dict[str, Any]) -> list[str]:
    """What is to be said beside a number."""
    recipe = recipes().get(result["name"])
    if recipe is None:
        return []
    recommended = result["preset"] == "recommended"
    config = (with_recommended(recipe) if recommended else recipe).config
    cut = result["cut"] or (not recipe.evaluation.ais and result["draws"] < recipe.evaluation.draws)
    by_draws = result.get("by_draws", result["log_likelihood"])
    said = {
        "recommended settings": recommended,
        "cut": cut,
        f"seed {result['seed']}": result["seed"],
        f"by K draws {by_draws:.2f}": by_draws != result["log_likelihood"],
        "not annealed": recipe.evaluation.ais and not result.get("annealed"),
    }
    here, there = dataclasses.asdict(Config()) | result["config"], dataclasses.asdict(config)
    if config.hidden:  # else there is no proposal to fit
        here = here | {"refit": result["refit"], "refine": result.get("refine", 0)}
        there = there | {"refit": recipe.refit, "refine": recipe.evaluation.refine}
    untold = (*FREE, "seed", *["warmup_step"] * (not here["warmup"]))
    other = [
        f"{name} {_written(here[name])}"
        for name, value in there.items()
        if name not in untold and _written(here[name]) != _written(value)
    ]
    return [*(word for word, true in said.items() if true), *other]


def _written(value: Any) -> str:
    """As on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _line(recipe: Recipe, result: dict[str, Any] | None) -> str:
    published = f"({recipe.published})" if recipe.bound else f"{recipe.published}"
    if result is None:
        return f"| {recipe.label} | `{recipe.name}` | {published} | not yet | | | | | | | |"
    difference = "" if recipe.bound else f"{result['log_likelihood'] - recipe.published:+.2f}"
    return (
        f"| {recipe.label} | `{recipe.name}` | {published} | {result['log_likelihood']:.2f} ± {result['stderr']:.2f} | "
        f"{difference} | {annealed(result)} | {result['samples']} | {result['draws']:,} | "
        f"{result['unreliable_share']:.0%} | {result['hours']:.2f} | {', '.join(marks(result))} |"
    )


def annealed(result: dict[str, Any]) -> str:
    """What annealing says, if it was asked, and how far apart its bounds are on rows of the model."""
    if not (found := result.get("annealed")):
        return ""
    return f"{found['log_likelihood']:.2f} ± {found['stderr']:.2f} ({found['gap_on_simulated_rows']:.2f})"


def listing(results: str | Path) -> str:
    """Every recipe in a line, and every result in a line below it: what was published, what was found."""
    found, lines = _read(results), []
    for name, recipe in recipes().items():
        lines.append(f"{name:32}{recipe.published:8.2f}  {recipe.label}{' (a bound)' * recipe.bound}")
        for mine in (result for result in found.values() if result["name"] == name):
            value = f"{mine['log_likelihood']:.2f} ± {mine['stderr']:.2f}"
            second = [f"annealed {said}"] if (said := annealed(mine)) else []
            said = ", ".join([f"in {span(3600 * mine['hours'])}", *second, *marks(mine)])
            lines.append(f"{'':32}{value:>16}  {said}")
    return "\n".join(lines)
