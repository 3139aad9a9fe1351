"""The report of a run, or of several side by side: one HTML file that needs no other, and its figures as files.

svg       charts as SVG, and PNG pictures
raster    charts as PNG
mosaic    rows as images side by side
mixture   independent columns and mixtures of them, to compare with
ways      simple ways of imputing, to compare with
story     what a report tells of: a run with its data and posterior, and what sections share
page      sections, tables and figures; the page
sections  one file for each part of the story; their registry
figures   pictures by matplotlib, for other commands
files     rows and pictures into files
pictures  pictures beside the results of other commands
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from doubly.analysis.report.page import Remark, Section, render, save_figures, verdict
from doubly.analysis.report.sections import SECTIONS
from doubly.analysis.report.sections.quality import Fact, Result, facts, results
from doubly.analysis.report.story import Story
from doubly.analysis.report.svg import plain_text
from doubly.core.errors import UserError
from doubly.data import SPLITS
from doubly.runs.fit import use_threads
from doubly.runs.progress import counted, span

Tell = Callable[[str], None]
MOST_RUNS = 12


def make(folder: str | Path, *others: str | Path, tell: Tell = lambda what: None) -> tuple[str, Path]:
    """Write the run's report.html and figures/, and nothing else; returns its results as plain text and the page.

    Other runs are compared with it. `tell` is told what is under way.
    """
    if len(others) >= MOST_RUNS:
        raise UserError(f"a report compares at most {MOST_RUNS} runs, got {1 + len(others)}: name fewer")
    story = Story.open(folder, others)
    sections = tell_all(story, tell)
    return _text(story, sections), write_page(story, sections)


def tell_all(story: Story, tell: Tell = lambda what: None) -> list[Section]:
    """The sections that apply, in their order."""
    with use_threads(story.run.config.threads):
        return [section for each in SECTIONS if (section := _section(each.key, story, tell)) is not None]


def write_page(story: Story, sections: Sequence[Section]) -> Path:
    """Write report.html and figures/ into the run folder."""
    save_figures(story.run.folder, sections)
    page = render(title(story), subtitle(story), sections, "")
    story.run.folder.write("report.html", page.encode())
    return story.run.path / "report.html"


def _section(key: str, story: Story, tell: Tell) -> Section | None:
    """A section, if it applies; where its question cannot be answered for this run, it says why."""
    maker = next(each for each in SECTIONS if each.key == key)
    if not maker.applies(story):
        return None
    tell(f"report: {key.replace('-', ' ')}")
    try:
        found = maker.draw(story)
    except UserError as error:
        said = plain_text(error, 400)
        found = Section(key.replace("-", " ").capitalize(), f"This could not be made: {said}.")
    object.__setattr__(found, "key", key)
    return found


def title(story: Story) -> str:
    """What the report is of, in words."""
    config, data = story.run.config, story.data
    layers = {0: "a model without latent variables", 1: "one layer of latent variables"}
    depth = layers.get(len(config.hidden), f"{len(config.hidden)} layers of latent variables")
    names = plain_text(data.name.partition(":")[0] if "." in data.name else data.name, 60)
    if story.others:
        return f"{1 + len(story.others)} runs compared, on {names}"
    return f"What was learnt from {names}: {depth}"


def subtitle(story: Story) -> str:
    """The model in a line."""
    widths = "-".join(str(n) for n in (story.data.width, *story.run.config.hidden))
    kind = plain_text(story.run.config.model.partition(":")[0].partition(",")[0], 40)
    samples = sum(chain.collected for chain in (story.posterior, *story.posterior.others))
    return (
        f"{kind} {widths}, {story.posterior.model.size} weights, {counted(samples, 'sample')} of them "
        f"collected, in {plain_text(story.run.path, 120)}"
    )


# The same for a terminal


def _text(story: Story, sections: Sequence[Section]) -> str:
    """The verdict and the scores."""
    table = _table([*_facts(story), *facts(story)], results(story))
    return "\n".join([table, "", *map(_line, verdict(sections))])


def _line(remark: Remark) -> str:
    return f"{'problem' if remark.level == 'bad' else remark.level:8}{remark.text}"


def _facts(story: Story) -> list[Fact]:
    config, data, metrics = story.run.config, story.data, story.metrics
    shape = "×".join(str(n) for n in data.shape) if len(data.shape) > 1 else f"{data.width} columns"
    counts = ", ".join(f"{len(data.split(split))} {split}" for split in SPLITS)
    widths = "-".join(str(n) for n in (data.width, *config.hidden))
    epochs, collected = counted(len(metrics), "epoch"), counted(metrics[-1]["collected"], "sample")
    time = span(sum(record["seconds"] for record in metrics))
    number = len(story.run.chains)
    chains = f", by the first of {number} chains" if story.run.config.chains > 1 else ""
    return [
        Fact("model", f"{plain_text(config.model, 80)} {widths} ({story.posterior.model.size} weights)"),
        Fact("data", f"{plain_text(data.name, 80)} ({counts} rows of {shape})"),
        Fact("training", f"{epochs} in {time}, {collected} collected{chains}"),
    ]


def _table(known: Sequence[Fact], found: Sequence[Result]) -> str:
    """The results for a terminal.

    >>> print(_table([Fact("model", "sbn 64-100")], [Result("test log-likelihood", "-19.87", "0.31", "mean, K=1000")]))
    model                sbn 64-100
    test log-likelihood  -19.87 ± 0.31  (mean, K=1000)
    """
    name = max(len(name) for name, *_ in [*known, *found])
    value, stderr = max(len(r.value) for r in found), max(len(r.stderr) for r in found)
    lines = [f"{fact.name:{name}}  {fact.text}" for fact in known]
    lines += [f"{r.name:{name}}  {r.value:>{value}} ± {r.stderr:>{stderr}}  ({r.how})" for r in found]
    return "\n".join(lines)
