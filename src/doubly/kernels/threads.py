"""How many threads compute.

PyTorch has a number for each thread of Python, and one that new threads of Python begin with; setting the first sets
the second, too. Then a thread that begins while another one fits would compute with the number of that fit, and matrix
products differ in their last bits with the number of threads. So the second is put back here, by a thread made for it.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

import torch

_one_at_a_time = threading.Lock()


def set_threads(number: int) -> None:
    """Let this thread of Python compute with so many; others, and those that are yet to begin, are left as they are."""
    with _one_at_a_time:
        if torch.get_num_threads() == number:  # asked in any case: a thread takes the common number when it first asks
            return
        common: list[int] = []
        _in_a_new_thread(lambda: common.append(torch.get_num_threads()))
        torch.set_num_threads(number)
        if common:
            _in_a_new_thread(lambda: torch.set_num_threads(common[0]))


def _in_a_new_thread(work: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # none can be started while the interpreter shuts down: then none will ask
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def _after_fork() -> None:
    """The thread that held the lock is not in the child."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
