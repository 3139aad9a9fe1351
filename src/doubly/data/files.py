"""The user's files: rows from tables and arrays, and the splits that are given in them or held out of them.

A file may be followed by options: `my.csv:valid=0.1,test=0.2,split_seed=3,binarise=threshold`.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from doubly.core.errors import UserError, near
from doubly.data.binarise import binarise, check_way
from doubly.data.columns import Column, Columns, Sheet, nameless, sheet_of, shown
from doubly.data.dataset import (
    LOOKED_AT,
    SPLITS,
    Data,
    Kind,
    Origin,
    Place,
    as_kind,
    check_finite,
    is_binary,
    spaced,
)
from doubly.data.formats import (
    TABLES,
    check_memory,
    check_readable,
    damage_named,
    open_arrays,
    read_parquet,
    suffix_of,
)
from doubly.data.kinds import guess
from doubly.data.pictures import is_picture_folder, read_pictures
from doubly.data.stored import (
    LARGE,
    PACKED_FROM,
    ArrayFile,
    Packed,
    Shards,
    as_stored,
    is_shard_folder,
    look,
    shard_files,
)
from doubly.data.text import DECIMALS, SEPARATORS, read_csv
from doubly.data.workbooks import read_workbook


@dataclass(frozen=True)
class Options:
    """What can be said of a file, after its name."""

    valid: float = 0.1  # the fractions held out where the file has no such rows
    test: float = 0.1
    split_seed: int = 0
    split: str = ""  # the column that says train, valid or test
    binarise: str = ""
    bits_seed: int = 0
    white: float = 0.0  # the grey that is surely 1; 0 finds it out
    header: bool | None = None
    categories: tuple[str, ...] = ()  # columns of numbers to take as categories: a+b
    drop: tuple[str, ...] = ()  # columns to leave out: a+b
    missing: tuple[str, ...] = ()  # further texts that mean a missing cell: ?+unknown
    separator: str = ""  # comma, semicolon or tab; nothing finds it out
    decimal: str = "point"  # or comma, as in 3,14
    columns: str = ""  # mixed: every column has its own kind and unit, as a mixed data layer wants them
    sheet: str = ""  # of a workbook; the first where nothing is said
    shape: tuple[int, ...] = ()  # of one row: 28x28
    stored: bool | None = None  # rows of a .npy stay in the file; where nothing is said, those of a large one do

    def check(self, where: str) -> None:
        """Refuse amounts that cannot be."""
        fractions = (self.valid, self.test)
        if not all(fraction >= 0 for fraction in fractions) or not sum(fractions) < 1:
            raise UserError(f"the fractions held out must not be negative and add up to less than 1, got {fractions}")
        for seed in (self.split_seed, self.bits_seed):
            if seed < 0:
                raise UserError(f"the seed must not be negative, got {seed}")
        if not 0 <= self.white < math.inf:
            raise UserError(f"white of {where} must be a positive number, got {self.white}")
        if self.binarise:
            check_way(self.binarise, where)
        for name, choices in (("separator", ("", *SEPARATORS)), ("decimal", DECIMALS), ("columns", ("", "mixed"))):
            if getattr(self, name) not in choices:
                wanted = " or ".join(filter(None, choices))
                raise UserError(f"{name} of {where} must be {wanted}, got {getattr(self, name)!r}")
        if self.binarise and self.columns:
            raise UserError(f"columns of {where} are either mixed or binarised: leave one of the two out")


HELD_OUT = 10_000  # rows of valid and of test, of a store that has none
TABLE_OPTIONS = ("header", "categories", "drop", "missing", "split", "separator", "decimal", "columns", "sheet")
TEXT_OPTIONS = ("separator", "decimal")  # of files that are texts


def split_spec(spec: str) -> tuple[Path, str]:
    """The path and the options in a spec. A file by exactly that name wins, whatever colons and commas are in it."""
    whole = Path(spec).expanduser()
    if os.path.exists(whole):
        return whole, ""
    colons = [place for place, mark in enumerate(spec) if mark == ":"]
    for place in reversed(colons):
        if os.path.exists(path := Path(spec[:place]).expanduser()):
            return path, spec[place + 1 :]
    for place in colons:  # no such file: read it as it was meant, for the message
        if suffix_of(Path(spec[:place])):
            return Path(spec[:place]).expanduser(), spec[place + 1 :]
    return whole, ""


def parse_options(text: str, kinds: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Names and values from `a=1,b=x`, each read as the kind of thing its default is."""
    found: dict[str, Any] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.strip().partition("=")
        if not equals:
            raise UserError(f"option {part!r} of {where} has no value; write {part}=VALUE")
        if name not in kinds:
            raise UserError(f"{where} has no option {name!r}; its options are: {', '.join(kinds) or 'none'}")
        found[name] = _option(name, value, kinds[name], where)
    return found


def _option(name: str, value: str, default: Any, where: str) -> Any:
    try:
        if name in ("header", "stored"):
            return {"true": True, "false": False}[value.lower()]
        if name == "shape":
            return tuple(int(length) for length in value.split("x"))
        if isinstance(default, tuple):
            return tuple(value.split("+"))
        return type(default)(value)
    except (ValueError, KeyError):
        wanted = {"header": "true or false", "stored": "true or false", "shape": "whole numbers such as 28x28"}.get(
            name
        )
        wanted = wanted or ("a whole number" if isinstance(default, int) else "a number")
        raise UserError(f"{name} of {where} must be {wanted}, got {value!r}") from None


OPTION_DEFAULTS = {option.name: option.default for option in dataclasses.fields(Options)}


class Raw(NamedTuple):
    """A file's rows in their splits, before anything is asked of them: values may be missing."""

    name: str
    splits: dict[str, np.ndarray]
    shape: tuple[int, ...]
    columns: Columns | None
    origin: Origin


def from_file(path: Path, options: Options) -> Data:
    """Data from a file; of valid and test, those it lacks are held out of its rows, at random by the seed."""
    if stays_stored(path, options):
        return _from_store(path, options)
    return _data_of(read_raw(path, options, nan_allowed=not options.binarise), path, options)


def stays_stored(path: Path, options: Options) -> bool:
    """Whether the training rows stay where they are: in a folder of shards, or in a large .npy."""
    if os.path.isdir(path):
        return not is_picture_folder(path) and is_shard_folder(path)
    large = options.stored is None and os.path.isfile(path) and os.path.getsize(path) >= LARGE
    if options.stored and suffix_of(path) != ".npy":
        raise UserError(f"stored is said of {path}, but only a .npy or a folder of them can stay: leave it out")
    return suffix_of(path) == ".npy" and os.path.isfile(path) and (bool(options.stored) or large)


def _from_store(path: Path, options: Options) -> Data:
    """Data whose training rows are read when they are asked for; of valid and test, at most HELD_OUT are held out."""
    options.check(str(path))
    if said := [name for name in (*TABLE_OPTIONS, "binarise") if _is_said(options, name)]:
        raise UserError(f"{said[0]} is said of {path}, whose rows stay stored: leave it out, or save rows that have it")
    found = _stores_in(path)
    train = found["train"]
    seen = [look(rows, f"{split} of {path}") for split, rows in found.items()]
    kind: Kind = "binary" if all(each.binary for each in seen) else "real"
    numbers = _hold_out({split: np.arange(len(rows)) for split, rows in found.items()}, options, path, HELD_OUT)
    for split in ("valid", "test"):
        check_memory(path, len(numbers[split]) * train.shape[1] * 4)
    held = {split: found.get(split, train).read(numbers[split]) for split in ("valid", "test")}
    ready = {split: as_kind(rows, kind, str(path)) for split, rows in held.items()}
    numbers["train"] = np.sort(numbers["train"])  # so that rows that lie together stay together
    rows = as_stored(train, numbers["train"], kind, any(each.missing for each in seen))
    sources = {split: split if split in found else "train" for split in SPLITS}
    origin = Origin(str(path), numbers, sources if len(found) > 1 else {})
    shape = options.shape or train.row_shape
    some = spaced(rows, LOOKED_AT)
    return Data(_stem(path), some, ready["valid"], ready["test"], shape, kind, origin=origin, stored=rows)


def _stores_in(path: Path) -> "dict[str, ArrayFile | Shards]":
    """The stored rows by split; files of a folder whose names begin with train, valid and test are these splits."""
    if not os.path.isdir(path):
        return {"train": ArrayFile(path)}
    files = shard_files(path)
    by_split = {split: [file for file in files if file.name.startswith(split)] for split in SPLITS}
    if not by_split["train"]:
        by_split = {"train": files}
    elif others := [file.name for file in files if not file.name.startswith(SPLITS)]:
        raise UserError(f"{path} has {others[0]} beside train files: begin its name with train, valid or test")
    found: dict[str, ArrayFile | Shards] = {split: Shards(each) for split, each in by_split.items() if each}
    for split, rows in found.items():
        if rows.row_shape != found["train"].row_shape:
            wanted = found["train"].row_shape
            raise UserError(f"{split} in {path} has rows of shape {rows.row_shape}, train of {wanted}: make them alike")
    return found


def from_memory(table: Any, options: Options | None = None, name: str = "the table", mixed: bool = True) -> Data:
    """Data from a table in memory: a DataFrame, names with lists, a list of rows with names, or an array.

    An array of bits is binary, one with three axes is of pictures; any other table has columns of several kinds, or
    where it is not to be `mixed`, real ones.

    >>> from_memory(np.array([[0, 1], [1, 1], [1, 0], [0, 0], [1, 1]])).kind
    'binary'
    >>> from_memory({"a": [1.5, 2.5, 4.0, 8.0] * 3, "b": ["x", "y", "y", "x"] * 3}).kind
    'mixed'
    """
    options, path = options or Options(), Path(name)
    options.check(name)
    if not (isinstance(table, Mapping) or hasattr(table, "columns") or _has_names(table)):
        array = _array(table, name)
        if options.binarise or array.ndim == 3 or is_binary(array):
            raw = _raw_arrays({"data": array}, path, options, nan_allowed=not options.binarise)
            return _data_of(raw, path, options)
        table = {nameless(at): array[:, at] for at in range(array.shape[1])}
    sheet = _without(sheet_of(table)._replace(path=name), options.drop)
    columns = "mixed" if mixed and not options.binarise and not _of_bits(sheet) else ""
    options = dataclasses.replace(options, columns=columns)
    return _data_of(_raw_sheet(sheet, options, name, nan_allowed=not options.binarise), path, options)


def _has_names(table: Any) -> bool:
    return isinstance(table, list | tuple) and bool(table) and all(isinstance(row, Mapping) for row in table)


def _array(table: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(table)
    except ValueError as error:
        raise UserError(f"{name} has rows of different lengths ({error}): give each as many values") from None
    if array.ndim not in (2, 3) or not array.size:
        raise UserError(f"{name} must be rows by columns or images by height by width, got shape {array.shape}")
    check_finite(array, name, nan_allowed=True)
    return array


def _of_bits(sheet: Sheet) -> bool:
    return all(column.dtype != object and is_binary(column) for column in sheet.columns)


def _data_of(raw: "Raw", path: Path, options: Options) -> Data:
    splits, columns, dynamic = raw.splits, raw.columns, False
    if options.binarise:
        splits, dynamic = binarise(
            options.binarise, splits, options.bits_seed, str(path), options.white or None, raw.origin.place
        )
        columns = columns and Columns(tuple(Column(name, "binary") for name in columns.cells))
    kind: Kind = "binary" if dynamic or all(is_binary(rows) for rows in splits.values()) else "real"
    if options.columns:
        kind = "mixed"
    ready = {
        split: rows if dynamic and split == "train" else as_kind(rows, kind, str(path), _placing(raw.origin, split))
        for split, rows in splits.items()
    }
    stored = None
    if ready["train"].dtype == np.uint8 and not dynamic and ready["train"].size >= PACKED_FROM:
        stored = Packed.of(ready["train"])
        ready["train"] = spaced(stored, LOOKED_AT)
    return Data(
        raw.name, ready["train"], ready["valid"], ready["test"], raw.shape, kind, None, dynamic, columns, raw.origin,
        options.bits_seed, stored,
    )  # fmt: skip


def read_raw(path: Path, options: Options, nan_allowed: bool = True) -> Raw:
    """The rows of a file in their splits; `nan_allowed` leaves missing values in."""
    options.check(str(path))
    _check_readable(path)
    if suffix_of(path) in TABLES:
        return _raw_sheet(read_sheet(path, options), options, _stem(path), nan_allowed)
    if said := [name for name in TABLE_OPTIONS if _is_said(options, name)]:
        raise UserError(f"{said[0]} is said of {path}, but only tables ({', '.join(TABLES)}) have it: leave it out")
    with _arrays(path) as arrays:
        return _raw_arrays(arrays, path, options, nan_allowed)


def _check_readable(path: Path) -> None:
    if not is_picture_folder(path):
        check_readable(path)


@contextmanager
def _arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of a file, or of the pictures in a folder."""
    if is_picture_folder(path):
        yield read_pictures(path)
        return
    with open_arrays(path) as arrays:
        yield arrays


def _raw_arrays(arrays: Mapping[str, np.ndarray], path: Path, options: Options, nan_allowed: bool) -> Raw:
    single = _meant(arrays, ("train", "X", "x", "data"), path)
    names = [name for name in SPLITS if name in arrays] if single == "train" else [single]
    tables = [table_in(arrays, name, path) for name in names]
    shape = options.shape or _stated_shape(arrays, path) or tables[0].shape
    found = dict(zip(names, tables, strict=True))
    for name, table in found.items():
        check_finite(table.rows, f"{name} in {path}", nan_allowed)
        if table.rows.dtype.kind == "f":  # before rows are held out, so that the message is right
            as_kind(table.rows, "real", f"{name} in {path}")
    given = {"train" if name == single else name: table.rows for name, table in found.items()}
    numbers = _hold_out({split: np.arange(len(rows)) for split, rows in given.items()}, options, path)
    sources = {split: split if split in given else "train" for split in SPLITS}
    splits = {split: given[sources[split]][numbers[split]] for split in SPLITS}
    arrays_of = {split: single if source == "train" else source for split, source in sources.items()}
    return Raw(_stem(path), splits, shape, None, Origin(str(path), numbers, arrays_of))


def _raw_sheet(sheet: Sheet, options: Options, name: str, nan_allowed: bool) -> Raw:
    path = Path(sheet.path)
    given = _given_splits(sheet, options.split)
    if options.split:
        sheet = _without(sheet, (options.split,))
    if options.columns == "mixed":
        columns = guess(sheet, options.categories).columns
    else:
        columns = Columns.of(sheet, options.categories)
    rows = columns.encode(sheet)
    check_finite(rows, str(path), nan_allowed, _placing_in(sheet, columns))
    numbers = _hold_out(given, options, path)
    origin = Origin(
        str(path),
        {split: sheet.lines[numbers[split]] for split in SPLITS},
        columns=np.array(sheet.numbered)[columns.order(sheet)][columns.sources] if sheet.unit == "line" else None,
    )
    splits = {split: rows[numbers[split]] for split in SPLITS}
    return Raw(name, splits, options.shape or (columns.width,), columns, origin)


def read_sheet(path: Path, options: Options) -> Sheet:
    """The table of a file, without the columns to drop."""
    check_readable(path)
    read = READERS.get(suffix_of(path), _read_text)
    if read is not _read_text and (said := [name for name in TEXT_OPTIONS if _is_said(options, name)]):
        raise UserError(f"{said[0]} is said of {path}, but only texts (.csv, .tsv) have it: leave it out")
    if read is not _read_book and _is_said(options, "sheet"):
        raise UserError(f"sheet is said of {path}, but only workbooks (.xlsx) have sheets: leave it out")
    with damage_named(path):
        sheet = read(path, options)
    return _without(sheet, options.drop)


def _is_said(options: Options, name: str) -> bool:
    return bool(getattr(options, name) != OPTION_DEFAULTS[name])


def _read_text(path: Path, options: Options) -> Sheet:
    mixed = options.columns == "mixed"
    return read_csv(path, options.header, options.missing, options.separator, options.decimal, mixed)


def _read_book(path: Path, options: Options) -> Sheet:
    return read_workbook(path, options.header, options.missing, options.columns == "mixed", options.sheet)


READERS: dict[str, Callable[[Path, Options], Sheet]] = {
    ".parquet": lambda path, options: read_parquet(path),
    ".xlsx": _read_book,
}


class Rows(NamedTuple):
    """Rows to score or to fill in, float32 with NaN where a value is missing."""

    rows: np.ndarray
    left_out: tuple[str, ...] = ()
    """The file's columns that a run does not know."""
    new_levels: Mapping[str, int] = {}
    """Columns of categories in which so many cells have a level that was never seen: they are taken as missing."""

    @property
    def note(self) -> str:
        """What a user should know of it, in a line."""
        parts = []
        if self.left_out:
            parts.append(f"columns that the run does not know are left out: {shown(self.left_out)}")
        if self.new_levels:
            counts = shown([f"{name} ({number} cells)" for name, number in self.new_levels.items()])
            parts.append(f"levels that were never seen are taken as missing: {counts}")
        return f"note: {'; '.join(parts)}" if parts else ""


def read_table(spec: str | os.PathLike[str], columns: Columns | None = None) -> np.ndarray:
    """The rows that `read_rows` finds."""
    return read_rows(spec, columns).rows


def read_rows(spec: str | os.PathLike[str], columns: Columns | None = None) -> Rows:
    """The rows of a file, for scoring or filling in.

    `columns`, those a run remembers, turn a table's categories into the cells that the run knows.
    """
    path, text = split_spec(os.fspath(spec))
    options = Options(**parse_options(text, OPTION_DEFAULTS, str(path)))
    _check_readable(path)
    place, left_out = None, []
    new_levels: dict[str, int] = {}
    if suffix_of(path) in TABLES:
        if columns and columns.is_mixed:
            options = dataclasses.replace(options, columns="mixed")
        sheet = read_sheet(path, options)
        known = columns or Columns.of(sheet, options.categories)
        rows = known.encode(sheet, new_levels if known.is_mixed else None)
        where, place = f"data in {path}", _placing_in(sheet, known)
        left_out = [sheet.names[at] for at in sorted({*range(len(sheet.names))} - {*known.order(sheet)})]
    else:
        with _arrays(path) as arrays:
            name = _meant(arrays, ("X", "x", "data", "test"), path)
            rows, where = table_in(arrays, name, path).rows, f"{name} in {path}"
        if columns and rows.shape[1] != columns.width:
            raise UserError(f"{where} has {rows.shape[1]} columns, but rows of this table have {columns.width} cells")
    check_finite(rows, where, nan_allowed=True, place=place)
    return Rows(as_kind(rows, "real", where, place), tuple(left_out), new_levels)


class Table(NamedTuple):
    """Rows of numbers and the shape of one row."""

    rows: np.ndarray
    shape: tuple[int, ...]


def table_in(arrays: Mapping[str, np.ndarray], name: str, path: Path) -> Table:
    """The array of that name as a table: bits unpacked, images made flat."""
    array, where = np.asarray(arrays[name]), f"{name} in {path}"
    if "dim" in arrays:
        array = _unpack(array, int(np.asarray(arrays["dim"]).item()), where)
    if array.ndim not in (2, 3):
        raise UserError(f"{where} must be rows by columns or images by height by width, got shape {array.shape}")
    return Table(array.reshape(len(array), math.prod(array.shape[1:])), array.shape[1:])


def _meant(arrays: Mapping[str, np.ndarray], preferred: tuple[str, ...], path: Path) -> str:
    """The name of the array to read: the first of those preferred, or the only one there is."""
    names = [name for name in arrays if name not in ("dim", "shape")]
    for name in preferred:
        if name in names:
            return name
    if len(names) != 1:
        found = f"the arrays {', '.join(names)}" if names else "no arrays"
        raise UserError(f"{path} has {found}: expected a single one, or one called {', '.join(preferred)}")
    return names[0]


def _unpack(array: np.ndarray, dim: int, where: str) -> np.ndarray:
    if array.ndim == 2 and array.dtype == np.uint8 and array.shape[1] == (dim + 7) // 8:
        return np.unpackbits(array, axis=1, count=dim)
    if math.prod(array.shape[1:]) == dim:
        return array
    raise UserError(
        f"{where} has shape {array.shape}, neither {dim} columns (dim) nor {(dim + 7) // 8} of packed uint8"
    )


def _stated_shape(arrays: Mapping[str, np.ndarray], path: Path) -> tuple[int, ...] | None:
    if "shape" not in arrays:
        return None
    shape = np.ravel(arrays["shape"])
    if shape.dtype.kind not in "iu":
        raise UserError(f"shape in {path} must be whole numbers such as [8, 8], got type {shape.dtype}")
    return tuple(int(n) for n in shape)


def _given_splits(sheet: Sheet, column: str) -> dict[str, np.ndarray]:
    """The numbers of the rows of each split that the table has; all are train where no column tells."""
    if not column:
        return {"train": np.arange(len(sheet.lines))}
    if column not in sheet.names:
        raise UserError(
            f"{sheet.path} has no column {column!r}{near(column, sheet.names)} to split by; "
            f"there are: {shown(sheet.names)}"
        )
    at = sheet.names.index(column)
    known = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
    found = [known.get(str(cell).strip().lower()) for cell in sheet.columns[at]]
    if None in found:
        row = found.index(None)
        cell = sheet.columns[at][row]
        raise UserError(f"{sheet.place(row, at)} is {str(cell)[:40]!r}: the split must be train, valid or test")
    splits = {split: np.array([i for i, name in enumerate(found) if name == split], dtype=int) for split in SPLITS}
    if not len(splits["train"]):
        raise UserError(f"column {column!r} of {sheet.path} never says train: some rows must be there to learn from")
    return {split: rows for split, rows in splits.items() if len(rows)}


def _hold_out(
    splits: dict[str, np.ndarray], options: Options, path: Path, most: float = math.inf
) -> dict[str, np.ndarray]:
    """Take valid and test, where they are not given, off the row numbers of train, at most so many each."""
    rows = splits["train"]
    sizes = {
        name: int(min(most, max(1, round(getattr(options, name) * len(rows)))))
        for name in ("valid", "test")
        if name not in splits
    }
    if not sizes:
        return splits
    if sum(sizes.values()) >= len(rows):
        raise UserError(
            f"{path} has {len(rows)} rows, too few to hold out {' and '.join(sizes)}: "
            f"give more rows, or smaller fractions"
        )
    order = np.random.default_rng(options.split_seed).permutation(len(rows))
    *held_out, rest = np.split(order, np.cumsum([*sizes.values()]))
    return splits | {"train": rows[rest]} | {name: rows[i] for name, i in zip(sizes, held_out, strict=True)}


def _without(sheet: Sheet, names: tuple[str, ...]) -> Sheet:
    for name in names:
        if name not in sheet.names:
            raise UserError(
                f"{sheet.path} has no column {name!r}{near(name, sheet.names)} to drop; there are: {shown(sheet.names)}"
            )
    kept, numbered = [at for at, name in enumerate(sheet.names) if name not in names], sheet.numbered
    if not kept:
        raise UserError(f"no column of {sheet.path} is left: drop fewer")
    return sheet._replace(
        names=tuple(sheet.names[at] for at in kept),
        columns=[sheet.columns[at] for at in kept],
        numbers=tuple(numbered[at] for at in kept),
    )


def _placing_in(sheet: Sheet, columns: Columns) -> Callable[[Place], str]:
    return lambda at: sheet.place(at[0], columns.order(sheet)[columns.sources[at[1]]])


def _placing(origin: Origin, split: str) -> Callable[[Place], str]:
    return lambda at: origin.place(split, at)


def _stem(path: Path) -> str:
    return re.sub(re.escape(suffix_of(path)) + "$", "", path.name, flags=re.IGNORECASE) or path.stem
