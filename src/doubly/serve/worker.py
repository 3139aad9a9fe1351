"""One thread that computes, and a queue of bounded length: who comes when it is full is sent away at once."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from doubly.kernels.threads import set_threads

Given = ParamSpec("Given")
Found = TypeVar("Found")


class Busy(Exception):
    """Too many requests are waiting."""


class Place:
    """A place in the queue: work that is done in it, piece by piece, is never sent away."""

    def __init__(self, executor: ThreadPoolExecutor):
        self._executor = executor
        self.last: Future[Any] | None = None
        """The piece that was begun last."""

    async def run(self, function: Callable[Given, Found], *args: Given.args, **options: Given.kwargs) -> Found:
        """What the function gives, computed in the worker's thread when its turn comes."""
        self.last = future = self._executor.submit(function, *args, **options)
        return await asyncio.wrap_future(future)


class Worker:
    """Requests are computed one after the other: two at once would only slow each other down."""

    def __init__(self, most: int = 16, threads: int = 1):
        self._free = threading.BoundedSemaphore(most)
        self._executor = ThreadPoolExecutor(1, "doubly", set_threads, (threads,))

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A place for several pieces of work, between which those of others have their turns."""
        if not self._free.acquire(blocking=False):
            raise Busy
        place = Place(self._executor)
        try:
            yield place
        finally:
            # also when the caller has gone away: work that waits is then dropped, and work under way is waited for
            if place.last is None:
                self._free.release()
            else:
                place.last.add_done_callback(lambda _: self._free.release())

    async def run(self, function: Callable[Given, Found], *args: Given.args, **options: Given.kwargs) -> Found:
        """The same for a single piece of work."""
        with self.place() as place:
            return await place.run(function, *args, **options)

    def close(self) -> None:
        """Drop what waits."""
        self._executor.shutdown(wait=False, cancel_futures=True)
