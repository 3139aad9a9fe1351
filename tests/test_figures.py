"""The paper's figures from run folders: every part on two small runs, and how local features are."""

import dataclasses
import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from doubly.runs.fit import fit_config
from doubly.runs.presets import preset

PAGE = "".join(f"<!-- {name} -->\n<!-- end -->\n\n" for name in ("gains", "features", "completions"))


@pytest.fixture
def figures(monkeypatch):
    """benchmarks/figures.py, with little to do."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    figures = importlib.import_module("figures")
    for name, value in {"ROWS": 20, "DRAWS": 10, "TEMPERATURES": 5, "COMPLETED": 6, "COMPLETIONS": 3}.items():
        monkeypatch.setattr(figures, name, value)
    monkeypatch.setattr(figures, "SCORED_BY", {"draws": (2, 5), "annealing": (2, 5)})
    monkeypatch.setattr(figures, "REFIT", {"refit": 1, "threads": 1})
    return figures


def test_features_that_are_local_have_small_numbers(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    features = importlib.import_module("features")
    effective_pixels, radius, shape = features.effective_pixels, features.radius, (28, 28)
    even, dot, far = np.ones(784), np.zeros(784), np.zeros(784)
    dot[[0, 1, 28, 29]] = (1.0, -1.0, 1.0, -1.0)
    far[[0, 783]] = 1.0
    rows = np.stack([even, dot, far])
    assert effective_pixels(rows, shape) == pytest.approx([784, 4, 2])
    whole = math.sqrt(2 * (28**2 - 1) / 12)
    assert radius(rows, shape) == pytest.approx([whole, math.sqrt(0.5), 27 / 2 * math.sqrt(2)])
    assert radius(5 * rows, shape) == pytest.approx(radius(rows, shape)), "of any size"


def test_all_figures_are_made_from_run_folders(figures, tmp_path):
    short = {"epochs": 4, "collect": 3, "collect_every": "1epoch", "min_epochs": 1, "patience": 1, "valid_draws": 2}
    config = preset("recommended", data="digits", hidden=(6,), threads=1, **short)
    few, more = tmp_path / "few", tmp_path / "more"
    fit_config(dataclasses.replace(config, prior="normal"), few, quiet=True)
    fit_config(dataclasses.replace(config, prior="normal", draws=7), more, quiet=True)
    out, store = tmp_path / "reports", tmp_path / "figures.json"
    out.mkdir()
    (out / "figures.md").write_text(PAGE)
    where = ["--out", str(out), "--store", str(store), "--results", str(tmp_path / "results")]
    figures.main([str(few), str(more), *where])
    assert {"figure-1.svg", "figure-2.svg", "figure-3-digits-data.png", "figure-3-few-samples.png",
            "figure-3-few-features.png", "figure-4-few.png"} <= {file.name for file in out.iterdir()}  # fmt: skip
    found = json.loads(store.read_text())
    assert [point["at"] for point in found["mean-of few"]["found"]] == [1, 3]
    assert found["work-of few"]["how"]["by"] == "annealing", "its latent variables are remembered"
    assert isinstance(found["last more"]["found"], float), "the runs differ in the draws alone"
    imputers = found["completed few"]["found"]
    assert list(imputers)[:4] == ["doubly", "the paper's procedure", "mean", "nearest neighbours"]
    assert imputers["doubly"]["log_conditional"] < 0
    assert imputers["mean"]["error_rate"] < 0.5
    page = (out / "figures.md").read_text()
    assert "| `few` | normal | " in page
    assert "![figure-4-few](figure-4-few.png)" in page
    assert f"| `few` | mean |  | {imputers['mean']['error_rate']:.4f} |" in page
    before = store.read_text()
    figures.main([str(few), *where, "--parts", "4"])
    assert store.read_text() == before, "what was found is not worked out twice"
