"""The page: sections of text, tables and figures, as one HTML file that needs no other and loads nothing."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files as resources
from typing import Literal

from doubly import __version__
from doubly.analysis.report.raster import to_png
from doubly.analysis.report.svg import COLOURS, STYLE, standalone
from doubly.core.extras import extra
from doubly.core.files import Folder

with extra("plots", "a report"):
    import jinja2
    from markupsafe import Markup

Level = Literal["good", "note", "bad"]


@dataclass(frozen=True)
class Remark:
    """A sentence of the verdict, and whether it is good news."""

    level: Level
    text: str
    rank: int = 5
    """What comes first in the verdict: 0 the quality of the model, 9 the smallest matter."""


@dataclass(frozen=True)
class Figure:
    """A chart; its file in figures/ has its name."""

    name: str
    chart: Markup
    title: str = ""
    note: str = ""
    narrow: Markup | None = None
    """The same for small screens, where the chart is wide."""
    wide: bool = False
    """Whether it takes the whole width of the page."""


@dataclass(frozen=True)
class Table:
    """Lines of cells; the first cell of a line is its name."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    numbers: bool = True
    """Whether the cells after the first are numbers, which stand to the right."""
    note: str = ""
    levels: Sequence[Level | None] = ()
    """Of each line: whether it stands out."""
    folded: str = ""
    """What to press to see it, where it is long."""


@dataclass(frozen=True)
class Words:
    """A paragraph, or a command."""

    text: str
    code: bool = False


@dataclass(frozen=True)
class Section:
    """A chapter of the report."""

    title: str
    advice: str
    """What to look for in it."""
    parts: Sequence[Figure | Table | Words] = ()
    remarks: Sequence[Remark] = ()
    """What it adds to the verdict."""
    key: str = field(default="", compare=False)

    @property
    def figures(self) -> list[Figure]:
        return [part for part in self.parts if isinstance(part, Figure)]


def save_figures(folder: Folder, sections: Sequence[Section]) -> None:
    """Every figure as files of its own."""
    for figure in (figure for section in sections for figure in section.figures):
        folder.write(f"figures/{figure.name}.svg", standalone(figure.chart))
        folder.write(f"figures/{figure.name}.png", to_png(figure.chart))


def verdict(sections: Sequence[Section]) -> list[Remark]:
    """What all sections say of the model, the most important first."""
    return sorted((remark for section in sections for remark in section.remarks), key=lambda remark: remark.rank)


def summary(remarks: Sequence[Remark]) -> str:
    """How many of each."""
    counts = [
        (sum(each.level == level for each in remarks), word)
        for level, word in (("bad", "problem"), ("note", "note"), ("good", "good sign"))
    ]
    said = [f"{n} {word}{'s' * (n != 1)}" for n, word in counts if n]
    return ", ".join(said) or "Nothing to say"


def render(title: str, subtitle: str, sections: Sequence[Section], made: str) -> str:
    """The page. Texts are escaped; the only script on it is our own, and the page says so to the browser."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests["figure"] = lambda part: isinstance(part, Figure)
    environment.tests["table"] = lambda part: isinstance(part, Table)
    folder = resources("doubly.analysis.report")
    script = (folder / "page.js").read_text()
    template = environment.from_string((folder / "template.html").read_text())
    remarks = verdict(sections)
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        remarks=remarks,
        summary=summary(remarks),
        colours=Markup(COLOURS),
        style=Markup(STYLE),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        made=made,
        version=__version__,
    )
