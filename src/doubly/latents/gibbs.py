"""Gibbs sampling of the latent variables: persistent chains for every row, one sweep for each gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.batch import Batch, Memory, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.importance import Marginal
from doubly.latents.objectives import Objective
from doubly.latents.pair import Pair
from doubly.latents.persistent import Persistent
from doubly.latents.sweep import log_odds
from doubly.layers import Chain


@dataclass(frozen=True)
class Gibbs(Estimator):
    """Persistent Gibbs chains for every row, for models of sbn and darn layers: `persistent` without fresh draws.

    With z_s, s = 1…S, the states of a row's chains after a sweep, which leaves p(z | x, theta) as it is:
    the gradient for theta is 1/S sum_s grad log p(x, z_s | theta), that for phi is 1/S sum_s grad log q(z_s | x; phi),
    the inclusive KL divergence. A sweep goes from the bottom layer to the top and draws every unit in turn, given all
    others: unit k of layer l with log-odds

    (pre-activation of z^l_k from above) + log p(z^{l-1}, z^l_{-k} | z^l_k = 1) - log p(z^{l-1}, z^l_{-k} | z^l_k = 0)
    """

    validation = Persistent.validation
    draws: int = 5
    """Chains for each row."""
    sweeps: int = 1
    """Sweeps before each gradient for theta."""
    valid_rows: int = 200
    """At most so many rows, evenly spaced, by which an epoch is validated."""

    def __post_init__(self) -> None:
        for name in ("draws", "sweeps", "valid_rows"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} of the Gibbs estimator must be at least 1, got {getattr(self, name)}")

    def check(self, model: Chain, proposal: Chain) -> None:
        log_odds(model, torch.zeros(model.size))

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        log_odds(chain, torch.zeros(chain.size))
        return self._states.init(chain, n_data, rng)

    def __call__(self, batch: Batch, wanted: Wanted = "both") -> Estimate:
        """Gradients with the chains of these rows, which take a step unless only that for phi is wanted."""
        return self._states(batch, wanted)

    def validate(self, pair: Pair, x: Tensor, draws: int, rng: torch.Generator) -> Marginal:
        return self._states.validate(pair, x, draws, rng)

    def for_refit(self, objective: Objective) -> Estimator | None:
        return self._states.for_refit(objective)

    @property
    def _states(self) -> Persistent:
        return Persistent(0, chains=self.draws, sweeps=self.sweeps, moves="gibbs", valid_rows=self.valid_rows)
