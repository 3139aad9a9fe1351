"""The sections of a report, in their order: each says whether it applies to a run, and draws itself.

A new section is one function from a `Story` to a `Section`, and one line here.
"""

from collections.abc import Callable
from typing import NamedTuple

from doubly.analysis.report.page import Section
from doubly.analysis.report.sections.cells import hidden_cells, odd
from doubly.analysis.report.sections.chain import chain
from doubly.analysis.report.sections.compare import compare
from doubly.analysis.report.sections.completions import completions
from doubly.analysis.report.sections.curves import curves, has_curves
from doubly.analysis.report.sections.features import extremes, features, has_features
from doubly.analysis.report.sections.latents import latents
from doubly.analysis.report.sections.quality import quality
from doubly.analysis.report.sections.samples import samples
from doubly.analysis.report.sections.settings import settings
from doubly.analysis.report.sections.tables import associations, columns, has_missing, missingness
from doubly.analysis.report.sections.training import training
from doubly.analysis.report.story import Story


class Maker(NamedTuple):
    """A section that may be made."""

    key: str
    """Its address on the page."""
    applies: Callable[[Story], bool]
    draw: Callable[[Story], Section]


def _always(story: Story) -> bool:
    return True


def _table(story: Story) -> bool:
    return story.table


def _no_table(story: Story) -> bool:
    return not story.table


SECTIONS = (
    Maker("compare", lambda story: bool(story.others), compare),
    Maker("scores", _always, quality),
    Maker("training", _always, training),
    Maker("samples", _no_table, samples),
    Maker("columns", _table, columns),
    Maker("associations", _table, associations),
    Maker("hidden-cells", _table, hidden_cells),
    Maker("completions", _no_table, completions),
    Maker("features", has_features, features),
    Maker("rows", _no_table, extremes),
    Maker("odd-rows", _table, odd),
    Maker("missing", has_missing, missingness),
    Maker("latents", lambda story: not story.exact, latents),
    Maker("chain", _always, chain),
    Maker("curves", has_curves, curves),
    Maker("settings", _always, settings),
)
