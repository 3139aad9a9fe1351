"""The tree: rooms import from rooms above them, files from files above them, and every public name can be had."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import doubly

SOURCE = Path(doubly.__file__).parent
# from the foundations to the front door; docs/architecture.md tells the same story
ROOMS = [
    "core", "kernels", "layers", "samplers", "latents", "training", "posterior", "data", "runs", "analysis", "serve",
    "paper", "sklearn", "cli", "__main__",
]  # fmt: skip
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def place(path: Path) -> tuple[str, str]:
    """The room of a source file, and the file or package inside it; "" is the room's own __init__."""
    parts = [part.removesuffix(".py") for part in path.relative_to(SOURCE).parts]
    inside = parts[1] if len(parts) > 1 else ""
    return parts[0], "" if inside == "__init__" else inside


def imported(path: Path) -> set[tuple[str, str]]:
    """The places in doubly that a file imports from, anywhere in it; (room, "") is the room as a whole."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            first, room, inside, *_ = [*name.split("."), "", ""]
            if first == "doubly" and room in ROOMS:
                found.add((room, inside if inside in order(room) else ""))
    return found


def order(room: str) -> list[str]:
    """The files of a room from its foundations upward, as the docstring of its __init__ lists them."""
    if not (SOURCE / room).is_dir():
        return []
    doc = inspect.getdoc(importlib.import_module(f"doubly.{room}")) or ""
    return re.findall(r"^([a-z_]+) {2,}\S", doc, re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_up_only(path):
    room, inside = place(path)
    assert room in ROOMS, f"{room} has no rank: add it to ROOMS and to docs/architecture.md"
    files = order(room)
    assert not inside or inside in files, f"{room}/__init__.py does not list {inside}"
    for other, file in imported(path):
        if other != room:
            assert ROOMS.index(other) < ROOMS.index(room), f"{room} imports {other}, which stands below it"
        elif inside and file != inside:
            assert file, f"{room}/{inside} imports its own room as a whole: name the file"
            assert files.index(file) < files.index(inside), f"{room}/{inside} imports {file}, which stands below it"


@pytest.mark.parametrize("room", [room for room in ROOMS if (SOURCE / room).is_dir()])
def test_a_room_lists_its_files(room):
    there = {place(path)[1] for path in FILES if place(path)[0] == room} - {""}
    assert set(order(room)) == there


def test_the_front_door_shows_the_rooms():
    there = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - {"__init__", "__pycache__"} == set(ROOMS)


def test_every_public_name_can_be_had():
    for name in doubly.__all__:
        assert getattr(doubly, name) is not None
    assert set(doubly._HOMES) == set(doubly.__all__)


def test_the_architecture_page_lists_the_rooms():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    places = [page.index(f"\n{room} ") for room in ROOMS if room != "__main__"]
    assert places == sorted(places)
