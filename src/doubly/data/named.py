"""The named sets: digits from scikit-learn, and the published sets whose files lie in the data folder."""

import os
from pathlib import Path

import numpy as np

from doubly.data.dataset import SPLITS, Data
from doubly.data.files import open_arrays, table_in
from doubly.errors import UserError


def digits() -> Data:
    """scikit-learn's handwritten digits, 8x8, black where the grey is at least half: 1197/300/300 rows."""
    from sklearn.datasets import load_digits

    grey = load_digits().data
    rows = (np.random.default_rng(0).permutation(grey) >= 8).astype(np.uint8)
    train, valid, test = np.split(rows, [1197, 1497])
    return Data("digits", train, valid, test, (8, 8), "binary")


def binarized_mnist() -> Data:
    """MNIST digits, 28x28, binarised once and for all (Salakhutdinov & Murray 2008): 50000/10000/10000 rows."""
    return _from_data_folder("binarized-mnist", "binarized_mnist.npz")


def caltech_silhouettes() -> Data:
    """Caltech 101 silhouettes, 28x28 (Marlin et al. 2010), 1 is background: 4100/2264/2307 rows."""
    return _from_data_folder("caltech-silhouettes", "caltech101_silhouettes28_split1.npz")


def data_folder() -> Path:
    """Where the named sets lie: $DOUBLY_DATA, else the user's cache."""
    if folder := os.environ.get("DOUBLY_DATA"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "doubly"


def _from_data_folder(name: str, file: str) -> Data:
    path = data_folder() / file
    if not path.is_file():
        raise UserError(
            f"{name} needs {file}, which is not in {path.parent}: set DOUBLY_DATA to the folder that holds it"
        )
    with open_arrays(path) as arrays:
        if absent := [key for key in (*SPLITS, "dim") if key not in arrays]:
            raise UserError(f"{path} has no array {absent[0]!r}: it is not the file of {name}; fetch it again")
        train, valid, test = (table_in(arrays, split, path).rows for split in SPLITS)
    return Data(name, train, valid, test, (28, 28), "binary")
