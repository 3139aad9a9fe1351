"""The tree: a file imports only from files above it, and every public name can be had."""

import ast
from pathlib import Path

import pytest

import doubly

SOURCE = Path(doubly.__file__).parent
# from the foundations to the front door; docs/architecture.md tells the same story
RANKS = [
    "errors", "choices", "registry", "kernels", "priors", "samplers", "schedules", "layers", "model", "inference",
    "train", "shelf", "evaluate", "impute", "posterior", "holes", "data", "config", "progress", "run", "drive",
    "estimator", "profile", "judge", "mixing", "diagnose", "report", "fillin", "recipes", "tables", "reproduce",
    "catalogue", "cli", "__main__",
]  # fmt: skip


def room(path: Path) -> str:
    """The file or package, directly below doubly/, that a source file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms of doubly that a file imports from, wherever in the file it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "doubly":
            found |= {alias.name for alias in node.names if alias.name in RANKS}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("doubly."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("doubly.")}
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_up_the_rank_order_only(path):
    own = room(path)
    assert own in RANKS, f"{own} has no rank: add it to RANKS and to docs/architecture.md"
    for other in imports(path) - {own}:
        assert RANKS.index(other) < RANKS.index(own), f"{own} imports {other}, which stands below it"


def test_every_public_name_can_be_had():
    for name in doubly.__all__:
        assert getattr(doubly, name) is not None
    assert set(doubly._HOMES) == set(doubly.__all__)


def test_the_architecture_page_lists_the_rank_order():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    places = [page.index(f"\n{name}") for name in RANKS if name != "__main__"]
    assert places == sorted(places)
