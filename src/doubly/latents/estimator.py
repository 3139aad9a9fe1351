"""What an estimator is: gradients on a mini-batch, with whatever it remembers of the rows."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.batch import Batch, Memory, Wanted
from doubly.latents.importance import Marginal
from doubly.latents.likelihood import bound
from doubly.latents.objectives import Objective
from doubly.latents.pair import Pair
from doubly.layers import Chain


class Estimate(NamedTuple):
    """Gradients to ascend, per datum (the mean over the rows); None where one was not wanted."""

    theta_grad: Tensor | None
    phi_grad: Tensor | None
    memory: Memory
    stats: dict[str, Tensor]


class Estimator(ABC):
    """Estimates the gradients of log p(x | theta) and of the proposal's objective on a mini-batch.

    An estimator is a frozen dataclass whose fields are its options; `draws` and `objective` are filled with the run's
    settings where it has them. It must give `check`, `init` (what it remembers of each row, {} if nothing) and
    `__call__`: gradients that are means over the rows of the batch, with the statistics `train` and `ess`. It may give
    `for_missing`, for rows with missing values; `for_refit`, if it has moves; `validate`, if the bound L_K does not
    suit it; and `takes_objective = True`, if the proposal follows an objective.
    """

    validation: ClassVar[str] = "K"
    """What `draws` are to `validate`, in a letter or a few words."""
    takes_objective: ClassVar[bool] = False
    """Whether the proposal follows an objective of its own choice; if not, it is fitted to the estimator's draws."""
    takes_moves: ClassVar[bool] = False
    """Whether it has local moves to choose."""

    @property
    def has_moves(self) -> bool:
        """Whether it moves latents from one visit of a row to the next."""
        return False

    @abstractmethod
    def check(self, model: Chain, proposal: Chain) -> None:
        """Refuse chains that this estimator cannot serve, before training starts."""

    @abstractmethod
    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        """What the estimator remembers of each row from one epoch to the next."""

    @abstractmethod
    def __call__(self, batch: Batch, wanted: Wanted = "both") -> Estimate:
        """Gradients with respect to theta and phi, where they are, for these rows."""

    def for_missing(self, model: Chain) -> "Estimator":
        """The estimator made fit for rows with missing values."""
        name = type(self).__name__.lower()
        raise UserError(
            f"the estimator {name} needs complete rows, but values are missing: take estimator persistent or nais"
        )

    def with_objective(self, objective: Objective) -> "Estimator":
        """The estimator with another objective for the proposal, where it takes one."""
        return self

    def for_refit(self, objective: Objective) -> "Estimator | None":
        """What fits a copy of the proposal to fixed weights by the moves of this estimator; None where it has none."""
        return None

    def validated(self, pair: Pair, x: Tensor) -> Tensor:
        """Those of the held-out rows that `validate` looks at."""
        return x

    def validate(self, pair: Pair, x: Tensor, draws: int, rng: torch.Generator) -> Marginal:
        """log p(x) of held-out rows, or of some of them, to see how learning goes: the bound L_K with K = `draws`."""
        return bound(pair, x, draws, rng)
