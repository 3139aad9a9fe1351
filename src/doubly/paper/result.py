"""The result of a row of the paper's tables: filed as JSON, read again, and in words beside its recipe."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubly.analysis.evaluation import RENAMED, Annealed
from doubly.analysis.results import Result
from doubly.core.errors import UserError
from doubly.core.files import write
from doubly.paper.recipes import Recipe
from doubly.paper.tasks import Task, Way
from doubly.runs.config import Config, from_dict
from doubly.samplers import SAMPLERS
from doubly.samplers.sampler import NEAR


@dataclass(frozen=True)
class AnnealedRow(Result):
    """What annealing gives the test rows, and with how many temperatures and chains."""

    temperatures: int
    chains: int
    found: Annealed
    start: str = "prior"
    """Where the path begins: at the prior, or at the proposal."""

    def text(self) -> str:
        """The value, and in brackets how far apart the bounds are on rows of the model."""
        found = self.found
        return f"{found.log_likelihood:.2f} ± {found.stderr or 0:.2f} ({found.gap_on_simulated_rows:.2f})"

    def to_json(self) -> Any:
        own = {"temperatures": self.temperatures, "chains": self.chains, "start": self.start}
        return own | self.found.to_json()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "AnnealedRow":
        own = ("temperatures", "chains", "start")
        found = Annealed(**{name: value for name, value in fields.items() if name not in own})
        return cls(fields["temperatures"], fields["chains"], found, fields.get("start", "prior"))


@dataclass(frozen=True)
class WeightScores(Result):
    """What the last weights, the mean and the ensemble give some validation rows, all by the same estimate."""

    n: int
    """Validation rows, evenly spaced."""
    estimator: str
    work: int
    """Draws or temperatures for each row; 0 where it is exact."""
    refit: int
    """Passes that fit a proposal to each of the weights."""
    members: int
    """Samples in the ensemble."""
    last: float
    mean: float
    ensemble: float
    mean_over_last: tuple[float, float | None]
    """The paired difference, and its standard error over rows."""
    ensemble_over_mean: tuple[float, float | None]

    def text(self) -> str:
        gains = [f"{found:+.2f} ± {error or 0:.2f}" for found, error in (self.mean_over_last, self.ensemble_over_mean)]
        return f"{self.last:.2f} / {self.mean:.2f} / {self.ensemble:.2f} ({gains[0]}, {gains[1]})"

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "WeightScores":
        pairs = {name: tuple(fields[name]) for name in ("mean_over_last", "ensemble_over_mean")}
        return cls(**{**fields, **pairs})


@dataclass(frozen=True)
class RowResult(Result):
    """A row: what was published, what was found, and how."""

    name: str
    table: str
    label: str
    preset: str
    published: float
    log_likelihood: float
    """The value of the row, in nats: by annealing where the recipe asks for it, else by importance sampling."""
    stderr: float | None
    annealed: AnnealedRow | None
    by_draws: float | None
    """The log-likelihood by importance sampling; None where the row was scored by annealing alone."""
    draw_error: float | None
    of: str
    draws: int
    draws_of_the_recipe: int
    refit: tuple[int, str]
    """Passes of the refit, and its objective."""
    refine: int
    ess: float
    unreliable_share: float
    """Of the rows, those with k̂ > 0.7."""
    samples: int
    samples_of_the_paper: int
    cut: bool
    """Whether time ended training or scoring early."""
    epochs: int
    steps: int
    valid_last: float
    hours: float
    training_hours: float
    cores: int | None
    threads: int
    seed: int
    versions: Mapping[str, str]
    data_sha256: str | None
    """None in results until version 0.1, which did not have it."""
    config: Config
    commit: str | None
    """The commit of the code, where it was known."""
    estimator: str = "draws"
    """By which estimate the row was scored: exact, draws or annealing."""
    temperatures: int | None = None
    """Temperatures of annealing, where that is the estimate."""
    gap: float | None = None
    """Nats between its bounds from below and above on rows drawn from the model."""
    settled: bool | None = None
    """Whether more work was seen to change the number by less than half a nat; None where that was not looked at."""
    temperature: float | None = None
    """The mean kinetic temperature of the chain while samples were collected; None where there is no momentum."""
    burn_in: int | None = None
    """Epochs before samples were collected; None in results until version 0.3."""
    weights: WeightScores | None = None
    """What one sample, the mean and the ensemble give validation rows."""

    @property
    def way(self) -> Way:
        """The column of the table that it stands in."""
        return "recommended" if self.preset == "recommended" else "paper"

    def text(self) -> str:
        annealed = [f"annealed {self.annealed.text()}"] if self.annealed else []
        beside = ", ".join([*annealed, *self.marks()])
        said = f" ({beside})" if beside else ""
        return f"{self.label}: {self.value()}{said}, published {self.published}, {self.hours:.2f} hours"

    def value(self) -> str:
        """The number with its standard error."""
        return f"{self.log_likelihood:.2f} ± {self.stderr or 0:.2f}"

    def estimate(self) -> str:
        """How the number was found, and how far to trust it."""
        if self.estimator == "exact":
            return "exact"
        if self.annealed is not None and self.log_likelihood == self.annealed.found.log_likelihood:
            found = self.annealed
            return f"{found.temperatures:,} temperatures, bounds {found.found.gap_on_simulated_rows:.2f} apart"
        if self.estimator == "annealing":
            apart = "" if self.gap is None else f", bounds {self.gap:.2f} apart"
            return f"{self.temperatures or 0:,} temperatures{apart}"
        return f"{self.draws:,} draws, k̂ > 0.7: {self.unreliable_share:.0%}"

    @property
    def heat(self) -> float:
        """The share by which the kinetic temperature is above what its sampler should have; 0 if none is known."""
        expected = SAMPLERS.make(self.config.sampler, friction=self.config.friction).expected_temperature()
        return 0.0 if self.temperature is None or expected is None else self.temperature / expected - 1

    def marks(self) -> list[str]:
        """Remarks beside the number: what it lacks, and where it differs from what its recipe says now."""
        recipe = self.recipe()
        if recipe is None:
            return []
        said = {
            "cut": self._is_cut(recipe),
            f"seed {self.seed}": self.seed != 0,
            f"by K draws {self.by_draws or 0:.2f}": self.by_draws not in (None, self.log_likelihood),
            "not settled": self.settled is False,
            "code not committed": self.commit is None or self.commit.endswith("-dirty"),
            "data not checksummed": self.data_sha256 is None,
            f"temperature off by {self.heat:+.0%}": abs(self.heat) > NEAR,
        }
        return [*(word for word, true in said.items() if true), *self.differs()]

    def missing(self) -> list[str]:
        """What keeps the row from being whole; nothing where it is as its recipe has it now."""
        recipe = self.recipe()
        if recipe is None:
            return []
        annealed = self.annealed is not None and self.annealed.temperatures == recipe.alike
        said = {
            "cut": self._is_cut(recipe),
            "made with other settings": bool(self.differs()),
            "not annealed alike": recipe.can_anneal and not annealed,
            "last, mean and ensemble not compared": self.weights is None,
        }
        return [word for word, true in said.items() if true]

    def recipe(self) -> Recipe | None:
        """Its recipe as it is now; None where there is none of its name."""
        try:
            return Task(self.name, self.way, self.seed).recipe()
        except UserError:
            return None

    def _is_cut(self, recipe: Recipe) -> bool:
        return self.cut or (self.estimator == "draws" and self.draws < recipe.evaluation.draws)

    def differs(self) -> list[str]:
        """Settings that are not those of the recipe."""
        recipe = self.recipe()
        if recipe is None:
            return []
        here, there = dataclasses.asdict(self.config), dataclasses.asdict(recipe.config)
        if recipe.config.hidden:  # else there is no proposal to fit
            here |= {"refit": self.refit}
            there |= {"refit": recipe.refit}
        if recipe.config.hidden and self.estimator == "draws":
            here |= {"refine": self.refine}
            there |= {"refine": recipe.evaluation.refine}
        left_out = (*recipe.free, "seed", *["warmup_step"] * (not here["warmup"]))
        return [
            f"{name} {_written(here[name])}"
            for name, value in there.items()
            if name not in left_out and _written(here[name]) != _written(value)
        ]

    def save(self, file: Path) -> None:
        write(file, json.dumps(self.to_json(), indent=1).encode() + b"\n")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RowResult":
        """From a result of this version or of an earlier one, which had fewer fields and other names."""
        known = {RENAMED.get(name, name): value for name, value in fields.items()}
        earlier = {"annealed": None, "by_draws": known["log_likelihood"], "refine": 0, "data_sha256": None}
        exact = not known["config"]["hidden"]
        known = earlier | {"commit": None, "estimator": "exact" if exact else "draws"} | known
        passes, objective = known["refit"]
        return cls(**known | {
            "annealed": AnnealedRow.from_json(known["annealed"]) if known["annealed"] else None,
            "weights": WeightScores.from_json(known["weights"]) if known.get("weights") else None,
            "refit": (passes, objective),
            "config": from_dict(known["config"]),
        })  # fmt: skip

    @classmethod
    def read(cls, file: Path) -> "RowResult":
        """The result in a file; an error names the file."""
        try:
            return cls.from_json(json.loads(file.read_text()))
        except (KeyError, TypeError, AttributeError, ValueError) as error:  # a UserError is a ValueError
            raise UserError(f"{file} is no result of doubly reproduce ({error!r}): move it away") from None


def _written(value: Any) -> str:
    """As on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
