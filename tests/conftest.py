"""One thread for every test: the models are small, and two workers share the cores. What is slow is marked here."""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # where tests take two threads: on a busy machine, spinning ones crawl

import pytest
import torch

torch.set_num_threads(1)

SLOW = Path(__file__).with_name("slow.txt")
IN_A_BROWSER = {"test_report_browser.py", "test_serve_page.py"}


def slow_tests() -> set[str]:
    return {line for line in SLOW.read_text().splitlines() if line and not line.startswith("#")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test is slow that is listed, by its own name or by that of its function, which means all its parameters."""
    slow, browser = slow_tests(), os.environ.get("DOUBLY_BROWSER") == "1"
    for item in items:
        if item.path.name in IN_A_BROWSER and not browser:
            # what a browser takes for a page depends on the machine
            item.add_marker(pytest.mark.skip(reason="in a browser, by make test-browser"))
        name = item.nodeid.removeprefix("tests/")
        if name in slow or name.partition("[")[0] in slow:
            item.add_marker(pytest.mark.slow)
