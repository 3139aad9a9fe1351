"""A run or an exported file, opened once and kept warm: its weights, its columns, and rows to begin with."""

import dataclasses
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from doubly.core.errors import RunWarning, UserError
from doubly.core.types import Of
from doubly.data import Column, Columns
from doubly.data.columns import ColumnKind, nameless
from doubly.latents.completions import ImputeConfig
from doubly.posterior.store import Posterior
from doubly.runs.build import Facts
from doubly.runs.export import load_scaled, read_facts
from doubly.runs.folder import Run
from doubly.serve.schema import Schema, array
from doubly.training.state import moments

MOST_EXAMPLES = 100
LONGEST_TEXT = 200  # characters of a cell in a request
LARGEST_PIXELS = 128 * 128  # beyond, a picture is too fine to be erased by hand


@dataclass
class Served:
    """What is served: a posterior, and how its rows are written.

    An image is a list of its pixels, row by row. A row of a table is an object with a value for each column, in the
    words and units of the table.
    """

    name: str
    posterior: Posterior
    facts: Facts
    columns: Columns
    examples: np.ndarray
    """Rows to begin with, in the model's units; a value may be missing (NaN)."""
    origin: str
    """Where the examples come from, in words."""

    def __post_init__(self) -> None:
        train = self.posterior.train()  # once: it may be read from a file
        self.posterior.train = lambda: train
        self.spread = moments(self.posterior.method, train).spread.double().cpu().numpy()
        self._single: dict[int, Posterior] = {}

    @property
    def is_image(self) -> bool:
        """Whether rows are pictures."""
        return len(self.facts.shape) == 2 and self.facts.width <= LARGEST_PIXELS

    @property
    def weights(self) -> list[Of]:
        """Which weights can answer."""
        there: dict[Of, bool] = {
            "ensemble": bool(self.posterior.thetas),
            "mean": self.posterior.mean_theta is not None and not self.posterior.others,
            "last": True,
        }
        return [name for name, present in there.items() if present]

    @property
    def sweeps(self) -> int:
        """Sweeps for a quick answer: few, where the proposal is shown what is missing, and chains begin well."""
        return 5 if self.posterior.method.proposal.masked else 20

    def weights_of(self, of: Of, sample: int | None) -> tuple[Posterior, Of]:
        """The posterior that answers, and which of its weights; of a single sample, one that has no other."""
        if sample is None:
            many = of == "mean" and self.posterior.others  # of which the ensemble is what the mean is of one chain
            return self.posterior, "ensemble" if many else of
        pairs = self.posterior.pairs()
        there = len(pairs)
        if not 1 <= sample <= there:
            raise UserError(f"there is no sample {sample}: this run has {there} samples of the weights, from 1")
        if sample not in self._single:
            pair = pairs[sample - 1]
            self._single[sample] = dataclasses.replace(self.posterior, thetas=[pair.theta], phi=pair.phi, others=())
        return self._single[sample], "ensemble"

    # Rows as JSON

    @cached_property
    def row_schema(self) -> Schema:
        """What a row in a request looks like."""
        if self.is_image:
            pixel: Schema = {"type": ["number", "null"]}
            if self.facts.kind == "binary":
                pixel |= {"minimum": 0, "maximum": 1}
            lines, across = self.facts.shape
            about = f"The pixels of a picture of {lines} by {across}, row by row; null is missing."
            return array(pixel, self.facts.width, self.facts.width, about)
        return {
            "type": "object",
            "description": "The cells of a row by the names of their columns; null or absent is missing.",
            "properties": {column.name: cell_schema(column) for column in self.columns.columns},
            "additionalProperties": False,
        }

    def matrix(self, rows: list[Any]) -> np.ndarray:
        """Rows of a request in the model's units, NaN where a value is missing; they were checked by the schema."""
        if self.is_image:
            return np.array(rows, dtype=float)
        frame = {column.name: [_text(row.get(column.name)) for row in rows] for column in self.columns.columns}
        with np.errstate(over="ignore"):  # what is too large is refused when it is used
            return self.columns.encode(frame).astype(np.float32)

    def written(self, rows: np.ndarray) -> list[Any]:
        """Rows of the model as JSON; NaN becomes null."""
        if not self.is_image:
            records = self.columns.records(rows)
            words = {column.name: column.levels for column in self.columns.columns if column.boolean}
            for record in records:
                for name in words.keys() & {name for name, value in record.items() if value is not None}:
                    record[name] = words[name][int(record[name])]
            return records
        whole = self.facts.kind == "binary"
        return [[None if np.isnan(v) else int(v) if whole else round(float(v), 6) for v in row] for row in rows]

    def warm_up(self) -> None:
        """Compile the kernels, fit the proposals, and load what else the first answer needs."""
        columns = self.columns.sources
        row = np.where(columns <= columns[-1] // 2, self.examples[:1].astype(float), np.nan)
        for of in self.weights:
            self.posterior.impute(row, max(1, len(self.posterior.thetas)), ImputeConfig(sweeps=1), of)
            self.posterior.sample(1, of)


def cell_schema(column: Column) -> Schema:
    """What a cell of a column may be in a request."""
    if column.boolean:
        return {"type": ["string", "boolean", "integer", "null"], "maxLength": LONGEST_TEXT}
    if column.kind == "category":
        return {"type": ["string", "number", "null"], "maxLength": LONGEST_TEXT}
    if column.kind == "binary":
        return {"type": ["integer", "null"], "minimum": 0, "maximum": 1}
    return {"type": ["number", "null"]}


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def opened(path: str | Path, refit: int = 0, allow_code: bool = False) -> Served:
    """What is in a run folder, or in a file of `doubly export`."""
    # by draws, the evidence of a row takes a fraction of the time, and an answer is wanted within a second
    options: dict[str, Any] = {"estimator": "draws"}
    if Path(path).is_file():
        posterior = load_scaled(path, **options)
        facts, columns = read_facts(path)
        rows, origin = None, "drawn from the model"
    else:
        run = Run(path, allow_code)
        posterior, facts, columns = run.posterior(refit_passes=refit, **options), run.facts, run.columns
        rows, origin = run.data().split("test"), "held-out rows"
    if posterior.mean_theta is None:
        said = f"{path} has collected no samples yet: the last weights of its chain answer"
        warnings.warn(said, RunWarning, stacklevel=2)
    if rows is None:
        of: Of = "last" if posterior.mean_theta is None else "auto"
        rows = posterior.sample(MOST_EXAMPLES, of)
    return Served(
        name=Path(path).resolve().stem if Path(path).is_file() else Path(path).resolve().name,
        posterior=posterior,
        facts=facts,
        columns=columns or _nameless(facts),
        examples=np.asarray(rows[:MOST_EXAMPLES]),
        origin=origin,
    )


def _nameless(facts: Facts) -> Columns:
    """Columns for rows that are no table."""
    kind: ColumnKind = "binary" if facts.kind == "binary" else "real"
    return Columns(tuple(Column(nameless(at), kind) for at in range(facts.width)))
