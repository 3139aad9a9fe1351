"""Ranks: the processes that torchrun has started, which share the work on one run.

The work is cut into shards, always the same ones; each rank takes its share of them, and what comes of it is added or
put together in the order of the shards. So the number of ranks changes who computes, not what is computed. `Ranks` is
the case of one process, which has all the shards; `Team` talks to the others by `torch.distributed`.
"""

import atexit
import datetime
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.launch import launched, restarts

T = TypeVar("T")
FIRST_WAIT = 600.0  # seconds until all ranks are there
GRACE = 5.0  # seconds in which ranks that live say so, after one was found to be silent


class Heard(NamedTuple):
    """What some rank wishes, as all have heard it at the same step."""

    save: bool
    stop: bool


class Ranks:
    """One process, which does all the work."""

    rank: int = 0
    size: int = 1

    def __init__(self) -> None:
        self.wish_save = False
        """Whether this process wants a checkpoint."""
        self.wish_stop = False
        """Whether it was told to stop."""

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and talks."""
        return self.rank == 0

    @property
    def heard(self) -> Heard:
        """What is wished; among several ranks, as of the last sum."""
        return Heard(self.wish_save, self.wish_stop)

    def own(self, shards: int) -> range:
        """The shards of this rank.

        >>> Ranks().own(4)
        range(0, 4)
        """
        return range(shards * self.rank // self.size, shards * (self.rank + 1) // self.size)

    def total(self, parts: Mapping[int, Tensor], like: Tensor, shards: int) -> Tensor:
        """The sum of a vector over all shards, of which this rank has some; in the shape of `like`."""
        return _sum(list(parts.values()), like)

    def gathered(self, parts: Mapping[int, T]) -> dict[int, T]:
        """What all ranks have, by shard, at the first; what this rank has, at the others."""
        return dict(parts)

    def everywhere(self, parts: Mapping[int, T]) -> dict[int, T]:
        """What all ranks have, by shard, at all of them."""
        return dict(parts)

    def shared(self, tasks: int, work: Callable[[int], T]) -> list[T]:
        """What `work` gives for each of so many tasks; each rank does its share of them, and has all results.

        >>> Ranks().shared(3, lambda task: 10 * task)
        [0, 10, 20]
        """
        return list(self.everywhere({task: work(task) for task in self.own(tasks)}).values())

    def in_turn(self, tasks: int, work: Callable[[int], T]) -> Iterator[T]:
        """The same, one result after another: as many are there at a time as there are ranks."""
        for first in range(0, tasks, self.size):
            yield from self.shared(min(self.size, tasks - first), lambda i, first=first: work(first + i))  # type: ignore[misc]

    def agreed(self, value: T) -> T:
        """The value of the first rank."""
        return value

    def all(self, good: bool) -> bool:
        """Whether it is so at all ranks."""
        return good

    def same(self, value: Any, what: str) -> None:
        """An error unless all ranks have the same value."""


ALONE = Ranks()


class Team(Ranks):
    """A rank among several: gloo between CPUs, NCCL between GPUs.

    With `deterministic`, sums are taken in the order of the shards, so that they have the same bits for any number of
    ranks; the vectors of all shards are sent for that. Otherwise each rank adds its own first, and one vector is sent.
    """

    def __init__(self, device: str = "cpu", seconds: float = FIRST_WAIT, deterministic: bool = False):
        super().__init__()
        self._deterministic, self._seconds = deterministic, seconds
        self._heard, self._calls, self.bytes = Heard(False, False), 0, 0
        cuda = device.startswith("cuda")
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        wait = datetime.timedelta(seconds=FIRST_WAIT)
        store, self.rank, self.size = next(dist.rendezvous("env://", timeout=wait))
        self.store = dist.PrefixStore(f"doubly-{restarts()}", store)
        with self._answered("start"):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                store=dist.PrefixStore("group", self.store),
                rank=self.rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=seconds),
            )
        # threads of the group that are still there when the interpreter ends would abort the process
        atexit.register(_leave)

    @property
    def heard(self) -> Heard:
        return self._heard

    def total(self, parts: Mapping[int, Tensor], like: Tensor, shards: int) -> Tensor:
        wishes = like.new_tensor([self.wish_save, self.wish_stop])
        self.wish_save = False
        if self._deterministic:
            found, flags = self._in_order(parts, like, shards, wishes)
        else:
            vector = torch.cat([_sum(list(parts.values()), like), wishes])
            with self._answered("a sum over the ranks"):
                dist.all_reduce(vector)
            self.bytes += vector.nbytes
            found, flags = vector[:-2], vector[-2:]
        save, stop = (flags > 0).tolist()
        self._heard = Heard(save, stop)
        return found

    def _in_order(
        self, parts: Mapping[int, Tensor], like: Tensor, shards: int, wishes: Tensor
    ) -> tuple[Tensor, Tensor]:
        most = -(-shards // self.size)
        mine = [torch.cat([part, wishes]) for part in parts.values()]
        empty = torch.cat([torch.zeros_like(like), wishes])
        sent = torch.stack([*mine, *[empty] * (most - len(mine))])
        received = [torch.empty_like(sent) for _ in range(self.size)]
        with self._answered("a sum over the ranks"):
            dist.all_gather(received, sent)
        self.bytes += sent.nbytes * self.size
        counts = [shards * (rank + 1) // self.size - shards * rank // self.size for rank in range(self.size)]
        ordered = [each[i] for each, count in zip(received, counts, strict=True) for i in range(count)]
        flags = torch.stack([each[0, -2:] for each in received]).sum(0)
        return _sum([each[:-2] for each in ordered], like), flags

    def gathered(self, parts: Mapping[int, T]) -> dict[int, T]:
        found: list[dict[int, T]] | None = [{}] * self.size if self.first else None
        with self._answered("what the ranks remember"):
            dist.gather_object(dict(parts), found)
        return dict(parts) if found is None else _merged(found)

    def everywhere(self, parts: Mapping[int, T]) -> dict[int, T]:
        found: list[dict[int, T]] = [{}] * self.size
        with self._answered("results of the ranks"):
            dist.all_gather_object(found, dict(parts))
        return _merged(found)

    def agreed(self, value: T) -> T:
        found = [value]
        with self._answered("what the first rank decides"):
            dist.broadcast_object_list(found, src=0)
        return found[0]

    def all(self, good: bool) -> bool:
        return all(self.everywhere({self.rank: good}).values())

    def same(self, value: Any, what: str) -> None:
        found = self.everywhere({self.rank: value})
        if len(set(map(repr, found.values()))) > 1:
            said = "; ".join(f"rank {rank}: {each}" for rank, each in found.items())
            raise UserError(f"the ranks do not stand at the same {what} ({said}): do all read the same run folder?")

    @contextmanager
    def _answered(self, what: str) -> Iterator[None]:
        """Say which rank is silent, where the others cannot be reached in time."""
        self._calls += 1
        try:
            yield
        except (RuntimeError, ConnectionError, TimeoutError):
            silent = self._silent()
            names = f"rank {silent[0]} does" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))} do"
            whose = f"{names} not answer" if silent else "the connection between the ranks broke"
            raise UserError(
                f"rank {self.rank} of {self.size} waited for {what}, but {whose} (within {self._seconds:g} seconds, "
                "--rank-seconds): what was saved is whole; go on with doubly resume, or with the same command where "
                "it was no fit, or let torchrun restart (--max-restarts)"
            ) from None

    def _silent(self) -> list[int]:
        """The ranks that do not say that they live."""
        try:
            self.store.set(f"alive-{self.rank}", "yes")
            deadline = time.monotonic() + GRACE
            silent = [rank for rank in range(self.size) if rank != self.rank]
            while silent and time.monotonic() < deadline:
                silent = [rank for rank in silent if not self.store.check([f"alive-{rank}"])]
                time.sleep(0.1)
        except (RuntimeError, ConnectionError):  # whoever kept the store is gone
            return []
        return silent


def _sum(parts: list[Tensor], like: Tensor) -> Tensor:
    """The sum in order."""
    if not parts:
        return torch.zeros_like(like)
    if len(parts) == 1:
        return parts[0]
    found = parts[0] + parts[1]
    for part in parts[2:]:
        found += part
    return found


def _merged(found: list[dict[int, T]]) -> dict[int, T]:
    return {shard: part for each in found for shard, part in sorted(each.items())}


_TEAM: list[Team] = []


def team(device: str, seconds: float, deterministic: bool = False) -> Ranks:
    """The ranks that torchrun has started, which find each other once; or this process alone."""
    if not launched():
        return Ranks()
    if not _TEAM:
        _TEAM.append(Team(device, seconds, deterministic))
    return _TEAM[0]


def _leave() -> None:
    """Leave the group, at the end of the process."""
    if dist.is_initialized():
        dist.destroy_process_group()
