"""Tables as text: .csv and .tsv into a `Sheet`, with quoted cells, categories, missing cells, the question of the
header, and where each cell stands in the text.

Lines and columns are counted from 1 in messages, as editors do.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from doubly.core.errors import UserError
from doubly.data.columns import Sheet, is_missing, level_text, nameless, number, shown, unique

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
DECIMALS = ("point", "comma")
# texts that mean a missing cell: among words, and further ones among numbers
MARKERS = ("?", "null", "n/a", "#n/a", "<na>")
NUMBER_MARKERS = (*MARKERS, "-", "--", ".", "none", "missing", "unknown", "#value!", "inf?")


class Writing(NamedTuple):
    """How a text file is written."""

    separator: str = ","
    decimal: str = "point"
    missing: tuple[str, ...] = ()
    """Further texts that mean a missing cell."""
    sniffed: bool = False
    """Whether texts that often mean a missing cell do so here, too."""

    @property
    def decimal_comma(self) -> bool:
        return self.decimal == "comma"


def read_csv(
    path: Path,
    header: bool | None = None,
    missing: Sequence[str] = (),
    separator: str = "",
    decimal: str = "point",
    sniffed: bool = False,
) -> Sheet:
    """The cells of a text file; without a word on the `header`, a first line of names only is one.

    A first line of numbers that could be names, such as years, is neither taken nor dropped silently: the user says.
    Without a word on the separator, it is a comma, or what cuts all of the first lines into equally many cells.
    """
    encoding = _encoding(path)
    how = Writing(_separator(path, encoding, separator), decimal, tuple(missing), sniffed)
    with path.open(encoding=encoding, newline="") as file:
        first = next(_records(file, path, how), None)
    if first is None:
        raise UserError(f"{path} is empty: expected lines of numbers separated by commas")
    line, cells = first
    named = is_header(cells, missing) if header is None else header
    with path.open(encoding=encoding, newline="") as file:
        sheet = None if how.decimal_comma else _numbers(file, path, line, cells, named, how.separator)
        sheet = sheet or _texts(file, path, cells, named, how)
    if header is None and not named and _could_be_names(cells, sheet):
        raise UserError(
            f"line {line} of {path} ({shown(cells)}) could be names or numbers: say which, as in {path}:header=true or "
            f"{path}:header=false"
        )
    return sheet


def _separator(path: Path, encoding: str, said: str) -> str:
    if said:
        return SEPARATORS[said]
    if path.suffix.lower() == ".tsv":
        return "\t"
    with path.open(encoding=encoding, newline="") as file:
        start = [line for line in (file.readline(1 << 20) for _ in range(10)) if line.strip()]
    for mark in SEPARATORS.values():
        widths = {len(record) for record in csv.reader(start, skipinitialspace=True, delimiter=mark) if record}
        if len(widths) == 1 and widths != {1}:
            return mark
    return ","


def _numbers(file: TextIO, path: Path, first: int, cells: list[str], named: bool, separator: str) -> Sheet | None:
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
        rows = np.loadtxt(chain([start], found), delimiter=separator, quotechar='"', comments=None, ndmin=2)
    except ValueError:
        return None
    if len(rows) != len(lines) or rows.shape[1] != len(cells):
        return None
    return Sheet(column_names(cells, named, path), list(rows.T), np.array(lines), str(path))


def _texts(file: TextIO, path: Path, first: list[str], named: bool, how: Writing) -> Sheet:
    """The slow way: it knows texts and missing cells, and says in which line something is wrong."""
    file.seek(0)
    records = _records(file, path, how)
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
    return sheet_of_texts(column_names(first, named, path), rows, lines, path, how)


def sheet_of_texts(
    names: tuple[str, ...], rows: Sequence[Sequence[str]], lines: Sequence[int], path: Path, how: Writing
) -> Sheet:
    """A sheet of cells that are texts: columns become numbers where they can, and what means missing is told."""
    markers: dict[str, int] = {}
    columns = [_column(cells, how, markers) for cells in zip(*rows, strict=True)]
    notes = [f"{text!r} is taken as missing ({number} cells)" for text, number in markers.items()]
    return Sheet(names, columns, np.array(lines), str(path), notes=tuple(notes))


def _column(cells: Sequence[str], how: Writing, markers: dict[str, int]) -> np.ndarray:
    """Floats where all cells are numbers or missing, else texts; markers of missing cells are counted."""
    known = [None if is_missing(cell, how.missing) else cell for cell in cells]
    values = [np.nan if cell is None else number(as_number(cell, how.decimal_comma)) for cell in known]
    if None in values and how.sniffed:
        strays = {str(cell) for cell, value in zip(known, values, strict=True) if value is None}
        numeric = any(cell is not None and value is not None for cell, value in zip(known, values, strict=True))
        meant = {cell for cell in strays if cell.lower() in (NUMBER_MARKERS if numeric else MARKERS)}
        if meant and (meant == strays or not numeric):
            for cell in known:
                if cell in meant:
                    markers[cell] = markers.get(cell, 0) + 1
            known = [None if cell in meant else cell for cell in known]
            values = [np.nan if cell is None else number(as_number(cell, how.decimal_comma)) for cell in known]
    if None not in values:
        return np.array(values, dtype=float)
    texts = np.empty(len(known), dtype=object)
    texts[:] = known
    return texts


def as_number(cell: str, decimal_comma: bool) -> str:
    """The cell with a point in its number."""
    return cell.replace(".", "").replace(",", ".") if decimal_comma and re.fullmatch(r"[-+\d.,eE]+", cell) else cell


def _records(file: TextIO, path: Path, how: Writing) -> Iterator[tuple[int, list[str]]]:
    """The line that each record begins in, and its cells; blank lines are left out."""
    reader = csv.reader(file, skipinitialspace=True, delimiter=how.separator)
    begins = 1
    try:
        for cells in reader:
            if len(cells) > 1 or any(cell.strip() for cell in cells):
                yield begins, [cell.strip() for cell in cells]
            begins = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"line {begins} of {path} cannot be read ({error}): check its quotes") from None


class Original(NamedTuple):
    """A text file as it is, and where each cell stands in it."""

    text: str
    encoding: str
    separator: str
    spans: list[list[tuple[int, int]]]
    """Of each record that is not blank, header included: the first and the last place of each cell."""

    def with_cells(self, changes: dict[tuple[int, int], str]) -> bytes:
        """The file with these cells (record, column) written anew, and every other byte as it was."""
        parts, done = [], 0
        for (record, column), cell in sorted(changes.items()):
            start, end = self.spans[record][column]
            quoted = any(mark in cell for mark in ('"', "\n", "\r", self.separator))
            parts += [self.text[done:start], '"' + cell.replace('"', '""') + '"' if quoted else cell]
            done = end
        return "".join([*parts, self.text[done:]]).encode(self.encoding)


def original(path: Path, separator: str = "") -> Original:
    """A text file with the places of its cells."""
    encoding = _encoding(path)
    mark = _separator(path, encoding, separator)
    content = path.read_bytes()
    if encoding == "utf-16":
        encoding = "utf-16-le" if content.startswith(codecs.BOM_UTF16_LE) else "utf-16-be"
    encoding = encoding.removesuffix("-sig")  # the mark at the beginning stays a character
    return _with_spans(content.decode(encoding), encoding, mark)


def as_text(sheet: Sheet) -> Original:
    """A table that is no text, as it would stand in a .csv."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(sheet.names)
    columns = [["" if text is None else text for text in map(level_text, column)] for column in sheet.columns]
    writer.writerows(zip(*columns, strict=True))
    return _with_spans(content.getvalue(), "utf-8", ",")


def _with_spans(text: str, encoding: str, mark: str) -> Original:
    cell = re.compile(rf'[ ]*"(?:[^"]|"")*"[^{mark}\r\n]*|[^{mark}\r\n]*')
    spans: list[list[tuple[int, int]]] = []
    record: list[tuple[int, int]] = []
    at = 1 if text.startswith("\ufeff") else 0
    while at < len(text) or record:
        match = cell.match(text, at)
        assert match is not None
        record.append(match.span())
        at = match.end()
        if text[at : at + 1] == mark:
            at += 1
            continue
        if len(record) > 1 or text[record[0][0] : record[0][1]].strip():
            spans.append(record)
        record, at = [], at + (2 if text[at : at + 2] == "\r\n" else 1)
    return Original(text, encoding, mark, spans)


def column_names(cells: list[str], named: bool, path: Path) -> tuple[str, ...]:
    return unique(cells, f"the header of {path}") if named else tuple(map(nameless, range(len(cells))))


def is_header(cells: list[str], missing: Sequence[str]) -> bool:
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
