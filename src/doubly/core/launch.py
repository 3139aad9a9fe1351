"""What torchrun tells the processes that it starts, by their environment."""

import os
import re

OF_TORCHRUN = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*")
"""The variables in which it does so."""
LEAST_SHARDS = 4


def launched() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def restarts() -> int:
    """How often torchrun has started its processes anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def is_first() -> bool:
    """Whether this process is the rank that talks, or no rank at all."""
    return not launched() or os.environ["RANK"] == "0"


def on_this_machine() -> int:
    """The ranks that share the cores of this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched() else 1


def usual_shards() -> int:
    """In how many shards a mini-batch is cut where that is left open: the same number for 1 to 4 ranks."""
    if not launched():
        return 1
    found = LEAST_SHARDS
    while found < int(os.environ["WORLD_SIZE"]):
        found *= 2
    return found
