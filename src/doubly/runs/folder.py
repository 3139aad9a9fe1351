"""The run folder: everything a run leaves behind, each file written to a temporary name, fsynced and renamed.

config.json      the settings, and the only source of the architecture
metrics.jsonl    one object for each epoch
checkpoint/      where the chain stands: a safetensors file whose metadata hold the numbers as JSON
posterior/       the mean of the samples, the samples kept, proposals fitted to them
evaluations/     what `doubly evaluate` found
own_files/       the source of members of the user's own, with checksums
report.html, figures/
curves/          runs that were fitted beside this one for a curve
scoring.json     how long `doubly reproduce` has scored it
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
import safetensors
import safetensors.torch
import torch
from torch import Tensor
from doubly.runs import sources
from doubly.runs.config import Config, from_dict
from doubly.runs.build import Facts, build
from doubly.data import SPLITS, Columns, Data
from doubly.data import load as load_data
from doubly.core.errors import UserError
from doubly.posterior.store import Posterior
from doubly.training.method import Method, mover
from doubly.training.state import State, wait_again
from doubly.core.files import locked, read_json, remove, write, writing


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
        fields = read_json(self.path / "config.json")
        try:
            self.config: Config = from_dict(fields)
        except UserError as error:
            raise UserError(f"{self.path / 'config.json'} is damaged: {error}") from None
        sources.use_copies(self.path, self.config)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @classmethod
    @contextmanager
    def create(cls, path: str | Path, config: Config, data: Data, overwrite: bool = False) -> Iterator["Run"]:
        """A new folder, or with `overwrite` an old run's folder emptied of what the run wrote; locked while in use.

        A folder in which nothing worth keeping came to be is taken away again.
        """
        folder = Path(path)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file: choose another folder for --out")
        found = {file.name for file in folder.iterdir()} if folder.exists() else set()
        if "config.json" in found and not overwrite:
            raise UserError(f"{folder} already holds a run: choose another --out, or insist with --overwrite")
        if found - set(OURS) and "config.json" not in found:
            raise UserError(f"{folder} is not empty and holds no run: choose another --out")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            with writing(folder):
                for name in OURS[::-1]:  # config.json last: until then it is a run that can be overwritten
                    if name != "lock":
                        remove(folder / name)
                for name in ("checkpoint", "posterior"):
                    (folder / name).mkdir()
            write(folder / "data.json", json.dumps(_facts(data), indent=2).encode() + b"\n")
            sources.keep(folder, config)
            write(folder / "config.json", _config_json(config))
            run = cls(folder)
            try:
                yield run
            except Exception:
                if not run.checkpoint.exists():
                    for name in OURS:
                        remove(folder / name)
                    if not any(folder.iterdir()):
                        folder.rmdir()
                raise

    def plan(self, epochs: int) -> None:
        """Another number of epochs; what has been done stays what it is."""
        with locked(self.path):
            self.config = dataclasses.replace(self.config, epochs=epochs)
            write(self.path / "config.json", _config_json(self.config))

    @property
    def checkpoint(self) -> Path:
        """The file that holds where the chain stands."""
        return self.path / "checkpoint" / "state.safetensors"

    @property
    def fingerprint(self) -> str:
        """What tells this chain, as it stands, from others."""
        content = self.checkpoint.read_bytes() if self.checkpoint.exists() else str(self.path.resolve()).encode()
        return hashlib.sha256(content).hexdigest()

    @property
    def facts(self) -> Facts:
        """What the data were like, known without them."""
        with self._data_json() as facts:
            shape, has_missing = tuple(map(int, facts["shape"])), facts.get("holes", False)
            return Facts(int(facts["width"]), facts["kind"], shape, facts["dynamic"], has_missing)

    @property
    def columns(self) -> Columns | None:
        """How the columns of a table became numbers, where the data were one."""
        with self._data_json() as facts:
            return Columns.from_json(facts["columns"]) if facts["columns"] else None

    @property
    def data_digest(self) -> str:
        """What tells the data of this run from others."""
        with self._data_json() as facts:
            return str(facts["sha256"])

    @contextmanager
    def _data_json(self) -> Iterator[dict[str, Any]]:
        """What data.json says; what it lacks, or has in a wrong form, is an error that names the file."""
        file = self.path / "data.json"
        facts = read_json(file)
        try:
            yield facts
        except KeyError as error:
            raise UserError(f"{file} is damaged: it has no {error}") from None
        except (TypeError, ValueError) as error:  # a UserError is one, too
            raise UserError(f"{file} is damaged: {error}") from None

    def data(self) -> Data:
        """The data the run was made with; an error if they have changed."""
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
        """Drop records of epochs that the checkpoint knows nothing of; they will be made again."""
        lines = [json.dumps(record) + "\n" for record in self.metrics() if record["epoch"] <= epoch]
        write(self.path / "metrics.jsonl", "".join(lines).encode())

    def save(self, state: State) -> None:
        """Write a checkpoint."""
        tensors, numbers = _flatten(state)
        blob = safetensors.torch.save(tensors, {"state": json.dumps(numbers)})
        write(self.checkpoint, blob)

    def forget_samples(self, state: State) -> None:
        """Go on from this state as if collecting had not begun."""
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
        device = torch.device(self.config.device)
        try:
            with safetensors.safe_open(file, "pt") as opened:
                numbers = json.loads(opened.metadata()["state"])
                # cloned, so that memory is aligned as it was and matrix products give the same bits
                tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            state = _unflatten(tensors, numbers, method, device)
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
        """The samples or means in posterior/, by number; those that the checkpoint knows nothing of will come again."""
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


class FileCache:
    """Files of tensors in the run folder, for what took long to work out."""

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
            raise UserError(f"{self._file(name)} is damaged: {error}; take it away and try again") from None
        return {key: tensor.clone().to(self._device) for key, tensor in found.items()}

    def put(self, name: str, tensors: dict[str, Tensor]) -> None:
        write(
            self._file(name), safetensors.torch.save({key: value.cpu().contiguous() for key, value in tensors.items()})
        )

    def drop(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)


def _facts(data: Data) -> dict[str, Any]:
    """What ties a run to its data."""
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(data.split(split).tobytes())
    rows = {split: len(data.split(split)) for split in SPLITS}
    return {
        "width": data.width,
        "kind": data.kind,
        "shape": list(data.shape),
        "dynamic": data.dynamic,
        **({"holes": True} if data.has_missing else {}),  # a folder of before there were any is as it was
        "rows": rows,
        "columns": data.columns.as_json() if data.columns else None,
        "sha256": digest.hexdigest(),
    }


def _config_json(config: Config) -> bytes:
    return json.dumps(dataclasses.asdict(config), indent=2).encode() + b"\n"


def _flatten(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A state as named tensors and JSON-able numbers."""
    tensors: dict[str, Tensor] = {"rng": state.rng.get_state()}
    numbers: dict[str, Any] = {}
    for group in ("theta", "phi"):
        for name, value in getattr(state, group)._asdict().items():
            (tensors if isinstance(value, Tensor) else numbers)[f"{group}.{name}"] = value
    tensors |= {f"memory.{name}": value for name, value in state.memory.items()}
    for name, value in state._asdict().items():
        if name not in ("theta", "phi", "memory", "rng"):
            (tensors if isinstance(value, Tensor) else numbers)[name] = value
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, numbers


def _unflatten(tensors: dict[str, Tensor], numbers: dict[str, Any], method: Method, device: torch.device) -> State:
    rng = torch.Generator(device)
    rng.set_state(tensors.pop("rng"))
    # its name until version 0.2
    tensors = {name.replace("memory.hollow.", "memory.missing."): tensor for name, tensor in tensors.items()}
    # counters stay with the host: asking a device for one would make every step wait for it
    moved = {name: tensor.to(device) if tensor.dim() or tensor.is_floating_point() else tensor
             for name, tensor in tensors.items()}  # fmt: skip
    everything = moved | numbers

    def group(prefix: str) -> dict[str, Any]:
        return {name: everything.pop(f"{prefix}.{name}") for name in _names(everything, prefix)}

    sampler = mover(method, numbers["epoch"]).sampler
    theta, phi = sampler.state_type(**group("theta")), method.optimiser.state_type(**group("phi"))
    return State(theta=theta, phi=phi, memory=group("memory"), rng=rng, **everything)


def _names(everything: dict[str, Any], prefix: str) -> list[str]:
    return [name.removeprefix(prefix + ".") for name in everything if name.startswith(prefix + ".")]
