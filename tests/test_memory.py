"""The memory of a fit is what docs/reports/performance.md says: bytes for each cell, for each weight, for each row."""

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = r"""
import re, sys, json, torch
from doubly.config import Facts, build, from_dict
from doubly.train import batches, init, rows_at, step
torch.set_num_threads(1)

def memory(name):
    return int(re.search(name + r":\s+(\d+)", open("/proc/self/status").read())[1]) * 1024

def fit(width, rows, **fields):
    method = build(from_dict(fields), Facts(width, "binary", ()))
    rng = torch.Generator().manual_seed(0)
    train = torch.randint(2, (rows, width), generator=rng, dtype=torch.uint8)
    state = init(method, train)
    for index in batches(torch.arange(rows), method.batch)[:6]:
        state = step(method, state, rows_at(method, train, index, state.rng), index, rows)
    return method.model.size + method.proposal.size

case = json.loads(sys.argv[1])
fit(**case | {"width": 80, "rows": 60, "hidden": [40], "batch": 10})  # kernels are compiled
open("/proc/self/clear_refs", "w").write("5")  # the peak is counted from here
before = memory("VmRSS")
weights = fit(**case)
print(memory("VmHWM") - before, weights)
"""

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
    done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(case)], check=True, capture_output=True, text=True)
    used, weights = (int(word) for word in done.stdout.split())
    cells = case["draws"] * case["batch"] * (case["width"] + sum(case["hidden"]))
    assert used < 24 * cells + 64 * weights + case["rows"] * case["width"] + 16e6
