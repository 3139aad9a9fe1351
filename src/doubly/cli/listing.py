"""The registries, member by member, for `doubly list` and the docs."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from doubly import __version__
from doubly.analysis.results import Result, fields_of
from doubly.core.registry import Registry, describe, options
from doubly.data import DATASETS
from doubly.kernels import choose
from doubly.latents import ESTIMATORS, MOVES, OBJECTIVES
from doubly.layers import LAYERS
from doubly.runs.presets import PRESETS
from doubly.samplers import SAMPLERS
from doubly.samplers.priors import PRIORS
from doubly.samplers.schedules import SCHEDULES

REGISTRIES: dict[str, Registry] = {
    "layers": LAYERS,
    "samplers": SAMPLERS,
    "priors": PRIORS,
    "estimators": ESTIMATORS,
    "moves": MOVES,
    "objectives": OBJECTIVES,
    "schedules": SCHEDULES,
    "datasets": DATASETS,
}


@dataclass(frozen=True)
class Member:
    """A member of a registry: a line on it, and its options with their defaults."""

    about: str
    options: Mapping[str, object]


@dataclass(frozen=True)
class Registries(Result):
    """Every registry, the presets, and what they run on."""

    members: dict[str, dict[str, Member]]
    """By registry and name; presets last."""
    kernels: dict[str, str]
    versions: dict[str, str]

    def text(self) -> str:
        lines = []
        for title, members in self.members.items():
            lines.append(title)
            for name, member in members.items():
                lines.append(f"  {name:<20} {member.about}")
                if member.options:
                    lines.append(" " * 23 + ", ".join(f"{key}={value}" for key, value in member.options.items()))
            lines.append("")
        for title, facts in {"kernels": self.kernels, "versions": self.versions}.items():
            lines += [title, *(f"  {name:<20} {value}" for name, value in facts.items()), ""]
        return "\n".join(lines).rstrip()

    def to_json(self) -> Any:
        found = fields_of(self)
        return found.pop("members") | found


def registries() -> Registries:
    """All members with a line on each and their options."""
    members = {
        title: {name: Member(describe(member), _plain(options(member))) for name, member in registry.items()}
        for title, registry in REGISTRIES.items()
    }
    members["presets"] = {name: Member(about, fields) for name, (about, fields) in PRESETS.items()}
    return Registries(
        members,
        kernels={name: str(value) for name, value in choose.in_use().items()},
        versions={
            "doubly": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    )


def _plain(fields: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value if isinstance(value, int | float | str | bool) else str(value) for name, value in fields.items()
    }
