"""DeepGenerativeModel: scikit-learn's own checks, its place among scikit-learn's tools, densities that are right."""

import io
import itertools
import pickle
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from doubly import DeepGenerativeModel, UserError
from doubly.sklearn import chain

TINY: dict[str, Any] = {
    "hidden": (3,), "epochs": 2, "collect": 2, "batch": 100, "draws": 5, "refit": 1, "random_state": 0, "n_threads": 1,
}  # fmt: skip


def bits(n: int = 200, columns: int = 4) -> np.ndarray:
    """Rows of one value repeated, with a tenth of the bits turned over: columns that depend on each other."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 2, (n, 1)) ^ (rng.random((n, columns)) < 0.1)


def reals(n: int = 200, columns: int = 3) -> np.ndarray:
    """A common factor and noise, in columns of very different means and scales."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 1)) + 0.5 * rng.normal(size=(n, columns))
    return rows * 10.0 ** np.arange(-2, columns - 2) + np.arange(columns) * 100


TABLES = {"binary": bits(), "real": reals()}


@parametrize_with_checks([DeepGenerativeModel(**TINY), DeepGenerativeModel(**TINY | {"of": "ensemble"})])
def test_what_scikit_learn_asks_of_an_estimator(estimator, check):
    check(estimator)


# The densities are densities


@pytest.mark.parametrize("of", ["mean", "ensemble"])
@pytest.mark.parametrize(("hidden", "layer"), [((2,), "auto"), ((2, 2), "nade,sbn,sbn"), ((), "nade")])
def test_probabilities_of_all_rows_sum_to_one(hidden, layer, of):
    """Over all 16 rows. exp of the score is an unbiased estimate, so the sum is 1 but for the noise of the draws.

    Each row's is p / sqrt(ESS) with an effective size of a hundred or more of 2000 draws; independent between rows,
    the sum's is at most 0.1 sqrt(sum p^2) <= 0.1 where one row has it all, and 0.03 with p spread over ten rows.
    """
    model = DeepGenerativeModel(hidden, layer, epochs=10, draws=2000, of=of, keep=2, random_state=0, n_threads=1)
    model.fit(bits())
    every = np.array(list(itertools.product([0, 1], repeat=4)))
    assert np.exp(model.score_samples(every)).sum() == pytest.approx(1, abs=0.1 if hidden else 1e-5)


def test_a_real_density_integrates_to_one_in_the_units_of_the_table():
    """By the trapezium rule over 12 standard deviations either way, on a column of scale 0.01: without the Jacobian it
    would be 0.01. Scores are unbiased and each point has its own draws, so that their noise averages out."""
    X = reals()[:, :1]
    model = DeepGenerativeModel((2,), epochs=20, draws=200, random_state=0, n_threads=1).fit(X)
    grid = np.linspace(X.mean() - 12 * X.std(), X.mean() + 12 * X.std(), 2001)
    assert np.trapezoid(np.exp(model.score_samples(grid[:, None])), grid) == pytest.approx(1, abs=0.02)


def test_scores_move_with_the_units_of_the_table():
    """p(ax + b) = p(x) / |a|, and standardised, both tables are the same but for rounding to single precision."""
    X, factor = reals(), 8.0  # a power of two, which rounds nothing
    one = DeepGenerativeModel(**TINY).fit(X).score_samples(X)
    other = DeepGenerativeModel(**TINY).fit(factor * X).score_samples(factor * X)
    np.testing.assert_allclose(other, one - X.shape[1] * np.log(factor), atol=1e-3)


@pytest.mark.parametrize("X", TABLES.values(), ids=TABLES)
def test_samples_have_the_table_s_mean(X):
    """10,000 samples and 200 rows; five standard errors of the latter, and as much again for what is not yet learnt."""
    model = DeepGenerativeModel(random_state=0, n_threads=1, collect=10, patience=5, epochs=60).fit(X)
    drawn = model.sample(10_000, random_state=0)
    assert drawn.shape == (10_000, X.shape[1])
    assert drawn.dtype == (np.uint8 if model.kind_ == "binary" else np.float64)
    bound = 10 * X.std(0) / np.sqrt(len(X))
    assert (abs(drawn.mean(0) - X.mean(0)) < bound).all()
    np.testing.assert_array_equal(model.sample(5, random_state=1), model.sample(5, random_state=1))
    assert (model.sample(50, random_state=1) != model.sample(50, random_state=2)).any()


def test_the_defaults_beat_independent_columns_of_bits():
    """On digits: by 5.5 nats a row when written, with a standard error of 0.2."""
    train, test = train_test_split((load_digits().data > 7).astype(int), test_size=0.25, random_state=0)
    p = (train.sum(0) + 1) / (len(train) + 2)
    independent = np.where(test == 1, np.log(p), np.log1p(-p)).sum(1).mean()
    model = DeepGenerativeModel(random_state=0, n_threads=1, patience=5, collect=5).fit(train)
    assert model.score(test) > independent + 4


def test_the_defaults_beat_independent_columns_of_real_numbers():
    """On breast cancer: by more than 35 nats a row when written, with a standard error of 2."""
    train, test = train_test_split(load_breast_cancer().data, test_size=0.25, random_state=0)
    z = (test - train.mean(0)) / train.std(0)
    independent = -(z**2 / 2 + np.log(train.std(0) * np.sqrt(2 * np.pi))).sum(1).mean()
    model = DeepGenerativeModel(random_state=0, n_threads=1, patience=5, collect=10).fit(train)
    assert model.score(test) > independent + 25


def ensemble_of_strangers() -> DeepGenerativeModel:
    """A fitted model whose two samples are replaced by weights that have nothing in common, so that shares differ."""
    settings = TINY | {"of": "ensemble", "keep": 2, "epochs": 4, "draws": 4000}
    model = DeepGenerativeModel(**settings).fit(bits())
    model.samples_ = np.random.default_rng(0).normal(0, 1.5, model.samples_.shape).astype(np.float32)
    return model


def enumerated(model: DeepGenerativeModel) -> tuple[np.ndarray, np.ndarray]:
    """log p(x | theta_m) of all 16 rows (2, 16), and E[z | x, theta_m] (2, 16, 3)."""
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
    z = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    joint = torch.stack([
        pair.model.log_prob(pair.theta, (every[:, None], z.expand(16, 8, 3))) for pair in model._pairs()
    ])  # fmt: skip
    return joint.logsumexp(2).numpy(), (joint.softmax(2) @ z).numpy()


@pytest.mark.parametrize("estimate", ["draws", "annealing"])
def test_an_ensemble_scores_and_encodes_by_all_its_members(estimate):
    """log 1/2 sum_m p(x | theta_m), and E[z | x] by the shares of p(x | theta_m); not of the first, and not by halves.

    4,000 draws of a proposal fitted to other weights are worth some tens at least: an error of 0.2 in a log density at
    most, as is that of 8 chains of 50 temperatures; a code is then off by a quarter of that and by its own 0.05.
    """
    model = ensemble_of_strangers()
    model.estimate_ = estimate
    every = np.array(list(itertools.product([0, 1], repeat=4)))
    bounds, codes = enumerated(model)
    expected = np.logaddexp(*bounds) - np.log(2)
    np.testing.assert_allclose(model.score_samples(every), expected, atol=0.2)
    np.testing.assert_allclose(model._reader.glance(torch.as_tensor(every).float()), expected, atol=0.2)
    share = np.exp(bounds - np.logaddexp(*bounds))
    np.testing.assert_allclose(model.transform(every), (share[..., None] * codes).sum(0), atol=0.1)
    assert abs(bounds[0] - expected).max() > 0.5
    assert abs(codes.mean(0) - (share[..., None] * codes).sum(0)).max() > 0.2


def test_an_ensemble_imputes_and_samples_by_all_its_members():
    """What is missing by the shares p(x_observed | theta_m), new rows of each member alike.

    Shares are off by 0.05 at most, a quarter of what a log density is, and the chance of a bit by as much of what the
    members differ by; 1,000 completions have a standard error of 0.0145, 8,000 rows one of 0.0056: four of these.
    """
    model = ensemble_of_strangers()
    every = np.array(list(itertools.product([0, 1], repeat=4)))
    density = np.exp(enumerated(model)[0])
    drawn = model.sample(8000, random_state=0)
    np.testing.assert_allclose(drawn.mean(0), (density @ every).mean(0), atol=4 * 0.0056)
    assert abs((density @ every) - (density @ every).mean(0)).max() > 0.1
    fits = (every[:, 1:] == 0).all(1)
    joint = density[:, fits]  # of what is missing, (2 members, 2 values)
    chance = joint.sum(0)[1] / joint.sum()
    each = joint[:, 1] / joint.sum(1)
    allowed = 0.05 * abs(each[1] - each[0]) + 4 * 0.0145
    copies = model.impute(np.array([[np.nan, 0, 0, 0]]), draws=1000, return_draws=True)
    assert abs(np.mean([copy[0, 0] for copy in copies]) - chance) < allowed
    assert min(abs(each.mean() - chance), *abs(each - chance)) > 1.4 * allowed, "or the test sees nothing"


def test_draws_that_miss_much_are_replaced_by_annealing():
    """A proposal that is certain of the wrong units: draws miss more than half a nat of the rows, annealing none."""
    model = DeepGenerativeModel(**TINY | {"epochs": 10}).fit(bits())
    assert model.estimate_ == "draws", "five draws do for three units that say little"
    rows = torch.as_tensor(bits()).float()
    model.proposals_ = np.full_like(model.proposals_, 4.0)
    assert model._choose(rows) == "annealing"
    some = bits()[:20]
    by_draws = model.score(some)
    model.estimate_ = "annealing"
    annealed = model.score_samples(some)
    assert annealed.mean() > by_draws + 0.5
    np.testing.assert_array_equal(annealed[::-7], model.score_samples(some[::-7]))
    ordered = DeepGenerativeModel(**TINY | {"layer": "nade,sbn"}).fit(bits())
    assert ordered.estimate_ == "draws"


def test_the_posterior_of_an_ensemble_has_the_proposals_of_its_members():
    model = ensemble_of_strangers()
    posterior: Any = model.posterior_
    fitted = list(posterior._refitted(posterior._pairs("ensemble")))
    for pair, own in zip(fitted, model._pairs(), strict=True):
        assert torch.equal(pair.theta, own.theta)
        assert torch.equal(pair.phi, own.phi)


# Codes


@pytest.mark.parametrize("X", TABLES.values(), ids=TABLES)
def test_codes_there_and_back_are_nearer_than_the_mean(X):
    """One factor explains most of both tables, so that what comes back leaves less over than the columns' means do."""
    model = DeepGenerativeModel(random_state=0, n_threads=1, epochs=100, collect=10, patience=10).fit(X)
    back = model.inverse_transform(model.transform(X))
    assert back.shape == X.shape
    left = ((X - back) ** 2).mean(0) / X.var(0)
    assert (left < 0.8).all()


def test_codes_of_all_layers_stand_beside_each_other():
    X = bits()
    model = DeepGenerativeModel(**TINY | {"hidden": (4, 2)}).fit(X)
    codes = model.transform(X)
    assert codes.shape == (200, 6)
    np.testing.assert_array_equal(model.inverse_transform(codes), model.inverse_transform(codes[:, :4]))
    for wrong in (codes[:, :3], codes[0], codes * np.nan):
        with pytest.raises(ValueError, match="in 4 columns, or 6"):
            model.inverse_transform(wrong)


def test_means_of_an_autoregressive_layer_are_those_of_its_draws():
    """E[x | z] by 4000 draws in two ways: each has a standard error of at most 0.5 / sqrt(4000) = 0.008."""
    model = DeepGenerativeModel(**TINY | {"layer": "nade,sbn", "draws": 4000}).fit(bits())
    code = np.array([[1.0, 0.0, 1.0]])
    twice = np.concatenate([code, code])
    first, second = model.inverse_transform(twice)
    np.testing.assert_allclose(first, second, atol=5 * 0.008 * np.sqrt(2))
    with pytest.raises(ValueError, match="no codes"):
        DeepGenerativeModel(**TINY | {"hidden": (), "layer": "nade"}).fit(bits()).transform(bits())


# Among scikit-learn's tools


@pytest.mark.parametrize("of", ["mean", "ensemble"])
@pytest.mark.parametrize("X", TABLES.values(), ids=TABLES)
def test_a_pickle_and_a_clone_give_the_same_bits(X, of):
    model = DeepGenerativeModel(**TINY | {"of": of}).fit(X)
    scores, codes = model.score_samples(X), model.transform(X)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    for other in (pickle.loads(pickle.dumps(model)), joblib.load(file), clone(model).fit(X)):
        np.testing.assert_array_equal(other.score_samples(X), scores)
        np.testing.assert_array_equal(other.transform(X), codes)
        np.testing.assert_array_equal(other.sample(3, random_state=0), model.sample(3, random_state=0))


def test_a_row_is_scored_the_same_in_any_company():
    X = TABLES["real"]
    model = DeepGenerativeModel(**TINY).fit(X)
    np.testing.assert_array_equal(model.score_samples(X)[::-7], model.score_samples(X[::-7]))


def test_grid_search_chooses_the_model_that_scores_best():
    search = GridSearchCV(DeepGenerativeModel(**TINY | {"epochs": 5}), {"hidden": [(1,), (4,)]}, cv=2).fit(bits())
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert search.best_params_["hidden"] == [(1,), (4,)][scores.argmax()]
    assert search.score(bits()) == search.best_estimator_.score(bits())


def test_pipelines_hand_on_bits_and_codes():
    X = load_digits().data[:200]
    pipeline = make_pipeline(Binarizer(threshold=7), DeepGenerativeModel(**TINY), StandardScaler())
    assert pipeline.fit_transform(X).shape == (200, 3)
    assert pipeline[1].kind_ == "binary"
    assert np.isfinite(make_pipeline(Binarizer(threshold=7), DeepGenerativeModel(**TINY)).fit(X).score(X))


def test_frames_come_in_and_go_out():
    X = pd.DataFrame(reals(), columns=["a", "b", "c"], index=np.arange(200) + 1000)
    model = DeepGenerativeModel(**TINY).set_output(transform="pandas").fit(X)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    codes = model.transform(X)
    assert list(codes.columns) == list(model.get_feature_names_out()) == [f"deepgenerativemodel{i}" for i in range(3)]
    back = model.inverse_transform(codes)
    assert list(back.columns) == list(model.sample(2).columns) == ["a", "b", "c"]
    assert codes.index.equals(X.index)
    assert back.index.equals(X.index)
    np.testing.assert_array_equal(
        model.score_samples(X), DeepGenerativeModel(**TINY).fit(X.values).score_samples(X.values)
    )
    with pytest.raises(ValueError, match="feature names"):
        model.score_samples(X.rename(columns={"a": "z"}))


# Tables at the edges


def test_constant_real_columns_stay_out_of_the_model_and_come_back():
    X = reals()
    wide = np.insert(X, 1, 7.0, axis=1)
    model, narrow = DeepGenerativeModel(**TINY).fit(wide), DeepGenerativeModel(**TINY).fit(X)
    np.testing.assert_array_equal(model.score_samples(wide), narrow.score_samples(X))
    assert (model.sample(5)[:, 1] == 7.0).all()
    assert (model.inverse_transform(model.transform(wide))[:, 1] == 7.0).all()
    with pytest.raises(ValueError, match="all 2 columns are constant"):
        DeepGenerativeModel(**TINY).fit(np.full((10, 2), 3.5))


def test_constant_bits_and_hard_tables_are_learnt_from():
    """Constant, twin, rounded and far-out columns give finite scores with the steps that fit chooses."""
    rng = np.random.default_rng(0)
    hard = rng.standard_cauchy((100, 6))
    hard[:, 1] = hard[:, 0]
    hard[:, 2] = hard[:, 2].round()
    hard[:, 3] = rng.integers(0, 2, 100)
    hard[:, 4] = 1e12 + rng.normal(size=100)
    for X in (np.zeros((100, 3)), np.ones((2, 1)), hard):
        model = DeepGenerativeModel(epochs=20, random_state=0, n_threads=1).fit(X)
        assert np.isfinite(model.score_samples(X)).all()
        assert np.isfinite(model.transform(X)).all()


def test_a_step_that_diverges_is_made_smaller_only_if_it_was_ours_to_choose(monkeypatch):
    X = reals()
    with pytest.raises(ValueError, match="diverged"):
        DeepGenerativeModel(**TINY | {"step": 1e6}).fit(X)
    before = chain.run_chain

    def started_too_large(config, *rest):
        too_large = config.step > 5e-4
        return before(config if not too_large else type(config)(**vars(config) | {"step": 1e6}), *rest)

    monkeypatch.setattr(chain, "run_chain", started_too_large)
    assert DeepGenerativeModel(**TINY).fit(X).step_ == pytest.approx(0.001 / 3)


def test_what_cannot_be_learnt_is_said_so():
    with pytest.raises(NotFittedError):
        DeepGenerativeModel().sample(3)
    model = DeepGenerativeModel(**TINY).fit(bits())
    with pytest.raises(ValueError, match=r"row 0, column 2 is 0\.5: binarise"):
        model.score_samples([[0, 1, 0.5, 0]])
    with pytest.raises(ValueError, match="draws 0 or 1"):
        DeepGenerativeModel(**TINY | {"layer": "sbn"}).fit(reals())
    with pytest.raises(ValueError, match="minimum of 2"):
        DeepGenerativeModel(**TINY).fit(bits()[:1])
    for wrong in ({"hidden": 5}, {"hidden": "big"}, {"hidden": (0,)}, {"step": 0}, {"of": "best"}, {"layer": "dense"}):
        with pytest.raises(ValueError):
            DeepGenerativeModel(**TINY | wrong).fit(bits())


def test_bits_may_be_treated_as_real_numbers():
    model = DeepGenerativeModel(**TINY | {"layer": "gaussian,normal"}).fit(bits())
    assert model.kind_ == "real"
    assert model.sample(2).dtype == np.float64


def test_progress_is_shown_only_when_asked_for(capsys):
    DeepGenerativeModel(**TINY).fit(bits())
    assert capsys.readouterr() == ("", "")
    DeepGenerativeModel(**TINY, verbose=True).fit(bits())
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "epoch 2 of at most 2  valid -" in shown.err


# Missing values


@pytest.mark.parametrize("X", TABLES.values(), ids=TABLES)
def test_missing_entries_are_imputed_and_the_others_left_alone(X):
    """One factor explains most of both tables: what is imputed is nearer to the truth than the column's mean.

    Of bits, the best guess from the others (each observed with probability 0.8) is wrong with probability 0.153: an
    error of 4 x 0.153 = 0.61 in units of the mean's, and 0.12 is the standard error over 154 cells. Of reals it is
    0.29.
    """
    model = DeepGenerativeModel(random_state=0, n_threads=1, epochs=100, collect=10, patience=10).fit(X)
    missing = np.random.default_rng(1).random(X.shape) < 0.2
    incomplete = np.where(missing, np.nan, X)
    completed = model.impute(incomplete, draws=10)
    np.testing.assert_array_equal(completed[~missing], X[~missing])
    if model.kind_ == "binary":
        assert set(np.unique(completed)) <= {0, 1}
    means = np.broadcast_to(np.nanmean(incomplete, axis=0), X.shape)
    error, by_mean = (((guess - X) / X.std(0))[missing] ** 2 for guess in (completed, means))
    assert error.mean() < (0.61 + 2.5 * 0.12 if model.kind_ == "binary" else 0.7) * by_mean.mean()
    with pytest.raises(ValueError, match="NaN"):
        model.score_samples(incomplete)


def test_imputed_draws_are_copies_that_differ_where_values_were_missing():
    X = reals()
    model = DeepGenerativeModel(**TINY).set_output(transform="pandas").fit(pd.DataFrame(X, columns=list("abc")))
    incomplete = pd.DataFrame(X[:5], columns=list("abc"), index=range(10, 15))
    incomplete.iloc[0, 1] = np.nan
    copies = model.impute(incomplete, draws=4, return_draws=True)
    assert len(copies) == 4
    assert len({copy.loc[10, "b"] for copy in copies}) == 4
    for copy in copies:
        assert copy.drop(index=10).equals(incomplete.drop(index=10))


def test_the_posterior_of_real_columns_speaks_the_units_of_the_table():
    """What it is asked and answers is the table; `scaled` is (x - center) / scale."""
    X = reals()
    model = DeepGenerativeModel(**TINY).fit(X)
    found: Any = model.posterior_
    standard = (X - model.center_) / model.scale_
    scores = found.log_likelihood(X[:3], draws=20)
    inside = found.scaled.log_likelihood(standard[:3], draws=20)
    np.testing.assert_allclose(scores, inside - np.log(model.scale_).sum(), atol=1e-4)
    np.testing.assert_allclose(
        found.sample(4, seed=1), found.scaled.sample(4, seed=1) * model.scale_ + model.center_, atol=1e-4
    )
    incomplete = X[:2].copy()
    incomplete[0, 2] = np.nan
    imputed = found.impute(incomplete, draws=3)
    np.testing.assert_allclose(imputed.mean[1], X[1], rtol=1e-5)
    assert abs(imputed.mean[0, 2] - X[:, 2].mean()) < 10 * X[:, 2].std()
    assert imputed.spread[0, 2] > 0
    assert not imputed.spread[1].any()
    np.testing.assert_array_equal(found.encode(X[:2])[0], found.scaled.encode(standard[:2].astype(np.float32))[0])
    with pytest.raises(UserError, match="have 3 columns"):
        found.log_likelihood(X[:, :2])


# Outliers


def test_the_share_of_outliers_is_that_which_was_said():
    """Scores of rows do not depend on their company, so the quantile of the training rows is met exactly."""
    X = reals()
    model = DeepGenerativeModel(**TINY | {"contamination": 0.1}).fit(X)
    assert (model.predict(X) == -1).sum() == 20
    np.testing.assert_array_equal(model.decision_function(X) < 0, model.predict(X) == -1)
    np.testing.assert_allclose(model.decision_function(X), model.score_samples(X) - model.offset_)
    far = X[:1] + 100 * X.std(0)
    assert model.predict(far)[0] == -1
    shares = [
        (DeepGenerativeModel(**TINY | {"draws": 50}).fit(rows).predict(rows) == -1).mean() for rows in (X, bits())
    ]
    assert all(0 < share < 0.2 for share in shares), "by itself, one in twenty, but for the noise of 50 draws"


# Tables with texts


def mixed(n: int = 60) -> pd.DataFrame:
    """Size depends on kind; the flag is a bool column; half of the names are numbers that are no quantities."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, n)
    return pd.DataFrame({
        "kind": pd.Categorical(np.array(["a", "b"])[kind]), "size": (1000 + 50 * kind + rng.normal(0, 5, n)).round(1),
        "flag": rng.random(n) < 0.5, "word": np.array(["x", "y", "z"])[rng.integers(0, 3, n)], "same": "k",
    })  # fmt: skip


@pytest.fixture(scope="module")
def of_words():
    model = DeepGenerativeModel(epochs=6, minutes=60, random_state=0, draws=50, n_threads=1)
    return model.set_output(transform="pandas").fit(mixed())


def test_a_table_with_texts_is_learnt_and_answers_in_its_words(of_words):
    frame = mixed()
    assert of_words.kind_ == "mixed"
    assert [column.name for column in of_words.kinds_.columns.columns] == ["kind", "size", "flag", "word"]
    new = of_words.sample(30, random_state=0)
    assert list(new.columns) == list(frame.columns)
    assert set(new["kind"]) <= {"a", "b"}
    assert set(new["same"]) == {"k"}
    assert new["size"].between(800, 1300).all()
    incomplete = frame.copy()
    incomplete.loc[3, "size"], incomplete.loc[4, "word"] = np.nan, None
    completed = of_words.impute(incomplete)
    there = incomplete.notna()
    assert all(completed[name][there[name]].tolist() == frame[name][there[name]].tolist() for name in frame)
    assert completed.loc[4, "word"] in set("xyz")
    assert len({copy.loc[3, "size"] for copy in of_words.impute(incomplete, 5, return_draws=True)}) > 1
    assert of_words.transform(frame).shape == (60, sum(of_words.hidden_))
    assert list(of_words.inverse_transform(of_words.transform(frame[:2])).columns) == list(frame.columns)
    posterior = of_words.posterior_
    assert set(posterior.sample(3)["kind"]) <= {"a", "b"}
    assert np.isfinite(posterior.log_likelihood(frame[:2], draws=20)).all()


def test_densities_of_a_table_with_texts_are_in_its_units(of_words):
    """The same table in other units: what is scaled inside is the same, so scores differ by the log of the factor."""
    frame = mixed().assign(size=mixed()["size"] * 1024)
    other = clone(of_words).fit(frame)
    difference = of_words.score_samples(mixed()) - other.score_samples(frame)
    np.testing.assert_allclose(difference, np.log(1024), atol=1e-2)
    odd = frame.head(3).assign(size=frame["size"].mean() * 3)
    assert (other.predict(odd) == -1).all()


def test_texts_in_arrays_and_what_cannot_be_a_table(of_words):
    rows = mixed()[["kind", "size", "word"]].to_numpy(dtype=object)
    model = DeepGenerativeModel(epochs=1, minutes=60, random_state=0, draws=5).fit(rows)
    assert [column.kind for column in model.kinds_.columns.columns] == ["category", "real", "category"]
    rows[0, 1] = None
    assert isinstance(model.impute(rows)[0, 1], float)
    with pytest.raises(UserError, match="leave layer and hidden at 'auto'"):
        DeepGenerativeModel(hidden=(3,)).fit(mixed())
    with pytest.raises(UserError, match="column word has no value"):
        DeepGenerativeModel(epochs=1).fit(mixed().assign(word=None))
    with pytest.raises(ValueError, match="feature names"):
        of_words.score_samples(mixed().drop(columns="word"))
    new = mixed(5).assign(word="never seen")
    assert np.isfinite(of_words.score_samples(new)).all()
    with pytest.raises(UserError, match="minimum of 5"):
        DeepGenerativeModel().fit(mixed(3))
