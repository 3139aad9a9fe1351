"""What things say of themselves: the text below each field of a dataclass, and a small table for notebooks."""

import ast
import functools
import html
import inspect
import re
import textwrap
from collections.abc import Mapping


@functools.cache
def field_docs(kind: type) -> dict[str, str]:
    """The text below each field, on one line; that of a subclass goes before that of its base.

    >>> from doubly.core.documented import Example
    >>> field_docs(Example)
    {'width': 'How wide it is.'}
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            ):
                found[field.target.id] = re.sub(r"\s+", " ", text.value.value).strip()
    return found


class Example:
    """What the doctest above reads."""

    width: int = 1
    """How wide
    it is."""


def html_table(title: str, told: Mapping[str, str]) -> str:
    """What a notebook shows of a thing: names and values; what may come from a file is escaped."""
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in told.items()
    )
    return f"<table><caption><b>{html.escape(title)}</b></caption>{rows}</table>"
