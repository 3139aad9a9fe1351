"""Where work that took long is put, to be found again by a name that says all it depends on.

Work is a NamedTuple; stored, it is a dictionary of tensors. Fields may be tensors, numbers, None, dictionaries of
tensors and NamedTuples of all these. A field of a field has a dotted name, such as optimiser.theta.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, get_origin, get_type_hints

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Work = TypeVar("Work", bound=NamedTuple)


class Cache(Protocol):
    """Stores tensors by name."""

    def get(self, name: str) -> Tensors | None:
        """What is stored under that name, if anything."""

    def put(self, name: str, tensors: Tensors) -> None:
        """Store it."""

    def drop(self, name: str) -> None:
        """It is of no more use."""


class NoCache:
    """For those who have nowhere to store anything."""

    def get(self, name: str) -> Tensors | None:
        return None

    def put(self, name: str, tensors: Tensors) -> None:
        pass

    def drop(self, name: str) -> None:
        pass


def load(cache: Cache, name: str, kind: type[Work]) -> Work | None:
    """Work of this kind, if it is stored under that name; another version's layout counts as nothing."""
    tensors = cache.get(name)
    if tensors is None:
        return None
    try:
        return from_tensors(kind, tensors)
    except KeyError:
        return None


def to_tensors(work: NamedTuple) -> Tensors:
    """Work as tensors by name; a None is left out.

    >>> class Place(NamedTuple):
    ...     row: int
    ...     error: float | None
    >>> to_tensors(Place(3, None))
    {'row': tensor(3)}
    >>> from_tensors(Place, to_tensors(Place(3, None)))
    Place(row=3, error=None)
    """
    found: Tensors = {}
    for name, value in work._asdict().items():
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, float):  # in double precision, as it is
            found[name] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, int):
            found[name] = torch.tensor(value)
        elif value is not None:
            inside = value if isinstance(value, Mapping) else to_tensors(value)
            found |= {f"{name}.{key}": tensor for key, tensor in inside.items()}
    return found


def from_tensors(kind: type[Work], tensors: Tensors) -> Work:
    """The work that `to_tensors` made these of; a KeyError if they are of something else."""
    return kind._make(_field(hint, name, tensors) for name, hint in get_type_hints(kind).items())


def _field(hint: Any, name: str, tensors: Tensors) -> Any:
    if hint is Tensor:
        return tensors[name]
    if hint in (int, float):
        return tensors[name].item()
    inside = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    if get_origin(hint) is dict:
        return inside
    if isinstance(hint, type):
        return from_tensors(hint, inside)
    return tensors[name].item() if name in tensors else None  # a number or None
