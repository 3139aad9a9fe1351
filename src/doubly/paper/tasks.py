"""A row of the tables, made in one of two ways with one seed: what is run, filed and planned as one."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from doubly.core.errors import UserError
from doubly.paper.recipes import RECOMMENDED, Recipe, recipes, with_recommended

Way = Literal["paper", "recommended"]
WAYS: tuple[Way, ...] = ("paper", "recommended")
SAID: dict[Way, str] = {"paper": "the paper's way", "recommended": "recommended"}


@dataclass(frozen=True)
class Task:
    """A row by name, its way and its seed."""

    name: str
    way: Way = "paper"
    seed: int = 0

    @property
    def title(self) -> str:
        """What its run and its result are called.

        >>> Task("caltech-sbn-200", "recommended", 1).title
        'caltech-sbn-200-recommended-seed-1'
        """
        recommended, seed = ["recommended"] * (self.way == "recommended"), [f"seed-{self.seed}"] * (self.seed != 0)
        return "-".join([self.name, *recommended, *seed])

    def recipe(self, threads: int = 0) -> Recipe:
        """The recipe with the settings of its way and the seed."""
        known = recipes()
        if self.name not in known:
            raise UserError(f"no recipe is called {self.name!r}; there are: {', '.join(known)}")
        found = known[self.name] if self.way == "paper" else with_recommended(known[self.name])
        return dataclasses.replace(
            found,
            config=dataclasses.replace(found.config, seed=self.seed, threads=threads),
            evaluation=dataclasses.replace(found.evaluation, seed=self.seed, threads=threads),
        )


def tasks() -> list[Task]:
    """All that makes the tables whole, in their order: every row in its ways, with its seeds.

    The rivals' rows have one way, their own, which stands in the column of the paper's.
    """
    return [
        Task(name, way, seed)
        for name, recipe in recipes().items()
        for way in WAYS
        if way == "paper" or recipe.preset in RECOMMENDED
        for seed in range(recipe.seeds)
    ]
