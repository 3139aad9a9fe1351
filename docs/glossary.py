"""The words of this project, one for each thing; writes docs/glossary.md: `make docs`.

tests/test_glossary.py reads GLOSSARY from here: the words given up do not come back as names in src/doubly.
"""

from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).with_name("glossary.md")


class Entry(NamedTuple):
    """A thing, the word for it in names and prose, and the words that are not used for it."""

    thing: str
    word: str
    given_up: tuple[str, ...] = ()
    """As they would appear in names. A word may still be used in prose where it means something else."""
    remark: str = ""


GLOSSARY = (
    Entry(
        "a random vector of the model that is not data: z",
        "latent variables, `latents`",
        remark="`hidden` stays the name of the option that gives the widths of the latent layers",
    ),
    Entry("E[z given x]", "codes"),
    Entry("values of z drawn from a proposal; S in training, K in evaluation", "draws"),
    Entry(
        "values of the weights θ taken from the chain; M of them",
        "samples",
        ("kept",),
        "also the rows that a model generates",
    ),
    Entry("a value that a row does not have, and the mask that says where", "missing", ("hole", "holes", "hollow")),
    Entry(
        "values drawn for what is missing",
        "completions; the act: `impute`",
        ("fill", "filled", "filler", "filling", "fillin", "fills"),
        "`fill` is free for a command of that name",
    ),
    Entry("model and proposal, with their weights θ and φ", "`Pair`"),
    Entry("a mini-batch as an estimator gets it", "`Batch`", ("visit", "visits", "visited", "places")),
    Entry("the importance-weighted lower bound on log p(x)", "`log_likelihood`, L_K", ("scored", "tally")),
    Entry("how many equally weighted draws the weighted ones are worth", "`ess`, effective draws", ("effective",)),
    Entry(
        "a value together with its vector-Jacobian product",
        "`log_prob_vjp`, `draw_vjp`",
        ("track", "tracked", "tracks", "pull", "pulled", "pulls"),
    ),
    Entry(
        "the phase in which the proposal learns from rows that the model draws",
        "sleep, `sleep_weight`",
        ("dream", "dreams", "dreamt", "dreaming", "asleep"),
    ),
    Entry(
        "moving along the gradient of an objective, upward",
        "gradient, ascend",
        ("climb", "climbs", "climbed", "climbing", "slope", "slopes", "height", "heights"),
    ),
    Entry(
        "a latent unit of whose variance the row explains more than 1 %",
        "active unit",
        ("alive", "dead", "frozen"),
        "a unit that is not: inactive",
    ),
    Entry("results stored so that they are not computed twice", "cache", ("shelf", "shelves")),
    Entry("the settings of an evaluation", "`EvaluateConfig`", ("question", "questions")),
    Entry("the loop between training and the run folder", "fit: `runs/fit.py`", ("drive", "driver")),
    Entry("scoring and comparing runs", "evaluate: `analysis/evaluate.py`", ("judge", "judged", "judges")),
    Entry("R-hat and effective sample size of chains", "diagnose, convergence: `analysis/diagnose.py`", ("mixing",)),
    Entry("everything that can be chosen by name", "registry, `doubly list`", ("catalogue", "catalog")),
    Entry("which values are observed", "`observed`, the complement of `missing`", ("known()", "unknown()")),
)

HEAD = """# Glossary: one word for each thing

Written by `make docs` from `docs/glossary.py`; do not edit it by hand. `tests/test_glossary.py` reads the same list:
a word of the last column does not come back as (a part of) the name of a module, class, function, parameter or field.

| thing | word | not used in names |
|---|---|---|
"""

TAIL = """
Letters, in formulas and in the docs:

| letter | what it is | option |
|---|---|---|
| x, D | a row of data, and its number of columns | |
| z, H | the latent variables of a layer, and their number | `--hidden` |
| θ | the weights of the model, sampled | |
| φ | the weights of the proposal, optimised | |
| p(x, z) | the model; q(z given x) is the proposal, or recognition network | `--model`, `--proposal` |
| N, B | training rows, and rows in a mini-batch | `--batch` |
| S | draws of z for each row in a training step | `--draws` of `fit` |
| K | draws of z for each row in an evaluation; L_K is the bound with K draws | `--draws` of `evaluate` |
| M | samples of θ in the posterior mean | `--collect` |
| η | the sampler's step: `--step` divided by N | `--step` |
| k̂ | shape of the tail of the importance weights; above 0.7 they cannot be trusted | |
"""


def page() -> str:
    """The glossary as a page."""
    rows = []
    for entry in GLOSSARY:
        words = ", ".join(f"`{word}`" for word in entry.given_up)
        remark = f" ({entry.remark})" if entry.remark else ""
        rows.append(f"| {entry.thing} | {entry.word}{remark} | {words} |\n")
    return HEAD + "".join(rows) + TAIL


if __name__ == "__main__":
    TARGET.write_text(page())
    print(f"written: {TARGET.name}")
