"""Runs on the Hub: what is pushed comes back bit for bit, nothing private goes along, and nothing foreign is kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import doubly
from doubly import cli
from doubly.analysis import hub as hub_module
from doubly.core.errors import UserError
from hub_server import Hub, running
from test_cli import refused

pytest.importorskip("huggingface_hub")
TINY: dict[str, Any] = {"hidden": (3,), "epochs": 6, "collect": 4, "valid_draws": 2, "threads": 1, "quiet": True}
TABLE = "age,town,member\n" + "".join(f"{20 + i % 17}.5,{'ABC'[i % 3]},{i % 2}\n" for i in range(60))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return doubly.fit(tmp_path_factory.mktemp("hub") / "run", data="bars", **TINY).path


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hidden-place")
    (folder / "survey.csv").write_text(TABLE)
    return doubly.fit(folder / "run", data=f"{folder}/survey.csv", **TINY).path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    constants = pytest.importorskip("huggingface_hub.constants")
    with pytest.MonkeyPatch.context() as patch, running() as found:
        patch.setenv("NO_PROXY", "127.0.0.1")
        for name, value in {
            "ENDPOINT": found.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": found.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_DISABLE_IMPLICIT_TOKEN": True,
            "HF_HUB_CACHE": str(tmp_path_factory.mktemp("cache")),
            "HF_HUB_OFFLINE": False,
        }.items():
            patch.setattr(constants, name, value)
        yield found


@pytest.fixture(scope="module")
def sent(server, run, table) -> dict[str, dict[str, bytes]]:
    """What a push of each run has sent, for a report takes a while."""
    cli.main(["push", str(run), "someone/bars"])
    cli.main(["push", str(table), "someone/survey", "--public"])
    assert server.private == {"someone/bars": True, "someone/survey": False}
    return {name: dict(files) for name, files in server.files.items()}


@pytest.fixture
def hub(server, sent, monkeypatch, tmp_path) -> Hub:
    server.files, server.refuse = {name: dict(files) for name, files in sent.items()}, 0
    monkeypatch.chdir(tmp_path)
    return server


def test_a_run_comes_back_bit_for_bit(hub, run, tmp_path, capsys):
    files = hub.files["someone/bars"]
    assert {"README.md", "config.json", "data.json", "metrics.jsonl", "report.html"} <= set(files)
    assert any(name.startswith("figures/") for name in files)
    assert "lock" not in files
    cli.main(["pull", "someone/bars"])
    back = tmp_path / "runs" / "bars"
    assert "as they were sealed" in capsys.readouterr().out
    kept = {str(file.relative_to(back)) for file in back.rglob("*") if file.is_file()}
    assert kept == {name for name in files if name.partition("/")[0] not in ("README.md", "report.html", "figures")}
    assert all((back / name).read_bytes() == (run / name).read_bytes() for name in kept)
    there, here = (doubly.load(folder, refit_passes=1) for folder in (back, run))
    x = np.eye(16)[:3]
    assert np.array_equal(there.log_likelihood(x, draws=7), here.log_likelihood(x, draws=7))
    assert [each.name for each in tmp_path.joinpath("runs").iterdir()] == ["bars"]


def test_the_card_tells_what_the_report_has_found(hub, run):
    card = hub.files["someone/bars"]["README.md"].decode()
    head, body = card.removeprefix("---\n").split("\n---\n")
    assert "library_name: doubly" in head
    for part in ("# What was learnt from bars", "## Verdict", "independent columns", "## Scores", "validation",
                 "doubly pull someone/bars --out runs/bars", "--hidden 3", "Du, C., Zhu, J."):  # fmt: skip
        assert part in body, part
    pictures = [line.partition("](")[2].rstrip(")") for line in body.splitlines() if line.startswith("![")]
    assert pictures
    assert set(pictures) <= set(hub.files["someone/bars"])
    assert str(run.parent) not in card


def test_data_of_ones_own_stay_at_home(hub, table, tmp_path):
    files = hub.files["someone/survey"]
    assert set(files) == {"README.md", "model.doubly"}
    everything = b"".join(files.values())
    assert b"hidden-place" not in everything
    assert b"rows" not in files["model.doubly"].partition(b"}")[0]
    found = doubly.pull("someone/survey")
    assert found.path == "survey.doubly"
    assert len(doubly.load("survey.doubly").sample(4)["age"]) == 4
    with pytest.raises(UserError, match=r"survey\.doubly exists"):
        doubly.pull("someone/survey")
    with pytest.raises(UserError, match=r"with the ending \.doubly"):
        doubly.pull("someone/survey", tmp_path / "folder")


def test_with_rows_the_folder_goes_and_replaces_what_was_there(hub, table):
    assert doubly.push(table, "someone/survey", with_rows=True).rows
    files = hub.files["someone/survey"]
    assert "rows.safetensors" in files
    assert "model.doubly" not in files
    doubly.pull("someone/survey", "back")
    assert doubly.load("back").sample(2) is not None
    doubly.push(table, "someone/survey")
    assert set(files) == {"README.md", "model.doubly"}


def test_nothing_foreign_is_kept(hub, run, tmp_path):
    files = hub.files["someone/bars"]
    foreign = {
        "evil.py": b"raise SystemExit", "checkpoint/evil.pkl": b"", "setup.cfg": b"",
        "checkpoint/deep/a.safetensors": b"",
        "../../outside.json": b"{}", "posterior/../../outside.safetensors": b"", ".hidden": b"", "lock": b"",
    }  # fmt: skip
    files |= foreign
    before = set(tmp_path.rglob("*"))
    doubly.pull("someone/bars", "back")
    new = {str(each.relative_to(tmp_path)) for each in set(tmp_path.rglob("*")) - before}
    assert all(name == "back" or name.startswith("back/") for name in new), new
    assert not {f"back/{name}" for name in foreign} & new
    assert "back/config.json" in new


@pytest.mark.parametrize("name", ["config.json", "checkpoint/state.safetensors", "posterior/mean-00001.safetensors"])
def test_a_damaged_file_is_refused_and_nothing_is_left(hub, run, tmp_path, capsys, name):
    files = hub.files["someone/bars"]
    content = bytearray(files[name])
    content[-3] ^= 1
    files[name] = bytes(content)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(["pull", "someone/bars", "--out", "back"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2
    assert line.startswith(f"doubly: someone/bars is refused: {name} is ")
    assert ".pulling" not in line
    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.glob(".pulling-*"))


def test_a_damaged_file_of_an_export_is_refused(hub, table, tmp_path):
    files = hub.files["someone/survey"]
    files["model.doubly"] = files["model.doubly"][:-200]
    with pytest.raises(UserError, match=r"someone/survey is refused: model\.doubly"):
        doubly.pull("someone/survey")
    assert not (tmp_path / "survey.doubly").exists()


def test_code_that_comes_along_is_named_and_not_executed(hub, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "from doubly.samplers.priors import Normal\nprint('EXECUTED')\nclass Mine(Normal):\n    '''Mine.'''\n"
    )
    doubly.fit(tmp_path / "own", data="bars", prior=f"{tmp_path}/mine.py:Mine", **TINY)
    doubly.push(tmp_path / "own", "someone/own")
    capsys.readouterr()
    cli.main(["pull", "someone/own", "--out", "back"])
    said = capsys.readouterr().out
    assert "EXECUTED" not in said
    assert "it brings code (own_files/mine.py): read it" in said


def test_mistakes_are_one_line(hub, run, tmp_path, capsys, monkeypatch):
    assert "is named owner/name, got 'bars'" in refused(capsys, "push", str(run), "bars")
    assert "is named owner/name" in refused(capsys, "pull", "../a/b")
    assert "pulling someone/nothing failed" in refused(capsys, "pull", "someone/nothing")
    hub.files["someone/empty"] = {"a.txt": b""}
    assert "holds no run: expected config.json or model.doubly" in refused(capsys, "pull", "someone/empty")
    hub.files["someone/large"] = {"config.json": b"{}"}
    monkeypatch.setattr(hub_module, "MOST_FILES", 0)
    assert "at most 0 are pulled" in refused(capsys, "pull", "someone/large")
    hub.refuse = 403
    line = refused(capsys, "pull", "someone/bars")
    assert "HF_TOKEN" in line
    assert len(line) < 500


def test_results_as_json(hub, run, capsys):
    cli.main(["push", str(run), "someone/bars", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["repository"], found["rows"]) == ("someone/bars", False)
    assert (found["address"], found["files"]) == (f"{hub.address}/someone/bars", len(hub.files["someone/bars"]))
    cli.main(["pull", "someone/bars", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["code"], found["revision"]) == ("runs/bars", [], hub.sha("someone/bars"))
