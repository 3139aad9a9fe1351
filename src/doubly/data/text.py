"""Tables as text: .csv into a `Sheet`, with quoted cells, categories, missing cells, and the question of the header.

Lines and columns are counted from 1 in messages, as editors do.
"""

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np

from doubly.core.errors import UserError
from doubly.data.columns import Sheet, is_missing, nameless, number, shown, unique


def read_csv(path: Path, header: bool | None = None, missing: Sequence[str] = ()) -> Sheet:
    """The cells of a text file; without a word on the `header`, a first line of names only is one.

    A first line of numbers that could be names, such as years, is neither taken nor dropped silently: the user says.
    """
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        first = next(_records(file, path), None)
    if first is None:
        raise UserError(f"{path} is empty: expected lines of numbers separated by commas")
    line, cells = first
    named = _is_header(cells, missing) if header is None else header
    with path.open(encoding=encoding, newline="") as file:
        sheet = _numbers(file, path, line, cells, named) or _texts(file, path, cells, named, missing)
    if header is None and not named and _could_be_names(cells, sheet):
        raise UserError(
            f"line {line} of {path} ({shown(cells)}) could be names or numbers: say which, as in {path}:header=true or "
            f"{path}:header=false"
        )
    return sheet


def _numbers(file: TextIO, path: Path, first: int, cells: list[str], named: bool) -> Sheet | None:
    """The quick way, for numbers only; None where something else is found."""
    lines: list[int] = []

    def rows_of_text() -> Iterator[str]:
        for at, text in enumerate(file, 1):
            if text.strip() and not (named and at <= first):
                lines.append(at)
                yield text

    found = rows_of_text()
    start = next(found, None)
    if start is None:
        raise UserError(f"{path} has a header but no rows: expected lines of numbers separated by commas")
    try:
        rows = np.loadtxt(chain([start], found), delimiter=",", quotechar='"', comments=None, ndmin=2)
    except ValueError:
        return None
    if len(rows) != len(lines) or rows.shape[1] != len(cells):
        return None
    return Sheet(_names(cells, named, path), list(rows.T), np.array(lines), str(path))


def _texts(file: TextIO, path: Path, first: list[str], named: bool, missing: Sequence[str]) -> Sheet:
    """The slow way: it knows texts and missing cells, and says in which line something is wrong."""
    file.seek(0)
    records = _records(file, path)
    if named:
        next(records)
    lines: list[int] = []
    rows: list[list[str]] = []
    for line, cells in records:
        if len(cells) != len(first):
            before = "the rows before it have" if rows else "the header has"
            raise UserError(
                f"line {line} of {path} has {len(cells)} cells, but {before} {len(first)}: give every row as many"
            )
        lines.append(line)
        rows.append(cells)
    if not rows:
        raise UserError(f"{path} has a header but no rows: expected lines of numbers separated by commas")
    columns = [_column(cells, missing) for cells in zip(*rows, strict=True)]
    return Sheet(_names(first, named, path), columns, np.array(lines), str(path))


def _column(cells: Sequence[str], missing: Sequence[str]) -> np.ndarray:
    """Floats where all cells are numbers or missing, else texts."""
    known = [None if is_missing(cell, missing) else cell for cell in cells]
    values = [np.nan if cell is None else number(cell) for cell in known]
    if None not in values:
        return np.array(values, dtype=float)
    texts = np.empty(len(known), dtype=object)
    texts[:] = known
    return texts


def _records(file: TextIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line that each record begins in, and its cells; blank lines are left out."""
    reader = csv.reader(file, skipinitialspace=True)
    begins = 1
    try:
        for cells in reader:
            if len(cells) > 1 or any(cell.strip() for cell in cells):
                yield begins, [cell.strip() for cell in cells]
            begins = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"line {begins} of {path} cannot be read ({error}): check its quotes") from None


def _names(cells: list[str], named: bool, path: Path) -> tuple[str, ...]:
    return unique(cells, f"the header of {path}") if named else tuple(map(nameless, range(len(cells))))


def _is_header(cells: list[str], missing: Sequence[str]) -> bool:
    """Whether it has names and no number; missing cells do not count. A row with one stray cell is no header."""
    known = [cell for cell in cells if not is_missing(cell, missing)]
    return bool(known) and all(number(cell) is None for cell in known)


def _could_be_names(cells: list[str], sheet: Sheet) -> bool:
    """Whether the first line's numbers look like years or counting, and no other line's do.

    Rising whole numbers, all different: either each is one more than the last, or none lies among its column's values.
    """
    at = [i for i, cell in enumerate(cells) if re.fullmatch(r"\d+", cell) and sheet.columns[i].dtype != object]
    texts = sum(number(cell) is None for cell in cells)
    if len(at) < (2 if texts else 3) or len(at) + texts < len(cells) or len(sheet.lines) < 2:
        return False
    names = np.array([float(cells[i]) for i in at])
    if not (np.diff(names) > 0).all():
        return False
    rest = np.stack([sheet.columns[i][1:] for i in at], axis=1)
    steps = np.diff(rest, axis=1)
    rises = ((steps > 0) | np.isnan(steps)).all(1)
    counting = bool((np.diff(names) == 1).all()) and not ((steps == 1) | np.isnan(steps)).all(1).any()
    with np.errstate(invalid="ignore"):
        inside = (names >= rest.min(0)) & (names <= rest.max(0))
    return counting or bool(not inside.any() and not rises.any())


def _encoding(path: Path) -> str:
    """UTF-8 or UTF-16 where the file is in it, else Latin-1, which can read all bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16"
        file.seek(0)
        try:
            while block := file.read(1 << 20):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return "latin-1"
    return "utf-8-sig"
