"""Progress of long work: a bar on a terminal, one cell's output in a notebook, a plain line now and then elsewhere.

On a terminal and in plain lines it goes to standard error.
"""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

TICKS = "▁▂▃▄▅▆▇█"
SLOWER = 1.25  # each plain line comes so much later than the one before…
SLOWEST = 60.0  # …up to these seconds
BAR = 30  # characters


class Progress:
    """Shows the latest message; `quiet` shows nothing."""

    def __init__(self, quiet: bool = False, every: float = 5.0):
        self._quiet = quiet
        self._every = every
        self._next_line = 0.0
        self._next_frame = 0.0
        self._cell = None if quiet else _notebook_cell()
        self._live = None if quiet or self._cell is not None else _live()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, message: str, last: bool = False, share: float | None = None, trace: Sequence[float] = ()) -> None:
        """Show a message in place of the last one; with `last` it stays.

        `share` is how much of the work is done, and `trace` are numbers to draw as a small curve.
        """
        now = time.monotonic()
        if self._quiet:
            return
        if self._cell is not None:
            if last or now >= self._next_frame:
                self._cell.update(_cell_text(message, share, trace), raw=True)
                self._next_frame = now + 0.5
        elif self._live and not last:
            if now >= self._next_frame:
                self._live.update(_panel(message, share, trace))
                self._next_frame = now + 0.1
        elif last or now >= self._next_line:
            self.say(message)
            self._next_line = now + self._every
            self._every = min(self._every * SLOWER, SLOWEST)

    def say(self, message: str) -> None:
        """Print a line that stays."""
        if self._quiet:
            return
        if self._live:
            self._live.console.print(message, markup=False)
        else:
            print(message, file=sys.stderr, flush=True)


def _live() -> "Live | None":
    """A part of the terminal that is drawn anew; none where there is no terminal, or no rich (the extra cli)."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ModuleNotFoundError:
        return None
    console = Console(stderr=True, highlight=False)
    return Live(console=console, transient=True, refresh_per_second=8) if console.is_terminal else None


def _panel(message: str, share: float | None, trace: Sequence[float]) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Text(message, overflow="ellipsis", no_wrap=True)
    if share is None:
        return line
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=1.0, completed=share, width=BAR), Text(f"{share:4.0%}"), Text(sparkline(trace)))
    return Group(bar, line)


def _cell_text(message: str, share: float | None, trace: Sequence[float]) -> dict[str, str]:
    """What a notebook shows: plain text, which every front end has."""
    done = "" if share is None else f"{'█' * round(BAR * share):░<{BAR}} {share:4.0%}  {sparkline(trace)}\n"
    return {"text/plain": done + message}


def _notebook_cell() -> Any:
    """A place in the output of a notebook's cell that can be written to again; None outside of notebooks."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from importlib import import_module

    return import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Numbers as a small curve; of many, the later half, so that a bad start does not flatten the rest.

    >>> sparkline([1, 2, 3, 4]), sparkline([5, 5]), sparkline([])
    ('▁▃▆█', '▄▄', '')
    """
    shown = list(values)[-max(width, len(values) // 2) :]
    if len(shown) > width:  # the last of each bin
        shown = [shown[(i + 1) * len(shown) // width - 1] for i in range(width)]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if not high > low:
        return "▄" * len(shown)
    return "".join(TICKS[round((value - low) / (high - low) * (len(TICKS) - 1))] for value in shown)


def counted(number: float, noun: str) -> str:
    """A number of things.

    >>> counted(1, "minute"), counted(0.5, "minute"), counted(3, "epoch")
    ('1 minute', '0.5 minutes', '3 epochs')
    """
    return f"{number:.12g} {noun}{'s' * (number != 1)}"


def span(seconds: float) -> str:
    """A time as people say it.

    >>> span(42), span(95), span(7300), span(300_000)
    ('42s', '1m35s', '2h01m', '3d11h')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, of_day = divmod(hours, 24)
    if hours >= 48:
        return f"{days}d{of_day:02d}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
