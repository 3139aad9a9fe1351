"""State to tensors and back: a named tuple becomes named tensors and plain numbers, as files hold them.

A field may hold a tensor, a number, None, a random generator, a dictionary of tensors or another named tuple. Names of
nested fields are joined by dots: `theta.u`, `memory.z1`.
"""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from doubly.core.cache import Tensors

T = TypeVar("T")


class Encoded(NamedTuple):
    """A state as files hold it."""

    tensors: Tensors
    numbers: dict[str, Any]
    """What JSON can hold: numbers and None."""


def to_tensors(state: Any) -> Encoded:
    """A named tuple as named tensors, on the host, and numbers.

    >>> class Place(NamedTuple):
    ...     theta: Tensor
    ...     epoch: int = 0
    ...     memory: dict[str, Tensor] = {}
    >>> found = to_tensors(Place(torch.zeros(2), 3, {"z1": torch.ones(1)}))
    >>> sorted(found.tensors), found.numbers
    (['memory.z1', 'theta'], {'epoch': 3})
    >>> from_tensors(Place, found).epoch
    3
    """
    found = Encoded({}, {})
    _put(found, "", state)
    return found


def from_tensors(
    kind: type[T],
    encoded: Encoded,
    device: torch.device | str = "cpu",
    kinds: Mapping[str, type] | None = None,
) -> T:
    """The named tuple of that kind again; `kinds` gives the types of fields that are declared as Any.

    A field that is absent has its default; without a default, or with a name that the kind does not have, it is a
    TypeError.
    """
    everything = encoded.tensors | encoded.numbers
    hints = typing.get_type_hints(kind) | dict(kinds or {})
    groups: dict[str, dict[str, Any]] = {}
    for name, value in everything.items():
        field, _, rest = name.partition(".")
        groups.setdefault(field, {})[rest] = value
    # None and an empty dictionary leave no trace
    absent = {name: None for name, hint in hints.items() if _admits_none(hint) and name not in groups}
    absent = {name: value for name, value in absent.items() if name not in getattr(kind, "_field_defaults", {})}
    empty: dict[str, Any] = {name: {} for name, hint in hints.items() if _plain(hint) is dict and name not in groups}
    found = {name: _field(hints.get(name, Any), parts, device) for name, parts in groups.items()}
    return kind(**absent, **empty, **found)


def to_cache(state: Any) -> Tensors:
    """A named tuple as tensors alone, for a `Cache`: numbers become tensors without axes; None is left out."""
    tensors, numbers = to_tensors(state)
    given = {name: number for name, number in numbers.items() if number is not None}
    return tensors | {
        name: torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)
        for name, number in given.items()
    }


def from_cache(
    kind: type[T],
    tensors: Tensors,
    device: torch.device | str = "cpu",
    kinds: Mapping[str, type] | None = None,
) -> T:
    """The named tuple that `to_cache` was given."""
    return from_tensors(kind, Encoded(dict(tensors), {}), device, kinds)


def check_like(found: Tensors, expected: Tensors) -> None:
    """Refuse (TypeError) tensors that differ from those expected in names, shapes or types, or are not finite.

    >>> check_like({"m": torch.zeros(2)}, {"m": torch.zeros(3)})
    Traceback (most recent call last):
    TypeError: m has shape (2,) where (3,) is expected
    """
    if lacking := expected.keys() - found.keys():
        raise TypeError(f"it lacks {min(lacking)}")
    if unknown := found.keys() - expected.keys():
        raise TypeError(f"it has {min(unknown)}, which is not expected")
    for name, tensor in found.items():
        like = expected[name]
        if tensor.shape != like.shape:
            raise TypeError(f"{name} has shape {tuple(tensor.shape)} where {tuple(like.shape)} is expected")
        if tensor.dtype != like.dtype:
            raise TypeError(f"{name} has values of type {tensor.dtype} where {like.dtype} is expected")
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise TypeError(f"{name} has values that are no finite numbers")


def _put(found: Encoded, name: str, value: Any) -> None:
    if isinstance(value, Tensor):
        found.tensors[name] = value.detach().cpu().contiguous()
    elif isinstance(value, torch.Generator):
        found.tensors[name] = value.get_state()
    elif isinstance(value, dict) or hasattr(value, "_asdict"):
        fields = value if isinstance(value, dict) else value._asdict()
        for each, part in fields.items():
            _put(found, f"{name}.{each}" if name else each, part)
    else:
        found.numbers[name] = value


def _field(hint: Any, parts: dict[str, Any], device: torch.device | str) -> Any:
    """One field from what was stored under its name, which is "", or under names of its own parts."""
    kind = _plain(hint)
    if "" in parts:
        return _leaf(kind, parts[""], device)
    if kind is dict:
        return {name: _leaf(Any, value, device) for name, value in parts.items()}
    if not hasattr(kind, "_fields"):
        raise TypeError(f"unexpected parts {', '.join(parts)}")
    tensors = {name: value for name, value in parts.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in parts.items() if name not in tensors}
    return from_tensors(kind, Encoded(tensors, numbers), device)


def _leaf(kind: Any, value: Any, device: torch.device | str) -> Any:
    if not isinstance(value, Tensor):
        return value
    if kind is torch.Generator:
        rng = torch.Generator(device)
        rng.set_state(value.cpu())
        return rng
    if kind in _NUMBERS:
        return _NUMBERS[kind](value.item())
    # counters stay with the host: asking a device for one would make every step wait for it
    return value.to(device) if value.dim() or value.is_floating_point() else value


_NUMBERS: dict[Any, Callable[[Any], Any]] = {int: int, float: float, bool: bool}


def _admits_none(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _plain(hint: Any) -> Any:
    """A type without its parameters, and without the None of `X | None`."""
    options = [each for each in typing.get_args(hint) if each is not type(None)]
    if typing.get_origin(hint) in (types.UnionType, typing.Union) and len(options) == 1:
        return _plain(options[0])
    return typing.get_origin(hint) or hint
