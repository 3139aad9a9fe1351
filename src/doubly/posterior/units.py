"""A posterior of a table whose columns were scaled, asked and answering in the units and words of the table."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from doubly.core.errors import UserError
from doubly.core.types import By, Of
from doubly.latents.completions import ImputeConfig
from doubly.posterior.store import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


@dataclass(repr=False)
class PosteriorInUnits(Posterior):
    """What a run or an estimator has learnt of a table; `scaled` is the posterior behind it.

    It takes tables and gives tables: for a run, a DataFrame, names with lists or a list of rows with names go in, names
    with lists come out; for an estimator that was fitted to an array, arrays. `scaled` takes and gives rows as the
    model sees them, and so do `score`, `anneal` and what else is not named here.
    """

    units: Units | None = None

    @classmethod
    def of(cls, scaled: Posterior, units: Units) -> "PosteriorInUnits":
        """The posterior with these units."""
        return cls(**{each.name: getattr(scaled, each.name) for each in fields(Posterior)}, units=units)

    @property
    def scaled(self) -> Posterior:
        """The same in the units of the model."""
        return Posterior(**{each.name: getattr(self, each.name) for each in fields(Posterior)})

    @property
    def _units(self) -> Units:
        if self.units is None:
            raise UserError("this posterior has no units: make it with PosteriorInUnits.of(posterior, units)")
        return self.units

    def log_likelihood(
        self,
        x: Any,
        draws: int = 1000,
        of: Of = "auto",
        seed: int = 0,
        refine: int = 0,
        by: By = "auto",
        temperatures: int = 200,
        states: int = 100,
    ) -> np.ndarray:
        """log p of each row in the table's units, as `Posterior.log_likelihood` finds it."""
        rows = self._units.encode(x)
        found = super().log_likelihood(rows, draws, of, seed, refine, by, temperatures, states)
        return in_units(found, rows, self._units.log_scale)

    def sample(self, n: int, of: Of = "auto", seed: int = 0) -> Any:
        """A table of n new rows."""
        return self._units.decode(super().sample(n, of, seed))

    def impute(
        self, x: Any, draws: int = 20, how: ImputeConfig | None = None, of: Of = "ensemble", seed: int = 0
    ) -> Any:
        """The table with its missing cells completed `draws` times: an `ImputedTable`."""
        units = self._units
        found = super().impute(units.encode(x), draws, how, of, seed)
        copies = [units.decode(completed) for completed in found.completions]
        return ImputedTable(copies, units.decode(found.mean), found.spread * np.exp(units.log_scale))

    def encode(self, x: Any, draws: int = 100, of: Of = "auto", seed: int = 0) -> list[np.ndarray]:
        """E[z | x] for each latent layer, from the data upward."""
        return super().encode(self._units.encode(x), draws, of, seed)

    def explained(self, x: Any = None, draws: int = 100, of: Of = "mean", seed: int = 0) -> list[np.ndarray]:
        """For each unit of each latent layer, the share of its variance that the row explains."""
        return super().explained(None if x is None else self._units.encode(x), draws, of, seed)

    def log_conditional(self, *rows: Any, **how: Any) -> np.ndarray:
        """Refused: what is hidden and what is known would have to be tables."""
        raise UserError("log_conditional takes rows as the model sees them: ask `scaled`, with rows of its units")

    def plot_samples(self, n: int = 100, ax: "Axes | None" = None, **options: Any) -> "Axes":
        """Draw n new rows as the model sees them, a line for each. Options are those of `sample`."""
        return self.scaled.plot_samples(n, ax, **options)

    def plot_completions(
        self, x: Any = None, n: int = 10, draws: int = 3, ax: "Axes | None" = None, **options: Any
    ) -> "Axes":
        """Draw rows of a table with missing cells and completions of them, as the model sees them.

        Options are those of `impute`.
        """
        if x is None:
            raise UserError("a table has no lower half to complete: give plot_completions rows with missing cells")
        return self.scaled.plot_completions(self._units.encode(x), n, draws, ax, **options)


def in_units(log_likelihood: np.ndarray, rows: np.ndarray, log_scale: np.ndarray) -> np.ndarray:
    """Densities of rows in the table's units: each entry that is there counts its scale."""
    there = ~np.isnan(rows) if rows.dtype.kind == "f" else np.ones(rows.shape, dtype=bool)
    found: np.ndarray = log_likelihood - there @ log_scale
    return found
