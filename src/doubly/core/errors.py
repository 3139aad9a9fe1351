"""The exceptions that are the user's to mend: a line saying what was expected, what came and what to do."""

import difflib
import unicodedata
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The command line prints it as one line and exits with 2; Python users catch a ValueError."""


class Diverged(UserError):
    """The chain left the numbers: the step is too large for this model and data."""


class Damaged(UserError):
    """A file of a run is not as it was written, or is no such file at all."""


class DiskError(UserError):
    """A file could not be read or written; `number` is the system's errno."""

    def __init__(self, message: str, number: int | None):
        super().__init__(message)
        self.number = number


class RunWarning(UserWarning):
    """What a user should know of a run that was opened all the same. The command line prints it as one line."""


_TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # characters that turn the direction of text


def printable(text: str) -> str:
    r"""A text of unknown origin for a terminal: what would be obeyed, or cannot be written, is shown. Lines stay lines.

    >>> print(printable("run \x1b[31m\ud800\u202e"))
    run \x1b[31m\ud800\u202e
    """
    return "".join(char.encode("unicode_escape").decode() if _is_obeyed(char) else char for char in text)


def _is_obeyed(char: str) -> bool:
    control = unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") and char not in "\n\t"
    return control or unicodedata.bidirectional(char) in _TURNING


def one_line(text: object) -> str:
    r"""The same in one line.

    >>> one_line("a\n  b")
    'a b'
    """
    return " ".join(line.strip() for line in printable(str(text)).splitlines())


def near(name: str, names: Iterable[str]) -> str:
    """The name that was probably meant, as a question in brackets; nothing where none is near.

    >>> near("sbnn", ["sbn", "nade"]), near("tree", ["sbn", "nade"])
    (' (did you mean sbn?)', '')
    """
    folded = {other.lower().replace("_", "-"): other for other in names}
    found = difflib.get_close_matches(str(name).lower().replace("_", "-")[:100], list(folded), n=1, cutoff=0.6)
    return f" (did you mean {folded[found[0]]}?)" if found else ""
