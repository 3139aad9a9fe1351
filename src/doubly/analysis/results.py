"""Results: frozen dataclasses, each with one way to text and one to JSON."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Result(ABC):
    """What a command finds.

    A result is a frozen dataclass. It must give `text`; it gives `to_json` where its JSON is not its fields by name.
    """

    @abstractmethod
    def text(self) -> str:
        """For people, as the command prints it."""

    def to_json(self) -> Any:
        """For programs: objects, lists, texts and finite numbers."""
        return fields_of(self)


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass or a named tuple by name, as JSON has them."""
    if hasattr(value, "_asdict"):
        return {name: plain(inner) for name, inner in value._asdict().items()}
    return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def plain(value: Any) -> Any:
    """A value as JSON has it. JSON has no NaN and no infinity: they become null.

    >>> plain({"mean": math.nan, "shape": (2, 3)})
    {'mean': None, 'shape': [2, 3]}
    """
    if isinstance(value, Result):
        return value.to_json()
    if dataclasses.is_dataclass(value) or hasattr(value, "_asdict"):
        return fields_of(value)
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plus_minus(stderr: float | None) -> str:
    """A standard error behind its number; nothing where there is none.

    >>> f"-12.300{plus_minus(0.04)}"
    '-12.300 ± 0.040'
    """
    return "" if stderr is None else f" ± {stderr:.3f}"
