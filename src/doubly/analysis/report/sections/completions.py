"""Completions: half of held-out rows is hidden, imputed and compared with the truth."""

import numpy as np

from doubly.analysis.accuracy import CellErrors, errors, mask
from doubly.analysis.report.mosaic import ink, ink_limits, mosaic
from doubly.analysis.report.page import Figure, Level, Remark, Section, Table
from doubly.analysis.report.story import TRAINING_ROWS, Story
from doubly.analysis.report.ways import simple_ways
from doubly.core.types import Hide
from doubly.latents.completions import ImputeConfig

ROWS, SHOWN, COPIES, SWEEPS = 40, 8, 3, 20
MOST_CELLS = 20_000
"""Cells of the rows that are completed: of wide data, fewer rows."""


def completions(story: Story) -> Section:
    """Images lose their lower half, other rows a third of their cells."""
    hide: Hide = "lower-half" if story.images else "random"
    index, x = story.some("test", max(SHOWN, min(ROWS, MOST_CELLS // story.data.width)))
    missing = mask(hide, len(x), story.data.shape, 1 / 3) & ~np.isnan(x.astype(float))
    incomplete = np.where(missing, np.nan, x.astype(np.float32))
    found = story.posterior.impute(incomplete, 20 if not story.images else 8, ImputeConfig(sweeps=SWEEPS), story.of)
    binary = story.data.kind == "binary"
    ways = {"this model": errors(found.mean, x, missing, binary)} | _simple(story, x, incomplete, missing, binary)
    what = "lower half" if story.images else "a third of the cells, at random,"
    parts: list[Figure | Table] = []
    if story.images:
        parts.append(_picture(story, index, x, missing, incomplete, found.completions))
    parts.append(_table(ways, binary, int(missing.sum())))
    return Section(
        "Completions",
        f"The {what} of {len(x)} test rows was hidden and imputed given the rest. Completions should "
        f"agree with what is "
        "there and, where that leaves several possibilities, differ from each other.",
        parts,
        [_remark(ways, binary)] if missing.any() else [],
    )


def _picture(
    story: Story, index: np.ndarray, x: np.ndarray, missing: np.ndarray, incomplete: np.ndarray, drawn: np.ndarray
) -> Figure:
    limits = ink_limits(story.data.train)
    n = min(SHOWN, len(x))
    lines = [ink(x[:n], limits), ink(incomplete[:n], limits), *(ink(copy[:n], limits) for copy in drawn[:COPIES])]
    names = ["original", "what was left", *["completions", *[""] * (COPIES - 1)]]
    tips = [f"test row {row}: {names[i] or 'completion'}" for i in range(len(lines)) for row in index[:n]]
    chart = mosaic(np.concatenate(lines), story.data.shape, tips, "Rows, what was left, and completions", n, names)
    return Figure("completions", chart, "Rows, what was left of them, and three completions")


def _simple(
    story: Story, x: np.ndarray, incomplete: np.ndarray, missing: np.ndarray, binary: bool
) -> dict[str, CellErrors]:
    """What simple ways make of the same cells."""
    _, train = story.some("train", TRAINING_ROWS)
    found = simple_ways(train, incomplete)
    return {way: errors(np.clip(mean, 0, 1) if binary else mean, x, missing, binary) for way, mean in found.items()}


def _table(ways: dict[str, CellErrors], binary: bool, hidden: int) -> Table:
    head = ["", "root mean square error"] + (["wrong when rounded", "log loss", "calibration error"] if binary else [])
    lines = []
    for name, found in ways.items():
        more = [f"{found.error_rate:.1%}", f"{found.log_loss:.3f}", f"{found.calibration_error:.3f}"] if binary else []
        lines.append([name, f"{found.rmse:.3f}", *more])
    return Table(head, lines, note=f"Over {hidden} hidden cells. Lower is better.")


def _remark(ways: dict[str, CellErrors], binary: bool) -> Remark:
    def loss(found: CellErrors) -> float:
        return found.log_loss if binary and found.log_loss is not None else found.rmse

    own, others = loss(ways["this model"]), {name: loss(found) for name, found in ways.items() if name != "this model"}
    best = min(others, key=lambda name: others[name])
    what = "log loss" if binary else "error"
    level: Level = "good" if own < others[best] else "bad" if own > others["column alone"] else "note"
    word = "better" if own < others[best] else "worse"
    return Remark(
        level, f"Hidden cells are completed {word} than by {best} ({what} {own:.3f} against {others[best]:.3f}).", 3
    )
