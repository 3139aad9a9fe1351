"""`doubly fill` and `doubly odd`: a table in a file, read as it is, learnt, completed or searched for odd rows."""

import csv
import dataclasses
import io
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from doubly.analysis.report.files import check_place
from doubly.analysis.results import Result, plain
from doubly.analysis.table_runs import learnt_of
from doubly.analysis.tables import SPREAD_COPIES, complete, odd_cells
from doubly.core.errors import UserError
from doubly.core.files import write
from doubly.data import Column, Columns, Kinds, file_options, guess
from doubly.data.columns import Sheet
from doubly.data.files import READERS, Options, Rows, read_sheet
from doubly.data.formats import suffix_of
from doubly.data.kinds import matched
from doubly.data.text import Original, as_text, original
from doubly.runs.fit import use_threads
from doubly.runs.folder import Run
from doubly.runs.learn import Learnt, learn

Tell = Callable[[str], None]
WORST_CELLS = 3  # of a row, that are named
BLAME = 2.0  # nats by which a cell must be less likely than others of its column to be named


class Table(NamedTuple):
    """A table in a file: as it was read, and what its columns were taken for."""

    path: Path
    options: Options
    sheet: Sheet
    kinds: Kinds
    rows: torch.Tensor
    """Scaled, with NaN for what is missing."""

    @property
    def notes(self) -> tuple[str, ...]:
        empty = int(self.rows.isnan().all(1).sum())
        more = (f"{empty} rows have no value in any of these columns: they add nothing",) if empty else ()
        return (*self.sheet.notes, *more)


def read(spec: str, run: Run | None = None) -> Table:
    """A table by its path, with options after a colon as in `t.csv:missing=unknown,drop=note`.

    With a run, the columns are those that it knows; a level that it has never seen is taken as missing, and told.
    """
    path, options = file_options(spec)
    options = Options(**{**vars(options), "columns": "mixed"})
    options.check(str(path))
    sheet = read_sheet(path, options)
    new_levels: dict[str, int] = {}
    if run is not None:
        kinds = matched(sheet, _columns_of(run))
        rows = kinds.columns.encode(sheet, new_levels)
        if note := Rows(rows, (), new_levels).note:
            sheet = sheet._replace(notes=(*sheet.notes, note.removeprefix("note: ")))
    else:
        kinds = guess(sheet, options.categories)
        rows = kinds.columns.encode(sheet)
    return Table(path, options, sheet, kinds, torch.as_tensor(rows.astype(np.float32)))


def _columns_of(run: Run) -> Columns:
    columns = run.columns
    if columns is None:
        raise UserError(f"{run.path} was not fitted to a table, so that it cannot answer for one: fit one to the table")
    return columns


@dataclass(frozen=True)
class CompletedFile(Result):
    """A table whose missing cells were completed."""

    out: str
    copies: tuple[str, ...]
    cells_file: str | None
    rows: int
    missing: int
    completed: int
    """Cells that were completed; the others are of columns that were left out."""
    columns: tuple[dict[str, Any], ...]
    left_out: tuple[dict[str, str], ...]
    chosen: str
    scores: dict[str, float]
    """Mean log-likelihood of held-out rows, in scaled units."""
    notes: tuple[str, ...]

    def text(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        if self.scores:
            ranked = sorted(self.scores.items(), key=lambda item: -item[1])
            lines.append("held-out log-likelihood: " + ", ".join(f"{name} {score:.3f}" for name, score in ranked))
        lines.append(f"{self.completed} of {self.missing} missing cells completed by {self.chosen}: {self.out}")
        lines += [f"completed copies: {', '.join(self.copies)}"] * bool(self.copies)
        lines += [f"each completed cell with its spread: {self.cells_file}"] * bool(self.cells_file)
        return "\n".join(lines)


def complete_file(
    spec: str, out: str, *, copies: int = 0, cells: str | None = None, minutes: float = 0.75, seed: int = 0,
    epochs: int = 0, run: Run | None = None, tell: Tell = lambda line: None,
) -> CompletedFile:  # fmt: skip
    """Complete the missing cells of a table; every cell that was there comes back byte for byte.

    Nothing is written before everything is found. `copies` further files have the missing cells drawn, so that their
    differences show how uncertain they are; `cells` lists every completed cell with its spread. A table that is no text
    is written as one. With a `run`, what it has learnt answers, and nothing is learnt.
    """
    if copies < 0:
        raise UserError(f"the number of copies must not be negative, got {copies}")
    table = read(spec, run)
    names = _outputs(out, copies, cells)
    for name in names:
        check_place(Path(name))
        if os.path.exists(name) and os.path.samefile(name, table.path):
            raise UserError(f"{name} is the table itself, which is left as it is: choose another --out")
    is_text = suffix_of(table.path) not in READERS
    whole = original(table.path, table.options.separator) if is_text else as_text(_undropped(table))
    cell_map = _CellMap(table, whole)
    tell(table.kinds.text())
    for note in table.notes:
        tell(f"note: {note}")
    learnt, found = None, _Found({}, [], [])
    if table.rows.isnan().any():
        with use_threads(1):
            learnt = _learnt(table, run, minutes, seed, epochs, tell)
            found = _completions(table, learnt, copies, seed)
    constant = _constants(table)
    write(Path(out), whole.with_cells(cell_map.texts(found.best | constant)))
    for name, copy in zip(names[1 : 1 + copies], found.copies or [{}] * copies, strict=True):
        write(Path(name), whole.with_cells(cell_map.texts(copy | constant)))
    if cells:
        write(Path(cells), _cells_csv(table, found))
    missing = sum(table.kinds.missing) + sum(
        int((~_there(table.sheet, each.name)).sum()) for each in table.kinds.left_out
    )
    return CompletedFile(
        out=out,
        copies=tuple(names[1 : 1 + copies]),
        cells_file=cells,
        rows=len(table.rows),
        missing=missing,
        completed=len(found.best) + len(constant),
        columns=tuple({"name": column.name, "kind": column.kind} for column in table.kinds.columns.columns),
        left_out=tuple({"name": each.name, "why": each.why} for each in table.kinds.left_out),
        chosen=learnt.name if learnt else "nothing, for none is missing",
        scores=learnt.scores if learnt else {},
        notes=learnt.notes if learnt else (),
    )


def _learnt(table: Table, run: Run | None, minutes: float, seed: int, epochs: int, tell: Tell) -> Learnt:
    if run is not None:
        return learnt_of(run, seed, tell)
    return learn(table.kinds.columns, table.rows, minutes=minutes, seed=seed, epochs=epochs, tell=tell)


def _undropped(table: Table) -> Sheet:
    """The sheet with the columns that were dropped: they come back, too."""
    return read_sheet(table.path, dataclasses.replace(table.options, drop=()))


Cell = tuple[int, str]
"""A row, from 0, and the name of a column."""


class CellSpread(NamedTuple):
    """What is known of a completed cell."""

    row: int
    column: str
    value: str
    spread: float
    """Standard deviation of a number; of other columns the probability that they are something else."""
    low: str
    high: str
    """Of numbers, the ends of a 90 % interval."""
    levels: dict[str, float]
    """Of other columns, the probability of each level."""


class _Found(NamedTuple):
    best: dict[Cell, str]
    copies: list[dict[Cell, str]]
    cells: list[CellSpread]


def _completions(table: Table, learnt: Learnt, copies: int, seed: int) -> _Found:
    columns, missing = table.kinds.columns, table.rows.isnan().numpy()
    rows = np.flatnonzero(missing.any(1))
    found = complete(learnt, table.rows[torch.as_tensor(rows)], max(copies, SPREAD_COPIES), seed)
    best = columns.decode(found.expected)
    drawn = [columns.decode(copy) for copy in found.copies]
    cells: list[CellSpread] = []
    texts: dict[Cell, str] = {}
    several: list[dict[Cell, str]] = [{} for _ in range(copies)]
    for at, column in enumerate(columns.columns):
        mine, values_there = columns.sources == at, _there(table.sheet, column.name)
        for i, row in enumerate(rows.tolist()):
            if not missing[row, mine].any() or values_there[row]:  # a level that a run has never seen stays
                continue
            cell = (row, column.name)
            texts[cell] = written(column, best[column.name][i])
            for copy, values in zip(several, drawn, strict=False):
                copy[cell] = written(column, values[column.name][i])
            seen = [values[column.name][i] for values in drawn]
            cells.append(_spread(cell, column, texts[cell], found.expected[i, mine], seen))
    return _Found(texts, several, cells)


def _spread(cell: Cell, column: Column, value: str, expected: np.ndarray, seen: Sequence[Any]) -> CellSpread:
    if column.has_levels or column.kind == "binary":
        share = expected if column.has_levels else np.array([1 - expected[0], expected[0]])
        names = column.levels if column.has_levels else ("0", "1")
        levels = dict(zip(names, (share / share.sum()).round(4).tolist(), strict=True))
        return CellSpread(*cell, value, 1 - levels.get(value, 0.0), "", "", levels)
    numbers = np.array(seen, dtype=float)
    low, high = (written(column, float(end)) for end in np.quantile(numbers, [0.05, 0.95], method="weibull"))
    return CellSpread(*cell, value, float(numbers.std()), low, high, {})


def written(column: Column, value: Any) -> str:
    """A value as the table would have it."""
    if value is None:
        return ""
    if column.kind == "integer":
        return str(round(value))
    if column.kind == "real":
        return f"{value:.6g}" if column.decimals is None else f"{value:.{column.decimals}f}"
    return column.levels[int(value)] if column.boolean else str(value)


def _constants(table: Table) -> dict[Cell, str]:
    """Missing cells of columns that have one value only: there is nothing else they could be."""
    found = {}
    for each in table.kinds.left_out:
        values = table.sheet.columns[table.sheet.names.index(each.name)]
        for row in range(len(values) if each.value else 0):
            if values[row] is None or (isinstance(values[row], float) and math.isnan(values[row])):
                found[row, each.name] = each.value
    return found


class _CellMap:
    """From rows and names of columns to the cells of the text."""

    def __init__(self, table: Table, whole: Original):
        headers = len(whole.spans) - len(table.sheet.lines)
        widths = {len(record) for record in whole.spans}
        if headers not in (0, 1) or len(widths) != 1 or max(table.sheet.numbered) > max(widths):
            raise UserError(f"the cells of {table.path} cannot be told apart: check its quotes and line ends")
        self._first, self._comma = headers, table.options.decimal == "comma"
        self._columns = {name: at - 1 for name, at in zip(table.sheet.names, table.sheet.numbered, strict=True)}

    def texts(self, cells: dict[Cell, str]) -> dict[tuple[int, int], str]:
        return {
            (self._first + row, self._columns[name]): text.replace(".", ",") if self._comma else text
            for (row, name), text in cells.items()
        }


def _outputs(out: str, copies: int, cells: str | None) -> list[str]:
    path = Path(out)
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        raise UserError(f"name a file ending in .csv for the completed table (--out), got {out!r}")
    numbered = [str(path.with_name(f"{path.stem}-{i}{path.suffix}")) for i in range(1, copies + 1)]
    return [out, *numbered, *([cells] if cells else [])]


def _cells_csv(table: Table, found: _Found) -> bytes:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([table.sheet.unit, "column", "value", "spread", "low", "high", "levels"])
    for each in sorted(found.cells):
        levels = "; ".join(f"{level}={share:.3f}" for level, share in each.levels.items())
        line = table.sheet.lines[each.row]
        writer.writerow([line, each.column, each.value, f"{each.spread:.4g}", each.low, each.high, levels])
    return content.getvalue().encode()


def _there(sheet: Sheet, name: str) -> np.ndarray:
    """Which cells of a column have a value."""
    values = sheet.columns[sheet.names.index(name)]
    return np.array([value is not None for value in values]) if values.dtype == object else ~np.isnan(values)


# Odd rows


class OddCell(NamedTuple):
    """A cell to blame."""

    column: str
    value: str
    expected: str
    """What the other cells of its row let expect."""
    excess: float
    """Nats by which it is less likely than cells of its column are on average."""


class OddRow(NamedTuple):
    """A row that is less likely than others."""

    line: int
    names: dict[str, str]
    """What identifies the row: cells of columns that were left out of the model."""
    strangeness: float
    log_prob: float
    """In the units of the table."""
    cells: tuple[OddCell, ...]


@dataclass(frozen=True)
class OddRows(Result):
    """The rows of a table, the oddest first."""

    rows: tuple[OddRow, ...]
    of: int
    """Rows of the table."""
    unit: str
    chosen: str
    notes: tuple[str, ...]
    out: str | None

    def text(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        lines.append(f"the oddest of {self.of} rows, by {self.chosen}:")
        for row in self.rows:
            who = "".join(f", {name} {value}" for name, value in row.names.items())
            cells = "; ".join(f"{cell.column} is {cell.value}, expected {cell.expected}" for cell in row.cells)
            lines.append(f"{self.unit} {row.line}{who}: strangeness {row.strangeness:.1f}; {cells or 'as a whole'}")
        return "\n".join([*lines, *[f"all rows: {self.out}"] * bool(self.out)])

    def to_json(self) -> Any:
        found = {name: getattr(self, name) for name in ("of", "unit", "chosen", "notes", "out")}
        return plain(
            found | {"rows": [row._asdict() | {"cells": [c._asdict() for c in row.cells]} for row in self.rows]}
        )


def odd_rows(
    spec: str, *, n: int = 10, out: str | None = None, minutes: float = 0.75, seed: int = 0, epochs: int = 0,
    run: Run | None = None, tell: Tell = lambda line: None,
) -> OddRows:  # fmt: skip
    """The oddest rows of a table, each with the cells to blame and what was expected there.

    With a `run`, they are odd to what it has learnt, and nothing is learnt.
    """
    if n < 1:
        raise UserError(f"the number of rows to show must be at least 1, got {n}")
    if out:
        check_place(Path(out))
    table = read(spec, run)
    tell(table.kinds.text())
    columns = table.kinds.columns
    with use_threads(1):
        learnt = _learnt(table, run, minutes, seed, epochs, tell)
        found = odd_cells(learnt, columns, table.rows, seed)
        order = np.argsort(-found.strangeness, kind="stable")
        units = ~table.rows.isnan().numpy() @ columns.log_scale
        rows = [_odd_row(table, learnt, found.excess[at], int(at), seed) for at in order[:n]]
    rows = [
        row._replace(strangeness=float(found.strangeness[at]), log_prob=float(found.log_prob[at] - units[at]))
        for row, at in zip(rows, order[:n], strict=True)
    ]
    if out:
        write(Path(out), _odd_csv(table, found.strangeness, found.log_prob - units, found.excess, columns, order))
    return OddRows(tuple(rows), len(table.rows), table.sheet.unit, learnt.name, (*table.notes, *learnt.notes), out)


def _odd_row(table: Table, learnt: Learnt, excess: np.ndarray, at: int, seed: int) -> OddRow:
    columns = table.kinds.columns
    worst = [j for j in np.argsort(-np.nan_to_num(excess, nan=-math.inf))[:WORST_CELLS] if excess[j] > BLAME]
    cells = []
    for j in worst:
        row = table.rows[at : at + 1].clone()
        row[:, torch.as_tensor(columns.sources == j)] = math.nan
        cells.append(_odd_cell(table, columns, learnt, row, at, int(j), float(excess[j]), seed))
    return OddRow(int(table.sheet.lines[at]), _names(table, at), 0.0, 0.0, tuple(cells))


def _odd_cell(
    table: Table, columns: Columns, learnt: Learnt, row: torch.Tensor, at: int, j: int, excess: float, seed: int
) -> OddCell:
    column, found = columns.columns[j], complete(learnt, row, SPREAD_COPIES, seed)
    expected = written(column, columns.decode(found.expected)[column.name][0])
    if column.kind in ("real", "integer"):
        spread = np.std([columns.decode(copy)[column.name][0] for copy in found.copies])
        expected += f" ± {spread:.3g}"
    value = table.sheet.columns[table.sheet.names.index(column.name)][at]
    shown = value if isinstance(value, str) else f"{value:.10g}"
    return OddCell(column.name, shown, expected, excess)


def _names(table: Table, at: int) -> dict[str, str]:
    """Cells of the columns that were left out because they tell rows apart."""
    found = {}
    for each in table.kinds.left_out:
        if each.identifies:
            value = table.sheet.columns[table.sheet.names.index(each.name)][at]
            found[each.name] = "" if value is None else value if isinstance(value, str) else f"{value:.15g}"
    return found


def _odd_csv(
    table: Table, strangeness: np.ndarray, log_prob: np.ndarray, excess: np.ndarray, columns: Columns, order: np.ndarray
) -> bytes:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    names = [each.name for each in table.kinds.left_out if each.identifies]
    writer.writerow([table.sheet.unit, *names, "strangeness", "log_prob", *(c.name for c in columns.columns)])
    for at in order:
        cells = ["" if math.isnan(value) else f"{value:.3f}" for value in excess[at]]
        who = _names(table, int(at)).values()
        writer.writerow([table.sheet.lines[at], *who, f"{strangeness[at]:.4f}", f"{log_prob[at]:.4f}", *cells])
    return content.getvalue().encode()
