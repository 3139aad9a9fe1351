"""Bars: synthetic images of horizontal and vertical bars, their exact density and their entropy.

They come from an SBN with 8 latent units, one for each row and column of a 4x4 image:
  bar_k ~ Bernoulli(1/4);  pixel ~ Bernoulli(sigmoid(-4 + 8 (number of bars through it)))
"""

import functools
import math

import numpy as np

from doubly.core.errors import UserError
from doubly.data.dataset import Data, is_binary


def bars() -> Data:
    """Synthetic horizontal and vertical bars, 4x4, whose density is known exactly: 2000/500/500 rows."""
    train, valid, test = np.split(sample_bars(3000, np.random.default_rng(0)), [2000, 2500])
    return Data("bars", train, valid, test, (4, 4), "binary", bars_log_density)


def sample_bars(n: int, rng: np.random.Generator) -> np.ndarray:
    """n images of the bars, as rows of 16 bits."""
    bars_on = rng.random((n, 8)) < 0.25
    found: np.ndarray = (rng.random((n, 16)) < 1 / (1 + np.exp(-_bars_logits(bars_on)))).astype(np.uint8)
    return found


def bars_log_density(x: np.ndarray) -> np.ndarray:
    """log p(x) in nats for each row, summed over all 2^8 patterns of bars."""
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[1] != 16 or not is_binary(x):
        raise UserError(f"the density of bars is for rows of 16 values, each 0 or 1, got an array of shape {x.shape}")
    bars_on = _all_bits(8)
    logits = _bars_logits(bars_on)
    log_patterns = np.where(bars_on, math.log(0.25), math.log(0.75)).sum(1) - np.logaddexp(0, logits).sum(1)
    result = np.empty(len(x))
    for start in range(0, len(x), 4096):  # 4096 rows by 256 patterns are 8 MB
        part = slice(start, start + 4096)
        log_joint = x[part].astype(float) @ logits.T + log_patterns
        largest = log_joint.max(1)
        result[part] = largest + np.log(np.exp(log_joint - largest[:, None]).sum(1))
    return result


@functools.cache
def bars_entropy() -> float:
    """The entropy of the bars in nats, over all 2^16 images: no model's mean log-likelihood is above minus this."""
    log_p = bars_log_density(_all_bits(16))
    return -float(np.exp(log_p) @ log_p)


def _bars_logits(bars_on: np.ndarray) -> np.ndarray:
    on = bars_on.astype(float)
    through = on[:, :4, None] + on[:, None, 4:]
    found: np.ndarray = -4 + 8 * through.reshape(-1, 16)
    return found


def _all_bits(n: int) -> np.ndarray:
    return ((np.arange(2**n)[:, None] >> np.arange(n)[::-1]) & 1).astype(np.uint8)
