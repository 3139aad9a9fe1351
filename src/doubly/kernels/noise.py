"""Random numbers whose only state is that of the `torch.Generator` passed in.

The fused generator is counter-based (Philox): one 64-bit key is drawn from the `torch.Generator`, and every number is a
function of the key and of its place, so that the threads need not agree on anything.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from doubly.kernels import choose
from doubly.kernels.rows import as_arrays

Key = tuple[np.uint32, np.uint32]


NO_KEY: Key = (np.uint32(0), np.uint32(0))  # where nothing is drawn


def normal(
    shape: Sequence[int],
    rng: torch.Generator,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """Independent standard normals, on the device of the generator unless another is named.

    >>> normal((2, 3), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    out = torch.empty(shape, dtype=dtype, device=device or rng.device)
    if not choose.fused(out):
        return out.normal_(generator=rng)
    choose.loops().normal(*as_arrays(out.view(-1)), *key(rng))
    return out


def key(rng: torch.Generator) -> Key:
    """A new key for the fused generator, as its two halves."""
    bits = int(torch.randint(-(2**63), 2**63 - 1, (), generator=rng, device=rng.device))
    return np.uint32(bits & 0xFFFFFFFF), np.uint32(bits >> 32 & 0xFFFFFFFF)
