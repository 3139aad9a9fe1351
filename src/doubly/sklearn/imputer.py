"""DeepImputer: missing values of a table completed by the best of several models, as a scikit-learn transformer."""

from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from doubly.analysis.tables import complete
from doubly.core.errors import UserError
from doubly.runs.fit import use_threads
from doubly.runs.learn import LEAST_ROWS, learn
from doubly.runs.progress import Progress
from doubly.sklearn.frames import Framed, encoded, guessed, is_mixed


class DeepImputer(OneToOneFeatureMixin, TransformerMixin, Framed):
    """Missing values of a table completed by the best of several generative models, as a scikit-learn transformer.

    Columns may be numbers, or in a DataFrame texts, categories and booleans: their kinds are guessed as `doubly fill`
    does. Values that are there are never changed. What is missing becomes its expectation; of a category its likeliest
    level, of whole numbers of few values the one in the middle.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 1)) + 0.1 * rng.normal(size=(60, 3))
    >>> X[0, 0] = np.nan
    >>> completed = DeepImputer(epochs=4, random_state=0).fit_transform(X)
    >>> bool(np.isnan(completed).any()), completed.shape
    (False, (60, 3))

    Parameters
    ----------
    minutes : float
        Time to learn, at most.
    epochs : "auto" or int
        Epochs of each candidate, at most; "auto" lets the time and the size of the table decide.
    random_state : int, RandomState or None
    verbose : bool
        Show on standard error how the candidates compare.

    Attributes
    ----------
    kinds_ : doubly.data.Kinds
        What each column was taken for, and which were left out: these come back as they are.
    chosen_ : str
        The candidate or base line that answers.
    scores_ : dict
        Mean log-likelihood of held-out rows, in scaled units, of every candidate and base line.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "minutes": [Interval(Real, 0, None, closed="neither")],
        "epochs": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        minutes: float = 0.75,
        *,
        epochs: str | int = "auto",
        random_state: Any = None,
        verbose: bool | int = False,
    ):
        self.minutes = minutes
        self.epochs = epochs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the density of the rows of X, of what is there; y is not looked at."""
        self._validate_params()
        table = self._table(X, reset=True)
        self.kinds_ = guessed(table)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with use_threads(1), Progress(quiet=not self.verbose) as progress:
            self._learnt = learn(
                self.kinds_.columns, encoded(self.kinds_.columns, table), minutes=self.minutes, seed=self._seed,
                epochs=0 if isinstance(self.epochs, str) else self.epochs, tell=progress.say,
            )  # fmt: skip
        self.chosen_, self.scores_ = self._learnt.name, self._learnt.scores
        return self

    def transform(self, X: Any) -> Any:
        """X with every missing value replaced."""
        return self._completed(X, 0)[0]

    def draws(self, X: Any, copies: int = 5) -> list[Any]:
        """Several copies of X whose missing values are drawn: for multiple imputation, with `doubly.pool`."""
        if copies < 1:
            raise UserError(f"the number of copies must be at least 1, got {copies}")
        return self._completed(X, copies)[1:]

    def _completed(self, X: Any, copies: int) -> list[Any]:
        check_is_fitted(self)
        table, columns = self._table(X, reset=False), self.kinds_.columns
        rows = encoded(columns, table, {})
        at = np.flatnonzero(rows.isnan().any(1).numpy())
        decoded: list[dict[str, list[Any]]] = [{}] * (copies + 1)
        if len(at):
            with use_threads(1):
                found = complete(self._learnt, rows[torch.as_tensor(at)], max(copies, 1), self._seed)
            decoded = [columns.decode(each) for each in (found.expected, *found.copies[:copies])]
        return [self._as_it_came(X, table, self.kinds_, at, values) for values in decoded]

    def _table(self, X: Any, reset: bool) -> dict[str, Any]:
        least = LEAST_ROWS if reset else 1
        if is_mixed(X):
            return self._columns(X, reset, least)
        rows = self._numbers(X, reset, ensure_all_finite="allow-nan", ensure_min_samples=least).astype(np.float64)
        return {name: rows[:, i] for i, name in enumerate(self._names(rows.shape[1]))}
