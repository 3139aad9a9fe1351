"""What there is to choose from: every registry, member by member, for `doubly list` and the docs."""

import platform
from typing import Any

import numpy
import torch

from doubly import __version__
from doubly.core.registry import Registry, describe, options
from doubly.data import DATASETS
from doubly.kernels import choose
from doubly.latents import ESTIMATORS, OBJECTIVES
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
    "objectives": OBJECTIVES,
    "schedules": SCHEDULES,
    "datasets": DATASETS,
}


def registries() -> dict[str, Any]:
    """All members with a line on each and their options."""
    found: dict[str, Any] = {
        title: {
            name: {"about": describe(member), "options": _plain(options(member))} for name, member in registry.items()
        }
        for title, registry in REGISTRIES.items()
    }
    found["presets"] = {name: {"about": about, "options": fields} for name, (about, fields) in PRESETS.items()}
    versions = {"doubly": __version__, "torch": torch.__version__, "numpy": numpy.__version__}
    kernels = {name: str(value) for name, value in choose.in_use().items()}
    return found | {"kernels": kernels, "versions": versions | {"python": platform.python_version()}}


def table() -> str:
    """The same for people to read."""
    lines = []
    for title, members in registries().items():
        lines.append(title)
        for name, entry in members.items():
            if isinstance(entry, str):
                lines.append(f"  {name:<20} {entry}")
                continue
            lines.append(f"  {name:<20} {entry['about']}")
            if entry["options"]:
                lines.append(" " * 23 + ", ".join(f"{key}={value}" for key, value in entry["options"].items()))
        lines.append("")
    return "\n".join(lines).rstrip()


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float | str | bool) else str(value) for name, value in fields.items()
    }
