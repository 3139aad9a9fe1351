"""Run folders that are damaged or hostile: refused in one line, repaired, or harmless; never a wrong number.

Nothing outside a folder is touched, whatever lies in it.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import doubly
from doubly.cli import main
from doubly.core.errors import Damaged, RunWarning, UserError
from doubly.core.files import Folder, write
from doubly.core.sealed import dump_json, dump_tensors, load_json, load_tensors
from doubly.runs import records
from doubly.runs.checkpoints import OLDER, STATE
from doubly.runs.folder import Run
from doubly.runs.stops import stop_signal

SETTINGS: dict[str, Any] = {"data": "bars", "hidden": (3,), "epochs": 4, "collect": 3, "theta_steps": 1, "keep": 3}
SETTINGS |= {"checkpoint_epochs": 1, "valid_draws": 5, "batch": 500, "means": (1, 2), "threads": 1, "quiet": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A finished run with two checkpoints, three samples, two means, an evaluation and a fitted proposal."""
    run = doubly.fit(tmp_path_factory.mktemp("damage") / "run", **SETTINGS)
    main(["evaluate", str(run.path), "--refit", "1", "--draws", "5", "--no-settle", "--by", "draws"])
    return run.path


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def refused(capsys, *args: str, code: int = 2) -> str:
    """The one line with which a command is refused."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    out, err = capsys.readouterr()
    assert stopped.value.code == code, err
    assert "Traceback" not in err
    if code == 2:
        said = [line for line in err.splitlines() if line.startswith("doubly: ") and "doubly: warning" not in line]
        assert len(said) == 1, err
    return err + out


def reseal(file: Path, **changes: torch.Tensor | None) -> None:
    """Write tensors of a file anew, with a good seal, as a stranger can do, and list them where they are samples."""
    tensors, texts = load_tensors(file.read_bytes(), file, required=True)
    for name, tensor in changes.items():
        tensors[name.replace("__", ".")] = tensor  # type: ignore[assignment]
    file.write_bytes(dump_tensors({name: value for name, value in tensors.items() if value is not None}, texts))


# Shapes, types, numbers


FAULTS: dict[str, dict[str, Any]] = {
    "a short moment of Adam": {"phi__m": torch.zeros(3)},
    "a long one": {"phi__v": torch.zeros(10**5)},
    "a short momentum": {"theta__u": torch.zeros(2)},
    "a thermostat for all": {"theta__excess": torch.zeros(())},
    "double precision": {"theta__u": torch.zeros(67, dtype=torch.float64)},
    "a mean that is no number": {"mean": torch.full((67,), torch.nan, dtype=torch.float64)},
    "infinite weights": {"theta__theta": torch.full((67,), torch.inf)},
    "weights of another model": {"theta__theta": torch.zeros(66)},
    "an order of other rows": {"order": torch.arange(2000) + 7},
    "an order of a few rows": {"order": torch.arange(5)},
    "a generator of zeros": {"rng": torch.zeros(5056, dtype=torch.uint8)},
    "a short generator": {"rng": torch.zeros(17, dtype=torch.uint8)},
    "something more": {"memory__state__z1": torch.zeros(3)},
    "something less": {"window": None},
    "no weights": {"theta__theta": None},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_checkpoint_whose_tensors_do_not_fit_is_refused_before_they_are_used(fault, folder, capsys):
    (folder / OLDER).unlink()
    changes = FAULTS[fault]
    size = doubly.load(folder).model.size
    changes = {k: v[:1].expand(size).clone() if v is not None and v.shape == (67,) else v for k, v in changes.items()}
    reseal(folder / STATE, **changes)
    for command in ("evaluate", "resume", "sample"):
        said = refused(capsys, command, str(folder))
        assert "state.safetensors is damaged" in said


@pytest.mark.parametrize(
    "numbers",
    [
        {"epoch": -1},
        {"epoch": "4"},
        {"batch": 10**30},
        {"collected": None, "began": "x"},
        {"theta.eta": float("nan")},
        {"best": True},
        {"nosuch": 3},
        {"stale": [1]},
    ],
)
def test_numbers_of_a_checkpoint_are_checked(numbers, folder):
    file = folder / STATE
    (folder / OLDER).unlink()
    tensors, texts = load_tensors(file.read_bytes(), file, required=True)
    texts["state"] = json.dumps(json.loads(texts["state"]) | numbers)
    file.write_bytes(dump_tensors(tensors, texts))
    with pytest.raises(Damaged, match="is damaged"):
        doubly.load(folder)


def test_kernels_refuse_vectors_that_do_not_fit():
    """Without it, writing into what is too short is the end of the process, at once or later."""
    from doubly.kernels.bernoulli import run, weighted_sum
    from doubly.kernels.gibbs import fused_sweep
    from doubly.kernels.moves import Moments, Thermostat, adam, thermostat

    long, short, rng = torch.zeros(10**6), torch.zeros(3), torch.Generator()
    with pytest.raises(ValueError, match="one length"):
        adam(Moments(long, short, long), long, 0.9, 0.999, 0.1, 1.0, 1e-8)
    with pytest.raises(ValueError, match="one length"):
        thermostat(Thermostat(short, short), long, 0.1, 0.1, 0.1, 1.0, rng)
    with pytest.raises(ValueError, match="one length"):
        thermostat(Thermostat(long, short), long, 0.1, 0.1, 0.1, 1.0, rng)
    with pytest.raises(ValueError, match="do not fit"):
        run(torch.zeros(4, 3), np.zeros((4, 1000), np.float32), rng, True, (4,))
    with pytest.raises(ValueError, match="do not fit"):
        run(torch.zeros(3, 2), np.zeros((4, 2), np.float32), rng, True, (4,))
    with pytest.raises(ValueError, match="one weight"):
        weighted_sum(torch.zeros(2), torch.zeros(8, 3), 4)
    with pytest.raises(ValueError, match="a field"):
        fused_sweep(torch.zeros(4, 30), torch.zeros(4, 3), torch.zeros(4, 5), torch.zeros(30, 5), None, rng)


def test_a_sample_that_is_no_number_is_an_error_and_not_a_result(folder, capsys):
    """A stranger can list it with its checksum, too."""
    name = "posterior/draw-00002.safetensors"
    reseal(folder / name, theta=torch.full((doubly.load(folder).model.size,), torch.nan))
    file, content = folder / STATE, (folder / name).read_bytes()
    tensors, texts = load_tensors(file.read_bytes(), file, required=True)

    texts["samples"] = json.dumps(json.loads(texts["samples"]) | {name: hashlib.sha256(content).hexdigest()})
    file.write_bytes(dump_tensors(tensors, texts))
    said = refused(capsys, "evaluate", str(folder), "--of", "ensemble")
    assert "draw-00002.safetensors is damaged: theta has values that are no finite numbers" in said


@pytest.mark.parametrize(
    "change", [{"phi": torch.zeros(3)}, {"phi": torch.full((75,), torch.nan)}, {"more": torch.zeros(1)}]
)
def test_a_fitted_proposal_that_does_not_fit_is_fitted_again(change, folder):
    (proposal,) = (folder / "posterior").glob("proposal-*")
    posterior = doubly.load(folder, refit_passes=1)
    x = Run(folder).data().test[:20]
    expected = posterior.log_likelihood(x, draws=5)
    reseal(proposal, **change)
    np.testing.assert_array_equal(doubly.load(folder, refit_passes=1).log_likelihood(x, draws=5), expected)


@pytest.mark.parametrize(
    "change",
    [
        {"optimiser__m": torch.zeros(3)},
        {"optimiser__v": torch.zeros(10**6)},
        {"rng": torch.zeros(9, dtype=torch.uint8)},
        {"done": torch.tensor(1.5)},
    ],
)
def test_an_unfinished_fit_of_a_proposal_that_does_not_fit_starts_over(change, folder):
    def stop(what: str, share: float) -> None:
        if "pass 1" in what:
            raise KeyboardInterrupt

    x = Run(folder).data().test[:20]
    with pytest.raises(KeyboardInterrupt):
        doubly.load(folder, refit_passes=3, progress=stop).log_likelihood(x, draws=5)
    (unfinished,) = (folder / "posterior").glob("*unfinished*")
    reseal(unfinished, **change)
    found = doubly.load(folder, refit_passes=3).log_likelihood(x, draws=5)
    again = doubly.load(folder, refit_passes=3)
    again.cache.drop(
        next((folder / "posterior").glob("proposal-*-3*.safetensors")).relative_to(folder).as_posix()[:-12]
    )
    np.testing.assert_array_equal(again.log_likelihood(x, draws=5), found)


def test_a_run_that_asks_for_more_than_memory_holds_is_not_refitted(folder, capsys):
    """A fit of proposals has as many draws and rows as a training step: they are settings, and a stranger's."""
    file = folder / "config.json"
    file.write_bytes(dump_json(load_json(file.read_bytes(), file, required=True) | {"draws": 10**12}))
    for proposal in (folder / "posterior").glob("proposal-*"):
        proposal.unlink()
    said = refused(capsys, "evaluate", str(folder), "--refit", "1", "--draws", "5", "--no-settle", "--by", "draws")
    assert "a step of 1,000,000,000,000 draws for 500 rows needs about" in said
    assert doubly.load(folder).sample(2).shape == (2, 16)


def test_memory_that_is_refused_is_one_line(folder, monkeypatch, capsys):
    """Where no size was compared before: the allocators of PyTorch and NumPy say it each in their way."""
    for wrong in (lambda: torch.empty(10**17), lambda: np.empty(10**17)):
        monkeypatch.setattr(Run, "__init__", lambda *_, wrong=wrong, **__: wrong())
        assert "this needs more memory than there is: take fewer draws" in refused(capsys, "evaluate", str(folder))
    monkeypatch.setattr(Run, "__init__", lambda *_, **__: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):  # a fault of ours keeps its traceback
        main(["evaluate", str(folder)])


# Checksums, two checkpoints, samples


def flip(file: Path, at: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(bytes(content))


def test_of_two_checkpoints_the_older_is_taken_with_a_warning(folder, capsys):
    flip(folder / STATE, -5)
    with pytest.warns(RunWarning, match=r"state\.safetensors is damaged: its SHA-256.*taking the checkpoint before it"):
        posterior = doubly.load(folder)
    assert posterior.epoch == 3
    assert posterior.collected == 2
    assert len(posterior.samples()) == 2, "those that belong to it"
    main(["sample", str(folder), "--out", str(folder / "rows.csv")])
    assert "doubly: warning:" in capsys.readouterr().err


def test_a_run_goes_on_from_the_older_checkpoint_to_the_same_bits(whole, folder):
    flip(folder / STATE, -5)
    with pytest.warns(RunWarning, match="taking the checkpoint before it"):
        doubly.resume(folder, quiet=True)
    assert torch.equal(doubly.load(folder).last_theta, doubly.load(whole).last_theta)
    main(["verify", str(folder)])  # the damaged one was replaced, and did not replace the good one
    assert doubly.load(folder).epoch == 4


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_two_damaged_checkpoints_are_one_line(cut, folder, capsys):
    for name in (STATE, OLDER):
        (folder / name).write_bytes((folder / name).read_bytes()[:cut])
    assert re.search(r"state\.safetensors is damaged.*doubly repair", refused(capsys, "evaluate", str(folder)))
    assert "doubly repair" in refused(capsys, "resume", str(folder))


@pytest.mark.parametrize("of", ["draw-00002", "mean-00001"])
def test_a_sample_that_is_missing_or_damaged_is_named(of, folder, capsys):
    name = f"posterior/{of}.safetensors"
    flip(folder / name, -3)
    assert f"{of}.safetensors is damaged: its SHA-256" in refused(capsys, "evaluate", str(folder))
    (folder / name).unlink()
    assert f"{of}.safetensors is missing" in refused(capsys, "evaluate", str(folder))
    found = json.loads(refused(capsys, "verify", str(folder), "--json", code=1))
    assert [each["name"] for each in found["files"] if each["condition"] == "missing"] == [name]
    main(["repair", str(folder)])
    assert "1 samples are lost, 4 are kept" in capsys.readouterr().out
    with pytest.warns(RunWarning, match=f"has lost {name}"):
        posterior = doubly.load(folder)
    assert len(posterior.thetas) + len(posterior.means) == 4


def test_config_and_data_are_restored_from_a_checkpoint(folder, capsys):
    before = {name: (folder / name).read_bytes() for name in ("config.json", "data.json")}
    text = before["config.json"].replace(b'"phi_step": 0.001', b'"phi_step": 0.002')
    assert text != before["config.json"]
    (folder / "config.json").write_bytes(text)
    assert "config.json is damaged: its SHA-256" in refused(capsys, "evaluate", str(folder))
    (folder / "data.json").unlink()
    main(["repair", str(folder)])
    said = capsys.readouterr().out
    assert "config.json is restored" in said
    assert "data.json is restored" in said
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert (folder / "damaged" / "config.json").read_bytes() == text, "nothing is deleted"
    main(["verify", str(folder)])


def test_repair_takes_the_older_checkpoint_and_what_is_good(whole, folder, capsys):
    flip(folder / STATE, -5)
    (proposal,) = (folder / "posterior").glob("proposal-*")
    flip(proposal, -1)
    (evaluation,) = (folder / "evaluations").glob("*.json")
    flip(evaluation, evaluation.read_bytes().index(b'"log_likelihood"') + 20)
    assert "3 of" not in refused(capsys, "verify", str(folder), code=1)
    assert "evaluations" in refused(capsys, "report", str(folder))
    main(["repair", str(folder)])
    main(["verify", str(folder)])
    doubly.resume(folder, quiet=True)
    assert torch.equal(doubly.load(folder).mean(), doubly.load(whole).mean())


@pytest.mark.parametrize("name", [STATE, OLDER, "posterior/draw-00002.safetensors", "config.json"])
def test_repair_does_not_take_a_failing_disk_for_damage(name, folder, monkeypatch, capsys):
    """A file that cannot be read now may be good: it is neither set aside nor left out."""
    before, real = snapshot(folder), os.open

    def opened(path: Any, *rest: Any, **more: Any) -> int:
        if os.fspath(path) == name.rpartition("/")[2] and more.get("dir_fd"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        assert f"unreadable  {name}" in refused(capsys, "verify", str(folder), code=1)
        assert "Input/output error: this may be the disk" in refused(capsys, "repair", str(folder))
    assert snapshot(folder) == before
    main(["verify", str(folder)])


def test_a_disk_that_cannot_tell_whether_a_file_is_there_is_an_error(folder, monkeypatch):
    """Taken for absence, a sample would be left out by `repair`, and rows of a run would be looked for elsewhere."""

    def stat(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        with pytest.raises(UserError, match=r"cannot read .*data\.json: Input/output error"):
            Folder(folder).exists("data.json")
    assert not Folder(folder).exists("data.json/x")
    assert not Folder(folder).exists("nothing/x")


def test_repair_of_a_good_run_changes_nothing(folder, capsys):
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    main(["verify", str(folder)])
    main(["repair", str(folder)])
    assert "nothing was damaged" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "lock"} == {
        file: content for file, content in before.items() if file.name != "lock"
    }


def test_records_with_a_flipped_bit_are_left_out_and_told(folder):
    file = folder / "metrics.jsonl"
    flip(file, file.read_bytes().index(b'"valid": ') + 12)
    with pytest.warns(RunWarning, match=r"metrics\.jsonl is damaged: 1 of its lines"):
        records = Run(folder).metrics()
    assert [record["epoch"] for record in records] == [2, 3, 4]
    assert "sha256" not in records[0]
    flip(file, file.read_bytes().rindex(b'"sha256"') + 3)  # a line cannot lose its checksum unnoticed
    with pytest.warns(RunWarning, match=r"metrics\.jsonl is damaged: 2 of its lines"):
        assert [record["epoch"] for record in Run(folder).metrics()] == [2, 3]


def test_a_run_whose_records_are_lost_is_still_a_run(folder, capsys):
    """Nothing but the records is told of: the commands that need them say so in a line."""
    (folder / "metrics.jsonl").unlink()
    main(["resume", str(folder)])
    assert "records (metrics.jsonl) are lost" in capsys.readouterr().out
    main(["evaluate", str(folder), "--refit", "1", "--draws", "5", "--no-settle", "--by", "draws"])
    for command in ("report", "diagnose"):
        refused(capsys, command, str(folder))


@pytest.mark.parametrize(
    "change",
    [
        {"valid": "x"}, {"valid": None}, {"train": [1]}, {"seconds": float("inf")}, {"seconds": -1}, {"epoch": "1"},
        {"epoch": 10**40}, {"phase": 3}, {"sampler": "hot"}, {"sampler": {"temperature": "x"}}, {"norms": None},
        {"retried": "often"}, {"ess": 10**400}, {"step": {}},
    ],
)  # fmt: skip
def test_records_of_another_form_are_left_out(change, folder, capsys):
    """They have a good checksum: a stranger can write it."""
    file = folder / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    record = {name: value for name, value in json.loads(lines[-1]).items() if name != "sha256"}
    file.write_bytes(b"".join(lines[:-1]) + records.line(record | change))
    with pytest.warns(RunWarning, match="1 of its lines are left out"):
        assert len(Run(folder).metrics()) == 3
    file.write_bytes(b"".join(lines[:-1]) + records.line(record))
    assert len(Run(folder).metrics()) == 4


# Links


@pytest.fixture
def outside(tmp_path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "precious").write_text("mine")
    return place


def snapshot(place: Path) -> dict[str, bytes]:
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "lock", "metrics.jsonl", "config.json", "data.json", STATE, OLDER, "report.html", "figures", "evaluations",
        "posterior", "checkpoint", "curves", "own_files",
    ],
)  # fmt: skip
def test_nothing_outside_a_folder_is_touched_through_a_link(name, folder, outside, capsys):
    target = outside / ("dir" if "." not in name and name != "lock" else "precious")
    if target.name == "dir":
        shutil.copytree(folder / name, target) if (folder / name).exists() else target.mkdir()
        shutil.rmtree(folder / name, ignore_errors=True)
    else:
        (folder / name).unlink(missing_ok=True)
    os.symlink(target, folder / name)
    before = snapshot(outside)
    commands = [
        ["evaluate", "--refit", "1", "--draws", "5", "--no-settle", "--by", "draws"], ["report"], ["resume"],
        ["diagnose"], ["verify"], ["repair"],
    ]  # fmt: skip
    for command in commands:
        with contextlib.suppress(SystemExit):
            main([command[0], str(folder), *command[1:]])
        assert "Traceback" not in capsys.readouterr().err
    assert snapshot(outside) == before
    with contextlib.suppress(UserError):  # of the lock
        doubly.fit(folder, overwrite=True, **SETTINGS | {"epochs": 1, "collect": 0})
    assert snapshot(outside) == before


def test_a_lock_is_not_emptied(folder):
    (folder / "lock").write_text("what stood here")
    with Run(folder).locked():
        assert (folder / "lock").read_text() == "what stood here"


def test_names_do_not_lead_out(folder):
    for name in ("../x", "a/../x", "/etc/passwd", "posterior//x", ""):
        with pytest.raises(UserError, match="no name"):
            Folder(folder).read(name)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder, capsys):
    (folder / "data.json").unlink()
    os.mkfifo(folder / "data.json")
    assert "data.json" in refused(capsys, "evaluate", str(folder))


def test_a_pipe_in_place_of_records_is_not_waited_for(folder):
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    with pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
        Folder(folder).append("metrics.jsonl", b"x")


NO_FILES = ["config.json", "data.json", "metrics.jsonl", STATE, OLDER, "posterior/draw-00002.safetensors"]


@pytest.mark.parametrize("name", NO_FILES)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_damage_and_is_set_aside(name, make, folder, capsys):
    """Nothing waits for it, and it is never taken for a file that was not written yet."""
    (folder / name).unlink()
    make(folder / name)
    assert f"damaged     {name}" in refused(capsys, "verify", str(folder), code=1)
    main(["repair", str(folder)])
    assert "set aside" in capsys.readouterr().out
    main(["sample", str(folder), "-n", "1", "--out", str(folder / "rows.csv")])


def test_a_run_with_samples_and_no_checkpoint_is_not_whole(folder, capsys):
    for name in (STATE, OLDER):
        (folder / name).unlink()
    assert f"missing     {STATE}" in refused(capsys, "verify", str(folder), code=1)


def test_what_a_run_says_does_not_reach_the_terminal_as_a_command(folder, capsys):
    """Escapes could rewrite what was shown before, and lone surrogates cannot be written at all."""
    tensors, texts = load_tensors((folder / STATE).read_bytes(), folder / STATE, required=True)
    texts["lost"] = json.dumps(["\x1b[2Jowned\ndoubly: all is well", "\ud800", "\u202etxt"])
    (folder / STATE).write_bytes(dump_tensors(tensors, texts))
    said = refused(capsys, "verify", str(folder), code=1)
    main(["sample", str(folder), "-n", "1", "--out", str(folder / "rows.csv")])
    out, err = capsys.readouterr()
    assert len([line for line in err.splitlines() if line.startswith("doubly: ")]) == 1
    for text in (said, out, err):
        text.encode()
        assert not {"\x1b", "\u202e"} & set(text)
    assert "\\x1b[2Jowned doubly: all is well" in err


def test_a_lock_that_was_removed_meanwhile_is_no_lock(folder, monkeypatch):
    """Another process may have removed the folder between opening the lock and taking it."""

    def flock(*_: Any) -> None:
        (folder / "lock").unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="another process"), Run(folder).locked():
        pass


# Left behind by a kill


def test_temporaries_do_not_block_and_are_swept(folder, tmp_path):
    left = [folder / ".config.json.99999999.tmp", folder / "posterior" / ".draw-00009.safetensors.99999999.tmp"]
    for file in left:
        file.write_bytes(b"half")
    doubly.resume(folder, quiet=True)
    assert not any(file.exists() for file in left)
    started = tmp_path / "started"
    started.mkdir()
    (started / ".data.json.99999999.tmp").write_bytes(b"half")
    doubly.fit(started, **SETTINGS | {"epochs": 1, "collect": 0})
    assert not (started / ".data.json.99999999.tmp").exists()


def test_temporaries_of_a_process_that_runs_are_left_alone(folder):
    left = folder / f".config.json.{os.getppid()}.tmp"
    left.write_bytes(b"half")
    Folder(folder).sweep()
    assert left.exists()
    elsewhere = folder / ".config.json.01234567-99999999.tmp"  # of another machine
    elsewhere.write_bytes(b"half")
    Folder(folder).sweep()
    assert elsewhere.exists()
    os.utime(elsewhere, (0, 0))
    Folder(folder).sweep()
    assert not elsewhere.exists()


def test_overwriting_that_was_killed_can_be_done_again(folder):
    """Other files in the folder stay, and do not make it a folder of something else."""
    (folder / "my notes.txt").write_text("keep me")
    for name in ("data.json", "metrics.jsonl"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoint")
    doubly.fit(folder, overwrite=True, **SETTINGS | {"epochs": 1, "collect": 0})
    assert (folder / "my notes.txt").read_text() == "keep me"


def test_a_hang_up_stops_as_the_other_signals_do():
    with stop_signal() as received:
        os.kill(os.getpid(), signal.SIGHUP)
        assert received == [signal.SIGHUP]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stop_signal() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            assert received == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_folder_that_another_process_takes_meanwhile_is_not_overwritten(tmp_path, whole, monkeypatch):
    """Between the look at the folder and the lock, another fit makes its run there."""
    place, real = tmp_path / "new", Folder.locked

    @contextlib.contextmanager
    def late(folder: Folder) -> Iterator[None]:
        with real(folder):
            shutil.copytree(whole, place, dirs_exist_ok=True)
            yield

    monkeypatch.setattr(Folder, "locked", late)
    with pytest.raises(UserError, match="already holds a run"):
        doubly.fit(place, **SETTINGS)
    monkeypatch.undo()
    assert doubly.load(place).epoch == 4


# Versions


@pytest.mark.parametrize("name", ["config.json", "data.json"])
def test_a_newer_format_is_refused_by_name(name, folder, capsys):
    file = folder / name
    file.write_bytes(dump_json(load_json(file.read_bytes(), file, required=True) | {"format": 3}))
    assert f"{name} has format 3, which is newer than doubly" in refused(capsys, "evaluate", str(folder))


def test_what_computed_a_run_is_written_down(folder):
    made = json.loads((folder / "data.json").read_text())["made"]
    assert made.keys() == {"doubly", "torch", "numba", "kernels", "threads", "machine"}
    run = Run(folder)
    run.posterior()
    assert run.made["kernels"] in ("fused", "plain")


def test_other_kernels_on_resuming_are_told(folder, monkeypatch, capsys):
    run = Run(folder)
    run.plan(5)
    monkeypatch.setenv("DOUBLY_KERNELS", "0")
    main(["resume", str(folder)])
    assert "not the same bits as without a stop, for this is computed with kernels plain, before fused" in (
        capsys.readouterr().err
    )


def test_a_setting_that_is_absent_is_told(folder):
    file = folder / "config.json"
    fields = load_json(file.read_bytes(), file, required=True)
    del fields["friction"]
    file.write_bytes(dump_json(fields))
    with pytest.warns(RunWarning, match=r"does not say friction: taking 0\.1, the default of"):
        Run(folder)


# Disks


def failing(monkeypatch, number: int, where: str) -> None:
    """Every opening for writing of a path that has `where` in it fails with this error."""
    real = os.open

    def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        parent = more.get("dir_fd")
        there = os.path.join(os.readlink(f"/proc/self/fd/{parent}"), os.fspath(path)) if parent else os.fspath(path)
        if where in str(there) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", opened)


def test_a_run_that_cannot_be_written_to_is_evaluated(folder, monkeypatch, capsys, tmp_path):

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    failing(monkeypatch, errno.EROFS, str(folder))
    before = snapshot(folder)
    for _ in range(2):
        main(["evaluate", str(folder), "--refit", "2", "--draws", "5", "--no-settle", "--by", "draws"])
        out, err = capsys.readouterr()
        assert "log-likelihood" in out
        assert "Read-only file system; the result is not filed there" in err
    assert "fitting" not in err, "the second time, the proposal came from the cache elsewhere"
    assert snapshot(folder) == before
    assert list((tmp_path / "cache").rglob("proposal-*"))


def test_a_full_disk_ends_a_fit_in_one_line_and_loses_nothing(folder, monkeypatch, capsys):

    (folder / STATE).unlink()  # so that there is something to do
    before = (folder / OLDER).read_bytes()
    with monkeypatch.context() as patch:
        failing(patch, errno.ENOSPC, "checkpoint")
        said = refused(capsys, "resume", str(folder))
    assert re.search("cannot write .*state.safetensors: No space left on device", said)
    assert (folder / OLDER).read_bytes() == before
    doubly.resume(folder, quiet=True)


def test_file_systems_without_locks_are_told(folder, monkeypatch):

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(RunWarning, match="has no locks"), Run(folder).locked():
        pass


def test_a_short_write_is_written_to_its_end(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, content: real(file, content[:3]))
    write(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
