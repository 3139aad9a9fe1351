"""Ranks of torchrun: one chain shared by several, faults, and chains over ranks. Real processes, on this machine."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import doubly
from doubly.analysis.config import EvaluateConfig
from doubly.analysis.evaluate import at_work
from doubly.cli import main
from doubly.core.errors import UserError
from doubly.core.launch import OF_TORCHRUN, usual_shards
from doubly.core.ranks import ALONE, Ranks
from doubly.data import load
from doubly.latents import Annealing, LikelihoodConfig, likelihood
from doubly.latents.completions import ImputeConfig
from doubly.posterior import imputation, scores
from doubly.posterior.estimates import ScoreConfig
from doubly.runs.build import build
from doubly.runs.checkpoints import STATE, read_checkpoint
from doubly.runs.config import Config
from doubly.runs.fit import resume
from doubly.runs.folder import Run
from doubly.training.shards import bounds, new_order, sharded_batches, sharded_estimate
from doubly.training.state import init, own_part, whole
from exact import wanted

FIELDS: dict[str, Any] = {
    "data": "bars", "hidden": (4,), "epochs": 5, "collect": 2, "collect_every": "1", "batch": 500, "valid_draws": 2,
    "threads": 1, "checkpoint_epochs": 1, "min_epochs": 1, "step": 0.05, "shards": 4, "seed": 3,
}  # fmt: skip


def torchrun(
    ranks: int, *args: object, restarts: int = 0, module: tuple[str, ...] = ("-m", "doubly")
) -> subprocess.Popen:
    """`torchrun` on loopback, with a free port."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    line += ["--max-restarts", restarts, *module, *args]
    env = {name: value for name, value in os.environ.items() if not OF_TORCHRUN.fullmatch(name)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    STARTED.append(subprocess.Popen(list(map(str, line)), env=env, **pipes))
    return STARTED[-1]


STARTED: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Where a test has failed, its torchrun is told to stop its ranks."""
    yield
    for process in STARTED:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=120)
    STARTED.clear()


def flags(fields: dict[str, Any]) -> Iterator[object]:
    for name, value in fields.items():
        yield f"--{name.replace('_', '-')}"
        yield from value if isinstance(value, tuple) else [value]


def tensors(run: Run | Path) -> dict[str, torch.Tensor]:
    found = read_checkpoint(Run(run.path if isinstance(run, Run) else run).folder, STATE, sealed=True)
    assert found is not None
    return found.encoded.tensors


def records(run: Run | Path) -> list[dict]:
    opened = Run(run.path if isinstance(run, Run) else run)
    return [{**record, "seconds": 0} for record in opened.metrics()]


def same(one: Run | Path, other: Run | Path) -> bool:
    a, b = tensors(one), tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) and records(one) == records(other)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def epochs(out: Path) -> int:
    file = out / "metrics.jsonl"
    return len(file.read_bytes().splitlines()) if file.exists() else 0


def pid_of(process: subprocess.Popen, rank: int) -> int:
    """The process of a rank, which torchrun has started."""
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text():
            return int(pid)
    raise AssertionError(f"no rank {rank}")


# Shards


def test_each_mini_batch_has_rows_of_each_shard_and_each_row_comes_once():
    order = new_order(103, 4, torch.Generator().manual_seed(0))
    parts = sharded_batches(order, 20, 4)
    assert sorted(torch.cat(parts).tolist()) == list(range(103))
    ends = torch.tensor(bounds(103, 4)[1:-1])
    for index in parts:
        counts = torch.bucketize(index, ends, right=True).bincount(minlength=4)
        assert counts.min() >= 4
        assert counts.max() - counts.min() <= 1
    with pytest.raises(UserError, match="cannot be cut into 40 shards"):
        build(Config(**{**FIELDS, "shards": 40, "batch": 30}), load("bars"))


class _Part(Ranks):
    """A rank whose sums are put together by the test."""

    def __init__(self, rank: int, size: int):
        super().__init__()
        self.rank, self.size = rank, size


@pytest.mark.parametrize("estimator", ["persistent", "nais"])
def test_shards_add_up_to_the_gradient_of_the_batch_whoever_computes_them(estimator):
    data = load("bars")
    method = build(Config(**FIELDS | {"estimator": estimator}), data)
    train = torch.as_tensor(data.train)
    order = new_order(len(train), 4, torch.Generator().manual_seed(1))
    index = sharded_batches(order, 500, 4)[0]
    found = []
    for ranks in ([ALONE], [_Part(0, 2), _Part(1, 2)], [_Part(rank, 3) for rank in range(3)]):
        parts = []
        for rank in ranks:
            state = own_part(init(method, train), 4, rank)
            if estimator == "persistent":
                assert {name.partition(".")[0] for name in state.memory} == {f"shard{i}" for i in rank.own(4)}
            pair = doubly.Pair(method.model, state.theta.theta, method.proposal, state.phi.theta)
            batch = doubly.Batch(pair, train[index].float(), index, state.memory, torch.Generator().manual_seed(2))
            parts.append(sharded_estimate(method, batch, len(train), "both", rank))
        both = zip(*([part.theta_grad, part.phi_grad] for part in parts), strict=True)
        found.append([torch.stack([wanted(grad) for grad in each]).sum(0) for each in both])
    for grads in found[1:]:
        for one, other in zip(found[0], grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert whole(init(method, train), 4, ALONE).memory.keys() == init(method, train).memory.keys()


# One chain over ranks


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Run:
    """One process that computes all shards."""
    return doubly.fit(tmp_path_factory.mktemp("ranks") / "alone", quiet=True, deterministic=True, **FIELDS)


def test_four_ranks_give_the_same_bits_and_two_the_same_to_rounding(alone, tmp_path):
    four = torchrun(4, "fit", *flags(FIELDS), "--deterministic", "--out", tmp_path / "four")
    two = torchrun(2, "fit", *flags(FIELDS), "--out", tmp_path / "two")
    for process in (four, two):
        text, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
        assert text.count(": 5 epochs, 2 samples of the weights") == 1  # one rank talks
    assert same(alone, tmp_path / "four")
    a, b = tensors(alone), tensors(tmp_path / "two")
    torch.testing.assert_close(a["theta.theta"], b["theta.theta"], rtol=0, atol=1e-3)
    assert not torch.equal(a["theta.theta"], torch.zeros_like(a["theta.theta"]))
    assert Run(tmp_path / "two").posterior().collected == 2


def test_a_killed_rank_a_stop_and_another_number_of_ranks_change_nothing(tmp_path):
    out, fields = tmp_path / "run", FIELDS | {"epochs": 4000, "patience": 4000}
    process = torchrun(2, "fit", *flags(fields), "--deterministic", "--out", out, restarts=1)
    until(lambda: epochs(out) >= 2)
    os.kill(pid_of(process, 1), signal.SIGKILL)
    until(lambda: "TORCHELASTIC_RESTART_COUNT=1" in _environment(process))
    done = epochs(out)
    until(lambda: epochs(out) >= done + 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert (out / STATE).exists()
    run = Run(out)
    run.replan(epochs=len(run.metrics()) + 3)
    resume(out, quiet=True)  # by one rank, which takes all shards
    fields = dataclasses.asdict(run.config) | {"out": tmp_path / "undisturbed", "quiet": True}
    assert same(run, doubly.fit(**fields))


def _environment(process: subprocess.Popen) -> str:
    try:
        return Path(f"/proc/{pid_of(process, 1)}/environ").read_text()
    except (OSError, AssertionError):
        return ""


def test_a_rank_that_hangs_is_named(tmp_path):
    out = tmp_path / "run"
    # more seconds than a rank may have to wait for its turn on a busy machine
    fields = FIELDS | {"epochs": 4000, "patience": 4000, "rank_seconds": 12}
    process = torchrun(2, "fit", *flags(fields), "--out", out)
    until(lambda: epochs(out) >= 2 or process.poll() is not None)  # so there is a checkpoint
    hung = pid_of(process, 1)
    os.kill(hung, signal.SIGSTOP)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "does not answer" in line:
            break
    assert re.search(r"doubly: rank 0 of 2 waited for .*, but rank 1 does not answer \(within 12 seconds", said)
    os.kill(hung, signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert Run(out).posterior().epoch >= 1  # what was saved is whole


# Evaluation, annealing, fitting of proposals and imputation over ranks


def tasks(folder: Path, out: Path) -> None:
    """All that ranks share besides training, of small blocks, so that a few rows are several of them.

    Writes what is found, how often each rank has computed something, and by the command line, completed rows.
    """
    work = [(imputation, "run_chains"), (likelihood, "propose"), (Annealing, "log_likelihood")]
    counts = dict.fromkeys((name for _, name in work), 0)

    def counted(name: str, what: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return what(*args, **options)

        return call

    with ExitStack() as stack:
        for place, name in work:
            stack.enter_context(mock.patch.object(place, name, counted(name, getattr(place, name))))
        stack.enter_context(mock.patch.object(imputation, "CELLS", 2**15))
        stack.enter_context(mock.patch.object(scores, "ANNEALED", 16))
        found = {f"{name} {shards}": each for shards in (1, 4) for name, each in _answers(Run(folder), shards).items()}
        number = os.environ.get("RANK", "0")
        out.with_suffix(f".{number}.json").write_text(json.dumps(counts))
        if number == "0":
            np.savez(out, allow_pickle=False, **found)
        np.save(out.with_suffix(f".{number}.npy"), np.where(np.eye(16)[:5] == 1, np.nan, 1.0))
        main(["impute", str(folder), "--input", str(out.with_suffix(f".{number}.npy")), "--out", f"{out}-completed.npy",
              "--draws", "2", "--sweeps", "2", "--refit", "1", "--of", "mean", "--json"])  # fmt: skip


def _answers(run: Run, shards: int) -> dict[str, np.ndarray]:
    rows = run.data().test[:40]
    missing = np.random.default_rng(0).random(rows.shape) < 0.3
    path = Annealing(temperatures=4, chains=2)
    with at_work(EvaluateConfig(refit=2, refit_shards=shards), run, quiet=True) as open_posterior:
        posterior = open_posterior(run)
        posterior.estimator = "draws"
        draws = LikelihoodConfig(draws=1500, adaptive=True, refine=2, memory=0.5)
        found = posterior.score(rows, ScoreConfig("draws", draws), "mean")._asdict()
        found |= {f"annealed {name}": value for name, value in posterior.anneal(rows, path)._asdict().items()}
        gap = posterior.annealing_gap(40, path)
        found["gap"] = torch.tensor([gap.lower.mean, gap.upper.mean, gap.difference.mean])
        found["ensemble"] = posterior.log_likelihood(rows, draws=50, of="ensemble", by="draws")
        imputed = posterior.impute(np.where(missing, np.nan, rows), draws=6, how=ImputeConfig(sweeps=4))
        found |= imputed._asdict()
        found["conditional"] = posterior.log_conditional(rows, missing, imputed.completions, 50, by="draws")
    return {name: np.asarray(value) for name, value in found.items()}


def test_ranks_share_rows_and_answer_as_one(alone, tmp_path, capfd):
    """Scores, annealing, fitted proposals and completions are, bit for bit, those of one process."""
    shutil.copytree(alone.path, tmp_path / "shared")
    script = tmp_path / "script.py"
    lines = ["import sys", "from pathlib import Path", f"sys.path.insert(0, {str(Path(__file__).parent)!r})"]
    lines += ["from test_ranks import tasks", "tasks(*map(Path, sys.argv[1:]))"]
    script.write_text("\n".join(lines))
    process = torchrun(2, script, tmp_path / "shared", tmp_path / "two.npz", module=())
    tasks(alone.path, tmp_path / "one.npz")
    text, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert text.count('"missing": 5') == 1  # one rank talks
    one, two = (np.load(tmp_path / f"{name}.npz") for name in ("one", "two"))
    assert set(one.files) == set(two.files)
    for name in one.files:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert len(np.unique(one["draws 1"])) > 1  # rows were done after different rounds
    assert not np.array_equal(one["ensemble 1"], one["ensemble 4"])  # shards have random numbers of their own
    completed = [np.load(f"{tmp_path / name}.npz-completed.npy") for name in ("one", "two")]
    np.testing.assert_array_equal(*completed)
    whole, *parts = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one.0", "two.0", "two.1"))
    for name, count in whole.items():
        assert sum(part[name] for part in parts) == count
        assert min(part[name] for part in parts) >= count / 4


# Several chains over ranks


def test_chains_are_shared_by_the_ranks(tmp_path):
    fields = FIELDS | {"shards": 0, "chains": 3}
    process = torchrun(2, "fit", *flags(fields), "--out", tmp_path / "run")
    text, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert text.count("3 chains, 5 epochs, 6 samples of the weights") == 1
    run = Run(tmp_path / "run")
    assert len(run.posterior().others) == 2
    assert run.lost == {}
    config = dataclasses.asdict(run.chain(1).config)
    assert same(run.chain(1), doubly.fit(tmp_path / "alone", quiet=True, **config))


def test_what_torchrun_says_is_understood(monkeypatch):
    assert usual_shards() == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANK", "0")
    for ranks, shards in ((1, 4), (2, 4), (4, 4), (5, 8), (16, 16)):
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        assert usual_shards() == shards
    assert [list(_Part(rank, 3).own(4)) for rank in range(3)] == [[0], [1], [2, 3]]
    assert [list(_Part(rank, 5).own(2)) for rank in range(5)] == [[], [], [0], [], [1]]
