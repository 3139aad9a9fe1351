"""The settings of a run: one frozen dataclass that is at once the command line, the Python API and config.json.

It holds only names and numbers; `runs/build.py` turns them into objects. The numbers that training needs are declared
in `training/settings.py`. Nothing heavy is imported, so that `doubly --help` is quick.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any, TypeVar

from doubly.core.errors import UserError, near
from doubly.core.types import Binarise, Start, Step
from doubly.training.settings import Settings

MOST_THREADS = 1024  # beyond which starting them fails in ways that cannot be caught
# settings with a least and a largest value; each chain is a process
BETWEEN = (("chains", 1, 256), ("shards", 0, 65_536), ("rank_seconds", 1, 10**6))

# the groups of the help, and the order in which it and config.json show the settings; commands add flags to the first
GROUPS: dict[str, tuple[str, ...]] = {
    "basic": (
        "data", "out", "minutes", "chains", "hidden", "preset", "config", "overwrite", "json", "tracker", "seed",
        "threads",
    ),
    "data and model": ("binarise", "model", "proposal", "start", "prior"),
    "sampling the weights": (
        "sampler", "step", "friction", "schedule", "batch", "theta_steps", "warmup", "warmup_step",
    ),
    "latent variables and the proposal": (
        "estimator", "draws", "moves", "objective", "phi_step", "phi_schedule", "phi_prior", "phi_steps", "resample",
        "phi_first",
    ),
    "how long: burn-in, then samples": (
        "valid_draws", "patience", "min_epochs", "epochs", "collect", "collect_every", "window",
    ),
    "what is stored": ("keep", "keep_mb", "means", "checkpoint_epochs", "checkpoint_minutes"),
    "machine": ("retries", "device", "compile", "shards", "deterministic", "rank_seconds"),
}  # fmt: skip
ORDER = tuple(name for names in GROUPS.values() for name in names)

C = TypeVar("C", bound=Settings)


def in_order(cls: type[C]) -> type[C]:
    """Decorate a dataclass of settings: its fields come in that order, then those it adds.

    A dataclass has inherited fields first, which would tear apart what belongs together.
    """
    fields = cls.__dataclass_fields__
    ordered = sorted(fields, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    for name in ordered:
        fields[name] = fields.pop(name)  # to the end
    return cls


@in_order
@dataclass(frozen=True)
class Config(Settings):
    """How to learn a model."""

    data: str = "digits"
    """A data set by name (see `doubly list`), or a file: .csv, .tsv, .npz, .npy."""
    minutes: float = 0.0
    """Minutes that the fit may take: burn-in, samples and a short evaluation are planned to fit in (0: no limit).
    Compiling, once on a machine, is not counted."""
    chains: int = 1
    """Chains to run at the same time, each in a process of its own with a seed and a start of its own: their samples
    make one posterior, and whether they agree says whether they have mixed."""
    binarise: Binarise | None = None
    """How grey pixels become 0 or 1: by a threshold, drawn once, or drawn anew each time a row is used; each data set
    has a default."""
    model: str = "auto"
    """Layer type of the model at each level, data layer first, separated by commas; one name stands for all. auto takes
    what suits the data: mixed for a table, of bits that are no pictures the best of nade, darn and sbn, else sbn."""
    proposal: str = "sbn"
    """Layer type of the proposal (the network that guesses the latent variables of a row) at each level, the one that
    reads the data first; one name stands for all."""
    hidden: tuple[int, ...] = (200,)
    """Units in each latent layer, from the data upward; none makes a model without latent variables."""
    start: Start = "glorot"
    """Weights to start from: glorot (scaled to the layers, with the data's frequencies as biases), or those of the
    paper's released code."""
    prior: str = "student-t"
    """Prior on the model's weights, with options as in student-t:df=2.2,scale=0.3: a larger scale lets it learn more
    from many rows; learnt-student-t learns its scales."""
    sampler: str = "thermostat"
    """Algorithm that samples the model's weights."""
    friction: float = 0.1
    """Share of its speed that a weight loses in each step."""
    schedule: str = "constant"
    """How the step changes over time: constant, polynomial:power=0.55,offset=10 or cosine:cycle=20."""
    estimator: str = "auto"
    """How the latent variables of a row are drawn: nais (fresh draws of the proposal, weighted), persistent
    (remembered for each row, and moved), gibbs; auto takes persistent where Gibbs sweeps can move them, else nais."""
    draws: int = 5
    """Draws of the latent variables for each row and step."""
    moves: str = "auto"
    """How remembered latent variables move: gibbs, langevin or hmc, with options as in gibbs:share=0.5; auto takes the
    first that suits the model."""
    objective: str = "wake"
    """What the proposal is trained to do; wake learns from the weighted draws."""
    phi_schedule: str = "constant"
    """How the proposal's learning rate changes over time; the choices are those of `schedule`."""
    phi_prior: str = "flat"
    """Prior on the proposal's weights; flat is none."""
    # where the defaults of a run are not those of the paper, which `Settings` has
    step: Step = "auto"
    """Step size of the sampler, like a learning rate for the mean over rows; auto measures one for each weight during
    burn-in (thermostat, sms-ubu), or takes the sampler's usual one."""
    phi_step: float = 1e-3
    """Learning rate of the proposal (Adam)."""
    theta_steps: int = 1
    """Steps of the sampler on each mini-batch."""
    valid_draws: int = 20
    """Draws for the validation log-likelihood after each epoch; temperatures of annealing where latent variables are
    remembered."""
    patience: int = 0
    """Burn-in ends once validation has not risen for this many epochs (0: as many as make 2,000 steps)…"""
    epochs: int = 0
    """Passes over the data in all, at most, samples included (0: as many as make 40,000 steps, at least 100)."""
    collect_every: str = "auto"
    """How far apart samples of the weights are: in epochs, or in steps as in 50steps; auto takes about 100 steps."""
    means: tuple[int, ...] = (1, 5, 10, 20, 50, 100, 200)
    """Also store the mean of the first samples, for each of these numbers of samples."""
    keep: int = 10
    """Samples of the weights to store, evenly spaced, besides the mean of all…"""
    keep_mb: float = 1000.0
    """…but no more of them than fit into this many megabytes."""
    retries: int = 3
    """How often a fit that diverges goes back to its last checkpoint and goes on with a third of the step."""
    checkpoint_epochs: int = 10
    """Write a checkpoint after this many epochs…"""
    checkpoint_minutes: float = 5.0
    """…and after this many minutes, even in the middle of an epoch."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, …"""
    compile: bool = False
    """Compile the plain kernels with torch.compile: for a GPU; on a CPU the fused kernels do not need it."""
    shards: int = 0
    """Parts of each mini-batch, with random numbers of their own, which the ranks of torchrun share (0: 1, or under
    torchrun 4, and more for more than 4 ranks)."""
    deterministic: bool = False
    """Under torchrun: add gradients in one order, so that any number of ranks gives the same bits; more is sent."""
    rank_seconds: float = 300.0
    """Under torchrun: seconds after which a rank that does not answer is given up."""
    threads: int = 0
    """Threads to compute with; 0 takes one for small models and all cores for others. A resumed run keeps it."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(Config):
            object.__setattr__(self, field.name, _typed(field.name, field.type, getattr(self, field.name)))
        super().__post_init__()
        for number in self.means:
            if number < 1:
                raise UserError(f"means must be of at least 1 sample, got {number}")
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name in ("keep", "keep_mb", "threads", "checkpoint_minutes", "retries", "minutes"):
            if getattr(self, name) == math.inf:
                raise UserError(f"{name} must be finite, got {getattr(self, name)}")
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.threads > MOST_THREADS:
            raise UserError(f"threads must be at most {MOST_THREADS}, got {self.threads}")
        for name, least, most in BETWEEN:
            if not least <= getattr(self, name) <= most:
                raise UserError(f"{name} must be between {least} and {most}, got {getattr(self, name):g}")
        if self.checkpoint_epochs < 1:
            raise UserError(f"checkpoint_epochs must be at least 1, got {self.checkpoint_epochs}")

    def _least_epochs(self) -> int:
        return 0  # which chooses


def _typed(name: str, kind: Any, value: Any) -> Any:
    """A setting as its declared type: Python and JSON let more through than the command line does."""
    if kind not in _TYPES:  # a choice: where it is used, a wrong one is refused
        return value
    read, expected = _TYPES[kind]
    try:
        return read(value)
    except (TypeError, KeyError):
        array = "; for an array take DeepGenerativeModel, or save it first" if hasattr(value, "shape") else ""
        got = repr(value) if isinstance(value, str | int | float | tuple | list) else type(value).__name__
        raise UserError(f"{name} must be {expected}, got {got}{array}") from None


def _number(value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError
    return float(value)


def _widths(value: Any) -> tuple[int, ...]:
    return tuple(index(width) for width in value)  # JSON has no tuples


def _truth(value: Any) -> bool:
    return {True: True, False: False}[value]


def _step(value: Any) -> float | str:
    return value if value == "auto" else _number(value)


_TYPES: dict[Any, tuple[Callable[[Any], Any], str]] = {
    str: (os.fspath, "a text"),
    int: (index, "a whole number"),
    float: (_number, "a number"),
    Step: (_step, "a number, or auto"),
    bool: (_truth, "true or false"),
    tuple[int, ...]: (_widths, "a list of whole numbers, as in (200,)"),
}


def from_dict(fields: dict[str, Any]) -> Config:
    """A Config from names and values; an unknown name is an error that lists the known ones."""
    names = [field.name for field in dataclasses.fields(Config)]
    for name in fields:
        if name not in names:
            raise UserError(f"there is no setting {name!r}{near(name, names)}; there are: {', '.join(names)}")
    return Config(**fields)
