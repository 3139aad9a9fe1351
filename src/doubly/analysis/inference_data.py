"""Weights and traces for ArviZ, which has more diagnostics and more plots."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from doubly.analysis.diagnose import check_enough, check_same_target
from doubly.analysis.traces import collected, history
from doubly.core.errors import UserError
from doubly.core.files import write
from doubly.posterior.store import together
from doubly.runs.folder import Run


def inference_data(*paths: str | Path) -> Any:
    """Stored weights (group posterior) and traces of the collected phase (group sample_stats), for ArviZ.

    It is an InferenceData for ArviZ 0.x, and a DataTree for 1.x. Only some samples of the weights are stored, but the
    traces have a value for every epoch: the `draw` of one group is not that of the other.
    """
    runs = [chain for path in paths for chain in Run(path).chains]
    check_same_target(runs)
    histories = [history(run) for run in runs]
    check_enough(histories)
    chains = together([run.posterior() for run in runs])
    traces = collected(histories)
    samples = next(iter(traces.values())).shape[1]
    epochs = np.stack([history.epoch[history.collecting][-samples:] for history in histories])
    return chains.to_arviz(traces | {"epoch": epochs})


def save_inference_data(path: Path, *runs: str | Path) -> None:
    """Write it as a netCDF file, whole or not at all."""
    if path.suffix != ".nc":
        raise UserError(f"cannot write {path}: expected a netCDF file, whose name ends in .nc")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.name
        inference_data(*runs).to_netcdf(str(file))
        write(path, file.read_bytes())
