"""Long work: it tells its progress, is stored before it is finished, and goes on from there."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from torch import Tensor

from doubly.core.cache import Cache
from doubly.core.codec import check_like, from_cache, to_cache
from doubly.core.ranks import ALONE, Ranks

Part = TypeVar("Part", bound=NamedTuple)
Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Work:
    """Where work is stored, and who is told of it.

    A result stays in the cache until `tidy`, so that an evaluation of several parts that is stopped in a later one
    does not repeat those before.
    """

    cache: Cache
    patience: float
    """Seconds between two writings of unfinished work."""
    tell: Tell
    """Told what is under way and how much of it is done; what it raises ends the work, which is stored first."""
    ranks: Ranks = ALONE
    """Processes that share the work: the first reads for all of them, and it alone writes."""
    _handed_over: list[str] = field(default_factory=list)

    def load(self, name: str, kind: type[Part], like: Part | None = None) -> Part | None:
        """What an earlier attempt has left, if it is of this kind; another version's layout counts as nothing.

        So does what has not the shapes and types of `like`, or is not finite.
        """
        return self.ranks.agreed(self._load(name, kind, like) if self.ranks.first else None)

    def _load(self, name: str, kind: type[Part], like: Part | None) -> Part | None:
        tensors = self.cache.get(name)
        try:
            if tensors is not None and like is not None:
                check_like(tensors, to_cache(like))
            return None if tensors is None else from_cache(kind, tensors)
        except (TypeError, RuntimeError, ValueError):
            return None

    def save(self, name: str, part: NamedTuple) -> None:
        """Store what there is so far."""
        if self.ranks.first:
            self.cache.put(name, to_cache(part))

    def drop(self, name: str) -> None:
        """Forget what was stored."""
        if self.ranks.first:
            self.cache.drop(name)

    def saver(self, name: str) -> Callable[[NamedTuple, str, float], None]:
        """A function that tells progress, and stores unfinished work now and then, and when it is stopped."""
        written = time.monotonic()

        def save(unfinished: NamedTuple, what: str, share: float) -> None:
            nonlocal written
            try:
                self.tell(what, share)
            except BaseException:
                self.save(name, unfinished)
                raise
            if time.monotonic() - written >= self.patience:
                self.save(name, unfinished)
                written = time.monotonic()

        return save

    def counter(self, what: str) -> Callable[[int, int], None]:
        """A function that is told how many steps of how many are done."""
        return lambda done, total: self.tell(what, done / total)

    def hand_over(self, name: str) -> None:
        """The result under this name is finished: the next `tidy` drops it."""
        self._handed_over.append(name)

    def tidy(self) -> None:
        """Drop the results that were handed over."""
        for name in self._handed_over:
            self.drop(name)
        self._handed_over.clear()


def digest(*tensors: Tensor) -> str:
    """A name for what these hold, so that what is stored under it can never be out of date."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def digest_text(text: str) -> str:
    """The same for settings, by their repr."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
