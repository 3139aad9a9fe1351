"""Data by name: the registered sets, the user's files, and functions of the user's own."""

import os
from pathlib import Path

from doubly.data import bars, named
from doubly.data.bars import bars_entropy, bars_log_density, sample_bars
from doubly.data.dataset import SPLITS, Data, Kind, check_binary
from doubly.data.files import SUFFIXES, from_file, read_table
from doubly.data.named import data_folder
from doubly.errors import UserError
from doubly.registry import Registry

DATASETS = Registry(
    "data set",
    digits=named.digits,
    bars=bars.bars,
    binarized_mnist=named.binarized_mnist,
    caltech_silhouettes=named.caltech_silhouettes,
)

__all__ = [
    "DATASETS",
    "SPLITS",
    "Data",
    "Kind",
    "bars_entropy",
    "bars_log_density",
    "check_binary",
    "data_folder",
    "load",
    "read_table",
    "sample_bars",
]


def load(spec: str | os.PathLike[str], *, seed: int = 0, fractions: tuple[float, float] = (0.1, 0.1)) -> Data:
    """Data by registered name, from a .npz, .npy or .csv file, or from a function of yours: `my_file.py:function`.

    Where a file has no valid or test rows, these `fractions` are held out of its rows, at random by the `seed`.
    """
    spec = os.fspath(spec)
    if spec in DATASETS:
        return DATASETS[spec]()
    if spec.split(":")[0].endswith(".py"):
        return _from_function(spec)
    path = Path(spec).expanduser()
    if path.suffix.lower() not in SUFFIXES and not os.path.exists(path):
        raise UserError(
            f"no data set is called {spec!r}; there are: {', '.join(DATASETS)}; "
            f"a path ending in .npz, .npy or .csv is also fine"
        )
    return from_file(path, seed, fractions)


def _from_function(spec: str) -> Data:
    function, options = DATASETS.read(spec)
    if options or not callable(function):
        raise UserError(f"data set {spec!r} must name a function without options: write my_file.py:function")
    if not isinstance(data := function(), Data):
        raise UserError(f"data set {spec!r} must return a doubly Data, got {type(data).__name__}")
    return data
