"""A visit to a mini-batch: all that an estimator is told."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from doubly.layers.chain import Chain

Memory = dict[str, Tensor]
Wanted = Literal["both", "theta", "phi"]


class Visit(NamedTuple):
    """Where the weights are, and the rows that are looked at from there."""

    model: Chain
    theta: Tensor
    proposal: Chain
    phi: Tensor
    x: Tensor
    places: Tensor
    """Where the rows stand in the training data."""
    memory: Memory
    """What the estimator and its objective remember."""
    rng: torch.Generator
