"""What a run has learnt: the posterior mean of the weights, samples of them, and proposals fitted to them.

`Posterior` chooses the weights that answer and fits a proposal to them; the answers are worked out in the files beside
this one.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.core.cache import Cache, NoCache
from doubly.core.documented import html_table
from doubly.core.errors import UserError
from doubly.core.random import generator
from doubly.core.ranks import ALONE, Ranks
from doubly.core.rows import StoredRows
from doubly.core.types import By, Of, Refit
from doubly.latents import (
    OBJECTIVES,
    Annealing,
    Gap,
    LikelihoodConfig,
    Marginal,
    Pair,
    RowLikelihoods,
    ShortChain,
    explained,
    is_exact,
)
from doubly.latents.completions import ImputeConfig, Moments
from doubly.layers.chain import Chain
from doubly.posterior import imputation, plots, scores
from doubly.posterior.arviz import Group, to_arviz
from doubly.posterior.codes import encode
from doubly.posterior.estimates import TRIAL_ROWS, Chosen, Estimator, ScoreConfig, larger, trial_stride
from doubly.posterior.imputation import Imputed, Incomplete, Scorer
from doubly.posterior.rows import RowFormat, check_draws
from doubly.posterior.work import Tell, Work, digest
from doubly.training.method import Method
from doubly.training.refit import Halfway, beginning, refit
from doubly.training.shards import check_shards
from doubly.training.state import moments
from doubly.training.step import rows_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FittedProposal(NamedTuple):
    """What is stored of a proposal that was fitted."""

    phi: Tensor


@dataclass(repr=False)
class Posterior:
    """Weights sampled from their posterior, ready to score rows, draw new ones, complete them and give their codes.

    `of` chooses the weights that answer: "mean" (the paper's estimator), "last" (one sample) or "ensemble" (all the
    samples: the Bayesian predictive, with the weights' uncertainty in it); "auto" is the mean of one chain, and the
    ensemble of several, whose mean is not a model.
    """

    method: Method
    phi: Tensor
    """The proposal's weights where the chain stands."""
    last_theta: Tensor
    mean_theta: Tensor | None
    thetas: list[Tensor]
    """Samples of the weights, evenly spaced over the collection."""
    train: Callable[[], Tensor | StoredRows]
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
    refit_shards: int = 0
    """In how many shards the mini-batches of that fit are cut, which ranks share; 0 takes those of the run."""
    cache: Cache = field(default_factory=NoCache)
    """Where fitted proposals are stored, and work that is not finished."""
    patience: float = 60.0
    """Seconds between two writings of unfinished work to the cache."""
    progress: Tell = lambda what, share: None
    """Told what is under way and how much of it is done; what it raises ends the work, which is stored first."""
    others: "Sequence[Posterior]" = ()
    """Other chains of the same model, whose samples belong to the ensemble."""
    estimator: Estimator | None = None
    """By which estimate rows are scored where that is left open; None tries both on some of the training rows."""
    shape: tuple[int, ...] = ()
    """Of a row, where rows are images."""
    records: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """What was recorded of each epoch; nothing where that is not known."""
    ranks: Ranks = ALONE
    """Processes of torchrun that share the work, with the answers of one: they must all ask the same."""
    check_refit: Callable[[], None] = lambda: None
    """Refuses to fit proposals where memory cannot hold a step of that."""
    _fitted: dict[str, Tensor] = field(default_factory=dict)
    _moments: Moments | None = None
    _chosen: dict[str, Estimator] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._work = Work(self.cache, self.patience, self.progress, self.ranks)
        for name, value in (("refit", self.refit_passes), ("refit_shards", self.refit_shards)):
            if value < 0:
                raise UserError(f"{name} must not be negative, got {value}")
        for other in self.others:
            if other.model != self.model:
                raise UserError(
                    f"chains of different models cannot be one ensemble: {_sketch(self.model)} and "
                    f"{_sketch(other.model)}; evaluate them one by one, or compare them"
                )
            if other.method.proposal != self.method.proposal:
                raise UserError("chains of one ensemble must have proposals of the same kind: evaluate them one by one")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._told().items())})"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._told())

    def _told(self) -> dict[str, str]:
        """What a reader wants to see of it first."""
        chains = {"chains": str(1 + len(self.others))} if self.others else {}
        return {
            "model": _sketch(self.model),
            "weights": f"{self.model.size:,}",
            "epochs": str(self.epoch),
            "samples": f"{self.collected} ({len(self.thetas)} stored)",
        } | chains

    # What is kept

    @property
    def model(self) -> Chain:
        """The generative model's architecture; `model.unflatten(theta)` names the weights."""
        return self.method.model

    @property
    def chains(self) -> "list[Posterior]":
        """This chain and the others."""
        return [self, *self.others]

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
        return [pair.theta for pair in self._ensemble()]

    def pairs(self) -> list[Pair]:
        """The same, each with the proposal of its chain; there may be none yet."""
        return [chain._pair(theta) for chain in self.chains for theta in chain.thetas]

    def draws(self) -> list[Tensor]:
        """The samples of the weights: `samples()` by its documented name."""
        return self.samples()

    def thinned(self, most: int) -> "Posterior":
        """The same with at most so many of its samples, evenly spaced over each chain; each keeps one at least."""
        each = max(1, most // (1 + len(self.others)))
        first, *rest = [
            dataclasses.replace(chain, thetas=imputation.spaced(chain.thetas, each)) for chain in self.chains
        ]
        return dataclasses.replace(first, others=rest)

    # What it answers

    def log_likelihood(
        self,
        x: np.ndarray,
        draws: int = 1000,
        of: Of = "auto",
        seed: int = 0,
        refine: int = 0,
        by: By = "auto",
        temperatures: int = 200,
        states: int = 100,
    ) -> np.ndarray:
        """log p(x), one value for each row, from below.

        By `draws` of the proposal (with `refine`, after so many steps that fit it to each row alone), by annealing
        through so many `temperatures`, or by that of these two estimates that gives more to some of the training rows
        ("auto"); or, if it is asked for, by a "short-chain" of so many `states`.
        """
        how = ScoreConfig(by, LikelihoodConfig(draws=draws, refine=refine, seed=seed), temperatures, states)
        return self.score(x, how, of).log_likelihood.cpu().numpy()

    def rows(self, x: np.ndarray) -> Tensor:
        """Rows as the model takes them; an error where they cannot be its."""
        return self._format.tensor(x)

    def score(self, x: np.ndarray, how: ScoreConfig, of: Of = "auto", samples: int | None = None) -> RowLikelihoods:
        """log p(x) of each row by the estimate that is asked for, or by the nearer one; with how far to trust it."""
        rows = self.rows(x)
        estimator = self.choose(how, rows, None, of, samples).estimator
        found = self.score_by(estimator, rows, how, of, samples)
        self.tidy()
        return found

    def choose(
        self,
        how: ScoreConfig,
        rows: Tensor,
        trial: Tensor | None,
        of: Of = "auto",
        samples: int | None = None,
    ) -> Chosen:
        """By the settings, or where they leave it open, by the larger bound on trial rows; None takes training rows."""
        if is_exact(self.model, self.method.proposal):
            return Chosen("exact")
        if how.by == "annealing" or how.by == "short-chain":
            self._check_moves(how, rows)
            return Chosen(how.by)
        if how.by == "draws" or not self.can_anneal(how, rows):
            return Chosen("draws")
        if trial is not None:
            return self._try(how, trial, of, samples)
        if self.estimator is not None:
            return Chosen(self.estimator)
        tried = f"{digest(*(pair.theta for pair in self._pairs(of, samples)))} {how}"
        if tried not in self._chosen:
            self._chosen[tried] = self._try(how, self._trial_rows(), of, samples).estimator
        return Chosen(self._chosen[tried])

    def score_by(
        self, estimator: Estimator, rows: Tensor, how: ScoreConfig, of: Of = "auto", samples: int | None = None
    ) -> RowLikelihoods:
        """log p(x) of each row by one estimate; finished work stays in the cache until `tidy`."""
        return scores.ensemble(self._members(estimator, rows, how, self._pairs(of, samples)))

    def row_likelihoods(
        self,
        x: np.ndarray,
        of: Of = "auto",
        how: LikelihoodConfig | None = None,
        samples: int | None = None,
        tidy: bool = True,
    ) -> RowLikelihoods:
        """log p(x) of each row by draws, with how far to trust it; `samples` chooses the mean of the first so many.

        Without `tidy`, finished work stays in the cache: more of the same evaluation is to come.
        """
        config = ScoreConfig(draws=how or LikelihoodConfig())
        found = self.score_by("draws", self.rows(x), config, of, samples)
        if tidy:
            self.tidy()
        return found

    def _members(
        self, estimator: Estimator, rows: Tensor, how: ScoreConfig, pairs: Sequence[Pair]
    ) -> list[RowLikelihoods]:
        """log p(x) of each row by each of these weights."""
        refitted, whose = self._refitted(pairs), _whose(pairs)
        if estimator == "short-chain":
            chain = ShortChain(how.states)  # z* is moved away from any proposal: none is fitted
            return scores.members_by_moves(pairs, whose, rows, chain, how.draws.seed, self._work)
        if estimator == "annealing":
            path = how.annealing(self.model, self.method.proposal)
            given = pairs if path.start == "prior" else refitted
            return scores.members_by_moves(given, whose, rows, path, how.draws.seed, self._work)
        return scores.members_by_draws(refitted, whose, rows, how.draws, self._work)

    def can_anneal(self, how: ScoreConfig, rows: Tensor) -> bool:
        """Whether annealing serves this model and these rows."""
        try:
            self._check_annealing(how, rows)
        except UserError:
            return False
        return True

    def _check_moves(self, how: ScoreConfig, rows: Tensor) -> None:
        """Refuse models and rows that the estimate which is asked for does not serve."""
        if how.by == "short-chain":
            ShortChain(how.states).check(self.model)
            ShortChain(how.states).check_rows(self.model, rows)
        else:
            self._check_annealing(how, rows)

    def _check_annealing(self, how: ScoreConfig, rows: Tensor) -> None:
        path = how.annealing(self.model, self.method.proposal)
        path.check(self.model, self.method.proposal)
        path.check_rows(self._pair(self.last_theta), rows, None)

    def _try(self, how: ScoreConfig, rows: Tensor, of: Of, samples: int | None) -> Chosen:
        if not self.can_anneal(how, rows):
            return Chosen("draws")
        return larger(
            lambda: self.score_by("draws", rows, how, of, samples).log_likelihood,
            lambda: self.score_by("annealing", rows, how, of, samples).log_likelihood,
        )

    def _trial_rows(self, most: int = TRIAL_ROWS) -> Tensor:
        """Some of the training rows, evenly spaced."""
        train, rng = self.train(), generator(self.phi.device, self.method.seed, "trial")
        index = torch.arange(0, len(train), trial_stride(len(train), most), device=train.device)
        return rows_at(self.method, train, index, rng)

    def anneal(
        self, x: np.ndarray, how: Annealing, of: Of = "auto", samples: int | None = None, seed: int = 0
    ) -> Marginal:
        """log p(x) by annealed importance sampling; rows that are done stay in the cache until `tidy`."""
        return scores.anneal(self._annealed(how, of, samples), self._format.tensor(x), how, seed, self._work)

    def annealing_gap(self, n: int, how: Annealing, of: Of = "auto", samples: int | None = None, seed: int = 0) -> Gap:
        """Both bounds of annealed importance sampling for n rows drawn from the model; in the cache until `tidy`."""
        return scores.annealing_gap(self._annealed(how, of, samples), n, how, seed, self._work)

    def _annealed(self, how: Annealing, of: Of, samples: int | None) -> Pair:
        (pair,) = self._pairs(of, samples)  # one set of weights: an ensemble has no single posterior of z
        how.check(self.model, self.method.proposal)
        return pair if how.start == "prior" else next(self._refitted([pair]))

    def tidy(self) -> None:
        """Drop from the cache what is finished and has been handed over."""
        self._work.tidy()

    def sample(self, n: int, of: Of = "auto", seed: int = 0) -> np.ndarray:
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
        """Rows with NaN where values are missing, completed `draws` times.

        Of an ensemble, at most `draws` samples of the weights, evenly spaced over all chains, complete each row by
        their shares p(x_observed | theta_m): a sample that explains a row makes more of its completions. A row with
        every value missing is drawn from the model itself.
        """
        check_draws(draws)
        numbers = self._format.numbers(x)
        missing = torch.as_tensor(np.isnan(numbers)).to(self.phi.device)
        rows = self._format._replace(takes_missing=True).tensor(numbers).float().masked_fill(missing, 0)
        given = Incomplete(rows, missing, self._columns())
        pairs = list(self._refitted(imputation.spaced(self._pairs(of), draws)))
        scorer = self._scorer(imputation.OBSERVED, seed, of) if len(pairs) > 1 else Scorer(1, None, seed)
        found = imputation.impute(pairs, given, draws, how or ImputeConfig(), scorer, self._work)
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
        by: By = "auto",
        temperatures: int = 200,
    ) -> np.ndarray:
        """log p(x_missing | x_observed) of each row, where the missing entries of x are known after all.

        Completions of the rows (draws, rows, D) tell the proposal where the latents are when only the observed entries
        are known. A proposal that has learnt from rows with missing values does not need them. Both log p(x) and
        log p(x_observed) are by draws or by annealing, as in `log_likelihood`.
        """
        given = Incomplete(self._format.tensor(x), torch.as_tensor(missing).to(self.phi.device), self._columns())
        guesses = torch.as_tensor(completions[: imputation.GUESSES]).float().to(self.phi.device)
        scorer = self._scorer(ScoreConfig(by, LikelihoodConfig(draws=draws), temperatures), seed, of)
        pairs = list(self._refitted(self._pairs(of)))
        return imputation.log_conditional(pairs, given, guesses, scorer, self.ranks).cpu().numpy()

    def _scorer(self, how: ScoreConfig, seed: int, of: Of) -> Scorer:
        """By what rows with and without missing values are scored; annealing has to sum these out."""
        if how.by == "short-chain":
            raise UserError("a short chain scores whole rows only, got by='short-chain': take draws or annealing")
        path = how.annealing(self.model, self.method.proposal)
        anneals = self.model.layers[0].factorised and path.serves(self.model, self.method.proposal)
        if how.by == "annealing" and not anneals:
            path.check(self.model, self.method.proposal)
            raise UserError(
                "annealing sums missing values out where they are independent given the latents, got a model of "
                f"{_sketch(self.model)}: take draws"
            )
        layer = self._format.layer
        one = self._format.tensor(layer.nearest(torch.zeros(1, layer.n_out)).numpy())  # any row that there can be
        chosen = anneals and self.choose(how, one, None, of).estimator == "annealing"
        self.tidy()  # of the trial
        return Scorer(how.draws.draws, path if chosen else None, seed)

    def encode(self, x: np.ndarray, draws: int = 100, of: Of = "auto", seed: int = 0) -> list[np.ndarray]:
        """E[z | x] for each latent layer, from the data upward; of an ensemble, by the shares p(x | theta_m)."""
        check_draws(draws)
        if self.others:
            raise UserError("codes of several chains cannot be averaged, for their latent units need not correspond")
        pairs, rows, bounds = self._pairs(of), self._format.tensor(x), None
        if len(pairs) > 1:
            how = ScoreConfig(draws=LikelihoodConfig(seed=seed))
            members = self._members(self.choose(how, rows, None, of).estimator, rows, how, pairs)
            bounds = torch.stack([member.log_likelihood for member in members])
            self.tidy()
        rng = generator(self.phi.device, seed, "encode")
        found = encode(list(self._refitted(pairs)), rows, draws, rng, bounds)
        return [layer.cpu().numpy() for layer in found]

    def explained(
        self, x: np.ndarray | None = None, draws: int = 100, of: Of = "mean", seed: int = 0
    ) -> list[np.ndarray]:
        """For each unit of each latent layer, the share of its variance that the row explains (`latents.explained`).

        A unit of which rows explain no more than 0.01 is inactive: it says nothing of them. Without x, 200 of the
        training rows are taken.
        """
        check_draws(draws)
        if len(pairs := self._pairs(of)) > 1:
            raise UserError("units of several samples of the weights need not correspond: ask for the mean or the last")
        rng = generator(self.phi.device, seed, "explained")
        rows = self._trial_rows(200) if x is None else self._format.tensor(x)
        (pair,) = self._refitted(pairs)
        return [layer.cpu().numpy() for layer in explained(pair, rows.float(), draws, rng)]

    def to_arviz(self, stats: Group | None = None) -> Any:
        """The samples of the weights for ArviZ: variables such as x.W, of (chain, draw, …), in the group `posterior`.

        It is an InferenceData for ArviZ 0.x, and a DataTree for 1.x; `stats` are its group `sample_stats`. Latent units
        of different chains need not correspond, so that R-hat of a single weight says little.
        """
        return to_arviz(self.model, [chain.thetas for chain in self.chains], self.method.window, stats)

    # Pictures

    def plot_samples(self, n: int = 100, ax: "Axes | None" = None, **options: Any) -> "Axes":
        """Draw n new rows: a grid of images, or a map with a line for each row. Options are those of `sample`."""
        return plots.samples(self.sample(n, **options), self.shape, ax)

    def plot_weights(self, most: int = plots.MOST_UNITS, ax: "Axes | None" = None) -> "Axes":
        """Draw what each unit of the first latent layer adds to the data's log-odds, the largest first."""
        theta = self.last() if self.mean_theta is None or self.others else self.mean()
        return plots.weights(self.model, theta, self.shape, most, ax)

    def plot_training(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the validation log-likelihood after each epoch, and when samples were collected."""
        return plots.training(self.records(), ax)

    def plot_completions(
        self, x: np.ndarray | None = None, n: int = 10, draws: int = 3, ax: "Axes | None" = None, **options: Any
    ) -> "Axes":
        """Draw rows with missing values (NaN) and completions of them; without x, training rows cut in half.

        Options are those of `impute`.
        """
        if x is None:
            white = 255 if self.method.dynamic else 1
            train = self.train()
            some = train[torch.arange(min(n, len(train)), device=train.device)]
            x = plots.lower_half_missing(some.cpu().numpy() / white)
        given = np.asarray(x, dtype=float)[:n]
        completed = self.impute(given, draws=draws, **options).completions
        return plots.completions(given, np.asarray(completed), self.shape, ax)

    # The weights that answer, and proposals fitted to them

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
            "auto": self._ensemble if self.others else lambda: [self._pair(self.mean(samples))],
            "mean": lambda: [self._pair(self.mean(samples))],
            "last": lambda: [chain._pair(chain.last()) for chain in self.chains],
            "ensemble": self._ensemble,
        }
        if of not in choices:
            raise UserError(f"of must be one of {', '.join(choices)}, got {of!r}")
        if samples is not None and (of not in ("auto", "mean") or self.others):
            raise UserError(f"a number of samples chooses a mean, got of {of!r}: leave one of the two out")
        return choices[of]()

    def _ensemble(self) -> list[Pair]:
        pairs = self.pairs()
        if not pairs:
            raise UserError("this run has stored no samples of the weights: resume it, or ask for the last (--of last)")
        return pairs

    def _refitted(self, pairs: Sequence[Pair]) -> Iterator[Pair]:
        """The same with proposals fitted to them, each when its turn comes.

        Ranks share the shards of each fit; where there are none, or fits enough for all ranks, each does some fits.
        """
        named = list(zip(pairs, _whose(pairs), strict=True))
        if self.ranks.size > 1 and (self._shards == 1 or len(pairs) >= self.ranks.size):
            alone = dataclasses.replace(self._work, ranks=ALONE)
            fitted = self.ranks.shared(len(pairs), lambda i: self._fitted_phi(*named[i], alone))
            self._fitted |= {self._proposal_name(pair): phi for pair, phi in zip(pairs, fitted, strict=True)}
        for pair, whose in named:
            yield pair._replace(phi=self._fitted_phi(pair, whose, self._work))

    @property
    def _shards(self) -> int:
        """In how many shards a mini-batch is cut while a proposal is fitted."""
        return self.refit_shards or self.method.shards

    def _fitted_phi(self, pair: Pair, whose: str, work: Work) -> Tensor:
        """A proposal fitted to these weights, remembered and stored."""
        name = self._proposal_name(pair)
        if name not in self._fitted:
            found = work.load(name, FittedProposal, FittedProposal(pair.phi))
            if found is None:
                found = FittedProposal(self._refit(pair, f"{name}-unfinished", whose, work))
                work.save(name, found)
                work.drop(f"{name}-unfinished")
            self._fitted[name] = found.phi
        return self._fitted[name]

    def _proposal_name(self, pair: Pair) -> str:
        objective = f"-{self.refit_objective}" if self.refit_objective else ""
        moved = "-moved" if self.method.refitter.has_moves else ""  # until version 0.2 none had
        shards = f"-{self._shards}-shards" if self._shards > 1 else ""
        return f"posterior/proposal-{digest(pair.theta, pair.phi)}-{self.refit_passes}{objective}{moved}{shards}"

    def adopt(self, theta: Tensor, phi: Tensor) -> None:
        """Take a proposal that was fitted to these weights elsewhere."""
        self._fitted[self._proposal_name(self._pair(theta))] = phi

    def _refit(self, pair: Pair, name: str, whose: str, work: Work) -> Tensor:
        """Fit a proposal, going on from what an earlier attempt has left."""
        self.check_refit()
        save, passes = work.saver(name), self.refit_passes
        method = dataclasses.replace(self.method, shards=self._shards)
        if self.refit_objective is not None:
            refitter = method.refitter.with_objective(OBJECTIVES.make(self.refit_objective))
            method = dataclasses.replace(method, refitter=refitter)

        def watch(halfway: Halfway) -> None:
            save(halfway, f"fitting the proposal{whose}, pass {halfway.done} of {passes}", halfway.done / passes)

        train = self.train()
        check_shards(method.shards, len(train), method.batch)
        halfway = work.load(name, Halfway, beginning(method, pair.phi, train))
        return refit(method, pair.theta, pair.phi, train, passes, watch, halfway, work.ranks)


def together(posteriors: Sequence[Posterior]) -> Posterior:
    """Several as one, whose ensemble has the samples of all their chains."""
    first, *rest = [chain for each in posteriors for chain in each.chains]
    return dataclasses.replace(first, others=[dataclasses.replace(chain, others=()) for chain in rest])


def _whose(pairs: Sequence[Pair]) -> list[str]:
    """What tells each of several pairs from the others in messages; nothing where there is one."""
    return [f" (member {i + 1} of {len(pairs)})" if len(pairs) > 1 else "" for i in range(len(pairs))]


def _sketch(model: Chain) -> str:
    return "-".join(f"{type(layer).__name__}{layer.n_out}" for layer in model.layers)
