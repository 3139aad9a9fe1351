"""The model card of a run: what its report has found, in Markdown, for the page of a repository."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from doubly import __version__
from doubly.analysis.report import title
from doubly.analysis.report.page import Section, verdict
from doubly.analysis.report.sections.quality import results
from doubly.analysis.report.sections.settings import command, origin
from doubly.analysis.report.story import Story
from doubly.analysis.report.svg import plain_text
from doubly.runs.export import SUFFIX

SHOWN = ("samples", "hidden-cells", "training")  # the figures on the card, of those that there are
SIGNS = {"good": "✓", "note": "•", "bad": "✗"}
PRIVATE = ("folder",)  # lines of the origin that say more of a machine than of a run
HEAD = """---
library_name: doubly
tags:
- doubly
- bayesian
- generative-model
- density-estimation
- stochastic-gradient-mcmc
---
"""
CITATION = """> Du, C., Zhu, J., & Zhang, B. (2016). Learning deep generative models with doubly stochastic gradient
> MCMC. *Proceedings of the 33rd International Conference on Machine Learning*."""


def card(story: Story, sections: Sequence[Section], repository: str, whole: bool) -> str:
    """The text of README.md. `whole`: the run folder lies beside it, else one file without rows."""
    name = repository.rpartition("/")[2]
    place = f"runs/{name}" if whole else f"{name}{SUFFIX}"
    pictures = _pictures(sections) if whole else []
    config = story.run.config if whole else dataclasses.replace(story.run.config, data=Path(story.run.config.data).name)
    again = command(config, place if whole else f"runs/{name}")
    kept = [line for line in origin(story) if line[0] not in PRIVATE]
    scores = [[each.name, f"{each.value} ± {each.stderr}", each.how] for each in results(story)]
    what = "the whole run folder" if whole else "one file without rows and without code"
    parts = [
        HEAD + f"# {_text(title(story))}",
        f"Learnt by `doubly` {__version__}: Bayesian deep generative models by doubly stochastic gradient MCMC. "
        f"This repository holds {what}.",
        "## Verdict",
        "\n".join(f"- {SIGNS[each.level]} {_text(each.text)}" for each in verdict(sections)),
        *pictures,
        "## Scores",
        _table(["log-likelihood, nats a row", "value", "how"], scores),
        "Scores of models with latent variables are lower bounds. Compare only numbers that were found alike.",
        "## Use it",
        f"```sh\npip install 'doubly[hub,cli]'\ndoubly pull {repository} --out {place}\n```",
        f'```python\nimport doubly\n\npost = doubly.load("{place}")\npost.sample(100)\n```',
        "## What, when, where",
        _table(["", ""], kept),
        f"Made again by:\n\n```sh\n{plain_text(again, 4000).replace('```', '')}\n```",
        "## How to cite",
        CITATION,
    ]
    text = "\n\n".join(filter(None, parts)) + "\n"
    data = story.run.config.data
    return _without(_without(text, data, Path(data).name), str(story.run.path), place)


def _without(text: str, path: str, place: str) -> str:
    """The text with another place for a path of this machine, which says more than it should."""
    return text.replace(path, place).replace(_text(path), place) if len(path) > 2 else text


def _pictures(sections: Sequence[Section]) -> list[str]:
    """Some figures, by their files."""
    found = {each.name: each for section in sections for each in section.figures}
    return [f"![{_text(found[name].title or name)}](figures/{name}.svg)" for name in SHOWN if name in found]


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *([_text(cell) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text(words: str) -> str:
    """Words that Markdown and HTML leave as they are.

    >>> _text("a|b <i>*c*")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*'
    """
    found = " ".join(words.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\|*_`[]":
        found = found.replace(sign, f"\\{sign}")
    return found
