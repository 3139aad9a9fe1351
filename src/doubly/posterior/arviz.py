"""The samples of the weights in the form that ArviZ takes: InferenceData for 0.x, xarray's DataTree for 1.x."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.extras import extra
from doubly.layers.chain import Chain

Group = Mapping[str, np.ndarray]  # variables by name, each of (chain, draw, …)


def to_arviz(model: Chain, chains: Sequence[Sequence[Tensor]], window: int, stats: Group | None = None) -> Any:
    """The samples of each chain as the group `posterior`: variables such as x.W, of (chain, draw, …).

    `stats` are the group `sample_stats`. Latent units of different chains need not correspond, so that R-hat of a
    single weight says little.
    """
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
    return _of_groups({"posterior": posterior} | ({"sample_stats": stats} if stats else {}), {"window": window})


def _of_groups(groups: dict[str, Any], attrs: dict[str, Any]) -> Any:
    """What the ArviZ that is here calls its data; `attrs` are those of the posterior."""
    with warnings.catch_warnings(), extra("arviz", "data for ArviZ"):
        warnings.simplefilter("ignore", FutureWarning)  # 0.23 announces the next version at every import
        import arviz
    if int(arviz.__version__.partition(".")[0]) < 1:
        return arviz.from_dict(**groups, posterior_attrs=attrs)
    return arviz.from_dict(groups, attrs={"posterior": attrs})
