"""The list of small bugs that `make mutate` plants can be planted: it does not rot."""

import ast
from pathlib import Path

import pytest

from mutate import ROOT, Mutation, mutations

SOURCE = ROOT / "src" / "doubly"
EVERY = mutations()


def named(mutation: Mutation) -> str:
    return f"{mutation.file}: {mutation.what}"


@pytest.mark.parametrize("mutation", EVERY, ids=named)
def test_a_bug_can_still_be_planted(mutation):
    """Its text occurs once, what takes its place is other Python, and the tests that must see it are there."""
    text = (SOURCE / mutation.file).read_text()
    changed = mutation.applied(text)  # an error unless it occurs exactly once
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert mutation.tests, "name a test that must see it"
    for path in mutation.paths():
        file, _, function = path.partition("::")
        assert (ROOT / file).exists(), file
        assert not function or f"def {function.partition('[')[0]}(" in (ROOT / file).read_text(), function


def test_the_list_goes_through_all_rooms():
    assert len({named(mutation) for mutation in EVERY}) == len(EVERY) >= 60
    rooms = {Path(mutation.file).parts[0] for mutation in EVERY}
    assert rooms >= {"core", "kernels", "layers", "samplers", "latents", "training", "posterior", "data", "analysis"}
