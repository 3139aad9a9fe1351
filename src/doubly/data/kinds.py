"""What the columns of a table are, guessed from their values and told: kinds, units, and what is left out and why."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from doubly.core.errors import UserError, near
from doubly.data.columns import Column, Columns, Sheet, number, refuse_decimal_commas, shown

MOST_GRADES = 12  # different whole numbers up to which they are levels in an order
LEAST_ROWS = 5  # for each such level: with fewer, they are numbers like others
MOST_LEVELS = 100  # of a category: beyond, it is a name or a remark
MOST_COLUMNS = 10_000
MOST_DECIMALS = 6

_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([ T].*)?|\d{1,2}:\d{2}(:\d{2})?"
)
_IDENTIFIER = re.compile(r"(?i)(.*[ _.-])?(id|ids|uuid|key|index|rowname|row|nr|no|number)|.*Id|.*ID|column 1")


class LeftOut(NamedTuple):
    """A column that is not in the model."""

    name: str
    why: str
    value: str = ""
    """Of a constant column, its value."""
    identifies: bool = False
    """Whether it tells rows apart: an identifier, a name."""


class Kinds(NamedTuple):
    """The columns of a table that are in the model, and those that are not."""

    columns: Columns
    left_out: tuple[LeftOut, ...]
    missing: tuple[int, ...]
    """Missing cells of each column in the model."""

    def text(self) -> str:
        """A table for people: what each column was taken for."""
        lines = [("column", "kind", "missing", "values")]
        for column, missing in zip(self.columns.columns, self.missing, strict=True):
            lines.append((_cut(column.name, 24), column.kind, str(missing), _values(column)))
        lines += [(_cut(name, 24), "left out", "", why) for name, why, *_ in self.left_out]
        widths = [max(len(line[i]) for line in lines) for i in range(3)]
        return "\n".join(
            f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {missing:>{widths[2]}}  {what}".rstrip()
            for name, kind, missing, what in lines
        )


def guess(sheet: Sheet, categories: Sequence[str] = ()) -> Kinds:
    """The kind of every column of a table.

    Numbers are binary (0 and 1), ordinal (whole, at most 12 different ones), or real, and then scaled. Texts are
    categories. Identifiers, dates, texts with too many different values and columns without two values are left out.

    >>> from doubly.data.columns import sheet_of
    >>> table = {"id": [11, 12, 13, 14], "t": ["a", "b", "a", None], "x": [1.5, 2.5, 9.0, 3.0]}
    >>> print(guess(sheet_of(table)).text())
    column  kind      missing  values
    t       category        1  a, b
    x       real            0  mean 4, standard deviation 2.937
    id      left out           whole numbers that count the rows: an identifier
    """
    for name in categories:
        if name not in sheet.names:
            raise UserError(
                f"{sheet.path} has no column {name!r}{near(name, sheet.names)} to take as a category; "
                f"there are: {shown(sheet.names)}"
            )
    if len(sheet.names) > MOST_COLUMNS:
        raise UserError(
            f"{sheet.path} has {len(sheet.names)} columns, at most {MOST_COLUMNS} can be modelled: drop some"
        )
    found, left_out, missing = [], [], []
    for at, name in enumerate(sheet.names):
        column = _guessed(sheet, at, name in categories)
        if isinstance(column, LeftOut):
            left_out.append(column)
        else:
            found.append(column)
            missing.append(_missing(sheet.columns[at]))
    if not found:
        raise UserError(
            f"{sheet.path} has no column to learn from: "
            + "; ".join(f"{each.name}: {each.why}" for each in left_out[:5])
        )
    return Kinds(Columns(tuple(found)), tuple(left_out), tuple(missing))


def matched(sheet: Sheet, columns: Columns) -> Kinds:
    """The columns that a run knows, in a sheet; the others are left out, and those that tell rows apart say so."""
    names, left_out = {column.name for column in columns.columns}, []
    for at, name in enumerate(sheet.names):
        if name not in names:
            there = [value for value in sheet.columns[at].tolist() if value is not None and value == value]
            identifies = len(there) > 0 and len(set(there)) == len(there)
            left_out.append(LeftOut(name, "the run does not know it", identifies=identifies))
    missing = tuple(_missing(sheet.columns[at]) for at in columns.order(sheet))
    return Kinds(columns, tuple(left_out), missing)


def _guessed(sheet: Sheet, at: int, category: bool) -> Column | LeftOut:
    name, values = sheet.names[at], sheet.columns[at]
    if values.dtype == object or category:
        return _of_texts(sheet, at, category)
    observed = values[~np.isnan(values)]
    different = np.unique(observed)
    if len(different) < 2:
        return _constant(name, [f"{value:.15g}" for value in different])
    whole = bool((different == np.floor(different)).all())
    if whole and len(different) == len(values) and len(values) > 2 and _counts(name, different):
        return LeftOut(name, "whole numbers that count the rows: an identifier", identifies=True)
    return _of_numbers(name, observed, different, whole)


def _of_numbers(name: str, observed: np.ndarray, different: np.ndarray, whole: bool) -> Column | LeftOut:
    if set(different.tolist()) <= {0.0, 1.0}:
        return Column(name, "binary")
    if whole and len(different) <= MOST_GRADES and len(observed) >= LEAST_ROWS * len(different):
        return Column(name, "ordinal", tuple(f"{value:.15g}" for value in different))
    with np.errstate(over="ignore", invalid="ignore"):
        offset, scale = float(observed.mean()), float(observed.std())
    if not (math.isfinite(offset) and math.isfinite(scale) and scale > 1e-12 * max(1e-300, abs(offset))):
        return LeftOut(name, "has infinite values, or values too large or too close to each other: scale it first")
    return Column(name, "integer" if whole else "real", (), False, offset, scale, _decimals(observed))


def _of_texts(sheet: Sheet, at: int, category: bool) -> Column | LeftOut:
    name = sheet.names[at]
    # the column by itself, with the checks of every table: numbers with a stray text are refused there
    alone = sheet._replace(names=(name,), columns=[sheet.columns[at]], numbers=(sheet.numbered[at],))
    texts = [text for text in sheet.columns[at] if text is not None]
    if not category and texts and all(isinstance(text, str) and _DATE.fullmatch(text) for text in texts):
        return LeftOut(name, "dates or times, which are not modelled")
    if not category:
        refuse_decimal_commas(alone, 0, [None if text is None else str(text) for text in alone.columns[0]])
    different = len(set(texts))
    if different < 2:
        return _constant(name, [str(text) for text in texts[:1]])
    words = not category and any(number(str(text)) is None for text in texts)
    if words and different > max(20, len(texts) // 2) and all(number(str(text)) is None for text in texts):
        return LeftOut(name, f"{different} different texts in {len(texts)} rows: names or remarks", identifies=True)
    if different > MOST_LEVELS:
        return LeftOut(name, f"{different} different texts, more than {MOST_LEVELS}: too many for a category")
    (column,) = Columns.of(alone, (name,) if category else ()).columns
    if column.boolean:
        return dataclasses.replace(column, kind="category")
    return column


def _constant(name: str, values: Sequence[str]) -> LeftOut:
    if not values:
        return LeftOut(name, "has no value in any row")
    return LeftOut(name, f"always {_cut(values[0], 20)}", values[0])


def _counts(name: str, different: np.ndarray) -> bool:
    """Whether whole numbers, all different, count the rows, or are called an identifier."""
    return bool(different[-1] - different[0] == len(different) - 1) or bool(_IDENTIFIER.fullmatch(name))


def _decimals(values: np.ndarray) -> int | None:
    for digits in range(MOST_DECIMALS + 1):
        if np.array_equal(np.round(values, digits), values):
            return digits
    return None


def _missing(values: np.ndarray) -> int:
    if values.dtype == object:
        return sum(value is None for value in values)
    return int(np.isnan(values).sum())


def _values(column: Column) -> str:
    if column.has_levels:
        return shown([_cut(level, 20) for level in column.levels[:8]]) + (", …" if len(column.levels) > 8 else "")
    return "0, 1" if column.kind == "binary" else f"mean {column.offset:.4g}, standard deviation {column.scale:.4g}"


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
