"""Recipes for the rows of the paper's tables: settings, how a row is scored, and the number that was published.

A file for each table. [all] has the settings of all its rows, [score] how they are scored, [recommended] where the
recommended settings of its rows differ from RECOMMENDED below, [recommended_score] how they are scored then,
[presets.NAME] what holds for the rows of one preset, and [rows.NAME] each row. A row may have any of these of its own.
Beside settings of `Config`, [all], [presets.NAME], [rows.NAME] and [recommended] may have `burn_in`, and the first
three `seeds`, `alike` and `only_cost`; beside those of `EvaluateConfig`, the scores may have `most_temperatures`: see
`Recipe`.
"""

import dataclasses
import functools
import os
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from doubly.analysis.config import EvaluateConfig
from doubly.core.errors import UserError
from doubly.latents import OBJECTIVES, is_exact
from doubly.posterior.estimates import ScoreConfig
from doubly.runs.build import Facts, build
from doubly.runs.config import GROUPS, Config
from doubly.runs.presets import PRESETS, preset
from doubly.samplers import SAMPLERS

Fields = dict[str, Any]  # settings by name, as a table of a .toml file has them

# What the recommended settings start from. For autoencoders, the recipes have all of them; for Gibbs chains,
# docs/reports/study.md says why these.
RECOMMENDED: dict[str, Fields] = {
    "dsgnht-nais": PRESETS["recommended"][1],
    "dsgnht-vae": {},
    "dsgnht-gibbs": {
        "step": 0.03,
        "schedule": "polynomial:power=0.5,offset=20",
        "phi_step": 1e-3,
        "draws": 1,
        "theta_steps": 1,
    },
}
OWN = "DOUBLY_RECIPES"  # an environment variable: a folder of such files to use in place of these
FREE = ("epochs", "threads", "shards")  # settings in which a run may differ from its recipe
OF_LATENTS = (*GROUPS["latent variables and the proposal"], "proposal", "valid_draws")
"""Settings without a meaning for a model that has no latent variables."""


@dataclass(frozen=True)
class Recipe:
    """One row of a table."""

    name: str
    table: str
    label: str
    published: float
    """Log-likelihood of a test row, in nats."""
    bound: bool
    """Whether what was published is a bound only."""
    preset: str
    """What its settings start from."""
    config: Config
    evaluation: EvaluateConfig
    burn_in: int = 100
    """Epochs until validation has levelled off, as far as runs alike have shown: the plan is made with it, no run."""
    seeds: int = 1
    """With how many seeds the row is made."""
    alike: int = 1000
    """Temperatures with which the rows of a table are all annealed, so that models are compared and not bounds."""
    most_temperatures: int = 0
    """Where rows are scored by annealing, temperatures are doubled until its bounds are near or there are so many."""
    only_cost: bool = False
    """Whether the paper's way of this row is not made here, and the page says what it would cost."""
    better: Fields = field(default_factory=dict)
    """Where the recommended settings of this row differ from those that RECOMMENDED has for its preset."""
    better_score: Fields = field(default_factory=dict)
    """Where it is scored otherwise then: posteriors of remembered states are not of the proposal's shape."""

    @property
    def can_anneal(self) -> bool:
        """Whether its latent variables can be annealed: not under nade, and not where there are none."""
        method = build(self.config, Facts(4, "binary", (4,)))  # of any width
        how = ScoreConfig("annealing").annealing(method.model, method.proposal)
        return not is_exact(method.model, method.proposal) and how.serves(method.model, method.proposal)

    @property
    def free(self) -> tuple[str, ...]:
        """Settings in which a run of it may differ."""
        return FREE if self.config.hidden else FREE + OF_LATENTS

    @property
    def optimised(self) -> bool:
        """Whether the weights are optimised, as those of the paper's rivals are, and not sampled."""
        return not SAMPLERS.make(self.config.sampler, friction=self.config.friction).noisy

    @property
    def refit(self) -> tuple[int, str]:
        """Passes of a refit and its objective: that of training, if the gradient goes through the draws, else wake."""
        pathwise = OBJECTIVES.make(self.config.objective).pathwise
        objective = self.evaluation.refit_objective or (self.config.objective if pathwise else "wake")
        return self.evaluation.refit, objective


def recipes() -> dict[str, Recipe]:
    """Every recipe by name, in the order of the tables; those of a folder of one's own take the place of the paper's.

    >>> recipes()["caltech-sbn-200"].published
    -122.7
    """
    return dict(_read(os.environ.get(OWN, "")))


@functools.lru_cache
def _read(own: str) -> dict[str, Recipe]:
    found: dict[str, Recipe] = {}
    files = sorted((Path(own) if own else resources.files(__name__)).iterdir(), key=lambda file: file.name)
    for file in files:
        if file.name.endswith(".toml"):
            table = tomllib.loads(file.read_text())
            found |= {name: _recipe(name, table, dict(row)) for name, row in table["rows"].items()}
    return found


def _recipe(name: str, table: Fields, row: Fields) -> Recipe:
    label, published, bound = row.pop("label"), row.pop("published"), row.pop("bound", False)
    base = row.pop("preset")
    kin = dict(table.get("presets", {}).get(base, {}))
    score, better, better_score = (
        table.get(name, {}) | kin.pop(name, {}) | row.pop(name, {})
        for name in ("score", "recommended", "recommended_score")
    )
    fields = table["all"] | kin | row
    beside = {key: fields.pop(key) for key in ("burn_in", "seeds", "alike", "only_cost") if key in fields}
    beside |= {key: score.pop(key) for key in ("most_temperatures",) if key in score}
    config = preset(base, **fields)
    evaluation = EvaluateConfig(**{"by": "draws", "of": "mean", "settle": False} | score)
    if evaluation.by == "short-chain":
        raise UserError(f"the recipe {name} may be scored by draws, annealing or auto, got by = {evaluation.by!r}")
    return Recipe(
        name, table["title"], label, published, bound, base, config, evaluation, better=better,
        better_score=better_score, **beside,
    )  # fmt: skip


def with_recommended(recipe: Recipe) -> Recipe:
    """The same row with settings that were found to be better than the paper's."""
    if recipe.preset not in RECOMMENDED:
        raise UserError(
            f"the recommended settings are for rows of {', '.join(RECOMMENDED)}; {recipe.name} is one of "
            f"{recipe.preset}"
        )
    settings, scored = RECOMMENDED[recipe.preset] | recipe.better, dict(recipe.better_score)
    return dataclasses.replace(
        recipe,
        preset="recommended",
        only_cost=False,
        burn_in=settings.pop("burn_in", recipe.burn_in),
        most_temperatures=scored.pop("most_temperatures", recipe.most_temperatures),
        config=dataclasses.replace(recipe.config, **settings),
        evaluation=dataclasses.replace(recipe.evaluation, **scored),
    )
