"""Checkpoints and samples as files: their form and their checksums. What is in them is checked by `runs/folder.py`."""

import hashlib
import json
from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubly.core.codec import Encoded, check_like
from doubly.core.errors import Damaged, UserError
from doubly.core.files import Folder
from doubly.core.sealed import MOST_JSON, dump_tensors, load_tensors
from doubly.runs.versions import FORMAT, format_of, made_with

HEAD = 2**23  # bytes, enough for the names in a checkpoint
STATE, OLDER = "checkpoint/state.safetensors", "checkpoint/older.safetensors"


class Checkpoint(NamedTuple):
    """A checkpoint as its file holds it."""

    encoded: Encoded
    samples: dict[str, str] | None
    """The samples and means that belong to it, and their SHA-256; None in format 1, which did not list them."""
    lost: list[str]
    """Those that `doubly repair` had to leave out."""
    made: dict[str, Any]
    """What computed it."""
    copies: dict[str, bytes]
    """The content of config.json and data.json."""


def write_checkpoint(
    folder: Folder, state: Encoded, samples: dict[str, str], lost: list[str], keep_older: bool
) -> None:
    """Write a checkpoint with the samples that belong to it."""
    texts = {
        "format": str(FORMAT),
        "state": json.dumps(state.numbers),
        "samples": json.dumps(samples),
        "lost": json.dumps(lost),
        "made": json.dumps(made_with(torch.get_num_threads())),
        **{name: (folder.read(name, MOST_JSON) or b"").decode() for name in ("config.json", "data.json")},
    }
    content = dump_tensors(state.tensors, texts)
    folder.write(STATE, content, OLDER.rpartition("/")[2] if keep_older else None)


def read_checkpoint(folder: Folder, name: str, sealed: bool) -> Checkpoint | None:
    """What a file of a checkpoint holds, in form; None if there is none."""
    file = folder.path / name
    content = folder.read(name)
    if content is None:
        return None
    tensors, texts = load_tensors(content, file, required=sealed)
    try:
        format_of({"format": int(texts.get("format", 1))}, file)
        parts = {part: json.loads(texts.get(part, "null")) for part in ("state", "samples", "lost", "made")}
        if not isinstance(parts["state"], dict):
            raise TypeError("it has no numbers")
        samples = None if parts["samples"] is None else {str(k): str(v) for k, v in parts["samples"].items()}
        lost, made = [str(each) for each in parts["lost"] or []], dict(parts["made"] or {})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise Damaged(f"the checkpoint {file} is damaged: {error}") from None
    copies = {str(name): texts[name].encode() for name in ("config.json", "data.json") if name in texts}
    return Checkpoint(Encoded(tensors, parts["state"]), samples, lost, made, copies)


def peek_epoch(folder: Folder) -> int:
    """The epochs that the newest checkpoint has finished, by the head of its file alone; 0 where it cannot be told."""
    try:
        head = folder.read(STATE, first=HEAD) or b""
        texts = json.loads(head[8 : 8 + int.from_bytes(head[:8], "little")])["__metadata__"]
        return int(json.loads(texts["state"])["epoch"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return 0


def write_sample(folder: Folder, name: str, theta: Tensor) -> str:
    """Write a sample of the weights; gives its checksum."""
    content = dump_tensors({"theta": theta}, {"format": str(FORMAT)})
    folder.write(name, content)
    return hashlib.sha256(content).hexdigest()


def read_sample(folder: Folder, name: str, sha256: str, size: int | None) -> Tensor:
    """A sample of so many weights (None: of any number) whose file has this checksum."""
    file, advice = folder.path / name, f"put it back, or go on without it by doubly repair {folder.path}"
    content = folder.read(name)
    if content is None:
        raise Damaged(f"{file} is missing, but belongs to the checkpoint: {advice}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Damaged(f"{file} is damaged: its SHA-256 is not the one in the checkpoint; {advice}")
    try:
        found = load_tensors(content, file, required=False).tensors
        check_like(found, {"theta": found["theta"].float() if size is None else torch.empty(size)})
    except (TypeError, KeyError, Damaged) as error:
        raise Damaged(f"{file} is damaged: {error}; {advice}") from None
    return found["theta"]
