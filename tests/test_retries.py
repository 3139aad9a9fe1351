"""A chain that diverges goes back to its last checkpoint and goes on with a third of the step, and says so."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import doubly
from doubly.cli import main
from doubly.core.errors import Diverged, UserError
from doubly.core.ranks import ALONE
from doubly.data import load
from doubly.runs.build import build
from doubly.runs.folder import Run
from doubly.training import protocol
from doubly.training.protocol import FAR
from doubly.training.state import init
from doubly.training.step import step

SETTINGS: dict[str, Any] = {"data": "bars", "hidden": (3,), "theta_steps": 1, "batch": 500, "valid_draws": 5}
SETTINGS |= {"epochs": 8, "collect": 5, "keep": 5, "threads": 1, "checkpoint_epochs": 1}
# with a step far too large, the paper's thermostat leaves finite numbers at once
PAPER = {"sampler": "sgnht", "step": 1e30}


def test_the_step_is_a_third_for_each_retry():
    """theta after one step of SGD, which has no noise, has moved a third as far."""
    run_config = doubly.Config(**SETTINGS, sampler="sgd")
    data = load("bars")
    method = build(run_config, data)
    train = torch.as_tensor(data.train)
    moved = []
    for retried in (0, 1, 2):
        state = init(method, train)._replace(retried=retried)
        after = step(method, state, train[:100].float(), torch.arange(100), len(train))
        moved.append(after.theta.theta - state.theta.theta)
    torch.testing.assert_close(moved[1] * 3, moved[0], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(moved[2] * 9, moved[0], rtol=1e-3, atol=1e-6)


def diverging(monkeypatch: pytest.MonkeyPatch, epoch: int, below: int) -> None:
    """Make weights infinite in this epoch, until there have been so many retries."""

    def broken(method: Any, state: Any, *rest: Any) -> Any:
        found = step(method, state, *rest)
        if state.epoch == epoch and state.retried < below:
            found = found._replace(theta=found.theta._replace(theta=torch.full_like(found.theta.theta, torch.inf)))
        return found

    monkeypatch.setattr(protocol, "step", broken)


def test_a_chain_that_diverges_goes_on_with_a_third_of_the_step(monkeypatch, capsys, tmp_path):
    diverging(monkeypatch, epoch=4, below=2)
    run = doubly.fit(tmp_path / "run", **SETTINGS)
    said = capsys.readouterr().err
    assert "the chain diverged in epoch 5" in said
    assert "going back to epoch 5 with a third of the step (retry 1 of 3)" in said
    assert "(retry 2 of 3)" in said
    assert "(retry 3 of 3)" not in said
    records = run.metrics()
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [record.get("retried", 0) for record in records] == [0, 0, 0, 0, 2, 2, 2, 2]
    state = run.restore(build(run.config, run.facts))
    assert state is not None
    assert state.retried == 2
    main(["diagnose", str(run.path)])
    assert "has diverged 2 times and went on each time with a third of the step" in capsys.readouterr().out


def test_a_stop_after_a_retry_does_not_bring_the_larger_step_back(monkeypatch, tmp_path):
    diverging(monkeypatch, epoch=4, below=1)
    whole = doubly.fit(tmp_path / "whole", **SETTINGS, quiet=True)
    parts = doubly.fit(tmp_path / "parts", **SETTINGS | {"epochs": 6}, quiet=True)
    assert whole.config.step == parts.config.step
    state = parts.restore(build(parts.config, parts.facts))
    assert state is not None
    assert state.retried == 1


def test_retries_come_to_an_end(tmp_path):
    with pytest.raises(Diverged, match=r"with step 3\.7037e\+28; try step 1\.2e\+28 \(after 3 retries"):
        doubly.fit(tmp_path / "run", **SETTINGS | PAPER, quiet=True)
    with pytest.raises(Diverged, match=r"with step 1e\+30; try step 3\.3e\+29$"):
        doubly.fit(tmp_path / "none", **SETTINGS | PAPER | {"retries": 0}, quiet=True)
    with pytest.raises(UserError, match="retries must not be negative"):
        doubly.Config(retries=-1)


@pytest.mark.parametrize("sampler", ["thermostat", "thermostat-scalar", "sms-ubu", "sgld", "psgld"])
def test_weights_that_stay_finite_may_have_diverged(sampler, tmp_path):
    """A friction that adapts, or gradients that are bounded, keep weights finite at any step; rows tell."""
    expected = "auto" if sampler in ("thermostat", "thermostat-scalar", "sms-ubu") else r"3\.3e\+29"
    with pytest.raises(Diverged, match=rf"epoch 1: rows are .*e\+\d+ nats less likely .* 1e\+30; try step {expected}$"):
        doubly.fit(tmp_path / "run", **SETTINGS | {"sampler": sampler, "step": 1e30, "retries": 0}, quiet=True)


def test_a_finite_chain_that_has_diverged_goes_on_with_a_third_of_the_step(capsys, tmp_path):
    """From 300 on: with a third of it, or a ninth, rows are no longer far below where they started."""
    run = doubly.fit(tmp_path / "run", **SETTINGS | {"sampler": "thermostat", "step": 300})
    assert "going back to epoch 1 with a third of the step (retry 1 of 3)" in capsys.readouterr().err
    records = run.metrics()
    assert records[-1]["retried"] >= 1
    assert records[-1]["valid"] > -16 * (math.log(2) + FAR)


def test_rows_tell_of_divergence_only_where_they_are_far_less_likely_than_at_the_start():
    """3 nats a cell of both the training rows, over an epoch, and the validation rows."""
    x = torch.as_tensor(load("bars").train[:50])
    method = build(doubly.Config(**SETTINGS), load("bars"))
    state = init(method, x)
    rows = protocol._validate(method, state, x, ALONE)
    start = rows.double().mean().item()

    def lost(train: float, valid: float) -> float:
        totals = torch.tensor([50.0, 50 * train, 0, 0], dtype=torch.float64)
        return protocol._lost(method, state._replace(totals=totals), x, x, torch.full((50,), valid), ALONE)

    assert lost(start - 100, start - 200) == pytest.approx(100, abs=1e-3)
    assert lost(start - 200, start - 100) == pytest.approx(100, abs=1e-3)
    assert 100 > FAR * 16 > 45
    assert lost(start, start - 1e6) == 0, "learnt by heart"
    assert lost(start - 1e6, start) == 0, "a bound that is loose"
    assert lost(start - 20, start - 20) == 0


def test_data_far_from_their_scale_have_not_diverged(tmp_path):
    """At the start they are 10^4 nats a cell below any sensible density, and no chain does worse than that."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "wide.npy", rng.normal(size=(100, 4)) * 150)
    settings = SETTINGS | {"data": str(tmp_path / "wide.npy"), "model": "gaussian:widths=4,normal", "epochs": 3}
    run = doubly.fit(tmp_path / "run", **settings | {"proposal": "gaussian:widths=4", "retries": 0}, quiet=True)
    assert run.metrics()[0]["valid"] < -100


def test_data_of_an_absurd_scale_get_advice_that_helps(tmp_path):
    np.save(tmp_path / "huge.npy", np.random.default_rng(0).normal(size=(100, 4)) * 1e30)
    settings = (
        SETTINGS
        | {"data": str(tmp_path / "huge.npy"), "model": "gaussian:widths=4,normal", "retries": 1}
        | {"proposal": "gaussian:widths=4"}
    )
    with pytest.raises(Diverged, match="4 columns are far from mean 0 and standard deviation 1: scale them first"):
        doubly.fit(tmp_path / "run", **settings, quiet=True)


def test_old_runs_have_no_retries():
    from test_old_runs import OLD

    assert Run(OLD / "complete").config.retries == 0
