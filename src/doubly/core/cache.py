"""Where work that took long is put, to be found again by a name that says all it depends on."""

from typing import Protocol

from torch import Tensor

Tensors = dict[str, Tensor]


class Cache(Protocol):
    """Stores tensors by name."""

    def get(self, name: str) -> Tensors | None:
        """What is stored under that name, if anything."""

    def put(self, name: str, tensors: Tensors) -> None:
        """Store it."""

    def drop(self, name: str) -> None:
        """It is of no more use."""


class NoCache:
    """A shelf for those who have none."""

    def get(self, name: str) -> Tensors | None:
        return None

    def put(self, name: str, tensors: Tensors) -> None:
        pass

    def drop(self, name: str) -> None:
        pass
