"""A cache: results that took long to compute, stored under names that say all they depend on."""

from typing import Protocol

from torch import Tensor

Tensors = dict[str, Tensor]


class Cache(Protocol):
    """Stores tensors by name."""

    def get(self, name: str) -> Tensors | None:
        """What is stored under that name; None if nothing is."""

    def put(self, name: str, tensors: Tensors) -> None:
        """Store these tensors under that name."""

    def drop(self, name: str) -> None:
        """Forget what is stored under that name."""


class NoCache:
    """A cache that stores nothing."""

    def get(self, name: str) -> Tensors | None:
        return None

    def put(self, name: str, tensors: Tensors) -> None:
        pass

    def drop(self, name: str) -> None:
        pass
