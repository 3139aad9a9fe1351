"""Tables with cells that were hidden, and simpler ways to complete them, for benchmarks/tables.py.

Every method sees the same matrix: numbers (ordinal ones too) in units of their standard deviation, a bit as 0 or 1, a
category as one entry for each level. It answers with the mean of each number and the probability of each level; with
draws or standard deviations where it has them; and with log p(missing cells | observed cells) of each row where it is a
density.
"""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.special import expit
from sklearn import datasets
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression

from doubly.data import Columns, guess
from doubly.data.columns import sheet_of
from doubly.runs.baseline import _conditioned, gaussian_by_em

COPIES = 10  # of draws by chained regressions
MECHANISMS = ("mcar 20 %", "mcar 50 %", "mar")
TUNED_ON = ("concrete", "penguins", "wine")
Numbers = np.ndarray


# Tables


def _bundle(name: str, classes: bool = True) -> pd.DataFrame:
    found = getattr(datasets, f"load_{name}")(as_frame=True)
    frame = found.data.copy()
    if classes:
        frame["class"] = [str(found.target_names[at]) for at in found.target]
    else:
        frame["target"] = found.target
    return frame


def _digits() -> pd.DataFrame:
    """The first 600 digits, in 16 counts: the ink of squares of 2 x 2 pixels."""
    images = datasets.load_digits().images[:600].reshape(600, 4, 2, 4, 2).sum((2, 4)).reshape(600, 16)
    return pd.DataFrame(images, columns=[f"square {at}" for at in range(16)])


def _file(name: str, wanted: tuple[str, ...] = ()) -> pd.DataFrame:
    frame = pd.read_csv(Path(os.environ.get("DOUBLY_DATA", "")) / "tables" / f"{name}.csv", encoding="utf-8-sig")
    return frame[list(wanted)] if wanted else frame


TITANIC = ("survived", "pclass", "sex", "age", "sibsp", "parch", "fare", "embarked")  # the others say these again
TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "iris": lambda: _bundle("iris"),
    "wine": lambda: _bundle("wine"),
    "breast cancer": lambda: _bundle("breast_cancer"),
    "diabetes": lambda: _bundle("diabetes", classes=False),
    "digits": _digits,
    "penguins": lambda: _file("penguins"),
    "titanic": lambda: _file("titanic", TITANIC),
    "concrete": lambda: _file("concrete"),
    "winequality-red": lambda: _file("winequality-red"),
}


class Part(NamedTuple):
    """The entries of a column in the matrix of the peers."""

    name: str
    number: bool
    """Whether it is a number; else its entries are the probabilities of its levels (of a bit, of a 1)."""
    entries: slice


class Hidden(NamedTuple):
    """A table with hidden cells."""

    columns: Columns
    encoded: Numbers
    """As the library sees it, with NaN for what is hidden or missing."""
    encoded_truth: Numbers
    parts: list[Part]
    matrix: Numbers
    """As the peers see it, the same."""
    truth: Numbers
    cells: Numbers
    """(rows, columns): what was hidden and is scored."""

    @property
    def entries(self) -> Numbers:
        """(rows, entries of the matrix) of cells that are scored."""
        found: Numbers = np.repeat(self.cells, [part.entries.stop - part.entries.start for part in self.parts], 1)
        return found

    def as_matrix(self, encoded: Numbers) -> Numbers:
        """Rows as the library gives them (…, width) in the order and units of the peers."""
        found, at = [], 0
        for column, part in zip(self.columns.columns, self.parts, strict=True):
            block = encoded[..., at : at + column.width]
            if column.kind == "ordinal":
                block = block @ np.arange(column.width)[:, None]
            mean, sd = self.units[part.name]
            found.append((block - mean) / sd)
            at += column.width
        return np.concatenate(found, -1)

    @property
    def units(self) -> dict[str, tuple[float, float]]:
        """Mean and standard deviation of each number in the library's units; 0 and 1 of what is none."""
        found, at = {}, 0
        for column, part in zip(self.columns.columns, self.parts, strict=True):
            block = self.encoded_truth[:, at : at + column.width]
            if column.kind == "ordinal":
                block = block @ np.arange(column.width)[:, None]
            found[part.name] = (float(np.nanmean(block)), float(np.nanstd(block))) if part.number else (0.0, 1.0)
            at += column.width
        return found

    @property
    def log_units(self) -> Numbers:
        """(columns,) what a density of a real column in the library's units lacks of one in standard deviations."""
        real = [column.kind in ("real", "integer") for column in self.columns.columns]
        return np.array([np.log(self.units[p.name][1]) if r else 0.0 for p, r in zip(self.parts, real, strict=True)])


def hide(frame: pd.DataFrame, mechanism: str, seed: int) -> Hidden:
    """Hide cells: a share of all, or some of two thirds of the columns by what the other third says."""
    columns = guess(sheet_of({name: frame[name] for name in frame.columns})).columns
    encoded = columns.encode({name: frame[name] for name in frame.columns})
    rng = np.random.default_rng([seed, len(frame)])
    n = len(columns.columns)
    there = np.stack([~np.isnan(encoded[:, columns.sources == at]).any(1) for at in range(n)], 1)
    if mechanism.startswith("mcar"):
        cells = rng.random(there.shape) < int(mechanism.split()[1]) / 100
    else:
        drivers = rng.permutation(n)[: max(1, n // 3)]
        seen = np.nan_to_num(encoded[:, np.isin(columns.sources, drivers)])
        score = ((seen - seen.mean(0)) / (seen.std(0) + 1e-9)) @ rng.normal(size=seen.shape[1])
        cells = rng.random(there.shape) < expit(2 * score / score.std() - 0.7)[:, None]
        cells[:, drivers] = False
    cells &= there
    full = cells.all(1)  # a row keeps one cell at least
    cells[full, rng.integers(0, n, full.sum())] = False
    parts, at = [], 0
    for column in columns.columns:
        number = column.kind in ("real", "integer", "ordinal")
        width = 1 if column.kind == "ordinal" else column.width
        parts.append(Part(column.name, number, slice(at, at + width)))
        at += width
    blank = encoded.copy()
    blank[np.repeat(cells, [column.width for column in columns.columns], 1)] = np.nan
    found = Hidden(columns, blank, encoded, parts, blank, encoded, cells)
    return found._replace(matrix=found.as_matrix(blank), truth=found.as_matrix(encoded))


# Methods


class Answer(NamedTuple):
    """What a method says of the cells that are missing, in the matrix of the peers."""

    mean: Numbers
    sd: Numbers | None = None
    """Of numbers, where what is said of each is a normal."""
    draws: Numbers | None = None
    """(copies, rows, entries)"""
    log_prob: Numbers | None = None
    """log p(hidden cells | observed cells) of each row; numbers in units of their standard deviation."""
    told: str = ""
    """What the method says of itself."""


def mean_or_mode(hidden: Hidden, seed: int) -> Answer:
    """Independent columns: a normal for each real one, frequencies for the others."""
    mean = np.broadcast_to(np.nanmean(hidden.matrix, 0), hidden.matrix.shape)
    sd = np.broadcast_to(np.nanstd(hidden.matrix, 0), mean.shape)
    return Answer(mean, sd, log_prob=_alone(hidden).sum(1))


def _alone(hidden: Hidden, reals: bool = True) -> Numbers:
    """(rows, columns) log p of the cells that are hidden, each column by itself; real ones can be left out."""
    found, at = np.zeros(hidden.cells.shape), 0
    for place, (column, part) in enumerate(zip(hidden.columns.columns, hidden.parts, strict=True)):
        block = slice(at, at + column.width)
        at += column.width
        if column.kind in ("real", "integer"):
            seen, true = hidden.matrix[:, part.entries], hidden.truth[:, part.entries]
            scaled = (true - np.nanmean(seen)) / np.nanstd(seen)
            log_p = -(scaled[:, 0] ** 2) / 2 - np.log(np.nanstd(seen)) - np.log(2 * np.pi) / 2
            found[:, place] = log_p if reals else 0
            continue
        seen, true = hidden.encoded[:, block], hidden.encoded_truth[:, block]
        n = (~np.isnan(seen[:, 0])).sum()
        if column.width == 1:
            p = (np.nansum(seen) + 0.5) / (n + 1)
            found[:, place] = np.log(np.where(true[:, 0] == 1, p, 1 - p))
        else:
            share = (np.nansum(seen, 0) + 0.5) / (n + column.width / 2)
            found[:, place] = np.nan_to_num(true) @ np.log(share)
    return np.where(hidden.cells, found, 0)


def neighbours(hidden: Hidden, seed: int) -> Answer:
    return Answer(KNNImputer(n_neighbors=10, weights="distance").fit_transform(hidden.matrix))


def ridge(hidden: Hidden, seed: int) -> Answer:
    """Chained Bayesian ridges and logistic regressions; draws of numbers are by scikit-learn's IterativeImputer."""
    copies = []
    for copy in range(COPIES):
        chain = IterativeImputer(sample_posterior=True, random_state=1000 * seed + copy, max_iter=5)
        copies.append(_quietly(chain, hidden.matrix))
    point = _chained(hidden, BayesianRidge, lambda: LogisticRegression(max_iter=300), 10)
    return Answer(point.mean, draws=np.stack(copies))


def trees(hidden: Hidden, seed: int) -> Answer:
    how = {"n_estimators": 30, "bootstrap": True, "oob_score": True, "random_state": seed}
    return _chained(hidden, lambda: ExtraTreesRegressor(**how), lambda: ExtraTreesClassifier(**how), 5)


def forest(hidden: Hidden, seed: int) -> Answer:
    """Like missForest: chained random forests; the spread of a number is that of the rows out of bag."""
    how = {"n_estimators": 50, "max_features": "sqrt", "oob_score": True, "random_state": seed}
    return _chained(hidden, lambda: RandomForestRegressor(**how), lambda: RandomForestClassifier(**how), 5)


def _chained(hidden: Hidden, regressor: Callable[[], Any], classifier: Callable[[], Any], rounds: int) -> Answer:
    """Each column in turn given all others, those with fewer missing cells first; the mean of the last two rounds."""
    filled = np.where(np.isnan(hidden.matrix), np.nanmean(hidden.matrix, 0), hidden.matrix)
    missing = np.stack([np.isnan(hidden.matrix[:, part.entries]).any(1) for part in hidden.parts], 1)
    sd, rounded = np.zeros_like(filled), []
    for _ in range(rounds):
        for at in np.argsort(missing.sum(0), kind="stable"):
            part, rows = hidden.parts[at], missing[:, at]
            if not rows.any():
                continue
            others = np.delete(filled, np.arange(part.entries.start, part.entries.stop), 1)
            block = hidden.matrix[~rows, part.entries]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if part.number:
                    fitted = regressor().fit(others[~rows], block[:, 0])
                    filled[rows, part.entries.start] = fitted.predict(others[rows])
                    if hasattr(fitted, "oob_prediction_"):
                        sd[:, part.entries] = np.sqrt(np.nanmean((block[:, 0] - fitted.oob_prediction_) ** 2))
                    continue
                codes = block.argmax(1) if block.shape[1] > 1 else block[:, 0].astype(int)
                if len(set(codes)) > 1:
                    fitted = classifier().fit(others[~rows], codes)
                    chances = fitted.predict_proba(others[rows])
                    levels = np.zeros((rows.sum(), max(2, block.shape[1])))
                    levels[:, fitted.classes_] = chances
                    filled[rows, part.entries] = levels if block.shape[1] > 1 else levels[:, 1:]
        rounded.append(filled.copy())
    return Answer(np.mean(rounded[-2:], 0), sd if sd.any() else None)


def _quietly(imputer: Any, matrix: Numbers) -> Numbers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Numbers = imputer.fit_transform(matrix)
    return found


def em(hidden: Hidden, seed: int) -> Answer:
    """A multivariate normal by EM: means and spreads by one of all entries, log p by one of the real columns alone."""
    rows = torch.as_tensor(hidden.matrix, dtype=torch.float64)
    gaussian = gaussian_by_em(rows)
    mean, sd = np.array(hidden.matrix), np.zeros(hidden.matrix.shape)
    for at in range(len(rows)):
        known = _conditioned(gaussian, rows[at : at + 1])
        mean[at], sd[at] = known.completed[0], known.spread.diagonal().clamp(min=0).sqrt()
    real = [c.kind in ("real", "integer") for c in hidden.columns.columns]
    log_prob = _alone(hidden, reals=False).sum(1)
    if any(real):
        wanted = [part.entries.start for part, is_real in zip(hidden.parts, real, strict=True) if is_real]
        at = np.array(wanted)
        seen, whole = hidden.matrix[:, at], hidden.truth[:, at].copy()
        whole[~hidden.entries[:, at] & np.isnan(seen)] = np.nan
        alone = gaussian if len(at) == rows.shape[1] else gaussian_by_em(torch.as_tensor(seen))
        both = [alone.log_prob(torch.as_tensor(each)).numpy() for each in (whole, seen)]
        log_prob = log_prob + both[0] - both[1]
    return Answer(mean, sd, log_prob=log_prob)


PEERS: dict[str, Callable[[Hidden, int], Answer]] = {
    "mean or mode": mean_or_mode,
    "10 neighbours": neighbours,
    "chained ridge": ridge,
    "chained trees": trees,
    "chained forests": forest,
    "normal by EM": em,
}


# Measures


def measures(hidden: Hidden, answer: Answer) -> dict[str, float]:  # noqa: C901
    """Means over columns and cells that were hidden; what a method does not say is left out.

    error: mean over columns of RMSE / standard deviation, or error rate / error rate of the commonest level.
    nrmse, wrong: over the cells of numbers, and of bits and categories.
    cover, width: of 90 % intervals of real columns. crps: of the same. log_prob: for each hidden cell.
    """
    relative, squares, wrong, cover, width, crps = [], [], [], [], [], []
    for place, (column, part) in enumerate(zip(hidden.columns.columns, hidden.parts, strict=True)):
        rows = hidden.cells[:, place]
        if not rows.any():
            continue
        said, true = answer.mean[rows, part.entries], hidden.truth[rows, part.entries]
        if part.number:
            error = (said - true)[:, 0] ** 2
            squares.append(error)
            relative.append(np.sqrt(error.mean()))
        else:
            everything = hidden.truth[:, part.entries]
            share = np.nanmean(everything, 0)
            if part.entries.stop - part.entries.start == 1:
                off, usual = (said > 0.5)[:, 0] != (true == 1)[:, 0], min(share[0], 1 - share[0])
            else:
                off, usual = said.argmax(1) != true.argmax(1), 1 - share.max()
            wrong.append(off)
            relative.append(off.mean() / usual)
        if column.kind in ("real", "integer") and (answer.sd is not None or answer.draws is not None):
            found = _spread(answer, rows, part.entries.start, true[:, 0])
            for store, each in zip((cover, width, crps), found, strict=True):
                store.append(each)
    found = {"error": float(np.mean(relative))}
    if squares:
        found["nrmse"] = float(np.sqrt(np.concatenate(squares).mean()))
    if wrong:
        found["wrong"] = float(np.concatenate(wrong).mean())
    if crps:
        names = ("cover", "width", "crps")
        found |= {n: float(np.concatenate(s).mean()) for n, s in zip(names, (cover, width, crps), strict=True)}
    if answer.log_prob is not None:
        found["log_prob"] = float(answer.log_prob.sum() / hidden.cells.sum())
    return found


def _spread(answer: Answer, rows: Numbers, at: int, true: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Of each cell: whether a 90 % interval covers it, how wide that is, and the CRPS."""
    if answer.draws is None:
        from scipy.stats import norm

        assert answer.sd is not None
        sd = np.maximum(answer.sd[rows, at], 1e-9)
        z = (true - answer.mean[rows, at]) / sd
        crps = sd * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
        return np.abs(z) < 1.6449, 2 * 1.6449 * sd, crps
    drawn = np.sort(answer.draws[:, rows, at], 0)
    m = len(drawn)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0, method="weibull")  # as of further draws, not of these
    ranks = (2 * np.arange(1, m + 1) - m - 1)[:, None]
    between = 2 * (ranks * drawn).sum(0) / (m * (m - 1))  # mean distance of two draws
    return (low <= true) & (true <= high), high - low, np.abs(drawn - true).mean(0) - between / 2
