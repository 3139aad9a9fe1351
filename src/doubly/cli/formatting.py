"""What commands share: run folders as arguments, results as JSON."""

import math
from typing import Annotated, Any

import tyro

from doubly.core.errors import UserError

RunFolder = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="A run folder.")]


RunFolders = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN …]", help="Run folders.")]


def some(folders: tuple[str, ...]) -> tuple[str, ...]:
    if not folders:
        raise UserError("name a run folder, as in: doubly evaluate runs/mine (see doubly --help)")
    return folders


def no_nan(found: Any) -> Any:
    """JSON has no NaN and no infinity: null says as much."""
    if isinstance(found, dict):
        return {name: no_nan(value) for name, value in found.items()}
    if isinstance(found, list):
        return [no_nan(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found
