"""A model in other processes: a fork neither hangs nor changes bits unsaid; spawn and joblib give the same bits.

Each test runs in a process of its own that computes on two threads, as a user's does.
"""

import concurrent.futures
import multiprocessing
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import doubly
from doubly.core.errors import RunWarning
from forks import call

WAIT = 120  # seconds after which a process hangs
ROWS = np.eye(16)[:5]


class Answer(NamedTuple):
    sample: list[Any]
    likelihood: list[float]
    told: list[str]


def ask(folder: str) -> Answer:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RunWarning)
        posterior = doubly.load(folder, refit_passes=1)
        sample, scores = posterior.sample(3, "last"), posterior.log_likelihood(ROWS, draws=5, of="last")
    return Answer(sample.tolist(), scores.tolist(), [str(each.message) for each in told])


def fitted(folder: str) -> Answer:
    torch.set_num_threads(2)
    doubly.fit(
        folder, data="bars", hidden=(3,), epochs=1, collect=0, theta_steps=1, threads=2, valid_draws=5, quiet=True
    )
    torch.set_num_threads(2)
    torch.rand(600, 600) @ torch.rand(600, 600)  # starts PyTorch's threads
    return ask(folder)


def in_pool(folder: str, method: str) -> tuple[Answer, list[Answer]]:
    here = fitted(folder)
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        there = [future.result(WAIT) for future in [pool.submit(ask, folder) for _ in range(2)]]
    return here, there


def test_a_forked_process_neither_hangs_nor_changes_bits_unsaid(tmp_path):
    here, there = call(in_pool, str(tmp_path / "run"), "fork")
    assert here.told == []
    for answer in there:
        assert any("spawn" in said for said in answer.told)
        assert answer.sample == there[0].sample
    assert np.isfinite(there[0].likelihood).all()


def test_a_spawned_process_gives_the_same_bits(tmp_path):
    here, there = call(in_pool, str(tmp_path / "run"), "spawn")
    assert there == [here._replace(told=[]), here._replace(told=[])]


def by_joblib(folder: str) -> tuple[Answer, list[Answer]]:
    import joblib
    from joblib.externals.loky import get_reusable_executor

    here = fitted(folder)
    there = joblib.Parallel(n_jobs=2)(joblib.delayed(ask)(folder) for _ in range(2))
    get_reusable_executor().shutdown(wait=True, kill_workers=True)  # else this process waits for idle workers
    return here, there


def test_joblib_gives_the_same_bits(tmp_path):
    pytest.importorskip("joblib")
    here, there = call(by_joblib, str(tmp_path / "run"))
    assert there == [here, here]
