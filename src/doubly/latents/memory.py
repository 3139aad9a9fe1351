"""What is remembered of a row between two visits: latents, and completions of missing values.

Binary values take a bit each, real ones a float. The tensors are changed in place, for a copy of all rows in every step
would cost as much as the step: whoever wants to keep a state saves it before the next step, as with the generator.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.layers import Layer


def stored(layer: Layer, value: Tensor) -> Tensor:
    """Values of a layer (…, H) as they are kept."""
    return pack(value) if layer.kind == "binary" else value


def recalled(layer: Layer, saved: Tensor, dtype: torch.dtype) -> Tensor:
    """What was stored."""
    return unpack(saved, layer.n_out, dtype) if layer.kind == "binary" else saved.to(dtype)


def pack(bits: Tensor) -> Tensor:
    """The last axis, of zeros and ones, as bytes: entry i is bit i % 8 of byte i // 8.

    >>> pack(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1]))
    tensor([129,   1], dtype=torch.uint8)
    """
    bits = F.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    found: Tensor = (bits.unflatten(-1, (-1, 8)) << places).sum(-1, dtype=torch.uint8)
    return found


def unpack(packed: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What was packed, as numbers.

    >>> unpack(torch.tensor([129, 1], dtype=torch.uint8), 9)
    tensor([1., 0., 0., 0., 0., 0., 0., 1., 1.])
    """
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-1) >> places & 1).flatten(-2)[..., :width].to(dtype)
