"""Several chains: their processes, their folder and their posterior; what dies alone, and what goes on."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import doubly
from doubly.analysis.convergence import ess_bulk, mean_ranks
from doubly.analysis.diagnose import diagnose
from doubly.analysis.evaluate import evaluate
from doubly.analysis.outcome import outcome
from doubly.analysis.verify import verify
from doubly.core.errors import Diverged, RunWarning, UserError
from doubly.core.launch import OF_TORCHRUN
from doubly.core.ranks import Team
from doubly.runs import chains
from doubly.runs.checkpoints import STATE, read_checkpoint
from doubly.runs.export import export, load_file
from doubly.runs.fit import resume
from doubly.runs.folder import Run
from doubly.runs.progress import Progress
from doubly.runs.stops import Interrupted

N, WIDTH, CHAINS, KEPT = 40, 3, 3, 60
RATES = np.array([0.1, 0.5, 0.8])
BARS: dict[str, Any] = {
    "data": "bars", "hidden": (4,), "epochs": 8, "collect": 4, "batch": 500, "valid_draws": 2, "threads": 1,
    "checkpoint_epochs": 1, "min_epochs": 2, "collect_every": "1", "step": 0.05,
}  # fmt: skip


def same(one: Run, other: Run) -> bool:
    """Whether two chains stand at the same point, bit for bit, and have recorded the same on the way."""
    states = [read_checkpoint(run.folder, STATE, sealed=True) for run in (one, other)]
    assert states[0] is not None
    assert states[1] is not None
    a, b = (state.encoded.tensors for state in states if state)
    records = [[{**record, "seconds": 0} for record in run.metrics()] for run in (one, other)]
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) and records[0] == records[1]


def alone(run: Run, number: int, out: Path) -> Run:
    """The chain of this number as a run of its own."""
    config = dataclasses.asdict(run.chain(number).config)
    return doubly.fit(out, quiet=True, **config)


# One posterior


@pytest.fixture(scope="module")
def table() -> doubly.Data:
    rng = np.random.default_rng(3)
    rows = (rng.random((N + 20, WIDTH)) < RATES).astype(np.uint8)
    return doubly.Data("bits", rows[:N], rows[N : N + 10], rows[N + 10 :], (WIDTH,), "binary")


@pytest.fixture(scope="module")
def pooled(tmp_path_factory, table) -> tuple[Run, list[dict], list[int]]:
    """Chains over the biases of independent bits, and what listeners were told."""
    epochs: list[dict] = []
    samples: list[int] = []
    run = doubly.fit(
        tmp_path_factory.mktemp("chains") / "run", data=table, hidden=(), prior="normal:scale=1.5", step=0.2,
        batch=N, theta_steps=60, epochs=75, min_epochs=5, patience=1, collect=KEPT, collect_every="1", keep=KEPT,
        means=(), chains=CHAINS, seed=5, threads=1, quiet=True, checkpoint_epochs=100,
        on_epoch=epochs.append, on_sample=lambda number, theta: samples.append(len(theta)),
    )  # fmt: skip
    return run, epochs, samples


def exact_moments(table: doubly.Data) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each bias given the rows, by quadrature; biases are independent."""
    grid = np.linspace(-8, 8, 4001)
    ones = table.train.sum(0)[:, None]
    log_density = ones * grid - N * np.logaddexp(0, grid) - grid**2 / (2 * 1.5**2)
    weight = np.exp(log_density - log_density.max(1, keepdims=True))
    weight /= weight.sum(1, keepdims=True)
    mean = weight @ grid
    return mean, np.sqrt(weight @ grid**2 - mean**2)


def test_pooled_chains_have_the_mean_and_the_spread_of_the_posterior(pooled, table):
    run, _, _ = pooled
    posterior = doubly.load(run.path)
    thetas = torch.stack(posterior.samples()).double().numpy()
    assert thetas.shape == (CHAINS * KEPT, WIDTH)
    mean, sd = exact_moments(table)
    each = thetas.reshape(CHAINS, KEPT, WIDTH)
    worth = np.array([ess_bulk(each[:, :, i]) for i in range(WIDTH)])
    assert (worth > 60).all()
    # 4.4 standard errors: for 3 biases, chance alone is beyond once in 30,000 times; to that, 2 % of bias of the step
    assert (np.abs(thetas.mean(0) - mean) < sd * (4.4 / np.sqrt(worth) + 0.02)).all()
    assert (np.abs(thetas.std(0) / sd - 1) < 4.4 / np.sqrt(2 * worth) + 0.02).all()


def test_each_chain_is_a_run_of_its_own_seed_and_chain_0_has_that_of_the_run(pooled, tmp_path, table):
    run, epochs, samples = pooled
    configs = [run.chain(number).config for number in range(CHAINS)]
    assert configs[0].seed == 5
    assert len({config.seed for config in configs}) == CHAINS
    assert all(config.chains == 1 for config in configs)
    starts = {tuple(run.chain(number).posterior().last().tolist()) for number in range(CHAINS)}
    assert len(starts) == CHAINS
    assert {record["chain"] for record in epochs} == set(range(CHAINS))
    assert samples == [WIDTH] * CHAINS * KEPT
    fields = dataclasses.asdict(run.config) | {"data": table, "chains": 1}
    assert same(doubly.fit(tmp_path / "alone", quiet=True, **fields), run.chain(0))


def test_one_posterior_answers_as_all_chains_together(pooled, table, tmp_path):
    run, _, _ = pooled
    posterior = doubly.load(run.path)
    thetas = torch.stack(posterior.samples()).double().numpy()
    x = table.test.astype(float)
    by_hand = (x[:, None] * thetas - np.logaddexp(0, thetas)).sum(-1)
    expected = np.logaddexp.reduce(by_hand, 1) - math.log(len(thetas))
    np.testing.assert_allclose(posterior.log_likelihood(x), expected, atol=1e-5)
    found = evaluate(run.path, quiet=True, split="test")
    assert (found.chains, found.settings.of) == (CHAINS, "ensemble")
    assert found.summary.log_likelihood == pytest.approx(expected.mean(), abs=1e-5)
    assert [file.name for file in (run.path / "evaluations").iterdir()] == [
        f"test-ensemble-1000-of-{CHAINS}-chains.json"
    ]
    with pytest.raises(UserError, match="the mean over several chains is not a model"):
        evaluate(run.path, quiet=True, of="mean")
    assert posterior.sample(4000).mean(0) == pytest.approx(RATES, abs=0.25)
    incomplete = np.where(np.eye(WIDTH)[:2] == 1, np.nan, 1.0)
    assert posterior.impute(incomplete).completions.shape == (20, 2, WIDTH)
    opened = load_file(export(run, tmp_path / "all.doubly"))
    np.testing.assert_array_equal(opened.log_likelihood(x), posterior.log_likelihood(x))
    assert len(opened.others) == CHAINS - 1


def test_chains_are_diagnosed_together(pooled):
    run, _, _ = pooled
    found = diagnose(run.path)
    assert len(found.runs) == CHAINS
    assert found.samples == KEPT
    assert all(summary.rhat < max(1.1, 1.1 * found.chance_rhat) for summary in found.traces.values())
    assert all(len(ranks) == CHAINS for ranks in found.ranks.values())
    assert "valid" in found.ranks
    assert not any("only one chain" in line or "lies" in line for line in found.verdict)
    told = outcome(run)
    assert (told.chains, told.collected, told.lost) == (CHAINS, CHAINS * KEPT, {})
    assert f"over {CHAINS} chains" in told.text()
    assert json.dumps(told.to_json())
    assert verify(run.path).good
    assert any(finding.name == f"chains/1/{STATE}" for finding in verify(run.path).findings)


def test_chains_make_one_report(pooled):
    from doubly.analysis.report import make

    run, _, _ = pooled
    text, page = make(run.path)
    html = page.read_text()
    assert "Ranks: validation log-likelihood" in html
    assert f"of each of {CHAINS} chains" in html.replace("\n", " ")
    assert f"an ensemble of {8 // CHAINS * CHAINS} samples of the weights, from {CHAINS} chains" in html
    assert f"by the first of {CHAINS} chains" in text


# What ranks say


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_chains_that_agree_are_rarely_told_apart_and_others_are(rho):
    rng = np.random.default_rng(0)
    apart = []
    for _ in range(100):
        x = rng.standard_normal((4, 200))
        for t in range(1, 200):
            x[:, t] = rho * x[:, t - 1] + math.sqrt(1 - rho**2) * x[:, t]
        apart.append(max(rank.apart for rank in mean_ranks(x)))
    # Four two-sided tests. A mean that is judged by an error estimated from n effective samples is like one of
    # Student's t with n - 1 degrees of freedom; n = 200 (1 - rho) / (1 + rho). The share of 100 trials may err by 3 of
    # its errors.
    expected = 4 * 2 * stats.t.sf(3.0, 200 * (1 - rho) / (1 + rho) - 1)
    assert np.mean(np.array(apart) > 3.0) <= expected + 3 * math.sqrt(expected * (1 - expected) / 100)
    x[2] += 1.5
    ranks = mean_ranks(x)
    assert np.argmax([rank.apart for rank in ranks]) == 2
    assert ranks[2].apart > 3
    # 1/4 of the values are its own; it exceeds one of the others with the probability Phi(1.5 / sqrt 2) = 0.856
    assert ranks[2].mean == pytest.approx(0.25 * 0.5 + 0.75 * 0.856, abs=4 * ranks[2].stderr)
    assert np.mean([rank.mean for rank in ranks]) == pytest.approx(0.5)


# What dies alone, and what goes on


def test_a_chain_that_is_killed_or_diverges_is_lost_alone_and_comes_back(tmp_path, monkeypatch, capfd):
    processes: list[chains.Process] = []
    start = chains._start

    def noted(*args: Any) -> chains.Process:
        processes.append(start(*args))
        if len(processes) == 2:  # at once: a chain so small could end before it is told of
            processes[1].process.kill()
        return processes[-1]

    monkeypatch.setattr(chains, "_start", noted)
    run = doubly.fit(tmp_path / "run", chains=2, **BARS)
    assert run.lost == {1: "its process was killed (SIGKILL)"}
    assert len(run.chain(0).metrics()) == 8
    said = capfd.readouterr().err
    assert "warning: chain 1 is lost: its process was killed (SIGKILL); the others go on" in said
    assert "1 of 2 chains are left and answer" in said

    second = run.chain(1)
    good = second.config
    second.replan(step=1e9, retries=0)
    resume(run.path, quiet=True)
    assert list(run.lost) == [1]
    assert "the chain diverged in epoch" in run.lost[1]
    assert "chain 1 is lost: the chain diverged" in outcome(run).text()
    assert "is lost" in diagnose(run.path).verdict[0]
    with pytest.warns(RunWarning, match="chain 1 of .* was lost"):
        assert not doubly.load(run.path).others

    second.replan(step=good.step, retries=good.retries)
    resume(run.path, quiet=True)
    assert run.lost == {}
    assert len(doubly.load(run.path).others) == 1
    assert same(run.chain(1), alone(run, 1, tmp_path / "alone"))


def test_where_all_chains_are_lost_the_fit_fails_and_says_why(tmp_path):
    run = Run.__new__(Run)
    run.path = tmp_path
    run.config = doubly.Config(chains=2)
    lost = dict.fromkeys(range(2), "the chain diverged in epoch 3: try step 0.1")
    with Progress(quiet=True) as progress, pytest.raises(Diverged, match=r"^the chain diverged in epoch 3"):
        chains._end(run, lost, progress, [])
    lost[1] = "its process was killed (SIGKILL)"
    with (
        Progress(quiet=True) as progress,
        pytest.raises(UserError, match=r"^all chains are lost: its process.*;"),
    ):
        chains._end(run, lost, progress, [])
    del lost[0]
    with Progress(quiet=True) as progress, pytest.raises(Interrupted, match=r"^stopped 1 of 2 chains, all saved"):
        chains._end(run, lost, progress, [15])


def test_the_first_rank_shows_the_chains_of_all_ranks_at_all_times():
    store, boards = torch.distributed.PrefixStore("", torch.distributed.HashStore()), []
    for rank in range(2):
        ranks = Team.__new__(Team)
        ranks.rank, ranks.size, ranks.store = rank, 2, store
        boards.append(chains.Board(ranks, range(3)))
    first, second = [chains.Stand(0, trace=[-1.0]), chains.Stand(2, trace=[-3.0])], [chains.Stand(1, trace=[-2.0])]
    assert len(boards[1].with_others(second)) == 1  # type: ignore[arg-type]
    for _ in range(2):  # the second time nobody is asked: a moment ago is soon enough
        shown = boards[0].with_others(first)  # type: ignore[arg-type]
        assert chains.summary(shown) == "3 chains, valid -1.00 -2.00 -3.00"


def command(*args: object) -> subprocess.Popen:
    line = [sys.executable, "-m", "doubly", *map(str, args)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_epoch(run: Path, number: int, epoch: int) -> None:
    file = run / "chains" / str(number) / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (file.exists() and len(file.read_bytes().splitlines()) >= epoch):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stop_and_a_kill_lose_nothing(tmp_path):
    out = tmp_path / "run"
    flags = ["--data", "bars", "--hidden", 4, "--epochs", 400, "--collect", 4, "--batch", 500, "--valid-draws", 2,
             "--threads", 1, "--checkpoint-epochs", 3, "--patience", 390, "--collect-every", 1]  # fmt: skip
    process = command("fit", *flags, "--chains", 2, "--out", out)
    wait_for_epoch(out, 1, 1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped 2 chains, all saved; go on with: doubly resume" in said
    done = [len(Run(out).chain(number).metrics()) for number in (0, 1)]

    process = command("resume", out)
    wait_for_epoch(out, 0, done[0] + 4)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = [len(Run(out).chain(number).metrics()) for number in (0, 1)]
    for number in (0, 1):
        Run(out).chain(number).replan(epochs=max(done) + 12)
    process = command("resume", out, "--json")  # at once: it waits for the chains that are saving
    text, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    told = json.loads(text)
    assert (told["chains"], told["lost"], told["convergence"]["chains"]) == (2, {}, 2)
    run = Run(out)
    # what a chain does before its end depends on neither plan
    assert same(run.chain(1), alone(run, 1, tmp_path / "alone"))


def test_wrong_numbers_of_chains_are_refused(tmp_path):
    with pytest.raises(UserError, match="chains must be between 1 and 256, got 0"):
        doubly.fit(tmp_path / "run", chains=0)
    for name in ("RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "MASTER_ADDR"):
        assert OF_TORCHRUN.fullmatch(name)
    assert not OF_TORCHRUN.fullmatch("PATH")


def test_a_restart_goes_on_with_the_same_run_alone(tmp_path, monkeypatch):
    """A folder of other settings, which may be anybody's, is refused after a restart as it was before it."""
    fields: dict[str, Any] = {"data": "bars", "hidden": (3,), "epochs": 2, "collect": 1, "threads": 1}
    fields |= {"shards": 2, "quiet": True}
    doubly.fit(tmp_path / "run", **fields)
    before = (tmp_path / "run" / "config.json").read_bytes()
    monkeypatch.setattr("doubly.runs.fit.launched", lambda: True)
    monkeypatch.setattr("doubly.runs.fit.restarts", lambda: 1)
    assert len(doubly.fit(tmp_path / "run", **fields).metrics()) == 2
    with pytest.raises(UserError, match="overwrite"):
        doubly.fit(tmp_path / "run", **fields | {"seed": 1})
    assert (tmp_path / "run" / "config.json").read_bytes() == before
