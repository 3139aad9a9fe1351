"""Data by name: the registered sets, the user's files, and functions of the user's own."""

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Any

from doubly.core.errors import UserError, near
from doubly.core.own_files import is_own_file
from doubly.core.registry import Registry
from doubly.core.types import Binarise
from doubly.data import bars, named
from doubly.data.binarise import check_way
from doubly.data.dataset import Data
from doubly.data.files import OPTION_DEFAULTS, Options, from_file, parse_options, split_spec
from doubly.data.formats import EXPECTED, suffix_of

DATASETS = Registry(
    "data set",
    digits=named.digits,
    bars=bars.bars,
    binarized_mnist=named.binarized_mnist,
    mnist=named.mnist,
    caltech_silhouettes=named.caltech_silhouettes,
    omniglot=named.omniglot,
    **{stem: named.tabular(stem) for stem in named.TABULAR},
)


def load(
    spec: str | os.PathLike[str],
    *,
    seed: int = 0,
    fractions: tuple[float, float] = (0.1, 0.1),
    binarise: Binarise | None = None,
) -> Data:
    """Data by registered name, from a file of yours, or from a function of yours: `my_file.py:function`.

    Options may follow a colon: `mnist:binarise=sample`, `my.csv:valid=0.1,test=0.2,split_seed=3,header=true`; they win
    over the arguments. A file by exactly the name given, colons and commas included, wins over options.
    Where a file has no valid or test rows, these `fractions` are held out of its rows, at random by the `seed`.
    """
    spec = os.fspath(spec)
    if binarise:
        check_way(binarise, spec)
    name, _, text = spec.partition(":")
    if name in DATASETS:
        return _registered(name, text, binarise)
    if is_own_file(name):
        return _still_binary(_from_function(spec), binarise)
    return from_file(*file_options(spec, seed=seed, fractions=fractions, binarise=binarise))


def file_options(
    spec: str, *, seed: int = 0, fractions: tuple[float, float] = (0.1, 0.1), binarise: str | None = None
) -> tuple[Path, Options]:
    """The path in a spec and all that is said of it."""
    path, text = split_spec(spec)
    if not suffix_of(path) and not os.path.exists(path):
        raise UserError(
            f"no data set is called {spec!r}{near(spec, DATASETS)}; there are: {', '.join(DATASETS)}; "
            f"a path ending in {EXPECTED} is also fine"
        )
    said = Options(valid=fractions[0], test=fractions[1], split_seed=seed, bits_seed=seed, binarise=binarise or "")
    return path, dataclasses.replace(said, **parse_options(text, OPTION_DEFAULTS, str(path)))


def absolute(spec: str) -> str:
    """The spec with the path of a file made absolute, so that a run can be opened from anywhere."""
    if spec.partition(":")[0] in DATASETS:
        return spec
    path, text = split_spec(spec)
    if not os.path.exists(path):
        return spec
    return f"{path.resolve()}:{text}" if text else str(path.resolve())


def _registered(name: str, text: str, binarise: Binarise | None) -> Data:
    kinds = {key: option.default for key, option in inspect.signature(DATASETS[name]).parameters.items()}
    options: dict[str, Any] = parse_options(text, kinds, name)
    if "binarise" in kinds:
        found: Data = DATASETS[name](**({"binarise": binarise} if binarise else {}) | options)
        return found
    return _still_binary(DATASETS[name](**options), binarise)


def _still_binary(data: Data, binarise: Binarise | None) -> Data:
    """The data, where binarising them changes nothing."""
    if binarise == "dynamic" and not data.dynamic and data.kind == "binary":
        raise UserError(f"{data.name} is binary already, so there is nothing to draw anew: leave binarise=dynamic out")
    if binarise and data.kind != "binary":
        raise UserError(f"{data.name} comes from a function, which has to binarise it itself: leave binarise out")
    return data


def _from_function(spec: str) -> Data:
    function, options = DATASETS.read(spec)
    if options or not callable(function):
        raise UserError(f"data set {spec!r} must name a function without options: write my_file.py:function")
    if not isinstance(data := function(), Data):
        raise UserError(f"data set {spec!r} must return a doubly Data, got {type(data).__name__}")
    return data
