"""Tables in workbooks (.xlsx): the values of one sheet, read only. Formulas are never evaluated: what a file has stored
as the value of a formula counts, and where it has none, the cell is missing.

A workbook is a zip of XML: how much it unpacks to, its rows and its columns are bounded before and while it is read.
"""

import datetime
import zipfile
from pathlib import Path
from typing import Any

from doubly.core.errors import UserError
from doubly.core.extras import extra
from doubly.data.columns import Sheet, level_text, shown
from doubly.data.formats import CELL, check_memory
from doubly.data.text import Writing, column_names, is_header, sheet_of_texts

MOST_PARTS = 10_000  # files in a workbook
MOST_CELLS = 50_000_000
CHECKED = 1_000_000  # cells after which memory is looked at again
SAVE = "save the sheet as .csv"


def read_workbook(path: Path, header: bool | None, missing: tuple[str, ...], sniffed: bool, sheet: str = "") -> Sheet:
    """The cells of a sheet, the first one where nothing is said; rows are counted as the program does, from 1."""
    rows = _rows(path, sheet)
    if not rows:
        raise UserError(f"{path} has no cells: expected rows under a header, or rows of numbers")
    width = max(len(cells) for _, cells in rows)
    _check_cells(path, len(rows) * width)  # one cell far to the right makes every row as wide
    filled = [(row, cells + [""] * (width - len(cells))) for row, cells in rows]
    named = is_header(filled[0][1], missing) if header is None else header
    names = column_names(filled[0][1], named, path)
    body = filled[1:] if named else filled
    if not body:
        raise UserError(f"{path} has a header but no rows: expected rows below it")
    cells = [cells for _, cells in body]
    found = sheet_of_texts(names, cells, [row for row, _ in body], path, Writing(missing=missing, sniffed=sniffed))
    return found._replace(unit="row")


def _rows(path: Path, wanted: str) -> list[tuple[int, list[str]]]:
    """The number of each row that is not empty, and its cells as texts."""
    with extra("xlsx", f"reading {path}"):
        from openpyxl import load_workbook
    _check_parts(path)
    book = load_workbook(path, read_only=True, data_only=True, keep_links=False)
    try:
        names = [each.title for each in book.worksheets]
        if wanted and wanted not in names:
            raise UserError(f"{path} has no sheet {wanted!r}; there are: {shown(names)}")
        if not names:
            raise UserError(f"{path} has no sheet of cells: {SAVE}")
        sheet = book[wanted] if wanted else book.worksheets[0]
        sheet.reset_dimensions()  # what the file says of its size need not be so
        found: list[tuple[int, list[str]]] = []
        seen, due = 0, CHECKED
        for number, values in enumerate(sheet.iter_rows(values_only=True), 1):
            seen += max(1, len(values))
            if seen > min(due, MOST_CELLS):
                _check_cells(path, seen)
                due = seen + CHECKED
            cells = [_cell(value) for value in values]
            while cells and not cells[-1]:
                cells.pop()
            if cells:
                found.append((number, cells))
        return found
    finally:
        book.close()


def _check_cells(path: Path, number: int) -> None:
    if number > MOST_CELLS:
        raise UserError(f"{path} has more than {MOST_CELLS:,} cells: {SAVE}, or give fewer rows or columns")
    check_memory(path, CELL * number)


def _check_parts(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = archive.infolist()
    if len(parts) > MOST_PARTS:
        raise UserError(f"{path} has {len(parts)} parts, at most {MOST_PARTS} are read: {SAVE}")
    check_memory(path, sum(part.file_size for part in parts))


def _cell(value: Any) -> str:
    """A cell as a text file would have it."""
    if value is None:
        return ""
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        return value.date().isoformat()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        return level_text(float(value)) or ""
    return str(value).strip()
