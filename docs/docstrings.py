"""Docstrings as Markdown, for the page of the API: doctests and equations become blocks of code, arguments lists."""

import re

from griffe import Extension, Object

ARGUMENT = r"^(\*{0,2}[a-z_]+(?:, [a-z_]+)*): "


class Blocks(Extension):
    """Marks paragraphs that are code, equations or arguments, of which Markdown would make one line."""

    def on_object(self, *, obj: Object, **_: object) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = marked(obj.docstring.value)


def marked(text: str) -> str:
    """The text with its doctests and equations in fences, and its arguments as a list."""
    return "\n\n".join(_marked(paragraph) for paragraph in text.split("\n\n"))


def _marked(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if paragraph.lstrip().startswith(">>>"):
        return f"```pycon\n{paragraph}\n```"
    if any(re.search(r"\S <- | {3,}\S", line.strip()) for line in lines):
        return f"```text\n{paragraph}\n```"
    if sum(bool(re.match(ARGUMENT, line)) for line in lines) > 1:
        return "\n".join(re.sub(ARGUMENT, r"* `\1`: ", line) for line in lines)
    return paragraph
