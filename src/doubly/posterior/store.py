"""What a run has learnt: the posterior mean of the weights, samples of them, and proposals fitted to them.

`Posterior` chooses the weights that answer and fits a proposal to them; the answers are worked out in the files beside
this one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.core.cache import Cache, NoCache
from doubly.core.errors import UserError
from doubly.core.random import generator
from doubly.core.types import Of, Refit
from doubly.latents import OBJECTIVES, Annealing, Gap, LikelihoodConfig, Marginal, Pair, RowLikelihoods
from doubly.latents.completions import ImputeConfig, Moments
from doubly.layers.chain import Chain
from doubly.posterior import imputation, scores
from doubly.posterior.arviz import to_arviz
from doubly.posterior.codes import encode
from doubly.posterior.imputation import Imputed
from doubly.posterior.rows import RowFormat, check_draws
from doubly.posterior.work import Tell, Work, digest
from doubly.training.method import Method
from doubly.training.refit import Halfway, refit
from doubly.training.state import moments


class FittedProposal(NamedTuple):
    """What is stored of a proposal that was fitted."""

    phi: Tensor


@dataclass
class Posterior:
    """Weights sampled from their posterior, ready to score rows, draw new ones, complete them and give their codes.

    `of` chooses the weights that answer: "mean" (the paper's estimator), "last" (one sample) or "ensemble" (all the
    samples: the Bayesian predictive, with the weights' uncertainty in it).
    """

    method: Method
    phi: Tensor
    """The proposal's weights where the chain stands."""
    last_theta: Tensor
    mean_theta: Tensor | None
    thetas: list[Tensor]
    """Samples of the weights, evenly spaced over the collection."""
    train: Callable[[], Tensor]
    """The training rows, to which proposals are fitted."""
    means: dict[int, Tensor] = field(default_factory=dict)
    """Means of the first so many samples, where they were stored."""
    epoch: int = 0
    """How long the chain had run."""
    collected: int = 0
    """How many samples the mean is of."""
    refit_passes: int = 100
    """Passes over the training rows that fit a proposal to the weights that answer."""
    refit_objective: Refit | None = None
    """What the proposal ascends then: wake, unless the run's own objective goes through the draws."""
    cache: Cache = field(default_factory=NoCache)
    """Where fitted proposals are stored, and work that is not finished."""
    patience: float = 60.0
    """Seconds between two writings of unfinished work to the cache."""
    progress: Tell = lambda what, share: None
    """Told what is under way and how much of it is done; what it raises ends the work, which is stored first."""
    others: "Sequence[Posterior]" = ()
    """Other chains of the same model, whose samples belong to the ensemble."""
    _fitted: dict[str, Tensor] = field(default_factory=dict)
    _moments: Moments | None = None

    def __post_init__(self) -> None:
        self._work = Work(self.cache, self.patience, self.progress)
        if self.refit_passes < 0:
            raise UserError(f"refit must not be negative, got {self.refit_passes}")
        for other in self.others:
            if other.model != self.model:
                raise UserError(
                    f"chains of different models cannot be one ensemble: {_sketch(self.model)} and "
                    f"{_sketch(other.model)}; evaluate them one by one, or compare them"
                )
            if other.method.proposal != self.method.proposal:
                raise UserError("chains of one ensemble must have proposals of the same kind: evaluate them one by one")

    # What is kept

    @property
    def model(self) -> Chain:
        """The generative model's architecture; `model.unflatten(theta)` names the weights."""
        return self.method.model

    def mean(self, samples: int | None = None) -> Tensor:
        """The posterior mean of the weights, over all the samples or over the first so many."""
        if self.others:
            raise UserError(
                "the mean over several chains is not a model, for their latent units need not correspond: "
                "ask for the ensemble (--of ensemble)"
            )
        if self.mean_theta is None:
            raise UserError("this run has collected no samples yet: resume it, or ask for the last sample (--of last)")
        if samples is None or samples == self.collected:
            return self.mean_theta
        if samples not in self.means:
            there = ", ".join(str(number) for number in sorted({*self.means, self.collected}))
            raise UserError(f"this run has means of the first {there} samples, not of {samples}")
        return self.means[samples]

    def last(self) -> Tensor:
        """The weights where the chain stands."""
        return self.last_theta

    def samples(self) -> list[Tensor]:
        """Samples of the weights (or averages over windows), evenly spaced over the collection, of all the chains."""
        return [pair.theta for pair in self._pairs("ensemble")]

    def draws(self) -> list[Tensor]:
        """The samples of the weights: `samples()` by its documented name."""
        return self.samples()

    # What it answers

    def log_likelihood(
        self, x: np.ndarray, draws: int = 1000, of: Of = "mean", seed: int = 0, refine: int = 0
    ) -> np.ndarray:
        """log p(x), one value for each row; with `refine`, after so many steps that fit the proposal to it alone."""
        how = LikelihoodConfig(draws=draws, refine=refine, seed=seed)
        return self.row_likelihoods(x, of, how).log_likelihood.cpu().numpy()

    def row_likelihoods(
        self,
        x: np.ndarray,
        of: Of = "mean",
        how: LikelihoodConfig | None = None,
        samples: int | None = None,
        tidy: bool = True,
    ) -> RowLikelihoods:
        """log p(x) of each row, with how far to trust it; `samples` chooses the mean of the first so many.

        Without `tidy`, finished work stays in the cache: more of the same evaluation is to come.
        """
        rows, pairs = self._format.tensor(x), self._pairs(of, samples)
        how = how or LikelihoodConfig()
        found = scores.row_likelihoods(self._refitted(pairs), _whose(pairs), rows, how, self._work)
        if tidy:
            self.tidy()
        return found

    def anneal(
        self, x: np.ndarray, how: Annealing, of: Of = "mean", samples: int | None = None, seed: int = 0
    ) -> Marginal:
        """log p(x) by annealed importance sampling; rows that are done stay in the cache until `tidy`."""
        return scores.anneal(self._annealed(how, of, samples), self._format.tensor(x), how, seed, self._work)

    def annealing_gap(self, n: int, how: Annealing, of: Of = "mean", samples: int | None = None, seed: int = 0) -> Gap:
        """Both bounds of annealed importance sampling for n rows drawn from the model; in the cache until `tidy`."""
        return scores.annealing_gap(self._annealed(how, of, samples), n, how, seed, self._work)

    def _annealed(self, how: Annealing, of: Of, samples: int | None) -> Pair:
        (pair,) = self._pairs(of, samples)  # one set of weights: an ensemble has no single posterior of z
        how.check(self.model, self.method.proposal)
        return Pair.alone(pair.model, pair.theta) if how.start == "prior" else next(self._refitted([pair]))

    def tidy(self) -> None:
        """Drop from the cache what is finished and has been handed over."""
        self._work.tidy()

    def sample(self, n: int, of: Of = "mean", seed: int = 0) -> np.ndarray:
        """n new rows; from an ensemble, each row with weights drawn anew."""
        if n < 1:
            raise UserError(f"the number of rows to sample must be at least 1, got {n}")
        rng, pairs = generator(self.phi.device, seed, "sample"), self._pairs(of)
        which = torch.randint(len(pairs), (n,), generator=rng, device=rng.device)
        rows = torch.empty(n, self._format.layer.n_out, device=rng.device)
        for m, pair in enumerate(pairs):
            if count := int((which == m).sum()):
                rows[which == m] = pair.model.sample(pair.theta, count, rng)[0]
        return self._format.array(rows)

    def impute(
        self, x: np.ndarray, draws: int = 20, how: ImputeConfig | None = None, of: Of = "ensemble", seed: int = 0
    ) -> Imputed:
        """Rows with NaN where values are missing, completed `draws` times, by chains that share the weights asked for.

        Every sample of the weights has an equal share of the chains, as if one row told nothing of the weights. A row
        with every value missing is drawn from the model itself.
        """
        check_draws(draws)
        given = self._format.numbers(x)
        missing = np.isnan(given)
        rows = self._format.tensor(np.where(missing, 0, given)).float()
        mask, pairs = torch.as_tensor(missing).to(rows.device), self._pairs(of)[:draws]
        found = imputation.impute(
            self._refitted(pairs), imputation.shares(draws, len(pairs)), rows, mask, self._columns(),
            how or ImputeConfig(), seed, lambda share: self.progress("imputing", share),
        )  # fmt: skip
        spread = found.rows.std(0, correction=0)
        return Imputed(self._format.array(found.rows), found.expected.mean(0).cpu().numpy(), spread.cpu().numpy())

    def log_conditional(
        self,
        x: np.ndarray,
        missing: np.ndarray,
        completions: np.ndarray,
        draws: int = 1000,
        of: Of = "ensemble",
        seed: int = 0,
    ) -> np.ndarray:
        """log p(x_missing | x_observed) of each row, where the missing entries of x are known after all.

        Completions of the rows (draws, rows, D) tell the proposal where the latents are when only the observed entries
        are known. A proposal that has learnt from rows with missing values does not need them.
        """
        rows, mask = self._format.tensor(x), torch.as_tensor(missing).to(self.phi.device)
        guesses = torch.as_tensor(completions[: imputation.GUESSES]).float().to(self.phi.device)
        pairs = self._refitted(self._pairs(of))
        return imputation.log_conditional(pairs, rows, mask, guesses, draws, seed).cpu().numpy()

    def encode(self, x: np.ndarray, draws: int = 100, of: Of = "mean", seed: int = 0) -> list[np.ndarray]:
        """E[z | x] for each latent layer, from the data upward."""
        check_draws(draws)
        if self.others:
            raise UserError("codes of several chains cannot be averaged, for their latent units need not correspond")
        pairs, rng = list(self._refitted(self._pairs(of))), generator(self.phi.device, seed, "encode")
        return [layer.cpu().numpy() for layer in encode(pairs, self._format.tensor(x), draws, rng)]

    def to_arviz(self) -> Any:
        """The samples of the weights as an arviz.InferenceData: variables such as x.W, of (chain, draw, …).

        Latent units of different chains need not correspond, so that R-hat of a single weight says little.
        """
        return to_arviz(self.model, [chain.thetas for chain in self._chains], self.method.window)

    # The weights that answer, and proposals fitted to them

    @property
    def _chains(self) -> "list[Posterior]":
        return [self, *self.others]

    @property
    def _format(self) -> RowFormat:
        return RowFormat(self.model.layers[0], self.method.proposal.masked, self.phi.device)

    def _columns(self) -> Moments:
        """The mean and the spread of each column of the training rows."""
        if self._moments is None:
            self._moments = moments(self.method, self.train())
        return self._moments

    def _pair(self, theta: Tensor) -> Pair:
        """Weights of this chain, with the proposal from which a better one is fitted to them."""
        return Pair(self.model, theta, self.method.proposal, self.phi)

    def _pairs(self, of: Of, samples: int | None = None) -> list[Pair]:
        """The weights asked for, with proposals that are not fitted to them yet."""
        choices: dict[str, Callable[[], list[Pair]]] = {
            "mean": lambda: [self._pair(self.mean(samples))],
            "last": lambda: [chain._pair(chain.last()) for chain in self._chains],
            "ensemble": self._ensemble,
        }
        if of not in choices:
            raise UserError(f"of must be one of {', '.join(choices)}, got {of!r}")
        if samples is not None and of != "mean":
            raise UserError(f"a number of samples chooses a mean, got of {of!r}: leave one of the two out")
        return choices[of]()

    def _ensemble(self) -> list[Pair]:
        pairs = [chain._pair(theta) for chain in self._chains for theta in chain.thetas]
        if not pairs:
            raise UserError("this run has stored no samples of the weights: resume it, or ask for the last (--of last)")
        return pairs

    def _refitted(self, pairs: Sequence[Pair]) -> Iterator[Pair]:
        """The same with proposals fitted to them, each when its turn comes."""
        for pair, whose in zip(pairs, _whose(pairs), strict=True):
            yield pair._replace(phi=self._fitted_phi(pair, whose))

    def _fitted_phi(self, pair: Pair, whose: str) -> Tensor:
        """A proposal fitted to these weights, remembered and stored."""
        objective = f"-{self.refit_objective}" if self.refit_objective else ""
        name = f"posterior/proposal-{digest(pair.theta, pair.phi)}-{self.refit_passes}{objective}"
        if name not in self._fitted:
            found = self._work.load(name, FittedProposal)
            if found is None:
                found = FittedProposal(self._refit(pair, f"{name}-unfinished", whose))
                self._work.save(name, found)
                self.cache.drop(f"{name}-unfinished")
            self._fitted[name] = found.phi
        return self._fitted[name]

    def _refit(self, pair: Pair, name: str, whose: str) -> Tensor:
        """Fit a proposal, going on from what an earlier attempt has left."""
        save, passes, method = self._work.saver(name), self.refit_passes, self.method
        if self.refit_objective is not None:
            refitter = method.refitter.with_objective(OBJECTIVES.make(self.refit_objective))
            method = dataclasses.replace(method, refitter=refitter)

        def watch(halfway: Halfway) -> None:
            save(halfway, f"fitting the proposal{whose}, pass {halfway.done} of {passes}", halfway.done / passes)

        halfway = self._work.load(name, Halfway)
        return refit(method, pair.theta, pair.phi, self.train(), passes, watch, halfway)


def _whose(pairs: Sequence[Pair]) -> list[str]:
    """What tells each of several pairs from the others in messages; nothing where there is one."""
    return [f" (member {i + 1} of {len(pairs)})" if len(pairs) > 1 else "" for i in range(len(pairs))]


def _sketch(model: Chain) -> str:
    return "-".join(f"{type(layer).__name__}{layer.n_out}" for layer in model.layers)
