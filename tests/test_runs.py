"""Run folders: a fit that is stopped, however roughly, and resumed ends with the same bits as one left alone."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torch

import doubly
from doubly import cli
from doubly.core.errors import Diverged, UserError
from doubly.core.files import write
from doubly.runs.build import build
from doubly.runs.folder import Run
from doubly.training.protocol import fit as train_fit
from doubly.training.state import finished, init
from forks import command

# a checkpoint at every mini-batch (0 minutes): SIGKILL may strike while one is being written
SHORT = [
    "--data",
    "bars",
    "--hidden",
    "6",
    "4",
    "--batch",
    "300",
    "--theta-steps",
    "3",
    "--epochs",
    "24",
    "--collect",
    "8",
]
SHORT += [
    "--collect-every",
    "7steps",
    "--window",
    "2",
    "--means",
    "1",
    "3",
    "8",
]  # 7 ends in the middle of a mini-batch
SHORT += ["--keep", "3", "--patience", "5", "--checkpoint-minutes", "0", "--threads", "1", "--valid-draws", "5"]


class Stop(NamedTuple):
    """A signal that a process gives itself, so many seconds after it has written a checkpoint of its own."""

    kind: signal.Signals
    file: Path
    seconds: float

    def watch(self) -> None:
        before = self.file.stat().st_mtime_ns if self.file.exists() else 0
        threading.Thread(target=self._wait, args=(before,), daemon=True).start()

    def _wait(self, before: int) -> None:
        while not (self.file.exists() and self.file.stat().st_mtime_ns != before):
            time.sleep(0.002)
        time.sleep(self.seconds)
        os.kill(os.getpid(), self.kind)


def everything(folder: Path) -> dict[str, Any]:
    """All that a run has come to: every tensor of checkpoint and posterior, and the metrics but for their times."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*.safetensors")):
        if "proposal" not in file.name and file.name != "older.safetensors":
            name = str(file.relative_to(folder))
            found |= {f"{name}:{key}": value for key, value in safetensors.torch.load_file(file).items()}
            with safetensors.safe_open(file, "pt") as opened:
                found[f"{name}:numbers"] = (opened.metadata() or {}).get("state")
    for record in Run(folder).metrics():
        found[f"epoch {record['epoch']}"] = {name: value for name, value in record.items() if name != "seconds"}
    return found


def assert_same(one: Path, other: Path) -> None:
    first, second = everything(one), everything(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        same = torch.equal(value, second[name]) if isinstance(value, torch.Tensor) else value == second[name]
        assert same, f"{name} differs"


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "left-alone"
    ended = command("fit", *SHORT, "--out", str(folder), said=folder.with_suffix(".txt"))
    assert ended.code == 0, ended.said
    return folder


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_fit_stopped_at_random_and_resumed_ends_with_the_same_bits(kind, left_alone, tmp_path):
    folder = tmp_path / "run"
    dice = random.Random(int(kind))
    args = ["fit", *SHORT, "--out", str(folder)]
    file = folder / "checkpoint" / "state.safetensors"
    for _ in range(3):
        code, said = command(*args, said=tmp_path / "said.txt", first=Stop(kind, file, dice.uniform(0, 0.15)).watch)
        assert code == (-kind if kind == signal.SIGKILL else 128 + kind), f"not stopped in its middle: {said}"
        if kind != signal.SIGKILL:
            assert said.strip().splitlines()[-1].startswith("doubly: stopped in epoch"), said
            assert f"doubly resume {folder}" in said
        args = ["resume", str(folder)]
    ended = command(*args, said=tmp_path / "said.txt")
    assert ended.code == 0, ended.said
    assert_same(left_alone, folder)


def test_a_run_with_warm_up_schedule_and_objective_memory_resumes_to_the_same_bits(tmp_path):
    """Every kind of state: Adam's while warming up, the thermostat's after, and a learnt baseline."""
    settings: dict[str, Any] = {"data": "bars", "hidden": (4,), "theta_steps": 1, "warmup": 3, "objective": "nvil"}
    settings |= {"schedule": "cosine:cycle=4", "batch": 500, "epochs": 8, "collect": 3, "threads": 1, "quiet": True}
    doubly.fit(tmp_path / "whole", **settings)
    data = Run(tmp_path / "whole").data()
    with Run.create(tmp_path / "parts", Run(tmp_path / "whole").config, data) as run:
        method = build(run.config, data)
    train, valid = torch.as_tensor(data.train), torch.as_tensor(data.valid)
    for stop in range(2, 38, 5):  # after so many mini-batches: 4 and an end in each epoch
        state = run.restore(method) or init(method, train)
        run.forget_after(state.epoch)
        for _ in range(stop % 7):
            state, record = next(train_fit(method, train, valid, state))
            if record:
                run.log(record._asdict() | {"seconds": 0})
                if record.phase == "collect":
                    run.keep(record.collected, state.theta.theta)
            if finished(method, state):
                break
        run.save(state)
        if finished(method, state):
            break
    doubly.resume(run.path, quiet=True)
    whole, parts = everything(tmp_path / "whole"), everything(run.path)
    for name, value in whole.items():
        same = torch.equal(value, parts[name]) if isinstance(value, torch.Tensor) else value == parts[name]
        assert same, f"{name} differs"


def test_resuming_a_finished_run_changes_nothing(left_alone, capsys):
    before = everything(left_alone)
    cli.main(["resume", str(left_alone)])
    assert "nothing to do" in capsys.readouterr().err
    assert everything(left_alone).keys() == before.keys()


def test_a_run_stopped_before_its_first_checkpoint_starts_over(left_alone, tmp_path):
    folder = tmp_path / "run"
    with Run.create(folder, Run(left_alone).config, Run(left_alone).data()):
        pass
    doubly.resume(folder, quiet=True)
    assert_same(left_alone, folder)


def test_records_after_the_checkpoint_and_half_lines_are_dropped(tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(3,), epochs=3, collect=1, theta_steps=1, quiet=True)
    run.log(run.metrics()[-1] | {"epoch": 4})
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 5, "val')
    assert [record["epoch"] for record in run.metrics()] == [1, 2, 3, 4]
    run.forget_after(3)
    assert [record["epoch"] for record in run.metrics()] == [1, 2, 3]


def test_kept_samples_are_spread_over_the_collection(left_alone):
    kept = sorted(file.name for file in (left_alone / "posterior").glob("draw-*"))
    assert kept == ["draw-00004.safetensors", "draw-00006.safetensors", "draw-00008.safetensors"]  # averages of two
    posterior = doubly.load(left_alone)
    assert len(posterior.samples()) == 3  # test_evaluate.py says of what


def test_reading_a_run_does_not_change_it(left_alone):
    before = everything(left_alone)
    posterior = doubly.load(left_alone, refit_passes=1)
    x = Run(left_alone).data().test[:20]
    posterior.log_likelihood(x, draws=10, of="ensemble")
    posterior.sample(5)
    posterior.encode(x, draws=5)
    after = everything(left_alone)
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]


def test_a_folder_that_holds_a_run_is_refused_unless_insisted(tmp_path):
    settings: dict[str, Any] = {"data": "bars", "hidden": (3,), "epochs": 1, "theta_steps": 1, "quiet": True}
    doubly.fit(tmp_path / "run", **settings)
    with pytest.raises(UserError, match=r"already holds a run.*--overwrite"):
        doubly.fit(tmp_path / "run", **settings)
    (tmp_path / "run" / "my notes.txt").write_text("keep me")
    doubly.fit(tmp_path / "run", overwrite=True, **settings)
    assert (tmp_path / "run" / "my notes.txt").exists(), "only what a run wrote is replaced"


def test_a_folder_of_something_else_is_refused_even_when_insisted(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="not empty and holds no run"):
        doubly.fit(tmp_path, data="bars", hidden=(3,), overwrite=True, quiet=True)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_bad_settings_leave_no_folder_behind(tmp_path):
    for bad in (
        {"step": -1.0},
        {"draws": -1},
        {"model": "sbm"},
        {"data": "digitz"},
        {"hidden": (0,)},
        {"device": "abacus"},
    ):
        with pytest.raises(UserError):
            doubly.fit(tmp_path / "run", **({"data": "bars"} | bad), quiet=True)
        assert not (tmp_path / "run").exists()


def test_two_processes_cannot_move_one_chain(tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(3,), epochs=1, theta_steps=1, quiet=True)
    with run.locked(), pytest.raises(UserError, match="another process is working on"), run.locked():
        pass


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(3,), epochs=1, theta_steps=1, quiet=True)
    file = run.path / "checkpoint" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match=r"checkpoint/state\.safetensors is damaged.*doubly repair"):
        doubly.load(run.path)


def test_writing_leaves_the_old_content_when_it_fails(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write(file, b"old")
    monkeypatch.setattr(os, "replace", lambda *_, **__: (_ for _ in ()).throw(OSError("disk on fire")))
    with pytest.raises(UserError, match=r"cannot write .* fire"):
        write(file, b"new")
    assert file.read_bytes() == b"old"
    assert [other.name for other in tmp_path.iterdir()] == ["file"]


def test_a_run_can_be_read_without_its_data_but_not_with_others(tmp_path):
    file = tmp_path / "mine.npy"
    np.save(file, np.eye(5)[np.arange(100) % 5])
    run = doubly.fit(tmp_path / "run", data=str(file), hidden=(2,), epochs=2, collect=1, theta_steps=1, quiet=True)
    np.save(file, np.eye(5)[(np.arange(100) + 1) % 5])
    with pytest.raises(UserError, match=r"is not the data that .* was made with"):
        doubly.resume(run.path, quiet=True)
    with pytest.raises(UserError, match="is not the data"):
        run.posterior().log_likelihood(np.eye(5))  # a proposal would have to be fitted
    file.unlink()
    assert [layer.n_out for layer in doubly.load(run.path).model.layers] == [5, 2]
    assert doubly.load(run.path).sample(4).shape == (4, 5)


def test_a_run_under_way_cannot_be_overwritten(tmp_path):
    settings: dict[str, Any] = {"data": "bars", "hidden": (3,), "epochs": 1, "theta_steps": 1, "quiet": True}
    run = doubly.fit(tmp_path / "run", **settings)
    before = everything(run.path)
    with run.locked(), pytest.raises(UserError, match="another process"):
        doubly.fit(run.path, overwrite=True, **settings)
    assert everything(run.path).keys() == before.keys()


def test_a_chain_that_diverges_leaves_its_last_good_checkpoint_or_nothing(tmp_path):
    settings: dict[str, Any] = {
        "data": "bars",
        "hidden": (3,),
        "theta_steps": 1,
        "quiet": True,
        "checkpoint_minutes": 0,
    }
    with pytest.raises(Diverged):
        doubly.fit(tmp_path / "run", sampler="sgnht", step=1e30, **settings)
    for file in (tmp_path / "run").rglob("*.safetensors"):
        assert all(torch.isfinite(value).all() for value in safetensors.torch.load_file(file).values())


def test_a_fit_leaves_the_number_of_threads_alone(tmp_path):
    torch.set_num_threads(2)
    try:
        doubly.fit(tmp_path / "run", data="bars", hidden=(3,), epochs=1, theta_steps=1, threads=1, quiet=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["config.json", "data.json"])
@pytest.mark.parametrize("content", ["{", "[1", "\n\n5x\n"])
def test_damaged_files_are_one_line(name, content, tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(3,), epochs=1, theta_steps=1, quiet=True)
    (run.path / name).write_text(content + "\n")
    with pytest.raises(UserError):
        _look_at_everything(run.path)


def _look_at_everything(folder: Path) -> None:
    opened = Run(folder)
    opened.metrics()
    opened.posterior()


def test_own_files_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("\n".join(["0,1,1", "1,0,1"] * 20))
    run = doubly.fit("run", data="mine.csv", hidden=(2,), epochs=1, theta_steps=1, quiet=True)
    folder = run.path.resolve()
    monkeypatch.chdir("/")
    assert doubly.load(folder).sample(3).shape == (3, 3)
