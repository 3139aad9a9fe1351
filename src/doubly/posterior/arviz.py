"""The samples of the weights in the form that ArviZ takes."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from doubly.core.errors import UserError
from doubly.layers.chain import Chain


def to_arviz(model: Chain, chains: Sequence[Sequence[Tensor]], window: int) -> Any:
    """An arviz.InferenceData of the samples of each chain: variables such as x.W, of (chain, draw, …).

    Latent units of different chains need not correspond, so that R-hat of a single weight says little.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # it announces its next version at every import
            import arviz
    except ImportError:
        raise UserError("this needs arviz: install it with pip install 'doubly[arviz]'") from None
    counts = [len(samples) for samples in chains]
    if 0 in counts:
        raise UserError("a run has stored no samples of the weights: resume it, or fit it with --keep 10")
    if len(set(counts)) > 1:
        got = ", ".join(map(str, counts))
        raise UserError(f"arviz wants as many draws of each chain, got {got}: fit them with equal --keep")
    weights = [[model.unflatten(theta) for theta in samples] for samples in chains]
    names = ["x", *(f"z{i}" for i in range(1, len(model.layers)))]
    posterior = {
        f"{name}.{key}": np.stack([[sample[i][key].cpu().numpy() for sample in samples] for samples in weights])
        for i, name in enumerate(names)
        for key, shape in model.layers[i].shapes().items()
        if 0 not in shape  # a top layer has weights for nothing
    }
    return arviz.from_dict(posterior, posterior_attrs={"window": window})
