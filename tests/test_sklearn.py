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

from doubly import DeepGenerativeModel

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
    share = np.exp(bounds - np.logaddexp(*bounds))
    np.testing.assert_allclose(model.transform(every), (share[..., None] * codes).sum(0), atol=0.1)
    assert abs(bounds[0] - expected).max() > 0.5
    assert abs(codes.mean(0) - (share[..., None] * codes).sum(0)).max() > 0.2


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
    fitted = list(model.posterior_._refitted(model.posterior_._pairs("ensemble")))
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
    before = DeepGenerativeModel._run_chain

    def started_too_large(self, config, *rest):
        too_large = config.step > 5e-4
        return before(self, config if not too_large else type(config)(**vars(config) | {"step": 1e6}), *rest)

    monkeypatch.setattr(DeepGenerativeModel, "_run_chain", started_too_large)
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
    """One factor explains most of both tables: what is imputed is nearer to the truth than the column's mean."""
    model = DeepGenerativeModel(random_state=0, n_threads=1, epochs=100, collect=10, patience=10).fit(X)
    missing = np.random.default_rng(1).random(X.shape) < 0.2
    incomplete = np.where(missing, np.nan, X)
    completed = model.impute(incomplete, draws=10)
    np.testing.assert_array_equal(completed[~missing], X[~missing])
    if model.kind_ == "binary":
        assert set(np.unique(completed)) <= {0, 1}
    means = np.broadcast_to(np.nanmean(incomplete, axis=0), X.shape)
    error, by_mean = (((guess - X) / X.std(0))[missing] ** 2 for guess in (completed, means))
    assert error.mean() < 0.7 * by_mean.mean()
    with pytest.raises(ValueError, match="NaN"):
        model.score_samples(incomplete)
