"""Sealed files: JSON and tensors that carry the SHA-256 of themselves.

The seal stands in the file, among its names: it is the checksum of the file with zeros in place of the seal. So a file
and its checksum are written in one move, by any number of processes. What files hold is data: JSON is bounded in size
and depth, and tensors come as safetensors, which run no code.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch

from doubly.core.cache import Tensors
from doubly.core.errors import Damaged

SEAL = "seal"
BLANK = "0" * 64
MOST_JSON = 2**26  # bytes; the names of all categories of a wide table take a few millions
_SEAL = re.compile(rb'"seal": ?"([0-9a-f]{64})"')


def dump_json(fields: dict[str, Any]) -> bytes:
    """Names and values as sealed JSON.

    >>> load_json(dump_json({"epoch": 3}), Path("here.json"), required=True)
    {'epoch': 3}
    """
    return _sealed(json.dumps({SEAL: BLANK, **fields}, indent=2).encode() + b"\n")


def load_json(content: bytes, path: Path, required: bool) -> dict[str, Any]:
    """What was dumped; `path` is named where it is damaged. Without a seal it is refused only if one is required."""
    found = parse_json(content, path)
    _check(content, content, path, required)
    found.pop(SEAL, None)
    return found


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """Names and values from JSON, whatever its seal."""
    if len(content) > MOST_JSON:
        raise Damaged(f"{path} is damaged: it has {len(content)} bytes, where at most {MOST_JSON} are expected")
    try:
        found = json.loads(content)
    except RecursionError:
        raise Damaged(f"{path} is damaged: it is nested too deeply") from None
    except ValueError as error:  # of the decoder, of the encoding, of numbers with thousands of digits
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(found, dict):
        raise Damaged(f"{path} is damaged: it holds {type(found).__name__}, not names and values")
    return found


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number that a float can hold; NaN and infinities are.

    >>> is_number(3), is_number(float("nan")), is_number(True), is_number(10**400), is_number("3")
    (True, True, False, False, False)
    """
    return type(value) is float or (type(value) is int and abs(value) < 10**300)


class Sealed(NamedTuple):
    """Tensors and texts beside them."""

    tensors: Tensors
    texts: dict[str, str]


def dump_tensors(tensors: Tensors, texts: dict[str, str] | None = None) -> bytes:
    """Tensors, on the host, with texts beside them, as a sealed safetensors file."""
    there = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return _sealed(safetensors.torch.save(there, {SEAL: BLANK, **(texts or {})}))


def load_tensors(content: bytes, path: Path, required: bool) -> Sealed:
    """What was dumped; `path` is named where it is damaged. Without a seal it is refused only if one is required."""
    try:
        found = safetensors.torch.load(content)
        header = content[8 : 8 + int.from_bytes(content[:8], "little")]
        texts = json.loads(header).get("__metadata__") or {}
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from None
    _check(content, header, path, required)
    # cloned, so that memory is aligned as it was and matrix products give the same bits
    tensors = {name: tensor.clone() for name, tensor in found.items()}
    return Sealed(tensors, {name: text for name, text in texts.items() if name != SEAL})


def _sealed(content: bytes) -> bytes:
    found = _SEAL.search(content)
    assert found is not None
    assert found[1] == BLANK.encode()
    return content[: found.start(1)] + hashlib.sha256(content).hexdigest().encode() + content[found.end(1) :]


def _check(content: bytes, names: bytes, path: Path, required: bool) -> None:
    """Whether the seal, which stands in the part `names`, is that of the content."""
    found = _SEAL.search(names)
    if found is None:
        if required:
            raise Damaged(f"{path} is damaged: it has lost its checksum")
        return
    start = content.index(found[0]) + found.start(1) - found.start()
    digest, view = hashlib.sha256(), memoryview(content)
    for part in (view[:start], BLANK.encode(), view[start + len(BLANK) :]):
        digest.update(part)
    if digest.hexdigest().encode() != found[1]:
        raise Damaged(f"{path} is damaged: its SHA-256 is not the one it was written with")
