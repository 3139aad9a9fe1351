"""The named sets: digits from scikit-learn, and published sets from the data folder or from their public homes.

The data folder is $DOUBLY_DATA, from which nothing is fetched and into which nothing is written. Without it the user's
cache is the folder, and what is absent there is fetched. Each set is known in several forms: whichever file is there is
read.
"""

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from doubly.core.errors import UserError
from doubly.core.types import Binarise
from doubly.data.binarise import binarise
from doubly.data.dataset import SPLITS, Data
from doubly.data.fetch import HOMES, Remote, fetch, tabular_home
from doubly.data.files import table_in
from doubly.data.formats import damage_named, open_arrays
from doubly.data.text import read_csv

Splits = dict[str, np.ndarray]


def digits() -> Data:
    """scikit-learn's handwritten digits, 8x8, black where the grey is at least half: 1197/300/300 rows."""
    rows = (np.random.default_rng(0).permutation(_grey_digits()) >= 8).astype(np.uint8)
    train, valid, test = np.split(rows, [1197, 1497])
    return Data("digits", train, valid, test, (8, 8), "binary")


def binarized_mnist() -> Data:
    """MNIST digits, 28x28, binarised once and for all (Salakhutdinov & Murray 2008): 50000/10000/10000 rows."""
    found = locate("binarized-mnist")
    splits = found.form.read(found.paths)
    return Data("binarized-mnist", splits["train"], splits["valid"], splits["test"], (28, 28), "binary")


def caltech_silhouettes() -> Data:
    """Caltech 101 silhouettes, 28x28 (Marlin et al. 2010), 1 is background: 4100/2264/2307 rows."""
    found = locate("caltech-silhouettes")
    splits = found.form.read(found.paths)
    return Data("caltech-silhouettes", splits["train"], splits["valid"], splits["test"], (28, 28), "binary")


def mnist(binarise: Binarise = "dynamic", bits_seed: int = 0) -> Data:
    """MNIST digits, 28x28 greys, bits drawn anew as it trains (Burda et al. 2016): 50000/10000/10000 rows.

    The last 10000 training rows are for validation. For bits that stay, take binarise=sample or binarise=threshold.
    """
    found = locate("mnist")
    splits = found.form.read(found.paths)
    if "valid" not in splits:
        held_out = min(10_000, len(splits["train"]) // 6)
        splits |= {"train": splits["train"][:-held_out], "valid": splits["train"][-held_out:]}
    return _from_greys("mnist", splits, binarise, bits_seed)


def omniglot(binarise: Binarise = "dynamic", bits_seed: int = 0) -> Data:
    """OMNIGLOT characters, 28x28 greys, bits drawn anew as it trains (Burda et al. 2016): 23000/1345/8070 rows.

    The training rows are shuffled and the last 1345 held out, as Burda et al. do. A rebuilt file, where that is what is
    in the data folder, has other rows in a few places and another order: such data are called omniglot-rebuilt.
    """
    found = locate("omniglot")
    splits = found.form.read(found.paths)
    # the generator and the seed of Burda et al., so that their file gives their split
    order = np.random.RandomState(123).permutation(len(splits["train"]))
    train = splits["train"][order]
    held_out = min(1345, len(train) // 18)
    name = "omniglot-rebuilt" if "rebuilt" in found.paths[0].name else "omniglot"
    splits |= {"train": train[:-held_out], "valid": train[-held_out:]}
    return _from_greys(name, splits, binarise, bits_seed)


def _grey_digits() -> np.ndarray:
    """What scikit-learn's `load_digits` gives, from its file: the package itself takes a second or two to import."""
    found = importlib.util.find_spec("sklearn")
    folders = (found.submodule_search_locations if found else None) or []
    for file in (Path(folder) / "datasets" / "data" / "digits.csv.gz" for folder in folders):
        if file.exists():
            return np.loadtxt(file, delimiter=",")[:, :-1]  # the last column is what the digit is
    from sklearn.datasets import load_digits

    found_there: np.ndarray = load_digits().data
    return found_there


def _from_greys(name: str, splits: Splits, how: str, seed: int) -> Data:
    if seed < 0:
        raise UserError(f"the seed must not be negative, got {seed}")
    bits, dynamic = binarise(how, splits, seed, name, white=255)
    train, valid, test = (bits[split] for split in SPLITS)
    return Data(name, train, valid, test, (28, 28), "binary", dynamic=dynamic, bits_seed=seed)


class Size(NamedTuple):
    """Columns, and rows of train, valid and test."""

    width: int
    rows: tuple[int, int, int]


# The twenty tabular sets of the density estimators

TABULAR: dict[str, Size] = {
    "nltcs": Size(16, (16181, 2157, 3236)),
    "msnbc": Size(17, (291326, 38843, 58265)),
    "kdd": Size(64, (180092, 19907, 34955)),
    "plants": Size(69, (17412, 2321, 3482)),
    "baudio": Size(100, (15000, 2000, 3000)),
    "jester": Size(100, (9000, 1000, 4116)),
    "bnetflix": Size(100, (15000, 2000, 3000)),
    "accidents": Size(111, (12758, 1700, 2551)),
    "tretail": Size(135, (22041, 2938, 4408)),
    "pumsb_star": Size(163, (12262, 1635, 2452)),
    "dna": Size(180, (1600, 400, 1186)),
    "kosarek": Size(190, (33375, 4450, 6675)),
    "msweb": Size(294, (29441, 3270, 5000)),
    "book": Size(500, (8700, 1159, 1739)),
    "tmovie": Size(500, (4524, 1002, 591)),
    "cwebkb": Size(839, (2803, 558, 838)),
    "cr52": Size(889, (6532, 1028, 1540)),
    "c20ng": Size(910, (11293, 3764, 3764)),
    "bbc": Size(1058, (1670, 225, 330)),
    "ad": Size(1556, (2461, 327, 491)),
}

SIZES: dict[str, Size] = {
    "digits": Size(64, (1197, 300, 300)),
    "bars": Size(16, (2000, 500, 500)),
    "binarized-mnist": Size(784, (50000, 10000, 10000)),
    "mnist": Size(784, (50000, 10000, 10000)),
    "caltech-silhouettes": Size(784, (4100, 2264, 2307)),
    "omniglot": Size(784, (23000, 1345, 8070)),
    **{stem.replace("_", "-"): size for stem, size in TABULAR.items()},
}


def tabular(stem: str) -> Callable[[], Data]:
    """The function that gives one of the twenty tabular sets."""
    width, rows = TABULAR[stem]
    name = stem.replace("_", "-")

    def read() -> Data:
        found = locate(name)
        splits = found.form.read(found.paths)
        return Data(name, splits["train"], splits["valid"], splits["test"], (width,), "binary")

    read.__name__ = stem
    sizes = "/".join(map(str, rows))
    read.__doc__ = f"Binary table of {width} columns (Lowd & Davis 2010, Van Haaren & Davis 2012): {sizes} rows."
    return read


# Where the files are, and their forms


def data_folder() -> Path:
    """Where the named sets lie: $DOUBLY_DATA, else the user's cache."""
    if folder := os.environ.get("DOUBLY_DATA"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "doubly"


class Form(NamedTuple):
    """One way a set is published: its files, and how they are read into splits."""

    files: tuple[str, ...]
    read: Callable[[list[Path]], Splits]


class Found(NamedTuple):
    """A set whose files are there."""

    form: Form
    paths: list[Path]


def find(name: str) -> Found | None:
    """The files of a named set in the data folder, in the first of its forms that is whole."""
    for form in FORMS.get(name, ()):
        paths = [data_folder() / file for file in form.files]
        nested = [data_folder() / file.split(".")[0] / file for file in form.files]
        for choice in (paths, nested):
            if all(path.is_file() for path in choice):
                return Found(form, choice)
    return None


def homes(name: str) -> tuple[Remote, ...]:
    """Where the files of a named set can be fetched from."""
    stem = next((stem for stem in TABULAR if stem.replace("_", "-") == name), None)
    return HOMES.get(name) or (tabular_home(stem) if stem else ())


def locate(name: str) -> Found:
    """The files of a named set, fetched into the user's cache where they are not there."""
    if found := find(name):
        return found
    folder, first = data_folder(), FORMS[name][0].files[0]
    if os.environ.get("DOUBLY_DATA"):
        raise UserError(
            f"{name} needs {first}, which is not in {folder}: set DOUBLY_DATA to the folder that holds it, "
            f"or unset it to have the set fetched"
        )
    for remote in homes(name):
        if not (folder / remote.name).is_file():
            fetch(remote, folder)
    if found := find(name):
        return found
    raise UserError(f"{name} needs {first}, which is not in {folder}: put it there")


def _read_npz(paths: list[Path]) -> Splits:
    path = paths[0]
    with open_arrays(path) as arrays:
        wanted = ("train", "test") if "dim" not in arrays and "valid" not in arrays else (*SPLITS, "dim")
        if absent := [key for key in wanted if key not in arrays]:
            raise UserError(f"{path} has no array {absent[0]!r}: it is not the file of this set; fetch it again")
        return {split: table_in(arrays, split, path).rows for split in SPLITS if split in wanted}


def _read_each(paths: list[Path]) -> Splits:
    """One file for each split: train, valid, test, or train and test."""
    splits = {}
    for split, path in zip(SPLITS if len(paths) == 3 else ("train", "test"), paths, strict=True):
        with open_arrays(path) as arrays:
            splits[split] = table_in(arrays, "data", path).rows
    return splits


def _read_csvs(paths: list[Path]) -> Splits:
    splits = {}
    for split, path in zip(SPLITS, paths, strict=True):
        with damage_named(path):
            sheet = read_csv(path, header=False)
        if any(column.dtype == object for column in sheet.columns):
            raise UserError(f"{path} has cells that are no numbers: expected 0 and 1; fetch it again")
        splits[split] = np.stack(sheet.columns, axis=1)
    return splits


def _read_silhouettes(paths: list[Path]) -> Splits:
    with open_arrays(paths[0]) as arrays:
        return {split: upright(_matrix(arrays, split, paths[0])) for split in SPLITS}


def _read_chardata(paths: list[Path]) -> Splits:
    with open_arrays(paths[0]) as arrays:
        columns = {"train": _matrix(arrays, "data", paths[0]), "test": _matrix(arrays, "testdata", paths[0])}
    return {split: upright(np.rint(rows.T * 255).astype(np.uint8)) for split, rows in columns.items()}


def _matrix(arrays: Mapping[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    if name not in arrays:
        raise UserError(f"{path} has no array {name!r}: it is not the file of this set; fetch it again")
    return np.asarray(arrays[name])


def _read_mnist_pickle(paths: list[Path]) -> Splits:
    """The classic mnist.pkl.gz, whose greys were divided by 256."""
    with open_arrays(paths[0]) as arrays:
        splits = {split: _matrix(arrays, split, paths[0]) for split in SPLITS}
    scale = 256 if splits["train"].max() == 255 / 256 else 255
    return {split: np.rint(rows * scale).astype(np.uint8) for split, rows in splits.items()}


def upright(rows: np.ndarray) -> np.ndarray:
    """MATLAB's pixels go down the columns of an image; ours go along its rows."""
    if rows.ndim != 2 or rows.shape[1] != 784:
        raise UserError(f"images must be rows of 784 pixels, got an array of shape {rows.shape}: fetch the file again")
    return rows.reshape(-1, 28, 28).transpose(0, 2, 1).reshape(-1, 784)


FORMS: dict[str, tuple[Form, ...]] = {
    "binarized-mnist": (
        Form(("binarized_mnist.npz",), _read_npz),
        Form(tuple(remote.name for remote in HOMES["binarized-mnist"]), _read_each),
    ),
    "mnist": (
        Form(("mnist_raw.npz",), _read_npz),
        Form(tuple(remote.name for remote in HOMES["mnist"]), _read_each),
        Form(tuple(remote.name.removesuffix(".gz") for remote in HOMES["mnist"]), _read_each),
        Form(("mnist.pkl.gz",), _read_mnist_pickle),
    ),
    "caltech-silhouettes": (
        Form(("caltech101_silhouettes28_split1.npz",), _read_npz),
        Form(("caltech101_silhouettes_28_split1.mat",), _read_silhouettes),
    ),
    "omniglot": (
        Form(("chardata.mat",), _read_chardata),
        Form(("omniglot28_rebuilt.npz",), _read_npz),
    ),
    **{
        stem.replace("_", "-"): (Form(tuple(remote.name for remote in tabular_home(stem)), _read_csvs),)
        for stem in TABULAR
    },
}
