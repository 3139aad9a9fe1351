"""Fuzzing of what is read: each JSON and each tensor of a run folder and of an exported file, a file of settings
(`fit --config`), and the requests that `doubly serve` takes.

Unlike damage (tests/torture.py), what is changed here has good checksums, as a stranger can write them. Whatever is
asked of it then must end in an answer, or in one line; never in a traceback, a crash or a file outside the folder.
`python tests/torture.py --only fuzz` asks by the thousand, and tests/test_torture.py by the hundred.
"""

import contextlib
import copy
import csv
import dataclasses
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors

from doubly.cli import main
from doubly.core.sealed import BLANK, SEAL, _sealed, dump_tensors, load_tensors
from doubly.runs import records
from doubly.runs.config import Config

DEEP, DIGITS = "@deep@", "@digits@"
NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.5, 1e-320, 1e30, 1e308, float("nan"), float("inf"), -float("inf"),
    2**31, 2**63, -(2**63), 10**12, 10**30, "", "x", "auto", "0", "nan", "\0", "é\ud7ff", "../../x", "/etc/passwd",
    "x.py:Class", "sbn", "sbn:k=1", "a:b=c,d", "a" * 3000, "9" * 5000, [], {}, [[]], [None], [1, 2], ["x"], {"x": 1},
    [1] * 3000, DEEP, DIGITS,
)  # fmt: skip
MEMORY = 2 * 2**30  # bytes that are said to be free; what asks for more without looking gets an error of the allocator
SECONDS = 3  # of the processor, for a question; a stranger's settings may ask for a long fit


# Changes


def changed_json(tree: Any, dice: random.Random) -> Any:
    """A tree of JSON in which one place, or a few, hold something else."""
    tree = copy.deepcopy(tree)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        holder, key = dice.choice(list(_places(tree)) or [(None, None)])
        if holder is None:
            return dice.choice(NASTY)
        way = dice.randrange(8)
        if way < 5:
            holder[key] = copy.deepcopy(dice.choice(NASTY))
        elif way == 5:
            del holder[key]
        elif way == 6:
            holder[key] = [holder[key], holder[key]]
        elif isinstance(holder, dict):
            holder[dice.choice(("x", "seal", "format", "epoch", "__class__", ""))] = dice.choice(NASTY)
        else:
            holder.extend(holder[:3])
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


def text_of(tree: Any) -> str:
    """JSON, with what only a text can have: numbers of many digits, depth without end."""
    text = json.dumps(tree)
    return text.replace(f'"{DIGITS}"', "9" * 5000).replace(f'"{DEEP}"', "[" * 50_000 + "]" * 50_000)


def changed_tensors(tensors: dict[str, torch.Tensor], dice: random.Random) -> dict[str, torch.Tensor]:
    """Tensors of which one has another shape, type or name, or numbers that are none."""
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    name = dice.choice(sorted(found))
    tensor = found[name]
    way = dice.randrange(9)
    if way == 0:
        del found[name]
    elif way == 1:
        found[dice.choice(("x", "theta", "memory.x", "rng.rng", "..", name + ".x"))] = tensor.clone()
    elif way == 2:
        found[name] = tensor[:-1] if tensor.dim() and len(tensor) else torch.zeros(3)
    elif way == 3:
        found[name] = torch.cat([tensor, tensor]) if tensor.dim() else tensor[None, None]
    elif way == 4:
        found[name] = tensor.to(dice.choice((torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool)))
    elif way == 5:
        found[name] = torch.zeros(0) if dice.random() < 0.5 else torch.zeros((0, 3, 0), dtype=tensor.dtype)
    elif way == 6 and tensor.numel():
        value = dice.choice((float("nan"), float("inf"), -1e38, 1e30, -1, 255))
        with contextlib.suppress(RuntimeError, OverflowError):
            tensor.view(-1)[dice.randrange(tensor.numel())] = value
    elif way == 7:
        found[name] = torch.full_like(tensor, dice.choice((0, 1, 127)))
    else:
        found[name] = tensor[None] if dice.random() < 0.5 else tensor.to(torch.complex64)
    return found


# What is changed, and how it is written with a good checksum


class Target(NamedTuple):
    """Something that is read from a stranger."""

    name: str
    change: Callable[[random.Random], None]
    """Writes it anew, changed."""
    ask: Callable[[random.Random], None]


def sealed_json(file: Path) -> Callable[[random.Random], None]:
    fields = json.loads(file.read_text())
    del fields[SEAL]

    def change(dice: random.Random) -> None:
        file.write_bytes(sealed_text(changed_json(fields, dice)))

    return change


def sealed_text(tree: Any) -> bytes:
    """JSON with a good checksum, whatever is in it."""
    rest = {name: value for name, value in tree.items() if name != SEAL} if isinstance(tree, dict) else {}
    text = text_of({SEAL: BLANK, **rest} if isinstance(tree, dict) else [{SEAL: BLANK}, tree])
    return _sealed(text.encode("utf-8", "surrogatepass"))


def sealed_tensors(file: Path, listed_in: Path | None = None) -> Callable[[random.Random], None]:
    """A file of tensors; a sample is listed, with its checksum, in the checkpoint."""
    tensors, texts = load_tensors(file.read_bytes(), file, required=True)
    listing = load_tensors(listed_in.read_bytes(), listed_in, required=True) if listed_in else None

    def change(dice: random.Random) -> None:
        content = dump_tensors(changed_tensors(tensors, dice), texts)
        file.write_bytes(content)
        if listing and listed_in:
            names = json.loads(listing.texts["samples"])
            names[f"posterior/{file.name}"] = hashlib.sha256(content).hexdigest()
            listed_in.write_bytes(dump_tensors(listing.tensors, {**listing.texts, "samples": json.dumps(names)}))

    return change


def texts_beside(file: Path) -> Callable[[random.Random], None]:
    """The JSON that stands beside the tensors of a checkpoint."""
    tensors, texts = load_tensors(file.read_bytes(), file, required=True)

    def change(dice: random.Random) -> None:
        name = dice.choice(sorted(texts))
        value = dice.choice(("", "x", "9" * 5000, "-1", "1e9", "null", "[" * 50_000))
        if dice.random() < 0.85:
            with contextlib.suppress(ValueError):
                value = text_of(changed_json(json.loads(texts[name]), dice))
        file.write_bytes(dump_tensors(tensors, {**texts, name: value.encode("utf-8", "replace").decode()}))

    return change


def lines_of(file: Path) -> Callable[[random.Random], None]:
    """metrics.jsonl: some lines say something else, with a checksum."""
    lines = [{k: v for k, v in json.loads(line).items() if k != "sha256"} for line in file.read_text().splitlines()]

    def change(dice: random.Random) -> None:
        trees = [changed_json(line, dice) if dice.random() < 0.5 else line for line in lines]
        written = b""
        for tree in trees:
            text = text_of(tree)
            written += f'{text[:-1]}, "sha256": "{records._sha(text)}"}}\n'.encode("utf-8", "surrogatepass")
        file.write_bytes(written)

    return change


def parts_of(file: Path) -> Callable[[random.Random], None]:
    """A file of `doubly export`."""
    with zipfile.ZipFile(file) as archive:
        told, weights = json.loads(archive.read("model.json")), load_safetensors(archive.read("weights.safetensors"))
    del told[SEAL]

    def change(dice: random.Random) -> None:
        half = dice.random() < 0.6
        tensors = save_safetensors(weights if half else changed_tensors(weights, dice))
        sealed = {**told, "sha256": {"weights.safetensors": hashlib.sha256(tensors).hexdigest()}}
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("model.json", sealed_text(changed_json(sealed, dice) if half else sealed))
            archive.writestr("weights.safetensors", tensors)

    return change


def settings_of(file: Path) -> Callable[[random.Random], None]:
    """A file of settings, with all of a small fit."""
    tiny = {"data": "bars", "hidden": [3], "batch": 1000, "theta_steps": 1, "epochs": 1, "collect": 1, "threads": 1}
    fields = dataclasses.asdict(Config()) | tiny | {"out": "run", "overwrite": True, "means": [1]}

    def change(dice: random.Random) -> None:
        tree = changed_json({name: value for name, value in fields.items() if value is not None}, dice)
        if isinstance(tree, dict) and type(tree.get("chains")) is int and 1 < tree["chains"] < 100:
            tree["chains"] = 1  # several chains are processes of their own
        text = toml(tree)
        if isinstance(tree, dict):
            text = "\n".join(f"{json.dumps(name)} = {toml(value)}" for name, value in tree.items())
        content = text.encode("utf-8", "surrogatepass")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(damaged(content, dice) if dice.random() < 0.2 else content)

    return change


def toml(value: Any) -> str:
    """A value as TOML has it, or as near as one comes."""
    if value == DEEP:
        return "[" * 50_000 + "]" * 50_000
    if value == DIGITS:
        return "9" * 5000
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)} = {toml(each)}' for name, each in value.items())}}}"
    if value is None:
        return "1979-05-27T07:32:00Z"  # it has no null, but dates
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Bytes of which some are others, or the end is gone."""
    found = bytearray(content or b"x")
    for _ in range(dice.choice((1, 2, 8))):
        found[dice.randrange(len(found))] = dice.randrange(256)
    return bytes(found[: dice.randrange(len(found))] if dice.random() < 0.3 else found)


# Questions


def quiet_main(*args: str) -> None:
    """A command, as a user gives it: it ends well, or in one line with exit code 2 (of verify also 1)."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main(list(args))
        except SystemExit as stop:
            code = stop.code
        else:
            code = 0
    if code == 2:
        last = said.getvalue().splitlines()[-1]
        if not last.startswith("doubly: "):
            raise AssertionError(said.getvalue())
        raise Refused(last)
    if code not in (0, None) and (code, args[0]) != (1, "verify"):
        raise AssertionError(f"exit code {code}: {said.getvalue()}")


class Refused(Exception):
    """One line, as it should be."""


class Slow(Exception):
    """What was asked takes long: not a fault."""


QUICK = ("--refit", "1", "--draws", "3", "--no-settle", "--by", "draws")


def of_run(folder: Path, place: Path, report: float = 0.0) -> Callable[[random.Random], None]:
    """A command that opens a run."""

    def ask(dice: random.Random) -> None:
        here = str(folder)
        commands = (
            ("sample", here, "-n", "2", "--out", str(place / "s.npz")),
            ("evaluate", here, *QUICK),
            ("evaluate", here, *QUICK, "--of", "ensemble", "--json"),
            ("resume", here), ("verify", here), ("repair", here), ("diagnose", here),
            ("export", here, str(place / "e.doubly"), "--refit", "1"),
        )  # fmt: skip
        quiet_main(*(("report", here) if dice.random() < report else dice.choice(commands)))

    return ask


def of_file(file: Path, place: Path) -> Callable[[random.Random], None]:
    """What opens a file of `doubly export`."""
    import doubly
    from doubly.core.errors import UserError
    from doubly.latents.completions import ImputeConfig
    from doubly.serve.model import opened

    def ask(dice: random.Random) -> None:
        try:
            if dice.random() < 0.3:
                opened(file)
                return
            found = doubly.load(file)
            str(found)
            rows = found.sample(2, "last")
            found.log_likelihood(rows, draws=2, of="last", by="draws")
            found.impute(rows, draws=2, how=ImputeConfig(sweeps=2))
        except UserError as error:
            raise (AssertionError if "\n" in str(error) else Refused)(str(error)) from None

    return ask


class Server:
    """The application of `doubly serve`, and a request that is changed before it is sent."""

    def __init__(self, file: Path):
        from starlette.testclient import TestClient

        from doubly.serve.app import app
        from doubly.serve.model import opened

        served = opened(file)
        self._client = TestClient(app(served), base_url="http://127.0.0.1:8321", raise_server_exceptions=False)
        rows = served.written(served.examples[:2].astype(float)) or [[0] * served.facts.width]
        common = {"rows": rows, "draws": 2, "of": "last", "sample": None, "seed": 0}
        self._requests: dict[str, dict[str, Any]] = {
            "score": {**common, "by": "draws"}, "impute": {**common, "sweeps": 1}, "encode": common,
            "sample": {"n": 2, "of": "last", "sample": None, "seed": 0},
        }  # fmt: skip
        names = [column.name for column in served.columns.columns]
        cells = [row if isinstance(row, list) else [row[name] for name in names] for row in rows]
        lines = [
            names,
            *[["" if cell is None or dice_gap(i) else str(cell) for i, cell in enumerate(row)] for row in cells],
        ]
        self._table = "\n".join(map(",".join, lines)).encode()
        self._asked: tuple[str, bytes, dict[str, str]] = ("", b"", {})

    def change(self, dice: random.Random) -> None:
        path = dice.choice((*self._requests, "complete"))
        media = "text/csv" if path == "complete" else "application/json"
        if path == "complete":
            body = damaged(self._table, dice)
        else:
            body = text_of(dice.choice((changed_json, nearly))(self._requests[path], dice)).encode(
                "utf-8", "surrogatepass"
            )
            body = damaged(body, dice) if dice.random() < 0.2 else body
        headers = {"Content-Type": media}
        if dice.random() < 0.1:
            name = dice.choice(("Content-Type", "Host", "Origin", "Content-Length", "Sec-Fetch-Site"))
            headers[name] = dice.choice(("", "x", "http://127.0.0.1:8321", "127.0.0.1:99999", "[::1", "-1", "9" * 5000))
        self._asked = (f"/api/{path}", body, headers)

    def ask(self, dice: random.Random) -> None:
        """200 and JSON or a table, or one line with a status of its own; never a fault of the server."""
        path, body, headers = self._asked
        found = self._client.post(path, content=body, headers=headers)
        if found.status_code == 200:
            if path != "/api/complete":
                json.loads(found.text, parse_constant=_no_constant)
            return
        line = found.json()["error"]
        if not (400 <= found.status_code < 500) or "\n" in line or len(line) > 1000 or "Traceback" in line:
            raise AssertionError(f"{path} was answered by {found.status_code}: {line}")
        raise Refused(line)


def dice_gap(number: int) -> bool:
    """Whether a cell of the table is left out."""
    return number % 3 == 2


def nearly(tree: Any, dice: random.Random) -> Any:
    """A request in which a few values are others of the same kind: most of them are answered."""
    tree = copy.deepcopy(tree)
    for _ in range(dice.choice((1, 1, 2))):
        holder, key = dice.choice([place for place in _places(tree) if not isinstance(place[0][place[1]], list | dict)])
        number = dice.choice((0, 1, 2, 3, 0.5, 1.0, 1e30, -1e-320, 200, None))
        text = dice.choice(("ensemble", "mean", "last", "draws", "annealing", "a", "b", "1", "2", "c", None))
        holder[key] = text if isinstance(holder[key], str) else number
    return tree


def _no_constant(name: str) -> float:
    raise AssertionError(f"{name} is no JSON")


def of_settings(file: Path) -> Callable[[random.Random], None]:
    """A fit by a file of settings, in a folder of its own: the settings may name any place."""

    def ask(dice: random.Random) -> None:
        before = Path.cwd()
        try:
            os.chdir(file.parent)
            quiet_main("fit", "--config", file.name)
        finally:
            os.chdir(before)

    return ask


# All of it


def targets(place: Path) -> Iterator[tuple[Path, Callable[[], list[Target]]]]:
    """A run, a run of a table and a file of each, settings and requests, and what can be changed in them."""
    inner = place / "a" / "b" / "c"
    inner.mkdir(parents=True)
    yield inner, lambda: [Target("settings", settings_of(inner / "s.toml"), of_settings(inner / "s.toml"))]
    run, table, data = place / "run", place / "table", place / "table.csv"
    with data.open("w", newline="") as file:
        dice = random.Random(0)
        rows = [[dice.choice("ab?"), dice.choice(("1", "2", "")), round(dice.gauss(0, 1), 3)] for _ in range(60)]
        csv.writer(file).writerows([["a", "b", "c"], *rows])
    tiny = ("--epochs", "3", "--collect", "2", "--keep", "2", "--valid-draws", "2", "--means", "1", "--threads", "1",
            "--checkpoint-epochs", "1", "--hidden", "3")  # fmt: skip
    quiet_main("fit", "--data", "bars", "--batch", "1000", *tiny, "--out", str(run))
    quiet_main("fit", "--data", str(data), "--batch", "30", *tiny, "--out", str(table))
    for folder in (run, table):
        quiet_main("evaluate", str(folder), *QUICK)
        export = place / f"{folder.name}.doubly"
        quiet_main("export", str(folder), str(export), "--refit", "1")
        yield folder, partial(in_run, folder, place)
        yield export, partial(in_export, export, place)


def in_export(file: Path, place: Path) -> list[Target]:
    found = [Target(file.name, parts_of(file), of_file(file, place))]
    with contextlib.suppress(ImportError):  # an extra
        server = Server(file)
        found.append(Target(f"requests to {file.stem}", server.change, server.ask))
    return found


def in_run(folder: Path, place: Path) -> list[Target]:
    state = folder / "checkpoint" / "state.safetensors"
    (folder / "checkpoint" / "older.safetensors").unlink(missing_ok=True)
    ask, report = of_run(folder, place), of_run(folder, place, 0.1)
    found = [Target(name, sealed_json(folder / name), ask) for name in ("config.json", "data.json")]
    found += [
        Target("texts of the checkpoint", texts_beside(state), ask),
        Target("checkpoint", sealed_tensors(state), ask),
    ]
    found += [Target("metrics.jsonl", lines_of(folder / "metrics.jsonl"), report)]
    found += [Target("evaluations", sealed_json(file), report) for file in (folder / "evaluations").glob("*.json")]
    for file in sorted((folder / "posterior").glob("*.safetensors")):
        listed = None if file.name.startswith("proposal") else state
        found.append(Target(file.name.partition("-")[0], sealed_tensors(file, listed), ask))
    if (folder / "rows.safetensors").exists():
        found.append(Target("rows", sealed_tensors(folder / "rows.safetensors"), ask))
    return [each._replace(name=f"{folder.name}: {each.name}") for each in found]


def whole(place: Path) -> dict[Path, bytes]:
    files = [place] if place.is_file() else [file for file in place.rglob("*") if file.is_file()]
    return {file: file.read_bytes() for file in files}


def put_back(place: Path, files: dict[Path, bytes]) -> None:
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def one(target: Target, seed: int) -> str:
    """How a single case ended, in this process."""
    dice = random.Random(seed)
    target.change(dice)
    try:
        with within(SECONDS):
            target.ask(dice)
    except Refused:
        return "refused"
    except Slow:
        return "slow"
    return "answered"


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Slow

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def fuzz(number: int, seed: int, place: Path, counts: Counter[str], only: str = "") -> list[str]:
    """So many cases; gives the faults, each with the seed that brings it back."""
    from doubly.data import formats

    faults: list[str] = []
    prepared = [(thing, make(), whole(thing)) for thing, make in list(targets(place))]
    all_targets = [(thing, target, files) for thing, made, files in prepared for target in made if only in target.name]
    formats.free_memory = lambda: MEMORY
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MEMORY, resource.RLIM_INFINITY))
    for case in range(seed, seed + number):
        thing, target, files = all_targets[case % len(all_targets)]
        try:
            outcome = one(target, case)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            ours = [each for each in traceback.extract_tb(error.__traceback__) if "/src/doubly/" in each.filename][-1:]
            spot = "".join(f"{each.filename.partition('/src/doubly/')[2]}:{each.lineno}" for each in ours)
            faults.append(
                f"{target.name}, case {case}: {type(error).__name__} {str(error)[:150]!r} at {spot} ({where.name})"
            )
            outcome = "FAULT"
        counts[f"{target.name}: {outcome}"] += 1
        put_back(thing, files)
    return faults
