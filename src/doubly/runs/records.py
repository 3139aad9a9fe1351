"""metrics.jsonl: a line of JSON for each epoch, with a checksum. Lines that are damaged or cut short are left out."""

import hashlib
import json
import re
from typing import Any

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
    if not isinstance(record, dict) or type(record.get("epoch")) is not int:
        return None
    if "effective" in record:  # its name until version 0.2
        record["ess"] = record.pop("effective")
    return record
