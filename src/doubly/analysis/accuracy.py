"""How well missing values are imputed: cells of known rows are hidden, imputed, and compared with the truth."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from doubly.analysis.results import plain
from doubly.core.errors import UserError
from doubly.core.extras import extra
from doubly.core.types import Hide, Of
from doubly.data import Columns
from doubly.latents.completions import ImputeConfig
from doubly.posterior.imputation import Imputed
from doubly.posterior.store import Posterior

BINS = 10  # of predicted probability, in which calibration is looked at
WIDEST = 200  # columns beyond which the chained regressions of IterativeImputer take too long
MOST_TRAINING_ROWS = 5000  # that the simpler imputers learn from


def mask(how: Hide, rows: int, shape: tuple[int, ...], share: float, seed: int = 0) -> np.ndarray:
    """Which cells are hidden: at random, a block at a random place in each row, or the lower half of each row.

    >>> mask("lower-half", 1, (4, 1), 0.5)[0]
    array([False, False,  True,  True])
    """
    if not 0 < share < 1:
        raise UserError(f"the share of hidden cells must lie between 0 and 1, got {share}")
    rng, width = np.random.default_rng([seed, 7]), math.prod(shape)
    if how == "lower-half":
        top = shape[0] // 2 * (width // shape[0])
        return np.broadcast_to(np.arange(width) >= top, (rows, width)).copy()
    if how == "random":
        return rng.random((rows, width)) < share
    sides = [max(1, round(n * share ** (1 / len(shape)))) for n in shape]
    hidden = np.zeros((rows, *shape), dtype=bool)
    for row in hidden:
        corner = [rng.integers(n - side + 1) for n, side in zip(shape, sides, strict=True)]
        row[tuple(slice(c, c + side) for c, side in zip(corner, sides, strict=True))] = True
    return hidden.reshape(rows, width)


@dataclass(frozen=True)
class CellErrors:
    """How far imputed values are from the truth, over the hidden cells."""

    rmse: float
    """Root mean square error; of a table with several kinds of columns, of its numbers in standard deviations."""
    error_rate: float | None = None
    """Of binary cells: the share that rounding gets wrong; of categories, the share whose likeliest level is wrong."""
    log_loss: float | None = None
    """Of binary cells: the mean of -log p(truth)."""
    calibration_error: float | None = None
    """Of binary cells: how far, on average, the frequency of ones is from the predicted probability."""
    log_conditional: float | None = None
    """log p(hidden cells | others) of a row, where an imputer gives that density."""
    log_conditional_stderr: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """What can be said of these cells, by name."""
        return {name: plain(value) for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class ImputationAccuracy:
    """The errors by imputer, and what the posterior imputed."""

    errors: dict[str, CellErrors]
    imputed: Imputed
    missing: np.ndarray


def imputation_accuracy(
    posterior: Posterior,
    x: np.ndarray,
    train: np.ndarray,
    missing: np.ndarray,
    draws: int = 20,
    how: ImputeConfig | None = None,
    of: Of = "ensemble",
    conditional_draws: int = 1000,
    seed: int = 0,
    columns: Columns | None = None,
) -> ImputationAccuracy:
    """Hide these cells of rows x, impute them by the posterior and by simpler imputers, and compare with the truth.

    Cells that are missing in x itself are imputed too, but there is no truth to compare them with. Of a table, whose
    `columns` are given, numbers are compared in standard deviations of their column, and categories by their level.
    """
    missing = missing & ~np.isnan(x)
    binary = posterior.model.layers[0].kind == "binary"
    incomplete = np.where(missing, np.nan, x.astype(np.float32))
    imputed = posterior.impute(incomplete, draws, how, of, seed)
    log_conditional = posterior.log_conditional(x, missing, imputed.completions, conditional_draws, of, seed)
    own = dataclasses.replace(
        _errors(imputed.mean, x, missing, binary, columns),
        log_conditional=float(log_conditional.mean()),
        log_conditional_stderr=float(log_conditional.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan,
    )
    found = {"doubly": own}
    some = train[np.random.default_rng(seed).permutation(len(train))[:MOST_TRAINING_ROWS]].astype(np.float64)
    for name, impute in _simpler_imputers(x.shape[1]).items():
        mean = impute(some, incomplete)
        found[name] = _errors(np.clip(mean, 0, 1) if binary else mean, x, missing, binary, columns)
    return ImputationAccuracy(found, imputed, missing)


def _errors(
    mean: np.ndarray, truth: np.ndarray, missing: np.ndarray, binary: bool, columns: Columns | None
) -> CellErrors:
    if columns is None:
        return errors(mean, truth, missing, binary)
    squares, wrong = [], []
    for at, column in enumerate(columns.columns):
        mine = columns.sources == at
        hidden = missing[:, mine].all(1)
        guess, x = mean[hidden][:, mine], truth[hidden][:, mine]
        if column.has_levels:
            wrong += (guess.argmax(1) != x.argmax(1)).tolist()
        elif column.kind == "binary":
            wrong += ((guess > 0.5) != (x > 0.5))[:, 0].tolist()
        else:
            squares += ((guess - x) ** 2)[:, 0].tolist()
    rmse = float(np.sqrt(np.mean(squares))) if squares else math.nan
    return CellErrors(rmse, error_rate=float(np.mean(wrong)) if wrong else None)


def errors(mean: np.ndarray, truth: np.ndarray, missing: np.ndarray, binary: bool) -> CellErrors:
    """The errors of these means over the hidden cells."""
    predicted, x = mean[missing].astype(np.float64), truth[missing].astype(np.float64)
    rmse = float(np.sqrt(np.mean((predicted - x) ** 2)))
    if not binary:
        return CellErrors(rmse)
    p = predicted.clip(1e-3, 1 - 1e-3)  # an imputer that is certain and wrong would have an infinite loss
    return CellErrors(
        rmse,
        error_rate=float(np.mean((predicted > 0.5) != (x > 0.5))),
        log_loss=float(-np.mean(x * np.log(p) + (1 - x) * np.log1p(-p))),
        calibration_error=calibration_error(predicted, x),
    )


def calibration_error(predicted: np.ndarray, truth: np.ndarray) -> float:
    """The mean over cells of | mean truth - mean prediction | in the cell's bin of predicted probability."""
    which = np.minimum((predicted * BINS).astype(int), BINS - 1)
    counts = np.bincount(which, minlength=BINS)
    gaps = np.abs(np.bincount(which, truth, BINS) - np.bincount(which, predicted, BINS))
    return float(gaps[counts > 0].sum() / counts.sum())


def _simpler_imputers(width: int) -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]:
    """Functions of training rows and rows with missing values."""
    with extra("sklearn", "the comparison with simpler imputers"):
        from sklearn.experimental import enable_iterative_imputer  # noqa: F401 - without this import it does not exist
        from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

    def by(imputer: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        return lambda train, incomplete: np.asarray(imputer.fit(train).transform(incomplete))

    found = {
        "mean": by(SimpleImputer(keep_empty_features=True)),
        "nearest neighbours": by(KNNImputer(n_neighbors=10, weights="distance", keep_empty_features=True)),
    }
    if width <= WIDEST:
        found["iterative"] = by(IterativeImputer(max_iter=10, random_state=0, keep_empty_features=True))
    return found
