"""The settings as keyword arguments: their types for type checkers, and their texts for `help` and completion.

`Config` is the source. A type checker cannot read a dataclass as keyword arguments, so `ConfigFields` repeats names and
types; a test compares the two.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypedDict

from doubly.core.documented import field_docs
from doubly.core.types import Binarise, Start, Step
from doubly.runs.config import GROUPS, Config


class ConfigFields(TypedDict, total=False):
    """The fields of `Config`, each of which may be left out."""

    data: Any  # a name or a path, or a table in memory
    minutes: float
    chains: int
    hidden: tuple[int, ...]
    seed: int
    threads: int
    binarise: Binarise | None
    model: str
    proposal: str
    start: Start
    prior: str
    sampler: str
    step: Step
    friction: float
    schedule: str
    batch: int
    theta_steps: int
    warmup: int
    warmup_step: float
    estimator: str
    draws: int
    moves: str
    objective: str
    phi_step: float
    phi_schedule: str
    phi_prior: str
    phi_steps: int
    resample: bool
    phi_first: bool
    valid_draws: int
    patience: int
    min_epochs: int
    epochs: int
    collect: int
    collect_every: str
    window: int
    keep: int
    keep_mb: float
    means: tuple[int, ...]
    checkpoint_epochs: int
    checkpoint_minutes: float
    retries: int
    device: str
    compile: bool
    shards: int
    deterministic: bool
    rank_seconds: float


def documented(doc: str) -> str:
    """The text of a function, followed by all settings, in the groups of `doubly fit --help`."""
    docs, default = field_docs(Config), Config()
    lines = [inspect.cleandoc(doc)]
    for title, names in GROUPS.items():
        lines += ["", f"Settings, {title}:", ""]
        for name in names:
            if name in docs:
                text = f"{name}: {docs[name]} (default: {getattr(default, name)!r})"
                lines += textwrap.wrap(text, 116, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def signature_with_fields(function: Callable[..., Any]) -> inspect.Signature:
    """The signature with every setting as a keyword argument of its own, as completion and `help` show it."""
    plain = inspect.signature(function)
    own = [given for given in plain.parameters.values() if given.kind is not inspect.Parameter.VAR_KEYWORD]
    settings = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=_annotation(field)
        )
        for field in dataclasses.fields(Config)
    ]
    return plain.replace(parameters=[*own, *settings])


def _annotation(field: dataclasses.Field[Any]) -> Any:
    return ConfigFields.__annotations__[field.name]
