"""A random generator for each purpose."""

import hashlib

import torch


def generator(device: torch.device | str, *purpose: int | str) -> torch.Generator:
    """A generator of its own for each purpose, so that evaluating never moves the chain's random numbers."""
    digest = hashlib.sha256(repr(purpose).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
