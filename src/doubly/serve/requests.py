"""What may be asked: a dataclass for each request. Its fields say what they take and how much of it at most."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from doubly.core.errors import UserError
from doubly.core.types import Of
from doubly.serve.schema import Named, Schema, array, check, of, ref, said

ScoreBy = Literal["draws", "annealing"]
MOST_BODY = 4 * 2**20  # bytes
MOST_ROWS = 200  # of a request
MOST_DRAWS = 200  # completions of a row
MOST_WORK = 200_000  # rows x completions x sweeps, or rows x members x temperatures: some seconds
MOST_NEW = 1000  # rows to draw from the model
MOST_SAMPLES = 10**6  # a number of a sample that no run reaches

_ROWS = array(ref("Row"), MOST_ROWS, 1, "Rows; null where a value is missing.")
_COMPLETE = array(ref("Row"), MOST_ROWS, 1, "Rows; nothing may be missing, unless the model has learnt from such rows.")
_SAMPLE = {
    "type": ["integer", "null"], "minimum": 1, "maximum": MOST_SAMPLES,
    "description": "One sample of the weights by its number, from 1, in the place of `of`.",
}  # fmt: skip


_SWEEPS = {
    "type": ["integer", "null"], "minimum": 1, "maximum": 200,
    "description": "Sweeps of each chain that completes a row; null takes few, for a quick answer.",
}  # fmt: skip
_WEIGHTS = said(
    {"type": "string", "enum": list(get_args(Of))},
    "Which weights: an ensemble of samples, their mean, or the last one.",
)
_BY = said(
    {"type": "string", "enum": list(get_args(ScoreBy))},
    "By draws of the latent variables, or by annealing, which takes longer and is often nearer.",
)


def _whole(least: int, most: int, about: str) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "description": about}


Seed = Annotated[int, _whole(0, 2**31 - 1, "Seed of the random numbers: the same one gives the same answer.")]
Sample = Annotated[int | None, _SAMPLE]
Weights = Annotated[Of, _WEIGHTS]


@dataclass(frozen=True)
class ImputeRequest:
    """Complete rows with missing values."""

    rows: Annotated[list[Any], _ROWS]
    draws: Annotated[int, _whole(1, MOST_DRAWS, "Completions of each row.")] = 20
    of: Weights = "ensemble"
    sample: Sample = None
    sweeps: Annotated[int | None, _SWEEPS] = None
    seed: Seed = 0


@dataclass(frozen=True)
class ScoreRequest:
    """The log-likelihood of each row, in the units of the data: a lower bound."""

    rows: Annotated[list[Any], _COMPLETE]
    draws: Annotated[int, _whole(1, 2000, "Draws of the latent variables, where rows are scored by draws.")] = 1000
    by: Annotated[ScoreBy, _BY] = "draws"
    of: Weights = "mean"
    sample: Sample = None
    seed: Seed = 0


@dataclass(frozen=True)
class EncodeRequest:
    """The codes of rows: what is expected of the latent variables given each row."""

    rows: Annotated[list[Any], _COMPLETE]
    draws: Annotated[int, _whole(1, 1000, "Draws of the latent variables.")] = 100
    of: Weights = "mean"
    sample: Sample = None
    seed: Seed = 0


@dataclass(frozen=True)
class SampleRequest:
    """New rows from the model."""

    n: Annotated[int, _whole(1, MOST_NEW, "How many rows.")] = 10
    of: Weights = "ensemble"
    sample: Sample = None
    seed: Seed = 0


def check_work(**numbers: int) -> None:
    """Refuse what takes longer than others should wait for: the product of these numbers is bounded."""
    if (work := math.prod(numbers.values())) > MOST_WORK:
        raise UserError(f"{' x '.join(numbers)} must be at most {MOST_WORK}, got {work}: ask for less at a time")


Request = TypeVar("Request")


def parsed(kind: type[Request], body: Any, named: Named) -> Request:
    """A request out of the JSON that came, checked field by field."""
    check(of(kind), body, named)
    return kind(**body)
