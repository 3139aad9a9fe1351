"""What there is and what is in it: the functions behind `doubly data list`, `doubly data info` and `doubly data check`.

None of them fetches anything unless asked to.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from doubly.core.errors import UserError
from doubly.core.registry import describe
from doubly.data.columns import Columns
from doubly.data.dataset import SPLITS, is_binary, missing_mask, unscaled
from doubly.data.fetch import remembered, sha256
from doubly.data.files import read_raw
from doubly.data.load import DATASETS, file_options, load
from doubly.data.named import FORMS, SIZES, data_folder, find, homes

SHOWN = 10  # names in a message, before it says how many more there are


def listing() -> list[dict[str, Any]]:
    """Every named set: a line on it, its width and rows, and whether it is `here`, to `download`, or `absent`."""
    return [
        {
            "name": name,
            "about": describe(DATASETS[name]),
            "status": _status(name),
            "width": SIZES[name].width,
            "rows": dict(zip(SPLITS, SIZES[name].rows, strict=True)),
        }
        for name in DATASETS
    ]


def info(name: str, download: bool = False) -> dict[str, Any]:
    """What is in a named set or a file; of a set that is not here, only where it could be had from."""
    found: dict[str, Any] = {"name": name, "about": describe(DATASETS[_base(name)]) if _base(name) in DATASETS else ""}
    if not download and _status(_base(name)) in ("download", "absent"):
        urls = [remote.url for remote in homes(_base(name))]
        return found | {"status": _status(_base(name)), "folder": str(data_folder()), "homes": urls}
    table = _read(name)
    train = table.splits["train"]
    return found | {
        "status": "here",
        "kind": table.kind,
        "shape": list(table.shape),
        "width": train.shape[1],
        "rows": {split: len(rows) for split, rows in table.splits.items()},
        "dynamic": table.dynamic,
        **{split: _moments(rows) for split, rows in table.splits.items()},
        "missing": {split: int(missing_mask(rows).sum()) for split, rows in table.splits.items()},
        "constant": _labels(table, _constant(train)),
        "repeated": {
            "within train": len(train) - len(_keys(train)),
            **{f"{split} rows that are in train": _shared(table, split) for split in ("valid", "test")},
        },
        "columns": table.columns.as_json() if table.columns else None,
        "sha256": _fingerprint(table),
        "files": {str(path): sha256(path) for path in _files(name)},
    }


def check(name: str, download: bool = False) -> list[str]:
    """What a user should know before learning from a set or a file: a line each, none where all is well."""
    if not download and (status := _status(_base(name))) in ("download", "absent"):
        cure = (
            "it is fetched when first loaded" if status == "download" else "set DOUBLY_DATA to the folder that has it"
        )
        return [f"{name} is not in {data_folder()}: {cure}"]
    fetched = _checksums(name) if _base(name) in FORMS else []
    try:
        table = _read(name)
    except UserError as error:
        return [*fetched, str(error)]
    return [*fetched, *_refusals(name), *_sizes(table), *_values(table), *_columns(table), *_overlaps(table)]


def info_text(name: str, download: bool = False) -> str:
    """`info` for people to read."""
    lines = []
    for key, value in info(name, download).items():
        if value in (None, "", [], {}):
            continue
        if key == "columns":
            shown = [
                f"{column['name']}: {column['kind']}"
                + (f" ({_some(column['levels'])})" if column["levels"] else "")
                + (", constant" if column["constant"] else "")
                for column in value
            ]
            rest = len(shown) - 40
            lines += ["columns", *("  " + line for line in shown[:40]), *([f"  and {rest} more"] if rest > 0 else [])]
        elif isinstance(value, dict):
            lines.append(f"{key:<10} " + ", ".join(f"{inner} {_short(entry)}" for inner, entry in value.items()))
        elif isinstance(value, list):
            lines.append(f"{key:<10} " + ("x".join(map(str, value)) if key == "shape" else _some(value)))
        else:
            lines.append(f"{key:<10} {_short(value)}")
    return "\n".join(lines)


def listing_text() -> str:
    """`listing` for people to read."""
    return "\n".join(f"{entry['name']:<20} {entry['status']:<9} {entry['about']}" for entry in listing())


class _Table(NamedTuple):
    """A set as it is found, whether it can be trained on or not."""

    name: str
    splits: dict[str, np.ndarray]
    shape: tuple[int, ...]
    kind: str
    dynamic: bool
    columns: Columns | None
    named: str = ""
    """Which of the named sets it is."""


def _read(name: str) -> _Table:
    """A set or file; missing values are left in, so that they can be counted."""
    if _base(name) not in DATASETS and not name.partition(":")[0].endswith(".py"):
        path, options = file_options(name)
        raw = read_raw(path, options)
        whole = not any(missing_mask(rows).any() for rows in raw.splits.values())
        if not (options.binarise and whole):
            known = (rows[~missing_mask(rows)] for rows in raw.splits.values())
            kind = "binary" if all(is_binary(rows) for rows in known) else "real"
            return _Table(raw.name, raw.splits, raw.shape, kind, False, raw.columns)
    data = load(name)
    splits = {split: data.split(split) for split in SPLITS}
    named = _base(name) if _base(name) in DATASETS else ""
    return _Table(data.name, splits, data.shape, data.kind, data.dynamic, data.columns, named)


def _base(name: str) -> str:
    return name.partition(":")[0]


def _status(name: str) -> str:
    """`here`, `download` or `absent`; a set that is made rather than read is always here."""
    if name not in FORMS or find(name):
        return "here"
    return "download" if homes(name) and not os.environ.get("DOUBLY_DATA") else "absent"


def _files(name: str) -> list[Path]:
    if _base(name) in FORMS:
        found = find(_base(name))
        return found.paths if found else []
    if _base(name) in DATASETS or _base(name).endswith(".py"):
        return []
    return [path] if (path := file_options(name)[0]).is_file() else []


def _fingerprint(table: _Table) -> str:
    """The SHA-256 of the rows as a run folder has it, where they can be trained on."""
    digest = hashlib.sha256()
    for split in SPLITS:
        rows = table.splits[split]
        whole = not missing_mask(rows).any()
        digest.update(rows.astype(np.uint8 if table.kind == "binary" and whole else np.float32).tobytes())
    return digest.hexdigest()


# What check looks at


def _checksums(name: str) -> list[str]:
    found = []
    for path in _files(name):
        known = remembered(path.parent).get(path.name)
        if known and known != sha256(path):
            found.append(f"{path} has changed since it was fetched (SHA-256 was {known}): delete it to fetch it again")
    return found


def _refusals(name: str) -> list[str]:
    """What training would refuse of a file; a named set was loaded to look at it."""
    if _base(name) in DATASETS:
        return []
    try:
        load(name)
    except UserError as error:
        return [str(error)]
    return []


def _sizes(table: _Table) -> list[str]:
    found = []
    train = table.splits["train"]
    if len(train) < train.shape[1]:
        found.append(f"train has {len(train)} rows for {train.shape[1]} columns: the prior will decide much")
    for split in ("valid", "test"):
        if len(table.splits[split]) < 100:
            found.append(
                f"{split} has {len(table.splits[split])} rows: with fewer than 100 its score has a wide error bar"
            )
    sizes = tuple(len(table.splits[split]) for split in SPLITS)
    if table.named and sizes != SIZES[table.named].rows:
        found.append(
            f"{table.named} should have {SIZES[table.named].rows} rows in its splits, got {sizes}: fetch it again"
        )
    return found


def _values(table: _Table) -> list[str]:
    found = []
    for split, rows in table.splits.items():
        missing = missing_mask(rows)
        if missing.any():
            lines, empty = int(missing.any(1).sum()), int(missing.all(1).sum())
            rest = f", {empty} of which have no value at all" if empty else ""
            found.append(
                f"{split} has {int(missing.sum())} missing cells in {lines} rows{rest}: they count for nothing"
            )
    if table.kind == "binary":
        return found
    train = table.splits["train"]
    known = train[~missing_mask(train)]
    if (
        table.columns is None
        and known.size
        and known.min() >= 0
        and known.max() <= 255
        and (known.max() > 128 or known.max() <= 1)
    ):
        top = 1 if known.max() <= 1 else 255
        found.append(f"values lie from 0 to {top} and are not all 0 or 1: for a binary layer say binarise=sample")
    far = unscaled(train)
    if far.any():
        found.append(
            f"{_count(far, 'column')} far from mean 0 and standard deviation 1: {_some(_labels(table, far))}; "
            f"scale them, or take DeepGenerativeModel, which does"
        )
    return found


def _columns(table: _Table) -> list[str]:
    found = []
    train = table.splits["train"]
    constant = _constant(train)
    if constant.any():
        found.append(f"{_count(constant, 'column')} constant in train: {_some(_labels(table, constant))}")
    for split in ("valid", "test"):
        unseen = constant & ((table.splits[split] != _first_known(train)) & ~missing_mask(table.splits[split])).any(0)
        if unseen.any():
            found.append(
                f"{_count(unseen, 'column')} constant in train but not in {split}, where the score will suffer: "
                f"{_some(_labels(table, unseen))}"
            )
    if table.columns:
        rows = sum(len(split) for split in table.splits.values())
        many = [column.name for column in table.columns.columns if len(column.levels) > max(20, rows // 10)]
        if many:
            found.append(f"categories with many levels for {rows} rows: {_some(many)}; drop them or join levels")
    return found


def _overlaps(table: _Table) -> list[str]:
    found = []
    possible = 2.0 ** min(table.splits["train"].shape[1], 1000) if table.kind == "binary" else np.inf
    for split in ("valid", "test"):
        shared, rows = _shared(table, split), len(table.splits[split])
        if shared:
            # few columns have few different rows, which come up everywhere without anybody's fault
            cause = "" if possible > 1e6 else " (with so few columns that is to be expected)"
            found.append(f"{shared} of {rows} {split} rows are in train too{cause}")
    return found


def _constant(rows: np.ndarray) -> np.ndarray:
    """For each column, whether all that is known of it is one value."""
    found: np.ndarray
    if rows.dtype.kind != "f":
        found = (rows == rows[0]).all(0)
        return found
    low = np.where(np.isnan(rows), np.inf, rows).min(0)
    high = np.where(np.isnan(rows), -np.inf, rows).max(0)
    found = low >= high
    return found


def _first_known(rows: np.ndarray) -> np.ndarray:
    """Of each column the first value that is not missing, NaN where all are."""
    found: np.ndarray = rows[(~missing_mask(rows)).argmax(0), np.arange(rows.shape[1])]
    return found


def _keys(rows: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in np.ascontiguousarray(rows)}


def _shared(table: _Table, split: str) -> int:
    train = _keys(table.splits["train"])
    return sum(row.tobytes() in train for row in np.ascontiguousarray(table.splits[split]))


def _moments(rows: np.ndarray) -> dict[str, float]:
    known = rows[~missing_mask(rows)]
    if not known.size:
        return {}
    if known.dtype == np.uint8 and known.max() <= 1:  # bits need no table of squares eight times their size
        ones = float(known.mean())
        return {"mean": ones, "sd": (ones * (1 - ones)) ** 0.5, "min": float(known.min()), "max": float(known.max())}
    known = known.astype(float)
    return {"mean": float(known.mean()), "sd": float(known.std()), "min": float(known.min()), "max": float(known.max())}


def _labels(table: _Table, which: np.ndarray) -> list[str]:
    names = table.columns.cells if table.columns else [str(at) for at in range(len(which))]
    return [names[at] for at in np.flatnonzero(which)]


def _count(which: np.ndarray, noun: str) -> str:
    return f"1 {noun} is" if which.sum() == 1 else f"{which.sum()} {noun}s are"


def _some(names: list[Any]) -> str:
    more = len(names) - SHOWN
    return ", ".join(" ".join(str(name).split()) for name in names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_short(entry)}" for key, entry in value.items()) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
