"""A CSV with missing cells, completed: what was there comes back byte for byte.

The table is what a request brought. It is read from a file of our own in a folder of our own, which is gone afterwards.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from doubly.analysis.table_files import written
from doubly.core.errors import UserError
from doubly.data.columns import Sheet, shown
from doubly.data.dataset import as_kind, check_finite
from doubly.data.files import Options, read_sheet
from doubly.data.text import Original, original
from doubly.latents.completions import ImputeConfig
from doubly.serve.model import Served

MOST_TABLE_ROWS = 20_000
BLOCK_ROWS, BLOCK_CELLS = 200, 20_000  # that are completed at a time, so that others are served between
DRAWS = 20


@dataclass
class Upload:
    """A table that came in, and what was found for its missing cells."""

    served: Served
    text: Original
    sheet: Sheet
    rows: np.ndarray
    """In the model's units."""
    note: str
    """What a user should know of it."""
    changes: dict[tuple[int, int], str] = field(default_factory=dict)

    def blocks(self) -> list[np.ndarray]:
        """The numbers of the rows with missing cells, some at a time."""
        gone = np.zeros(len(self.rows), dtype=bool)
        for at in self.served.columns.order(self.sheet):
            gone |= _nothing(self.sheet.columns[at])
        rows, size = np.flatnonzero(gone), max(1, min(BLOCK_ROWS, BLOCK_CELLS // self.rows.shape[1]))
        return [rows[first : first + size] for first in range(0, len(rows), size)]

    def complete(self, rows: np.ndarray) -> None:
        """Find the best value for each missing cell of these rows."""
        columns, how = self.served.columns, ImputeConfig(sweeps=self.served.sweeps)
        found = self.served.posterior.impute(self.rows[rows], DRAWS, how, self.served.weights[0])
        best = columns.decode(found.mean)
        head = len(self.text.spans) - len(self.sheet.lines)
        for column, at in zip(columns.columns, columns.order(self.sheet), strict=True):
            gone = _nothing(self.sheet.columns[at])[rows]
            for i in np.flatnonzero(gone):
                place = (head + int(rows[i]), self.sheet.numbered[at] - 1)
                self.changes[place] = written(column, best[column.name][i])

    def result(self) -> bytes:
        """The table with its missing cells completed."""
        return self.text.with_cells(self.changes)


def uploaded(served: Served, content: bytes) -> Upload:
    """Read a table as text; an error names the line and the column."""
    with _own_file(content) as path:
        mixed = served.columns.is_mixed
        sheet = read_sheet(path, Options(columns="mixed" if mixed else ""))
        text = original(path)
        if len(sheet.lines) > MOST_TABLE_ROWS:
            raise UserError(f"the table has {len(sheet.lines)} rows, at most {MOST_TABLE_ROWS} are completed at once")
        if len(text.spans) - len(sheet.lines) not in (0, 1) or len({len(record) for record in text.spans}) != 1:
            raise UserError("the cells of the table cannot be told apart: check its quotes and line ends")
        new_levels: dict[str, int] = {}
        rows = served.columns.encode(sheet, new_levels if mixed else None)
        check_finite(rows, "the table", nan_allowed=True)
        order = served.columns.order(sheet)
        left_out = [name for at, name in enumerate(sheet.names) if at not in order]
        return Upload(served, text, sheet, as_kind(rows, "real", "the table"), _note(left_out, new_levels))


@contextmanager
def _own_file(content: bytes) -> Iterator[Path]:
    """A file of our own with this content; messages do not name it."""
    with tempfile.TemporaryDirectory(prefix="doubly-") as folder:
        path = Path(folder) / "table.csv"
        path.write_bytes(content)
        try:
            yield path
        except UserError as error:
            raise UserError(str(error).replace(str(path), "the table")) from None


def _nothing(values: np.ndarray) -> Any:
    return np.isnan(values) if values.dtype != object else np.array([value is None for value in values], dtype=bool)


def _note(left_out: list[str], new_levels: dict[str, int]) -> str:
    parts = [f"columns that the model does not know stay as they are: {shown(left_out)}"] * bool(left_out)
    if new_levels:
        counts = shown([f"{name} ({number} cells)" for name, number in new_levels.items()])
        parts.append(f"levels that were never seen are not looked at: {counts}")
    return "; ".join(parts)
