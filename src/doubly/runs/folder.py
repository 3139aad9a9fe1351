"""The run folder: everything a run leaves behind, each file written to a temporary name, fsynced and renamed.

config.json      the settings, and the only source of the architecture
data.json        what the data were like, their digest, and the version of doubly; what was asked of a budget of time
metrics.jsonl    one object for each epoch
rows.safetensors of a table, or of data in memory: the rows, so that the run answers when the table is gone
checkpoint/      where the chain stands: a safetensors file whose metadata hold the numbers as JSON; and the one before
posterior/       means of the samples, single samples, proposals fitted to them
evaluations/     results of `doubly evaluate`
own_files/       the source of members of the user's own, with checksums
report.html, figures/
chains/          of several chains: each a run folder by its number, and lost.json, which says why some are lost
curves/          runs that were fitted along this one for a curve
scoring.json     how long `doubly reproduce` has evaluated it
damaged/         what `doubly repair` has set aside

Every file that is read again carries its SHA-256 (`core/sealed.py`), and is checked when it is read. A checkpoint also
lists the samples that belong to it, with their checksums, so that none goes missing unnoticed; and it has a copy of
config.json and data.json, from which `doubly repair` restores them.
"""

import dataclasses
import hashlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doubly import __version__
from doubly.core.codec import to_tensors
from doubly.core.documented import html_table
from doubly.core.errors import Damaged, DiskError, RunWarning, UserError
from doubly.core.files import LOCK, Folder, is_temporary
from doubly.core.rows import blocks
from doubly.core.sealed import MOST_JSON, dump_json, dump_tensors, load_json, load_tensors, parse_json
from doubly.data import SPLITS, Columns, Data
from doubly.data import load as load_data
from doubly.posterior.store import Posterior, together
from doubly.posterior.units import PosteriorInUnits
from doubly.runs import records, sources
from doubly.runs.build import Facts, build, check_size, training_rows
from doubly.runs.checkpoints import (
    OLDER,
    STATE,
    Checkpoint,
    peek_epoch,
    read_checkpoint,
    read_sample,
    write_checkpoint,
    write_sample,
)
from doubly.runs.config import Config, from_dict
from doubly.runs.file_cache import NO_WRITING, FileCache
from doubly.runs.plan import Asked
from doubly.runs.versions import ADDED, FORMAT, format_of, made_with
from doubly.training.method import Method
from doubly.training.state import State, decode, wait_again

ROWS = "rows.safetensors"
CHAINS, LOST = "chains", "chains/lost.json"
OURS = (
    "config.json",
    "data.json",
    ROWS,
    "metrics.jsonl",
    "checkpoint",
    "posterior",
    "evaluations",
    "figures",
    "chains",
    "curves",
    "report.html",
    "scoring.json",
    "own_files",
    "damaged",
    LOCK,
)
FOLDERS = ("checkpoint", "posterior", "evaluations", "figures", "own_files")  # where temporaries may lie


class Run:
    """A run folder that exists. With `allow_code`, code that it brings along may be executed."""

    def __init__(self, path: str | Path, allow_code: bool = False):
        self.path = Path(path)
        self.folder = Folder(self.path)
        if not self.folder.exists("config.json") and not (self.path / "config.json").is_symlink():
            raise UserError(
                f"{self.path} holds no run (it has no config.json): make one with doubly fit --out {self.path}"
            )
        self.config = self._read_config()
        self._allow_code = allow_code
        sources.use_copies(self.folder, self.config, allow_code)
        self.made: dict[str, Any] = {}
        self._samples: dict[str, str] = {}
        self._lost: list[str] = []
        self.temporary: Any = None  # holds a folder that goes away with the last of the run
        self._good = False  # whether the newest checkpoint is known to be sound, and worth keeping when the next comes

    def __repr__(self) -> str:
        told = {name: value for name, value in self._told().items() if name in ("model", "epochs", "valid")}
        return f"Run({str(self.path)!r}{''.join(f', {name}={value}' for name, value in told.items())})"

    def _repr_html_(self) -> str:
        return html_table(f"Run {self.path}", self._told())

    def _told(self) -> dict[str, str]:
        """What a reader wants to see of it first; nothing of what is damaged."""
        config = self.config
        told = {
            "data": Path(config.data).name,
            "model": "-".join([config.model, *map(str, config.hidden)]),
            "sampler": config.sampler,
        }
        if config.chains > 1:
            return told | {"chains": str(config.chains)}
        try:
            content = self.folder.read("metrics.jsonl") or b""
        except UserError:
            return told
        found, _ = records.read(content, self.format > 1)
        if found and isinstance(found[-1].get("valid"), float):
            told["epochs"] = f"{found[-1]['epoch']} of at most {config.epochs}"
            told["samples"] = str(found[-1].get("collected"))
            told["valid"] = f"{found[-1]['valid']:.3f}"
        return told

    def _read_config(self) -> Config:
        file = self.path / "config.json"
        content = self.folder.read("config.json", MOST_JSON) or b""
        fields = parse_json(content, file)
        self.format = format_of(fields, file)
        fields = load_json(content, file, required=self.format > 1)
        fields.pop("format", None)
        known = {field.name: field.default for field in dataclasses.fields(Config)}
        if unknown := [name for name in fields if name not in known]:
            version = self.version
            origin = (
                f"doubly {version} made this run" if version else "doubly 0.1 made this run, as it names no version"
            )
            raise UserError(
                f"{file} has a setting {unknown[0]!r} that doubly {__version__} does not know: {origin}; "
                "open it with the version that made it, or correct the name"
            )
        absent = ADDED.get(self.format, {})
        for name in known.keys() - fields.keys() - absent.keys():
            said = f"{file} does not say {name}: taking {known[name]}, the default of doubly {__version__}"
            warnings.warn(said, RunWarning, stacklevel=4)
        try:
            return from_dict(absent | fields)
        except UserError as error:
            raise Damaged(f"{file} is damaged: {error}") from None

    @property
    def version(self) -> str | None:
        """The version of doubly that made the run; None for those of 0.1, which did not write it down."""
        return self._facts().get("version") if self.folder.exists("data.json") else None

    @classmethod
    @contextmanager
    def create(
        cls, path: str | Path, config: Config, data: Data, overwrite: bool = False, in_memory: bool = False,
        asked: Asked | None = None,
    ) -> Iterator["Run"]:  # fmt: skip
        """A new folder, locked while in use; with `overwrite` also the folder of an old run, without its old files.

        Rows of a table, and those that come from memory, go along; and so does what was `asked` of a budget.
        If an error comes before the first checkpoint, the folder is removed again.
        """
        folder = Folder(Path(path))
        _check_free(folder.path, overwrite)  # a folder of something else is left as it is, without even a lock
        folder.make_itself()
        with folder.locked():
            _check_free(folder.path, overwrite)  # another process may have been quicker
            folder.sweep(*FOLDERS)
            for name in OURS[::-1]:
                if name not in (LOCK, "config.json"):  # until it is replaced, this is a run that can be overwritten
                    folder.remove(name)
            for name in ("checkpoint", "posterior"):
                folder.make(name)
            facts = {"format": FORMAT, **_facts(data), "version": __version__, "made": made_with(config.threads)}
            if asked is not None:
                facts["asked"] = asked._asdict()
            folder.write("data.json", dump_json(facts))
            sources.keep(folder, config)
            if data.kind == "mixed" or in_memory:
                rows = {split: torch.as_tensor(getattr(data, split)) for split in SPLITS}
                folder.write(ROWS, dump_tensors(rows))
            folder.write("config.json", _config_json(config, FORMAT))
            run = cls(folder.path)
            try:
                yield run
            except Exception:
                begun = (STATE, *(f"{CHAINS}/{number}/{STATE}" for number in run.numbers))
                if not any(map(folder.exists, begun)):
                    _remove_run(folder)
                raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from moving the chain; what they left when they were killed is swept away."""
        with self.folder.locked():
            self.folder.sweep(*FOLDERS)
            yield

    def migrate(self, state: State) -> None:
        """Bring the files of an older format to the present one; `state` is that of the checkpoint, if there is one."""
        if self.format == FORMAT:
            return
        if self.folder.exists(STATE):
            write_checkpoint(self.folder, to_tensors(state), self._samples, self._lost, keep_older=False)
        self.folder.write("data.json", dump_json({"format": FORMAT, **self._facts()}))
        # last: what it says asks for checksums in the others
        self.folder.write("config.json", _config_json(self.config, FORMAT))
        self.format = FORMAT

    def plan(self, epochs: int) -> None:
        """Change the number of epochs; what has been done stays as it is."""
        with self.locked():
            self.replan(epochs=epochs)

    def replan(self, **fields: Any) -> None:
        """Change settings of the plan, while the run is locked."""
        self.config = dataclasses.replace(self.config, **fields)
        self.folder.write("config.json", _config_json(self.config, self.format))

    @property
    def checkpoint(self) -> Path:
        """The file of the last checkpoint."""
        return self.path / STATE

    @property
    def fingerprint(self) -> str:
        """A digest that identifies this chain at its last checkpoint."""
        if self.config.chains > 1:
            return hashlib.sha256("".join(chain.fingerprint for chain in self.chains).encode()).hexdigest()
        content = self.folder.read(STATE) or str(self.path.resolve()).encode()
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

    @property
    def asked(self) -> Asked:
        """What the user has said of a plan that follows from a budget of time."""
        with self._data_json() as facts:
            return Asked.of(facts.get("asked", {}))

    @property
    def n_data(self) -> int:
        """The number of training rows."""
        with self._data_json() as facts:
            return int(facts["rows"]["train"])

    def _facts(self) -> dict[str, Any]:
        file = self.path / "data.json"
        content = self.folder.read("data.json", MOST_JSON)
        if content is None:
            raise Damaged(f"{file} is damaged: it is missing")
        format_of(parse_json(content, file), file)
        return load_json(content, file, required=self.format > 1)

    @contextmanager
    def _data_json(self) -> Iterator[dict[str, Any]]:
        """The content of data.json; what is absent or has a wrong form is an error that names the file."""
        file = self.path / "data.json"
        facts = self._facts()
        try:
            yield facts
        except KeyError as error:
            raise Damaged(f"{file} is damaged: it has no {error}") from None
        except (TypeError, ValueError, OverflowError) as error:  # a UserError is one, too
            raise Damaged(f"{file} is damaged: {error}") from None

    def data(self) -> Data:
        """The data that the run was made with; an error if they have changed. Tables are stored in the run."""
        if self.has_rows:
            return self._table()
        data = load_data(self.config.data, binarise=self.config.binarise)
        facts, file = _facts(data), self.path / "data.json"
        if facts["sha256"] != self.data_digest:
            raise UserError(f"{self.config.data} is not the data that {self.path} was made with: put them back")
        known = self._facts()
        if changed := [name for name in facts if name not in known or known[name] != facts[name]]:
            raise UserError(
                f"{self.config.data} and {file} do not agree on the {changed[0]} of the data: one of them was changed; "
                f"put it back"
            )
        return data

    @property
    def has_rows(self) -> bool:
        """Whether the rows are stored in the run."""
        return self.folder.exists(ROWS)

    def _table(self) -> Data:
        """The rows as they were when the run was made."""
        file = self.path / ROWS
        found = load_tensors(self.folder.read(ROWS) or b"", file, required=True).tensors
        try:
            train, valid, test = (found[split].numpy() for split in SPLITS)
        except KeyError as error:
            raise Damaged(f"{file} is damaged: it has no {error}") from None
        facts, name = self.facts, Path(self.config.data).name
        kind: Any = facts.kind
        data = Data(name, train, valid, test, facts.shape, kind, dynamic=facts.dynamic, columns=self.columns)
        if _facts(data)["sha256"] != self.data_digest:
            raise Damaged(f"{file} is not what {self.path} was made with: put it back")
        return data

    def metrics(self) -> list[dict[str, Any]]:
        """The records of the epochs finished; what is damaged or cut short is left out, and told.

        Of several chains, those of the first.
        """
        if self.config.chains > 1:
            return self.chains[0].metrics() if self.chains else []
        found, damaged = records.read(self.folder.read("metrics.jsonl") or b"", self.format > 1)
        lacking = peek_epoch(self.folder) - len({record["epoch"] for record in found})
        said = f"{damaged} of its lines are left out" if damaged else f"{lacking} of its lines are missing"
        if damaged or lacking > 0:
            warnings.warn(f"{self.path / 'metrics.jsonl'} is damaged: {said}", RunWarning, stacklevel=2)
        return found

    def log(self, record: dict[str, Any]) -> None:
        """Add the record of an epoch."""
        self.folder.append("metrics.jsonl", records.line(record))

    def forget_after(self, epoch: int) -> None:
        """Drop the records of later epochs, which are not in the checkpoint; they will be made again."""
        lines = [records.line(record) for record in self.metrics() if record["epoch"] <= epoch]
        self.folder.write("metrics.jsonl", b"".join(lines))

    # Several chains

    @property
    def numbers(self) -> range:
        """The numbers of the chains in chains/; none where the run is one chain."""
        return range(self.config.chains if self.config.chains > 1 else 0)

    def chain(self, number: int) -> "Run":
        """A chain of this run by its number, which is a run folder of its own."""
        if not self.folder.exists(f"{CHAINS}/{number}/config.json"):
            raise Damaged(f"{self.path} has no chain {number}: doubly resume {self.path} makes it again")
        return Run(self.path / CHAINS / str(number), self._allow_code)

    @property
    def chains(self) -> list["Run"]:
        """The chains whose samples count: the run itself, or those of several that are not lost."""
        lost = self.lost
        there = [each for each in self.numbers if self.folder.exists(f"{CHAINS}/{each}/config.json")]
        return [self.chain(each) for each in there if each not in lost] if self.numbers else [self]

    @property
    def lost(self) -> dict[int, str]:
        """The chains that diverged or died, and why."""
        content = self.folder.read(LOST, MOST_JSON) if self.numbers else None
        if content is None:
            return {}
        try:
            found = load_json(content, self.path / LOST, required=True)["lost"]
            return {int(number): str(why) for number, why in found.items()}
        except (KeyError, ValueError, AttributeError) as error:  # a UserError is one, too
            raise Damaged(f"{self.path / LOST} is damaged: {error}; remove it") from None

    def lose(self, lost: dict[int, str]) -> None:
        """Write down which chains are lost."""
        self.folder.write(LOST, dump_json({"lost": {str(number): why for number, why in sorted(lost.items())}}))

    # Checkpoints

    def save(self, state: State) -> None:
        """Write a checkpoint; the one before stays beside it."""
        self.folder.sync("metrics.jsonl")
        write_checkpoint(self.folder, to_tensors(state), self._samples, self._lost, self._good)
        self._good = True

    def forget_samples(self, state: State) -> None:
        """Save this state as one that has not begun to collect, and delete the samples."""
        with self.locked():
            self._samples, self._lost = {}, []
            self.save(wait_again(state))
            self.folder.remove(OLDER)  # the samples that belong to it go now
            for kind in ("draw", "mean"):
                for name in self.folder.names("posterior", _sample_pattern(kind)):
                    self.folder.remove(name)

    def restore(self, method: Method) -> State | None:
        """The state of the last checkpoint, bit for bit; None if there is none yet.

        If the newest is damaged, the one before is taken, and that is told.
        """
        wrong: UserError | None = None
        for name in (STATE, OLDER):
            try:
                found = read_checkpoint(self.folder, name, self.format > 1)
                state = None if found is None else self.decoded(found, method, name)
            except UserError as error:
                wrong = wrong or error
                continue
            if found is None or state is None:
                continue
            if name == OLDER:
                why = str(wrong) if wrong else f"{self.checkpoint} is missing"
                said = f"{why}: taking the checkpoint before it, in epoch {state.epoch + 1}"
                warnings.warn(said, RunWarning, stacklevel=2)
            self._good = name == STATE
            self.made, self._lost = found.made, found.lost
            self._samples = self._unlisted(state.collected) if found.samples is None else dict(found.samples)
            return state
        if wrong:
            raise Damaged(f"{wrong}; see what can be kept with doubly repair {self.path}") from None
        return None

    def decoded(self, found: Checkpoint, method: Method, name: str = STATE) -> State:
        """The state of a checkpoint, checked against the architecture."""
        try:
            return decode(method, found.encoded, self.n_data, self.config.device)
        except (TypeError, KeyError, RuntimeError, OverflowError) as error:
            raise Damaged(
                f"the checkpoint {self.path / name} is damaged, or not of this config.json: {error}"
            ) from None

    # Samples

    def keep(self, number: int, theta: Tensor) -> None:
        """Keep one sample of the weights, or the average over a window that ends with the sample of this number."""
        self._keep("draw", number, theta)

    def keep_mean(self, number: int, theta: Tensor) -> None:
        """Keep the mean of the first samples."""
        self._keep("mean", number, theta)

    def _keep(self, kind: str, number: int, theta: Tensor) -> None:
        name = f"posterior/{kind}-{number:05d}.safetensors"
        self._samples[name] = write_sample(self.folder, name, theta)

    def posterior(self, **options: Any) -> Posterior:
        """What has been learnt so far; of several chains, what they say together."""
        if self.config.chains > 1:
            return self._posterior_of_chains(options)
        method = build(self.config, self.facts)
        state = self.restore(method)
        if state is None:
            raise UserError(f"{self.path} has no checkpoint yet: let doubly fit (or doubly resume) run a little longer")
        self._note_format()
        self.folder.sweep(*FOLDERS)
        device = state.mean.device
        samples, means = (self._vectors(kind, state.collected, method, device) for kind in ("draw", "mean"))
        return Posterior(
            method=method,
            phi=state.phi.theta,
            last_theta=state.theta.theta,
            mean_theta=state.mean.float() if state.collected else None,
            thetas=list(samples.values()),
            means=means,
            epoch=state.epoch,
            collected=state.collected,
            train=lambda: training_rows(self.data(), device),
            cache=FileCache(self.folder, device, required=self.format > 1),
            shape=self.facts.shape,
            records=self.metrics,
            check_refit=lambda: check_size(self.config, method.model, method.proposal, self.n_data),
            **options,
        )

    def _posterior_of_chains(self, options: dict[str, Any]) -> Posterior:
        for number, why in self.lost.items():
            said = f"chain {number} of {self.path} was lost ({why}): answers are without it"
            warnings.warn(said, RunWarning, stacklevel=3)
        begun = [chain for chain in self.chains if chain.folder.exists(STATE) or chain.folder.exists(OLDER)]
        if not begun:
            raise UserError(f"{self.path} has no checkpoint yet: let doubly fit (or doubly resume) run a little longer")
        found = together([chain.posterior(**options) for chain in begun])
        self.made = begun[0].made
        return dataclasses.replace(found, cache=FileCache(self.folder, found.phi.device, required=True))

    def posterior_in_units(self, **options: Any) -> Posterior:
        """The same; of a table whose columns were scaled, one that takes and gives tables in their own units."""
        found, columns = self.posterior(**options), self.columns
        return PosteriorInUnits.of(found, columns) if columns is not None and self.facts.kind == "mixed" else found

    def _note_format(self) -> None:
        if self.format < FORMAT:
            said = f"{self.path} was made before runs had checksums: damage to its numbers would not be noticed"
            warnings.warn(said, RunWarning, stacklevel=3)
        if self._lost:
            said = f"{self.path} has lost {', '.join(self._lost)}: answers are without them"
            warnings.warn(said, RunWarning, stacklevel=3)

    def _vectors(self, kind: str, collected: int, method: Method, device: torch.device) -> dict[int, Tensor]:
        """The samples or means of the checkpoint, by number; each of them must be there, and as it was."""
        found = {}
        for name in sorted(self._samples):
            if (number := _number(name, kind)) is not None and number <= collected:
                found[number] = read_sample(self.folder, name, self._samples[name], method.model.size).to(device)
        return found

    def _unlisted(self, collected: int) -> dict[str, str]:
        """The samples of a run of format 1, whose checkpoint does not list them; later ones will come again."""
        names = [name for kind in ("draw", "mean") for name in self.folder.names("posterior", _sample_pattern(kind))]
        found = {}
        for name in names:
            number = max(filter(None, (_number(name, kind) for kind in ("draw", "mean"))), default=0)
            if number <= collected:
                found[name] = hashlib.sha256(self.folder.read(name) or b"").hexdigest()
        return found


def _sample_pattern(kind: str) -> str:
    return rf"{kind}-(\d{{5,18}})\.safetensors"


def _number(name: str, kind: str) -> int | None:
    found = re.fullmatch(f"posterior/{_sample_pattern(kind)}", name)
    return int(found[1]) if found else None


def _check_free(folder: Path, overwrite: bool) -> None:
    """A new run may go there."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another folder for --out")
    found = {file.name for file in folder.iterdir()} if folder.exists() else set()
    if "config.json" in found and not overwrite:
        raise UserError(f"{folder} already holds a run: choose another --out, or insist with --overwrite")
    others = {name for name in found - set(OURS) if not is_temporary(name)}
    if others and "config.json" not in found:
        raise UserError(f"{folder} is not empty and holds no run: choose another --out")


def _remove_run(folder: Folder) -> None:
    """Remove what a run wrote, and the folder; where something else is in it, it stays one that can be overwritten."""
    others = {file.name for file in folder.path.iterdir()} - set(OURS)
    for name in OURS:
        if not (others and name == "config.json"):
            folder.remove(name)
    if not others:
        folder.path.rmdir()


def file_json(run: Run, name: str, fields: dict[str, Any]) -> None:
    """Write a result into the run folder; where that cannot be written to, say so and go on."""
    try:
        run.folder.write(name, dump_json(fields))
    except DiskError as error:
        if error.number not in NO_WRITING:
            raise
        warnings.warn(f"{error}; the result is not filed there", RunWarning, stacklevel=2)


def _facts(data: Data) -> dict[str, Any]:
    """What data.json says of the data: what a model has to know of them, and a digest that identifies them."""
    digest = hashlib.sha256()
    splits = {split: data.split(split) for split in SPLITS} | ({"train": data.stored} if data.stored else {})
    for rows in splits.values():
        for block in blocks(rows):
            digest.update(np.ascontiguousarray(block).data)
    return {
        "width": data.width,
        "kind": data.kind,
        "shape": list(data.shape),
        "dynamic": data.dynamic,
        **({"holes": True} if data.has_missing else {}),  # the key of version 0.1
        "rows": {split: len(rows) for split, rows in splits.items()},
        "columns": data.columns.as_json() if data.columns else None,
        "sha256": digest.hexdigest(),
    }


def _config_json(config: Config, format: int) -> bytes:
    fields = dataclasses.asdict(config)
    return dump_json({"format": format, **fields} if format > 1 else fields)
