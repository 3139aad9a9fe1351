"""Settings that are chosen by looking at the data: the one place where that is done, for every way in."""

import dataclasses
import math
from typing import Any, NamedTuple

from doubly.core.own_files import is_own_file
from doubly.core.registry import split
from doubly.data import DATASETS, Columns, Data, file_options, load
from doubly.data.files import split_spec
from doubly.data.formats import TABLES, suffix_of
from doubly.layers.chain import Chain
from doubly.runs.config import Config, from_dict

PRIOR = "student-t:scale=1.0"  # far wider than the paper's, under which small tables learn nothing

# a fixed scale of 1 is too wide for a NADE of jester, one of 0.09 too narrow for one of plants
BITS_PRIOR = "learnt-student-t"
REPLACED = ("auto", "sbn")  # models in whose place a table of other values than bits gets a mixed data layer


class Choice(NamedTuple):
    """Settings with those that were left open filled in, and what a user should know of them."""

    config: Config
    notes: tuple[str, ...] = ()


def of_table(columns: Columns, rows: int, epochs: int = 0) -> dict[str, Any]:
    """Settings for a table of mixed columns and so many training rows; for so many epochs where they are given."""
    width = _units(columns.width)
    return _of_rows(rows, epochs) | {
        "model": f"mixed:columns={columns.layout()},widths={width},normal",
        "hidden": (min(max(len(columns.columns) - 1, 2), 20),),
        "proposal": f"gaussian:widths={width}",
        "objective": "iwae",
    }


def _units(columns: int) -> int:
    """Units of a network that sees so many columns."""
    return min(max(2 * columns, 50), 200)


def _of_rows(rows: int, epochs: int) -> dict[str, Any]:
    """What the number of training rows says; for so many epochs where they are given."""
    batch = min(max(rows // 20, 20), 100)
    batches = math.ceil(rows / batch)
    epochs = epochs or min(max(6000 // batches, 30), 400)
    return {
        "prior": PRIOR,
        "sampler": "thermostat",
        "step": "auto",
        "phi_step": 5e-3,
        "warmup": epochs // 2,
        "warmup_step": 5e-3,  # with 1e-3, 1,000 steps cannot move a weight by more than 1
        "draws": 10,
        "batch": batch,
        "theta_steps": 1,
        "valid_draws": 50,
        "estimator": "nais",
        "patience": 10,
        "epochs": epochs,
        "collect_every": "1epoch",
        "collect": min(30, max(1, epochs // 4)),
    }


def of_array(
    binary: bool, columns: int, rows: int, layer: str = "auto", hidden: tuple[int, ...] | None = None
) -> dict[str, Any]:
    """Settings for an array of bits, or of real columns that are standardised, as `DeepGenerativeModel` takes them.

    `layer` and `hidden` are what the user has said of the model; the proposal and its objective follow from it.
    """
    hidden = widths(binary, columns) if hidden is None else hidden
    perceptron = f"gaussian:widths={min(max(2 * columns, 50), 200)}"
    if layer == "auto" and binary:
        layer = "sbn" if hidden else nade(columns)
    elif layer == "auto":
        layer = ",".join([perceptron] * len(hidden) + ["normal"]) if hidden else "gaussian:widths=none"
    # smaller batches make more steps, but Gaussians do not bear their noise
    batch = min(max(rows // 10, 10), 100) if binary else 100
    chosen = {"model": layer, "hidden": hidden, "step": 0.05 if binary else 0.001, "batch": batch, "phi_step": 3e-3,
              "estimator": "nais", "collect_every": "1epoch", "valid_draws": 50, "sampler": "sgnht",
              "prior": "student-t:scale=0.3"}  # fmt: skip
    if binary and not hidden:
        chosen |= {"sampler": "thermostat", "step": "auto", "prior": BITS_PRIOR}
    return chosen | _suiting(layer, columns, hidden)


def lengths(rows: int, batch: int, exact: bool = False) -> dict[str, Any]:
    """Epochs and steps for so many rows in mini-batches of this size; more where log p(x) is exact, and steps cheap."""
    batches = math.ceil(rows / batch)
    if exact:
        return {"theta_steps": 1, "epochs": min(max(10_000 // batches, 40), 300)}
    return {"theta_steps": 3 if batches < 100 else 1, "epochs": min(max(2000 // batches, 20), 300)}


# Bits

# what must be as nobody had said anything of it, so that the family is chosen
FAMILY = ("model", "hidden", "proposal", "estimator", "moves", "objective", "sampler", "prior", "warmup", "step")


def nade(columns: int) -> str:
    """The data layer of bits that need no latents."""
    return f"nade:width={_units(columns)}"


def is_open(config: Config, data: Data) -> bool:
    """Whether the family of a model is left to choose: of bits that are no pictures, where nobody has said a word."""
    default = Config()
    bits = data.kind == "binary" and len(data.shape) == 1 and not data.dynamic
    return bits and all(getattr(config, name) == getattr(default, name) for name in FAMILY)


def widths(binary: bool, columns: int) -> tuple[int, ...]:
    """One latent layer for an array of so many columns."""
    return (min(max(columns, 10), 100),) if binary else (min(columns, 20),)


def settle(config: Config, data: Data) -> Choice:
    """Fill in what a table needs and nobody said: every setting that is at its default.

    It does so where the data layer is mixed, or is sbn, the default, which cannot draw the table's values.
    """
    first = split(config.model)[0]
    if data.kind != "mixed" or data.columns is None:
        return Choice(config)
    if first == "mixed" or first.startswith("mixed:"):
        if "columns=" in first:
            return Choice(config)
        given = f"mixed:columns={data.columns.layout()}" + first.replace("mixed", "", 1).replace(":", ",", 1)
        config = dataclasses.replace(config, model=config.model.replace(first, given, 1))
    default, why = Config(), []
    if config.model in REPLACED:
        cannot = "" if config.model == default.model else f", which is all that {config.model} can draw"
        why.append(f"not all cells are 0 or 1{cannot}: learnt as a table of mixed columns")
        config = dataclasses.replace(config, model=default.model)
    chosen = of_table(data.columns, len(data.all_train), 0 if config.epochs == default.epochs else config.epochs)
    if config.model != default.model:
        chosen |= _suiting(
            config.model, data.width, chosen["hidden"] if config.hidden == default.hidden else config.hidden
        )
    taken = {name: value for name, value in chosen.items() if getattr(config, name) == getattr(default, name)}
    return Choice(dataclasses.replace(config, **taken), (*why, f"chosen for this table: {told(taken)}"))


def read(config: Config) -> tuple[Config, Data]:
    """The data, and the settings with how they were read.

    A table is read for a mixed data layer where that is named, or where nothing is and the table is not of bits alone.
    """
    named, open_choice = split(config.model)[0].partition(":")[0] == "mixed", config.model in REPLACED
    if (named or open_choice) and _is_table(config):
        spec = _with_option(config.data, "columns=mixed")
        data = load(spec)
        assert data.columns is not None
        if named or any(column.kind != "binary" for column in data.columns.columns):
            return dataclasses.replace(config, data=spec), data
    return config, load(config.data, binarise=config.binarise)


def _is_table(config: Config) -> bool:
    """Whether the data are a file of a table of which nobody has said how its columns are to be read."""
    if config.binarise or config.data.partition(":")[0] in DATASETS or is_own_file(config.data.partition(":")[0]):
        return False
    path, options = file_options(config.data)
    return suffix_of(path) in TABLES and not (options.columns or options.binarise)


def _with_option(spec: str, option: str) -> str:
    return f"{spec},{option}" if split_spec(spec)[1] else f"{spec}:{option}"


def _suiting(model: str, width: int, hidden: tuple[int, ...]) -> dict[str, Any]:
    """The proposal and its objective that suit a model which the user has named."""
    above = Chain.build(model, data=width, hidden=hidden).layers[1:]
    perceptron = f"gaussian:widths={min(max(2 * width, 50), 200)}"
    names = ",".join("sbn" if layer.kind == "binary" else perceptron for layer in above)
    # through real draws goes a gradient, and its bound is the better guide
    smooth = bool(above) and all(layer.kind == "real" for layer in above)
    return {"proposal": names or "sbn", "objective": "iwae" if smooth else "wake"}


def told(settings: dict[str, Any]) -> str:
    """Settings as a person reads them."""
    found = []
    for name, value in settings.items():
        widths = "-".join(map(str, value)) or "none" if isinstance(value, tuple) else value
        found.append(f"{name} {widths}")
    return ", ".join(found)


# Candidates for a table


class Candidate(NamedTuple):
    """A model that may suit the table: its settings."""

    name: str
    config: Config


def candidates(columns: Columns, rows: int, seed: int = 0, epochs: int = 0) -> list[Candidate]:
    """Models for a table: for bits alone, families with and without an order; else mixed layers, linear and not."""
    if all(column.kind == "binary" for column in columns.columns):
        return families(columns.width, rows, seed, epochs)
    base = of_table(columns, rows, epochs) | {"seed": seed, "threads": 1}
    layer = f"mixed:columns={columns.layout()}"
    bits = {"hidden": (30,), "proposal": "sbn", "objective": "wake", "model": f"{layer},sbn"}
    return [
        Candidate("linear, normal latents", from_dict(base | {"model": f"{layer},normal"})),
        Candidate("perceptron, normal latents", from_dict(base)),
        Candidate("linear, binary latents", from_dict(base | bits)),
    ]


def families(columns: int, rows: int, seed: int = 0, epochs: int = 0) -> list[Candidate]:
    """Models for rows of bits: each given those before it, by a network or linearly, or all given binary latents."""
    plain = _of_rows(rows, epochs) | {"seed": seed, "threads": 1, "hidden": (), "proposal": "sbn", "objective": "wake"}
    plain["prior"] = BITS_PRIOR
    return [
        Candidate("nade", from_dict(plain | {"model": nade(columns)})),
        Candidate("fvsbn", from_dict(plain | {"model": "darn"})),
        Candidate("sbn", from_dict(plain | {"model": "sbn", "hidden": widths(True, columns)})),
    ]
