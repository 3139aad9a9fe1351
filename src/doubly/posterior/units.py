"""A posterior of a table whose columns were scaled, asked and answering in the units and words of the table."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from doubly.core.types import By, Of
from doubly.latents.completions import ImputeConfig
from doubly.layers.chain import Chain
from doubly.posterior.store import Posterior


class Units(Protocol):
    """How a table becomes rows of the model, and back."""

    @property
    def log_scale(self) -> np.ndarray:
        """For each entry of a row, the log of the model's unit in the table's."""

    def encode(self, table: Any, /) -> np.ndarray:
        """Rows as the model sees them, NaN where a cell is missing."""

    def decode(self, rows: Any, /) -> Any:
        """The table that rows stand for."""


class ImputedTable(NamedTuple):
    """A completed table."""

    completions: list[Any]
    """Completed tables: in each, what was missing is a draw given what was there."""
    mean: Any
    """The table with what is expected of each missing cell."""
    spread: np.ndarray
    """The standard deviation of each entry of a row over the completions, in the table's units; 0 where it was
    there."""


@dataclass(frozen=True)
class PosteriorInUnits:
    """What a run or an estimator has learnt of a table; `scaled` is the posterior behind it.

    It takes tables and gives tables: for a run, a DataFrame, names with lists or a list of rows with names go in, names
    with lists come out; for an estimator that was fitted to an array, arrays. `scaled` takes and gives rows as the
    model sees them.
    """

    scaled: Posterior
    units: Units

    @property
    def model(self) -> Chain:
        """The generative model's architecture."""
        return self.scaled.model

    def mean(self) -> Tensor:
        """The posterior mean of the weights."""
        return self.scaled.mean()

    def last(self) -> Tensor:
        """The last sample of the weights."""
        return self.scaled.last()

    def samples(self) -> list[Tensor]:
        """Samples of the weights."""
        return self.scaled.samples()

    def draws(self) -> list[Tensor]:
        """The samples of the weights: `samples()` by its documented name."""
        return self.scaled.samples()

    def log_likelihood(
        self,
        table: Any,
        draws: int = 1000,
        of: Of = "mean",
        seed: int = 0,
        refine: int = 0,
        by: By = "auto",
        temperatures: int = 200,
    ) -> np.ndarray:
        """log p of each row in the table's units, as `Posterior.log_likelihood` finds it."""
        rows = self.units.encode(table)
        found = self.scaled.log_likelihood(rows, draws, of, seed, refine, by, temperatures)
        return in_units(found, rows, self.units.log_scale)

    def sample(self, n: int, of: Of = "mean", seed: int = 0) -> Any:
        """A table of n new rows."""
        return self.units.decode(self.scaled.sample(n, of, seed))

    def impute(
        self, table: Any, draws: int = 20, how: ImputeConfig | None = None, of: Of = "ensemble", seed: int = 0
    ) -> ImputedTable:
        """The table with its missing cells completed `draws` times."""
        rows = self.units.encode(table)
        found = self.scaled.impute(rows, draws, how, of, seed)
        copies = [self.units.decode(completed) for completed in found.completions]
        return ImputedTable(copies, self.units.decode(found.mean), found.spread * np.exp(self.units.log_scale))

    def encode(self, table: Any, draws: int = 100, of: Of = "mean", seed: int = 0) -> list[np.ndarray]:
        """E[z | x] for each latent layer, from the data upward."""
        return self.scaled.encode(self.units.encode(table), draws, of, seed)

    def to_arviz(self) -> Any:
        """The samples of the weights as an arviz.InferenceData."""
        return self.scaled.to_arviz()


def in_units(log_likelihood: np.ndarray, rows: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
    """Densities of rows in the table's units: each entry that is there counts its scale."""
    there = ~np.isnan(rows) if rows.dtype.kind == "f" else np.ones(rows.shape, dtype=bool)
    found: np.ndarray = log_likelihood - there @ log_scale
    return found
