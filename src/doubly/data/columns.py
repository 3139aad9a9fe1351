"""The columns of a table: how names, categories, booleans and numbers become a matrix, and how they come back.

A column is binary, integer or real (one cell each), or a category or ordinal (one cell for each of its levels,
one-hot). What is missing is NaN, in all the cells of a category. Numbers may be scaled: the matrix has
(value - offset) / scale, and tables have the user's units.
"""

import csv
import io
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from doubly.core.errors import UserError, near

ColumnKind = Literal["binary", "category", "integer", "ordinal", "real"]
MOST_LEVELS = 1000  # beyond this a text is a name or a remark, and its one-hot cells would drown the rest


class Sheet(NamedTuple):
    """A table as it was read: each column an array of float64 (NaN is missing) or of texts (None is missing)."""

    names: tuple[str, ...]
    columns: list[np.ndarray]
    lines: np.ndarray
    """Where each row stands in the file, for messages."""
    path: str = "the table"
    unit: str = "line"
    """What `lines` counts."""
    numbers: tuple[int, ...] = ()
    """The user's number of each column, from 1, where some were dropped."""
    notes: tuple[str, ...] = ()
    """What a user should know of how it was read, a line each."""

    @property
    def numbered(self) -> tuple[int, ...]:
        """The user's number of each column, from 1."""
        return self.numbers or tuple(range(1, len(self.names) + 1))

    def place(self, row: int, column: int) -> str:
        """Where a cell stands, in the user's counting."""
        return f"{self.unit} {self.lines[row]}, column {self.numbered[column]} of {self.path}"


@dataclass(frozen=True)
class Column:
    """One column: its name, its kind, and the texts that its cells stand for."""

    name: str
    kind: ColumnKind
    levels: tuple[str, ...] = ()
    constant: bool = False  # one value only in all rows: kept, since a run's rows must go back into the user's table
    offset: float = 0.0
    scale: float = 1.0
    decimals: int | None = None  # digits after the point, where all values have so many at most

    @property
    def has_levels(self) -> bool:
        """Whether it has a cell for each of its levels."""
        return self.kind in ("category", "ordinal")

    @property
    def width(self) -> int:
        """Cells of the matrix."""
        return len(self.levels) if self.has_levels else 1

    @property
    def boolean(self) -> bool:
        """Whether it is binary and was written in words."""
        return self.kind == "binary" and len(self.levels) == 2


@dataclass(frozen=True)
class Columns:
    """All columns of a table in their order.

    >>> columns = Columns.of({"colour": ["red", "blue", None], "big": [True, False, True], "n": [3, 4, 4]})
    >>> columns.cells
    ('colour=blue', 'colour=red', 'big', 'n')
    >>> columns.encode({"colour": ["red", None], "big": [False, True], "n": [5, 6]}).tolist()
    [[0.0, 1.0, 0.0, 5.0], [nan, nan, 1.0, 6.0]]
    >>> columns.decode([[0.2, 0.7, 1, 4.2]])
    {'colour': ['red'], 'big': [True], 'n': [4]}
    """

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, frame: Any, categories: Sequence[str] = ()) -> "Columns":
        """The columns of a table: a pandas DataFrame, names with lists, or a list of rows with names."""
        sheet = sheet_of(frame)
        for name in categories:
            if name not in sheet.names:
                raise UserError(
                    f"{sheet.path} has no column {name!r}{near(name, sheet.names)} to take as a category; "
                    f"there are: {shown(sheet.names)}"
                )
        return cls(tuple(_column(sheet, at, name in categories) for at, name in enumerate(sheet.names)))

    @property
    def width(self) -> int:
        """Cells of a row of the matrix."""
        return sum(column.width for column in self.columns)

    @property
    def cells(self) -> tuple[str, ...]:
        """The name of each cell of a row: `age`, `colour=red`."""
        return tuple(
            f"{column.name}={level}" if column.has_levels else column.name
            for column in self.columns
            for level in (column.levels if column.has_levels else ("",))
        )

    @property
    def sources(self) -> np.ndarray:
        """For each cell of a row, which column it belongs to, from 0."""
        return np.repeat(np.arange(len(self.columns)), [column.width for column in self.columns])

    @property
    def is_mixed(self) -> bool:
        """Whether they were read for a mixed data layer: columns that are scaled or ordinal are for no other."""
        return any(column.scale != 1 or column.kind == "ordinal" for column in self.columns)

    @property
    def log_scale(self) -> np.ndarray:
        """For each cell, the log of its unit in the user's: a density in the user's units has that much less."""
        found: np.ndarray = np.log([column.scale for column in self.columns])[self.sources]
        return found

    def layout(self) -> str:
        """The columns as a mixed data layer wants them: 2r-b-c3.

        >>> Columns((Column("a", "real"), Column("b", "integer"), Column("c", "category", ("x", "y")))).layout()
        '2r-c2'
        """
        letters = {"binary": "b", "category": "c", "ordinal": "o", "integer": "r", "real": "r"}
        parts = [letters[column.kind] + (str(column.width) if column.has_levels else "") for column in self.columns]
        groups = [(part, len(list(same))) for part, same in itertools.groupby(parts)]
        return "-".join(f"{number if number > 1 else ''}{part}" for part, number in groups)

    def encode(self, frame: Any, new_levels: dict[str, int] | None = None) -> np.ndarray:
        """The rows of a table as float64; columns are found by their names, or by order where there are none.

        Where a column has a level that was never seen, it is refused; or, with `new_levels`, taken as missing, and
        counted there.
        """
        sheet = sheet_of(frame)
        order = self.order(sheet)
        rows = np.empty((len(sheet.lines), self.width))
        start = 0
        for column, at in zip(self.columns, order, strict=True):
            rows[:, start : start + column.width] = _encoded(column, sheet, at, new_levels)
            start += column.width
        return rows

    def decode(self, rows: Any) -> dict[str, list[Any]]:
        """The table that rows stand for: the likeliest level, the nearest whole number; None where all is missing."""
        rows = np.asarray(rows, dtype=float)
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise UserError(f"rows of this table have {self.width} cells, got an array of shape {rows.shape}")
        found: dict[str, list[Any]] = {}
        start = 0
        for column in self.columns:
            found[column.name] = _decoded(column, rows[:, start : start + column.width])
            start += column.width
        return found

    def records(self, rows: Any) -> list[dict[str, Any]]:
        """The same, row by row."""
        table = self.decode(rows)
        return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]

    def csv(self, rows: Any) -> str:
        """The table that rows stand for as text, with a header; a missing cell is empty."""
        table = self.decode(rows)
        texts = [
            [_written(column, value) for value in values]
            for column, values in zip(self.columns, table.values(), strict=True)
        ]
        content = io.StringIO()
        writer = csv.writer(content, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(zip(*texts, strict=True))
        return content.getvalue()

    def as_json(self) -> list[dict[str, Any]]:
        """Plain lists and dictionaries, for a run folder to remember."""
        return [
            {name: value for name, value in asdict(column).items() if value != _SINCE.get(name, ...)}
            | {"levels": list(column.levels)}
            for column in self.columns
        ]

    @classmethod
    def from_json(cls, fields: Sequence[Mapping[str, Any]]) -> "Columns":
        """The columns that `as_json` wrote down."""
        try:
            return cls(tuple(_checked(Column(**{**entry, "levels": tuple(entry["levels"])})) for entry in fields))
        except (TypeError, KeyError, ValueError) as error:
            raise UserError(f"the columns written down are damaged ({error}): expected what as_json gives") from None

    def order(self, sheet: Sheet) -> list[int]:
        """Where each column stands in the sheet."""
        names = [column.name for column in self.columns]
        if set(names) <= set(sheet.names):
            places = {name: at for at, name in enumerate(sheet.names)}
            return [places[name] for name in names]
        unnamed = all(name == nameless(at) for at, name in enumerate(names))
        if len(names) == len(sheet.names) and (unnamed or sheet.names == tuple(map(nameless, range(len(names))))):
            return list(range(len(names)))
        absent = next(name for name in names if name not in sheet.names)
        raise UserError(f"{sheet.path} has no column {absent!r}: give the columns {shown(names)}")


# fields that version 0.1 did not have: written down only where they say something
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_SINCE = {"offset": 0.0, "scale": 1.0, "decimals": None}


def nameless(at: int) -> str:
    """The name of a column that has none."""
    return f"column {at + 1}"


def sheet_of(frame: Any) -> Sheet:
    """A table in memory as a sheet; rows are counted from 0."""
    if isinstance(frame, Sheet):
        return frame
    if isinstance(frame, Mapping) or hasattr(frame, "columns"):  # a DataFrame is asked for its columns by name
        names = list(frame.keys())
        columns = [_values(frame[name]) for name in names]
    else:
        records = list(frame)
        if not all(isinstance(record, Mapping) for record in records):
            raise UserError("a table must be a DataFrame, names with lists, or a list of rows with names")
        names = list(dict.fromkeys(name for record in records for name in record))
        columns = [_values([record.get(name) for record in records]) for name in names]
    if len({len(column) for column in columns}) > 1:
        lengths = shown([f"{name}: {len(column)}" for name, column in zip(names, columns, strict=True)])
        raise UserError(f"all columns of a table must be equally long, got {lengths}")
    count = len(columns[0]) if columns else 0
    return Sheet(unique(map(str, names), "the table"), columns, np.arange(count), unit="row")


def unique(names: Iterable[str], where: str) -> tuple[str, ...]:
    """The names of columns, each its own; empty ones are numbered."""
    found = tuple(name or nameless(at) for at, name in enumerate(names))
    for name, count in Counter(found).items():
        if count > 1:
            raise UserError(f"{where} has {count} columns called {name!r}: give each its own name")
    return found


def shown(texts: Sequence[str]) -> str:
    """Names or levels in a message: one line, whatever is in them, and not too many."""
    return ", ".join(" ".join(text.split())[:40] for text in texts[:20]) + (", …" if len(texts) > 20 else "")


def is_missing(text: str, also: Sequence[str] = ()) -> bool:
    """Whether a cell of a text stands for nothing known."""
    return text.lower() in ("", "na", "nan") or text in also


def number(text: str) -> float | None:
    """The value of a text, None where it is no number."""
    try:
        return None if "_" in text else float(text)  # Python reads 1_000, nobody's table means it
    except ValueError:
        return None


def _values(values: Any) -> np.ndarray:
    """One column of a table in memory: numbers where all are, else texts."""
    array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values, dtype=object)
    if array.dtype.kind in "iuf":
        return array.astype(float)
    texts = np.empty(len(array), dtype=object)
    texts[:] = [None if _nothing(value) else value for value in array.tolist()]
    known = [value for value in texts if value is not None]
    if all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in known):
        return np.array([math.nan if value is None else float(value) for value in texts])
    texts[:] = [None if value is None else str(value) for value in texts]
    return texts


def _nothing(value: Any) -> bool:
    # pandas says NaN, NaT, None or NA: each is unequal to itself, or has no truth
    if value is None:
        return True
    try:
        return bool(value != value) or (isinstance(value, str) and is_missing(value.strip()))
    except TypeError:
        return True


def _column(sheet: Sheet, at: int, category: bool) -> Column:
    name, values = sheet.names[at], sheet.columns[at]
    if values.dtype != object and not category:
        known = values[~np.isnan(values)]
        constant = len(known) == 0 or bool((known == known[0]).all())
        if len(known) and bool(((known == 0) | (known == 1)).all()):
            return Column(name, "binary", constant=constant)
        whole = len(known) > 0 and bool((np.isfinite(known) & (known == np.floor(known))).all())
        return Column(name, "integer" if whole else "real", constant=constant)
    texts = [level_text(value) for value in values]
    levels = sorted({text for text in texts if text is not None}, key=_level_order)
    words = {level.lower(): level for level in levels}
    if not category and 0 < len(words) == len(levels) and set(words) <= {"true", "false"}:
        return Column(name, "binary", (words.get("false", "false"), words.get("true", "true")), len(levels) == 1)
    if not category:
        _refuse_mixed(sheet, at, texts)
    if len(levels) > MOST_LEVELS:
        raise UserError(
            f"column {sheet.numbered[at]} ({shown([name])}) of {sheet.path} has {len(levels)} different texts, "
            f"too many for categories (at most {MOST_LEVELS}): leave it out with drop={shown([name])}"
        )
    return Column(name, "category", tuple(levels), constant=len(levels) < 2)


def refuse_decimal_commas(sheet: Sheet, at: int, texts: Sequence[str | None]) -> None:
    """A column whose texts are all numbers with decimal commas is neither a category nor a column of names."""
    strays = [row for row, text in enumerate(texts) if text is not None and number(text) is None]
    if strays and all(_DECIMAL_COMMA.fullmatch(str(texts[row])) for row in strays):
        raise UserError(
            f"{sheet.place(strays[0], at)} is {texts[strays[0]]!r}, which looks like a number with a decimal comma: "
            f"say decimal=comma, or that it is a category: categories={shown([sheet.names[at]])}"
        )


def _refuse_mixed(sheet: Sheet, at: int, texts: Sequence[str | None]) -> None:
    """A column of numbers with a stray text in it is a mistake rather than a category."""
    refuse_decimal_commas(sheet, at, texts)
    strays = [row for row, text in enumerate(texts) if text is not None and number(text) is None]
    if not strays:
        return
    separators = len(sheet.names) == 1 and any(mark in str(texts[strays[0]]) for mark in ";\t")
    if separators or len(strays) < sum(text is not None for text in texts):
        cell = str(texts[strays[0]])[:40]
        cure = f", or say that it is a category: categories={shown([sheet.names[at]])}"
        if strays == [0] and sheet.names[at] == nameless(at):
            cure = ", or say that the first line has names: header=true"
        cure = "" if separators else cure
        raise UserError(
            f"{sheet.place(strays[0], at)} is {cell!r}, which is no number: expected numbers separated by commas{cure}"
        )


def level_text(value: Any) -> str | None:
    """A cell as the text of a level: whole numbers without a point."""
    if isinstance(value, float):
        return None if math.isnan(value) else str(int(value)) if value.is_integer() else repr(float(value))
    return value if value is None else str(value)


def _level_order(level: str) -> tuple[float, str]:
    # 2 before 10; numbers before words
    value = number(level)
    return (math.inf, level) if value is None or math.isnan(value) else (value, level)


def _checked(column: Column) -> Column:
    """A column that comes from a file."""
    if column.kind not in get_args(ColumnKind) or not all(
        isinstance(text, str) for text in (column.name, *column.levels)
    ):
        raise ValueError(f"{column.name!r} is no column")
    if not (math.isfinite(column.offset) and 0 < column.scale < math.inf):
        raise ValueError(f"column {column.name!r} has offset {column.offset} and scale {column.scale}")
    return column


def _encoded(column: Column, sheet: Sheet, at: int, new_levels: dict[str, int] | None = None) -> np.ndarray:
    """The cells of one column, rows by its width."""
    values = sheet.columns[at]
    if column.has_levels or column.boolean:
        index = {level: place for place, level in enumerate(column.levels)}
        if column.boolean:
            index |= {"0": 0, "1": 1} | {level.lower(): place for level, place in index.items()}
        texts = [level_text(value) for value in values]
        if column.boolean:
            texts = [text if text is None or text in index else text.lower() for text in texts]
        codes = np.array([-1 if text is None else index.get(text, -2) for text in texts], dtype=int)
        if new_levels is not None and (codes == -2).any():
            new_levels[column.name] = int((codes == -2).sum())
            codes[codes == -2] = -1
        if (codes == -2).any():
            row = int((codes == -2).argmax())
            raise UserError(
                f"{sheet.place(row, at)} is {str(texts[row])[:40]!r}, which is no level of {column.name!r}; there "
                f"are: {shown(column.levels) or 'none'}"
            )
        if column.boolean:
            return np.where(codes < 0, np.nan, codes)[:, None].astype(float)
        onehot = (codes[:, None] == np.arange(len(column.levels))).astype(float)
        onehot[codes < 0] = np.nan
        found: np.ndarray = onehot
        return found
    if values.dtype == object:
        numbers = [math.nan if value is None else number(str(value)) for value in values]
        if None in numbers:
            row = numbers.index(None)
            cell = str(values[row])[:40]
            raise UserError(f"{sheet.place(row, at)} is {cell!r}, but {column.name!r} is {column.kind}: give numbers")
        values = np.array(numbers, dtype=float)
    if column.kind == "binary" and not np.isin(values[~np.isnan(values)], (0, 1)).all():
        row = int((~np.isnan(values) & (values != 0) & (values != 1)).argmax())
        raise UserError(f"{sheet.place(row, at)} is {values[row]:.6g}, but {column.name!r} is binary: give 0 or 1")
    return ((values - column.offset) / column.scale)[:, None]


def _decoded(column: Column, cells: np.ndarray) -> list[Any]:
    if column.kind == "category":
        if not column.levels:
            return [None] * len(cells)
        gone = np.isnan(cells).all(1)
        best = np.where(np.isnan(cells), -np.inf, cells).argmax(1)
        return [None if none else column.levels[at] for none, at in zip(gone, best, strict=True)]
    if column.kind == "ordinal":  # the level in the middle: half of the probability lies on either side
        gone, share = np.isnan(cells).any(1), cells.cumsum(1)
        middle = (share < share[:, -1:] / 2).sum(1).clip(max=len(column.levels) - 1)
        numbers = [float(level) for level in column.levels]
        whole = [int(value) if value.is_integer() else value for value in numbers]
        return [None if none else whole[at] for none, at in zip(gone, middle, strict=True)]
    values = column.offset + column.scale * cells[:, 0]
    if column.kind == "real":
        exact = [None if math.isnan(value) else float(value) for value in values]
        return exact if column.decimals is None else [v if v is None else round(v, column.decimals) for v in exact]
    if column.kind == "integer":
        return [None if math.isnan(value) else round(value) for value in values]
    bits = [None if math.isnan(value) else int(value >= 0.5) for value in values]
    return [None if bit is None else bool(bit) for bit in bits] if column.boolean else bits


def _written(column: Column, value: Any) -> str:
    if value is None:
        return ""
    if column.boolean:
        return column.levels[int(value)]
    return f"{value:.9g}" if column.kind == "real" else str(value)
