"""Traces: what a run has recorded, epoch by epoch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from doubly.runs.folder import Run

LABELS = {
    "valid": "validation log-likelihood",
    "train": "training bound",
    "temperature": "kinetic temperature",
    "thermostat": "thermostat",
    "predicted_mean": "predicted mean",
    "predicted_spread": "predicted spread",
}


class History(NamedTuple):
    """The traces of a run: a value for each epoch."""

    name: str
    epoch: np.ndarray
    collecting: np.ndarray
    """In which of the epochs samples were collected."""
    values: dict[str, np.ndarray]

    @property
    def samples(self) -> int:
        """Epochs in which samples were collected."""
        return int(self.collecting.sum())


def history(run: Run) -> History:
    """The traces of a run; epochs of the warm-up by Adam count as burn-in."""
    records = run.metrics()
    epoch = np.array([record["epoch"] for record in records], dtype=int)
    collecting = np.array([record["phase"] == "collect" for record in records], dtype=bool)
    flat = [_scalars(record) for record in records]
    names = dict.fromkeys(name for record in flat for name in record)
    values = {name: np.array([record.get(name, math.nan) for record in flat], dtype=float) for name in names}
    return History(str(run.path), epoch, collecting & (epoch > run.config.warmup), values)


def collected(histories: Sequence[History]) -> dict[str, np.ndarray]:
    """The traces that all chains have, as (chains, samples): the last samples of each chain, as many as the shortest
    chain has."""
    samples = min(history.samples for history in histories)
    found = {
        name: np.stack([history.values[name][history.collecting][-samples:] for history in histories])
        for name in histories[0].values
        if all(name in history.values for history in histories)
    }
    return {name: values for name, values in found.items() if np.isfinite(values).all()}


def label(name: str) -> str:
    """A trace's name for people."""
    return LABELS.get(name) or name.replace("norm_", "norm of layer ").replace("scale_", "scale of ")


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an epoch, by name."""
    return {
        "valid": record["valid"],
        "train": record["train"],
        **{f"norm_{layer}": value for layer, value in record["norms"].items()},
        **{f"scale_{group}": value for group, value in record.get("prior", {}).items()},  # 0.1 had none
        **record["sampler"],
        **{f"predicted_{name}": value for name, value in record["predicted"].items()},
    }
