"""A random generator for each purpose."""

import hashlib

import torch


def generator(device: torch.device | str, *purpose: int | str) -> torch.Generator:
    """The generator for a purpose. Each has its own, so that evaluation never changes what the chain draws."""
    digest = hashlib.sha256(repr(purpose).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
