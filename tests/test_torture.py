"""The short form of `make torture` (tests/torture.py): a part of the calls of each work, some damage of each kind.

Which calls are struck is fixed; the long form strikes all of them, with every sampler, estimator and objective. It runs
in a process of its own, whose environment it sets.
"""

import subprocess
import sys
from pathlib import Path

import pytest

TORTURE = Path(__file__).with_name("torture.py")


@pytest.mark.parametrize(
    "part",
    [
        ["strikes", "--every", "23"],
        ["flips", "--flips", "300"],
        ["files", "--files", "1000"],
        ["fuzz", "--fuzz", "150"],
        ["steps", "--steps", "1000"],
    ],
)
def test_nothing_is_lost_and_no_number_changes_silently(part):
    only, *amount = part
    done = subprocess.run(
        [sys.executable, TORTURE, "--only", only, *amount, "--short"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "silent" not in done.stdout
    count = int(done.stdout.splitlines()[-1].split()[0])
    assert count >= {"strikes": 60, "flips": 300, "files": 1000, "fuzz": 150, "steps": 1000}[only]
