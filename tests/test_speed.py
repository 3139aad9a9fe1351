"""A step does not drift away from its floor, the matrix products that it cannot do without.

Counts only, never times: they are the same however busy the machine is. `docs/reports/performance.md` has times.
"""

import importlib
from pathlib import Path
from typing import NamedTuple

import pytest
import torch


class Allowed(NamedTuple):
    """Calls of PyTorch's operations and of fused loops in a step; with a tenth to spare, for other versions of it."""

    operations: int
    loops: int


# before buffers, a shared proposal and gradients without a graph: 629, 1293 and 1017 operations.
ALLOWED = {"sbn": Allowed(370, 13), "sbn3": Allowed(650, 29), "vae": Allowed(580, 11)}


@pytest.mark.parametrize("model", ALLOWED)
def test_a_step_has_few_operations_and_no_product_beyond_its_floor(model: str, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    monkeypatch.delenv("DOUBLY_KERNELS", raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = importlib.import_module("bounds").counts(model, steps=3)
    torch.set_num_threads(threads)
    assert found.operations <= ALLOWED[model].operations
    assert found.calls <= ALLOWED[model].loops
    assert found.flops <= found.floor
