"""The laws that members of the registries keep, for the suite's tests and for members of a user's own.

law        what a law is, and what comes of one
layers     a distribution that draws what it says
samplers   keeps a Gaussian, goes on from its fields
priors     its gradient is its own
latents    estimators and objectives, beside enumerated gradients and known posteriors
others     schedules, data
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from doubly.analysis.laws import latents, layers, others, priors, samplers
from doubly.analysis.laws.law import Broken, Finding, Law, LeftOut, examine
from doubly.core.errors import UserError
from doubly.core.own_files import is_own_file
from doubly.core.registry import Registry
from doubly.data import DATASETS
from doubly.latents import ESTIMATORS, OBJECTIVES, Estimator, Objective
from doubly.layers import LAYERS, Layer
from doubly.samplers import SAMPLERS, Sampler
from doubly.samplers.priors import PRIORS, Prior
from doubly.samplers.schedules import SCHEDULES, Schedule

__all__ = ["Broken", "Finding", "LeftOut", "Report", "check", "examine"]


class Kind(NamedTuple):
    """A kind of members: where they are registered, what they subclass, and their laws."""

    registry: Registry
    base: type | None
    cases: Callable[[str], Mapping[str, Any]]
    laws: dict[str, Law]


KINDS = [
    Kind(LAYERS, Layer, layers.cases, layers.LAWS),
    Kind(SAMPLERS, Sampler, samplers.cases, samplers.LAWS),
    Kind(PRIORS, Prior, priors.cases, priors.LAWS),
    Kind(ESTIMATORS, Estimator, latents.estimator_cases, latents.ESTIMATOR_LAWS),
    Kind(OBJECTIVES, Objective, latents.objective_cases, latents.OBJECTIVE_LAWS),
    Kind(SCHEDULES, Schedule, others.schedule_cases, others.SCHEDULE_LAWS),
    Kind(DATASETS, None, others.data_cases, others.DATA_LAWS),
]


@dataclass(frozen=True)
class Report:
    """What came of the laws of one member."""

    spec: str
    noun: str
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        return all(finding.verdict != "broken" for finding in self.findings)

    def text(self) -> str:
        return "\n".join([f"{self.spec}, a {self.noun}", *(f"  {finding.line()}" for finding in self.findings)])

    def to_json(self) -> dict[str, Any]:
        findings = [vars(finding) for finding in self.findings]
        return {"spec": self.spec, "noun": self.noun, "ok": self.ok, "laws": findings}


def check(spec: str) -> list[Report]:
    """Run the laws on a member: of a user's own file, or registered; a name in two registries stands for both."""
    found = []
    for kind in _kinds(spec):
        cases = kind.cases(spec)
        findings = [examine(name, law, cases) for name, law in kind.laws.items()]
        found.append(Report(spec, kind.registry.noun, findings))
    return found


def _kinds(spec: str) -> list[Kind]:
    name = spec.partition(":")[0]
    if not is_own_file(name):
        kinds = [kind for kind in KINDS if name in kind.registry]
        if not kinds:
            raise UserError(f"no member is called {name!r}: write my_file.py:MyClass, or a name that doubly list shows")
        return kinds
    member, _ = LAYERS.read(spec)  # every registry reads the user's files in the same way
    kinds = [kind for kind in KINDS if kind.base and isinstance(member, type) and issubclass(member, kind.base)]
    if not kinds and callable(member) and not isinstance(member, type):
        kinds = [kind for kind in KINDS if kind.registry is DATASETS]
    if not kinds:
        bases = ", ".join(kind.base.__name__ for kind in KINDS if kind.base)
        raise UserError(f"{spec} must be a subclass of one of {bases}, or a function that returns Data")
    return kinds
