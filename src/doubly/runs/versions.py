"""Versions: of the format that files of a run have, and of what a run was computed with.

Format 1 is that of doubly 0.1, which wrote no number down: no checksums, one checkpoint. Format 2 has seals (see
`core/sealed.py`), a list of the samples in each checkpoint, two checkpoints, and what computed them.
"""

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from doubly import __version__
from doubly.core.errors import UserError
from doubly.kernels import choose

FORMAT = 2
_ALONE = {"chains": 1, "shards": 0, "deterministic": False, "rank_seconds": 300.0}
ADDED: dict[int, dict[str, Any]] = {
    1: {"moves": "auto", "retries": 0, "minutes": 0.0, **_ALONE},
    2: {"minutes": 0.0, **_ALONE},
}
"""Settings that came after a format, and what runs of that format did without them."""


def format_of(fields: Mapping[str, Any], path: Path) -> int:
    """The format that a file says it has; a newer one than this version knows is refused by name."""
    found = fields.get("format", 1)
    if type(found) is not int or found < 1:
        raise UserError(f"{path} is damaged: its format must be a whole number, got {str(found)[:40]!r}")
    if found > FORMAT:
        raise UserError(
            f"{path} has format {found}, which is newer than doubly {__version__} can read (up to {FORMAT}): update "
            "doubly"
        )
    return found


def made_with(threads: int) -> dict[str, Any]:
    """What computes here: all that can change the last bits of a result."""
    kernels = choose.in_use()
    return {
        "doubly": __version__,
        "torch": torch.__version__,
        "numba": kernels["numba"],
        "kernels": "fused" if kernels["fused"] else "plain",
        "threads": threads,
        "machine": platform.machine(),
    }


def differences(made: Mapping[str, Any], threads: int) -> Iterator[str]:
    """What is not as it was when a checkpoint was made, if that changes the bits of what follows."""
    here = made_with(threads)
    for name in ("kernels", "torch", "numba", "machine", "threads"):
        if name in made and made[name] != here[name]:
            yield f"{name} {here[name]}, before {made[name]}"
