"""What an estimator is: gradients on a mini-batch, with whatever it remembers of the rows."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from doubly.latents.batch import Memory, Visit, Wanted
from doubly.latents.importance import Marginal
from doubly.latents.likelihood import log_marginal
from doubly.layers.chain import Chain


class Estimate(NamedTuple):
    """Gradients to climb, per datum (the mean over the rows); what was not wanted is empty."""

    theta_grad: Tensor
    phi_grad: Tensor
    memory: Memory
    stats: dict[str, Tensor]


class Estimator(ABC):
    """Estimates the gradients of log p(x | theta) and of the proposal's objective on a mini-batch."""

    validation: ClassVar[str] = "K"
    """What `draws` are to `validate`, in a letter or a few words."""

    @abstractmethod
    def check(self, model: Chain, proposal: Chain) -> None:
        """Refuse chains that this estimator cannot serve, before training starts."""

    @abstractmethod
    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        """What the estimator remembers of each row between visits."""

    @abstractmethod
    def __call__(self, visit: Visit, wanted: Wanted = "both") -> Estimate:
        """Gradients with respect to theta and phi, where they are, for these rows."""

    def validate(
        self, model: Chain, theta: Tensor, proposal: Chain, phi: Tensor, x: Tensor, draws: int, rng: torch.Generator
    ) -> Marginal:
        """log p(x) of held-out rows, or of some of them, to see how learning goes: the bound L_K with K = `draws`."""
        return log_marginal(model, theta, proposal, phi, x, draws, rng)
