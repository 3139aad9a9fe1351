"""Bernoulli variables by their log-odds."""

import torch
import torch.nn.functional as F
from torch import Tensor


def log_prob(logits: Tensor, value: Tensor) -> Tensor:
    """sum_i value_i logits_i - softplus(logits_i) over the last axis; finite for any finite logits."""
    return (value * logits + F.logsigmoid(-logits)).sum(-1)


def draw(logits: Tensor, rng: torch.Generator, draws: int | None = None) -> Tensor:
    """0 or 1 with these log-odds; with `draws`, that many of each along a new leading axis."""
    probability = torch.sigmoid(logits.detach())
    shape = probability.shape if draws is None else (draws, *probability.shape)
    uniform = torch.rand(shape, generator=rng, dtype=logits.dtype, device=logits.device)
    # exactly 0 comes up once in 2^24: left alone it would draw what is impossible, with an enormous weight
    return (uniform.clamp_(min=2**-25) < probability).to(logits.dtype)
