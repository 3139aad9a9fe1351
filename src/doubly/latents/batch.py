"""A mini-batch as it is handed to an estimator: the weights, the rows, and what is remembered of them."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from doubly.latents.pair import Pair
from doubly.layers.chain import Prepared

Memory = dict[str, Tensor]
Wanted = Literal["both", "theta", "phi"]


class Batch(NamedTuple):
    """All that an estimator is told."""

    pair: Pair
    x: Tensor
    row_index: Tensor
    """Where the rows stand in the training data."""
    memory: Memory
    """What the estimator and its objective remember."""
    rng: torch.Generator
    tuning: bool = True
    """Whether moves may tune their steps: in the burn-in."""
    remember: bool = False
    """Whether states move on even if only the gradient for phi is wanted: where the weights stand still."""
    prepared: Prepared | None = None
    """What estimates on the same rows with the same phi share of the proposal."""
