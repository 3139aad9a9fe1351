"""One thread that computes, and a queue of bounded length: who comes when it is full is sent away at once."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Found = TypeVar("Found")


class Busy(Exception):
    """Too many requests are waiting."""


class Worker:
    """Requests are computed one after the other: two at once would only slow each other down."""

    def __init__(self, most: int = 16, threads: int = 1):
        self._free = threading.BoundedSemaphore(most)
        self._executor = ThreadPoolExecutor(1, "doubly", torch.set_num_threads, (threads,))

    async def run(self, function: Callable[Given, Found], *args: Given.args, **options: Given.kwargs) -> Found:
        """What the function gives, computed in the worker's thread when its turn comes."""
        if not self._free.acquire(blocking=False):
            raise Busy
        future = self._executor.submit(function, *args, **options)
        # also when the caller has gone away: work that waits is then dropped, and work under way is waited for
        future.add_done_callback(lambda _: self._free.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits."""
        self._executor.shutdown(wait=False, cancel_futures=True)
