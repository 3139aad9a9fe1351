"""A chain that diverges goes back to its last checkpoint and goes on with a third of the step, and says so."""

from typing import Any

import numpy as np
import pytest
import torch

import doubly
from doubly.cli import main
from doubly.core.errors import Diverged, UserError
from doubly.runs.build import build
from doubly.runs.folder import Run
from doubly.training.state import init
from doubly.training.step import step

SETTINGS: dict[str, Any] = {"data": "bars", "hidden": (3,), "theta_steps": 1, "batch": 500, "valid_draws": 5}
SETTINGS |= {"epochs": 8, "collect": 5, "keep": 5, "threads": 1, "checkpoint_epochs": 1}
# with a step far too large, the paper's thermostat leaves finite numbers at once
PAPER = {"sampler": "sgnht", "step": 1e30}


def test_the_step_is_a_third_for_each_retry():
    """theta after one step of SGD, which has no noise, has moved a third as far."""
    run_config = doubly.Config(**SETTINGS, sampler="sgd")
    from doubly.data import load

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
    from doubly.training import protocol

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
