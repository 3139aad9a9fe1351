"""What the tests compare with: all values of small layers, their laws, and weights that make every term matter."""

import math

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from doubly import LAYERS, Layer
from doubly.layers import Params

D = 4  # width of the values: all 16 of them can be enumerated
BINARY = [name for name in LAYERS if LAYERS[name].kind == "binary"]


def bits(n: int) -> Tensor:
    """All 2^n binary vectors, (2^n, n), in the order of the numbers that they spell."""
    return torch.tensor([[number >> (n - 1 - i) & 1 for i in range(n)] for number in range(2**n)], dtype=torch.float64)


def assert_same_law(drawn: Tensor, log_prob: Tensor) -> None:
    """Chi-square, at significance 1e-4, of the rows of `drawn` against the law exp(log_prob) over bits(n)."""
    n = drawn.shape[-1]
    numbers = drawn.double() @ 2.0 ** torch.arange(n - 1, -1, -1, dtype=torch.float64)
    observed = torch.bincount(numbers.long().flatten(), minlength=2**n).numpy()
    expected = log_prob.exp().numpy() * observed.sum()
    pools = [[0.0, 0.0]]
    for i in np.argsort(expected):  # rare values are pooled until 5 are expected, or the statistic is not chi-square
        if pools[-1][1] >= 5:
            pools.append([0.0, 0.0])
        pools[-1][0] += observed[i]
        pools[-1][1] += expected[i]
    assert stats.chisquare(*zip(*pools, strict=True)).pvalue > 1e-4


def random_params(layer: Layer, seed: int = 0) -> Params:
    """Weights of standard deviation 1: far from zero, so that every term of the layer matters.

    Where more than four of them are summed (in the deterministic layers of a perceptron), the sum is kept as wide as if
    there were four, or every probability would be 0 or 1.
    """
    rng = torch.Generator().manual_seed(seed)
    params = {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in layer.shapes().items()}
    return {k: v / math.sqrt(max(1, v.shape[-1] / 4)) if v.ndim == 2 else v for k, v in params.items()}
