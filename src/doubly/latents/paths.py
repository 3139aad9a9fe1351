"""Paths of annealing: laws f_beta(z), 0 <= beta <= 1, from one that can be drawn from to p(x, z).

From the prior: f_beta = p(z) p(x | z)^beta. From the proposal: f_beta = q(z | x)^(1 - beta) p(x, z)^beta, which is
nearer to the posterior from the beginning, so that few temperatures go far. Both start normalised and end in p(x, z).

Values of x may be missing (NaN) where the data layer is factorised: then both end in p(x_observed, z), whose sum over z
is p(x_observed). A masked proposal knows of missing values; any other one is shown completed rows, whatever they are.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.kernels import bernoulli
from doubly.latents.pair import Pair
from doubly.latents.sweep import Odds, Powers, is_swept, log_odds, sweep_path
from doubly.layers import Chain, LogOdds, Values

Start = Literal["prior", "proposal"]


@dataclass(frozen=True)
class Path(ABC):
    """The laws of the latents z (chains, rows, H) of some rows x."""

    pair: Pair
    x: Tensor
    """Rows, with NaN where values are missing."""
    seen: Tensor | None = None
    """What a proposal that is not masked sees in the place of x."""
    needs: ClassVar[str]
    """Which layers its moves serve, in words."""

    @classmethod
    @abstractmethod
    def is_swept(cls, model: Chain, proposal: Chain) -> bool:
        """Whether Gibbs sweeps serve it."""

    @classmethod
    def can_start(cls, model: Chain, proposal: Chain) -> bool:
        """Whether there is a law to start from."""
        return True

    @cached_property
    def has_missing(self) -> bool:
        """Whether values of any of these rows are missing."""
        return bool(self.x.isnan().any())

    def data_logits(self, latents: Values) -> Tensor | None:
        """The logits of complete rows given z1, where they are linear in it alone: a sweep begins with the same ones.

        Those of the latents that were asked for last are kept.
        """
        odds = self._data_odds
        if odds is None or not latents:
            return None
        if self._last.get("latents") is not latents[0]:
            self._last.update(latents=latents[0], logits=F.linear(latents[0], odds.given, odds.bias))
        return self._last["logits"]

    @cached_property
    def _last(self) -> dict[str, Tensor]:
        return {}

    @cached_property
    def _data_odds(self) -> LogOdds | None:
        """The log-odds of a factorised data layer, whose weights lie in memory as sweeps read them."""
        layer, params = self.pair.data_layer
        odds = layer.linear_log_odds(params)
        if odds is None or odds.before is not None or self.has_missing:
            return None
        return odds._replace(given=odds.given.T.contiguous().T)

    def _with_data(self, odds: Odds) -> Odds:
        """With what is the same for all sweeps of these rows."""
        data = self._data_odds
        if data is None:
            return odds
        return odds._replace(model=[data, *odds.model[1:]], of_data=F.linear(self.x, data.given.T))

    def log_prob_data(self, latents: Values) -> Tensor:
        """log p(x_observed | z) (chains, rows)."""
        logits = self.data_logits(latents)
        if logits is not None:
            return bernoulli.log_prob(logits, self.x)
        (layer, params), given = self.pair.data_layer, self.pair.given(latents)
        given = given if latents else given.expand(1, 1, 0)  # without latents there is one chain, which knows all
        log_prob = layer.log_prob_observed if self.has_missing else layer.log_prob
        return log_prob(params, self.x, given)

    @abstractmethod
    def draw(self, chains: int, rng: torch.Generator) -> Values:
        """z ~ f_0."""

    @abstractmethod
    def log_ratio(self, latents: Values) -> Tensor:
        """log f_1 - log f_0 (chains, rows): what a temperature adds to the log-weight, for each unit of beta."""

    @abstractmethod
    def log_density(self, latents: Values, beta: float) -> Tensor:
        """log f_beta (chains, rows)."""

    @abstractmethod
    def sweep(self, latents: Values, beta: float, rng: torch.Generator) -> Values:
        """A Gibbs sweep that leaves f_beta as it is."""


@dataclass(frozen=True)
class FromPrior(Path):
    """p(z) p(x | z)^beta."""

    needs = "sbn and darn layers only, or real latent layers (gaussian, normal) only"

    @classmethod
    def is_swept(cls, model: Chain, proposal: Chain) -> bool:
        return is_swept(model)

    @cached_property
    def _prior(self) -> tuple[Chain, Tensor]:
        """The chain of the latent layers, and its weights, which come after those of the data layer."""
        chain = Chain(self.pair.model.layers[1:])
        return chain, self.pair.theta[self.pair.model.size - chain.size :]

    @cached_property
    def odds(self) -> Odds:
        """Those of the model, as sweeps take them."""
        return self._with_data(Odds(log_odds(self.pair.model, self.pair.theta)))

    def draw(self, chains: int, rng: torch.Generator) -> Values:
        chain, theta = self._prior
        drawn = chain.sample(theta, chains * len(self.x), rng)
        return tuple(value.view(chains, len(self.x), value.shape[-1]) for value in drawn)

    def log_ratio(self, latents: Values) -> Tensor:
        return self.log_prob_data(latents)

    def log_density(self, latents: Values, beta: float) -> Tensor:
        chain, theta = self._prior
        return chain.log_prob(theta, latents) + beta * self.log_ratio(latents)

    def sweep(self, latents: Values, beta: float, rng: torch.Generator) -> Values:
        logits = self.data_logits(latents)
        return sweep_path(self.odds, self.x, latents, rng, Powers(data=beta), logits=logits)


@dataclass(frozen=True)
class FromProposal(Path):
    """q(z | x)^(1 - beta) p(x, z)^beta."""

    needs = "sbn and darn layers only, in model and proposal, or real latent layers (gaussian, normal) only"

    @classmethod
    def is_swept(cls, model: Chain, proposal: Chain) -> bool:
        return is_swept(model) and is_swept(proposal)

    @classmethod
    def can_start(cls, model: Chain, proposal: Chain) -> bool:
        return len(proposal.layers) == len(model.layers) - 1

    @cached_property
    def _given(self) -> Tensor:
        """What the proposal is given."""
        return self.x if self.seen is None or self.pair.proposal.masked else self.seen

    @cached_property
    def odds(self) -> Odds:
        """Those of model and proposal, as sweeps take them."""
        proposal = log_odds(self.pair.proposal, self.pair.phi)[::-1]  # which ends in the top layer
        return self._with_data(Odds(log_odds(self.pair.model, self.pair.theta), proposal))

    def draw(self, chains: int, rng: torch.Generator) -> Values:
        return self.pair.proposal.draw(self.pair.phi, self._given, rng, chains).values[::-1]

    def log_ratio(self, latents: Values) -> Tensor:
        return self._log_p(latents) - self._log_q(latents)

    def log_density(self, latents: Values, beta: float) -> Tensor:
        return (1 - beta) * self._log_q(latents) + beta * self._log_p(latents)

    def sweep(self, latents: Values, beta: float, rng: torch.Generator) -> Values:
        seen = self.pair.proposal.seen(self._given)
        powers, logits = Powers(beta, beta, 1 - beta), self.data_logits(latents)
        return sweep_path(self.odds, self.x, latents, rng, powers, seen=seen, logits=logits)

    def _log_p(self, latents: Values) -> Tensor:
        return self.pair.model.log_prob_latents(self.pair.theta, latents) + self.log_prob_data(latents)

    def _log_q(self, latents: Values) -> Tensor:
        return self.pair.proposal.log_prob(self.pair.phi, latents[::-1], self._given)


PATHS: dict[Start, type[Path]] = {"prior": FromPrior, "proposal": FromProposal}
