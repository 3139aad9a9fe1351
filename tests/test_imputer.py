"""DeepImputer: scikit-learn's checks, and tables of every kind of column."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from doubly import DeepImputer, UserError

TINY = DeepImputer(minutes=60, epochs=1, random_state=0)


@parametrize_with_checks([TINY])
def test_what_scikit_learn_asks_of_a_transformer(estimator, check):
    check(estimator)


def frame(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    z = rng.normal(size=n)
    found = pd.DataFrame({
        "x": (100 + 10 * z).round(1), "grade": rng.integers(1, 4, n), "up": z > 0,
        "kind": pd.Categorical(np.where(z > 0, "a", "b")), "text": np.where(rng.random(n) < 0.5, "p", "q"), "one": 3.0,
    })  # fmt: skip
    found["grade"] = found["grade"].astype("Int64")
    found["up"] = found["up"].astype(object)
    for i, name in enumerate(found):
        found.loc[found.index[i * 5 : i * 5 + 4], name] = None
    return found


def test_a_frame_of_every_kind_comes_back_complete_in_its_own_words():
    before = frame()
    imputer = DeepImputer(minutes=60, epochs=2, random_state=0).set_output(transform="pandas").fit(before)
    after = imputer.transform(before)
    assert list(after.columns) == list(before.columns)
    assert not after.isna().any().any()
    there = ~before.isna()
    for name in before:
        assert after[name][there[name]].tolist() == before[name][there[name]].tolist()
    assert set(after["kind"]) <= {"a", "b"}
    assert set(after["grade"]) <= {1, 2, 3}
    assert set(map(type, after["up"])) == {bool}
    assert (after["one"] == 3).all()
    assert after["x"].between(60, 140).all()
    assert isinstance(imputer.set_output(transform="default").transform(before), np.ndarray)


def test_draws_differ_where_cells_are_missing_and_nowhere_else():
    before = frame()
    imputer = DeepImputer(minutes=60, epochs=2, random_state=0).set_output(transform="pandas").fit(before)
    copies = imputer.draws(before, 3)
    assert len(copies) == 3
    assert len({tuple(copy["x"]) for copy in copies}) == 3
    for copy in copies:
        assert copy["x"][4:].tolist() == before["x"][4:].tolist()
    again = pickle.loads(pickle.dumps(imputer)).transform(before)
    pd.testing.assert_frame_equal(again, imputer.transform(before))


def test_in_a_pipeline():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 1)) + 0.2 * rng.normal(size=(50, 3))
    y = X[:, 0].copy()
    X[rng.random(X.shape) < 0.2] = np.nan
    model = make_pipeline(DeepImputer(minutes=60, epochs=3, random_state=0), LinearRegression()).fit(X, y)
    assert model.score(X, y) > 0.5


def test_unseen_levels_stay_and_columns_are_checked():
    before = frame()
    imputer = DeepImputer(minutes=60, epochs=1, random_state=0).set_output(transform="pandas").fit(before)
    new = before.head(8).copy()
    new["text"] = "never seen"
    new.loc[new.index[0], "text"] = None
    after = imputer.transform(new)
    assert after["text"].tolist()[1:] == ["never seen"] * 7
    assert after["text"].iloc[0] in ("p", "q")
    with pytest.raises(ValueError, match="feature"):
        imputer.transform(before.drop(columns="x"))
    empty = before.assign(x=np.nan)
    with pytest.raises(UserError, match="no value in any row"):
        DeepImputer(minutes=60, epochs=1).fit(empty)
    with pytest.raises(UserError, match="at least 1"):
        imputer.draws(before, 0)
