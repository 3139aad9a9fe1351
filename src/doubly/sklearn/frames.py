"""Tables as scikit-learn's users have them: arrays of numbers, and frames or arrays with texts, categories, booleans.

`Columns by name` is the common form of the latter: a dictionary of arrays. What comes back is of the kind that came.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data
from torch import Tensor

from doubly.core.errors import UserError
from doubly.data import Columns, Kinds, guess
from doubly.data.columns import number, sheet_of

FARTHEST = 1e15  # standard deviations from the mean: beyond, squares would leave single precision


class Framed(BaseEstimator):
    """What both estimators do with tables: read them, check them by scikit-learn's rules, and give them back."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    @property
    def _wants_pandas(self) -> bool:
        wish = getattr(self, "_sklearn_output_config", {}).get("transform") or get_config()["transform_output"]
        return bool(wish == "pandas")

    def _framed(self, rows: np.ndarray, like: Any = None) -> Any:
        """As a pandas frame with the table's columns, where `set_output` asks for one."""
        if not self._wants_pandas:
            return rows
        import pandas

        return pandas.DataFrame(rows, columns=self._names(rows.shape[1]), index=getattr(like, "index", None))

    def _names(self, width: int) -> list[str]:
        return [str(name) for name in getattr(self, "feature_names_in_", [f"x{i}" for i in range(width)])]

    def _numbers(self, X: Any, reset: bool, **how: Any) -> np.ndarray:
        """An array of numbers by scikit-learn's checks, which let dates through."""
        try:
            X = validate_data(self, X, dtype="numeric", reset=reset, **how)
        except np.exceptions.DTypePromotionError as error:
            raise UserError("the table has dates among its numbers: leave them out or convert them") from error
        if X.dtype.kind not in "biuf":
            raise UserError(f"the table holds values of type {X.dtype}: expected real numbers; convert it first")
        found: np.ndarray = X
        return found

    def _columns(self, X: Any, reset: bool, least: int = 1) -> dict[str, Any]:
        """Columns by name: of a frame its own, of an array with texts numbered ones."""
        if not hasattr(X, "columns"):
            X = _object_array(X)
        _check_feature_names(self, X, reset=reset)
        _check_n_features(self, X, reset=reset)
        if len(X) < least:
            raise UserError(f"found {len(X)} rows while a minimum of {least} is required")
        if hasattr(X, "columns"):
            return {str(name): X.iloc[:, i] for i, name in enumerate(X.columns)}
        return {name: _typed(X[:, i]) for i, name in enumerate(self._names(X.shape[1]))}

    def _as_it_came(self, X: Any, table: dict[str, Any], kinds: Kinds, at: np.ndarray, values: dict[str, Any]) -> Any:
        """The table as it was, with these values of the rows `at` where cells were missing."""
        import pandas

        frame = X.copy() if hasattr(X, "columns") else pandas.DataFrame(table)
        constants = {each.name: each.value for each in kinds.left_out if each.value}
        for place, name in enumerate(table):
            column, missing = frame.iloc[:, place], pandas.isna(frame.iloc[:, place]).to_numpy()
            if name in constants and missing.any():
                value = constants[name]
                column = column.where(~missing, float(value) if column.dtype.kind in "iuf" else value)
            elif name in values and missing[at].any():
                new = [value for value, wanted in zip(values[name], missing[at], strict=True) if wanted]
                column = column.copy()
                column.iloc[at[missing[at]]] = _like(column, new)
            frame.isetitem(place, column)
        return frame if self._wants_pandas else frame.to_numpy()

    def _table_of(self, values: dict[str, list[Any]], kinds: Kinds, like: Any = None) -> Any:
        """A new table of these values: constant columns as they were, None in others that were left out."""
        import pandas

        rows = len(next(iter(values.values())))
        constants = {each.name: each.value for each in kinds.left_out}
        names = self._names(self.n_features_in_)
        table = {name: values.get(name, [constants.get(name) or None] * rows) for name in names}
        frame = pandas.DataFrame(table, index=getattr(like, "index", None), columns=names)
        return frame if self._wants_pandas else frame.to_numpy(dtype=object)


class TableUnits(NamedTuple):
    """How columns of several kinds become rows of the model, with the moments of its entries."""

    columns: Columns
    mean: np.ndarray
    spread: np.ndarray

    @property
    def log_scale(self) -> np.ndarray:
        return self.columns.log_scale

    def encode(self, table: Any) -> np.ndarray:
        """Rows as the model sees them; levels that were never seen are missing."""
        return encoded(self.columns, table, {}).numpy()

    def decode(self, rows: Any) -> dict[str, list[Any]]:
        """Columns by name."""
        return self.columns.decode(rows)

    def two_rows(self) -> Tensor:
        """In place of the training rows, which are not kept: two with their mean and spread."""
        return torch.as_tensor(np.stack([self.mean - self.spread, self.mean + self.spread]))


def table_units(kinds: Kinds, table: dict[str, Any]) -> TableUnits:
    """The units of a table whose columns were taken for these kinds."""
    rows = kinds.columns.encode(table)
    return TableUnits(kinds.columns, np.nanmean(rows, 0), np.nanstd(rows, 0))


def is_mixed(X: Any) -> bool:
    """Whether a table has other columns than numbers: texts, categories, booleans among others."""
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        kinds = [kind.kind if isinstance(kind, np.dtype) else "O" for kind in X.dtypes]
        return any(kind not in "biufMmc" for kind in kinds) or ("b" in kinds and set(kinds) != {"b"})
    if getattr(X, "dtype", None) is not None and X.dtype.kind not in "OUT":
        return False
    if hasattr(X, "tocsr") or not (isinstance(X, np.ndarray | list | tuple)):
        return False
    rows = _object_array(X)
    return rows.ndim == 2 and any(isinstance(cell, str) for cell in rows.ravel())


def guessed(table: dict[str, Any]) -> Kinds:
    """What the columns are; a column without any value is refused."""
    kinds = guess(sheet_of(table))
    empty = [each.name for each in kinds.left_out if not each.value and "no value" in each.why]
    if empty:
        raise UserError(f"column {empty[0]} has no value in any row: leave it out")
    return kinds


def encoded(columns: Columns, table: dict[str, Any], new_levels: dict[str, int] | None = None) -> Tensor:
    """Rows as the model sees them, none farther than squares can be taken of."""
    rows = columns.encode(table, new_levels)
    return torch.as_tensor(rows.clip(-FARTHEST, FARTHEST).astype(np.float32))


def _object_array(X: Any) -> np.ndarray:
    try:
        return np.asarray(X, dtype=object)
    except ValueError as error:
        raise UserError(f"expected rows of equal length ({error})") from None


def _typed(values: np.ndarray) -> np.ndarray:
    """A column of an array that also has texts: numbers where all its cells are, however they are written."""
    numbers = [None if value is None else number(value) if isinstance(value, str) else value for value in values]
    if any(read is None and value is not None for read, value in zip(numbers, values, strict=True)):
        return values
    return np.array([np.nan if value is None else value for value in numbers], dtype=object)


def _like(column: Any, values: list[Any]) -> list[Any]:
    """Values as a column has them: booleans come back as booleans, not as words."""
    kinds = {type(value) for value in column.dropna().tolist()[:100]}
    if kinds == {bool}:
        return [value == "True" if isinstance(value, str) else bool(value) for value in values]
    return values
