"""One word for each thing: the words that docs/glossary.py gives up do not come back as names in the source."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import doubly

ROOT = Path(__file__).parents[1]
SOURCE = Path(doubly.__file__).parent
PAGE = runpy.run_path(str(ROOT / "docs" / "glossary.py"))
FILES = sorted(SOURCE.rglob("*.py"))

# each word given up, and what to use instead; "known()" is given up as the whole name of a function only
INSTEAD = {word: entry.word for entry in PAGE["GLOSSARY"] for word in entry.given_up}

# (file, name): why a word given up is the right one there
EXCEPTIONS = {
    ("analysis/report/figures.py", "height"): "of a picture, in inches",
    ("analysis/hub.py", "pull"): "from the Hub, as people say it",
    ("analysis/hub.py", "Pulled"): "what came of it",
    ("cli/hub.py", "Pull"): "its command",
}


class Name(NamedTuple):
    """A name that a source file gives to something."""

    kind: str
    text: str
    line: int


def names(path: Path) -> Iterator[Name]:
    """Names of the module, its classes, functions and methods, their parameters, and fields of classes."""
    module = path.parent.name if path.stem == "__init__" else path.stem
    yield Name("module", module, 1)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            yield Name("class", node.name, node.lineno)
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield Name("field", field.target.id, field.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Name("function", node.name, node.lineno)
            taken = node.args
            several = [arg for arg in (taken.vararg, taken.kwarg) if arg is not None]
            for arg in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *several):
                yield Name("parameter", arg.arg, arg.lineno)


def words(name: str) -> list[str]:
    """A name as lower-case words: snake_case and CamelCase are taken apart."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def given_up(path: str, name: Name) -> list[str]:
    """The words of a name that were given up."""
    if (path, name.text) in EXCEPTIONS:
        return []
    if path.startswith("cli/") and words(name.text) == ["fill"]:  # a command of that name
        return []
    whole = [f"{name.text}()"] if name.kind == "function" else []
    return [word for word in (*words(name.text), *whole) if word in INSTEAD]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_name_has_a_word_that_was_given_up(path):
    where = path.relative_to(SOURCE).as_posix()
    wrong = [
        f"{where}:{name.line}: the {name.kind} {name.text} has the word {word!r}; use {INSTEAD[word]}: docs/glossary.md"
        for name in names(path)
        for word in given_up(where, name)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_still_needed():
    there = {(path.relative_to(SOURCE).as_posix(), name.text) for path in FILES for name in names(path)}
    assert there >= set(EXCEPTIONS), "take out what is no longer there"


def test_names_are_taken_apart():
    assert words("_EssOfDraws") == ["ess", "of", "draws"]
    assert words("sleep_weight2") == ["sleep", "weight", "2"]
    assert words("NAISConfig") == ["nais", "config"]


def test_names_of_before_would_be_found():
    old = ["Visit", "hollow_rows", "_fillin", "effective", "DREAMS", "unitsAlive", "log_prob_tracked", "Question"]
    assert all(given_up("latents/nais.py", Name("parameter", name, 1)) for name in old)
    assert given_up("latents/nais.py", Name("function", "known", 1))
    assert not given_up("latents/nais.py", Name("parameter", "known", 1))
    assert given_up("latents/completions.py", Name("function", "fill", 1))
    assert not given_up("cli/impute.py", Name("class", "Fill", 1))


def test_no_word_is_given_up_twice_or_used():
    all_words = [word for entry in PAGE["GLOSSARY"] for word in entry.given_up]
    assert len(all_words) == len(set(all_words))
    names = [name for entry in PAGE["GLOSSARY"] for name in re.findall(r"`(.*?)`", entry.word)]
    assert not {word for name in names for word in words(name)} & set(all_words)


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "glossary.md").read_text() == PAGE["page"](), "run make docs"
