"""`make quick`: the list of slow tests names tests that there are, and what is left touches every room."""

import re
from pathlib import Path

import pytest

from conftest import slow_tests

TESTS = Path(__file__).parent
ROOMS = sorted(path.name.removesuffix(".py") for path in (TESTS.parent / "src" / "doubly").iterdir()
               if path.is_dir() and (path / "__init__.py").exists())  # fmt: skip


def functions(file: Path) -> set[str]:
    return set(re.findall(r"^def (test_\w+)", file.read_text(), re.M))


@pytest.mark.parametrize("name", sorted(slow_tests()))
def test_what_is_listed_as_slow_is_there(name):
    file, _, function = name.partition("::")
    assert function.partition("[")[0] in functions(TESTS / file), "take it from tests/slow.txt, or write its new name"


@pytest.mark.parametrize("room", ROOMS)
def test_the_quick_tests_touch_every_room(room):
    """Tests that are not slow stand in a file that imports the room; of the estimator, by the name that people use."""
    wanted = "DeepGenerativeModel" if room == "sklearn" else rf"^from doubly(\.{room}\b| import .*\b{room}\b)"
    quick = []
    for file in TESTS.glob("test_*.py"):
        slow = {name.partition("::")[2] for name in slow_tests() if name.startswith(f"{file.name}::")}
        if re.search(wanted, file.read_text(), re.M):
            quick += sorted(functions(file) - slow)
    assert len(quick) >= 3, quick
