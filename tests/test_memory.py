"""The memory of a fit is what docs/reports/performance.md says: bytes for each cell, for each weight, for each row."""

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from doubly.runs.build import Facts, build
from doubly.runs.config import from_dict
from doubly.training.state import init
from doubly.training.step import batches, rows_at, step
from forks import call


def memory(name: str) -> int:
    found = re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def fit(width: int, rows: int, **fields: Any) -> int:
    """Some steps of a fit; how many weights it has."""
    method = build(from_dict(fields), Facts(width, "binary", ()))
    rng = torch.Generator().manual_seed(0)
    train = torch.randint(2, (rows, width), generator=rng, dtype=torch.uint8)
    state = init(method, train)
    for index in batches(torch.arange(rows), method.batch)[:6]:
        state = step(method, state, rows_at(method, train, index, state.rng), index, rows)
    return method.model.size + method.proposal.size


class Used(NamedTuple):
    bytes: int
    weights: int


def used(case: dict[str, Any]) -> Used:
    """In a process of its own: by how much its memory grows at most while some steps are taken."""
    torch.set_num_threads(1)
    fit(**case | {"width": 80, "rows": 60, "hidden": [40], "batch": 10})  # kernels are compiled
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = memory("VmRSS")
    weights = fit(**case)
    return Used(memory("VmHWM") - before, weights)


BASE: dict[str, Any] = {"width": 784, "hidden": [200], "batch": 100, "draws": 5, "rows": 2000}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a stretch of work")
@pytest.mark.parametrize(
    "change",
    [
        {"rows": 100_000},
        {"draws": 40},
        {"hidden": [2000]},
        {"hidden": [200, 200, 200], "draws": 20},
        {"model": "nade", "proposal": "nade"},
        {"model": "darn", "proposal": "darn"},
    ],
    ids=str,
)
def test_a_fit_takes_no_more_memory_than_is_said(change):
    """Bytes: 24 for each cell of draws x batch x (columns + hidden units), 64 for each weight of the model and the
    proposal, 1 for each cell of the training rows, and 16 million beside these for what is the same in any fit."""
    case = BASE | change
    found = call(used, case)
    cells = case["draws"] * case["batch"] * (case["width"] + sum(case["hidden"]))
    assert found.bytes < 24 * cells + 64 * found.weights + case["rows"] * case["width"] + 16e6
