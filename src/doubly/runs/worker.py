"""The process of one chain of several: it goes on with the chain's run folder, and says so line by line.

Each line on standard output is a JSON object for the process that started it: say (words), show (where it stands),
epoch (a record), sample, and at the end one of ended and lost.
"""

import base64
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from typing import IO, Any

from torch import Tensor

from doubly.core.errors import RunWarning, UserError
from doubly.runs.fit import resume
from doubly.runs.progress import Progress
from doubly.runs.stops import Interrupted
from doubly.runs.trackers import Listeners

EVERY = 0.25  # seconds between two messages of where it stands


class Messages(Progress):
    """Progress as messages to another process."""

    def __init__(self, output: IO[str]):
        super().__init__(quiet=True)
        self._output, self._next = output, 0.0

    def send(self, **message: Any) -> None:
        """One message; nobody may be listening any more, which is found out elsewhere."""
        try:
            self._output.write(json.dumps(message) + "\n")
            self._output.flush()
        except (BrokenPipeError, ValueError):
            pass

    def show(self, message: str, last: bool = False, share: float | None = None, trace: Sequence[float] = ()) -> None:
        if last or time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self.send(show=message, share=share or 0.0)

    def say(self, message: str) -> None:
        self.send(say=message)


def main(text: str) -> None:
    """Go on with the chain that the text, a JSON object, names."""
    task = json.loads(text)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed is no message
    messages = Messages(output)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with warnings.catch_warnings():
        _relay_warnings(messages)
        messages.send(**_ended(task, messages))
    output.close()


def _ended(task: dict[str, Any], messages: Messages) -> dict[str, str]:
    """Run the chain; how it has ended."""

    def on_sample(number: int, theta: Tensor) -> None:
        content = base64.b64encode(theta.float().cpu().numpy().tobytes()).decode()
        messages.send(sample=number, theta=content)

    listeners = Listeners(
        on_epoch=lambda record: messages.send(epoch=record),
        on_sample=on_sample if task["samples"] else None,
        progress=messages,
    )
    until = math.inf if task["until"] is None else task["until"]
    try:
        resume(task["path"], True, task["threads"], until, task["allow_code"], listeners)
    except Interrupted:
        return {"ended": "stopped"}
    except UserError as error:
        return {"lost": str(error)}
    return {"ended": "finished"}


def _stop_with_parent() -> None:
    """Wait for the end of the process that started this one, then stop with all saved."""
    while sys.stdin.buffer.read(1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _relay_warnings(messages: Messages) -> None:
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, RunWarning):
            messages.say(f"warning: {message}")
        else:
            usual(message, category, *rest, **more)

    warnings.simplefilter("default", RunWarning)
    warnings.showwarning = show
