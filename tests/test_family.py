"""Bits without a word about the model: the family is chosen by looking, and what was said stays."""

import dataclasses
import importlib
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import doubly
from doubly.data import Data
from doubly.runs import race
from doubly.runs.automatic import is_open, lengths, of_array
from doubly.runs.build import with_plan
from doubly.runs.config import Config


def parity(n: int, seed: int = 0) -> np.ndarray:
    """Three bits of which the last is the parity of the others: no pair of them depends on each other."""
    bits = np.random.default_rng(seed).integers(0, 2, (n, 2))
    return np.concatenate([bits, bits[:, :1] ^ bits[:, 1:]], 1).astype(np.uint8)


def data(rows: np.ndarray, shape: tuple[int, ...]) -> Data:
    return Data("bits", rows[:200], rows[200:250], rows[250:], shape, "binary")


def test_the_best_on_rows_held_out_is_taken():
    """Four copies of a bit cost log 2; columns by themselves cost four times that, and every family sees it soon."""
    rows = torch.as_tensor(parity(300)[:, :1].repeat(4, 1))
    best, scores = race.best_family(rows[:250], rows[250:], seed=0, epochs=15)
    assert best.name == max(scores, key=lambda name: scores[name])
    assert set(scores) == {"nade", "fvsbn", "sbn"}
    assert scores[best.name] > -4 * math.log(2) + 1  # nats


def test_rows_that_lack_cells_are_raced_too(monkeypatch):
    monkeypatch.setattr(race, "STEPS", 20)
    rows = torch.as_tensor(parity(100)).float()
    rows[-1, 0] = math.nan  # among those held out alone
    _, scores = race.best_family(rows[:80], rows[80:], seed=0)
    assert all(math.isfinite(score) for score in scores.values())


@pytest.mark.parametrize(
    "said", [{"model": "sbn"}, {"hidden": (3,)}, {"sampler": "sgld"}, {"estimator": "nais"}, {"prior": "normal"}]
)
def test_what_was_said_stays(said):
    bits = data(parity(300), (3,))
    assert is_open(Config(), bits)
    assert not is_open(dataclasses.replace(Config(), **said), bits)
    assert with_plan(dataclasses.replace(Config(), **said), 200).model == "sbn"


def test_pictures_and_numbers_are_not_for_the_race():
    rows = parity(300)
    assert not is_open(Config(), data(np.concatenate([rows, rows], 1), (2, 3)))
    reals = rows.astype(np.float32) * 1.5
    numbers = Data("numbers", reals[:200], reals[200:250], reals[250:], (3,), "real")
    assert not is_open(Config(), numbers)


def test_fit_tells_the_family_and_the_run_keeps_it(monkeypatch, capsys):
    monkeypatch.setattr(race, "STEPS", 20)
    run = doubly.fit(data=parity(300), epochs=3, threads=1)
    assert f"chosen for these bits: model {run.config.model}, hidden" in capsys.readouterr().err
    assert run.config.model.startswith(("nade", "darn", "sbn"))
    assert np.isfinite(doubly.load(run.path).log_likelihood(parity(5))).all()


def test_the_estimator_has_a_density_without_latents_and_codes_beside_it(monkeypatch):
    monkeypatch.setattr(race, "STEPS", 400)
    X = parity(300)
    model = doubly.DeepGenerativeModel(epochs=30, collect=5, patience=5, random_state=0, n_threads=1, draws=5, refit=1)
    model.fit(X)
    assert model.chosen_ == "nade"
    assert model.hidden_ == ()
    every = np.array(list(itertools.product([0, 1], repeat=3)))
    assert np.exp(model.score_samples(every)).sum() == pytest.approx(1, abs=1e-5)
    codes = model.transform(X)
    assert codes.shape == (300, 10)
    assert len(model.get_feature_names_out()) == 10
    assert model.inverse_transform(codes).shape == X.shape


def test_settings_without_latents():
    chosen = of_array(True, 16, 1000, hidden=())
    assert (chosen["model"], chosen["sampler"], chosen["step"]) == ("nade:width=50", "thermostat", "auto")
    assert lengths(16_000, 100, exact=True)["epochs"] == 62  # 10,000 steps


@pytest.mark.parametrize(("width", "layers"), [(0, 0), (7, 1), (5, 2)])
def test_a_made_is_a_density(width, layers, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    model = importlib.import_module("binary_peers").MADE(
        width, layers, torch.full((4,), 0.3), torch.Generator().manual_seed(0)
    )
    model.weights[2 * layers].data.normal_()
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
    assert model.log_prob(every).exp().sum().item() == pytest.approx(1, abs=1e-5)
