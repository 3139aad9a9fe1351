"""metrics.jsonl: a line of JSON for each epoch, with a checksum. Lines that are damaged or cut short are left out.

A checksum does not say that a line has the form of a record: who writes a folder can write it, too. So its form is
checked, and those who use records need not look.
"""

import hashlib
import json
import re
from typing import Any

from doubly.core.sealed import is_number

DIGITS = 16  # of the SHA-256 of a line


def line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record)
    return f'{text[:-1]}, "sha256": "{_sha(text)}"}}\n'.encode()


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def read(content: bytes, sealed: bool) -> tuple[list[dict[str, Any]], int]:
    """The records, and how many lines are damaged; a last line that a crash has cut short is not counted.

    Of a `sealed` run, lines without a checksum are damaged; version 0.1 wrote none.
    """
    found: list[dict[str, Any]] = []
    damaged = 0
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        record = _record(line, sealed)
        if record is None:
            damaged += 1
        else:
            found.append(record)
    return found, damaged


_SUMMED = re.compile(r'(\{.+), "sha256": "([0-9a-f]{16})"\}\n')


def _record(line: bytes, sealed: bool) -> dict[str, Any] | None:
    try:
        text = line.decode()
        summed = _SUMMED.fullmatch(text)
        if summed:
            text = summed[1] + "}"
            if _sha(text) != summed[2]:
                return None
        elif sealed:
            return None
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if "effective" in record:  # its name until version 0.2
        record["ess"] = record.pop("effective")
    return record if _has_form(record) else None


# what `training.protocol.Record` has, with what is logged beside it; version 0.1 had no step and no prior
_COUNTS, _MORE_COUNTS = ("epoch", "collected"), ("retried",)
_NUMBERS, _MORE_NUMBERS = ("train", "ess", "valid", "largest_gradient", "seconds"), ("step", "valid_stderr")
_GROUPS, _MORE_GROUPS = ("sampler", "norms", "predicted"), ("prior",)
_MOST = 10**15  # of anything that is counted, or of seconds


def _has_form(record: dict[str, Any]) -> bool:
    """Whether it has the fields of a record, each of its type."""

    def fields(needed: tuple[str, ...], more: tuple[str, ...]) -> list[Any]:
        return [record.get(name) for name in needed] + [
            value for name in more if (value := record.get(name)) is not None
        ]

    groups = fields(_GROUPS, _MORE_GROUPS)
    return (
        record.get("phase") in ("burn-in", "collect")
        and all(type(count) is int and 0 <= count < _MOST for count in fields(_COUNTS, _MORE_COUNTS))
        and all(map(is_number, fields(_NUMBERS, _MORE_NUMBERS)))
        and 0 <= record["seconds"] < _MOST
        and all(isinstance(group, dict) and all(map(is_number, group.values())) for group in groups)
    )
