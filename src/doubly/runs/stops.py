"""Clean stops: a signal is noted, what is under way is saved, and then the work ends."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Work stopped by a signal; its state was saved first."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number


@contextmanager
def stop_signal() -> Iterator[list[int]]:
    """A list that receives the number of a signal to stop; a second signal stops at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may set handlers
        return

    def note(number: int, frame: Any) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    stops = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup, and stays
        stops.append(signal.SIGHUP)
    before = {each: signal.signal(each, note) for each in stops}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
