"""What a run has learnt: the posterior mean of the weights, draws of them, and the questions they answer."""

import dataclasses
import functools
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.core.cache import Cache, NoCache, Tensors
from doubly.core.errors import UserError
from doubly.core.random import generator
from doubly.core.types import Of, Refit
from doubly.latents import (
    NAIS,
    OBJECTIVES,
    Annealing,
    Gap,
    LikelihoodConfig,
    Marginal,
    Mean,
    Pair,
    PartialSums,
    RowLikelihoods,
    log_likelihood,
    normalised,
    propose,
)
from doubly.latents.completions import ChainCompletions, ImputeConfig, Moments, impute, log_observed
from doubly.layers.chain import Chain
from doubly.posterior.scores import ensemble
from doubly.training.method import Method
from doubly.training.refit import refit
from doubly.training.state import moments

LARGEST = float(np.finfo(np.float32).max)
ANNEALED = 500  # rows at a time, which are lost if they are not waited for
MOST_CELLS = 2**24  # candidates x chains x rows x columns that are filled in at a time


class Imputed(NamedTuple):
    """Completed rows."""

    completions: np.ndarray
    """Completed rows (draws, rows, D): each is a draw given what was there."""
    mean: np.ndarray
    """What is expected of each entry (rows, D); of a binary one, the probability that it is 1."""
    spread: np.ndarray
    """The standard deviation of each entry over the completions; 0 where it was there."""


class Member(NamedTuple):
    """Weights of the model, and the weights of a proposal from which a better one is fitted to them."""

    theta: Tensor
    phi: Tensor


@dataclass
class Posterior:
    """Weights sampled from their posterior, ready to score rows, draw new ones and give hidden codes.

    `of` chooses the weights: "mean" (the paper's estimator), "last" (one draw) or "ensemble" (all the draws kept:
    the Bayesian predictive, with the weights' uncertainty in it).
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
    """Means of the first so many samples, where they were kept."""
    epoch: int = 0
    """How long the chain had run."""
    collected: int = 0
    """How many samples the mean is of."""
    refit_passes: int = 100
    refit_objective: Refit | None = None
    """What the proposal climbs then: wake unless the run's own objective goes through the draws."""
    cache: Cache = field(default_factory=NoCache)
    patience: float = 60.0
    """Seconds between two writings of unfinished work to the shelf."""
    progress: Callable[[str, float], None] = lambda what, share: None
    """Told what is under way, and how much of it is done; what it raises ends the work, which is put on the shelf."""
    others: "Sequence[Posterior]" = ()
    """Other chains of the same model, whose samples belong to the ensemble."""
    _fitted: dict[str, Tensor] = field(default_factory=dict)
    _columns: Moments | None = None
    _finished: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.refit_passes < 0:
            raise UserError(f"refit must not be negative, got {self.refit_passes}")
        for other in self.others:
            if other.method.proposal != self.method.proposal and other.model == self.model:
                raise UserError("chains of one ensemble must have proposals of the same kind: evaluate them one by one")
            if other.model != self.model:
                raise UserError(
                    f"chains of different models cannot be one ensemble: {_sketch(self.model)} and "
                    f"{_sketch(other.model)}; evaluate them one by one, or compare them"
                )

    @property
    def model(self) -> Chain:
        """The generative model's architecture; `model.unflatten(theta)` names the weights."""
        return self.method.model

    def mean(self, samples: int | None = None) -> Tensor:
        """The posterior mean of the weights, over all the samples or over the first so many."""
        if self.others:
            raise UserError(
                "the mean over several chains is not a model, for their hidden units need not correspond: "
                "ask for the ensemble (--of ensemble)"
            )
        if self.mean_theta is None:
            raise UserError("this run has collected no samples yet: resume it, or ask for the last draw (--of last)")
        if samples is None or samples == self.collected:
            return self.mean_theta
        if samples not in self.means:
            there = sorted({*self.means, self.collected})
            raise UserError(f"this run has means of the first {_list(there)} samples, not of {samples}")
        return self.means[samples]

    def last(self) -> Tensor:
        """The weights where the chain stands."""
        return self.last_theta

    def samples(self) -> list[Tensor]:
        """The samples of the weights that were kept (or averages over windows), evenly spaced over the collection."""
        return [member.theta for member in self._samples()]

    def log_likelihood(
        self, x: np.ndarray, draws: int = 1000, of: Of = "mean", seed: int = 0, refine: int = 0
    ) -> np.ndarray:
        """log p(x), one value for each row; with `refine`, after so many steps that fit the proposal to it alone."""
        return (
            self.row_likelihoods(x, of, LikelihoodConfig(draws=draws, refine=refine, seed=seed))
            .log_likelihood.cpu()
            .numpy()
        )

    def row_likelihoods(
        self, x: np.ndarray, of: Of = "mean", how: LikelihoodConfig | None = None, samples: int | None = None
    ) -> RowLikelihoods:
        """log p(x) of each row, with how far to trust it; `samples` chooses the mean of the first so many."""
        rows, how = self._rows(x), how or LikelihoodConfig()
        members = self._members(of, samples)
        scores = []
        for i, member in enumerate(members):
            whose = f" (member {i + 1} of {len(members)})" if len(members) > 1 else ""
            phi = self._proposal(member, whose)
            scores.append(self._score(member.theta, phi, rows, dataclasses.replace(how, member=i), whose))
        self.tidy()
        return ensemble(scores)

    def tidy(self) -> None:
        """Take off the shelf what is finished and has been handed over."""
        for name in self._finished:
            self.cache.drop(name)
        self._finished.clear()

    def anneal(
        self,
        x: np.ndarray,
        how: Annealing,
        of: Of = "mean",
        samples: int | None = None,
        seed: int = 0,
    ) -> Marginal:
        """log p(x) by annealed importance sampling; rows that are done stay on the shelf until `tidy`."""
        pair, rows = self._annealable(how, of, samples), self._rows(x)
        if rows.isnan().any():
            raise UserError(
                "annealing needs complete rows, and some have holes: leave --ais out, or fill them in first"
            )
        name = f"evaluations/annealing-{_digest(pair.theta, pair.phi, rows)}-{_digest_text(repr((how, seed)))}"
        found = self.cache.get(name) or {"log_likelihood": torch.zeros(0), "ess": torch.zeros(0)}
        while (first := len(found["ess"])) < len(rows):
            block = rows[first : first + ANNEALED].float()
            rng = generator(pair.theta.device, seed, "annealing", first)
            progress = self._annealing(f"annealing rows {first + 1} to {first + len(block)} of {len(rows)}")
            done = how.log_likelihood(pair, block, rng, progress)._asdict()
            found = {key: torch.cat([found[key].to(value), value]) for key, value in done.items()}
            self.cache.put(name, found)
        self._finished.append(name)
        return Marginal(**found)

    def annealing_gap(self, n: int, how: Annealing, of: Of = "mean", samples: int | None = None, seed: int = 0) -> Gap:
        """Both bounds of annealed importance sampling for n rows drawn from the model; on the shelf until `tidy`."""
        pair = self._annealable(how, of, samples)
        name = f"evaluations/gap-{_digest(pair.theta, pair.phi)}-{_digest_text(repr((how, seed, n)))}"
        self._finished.append(name)
        if (kept := self.cache.get(name)) is not None:
            return Gap(*(Mean(mean, None if math.isnan(error) else error) for mean, error in kept["gap"].tolist()))
        rng = generator(pair.theta.device, seed, "annealing gap")
        found = how.gap(pair, n, rng, self._annealing("annealing rows of the model, both ways"))
        rows = [[each.mean, math.nan if each.stderr is None else each.stderr] for each in found]
        self.cache.put(name, {"gap": torch.tensor(rows, dtype=torch.float64)})
        return found

    def _annealable(self, how: Annealing, of: Of, samples: int | None) -> Pair:
        (member,) = self._members(of, samples)  # one set of weights: an ensemble has no single posterior of z
        how.check(self.model, self.method.proposal)
        if how.start == "prior":
            return Pair.alone(self.model, member.theta)
        return Pair(self.model, member.theta, self.method.proposal, self._proposal(member))

    def _annealing(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self.progress(what, done / total)

    def sample(self, n: int, of: Of = "mean", seed: int = 0) -> np.ndarray:
        """n new rows; from an ensemble, each row with weights drawn anew."""
        if n < 1:
            raise UserError(f"the number of rows to sample must be at least 1, got {n}")
        rng = generator(self.phi.device, seed, "sample")
        thetas = [member.theta for member in self._members(of)]
        which = torch.randint(len(thetas), (n,), generator=rng, device=rng.device)
        rows = torch.empty(n, self.model.layers[0].n_out, device=rng.device)
        for m, theta in enumerate(thetas):
            if count := int((which == m).sum()):
                rows[which == m] = self.model.sample(theta, count, rng)[0]
        return self._out(rows)

    def impute(
        self,
        x: np.ndarray,
        draws: int = 20,
        how: ImputeConfig | None = None,
        of: Of = "ensemble",
        seed: int = 0,
    ) -> "Imputed":
        """Rows with NaN where values are missing, completed `draws` times, by chains that share the weights asked for.

        Every sample of the weights has an equal share of the chains, as if one row told nothing of the weights. A row
        of which nothing is there is filled in from the model itself.
        """
        _check_draws(draws)
        given = self._numbers(x)
        how, missing = how or ImputeConfig(), np.isnan(given)
        rows = self._rows(np.where(missing, 0, given)).float()
        mask = torch.as_tensor(missing).to(rows.device)
        members = self._members(of)[:draws]
        shares = [len(part) for part in np.array_split(np.arange(draws), len(members))]
        blocks = max(1, math.ceil(rows.numel() * shares[0] * how.candidates / MOST_CELLS))
        found = []
        for i, (member, share) in enumerate(zip(members, shares, strict=True)):
            phi, rng = self._proposal(member), generator(rows.device, seed, "impute", i)
            pair = Pair(self.model, member.theta, self.method.proposal, phi)
            parts: list[ChainCompletions] = []
            for part, where in zip(rows.tensor_split(blocks), mask.tensor_split(blocks), strict=True):
                done = (i + len(parts) / blocks) / len(members)
                report = functools.partial(self._imputing, done, 1 / (blocks * len(members)))
                parts.append(impute(pair, part, where, self._marginals(), share, how, rng, report))
            found.append([torch.cat(each, 1) for each in zip(*parts, strict=True)])
        completed, expected = (torch.cat(each) for each in zip(*found, strict=True))
        spread = completed.std(0, correction=0)
        return Imputed(self._out(completed), expected.mean(0).cpu().numpy(), spread.cpu().numpy())

    def _imputing(self, done: float, part: float, share: float) -> None:
        self.progress("filling in", done + part * share)

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

        It is the difference of two estimates by importance sampling. Completions of the rows (draws, rows, D) tell the
        proposal where the latents are when only the observed entries are known, unless it has learnt from rows with
        missing values.
        """
        rows, mask = self._rows(x), torch.as_tensor(missing).to(self.phi.device)
        guesses = torch.as_tensor(completions[:8]).float().to(self.phi.device)
        whole, observed = [], []
        for i, member in enumerate(self._members(of)):
            phi, rng = self._proposal(member), generator(rows.device, seed, "conditional", i)
            pair = Pair(self.model, member.theta, self.method.proposal, phi)
            how = LikelihoodConfig(draws=draws, seed=seed, member=i)
            whole.append(log_likelihood(pair, rows, how).log_likelihood)
            if self.method.proposal.masked:
                observed.append(log_likelihood(pair, rows.float().masked_fill(mask, math.nan), how).log_likelihood)
                continue
            observed.append(
                torch.cat([
                    log_observed(pair, part.float(), where, guess, draws, rng)
                    for part, where, guess in zip(rows.split(10), mask.split(10), guesses.split(10, 1), strict=True)
                ])
            )  # fmt: skip
        difference = torch.stack(whole).logsumexp(0) - torch.stack(observed).logsumexp(0)
        return difference.cpu().numpy()

    def _marginals(self) -> Moments:
        """The mean and the spread of each column of the training rows."""
        if self._columns is None:
            self._columns = moments(self.method, self.train())
        return self._columns

    def encode(self, x: np.ndarray, draws: int = 100, of: Of = "mean", seed: int = 0) -> list[np.ndarray]:
        """E[z | x] for each hidden layer, from the data upward, by importance sampling."""
        _check_draws(draws)
        rng = generator(self.phi.device, seed, "encode")
        if self.others:
            raise UserError("codes of several chains cannot be averaged, for their hidden units need not correspond")
        members = [(member.theta, self._proposal(member)) for member in self._members(of)]
        blocks = []
        with torch.no_grad():
            for rows in self._rows(x).split(256):
                codes = []
                for theta, phi in members:
                    drawn = propose(Pair(self.model, theta, self.method.proposal, phi), rows.float(), draws, rng)
                    weight = normalised(drawn.log_weight)[..., None]
                    codes.append([(weight * z).sum(0) for z in drawn.latents])
                blocks.append([torch.stack(layer).mean(0) for layer in zip(*codes, strict=True)])
        return [torch.cat(layer).cpu().numpy() for layer in zip(*blocks, strict=True)]

    def to_arviz(self) -> Any:
        """The kept draws of the weights as an arviz.InferenceData: variables such as x.W, of (chain, draw, …).

        Hidden units of different chains need not correspond, so that R-hat of a single weight says little.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # it announces its next version at every import
                import arviz
        except ImportError:
            raise UserError("this needs arviz: install it with pip install 'doubly[arviz]'") from None
        chains = [chain.thetas for chain in (self, *self.others)]
        counts = [len(kept) for kept in chains]
        if 0 in counts:
            raise UserError("a run has kept no samples of the weights: resume it, or fit it with --keep 10")
        if len(set(counts)) > 1:
            raise UserError(f"arviz wants as many draws of each chain, got {_list(counts)}: fit them with equal --keep")
        weights = [[self.model.unflatten(theta) for theta in kept] for kept in chains]
        names = ["x", *(f"z{i}" for i in range(1, len(self.model.layers)))]
        posterior = {
            f"{name}.{key}": np.stack([[draw[i][key].cpu().numpy() for draw in chain] for chain in weights])
            for i, name in enumerate(names)
            for key, shape in self.model.layers[i].shapes().items()
            if 0 not in shape  # a top layer has weights for nothing
        }
        return arviz.from_dict(posterior, posterior_attrs={"window": self.method.window})

    def _samples(self) -> list[Member]:
        members = [Member(theta, chain.phi) for chain in (self, *self.others) for theta in chain.thetas]
        if not members:
            raise UserError(
                "this run has kept no samples of the weights: resume it, or ask for the last draw (--of last)"
            )
        return members

    def _members(self, of: Of, samples: int | None = None) -> list[Member]:
        """The weights asked for."""
        choices: dict[str, Callable[[], list[Member]]] = {
            "mean": lambda: [Member(self.mean(samples), self.phi)],
            "last": lambda: [Member(chain.last(), chain.phi) for chain in (self, *self.others)],
            "ensemble": self._samples,
        }
        if of not in choices:
            raise UserError(f"of must be one of {', '.join(choices)}, got {of!r}")
        if samples is not None and of != "mean":
            raise UserError(f"a number of samples chooses a mean, got of {of!r}: leave one of the two out")
        return choices[of]()

    def _proposal(self, member: Member, whose: str = "") -> Tensor:
        """A proposal fitted to these weights."""
        refitter = self.method.refitter
        if self.refit_objective is not None and isinstance(refitter, NAIS):
            refitter = dataclasses.replace(refitter, objective=OBJECTIVES.make(self.refit_objective))
        method = dataclasses.replace(self.method, refitter=refitter)
        name = f"posterior/proposal-{_digest(*member)}-{self.refit_passes}"
        name += f"-{self.refit_objective}" if self.refit_objective else ""
        if name not in self._fitted:
            found = self.cache.get(name)
            if found is None:
                found = {"phi": self._refit(method, member, f"{name}-unfinished", whose)}
                self.cache.put(name, found)
                self.cache.drop(f"{name}-unfinished")
            self._fitted[name] = found["phi"]
        return self._fitted[name]

    def _refit(self, method: Method, member: Member, name: str, whose: str) -> Tensor:
        """Fit a proposal, going on from what an earlier attempt has left."""
        keep, passes = self._saving(name), self.refit_passes

        def watch(halfway: Tensors, done: int) -> None:
            keep(halfway, f"fitting the proposal{whose}, pass {done} of {passes}", done / passes)

        return refit(method, *member, self.train(), passes, watch, self.cache.get(name))

    def _saving(self, name: str) -> Callable[[Tensors, str, float], None]:
        """What shows progress, and leaves unfinished work on the shelf now and then, and when it is stopped."""
        written = time.monotonic()

        def keep(unfinished: Tensors, what: str, share: float) -> None:
            nonlocal written
            try:
                self.progress(what, share)
            except BaseException:
                self.cache.put(name, unfinished)
                raise
            if time.monotonic() - written >= self.patience:
                self.cache.put(name, unfinished)
                written = time.monotonic()

        return keep

    def _score(self, theta: Tensor, phi: Tensor, rows: Tensor, how: LikelihoodConfig, whose: str) -> RowLikelihoods:
        """Score the rows, going on from what an earlier attempt has left."""
        name = f"evaluations/partial-{_digest(theta, phi, rows)}-{_digest_text(repr(how))}"
        left, keep = self.cache.get(name), self._saving(name)

        def watch(partial: PartialSums, share: float) -> None:
            keep(partial._asdict(), f"scoring{whose}", share)

        self._finished.append(name)
        if left and "log_likelihood" in left:  # an ensemble was stopped at a later member
            return RowLikelihoods(**left)
        method = self.method
        partial = PartialSums(**left) if left else None
        found = log_likelihood(Pair(method.model, theta, method.proposal, phi), rows, how, partial, watch)
        self.cache.put(name, found._asdict())
        return found

    def _rows(self, x: np.ndarray) -> Tensor:
        """Rows checked against the model's data layer."""
        layer, rows = self.model.layers[0], self._numbers(x)
        missing = np.isnan(rows)
        bad = ~(np.abs(rows) <= LARGEST) if layer.kind == "real" else (rows != 0) & (rows != 1)
        if self.method.proposal.masked:
            bad &= ~missing
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            expected = "0 or 1" if layer.kind == "binary" else "a finite number (float32)"
            cure = ": it has learnt from complete rows; fill them in first (impute)" if missing[row, column] else ""
            value = rows[row, column]
            raise UserError(f"row {row}, column {column} is {value}, but the model expects {expected}{cure}")
        narrow = layer.kind == "binary" and not missing.any()
        return torch.as_tensor(rows.astype(np.uint8 if narrow else np.float32)).to(self.phi.device)

    def _numbers(self, x: np.ndarray) -> np.ndarray:
        """Rows as wide as the model, of whatever numbers."""
        width = self.model.layers[0].n_out
        try:
            rows = np.asarray(x)
        except ValueError as error:  # lists that are not equally long
            raise UserError(f"the model's rows have {width} columns each, got rows of different lengths") from error
        if rows.ndim != 2 or rows.shape[1] != width:
            raise UserError(f"the model's rows have {width} columns, got an array of shape {rows.shape}")
        if len(rows) == 0:
            raise UserError("there are no rows: give at least one")
        if rows.dtype.kind not in "biuf":
            raise UserError(f"rows must be numbers, got type {rows.dtype}: convert them, as with x.astype(float)")
        return rows

    def _out(self, rows: Tensor) -> np.ndarray:
        values = rows.cpu().numpy()
        return values.astype(np.uint8) if self.model.layers[0].kind == "binary" else values


def _check_draws(draws: int) -> None:
    if not isinstance(draws, Integral) or draws < 1:
        raise UserError(f"draws must be at least 1, and whole, got {draws}")


def _sketch(model: Chain) -> str:
    return "-".join(f"{type(layer).__name__}{layer.n_out}" for layer in model.layers)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)


def _digest(*tensors: Tensor) -> str:
    """A name for what these hold, so that what is stored under it can never be out of date."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
