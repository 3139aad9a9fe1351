"""What is answered: completions with the certainty of each cell, likelihoods, codes and new rows, as JSON.

Answers are dataclasses whose fields say what is in them, as requests are. All are computed in the worker's thread.
"""

import time
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np

from doubly import __version__
from doubly.analysis.results import plain
from doubly.core.types import Of
from doubly.data import Column, missing_mask
from doubly.latents import LikelihoodConfig
from doubly.latents.completions import ImputeConfig
from doubly.posterior.estimates import ScoreConfig
from doubly.posterior.imputation import Imputed
from doubly.posterior.store import Posterior
from doubly.serve.model import Served
from doubly.serve.requests import (
    MOST_BODY,
    MOST_DRAWS,
    MOST_NEW,
    MOST_ROWS,
    EncodeRequest,
    ImputeRequest,
    SampleRequest,
    ScoreRequest,
    check_work,
)
from doubly.serve.schema import Schema, array, ref, said

NUMBER: Schema = {"type": "number"}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
Seconds = Annotated[float, said(NUMBER, "How long it took to compute.")]
CERTAINTY = (
    "Of values such as 0 and 1 or levels: the probability of the value that is shown. Of numbers: 1 minus their spread "
    "as a share of the column's, not below 0. 1 where the value was given."
)


@dataclass(frozen=True)
class CompletedImage:
    """A completed picture."""

    completions: Annotated[list[Any], said(array(ref("Row")), "Each is a draw given what was there.")]
    expected: Annotated[
        list[float], said(array(NUMBER), "What is expected of each pixel; of bits, the probability of 1.")
    ]
    certainty: Annotated[list[float], said(array(SHARE), CERTAINTY)]


@dataclass(frozen=True)
class CompletedCell:
    """A cell that was missing."""

    value: Annotated[Any, said({"type": ["string", "number", "null"]}, "The best single value.")]
    certainty: Annotated[float, said(SHARE, CERTAINTY)]
    low: Annotated[float | None, said({"type": ["number", "null"]}, "Of numbers, where a 90 % interval begins.")]
    high: Annotated[float | None, said({"type": ["number", "null"]}, "Of numbers, where a 90 % interval ends.")]
    levels: Annotated[
        dict[str, float],
        said({"type": "object", "additionalProperties": SHARE}, "Of other columns, the probability of each level."),
    ]


@dataclass(frozen=True)
class CompletedRow:
    """A completed row of a table."""

    completions: Annotated[list[Any], said(array(ref("Row")), "Each is a draw given what was there.")]
    best: Annotated[dict[str, Any], said(ref("Row"), "The row with the best single value in each missing cell.")]
    cells: Annotated[
        dict[str, CompletedCell],
        said({"type": "object", "additionalProperties": ref("CompletedCell")}, "Each cell that was missing, by name."),
    ]


@dataclass(frozen=True)
class ImputeAnswer:
    """Completed rows."""

    rows: Annotated[
        list[CompletedImage] | list[CompletedRow], said(array(ref("Completed")), "In the order they came in.")
    ]
    samples: Annotated[int, said(WHOLE, "How many sets of weights could answer.")]
    seconds: Seconds


@dataclass(frozen=True)
class ScoreAnswer:
    """Log-likelihoods."""

    log_likelihood: Annotated[list[float], said(array(NUMBER), "Of each row, in nats: a lower bound in the mean.")]
    by: Annotated[str, said(TEXT, "How it was computed: draws, annealing or exact.")]
    seconds: Seconds


@dataclass(frozen=True)
class EncodeAnswer:
    """Codes."""

    codes: Annotated[
        list[Any],
        said(array(array(array(NUMBER))), "For each latent layer, from the data upward, the codes of each row."),
    ]
    seconds: Seconds


@dataclass(frozen=True)
class SampleAnswer:
    """New rows."""

    rows: Annotated[list[Any], array(ref("Row"))]
    seconds: Seconds


@dataclass(frozen=True)
class ModelAnswer:
    """What is served."""

    name: Annotated[str, TEXT]
    version: Annotated[str, said(TEXT, "The version of doubly.")]
    view: Annotated[str, said({"type": "string", "enum": ["image", "table"]}, "How a row is written.")]
    kind: Annotated[str, {"type": "string", "enum": ["binary", "real", "mixed"]}]
    shape: Annotated[list[int], said(array(WHOLE), "Of one row.")]
    columns: Annotated[list[Any], said(array({"type": "object"}), "Of a table: name, kind and levels of each column.")]
    layers: Annotated[list[str], said(array(TEXT), "The layers of the model, from the data upward.")]
    samples: Annotated[int, said(WHOLE, "Samples of the weights, each of which can be asked by its number.")]
    collected: Annotated[int, said(WHOLE, "How many samples the mean is of.")]
    weights: Annotated[list[str], said(array(TEXT), "What `of` may be here.")]
    limits: Annotated[dict[str, int], {"type": "object", "additionalProperties": WHOLE}]


@dataclass(frozen=True)
class ExamplesAnswer:
    """Rows to begin with."""

    rows: Annotated[list[Any], array(ref("Row"))]
    origin: Annotated[str, said(TEXT, "Where they come from.")]


@dataclass(frozen=True)
class ErrorAnswer:
    """What was wrong."""

    error: Annotated[str, said(TEXT, "One line: what was expected, what came, what to do.")]


def model_answer(served: Served) -> ModelAnswer:
    """What the page and programs have to know of the model."""
    posterior = served.posterior
    columns = [] if served.is_image else served.columns.columns
    return ModelAnswer(
        name=served.name,
        version=__version__,
        view="image" if served.is_image else "table",
        kind=served.facts.kind,
        shape=list(served.facts.shape),
        columns=[{"name": c.name, "kind": c.kind, "levels": list(c.levels), "decimals": c.decimals} for c in columns],
        layers=[f"{type(layer).__name__} {layer.n_out}" for layer in posterior.model.layers],
        samples=len(posterior.pairs()),
        collected=posterior.collected,
        weights=list(served.weights),
        limits={"rows": MOST_ROWS, "draws": MOST_DRAWS, "n": MOST_NEW, "body": MOST_BODY},
    )


def examples_answer(served: Served) -> ExamplesAnswer:
    """Rows to begin with."""
    return ExamplesAnswer(served.written(served.examples.astype(float)), served.origin)


def impute(served: Served, asked: ImputeRequest) -> ImputeAnswer:
    """Completions of rows with missing values."""
    began = time.perf_counter()
    posterior, of = served.weights_of(asked.of, asked.sample)
    how = ImputeConfig(sweeps=asked.sweeps or served.sweeps)
    check_work(rows=len(asked.rows), draws=asked.draws, sweeps=how.sweeps)
    x = served.matrix(asked.rows)
    found = posterior.impute(x, asked.draws, how, of, asked.seed)
    answers = [_completed(served, x[i], found, i) for i in range(len(x))]
    return ImputeAnswer(answers, _members(posterior, of), _since(began))  # type: ignore[arg-type]


def _members(posterior: Posterior, of: Of) -> int:
    """How many sets of weights answer."""
    return len(posterior.pairs()) if of == "ensemble" else 1


def _completed(served: Served, row: np.ndarray, found: Imputed, i: int) -> CompletedImage | CompletedRow:
    missing, drawn = missing_mask(row), found.completions[:, i]
    completions = served.written(drawn.astype(float))
    if served.is_image:
        expected = np.where(missing, found.mean[i], row)
        sure = certainty(served, expected, found.spread[i])
        return CompletedImage(completions, _rounded(expected), _rounded(np.where(missing, sure, 1.0)))
    best = served.written(found.mean[i : i + 1].astype(float))[0]
    cells = {}
    for at, column in enumerate(served.columns.columns):
        mine = served.columns.sources == at
        if missing[mine].any():
            values = [completion[column.name] for completion in completions]
            sure = certainty(served, found.mean[i], found.spread[i])[mine]
            cells[column.name] = _cell(column, best[column.name], values, found.mean[i][mine], sure)
    return CompletedRow(completions, best, cells)


def certainty(served: Served, expected: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Of each entry: how probable its likelier value is, or how much less a number varies than its column does."""
    sources, columns = served.columns.sources, served.columns.columns
    discrete = np.array([columns[at].has_levels or columns[at].kind == "binary" for at in sources])
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(served.spread > 0, spread / served.spread, 0.0)
    found: np.ndarray = np.where(discrete, np.maximum(expected, 1 - expected), 1 - share).clip(0, 1)
    return found


def _cell(column: Column, value: Any, values: list[Any], mean: np.ndarray, sure: np.ndarray) -> CompletedCell:
    if column.has_levels or column.kind == "binary":
        share = mean if column.has_levels else np.array([1 - mean[0], mean[0]])
        share = share.clip(0) / share.clip(0).sum()
        names = column.levels or ("0", "1")
        levels = dict(zip(names, _rounded(share), strict=True))
        return CompletedCell(value, levels.get(str(value), float(share.max())), None, None, levels)
    low, high = np.quantile(np.array(values, dtype=float), [0.05, 0.95], method="weibull")
    return CompletedCell(value, round(float(sure[0]), 4), float(low), float(high), {})


def score(served: Served, asked: ScoreRequest) -> ScoreAnswer:
    """log p of each row, in the units of the table."""
    began = time.perf_counter()
    posterior, of = served.weights_of(asked.of, asked.sample)
    x = served.matrix(asked.rows)
    how = ScoreConfig(asked.by, LikelihoodConfig(draws=asked.draws, seed=asked.seed))
    rows = posterior.rows(x)
    estimator = posterior.choose(how, rows, None, of).estimator
    if estimator == "annealing":
        check_work(rows=len(rows), members=_members(posterior, of), temperatures=how.temperatures)
    found = posterior.score_by(estimator, rows, how, of).log_likelihood.double().cpu().numpy()
    posterior.tidy()
    units = ~missing_mask(x) @ served.columns.log_scale
    return ScoreAnswer(_rounded(found - units), estimator, _since(began))


def encode(served: Served, asked: EncodeRequest) -> EncodeAnswer:
    """E[z given x] of each row, layer by layer."""
    began = time.perf_counter()
    posterior, of = served.weights_of(asked.of, asked.sample)
    found = posterior.encode(served.matrix(asked.rows), asked.draws, of, asked.seed)
    return EncodeAnswer([[_rounded(row) for row in layer] for layer in found], _since(began))


def sample(served: Served, asked: SampleRequest) -> SampleAnswer:
    """New rows, in words and units."""
    began = time.perf_counter()
    posterior, of = served.weights_of(asked.of, asked.sample)
    rows = posterior.sample(asked.n, of, asked.seed)
    return SampleAnswer(served.written(rows.astype(float)), _since(began))


def as_json(answer: Any) -> Any:
    """An answer as JSON has it: no NaN, no infinity."""
    return plain(asdict(answer))


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 6) for value in values]


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)
