"""The settings of a run: one frozen dataclass that is at once the command line, the Python API and config.json.

Only names and numbers are kept here; `build` turns them into objects. Nothing heavy is imported until then, so that
`doubly --help` is quick.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from doubly.choices import Binarise, Of, Refit, Split, Start
from doubly.errors import UserError

if TYPE_CHECKING:
    from doubly.data import Data
    from doubly.train import Method


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


_OPTIMISED = {"sampler": "adam", "step": 1e-3, "phi_step": 1e-3, "prior": "flat", "theta_steps": 1}
_VAE = {
    "model": "mlp:widths=200-200,normal",
    "proposal": "gaussian:widths=200-200",
    "hidden": (50,),
    "objective": "iwae",
}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "dsgnht-nais": ("the paper's method: thermostat, importance sampling, inclusive KL", {"resample": True}),
    "recommended": (
        "the same with what docs/study.md found to be better, after Adam; an epoch has a tenth of the steps",
        {
            "warmup": 150,
            "warmup_step": 3e-3,
            "step": 0.03,
            "phi_step": 1e-3,
            "draws": 20,
            "resample": False,
            "theta_steps": 1,
            "valid_draws": 10,
            "patience": 100,
            "min_epochs": 100,
            "epochs": 10_000,
            "collect_every": "10epochs",
        },
    ),
    "dsgnht-nais-faithful": (
        "the same with the settings of the authors' released code, where they differ from the paper's",
        {
            "resample": True,
            "phi_first": True,
            "phi_prior": "normal:scale=1",
            "start": "reference",
            "prior": "student-t:scale=0.0953471",
            "step": 0.02,
        },
    ),
    "dsgnht-gibbs": ("the thermostat with persistent Gibbs chains for the hidden variables", {"estimator": "gibbs"}),
    "dsgnht-vae": (
        "the thermostat on a variational autoencoder, its proposal by the IWAE bound",
        _VAE | {"step": 0.001},
    ),
    "rws": (
        "reweighted wake-sleep: Adam on the same gradients, proposal by wake and sleep",
        _OPTIMISED | {"objective": "wake-sleep"},
    ),
    "wake-sleep": ("wake-sleep: one draw, proposal by sleep", _OPTIMISED | {"draws": 1, "objective": "sleep"}),
    "nvil": (
        "neural variational inference and learning: one draw, learnt baseline",
        _OPTIMISED | {"draws": 1, "objective": "nvil"},
    ),
    "vimco": ("VIMCO: the multi-sample bound by score functions", _OPTIMISED | {"objective": "vimco"}),
    "vae": ("variational autoencoder: one draw, reparameterised", _OPTIMISED | _VAE | {"draws": 1}),
    "iwae": ("importance weighted autoencoder: the multi-sample bound, reparameterised", _OPTIMISED | _VAE),
}


def from_dict(fields: dict[str, Any]) -> Config:
    """A Config from names and values, saying which names exist when one does not."""
    names = [field.name for field in dataclasses.fields(Config)]
    for name in fields:
        if name not in names:
            raise UserError(f"there is no setting {name!r}; there are: {', '.join(names)}")
    return Config(**fields)


def preset(name: str, **overrides: Any) -> Config:
    """The settings that a preset stands for, with some of them changed.

    >>> preset("dsgnht-nais", step=0.01).resample
    True
    """
    if name not in PRESETS:
        raise UserError(f"no preset is called {name!r}; there are: {', '.join(PRESETS)}")
    return from_dict(PRESETS[name][1] | overrides)


@dataclass(frozen=True)
class Question:
    """What is asked of a run."""

    split: Split = "test"
    """Which rows to score."""
    draws: int = 1000
    """Draws of the hidden variables for each row (the paper's K); with --adaptive, at most."""
    of: Of = "mean"
    """The posterior mean of the weights, an ensemble of samples of them, or the last sample."""
    samples: int | None = None
    """Take the mean of the first so many samples (the paper's M), where the run kept it."""
    adaptive: bool = False
    """Spend draws where they are needed: leave a row alone once its draws are worth a hundred of equal weight."""
    refit: int = 100
    """Passes over the training rows that fit a copy of the proposal to those weights."""
    refit_objective: Refit | None = None
    """What that copy climbs: wake unless the run's objective says otherwise, sleep or wake-sleep."""
    refine: int = 0
    """Steps by which the proposal is then refined for each row by itself, each as dear as 50 draws; 200 is usual."""
    ais: int = 0
    """Temperatures of annealed importance sampling, a second opinion that needs no proposal; 0 asks for none…"""
    ais_rows: int = 100
    """…on the first so many rows, and for bounds from both sides on as many, at most 100, drawn from the model…"""
    ais_chains: int = 16
    """…with so many chains for each row."""
    memory: float = 128.0
    """Megabytes that scoring may take at a time."""
    seed: int = 0
    """Seed of the draws."""
    threads: int = 0
    """Threads to compute with; 0 takes the number the run was fitted with."""

    @property
    def name(self) -> str:
        """What the answer is filed under: all that was asked for, where it is not the usual."""
        plain, told = Question(), ("split", "of", "draws", "threads", "memory")
        rest = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(Question) if field.name not in told
        }
        others = [f"{name}-{value}" for name, value in rest.items() if value != getattr(plain, name)]
        return "-".join([self.split, self.of, str(self.draws), *others]).replace("_", "-")


class Facts(NamedTuple):
    """What a model has to know of its data."""

    width: int
    kind: str
    shape: tuple[int, ...]
    dynamic: bool = False
    holes: bool = False


def build(config: Config, data: "Data | Facts") -> "Method":
    """The objects that the settings name, checked against each other and against the data."""
    from doubly.data import Data, check_binary
    from doubly.inference import ESTIMATORS, NAIS, OBJECTIVES, Estimator, Wake, for_holes
    from doubly.model import Chain
    from doubly.priors import PRIORS
    from doubly.samplers import SAMPLERS, Adam
    from doubly.schedules import SCHEDULES
    from doubly.train import Every, Method

    model = Chain.build(config.model, data=data.width, hidden=config.hidden, start=config.start)
    proposal = Chain.build_proposal(
        config.proposal, data=data.width, hidden=config.hidden, start=config.start, masked=data.holes
    )
    if model.layers[0].kind == "binary" and isinstance(data, Data):
        check_binary(data, f"the data layer {config.model.split(',')[0]!r} draws 0 or 1")
    elif model.layers[0].kind == "real" and data.kind == "binary":
        raise UserError(f"the data layer {config.model.split(',')[0]!r} draws real numbers, but the data are 0 or 1")
    for level, (p, q) in enumerate(zip(model.layers[1:], proposal.layers[::-1], strict=True), start=1):
        if p.kind != q.kind:
            raise UserError(
                f"hidden layer {level} is {p.kind} in the model but {q.kind} in the proposal: they must agree"
            )
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    fixed = {field.name for field in dataclasses.fields(Method)} & set(settings)
    objective = OBJECTIVES.make(config.objective)
    estimator = ESTIMATORS.make(config.estimator, draws=config.draws, objective=objective)
    estimator.check(model, proposal)
    if config.objective != "wake" and not hasattr(estimator, "objective"):
        raise UserError(
            f"the estimator {config.estimator} fits the proposal to its own draws of p(z|x), the objective wake; "
            f"got objective {config.objective}: leave it out, or take estimator nais"
        )
    # an objective that takes several draws apart, or learns from them as it goes, is no help where nothing moves
    refitter: Estimator = NAIS(max(config.draws, 5), objective if objective.pathwise else Wake())
    if data.holes:
        estimator, refitter = for_holes(estimator, model), for_holes(refitter, model)
    return Method(
        **{name: settings[name] for name in fixed if not isinstance(settings[name], str)},
        model=model,
        proposal=proposal,
        prior=PRIORS.make(config.prior),
        sampler=SAMPLERS.make(config.sampler, friction=config.friction),
        estimator=estimator,
        optimiser=Adam(),
        refitter=refitter,
        dynamic=data.dynamic,
        collect_every=Every.parse(config.collect_every),
        schedule=SCHEDULES.make(config.schedule),
        phi_schedule=SCHEDULES.make(config.phi_schedule),
        phi_prior=PRIORS.make(config.phi_prior),
    )
