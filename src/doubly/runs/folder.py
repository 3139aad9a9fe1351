"""The run folder: everything a run leaves behind, each file written to a temporary name, fsynced and renamed.

config.json      the settings, and the only source of the architecture
data.json        what the data were like, their digest, and the version of doubly
metrics.jsonl    one object for each epoch
checkpoint/      where the chain stands: a safetensors file whose metadata hold the numbers as JSON
posterior/       means of the samples, single samples, proposals fitted to them
evaluations/     results of `doubly evaluate`
own_files/       the source of members of the user's own, with checksums
report.html, figures/
curves/          runs that were fitted along this one for a curve
scoring.json     how long `doubly reproduce` has evaluated it
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from doubly import __version__
from doubly.core.codec import Encoded, to_tensors
from doubly.core.errors import UserError
from doubly.core.files import locked, read_json, remove, write, writing
from doubly.data import SPLITS, Columns, Data
from doubly.data import load as load_data
from doubly.posterior.store import Posterior
from doubly.runs import sources
from doubly.runs.build import Facts, build
from doubly.runs.config import Config, from_dict
from doubly.training.method import Method
from doubly.training.state import State, decode, wait_again

OURS = (
    "config.json",
    "data.json",
    "metrics.jsonl",
    "checkpoint",
    "posterior",
    "evaluations",
    "figures",
    "curves",
    "report.html",
    "scoring.json",
    "own_files",
    "lock",
)


class Run:
    """A run folder that exists."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            raise UserError(
                f"{self.path} holds no run (it has no config.json): make one with doubly fit --out {self.path}"
            )
        self.config = self._read_config()
        sources.use_copies(self.path, self.config)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _read_config(self) -> Config:
        file = self.path / "config.json"
        fields = read_json(file)
        known = {field.name for field in dataclasses.fields(Config)}
        if unknown := [name for name in fields if name not in known]:
            version = self.version
            origin = (
                f"doubly {version} made this run" if version else "doubly 0.1 made this run, as it names no version"
            )
            raise UserError(
                f"{file} has a setting {unknown[0]!r} that doubly {__version__} does not know: {origin}; "
                "open it with the version that made it, or correct the name"
            )
        try:
            return from_dict(fields)
        except UserError as error:
            raise UserError(f"{file} is damaged: {error}") from None

    @property
    def version(self) -> str | None:
        """The version of doubly that made the run; None for those of 0.1, which did not write it down."""
        file = self.path / "data.json"
        return read_json(file).get("version") if file.is_file() else None

    @classmethod
    @contextmanager
    def create(cls, path: str | Path, config: Config, data: Data, overwrite: bool = False) -> Iterator["Run"]:
        """A new folder, locked while in use; with `overwrite` also the folder of an old run, without its old files.

        If an error comes before the first checkpoint, the folder is removed again.
        """
        folder = Path(path)
        _check_free(folder, overwrite)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            with writing(folder):
                for name in OURS[::-1]:  # config.json last: until then it is a run that can be overwritten
                    if name != "lock":
                        remove(folder / name)
                for name in ("checkpoint", "posterior"):
                    (folder / name).mkdir()
            # The version stands here and not in config.json, where version 0.1 refuses names it does not know
            facts = _facts(data) | {"version": __version__}
            write(folder / "data.json", json.dumps(facts, indent=2).encode() + b"\n")
            sources.keep(folder, config)
            write(folder / "config.json", _config_json(config))
            run = cls(folder)
            try:
                yield run
            except Exception:
                if not run.checkpoint.exists():
                    _remove_run(folder)
                raise

    def plan(self, epochs: int) -> None:
        """Change the number of epochs; what has been done stays as it is."""
        with locked(self.path):
            self.config = dataclasses.replace(self.config, epochs=epochs)
            write(self.path / "config.json", _config_json(self.config))

    @property
    def checkpoint(self) -> Path:
        """The file of the last checkpoint."""
        return self.path / "checkpoint" / "state.safetensors"

    @property
    def fingerprint(self) -> str:
        """A digest that identifies this chain at its last checkpoint."""
        content = self.checkpoint.read_bytes() if self.checkpoint.exists() else str(self.path.resolve()).encode()
        return hashlib.sha256(content).hexdigest()

    @property
    def facts(self) -> Facts:
        """What a model has to know of the data, from data.json."""
        with self._data_json() as facts:
            shape, has_missing = tuple(map(int, facts["shape"])), facts.get("holes", False)
            return Facts(int(facts["width"]), facts["kind"], shape, facts["dynamic"], has_missing)

    @property
    def columns(self) -> Columns | None:
        """How the columns of a table became numbers; None if the data were no table."""
        with self._data_json() as facts:
            return Columns.from_json(facts["columns"]) if facts["columns"] else None

    @property
    def data_digest(self) -> str:
        """A digest that identifies the data of this run."""
        with self._data_json() as facts:
            return str(facts["sha256"])

    @contextmanager
    def _data_json(self) -> Iterator[dict[str, Any]]:
        """The content of data.json; what is absent or has a wrong form is an error that names the file."""
        file = self.path / "data.json"
        facts = read_json(file)
        try:
            yield facts
        except KeyError as error:
            raise UserError(f"{file} is damaged: it has no {error}") from None
        except (TypeError, ValueError) as error:  # a UserError is one, too
            raise UserError(f"{file} is damaged: {error}") from None

    def data(self) -> Data:
        """The data that the run was made with; an error if they have changed."""
        data = load_data(self.config.data, binarise=self.config.binarise)
        facts, file = _facts(data), self.path / "data.json"
        if facts["sha256"] != self.data_digest:
            raise UserError(f"{self.config.data} is not the data that {self.path} was made with: put them back")
        known = read_json(file)
        if changed := [name for name in facts if name not in known or known[name] != facts[name]]:
            raise UserError(
                f"{self.config.data} and {file} do not agree on the {changed[0]} of the data: one of them was changed; "
                f"put it back"
            )
        return data

    def metrics(self) -> list[dict[str, Any]]:
        """The records of the epochs finished."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return []
        try:
            # a line cut off by a power failure has no newline: leave it out
            lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
            found = [json.loads(line) for line in lines]
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(f"{file} is damaged: {error}") from None
        for at, record in enumerate(found, start=1):
            if not isinstance(record, dict) or "epoch" not in record:
                raise UserError(f"{file} is damaged: line {at} is no record of an epoch")
            if "effective" in record:  # its name until version 0.2
                record["ess"] = record.pop("effective")
        return found

    def log(self, record: dict[str, Any]) -> None:
        """Add the record of an epoch."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def forget_after(self, epoch: int) -> None:
        """Drop the records of later epochs, which are not in the checkpoint; they will be made again."""
        lines = [json.dumps(record) + "\n" for record in self.metrics() if record["epoch"] <= epoch]
        write(self.path / "metrics.jsonl", "".join(lines).encode())

    def save(self, state: State) -> None:
        """Write a checkpoint."""
        tensors, numbers = to_tensors(state)
        write(self.checkpoint, safetensors.torch.save(tensors, {"state": json.dumps(numbers)}))

    def forget_samples(self, state: State) -> None:
        """Save this state as one that has not begun to collect, and delete the samples."""
        with locked(self.path):
            self.save(wait_again(state))
            for kind in ("draw", "mean"):
                for file in (self.path / "posterior").glob(f"{kind}-*.safetensors"):
                    file.unlink()

    def restore(self, method: Method) -> State | None:
        """The state of the last checkpoint, bit for bit; None if there is none yet."""
        file = self.checkpoint
        if not file.exists():
            return None
        try:
            with safetensors.safe_open(file, "pt") as opened:
                numbers = json.loads(opened.metadata()["state"])
                # cloned, so that memory is aligned as it was and matrix products give the same bits
                tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            state = decode(method, Encoded(tensors, numbers), self.config.device)
        except (safetensors.SafetensorError, TypeError, KeyError, json.JSONDecodeError) as error:
            raise UserError(f"the checkpoint {file} is damaged, or not of this config.json: {error}") from None
        for chain, theta in ((method.model, state.theta.theta), (method.proposal, state.phi.theta)):
            if len(theta) != chain.size:
                raise UserError(
                    f"the checkpoint {file} is damaged, or not of this config.json: it has {len(theta)} weights where "
                    f"{chain.size} are expected"
                )
        return state

    def keep(self, number: int, theta: Tensor) -> None:
        """Keep one sample of the weights, or the average over a window that ends with the sample of this number."""
        self._write_vector(f"posterior/draw-{number:05d}.safetensors", "theta", theta)

    def keep_mean(self, number: int, theta: Tensor) -> None:
        """Keep the mean of the first samples."""
        self._write_vector(f"posterior/mean-{number:05d}.safetensors", "theta", theta)

    def posterior(self, **options: Any) -> Posterior:
        """What has been learnt so far."""
        method = build(self.config, self.facts)
        state = self.restore(method)
        if state is None:
            raise UserError(f"{self.path} has no checkpoint yet: let doubly fit (or doubly resume) run a little longer")
        device = state.mean.device
        samples, means = (self._vectors(kind, state.collected, device) for kind in ("draw", "mean"))
        return Posterior(
            method=method,
            phi=state.phi.theta,
            last_theta=state.theta.theta,
            mean_theta=state.mean.float() if state.collected else None,
            thetas=list(samples.values()),
            means=means,
            epoch=state.epoch,
            collected=state.collected,
            train=lambda: torch.as_tensor(self.data().train).to(device),
            cache=FileCache(self.path, device),
            **options,
        )

    def _vectors(self, kind: str, collected: int, device: torch.device) -> dict[int, Tensor]:
        """The samples or means in posterior/, by number; without those after the checkpoint, which will come again."""
        files = {int(file.stem.split("-")[1]): file for file in (self.path / "posterior").glob(f"{kind}-*.safetensors")}
        return {
            number: self._read_vector(file, "theta").to(device)
            for number, file in sorted(files.items())
            if number <= collected
        }

    def _write_vector(self, name: str, key: str, vector: Tensor) -> None:
        write(self.path / name, safetensors.torch.save({key: vector.cpu().contiguous()}))

    def _read_vector(self, file: Path, key: str) -> Tensor:
        try:
            return safetensors.torch.load(file.read_bytes())[key].clone()
        except (safetensors.SafetensorError, KeyError) as error:
            raise UserError(f"{file} is damaged: {error}") from None


def _check_free(folder: Path, overwrite: bool) -> None:
    """A new run may go there."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another folder for --out")
    found = {file.name for file in folder.iterdir()} if folder.exists() else set()
    if "config.json" in found and not overwrite:
        raise UserError(f"{folder} already holds a run: choose another --out, or insist with --overwrite")
    if found - set(OURS) and "config.json" not in found:
        raise UserError(f"{folder} is not empty and holds no run: choose another --out")


def _remove_run(folder: Path) -> None:
    """Remove what a run wrote, and the folder if nothing else is in it."""
    for name in OURS:
        remove(folder / name)
    if not any(folder.iterdir()):
        folder.rmdir()


class FileCache:
    """A cache in the run folder: one file of tensors for each name."""

    def __init__(self, folder: Path, device: torch.device):
        self._folder, self._device = folder, device

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def get(self, name: str) -> dict[str, Tensor] | None:
        try:
            found = safetensors.torch.load(self._file(name).read_bytes())
        except FileNotFoundError:
            return None
        except safetensors.SafetensorError as error:
            raise UserError(f"{self._file(name)} is damaged: {error}; delete it and try again") from None
        return {key: tensor.clone().to(self._device) for key, tensor in found.items()}

    def put(self, name: str, tensors: dict[str, Tensor]) -> None:
        write(
            self._file(name), safetensors.torch.save({key: value.cpu().contiguous() for key, value in tensors.items()})
        )

    def drop(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)


def _facts(data: Data) -> dict[str, Any]:
    """What data.json says of the data: what a model has to know of them, and a digest that identifies them."""
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(data.split(split).tobytes())
    rows = {split: len(data.split(split)) for split in SPLITS}
    return {
        "width": data.width,
        "kind": data.kind,
        "shape": list(data.shape),
        "dynamic": data.dynamic,
        **({"holes": True} if data.has_missing else {}),  # the key of version 0.1
        "rows": rows,
        "columns": data.columns.as_json() if data.columns else None,
        "sha256": digest.hexdigest(),
    }


def _config_json(config: Config) -> bytes:
    return json.dumps(dataclasses.asdict(config), indent=2).encode() + b"\n"
