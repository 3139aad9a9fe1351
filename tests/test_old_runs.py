"""Run folders and results of version 0.1 open, answer and go on with the present code.

tests/fixtures/runs-0.1 was made by version 0.1 with `settings` below: `complete` and `stopped` (in epoch 3) on bars,
`missing` with NADE on `rows_with_missing`, which names what it remembers otherwise than today; it also has a fit of a
proposal that was stopped after its first pass.

tests/fixtures/runs-format-2 was made by the first version that wrote format 2, with the defaults of then: `complete`,
six epochs of bars with two evaluations, and `stopped`, the same run as it was after its third epoch.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import doubly
from doubly import __version__
from doubly.analysis.evaluate import evaluate
from doubly.analysis.verify import verify
from doubly.cli import main
from doubly.core.errors import RunWarning, UserError
from doubly.core.types import Of
from doubly.paper.tables import page
from doubly.runs.config import Config
from doubly.runs.folder import Run
from doubly.runs.versions import ADDED, FORMAT

OLD = Path(__file__).parent / "fixtures" / "runs-0.1"
FORMAT_2 = Path(__file__).parent / "fixtures" / "runs-format-2"
RESULTS = Path(__file__).parents[1] / "results"
NAMES = ["complete", "missing", "stopped"]
OFS: tuple[Of, ...] = ("mean", "ensemble")


def rows_with_missing() -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = (rng.random((120, 6)) < 0.4).astype(float)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    return rows


@pytest.fixture
def old(tmp_path):
    """A copy of an old run, by name, with its data in place."""

    def copy(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(OLD / name, folder)
        config = json.loads((folder / "config.json").read_text())
        if config["data"] == "rows.npy":
            np.save(tmp_path / "rows.npy", rows_with_missing())
            edit(folder / "config.json", data=str(tmp_path / "rows.npy"))
        return folder

    return copy


def edit(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def vectors(folder: Path) -> dict[str, torch.Tensor]:
    """The samples and means of a run, and the weights of its checkpoint."""
    found = {file.name: safetensors.torch.load_file(file)["theta"] for file in folder.glob("posterior/[dm]*")}
    state = safetensors.torch.load_file(folder / "checkpoint" / "state.safetensors")
    return found | {name: state[name] for name in ("theta.theta", "phi.theta", "mean")}


def test_the_settings_are_those_of_before_and_those_that_came_since():
    before = json.loads((OLD / "complete" / "config.json").read_text())
    assert dataclasses.asdict(Config()).keys() == before.keys() | ADDED[1].keys()


@pytest.mark.parametrize("name", NAMES)
def test_an_old_run_loads_and_answers(name, old):
    folder = old(name)
    posterior, data = doubly.load(folder, refit_passes=2), Run(folder).data()
    of: Of = "mean" if posterior.collected else "last"
    assert np.isfinite(posterior.log_likelihood(data.test[:10], draws=20, of=of)).all()
    assert posterior.sample(7, of=of).shape == (7, data.width)
    assert [codes.shape for codes in posterior.encode(data.test[:10], of=of)] == [(10, 4)]
    partly = data.test[:5].astype(float)
    partly[:, 1] = np.nan
    assert not np.isnan(posterior.impute(partly, draws=3, of=of).completions).any()


@pytest.mark.parametrize("name", ["complete", "missing"])
@pytest.mark.parametrize("of", ["mean", "ensemble"])
def test_an_old_run_scores_as_before(name, of, old, capsys):
    """The same draws give what version 0.1 wrote down, but for rounding on another processor."""
    folder = old(name)
    file = folder / "evaluations" / f"test-{of}-20-refit-2.json"
    before = json.loads(file.read_text())
    shutil.rmtree(folder / "evaluations")
    if name == "complete":  # with missing values, a refit has other random numbers than in 0.1
        for proposal in folder.glob("posterior/proposal-*"):
            proposal.unlink()  # so that it is fitted again
    main(["evaluate", str(folder), "--by", "draws", "--draws", "20", "--refit", "2", "--of", of, "--json"])
    found = json.loads(capsys.readouterr().out)
    for key in ("log_likelihood", "stderr", "ess"):
        assert found[key] == pytest.approx(before[key], rel=1e-4)
    assert list(folder.glob(f"evaluations/test-{of}-20-*.json"))


def test_an_old_run_that_was_stopped_ends_where_version_0_1_did(old):
    folder = old("stopped")
    assert doubly.load(folder).collected == 0
    doubly.resume(folder, quiet=True)
    found, expected = vectors(folder), vectors(OLD / "complete")
    assert found.keys() == expected.keys()
    for name, vector in expected.items():
        torch.testing.assert_close(found[name], vector, rtol=1e-3, atol=1e-4)
    here, there = Run(folder).metrics(), Run(OLD / "complete").metrics()
    assert [record["epoch"] for record in here] == [record["epoch"] for record in there] == [1, 2, 3, 4, 5, 6]
    assert [record["ess"] for record in here] == pytest.approx([record["ess"] for record in there], rel=1e-3)


@pytest.mark.parametrize("name", ["complete", "missing"])
def test_an_old_run_goes_on_for_more_epochs(name, old):
    folder = old(name)
    edit(folder / "config.json", epochs=9, collect=6)
    doubly.resume(folder, quiet=True)
    assert [record["epoch"] for record in Run(folder).metrics()][-3:] == [7, 8, 9]
    state = safetensors.torch.load_file(folder / "checkpoint" / "state.safetensors")
    assert not [key for key in state if "hollow" in key]
    assert doubly.load(folder).collected == 6


def test_an_old_fit_of_a_proposal_that_was_stopped_starts_over(old):
    """One of three passes was done, with other random numbers than now: it counts as nothing, and goes."""
    folder, x = old("missing"), rows_with_missing()[:5]
    (unfinished,) = folder.glob("posterior/*-unfinished.safetensors")
    said: list[str] = []
    going_on = doubly.load(folder, refit_passes=3, progress=lambda what, share: said.append(what))
    scores = going_on.log_likelihood(x, draws=20)
    assert [what for what in said if "pass 1 of 3" in what]
    assert [what for what in said if "pass 2 of 3" in what]
    assert not unfinished.exists()
    for proposal in folder.glob("posterior/proposal-*"):
        proposal.unlink()
    again = doubly.load(folder, refit_passes=3).log_likelihood(x, draws=20)
    np.testing.assert_allclose(scores, again, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_old_records_are_read_under_the_present_name(name):
    lines = (OLD / name / "metrics.jsonl").read_text().splitlines()
    records = Run(OLD / name).metrics()
    assert [record["ess"] for record in records] == [json.loads(line)["effective"] for line in lines]
    assert not any("effective" in record for record in records)


def test_a_report_of_an_old_run_is_written(old):
    folder = old("complete")
    main(["report", str(folder)])
    assert (folder / "report.html").stat().st_size > 1000


def test_results_of_before_are_read():
    files = sorted(RESULTS.glob("*.json"))
    assert any("effective" in json.loads(file.read_text()) for file in files)
    shown = page(RESULTS)
    for file in files:
        result = json.loads(file.read_text())
        assert f"{result['log_likelihood']:.2f} ± {result['stderr']:.2f}" in shown, file.name


@pytest.mark.parametrize("version", [None, "9.1"])
def test_an_unknown_setting_is_refused_in_one_line_that_names_the_version(version, old):
    folder = old("complete")
    edit(folder / "config.json", colour="red")
    if version:
        edit(folder / "data.json", version=version)
    origin = f"doubly {version or '0.1'} made this run"
    with pytest.raises(UserError, match=f"'colour' that doubly {__version__} does not know: {origin}") as caught:
        Run(folder)
    assert "\n" not in str(caught.value)


def test_a_run_says_which_version_made_it(tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(2,), epochs=1, collect=0, theta_steps=1, quiet=True)
    assert run.version == __version__
    assert Run(OLD / "complete").version is None
    assert json.loads((run.path / "config.json").read_text())["format"] == 2, "version 0.1 refuses it by this name"


def test_a_fixture_of_each_format_is_kept():
    """A new format comes with a fixture of the one before."""
    formats = {Run(folder / "complete").format for folder in (OLD, FORMAT_2)}
    assert formats == set(range(1, FORMAT + 1))


def test_a_run_of_format_2_answers_as_the_version_that_made_it(tmp_path, recwarn):
    """It was made before some of the settings of today: they are what was done then, and nothing is said of them."""
    folder = tmp_path / "run"
    shutil.copytree(FORMAT_2 / "complete", folder)
    before = json.loads((folder / "config.json").read_text())
    assert dataclasses.asdict(Config()).keys() == before.keys() - {"seal", "format"} | ADDED[2].keys()
    filed = {of: json.loads((folder / f"evaluations/test-{of}-20-by-draws-refit-2.json").read_text()) for of in OFS}
    shutil.rmtree(folder / "evaluations")
    for of, told in filed.items():
        found = evaluate(folder, of=of, draws=20, refit=2, by="draws", settle=False, quiet=True)
        assert found.to_json()["log_likelihood"] == pytest.approx(told["log_likelihood"], rel=1e-4)
    assert not [each for each in recwarn if issubclass(each.category, RunWarning)]
    assert verify(folder).good


def test_a_run_of_format_2_goes_on_to_where_it_would_have_ended(tmp_path):
    """But for rounding, and for half a drift sqrt(eta) v / 2, by which the thermostat's samples stand elsewhere than in
    the code that made the fixture: 0.054 at most here. Other seeds end elsewhere by 1."""
    folder = tmp_path / "run"
    shutil.copytree(FORMAT_2 / "stopped", folder)
    doubly.resume(folder, quiet=True)
    found, expected = vectors(folder), vectors(FORMAT_2 / "complete")
    assert found.keys() == expected.keys()
    for name, vector in expected.items():
        torch.testing.assert_close(found[name], vector, rtol=0, atol=0.1)
    assert [record["epoch"] for record in Run(folder).metrics()] == [1, 2, 3, 4, 5, 6]
