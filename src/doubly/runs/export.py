"""A finished run as one file: settings and facts as JSON, weights as safetensors, in a zip. No code and no rows in it.

Both have their SHA-256 in model.json: that of the weights beside their name, its own as a seal (`core/sealed.py`).

The proposal is fitted to the mean of the weights before it is written, for the training rows stay where they are. Of
these, only the mean and the spread of each column go along: chains that impute start from them.
"""

import dataclasses
import hashlib
import io
import math
import warnings
import zipfile
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from doubly import __version__
from doubly.core.errors import Damaged, RunWarning, UserError
from doubly.core.files import write
from doubly.core.sealed import MOST_JSON, dump_json, load_json, parse_json
from doubly.data import Columns
from doubly.posterior.store import Posterior, together
from doubly.posterior.units import PosteriorInUnits
from doubly.runs import sources
from doubly.runs.build import Facts, build
from doubly.runs.config import Config, from_dict
from doubly.runs.folder import Run
from doubly.runs.versions import ADDED, made_with
from doubly.training.method import Method
from doubly.training.state import moments

SUFFIX = ".doubly"
FORMAT = 4
SEALED = 4  # before it there were no checksums: 1 did not say what had computed the weights, 3 was of several chains
PARTS = ("model.json", "weights.safetensors")
MOST_WEIGHTS = 2**32  # bytes
# what zipfile and safetensors raise of files that are none: also of a flag that says encrypted, and of versions to come
UNREADABLE = (
    zipfile.BadZipFile, OSError, EOFError, ValueError, KeyError, RuntimeError, NotImplementedError,
    safetensors.SafetensorError,
)  # fmt: skip


def export(run: Run, file: str | Path, refit: int = 100) -> Path:
    """Write what a run has learnt into one file, with a proposal fitted to the mean of the weights."""
    path = Path(file)
    if path.suffix != SUFFIX:
        raise UserError(f"name a file ending in {SUFFIX}, got {file}")
    if own := _code(run.config):
        raise UserError(f"{run.path} uses code of your own ({own[0]}), which one file cannot hold: share the folder")
    posterior = run.posterior(refit_passes=refit)
    columns, facts = moments(posterior.method, posterior.train()), run.facts
    weights = {"column_mean": columns.mean, "column_spread": columns.spread}
    chains = [dataclasses.replace(chain, others=()) for chain in (posterior, *posterior.others)]
    for number, chain in enumerate(chains):
        (pair,) = chain._refitted(chain._pairs("mean"))
        named = {"mean": pair.theta, "phi": pair.phi, "last": chain.last()}
        named |= {f"sample-{i}": theta for i, theta in enumerate(chain.thetas)}
        weights |= {_of_chain(number, name): vector for name, vector in named.items()}
    tensors = safetensors.torch.save({name: value.cpu().contiguous().clone() for name, value in weights.items()})
    told: dict[str, Any] = {
        "format": FORMAT,
        "sha256": {PARTS[1]: hashlib.sha256(tensors).hexdigest()},
        **({"chains": len(chains)} if len(chains) > 1 else {}),
        "version": __version__,
        "made": made_with(run.config.threads),
        "config": dataclasses.asdict(dataclasses.replace(run.config, data="")),  # a path says more than it should
        "facts": facts._asdict(),
        "columns": run.columns.as_json() if run.columns else None,
        "epoch": posterior.epoch,
        "collected": posterior.collected,
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(PARTS[0]), dump_json(told))
        archive.writestr(zipfile.ZipInfo(PARTS[1]), tensors)
    write(path, content.getvalue())
    return path


def load_file(file: str | Path, **options: Any) -> Posterior:
    """The posterior in a file that `export` wrote; of a table whose columns were scaled, in the table's own units."""
    facts, columns = read_facts(file)
    found = load_scaled(file, **options)
    return PosteriorInUnits.of(found, columns) if columns is not None and facts.kind == "mixed" else found


def load_scaled(file: str | Path, **options: Any) -> Posterior:
    """The same in the units that the model sees. It is data: sizes are bounded, and nothing in it is run."""
    path = Path(file)
    told, weights = _parts(path)
    try:
        settings = ADDED[2] | told["config"]  # files of both formats are of runs of format 2
        if absent := {field.name for field in dataclasses.fields(Config)} - set(settings):
            said = f"{path} does not say {', '.join(sorted(absent))}: taking the defaults of doubly {__version__}"
            warnings.warn(said, RunWarning, stacklevel=2)
        config = from_dict(settings | {"data": "digits"})
        if own := _code(config):
            raise UserError(f"it names code ({own[0]}), which is never loaded from a file")
        facts, _ = _facts(told)
        for name in ("column_mean", "column_spread"):  # before a model of that width is built
            _check(weights, name, facts.width, "numbers, one for each column")
        method = build(config, facts)
        mean, spread = weights["column_mean"].double(), weights["column_spread"].double()
        fields: dict[str, Any] = {
            "method": method,
            "train": lambda: torch.stack([mean - spread, mean + spread]),
            "epoch": _count("epoch", told["epoch"]),
            "collected": _count("collected", told["collected"]),
            "shape": facts.shape,
            "refit_passes": 0,
        }
        chains = _count("chains", told.get("chains", 1))
        return together([Posterior(**_of_one(weights, n, method), **fields | options) for n in range(max(1, chains))])
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # a UserError is one, too
        raise UserError(f"{path} is damaged, or no file of doubly export: {error}") from None


def _of_chain(number: int, name: str) -> str:
    """The name of a vector of a chain in the file; those of the first have no number."""
    return f"{number}/{name}" if number else name


def _of_one(weights: dict[str, torch.Tensor], number: int, method: Method) -> dict[str, Any]:
    """What the file has of a chain: fields of its posterior."""
    start = _of_chain(number, "sample-")
    names = sorted((name for name in weights if name.startswith(start)), key=lambda name: int(name[len(start) :]))
    for name in (*(_of_chain(number, each) for each in ("mean", "last", "phi")), *names):
        chain = method.proposal if name == _of_chain(number, "phi") else method.model
        _check(weights, name, chain.size, "weights of its model")
    return {
        "phi": weights[_of_chain(number, "phi")],
        "last_theta": weights[_of_chain(number, "last")],
        "mean_theta": weights[_of_chain(number, "mean")],
        "thetas": [weights[name] for name in names],
    }


def read_facts(file: str | Path) -> tuple[Facts, Columns | None]:
    """What a file that `export` wrote says of its data: facts, and of a table its columns."""
    path = Path(file)
    told, _ = _parts(path)
    try:
        return _facts(told)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is damaged, or no file of doubly export: {error}") from None


def _facts(told: dict[str, Any]) -> tuple[Facts, Columns | None]:
    """What is said of the data and of the columns of a table, if the one agrees with the other."""
    facts = Facts(**{**told["facts"], "shape": tuple(told["facts"]["shape"])})
    columns = Columns.from_json(told["columns"]) if told["columns"] else None
    width = _count("width", facts.width)
    if math.prod(_count("shape", side) for side in facts.shape) != width:
        raise UserError(f"rows of shape {facts.shape} have not the {width} cells that it says")
    if columns is not None and columns.width != width:
        raise UserError(f"its columns have {columns.width} cells, and its rows {width}")
    return facts, columns


def _count(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise UserError(f"{name} is no whole number, got {value!r}")
    return value


def _check(weights: dict[str, torch.Tensor], name: str, size: int, what: str) -> None:
    found = weights[name]
    if found.shape != (size,) or found.dtype != torch.float32 or not found.isfinite().all():
        raise UserError(f"{name} has not the {size} finite {what}")


def _code(config: Config) -> list[str]:
    """The files of code that the settings name."""
    return [name for field, text in sources.texts_with_code(config) for name in sources.own_files_in(field, text)]


def _parts(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What is in the file, if it is what `export` writes, no larger than it may be, and as it was written."""
    try:
        with zipfile.ZipFile(path) as archive:
            content = _contents(archive, path)
        told = parse_json(content[PARTS[0]], path)
        _check_format(told, path)
        _check_sums(told, content, path)
        weights = safetensors.torch.load(content[PARTS[1]])
    except UserError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} is damaged, or no file of doubly export: {reason}") from None
    return told, {name: tensor.clone() for name, tensor in weights.items()}


def _contents(archive: zipfile.ZipFile, path: Path) -> dict[str, bytes]:
    """The parts of the file, by name, none larger than it may be."""
    found = {entry.filename: entry for entry in archive.infolist()}
    if sorted(found) != sorted(PARTS) or len(archive.infolist()) != len(PARTS):
        raise UserError(f"{path} is no file of doubly export: expected {' and '.join(PARTS)} in it")
    for name, most in zip(PARTS, (MOST_JSON, MOST_WEIGHTS), strict=True):
        entry = found[name]
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > min(most, path.stat().st_size):
            raise UserError(f"{name} in {path} is compressed or too large: export the run again")
    return {name: archive.read(name) for name in PARTS}


def _check_format(told: dict[str, Any], path: Path) -> None:
    if type(told.get("format")) is not int or told["format"] < 1:
        raise UserError(f"{path} is damaged, or no file of doubly export: it has no format number")
    if told["format"] > FORMAT:
        raise UserError(
            f"{path} has format {told['format']}, which is newer than doubly {__version__} can read (up to {FORMAT}): "
            "update doubly"
        )


def _check_sums(told: dict[str, Any], content: dict[str, bytes], path: Path) -> None:
    """Whether both parts are as they were written; the part that is not is named. Older formats had no checksums."""
    load_json(content[PARTS[0]], path / PARTS[0], required=told["format"] >= SEALED)
    if told["format"] < SEALED:
        return
    sums = told.get("sha256")
    if not isinstance(sums, dict) or sums.get(PARTS[1]) != hashlib.sha256(content[PARTS[1]]).hexdigest():
        raise Damaged(
            f"{path / PARTS[1]} is damaged: its SHA-256 is not the one it was written with; export the run again"
        )
