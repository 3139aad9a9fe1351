"""The settings of a run: one frozen dataclass that is at once the command line, the Python API and config.json.

Only names and numbers are kept here; `runs/build.py` turns them into objects. Nothing heavy is imported, so that
`doubly --help` is quick.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any

from doubly.core.errors import UserError
from doubly.core.types import Binarise, Start

if TYPE_CHECKING:
    pass


MOST_THREADS = 1024  # beyond which starting them fails in ways that cannot be caught


@dataclass(frozen=True)
class Config:
    """How to learn a model."""

    data: str = "digits"
    """A data set by name (see `doubly list`), or a path ending in .npz, .npy or .csv."""
    binarise: Binarise | None = None
    """How greys become 0 or 1: at a threshold, drawn once, or drawn anew as they are trained on; by default as the
    data set says."""
    model: str = "sbn"
    """Layer type of the model at each level, data layer first, separated by commas; one name serves all."""
    proposal: str = "sbn"
    """Layer type of the proposal at each level, x to z1 first; one name serves all."""
    hidden: tuple[int, ...] = (200,)
    """Widths of the hidden layers, from the data upward."""
    start: Start = "glorot"
    """Weights to start from: Glorot's with the data's log-odds as bias, or those of the reference implementation."""
    prior: str = "student-t"
    """Prior on all weights; options as in student-t:df=2.2,scale=0.09."""
    sampler: str = "sgnht"
    """What moves the weights."""
    step: float = 0.005
    """The sampler's step for the mean log-likelihood of a row (the paper's gamma, per-batch learning rate)."""
    friction: float = 0.1
    """Momentum lost in each step (the paper's a)."""
    schedule: str = "constant"
    """How the step changes: constant, polynomial:power=0.55,offset=10 or cosine:cycle=20."""
    warmup: int = 0
    """Epochs of Adam towards a mode before sampling starts; the chain then has `patience` epochs to leave it before
    validation counts."""
    warmup_step: float = 1e-3
    """Adam's step in these."""
    estimator: str = "nais"
    """How the hidden variables are drawn for the gradient."""
    draws: int = 5
    """Draws of the hidden variables for each row and step (the paper's S)."""
    objective: str = "wake"
    """What the proposal climbs."""
    phi_step: float = 3e-4
    """Adam's step for the proposal."""
    phi_schedule: str = "constant"
    """How that changes, as `schedule` says it of the sampler's; its time starts with the run, warm-up or not."""
    phi_prior: str = "flat"
    """Prior on the proposal's weights; normal:scale=1 is what the reference implementation has."""
    batch: int = 100
    """Rows in a mini-batch."""
    theta_steps: int = 10
    """Steps of the sampler on each mini-batch."""
    phi_steps: int = 1
    """Steps of the proposal after each step of the sampler."""
    resample: bool = False
    """Draw the hidden variables afresh between the two updates, as the paper does; costs about as much again."""
    phi_first: bool = False
    """Move the proposal before the weights in each step, as the reference implementation does."""
    valid_draws: int = 100
    """Draws for the validation log-likelihood after each epoch; with Gibbs chains, temperatures of annealing."""
    patience: int = 10
    """Collect samples once validation has not risen for this many epochs…"""
    min_epochs: int = 10
    """…but not before this many."""
    epochs: int = 1000
    """At most this many epochs in all, collecting included."""
    collect: int = 100
    """Samples of the weights to collect (the paper's M)."""
    collect_every: str = "1epoch"
    """How often: a number of epochs, or of the sampler's steps as in 50steps."""
    means: tuple[int, ...] = (1, 5, 10, 20, 50, 100, 200)
    """Keep the mean of the first so many samples, too, for each of these numbers."""
    window: int = 1
    """Average so many samples that follow each other, and keep such averages in place of single samples."""
    keep: int = 10
    """Samples (or averages over windows) to keep on disk, evenly spaced, besides the mean of all…"""
    keep_mb: float = 1000.0
    """…but no more of them than fit into so many megabytes."""
    checkpoint_epochs: int = 10
    """Write a checkpoint after this many epochs…"""
    checkpoint_minutes: float = 5.0
    """…and after this many minutes, even in the middle of an epoch."""
    seed: int = 0
    """Seed of every random number."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, …"""
    compile: bool = False
    """Put the plain kernels through torch.compile: for a GPU; on a CPU the fused ones need no such help."""
    threads: int = 0
    """Threads to compute with; 0 chooses one for small models and all cores for others. Kept for resuming."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(Config):
            object.__setattr__(self, field.name, _typed(field.name, field.type, getattr(self, field.name)))
        for number in self.means:
            if number < 1:
                raise UserError(f"means are of at least 1 sample, got {number}")
        for name in ("keep", "keep_mb", "threads", "seed", "checkpoint_minutes"):
            if getattr(self, name) == math.inf:
                raise UserError(f"{name} must be finite, got {getattr(self, name)}")
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.threads > MOST_THREADS:
            raise UserError(f"threads must be at most {MOST_THREADS}, got {self.threads}")
        if self.checkpoint_epochs < 1:
            raise UserError(f"checkpoint_epochs must be at least 1, got {self.checkpoint_epochs}")


def _typed(name: str, kind: Any, value: Any) -> Any:
    """A setting as the type it is declared with, since Python and JSON know more than the command line lets through."""
    if kind not in _TYPES:  # a choice, which those that choose by it refuse
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


_TYPES: dict[Any, tuple[Callable[[Any], Any], str]] = {
    str: (os.fspath, "a text"),
    int: (index, "a whole number"),
    float: (_number, "a number"),
    bool: (_truth, "true or false"),
    tuple[int, ...]: (_widths, "a list of whole numbers, as in (200,)"),
}


def from_dict(fields: dict[str, Any]) -> Config:
    """A Config from names and values, saying which names exist when one does not."""
    names = [field.name for field in dataclasses.fields(Config)]
    for name in fields:
        if name not in names:
            raise UserError(f"there is no setting {name!r}; there are: {', '.join(names)}")
    return Config(**fields)
