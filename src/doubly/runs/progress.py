"""Progress of long work on standard error: a live line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Progress:
    """Shows the latest message; `quiet` shows nothing."""

    def __init__(self, quiet: bool = False, every: float = 5.0):
        self._console = Console(stderr=True, highlight=False)
        self._live = (
            Live(console=self._console, transient=True, refresh_per_second=8) if self._console.is_terminal else None
        )
        self._quiet = quiet
        self._every = every
        self._next_line = 0.0
        self._next_frame = 0.0

    def __enter__(self) -> Self:
        if self._live and not self._quiet:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, message: str, last: bool = False) -> None:
        """Show a message in place of the last one; with `last` the line stays."""
        now = time.monotonic()
        if self._quiet:
            return
        if self._live and not last:
            if now >= self._next_frame:
                self._live.update(Text(message))
                self._next_frame = now + 0.1
        elif last or now >= self._next_line:
            self.say(message)
            self._next_line = now + self._every

    def say(self, message: str) -> None:
        """Print a line that stays."""
        if not self._quiet:
            if self._live:
                self._console.print(Text(message))
            else:
                print(message, file=sys.stderr, flush=True)


def span(seconds: float) -> str:
    """A time as people say it.

    >>> span(42), span(95), span(7300)
    ('42s', '1m35s', '2h01m')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
