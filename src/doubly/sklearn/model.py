"""DeepGenerativeModel: a density over the rows of a table, as a scikit-learn estimator."""

import dataclasses
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, OutlierMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from doubly.analysis.tables import complete
from doubly.core.errors import UserError
from doubly.core.random import generator
from doubly.core.types import Of
from doubly.latents.completions import ImputeConfig
from doubly.latents.pair import Pair
from doubly.layers.chain import Chain
from doubly.posterior.estimates import Estimator
from doubly.posterior.store import Posterior
from doubly.posterior.units import PosteriorInUnits, in_units
from doubly.runs import automatic
from doubly.runs.build import Facts, build
from doubly.runs.config import MOST_THREADS, Config, from_dict
from doubly.runs.fit import enough_threads, use_threads
from doubly.runs.learn import LEAST_ROWS, learn
from doubly.runs.progress import Progress
from doubly.runs.race import best_family
from doubly.sklearn.answers import Answers, Reader
from doubly.sklearn.arrays import units_of
from doubly.sklearn.chain import Plan, sample_weights
from doubly.sklearn.frames import Framed, guessed, is_mixed, table_units

MOST_VALID = 1000  # rows that validation takes at most: it only has to see when it levels off
SWEEPS = 30  # of the chains that complete rows: more are for proposals that are poor
AUTO_CONTAMINATION, GLANCED = 0.05, 500  # the share of outliers where nobody says it, seen from so many rows


class DeepGenerativeModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierMixin, Framed):
    """A density over the rows of a table, with the weights' uncertainty in it, as a scikit-learn estimator.

    Of a table of nothing but 0 and 1, NADE, FVSBN and a sigmoid belief network learn for a short while; the best on
    rows held out is sampled. If it has no latents, a sigmoid belief network beside it gives the codes. Any other array
    of numbers gets a Gaussian data layer over normal latents, for which the columns are standardised inside. A table
    with texts, categories or booleans among its columns is learnt as `DeepImputer` learns it: each column has the
    density of its kind, and several models compete. All log-likelihoods are in the table's own units.

    >>> X = np.random.default_rng(0).integers(0, 2, (100, 1)).repeat(4, axis=1)
    >>> model = DeepGenerativeModel(hidden=(2,), epochs=3, random_state=0).fit(X)
    >>> model.score_samples(X).shape, model.transform(X).shape, model.sample(5).shape
    ((100,), (100, 2), (5, 4))

    Parameters
    ----------
    hidden : "auto" or tuple of int
        Widths of the hidden layers, from the data upward. "auto" takes one layer, of as many units as there are
        columns, but 10 to 100 of 0/1 tables and at most 20 of real ones; of 0/1 tables none where that is better.
        () is a model with nothing hidden: of 0/1 tables a NADE.
    layer : str
        Layer types as in `Config.model`, data layer first: "sbn", "nade,sbn", "gaussian,normal", …; "auto" as above.
    proposal : str or None
        Layer types of the proposal as in `Config.proposal`; None takes what fits the hidden layers.
    prior, sampler : str
        As in `Config`. "auto" takes a prior that is wider than the paper's, under which small tables learn nothing, and
        the paper's sampler; for 0/1 tables without latents the thermostat.
    epochs : "auto" or int
        At most this many epochs; "auto" takes up to 300 for small tables, down to 20 for large ones.
    step : "auto" or float
        The sampler's step; "auto" starts from 0.05 for 0/1 data and 0.001 for real data, and starts over with a third
        of it whenever the chain diverges; of 0/1 data without latents it is measured.
    collect, keep : int
        Samples of the weights that the mean is of, and how many of them are kept for the ensemble.
    batch : "auto" or int
        Rows in a mini-batch; "auto" takes 100, of small 0/1 tables a tenth of the rows but at least 10.
    patience : int
        Samples are collected once validation has not risen for this many epochs.
    valid_fraction : float
        The part of the rows, at most 1000, that is set aside to see this.
    blur : float
        Noise added to real training rows, anew in each epoch, in standard deviations of each column. Densities of
        rounded or collinear columns would otherwise grow without bound.
    of : "mean" or "ensemble"
        Answer by the mean of the weights (one network), or by all the samples kept (slower by so many times).
    draws : int
        Draws of the hidden variables for each row in `score_samples` and `transform`.
    refit : int
        Passes over the training rows that fit the proposal to the weights that answer.
    random_state : int, RandomState or None
    verbose : bool
        Show progress on standard error.
    n_threads : int or None
        Threads to compute with; None takes one for small models and all cores for others.
    contamination : "auto" or float
        The share of the training rows that `predict` calls outliers (-1). "auto" takes 5 %, seen from at most 500
        rows; a number scores all training rows, a millisecond or more each.
    minutes : float
        Time to learn a table with texts or categories, at most. Of the other parameters only epochs, draws,
        contamination, random_state, verbose and n_threads are for such tables.

    Attributes
    ----------
    kind_ : "binary", "real" or "mixed"
    kinds_ : doubly.data.Kinds
        Of a mixed table, what each column was taken for.
    chosen_ : str
        Of a mixed table, the candidate or base line that answers; of 0/1 the family, where none was said.
    scores_ : dict
        Of the same, what they say of what was held out.
    offset_ : float
        The log-likelihood below which a row is an outlier.
    hidden_ : tuple of int
    step_ : float
        The step that was taken in the end.
    n_iter_ : int
        Epochs run.
    history_ : list of dict
        Epoch, phase, train and valid: mean log-likelihoods, of real tables in standardised units.
    estimate_ : "draws" or "annealing"
        How `score_samples` finds log p(x): by draws of the hidden variables, or where these miss more than half a nat
        of the validation rows, by annealing.
    weights_, samples_, proposals_ : ndarray
        The posterior mean of the weights, samples of them, and the proposals' weights: the mean's, then with
        of="ensemble" each sample's.
    center_, scale_, varies_ : ndarray
        How columns are standardised, and which of them are in the model: constant real ones are not.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden": [StrOptions({"auto"}), tuple, list, np.ndarray],
        "layer": [str],
        "proposal": [str, None],
        "prior": [str],
        "sampler": [str],
        "epochs": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "step": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "collect": [Interval(Integral, 1, None, closed="left")],
        "keep": [Interval(Integral, 1, None, closed="left")],
        "batch": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "valid_fraction": [Interval(Real, 0, 1, closed="neither")],
        "blur": [Interval(Real, 0, None, closed="left")],
        "of": [StrOptions({"mean", "ensemble"})],
        "draws": [Interval(Integral, 1, None, closed="left")],
        "refit": [Interval(Integral, 0, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "n_threads": [Interval(Integral, 1, MOST_THREADS, closed="both"), None],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        "minutes": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        hidden: str | Sequence[int] = "auto",
        layer: str = "auto",
        *,
        proposal: str | None = None,
        prior: str = "auto",
        sampler: str = "auto",
        epochs: str | int = "auto",
        step: str | float = "auto",
        collect: int = 30,
        keep: int = 10,
        batch: str | int = "auto",
        patience: int = 30,
        valid_fraction: float = 0.1,
        blur: float = 0.03,
        of: Of = "mean",
        draws: int = 100,
        refit: int = 20,
        random_state: Any = None,
        verbose: bool | int = False,
        n_threads: int | None = None,
        contamination: str | float = "auto",
        minutes: float = 0.75,
    ):
        self.hidden = hidden
        self.layer = layer
        self.proposal = proposal
        self.prior = prior
        self.sampler = sampler
        self.epochs = epochs
        self.step = step
        self.collect = collect
        self.keep = keep
        self.batch = batch
        self.patience = patience
        self.valid_fraction = valid_fraction
        self.blur = blur
        self.of = of
        self.draws = draws
        self.refit = refit
        self.random_state = random_state
        self.verbose = verbose
        self.n_threads = n_threads
        self.contamination = contamination
        self.minutes = minutes

    # Learning

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the density of the rows of X; y is not looked at."""
        self._validate_params()
        rng = check_random_state(self.random_state)
        rows = self._fit_mixed(X, rng) if is_mixed(X) else self._fit_array(X, rng)
        with use_threads(self._config.threads):
            self.offset_ = self._threshold(rows)
        return self

    def _fit_array(self, X: Any, rng: np.random.RandomState) -> Tensor:
        """Sample the weights of a model of numbers; gives the rows as the model sees them."""
        # one row to learn from, one to validate on
        table = self._numbers(X, reset=True, ensure_min_samples=2, ensure_all_finite="allow-nan")
        kind = None
        if self.layer != "auto":  # the data layer is what it is, whatever there is above it
            kind = Chain.build(self.layer, data=1, hidden=self._widths("binary", 1)).layers[0].kind
        self._units: Any = (units := units_of(table, kind))  # or the `TableUnits` of a mixed table
        self.kind_, self.center_, self.scale_, self.varies_ = units.kind, units.center, units.scale, units.varies
        self._facts = Facts(units.width, units.kind, (units.width,), has_missing=units.has_missing)
        seed = int(rng.randint(2**31 - 1))
        rows = torch.as_tensor(units.encode(table))
        order = rows[torch.as_tensor(rng.permutation(len(table)))]
        n_valid = min(max(1, round(self.valid_fraction * len(table))), len(table) - 1, MOST_VALID)
        family = None
        if self._is_open and units.kind == "binary":
            with use_threads(self.n_threads or 1):
                epochs = 0 if isinstance(self.epochs, str) else self.epochs
                family, self.scores_ = best_family(order[n_valid:], order[:n_valid], seed, epochs)
            self.chosen_ = family.name
        config = self._settings(len(table), seed, family)
        blur = self.blur if units.kind == "real" else 0.0
        plan = Plan(self._facts, blur, self.refit, self.of == "ensemble", retry=self.step == "auto")
        with Progress(quiet=not self.verbose) as progress:
            found = sample_weights(config, plan, order[n_valid:], order[:n_valid], progress)
        self._config = config = found.config
        self.hidden_, self.step_, self.n_iter_ = config.hidden, config.step, len(found.history)
        self.history_ = found.history
        arrays = (each.numpy() for each in (found.mean, found.samples, found.proposals))
        self.weights_, self.samples_, self.proposals_ = arrays
        self.estimate_ = self._choose(order[:n_valid])
        self._coder: DeepGenerativeModel | None = None
        if family and not config.hidden:  # codes are of a model that has them
            wanted = self.get_params() | {"layer": "sbn", "random_state": seed}
            self._coder = DeepGenerativeModel(**wanted).fit(table)
        return rows

    def _fit_mixed(self, X: Any, rng: np.random.RandomState) -> Tensor:
        """Let models of mixed columns compete; gives the rows as the model sees them."""
        if self.layer != "auto" or not isinstance(self.hidden, str):
            raise UserError(
                "a table with texts or categories chooses its own layers: leave layer and hidden at 'auto', or give "
                "numbers only"
            )
        table = self._columns(X, reset=True, least=LEAST_ROWS)
        self.kinds_, seed = guessed(table), int(rng.randint(2**31 - 1))
        self._units = table_units(self.kinds_, table)
        rows = torch.as_tensor(self._units.encode(table))
        threads = self.n_threads or 1
        with use_threads(threads), Progress(quiet=not self.verbose) as progress:
            self._learnt = learn(
                self.kinds_.columns, rows, minutes=self.minutes, seed=seed,
                epochs=0 if isinstance(self.epochs, str) else self.epochs, stack=False, tell=progress.say,
            )  # fmt: skip
        self._config = dataclasses.replace(self._learnt.config, seed=seed, threads=threads)
        self._facts, self.kind_, self.estimate_ = self._learnt.facts, "mixed", "draws"
        self.hidden_, self.step_, self.n_iter_, self.history_ = self._config.hidden, self._config.step, 0, []
        self.chosen_, self.scores_ = self._learnt.name, self._learnt.scores
        pairs = self._learnt.pairs
        self.samples_, self.proposals_ = np.stack([pair.theta.numpy() for pair in pairs]), pairs[0].phi.numpy()[None]
        self.weights_ = self.samples_.mean(0)
        return rows

    def _threshold(self, rows: Tensor) -> float:
        """The log-likelihood that the said share of the training rows is below."""
        if isinstance(self.contamination, str):
            some = rows[:: max(1, len(rows) // GLANCED)]
            return float(np.quantile(self._in_units(self._reader.glance(some), some), AUTO_CONTAMINATION))
        found = self._in_units(self._reader.read(rows, codes=False).log_likelihood, rows)
        return float(np.quantile(found, self.contamination))

    @property
    def _is_open(self) -> bool:
        """Whether the family of models is left to choose."""
        return self.layer == "auto" and isinstance(self.hidden, str) and self.proposal is None

    def _widths(self, kind: str, columns: int) -> tuple[int, ...]:
        if isinstance(self.hidden, str):
            return automatic.widths(kind == "binary", columns)
        return tuple(int(width) for width in self.hidden)

    def _settings(self, n: int, seed: int, family: automatic.Candidate | None = None) -> Config:
        """All settings for n rows, with numbers in the place of "auto"."""
        columns, binary = self._facts.width, self.kind_ == "binary"
        layer, hidden = self.layer, self._widths(self.kind_, columns)
        if family:
            layer, hidden = family.config.model, family.config.hidden
        chosen = automatic.of_array(binary, columns, n, layer, hidden)
        said = {"step": self.step, "batch": self.batch, "epochs": self.epochs, "proposal": self.proposal or "auto",
                "prior": self.prior, "sampler": self.sampler}  # fmt: skip
        stated = {name: value for name, value in said.items() if not isinstance(value, str) or value != "auto"}
        batch = stated.get("batch", chosen["batch"])
        config = from_dict(
            chosen
            | automatic.lengths(n, batch, exact=binary and not hidden)
            | {"patience": self.patience}
            | {"collect": self.collect, "keep": self.keep, "seed": seed}
            | stated
        )
        method = build(config, self._facts)
        return dataclasses.replace(config, threads=self.n_threads or enough_threads(method, config.draws))

    # Answers

    @property
    def posterior_(self) -> Posterior:
        """What was learnt, as a posterior that takes and gives rows of the table; its `scaled` is what the model sees.

        Of a 0/1 table it is a `Posterior`. It is built anew each time, so that the estimator holds nothing but arrays.
        It fits no proposals: where the estimator answers by its mean, an ensemble has the proposal of the mean.
        """
        found = self._posterior()
        return found if self.kind_ == "binary" else PosteriorInUnits.of(found, self._units)

    def _posterior(self) -> Posterior:
        check_is_fitted(self)
        samples = [torch.tensor(theta) for theta in self.samples_]  # copies: joblib may map the arrays read-only
        found = Posterior(
            method=build(self._config, self._facts),
            phi=torch.tensor(self.proposals_[0]),
            last_theta=samples[-1],
            mean_theta=torch.tensor(self.weights_),
            thetas=samples,
            train=self._units.two_rows,
            collected=sum(each["phase"] == "collect" for each in self.history_),
            epoch=self.n_iter_,
            refit_passes=0,
            estimator=getattr(self, "estimate_", "draws"),
        )
        if len(self.proposals_) > 1:
            for theta, phi in zip(samples, self.proposals_[1:], strict=True):
                found.adopt(theta, torch.tensor(phi))
        return found

    def score_samples(self, X: Any) -> np.ndarray:
        """log p(x) of each row, in nats; that of a row depends on nothing but the row and what was learnt.

        Of rows with NaN, which only a model that was fitted to such rows takes, it is log p of what is there.
        """
        rows = self._rows(X)
        return self._in_units(self._read(rows, codes=False).log_likelihood, rows)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of `score_samples`: the higher, the better."""
        return float(self.score_samples(X).mean())

    def decision_function(self, X: Any) -> np.ndarray:
        """log p(x) above the threshold: negative for outliers."""
        found: np.ndarray = self.score_samples(X) - self.offset_
        return found

    def predict(self, X: Any) -> np.ndarray:
        """-1 for outliers, rows less likely than the threshold, and +1 for others."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def transform(self, X: Any) -> np.ndarray:
        """E[z | x], the mean codes of all hidden layers beside each other, from the data upward."""
        rows = self._rows(X)
        coder: DeepGenerativeModel = getattr(self, "_coder", None) or self
        coder._check_hidden()
        return coder._read(rows, codes=True).codes

    def inverse_transform(self, X: Any) -> Any:
        """E[x | z] for codes z of the first hidden layer; codes of further layers may stand behind them."""
        check_is_fitted(self)
        if coder := getattr(self, "_coder", None):
            return coder.inverse_transform(X)
        self._check_hidden()
        codes = np.asarray(X, dtype=np.float64)
        first, all_codes = self.hidden_[0], sum(self.hidden_)
        if codes.ndim != 2 or codes.shape[1] not in (first, all_codes) or not np.isfinite(codes).all():
            raise UserError(
                f"codes must be finite numbers in {first} columns, or {all_codes} as transform gives them, "
                f"got an array of shape {codes.shape}"
            )
        z = torch.tensor(codes[:, :first], dtype=torch.float32)
        rng, found = generator("cpu", self._config.seed, "inverse"), []
        for pair in self._pairs():
            layer, params = pair.data_layer
            # an autoregressive layer knows means given the entries before, which are drawn; for others one is exact
            draws = 1 if layer.factorised else self.draws
            found.append(layer.mean(params, layer.draw(params, z, rng, draws).value, z).mean(0))
        return self._given_back(torch.stack(found).mean(0), X)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Any:
        """New rows: of type uint8 where the table was 0/1, float64 where it was real, else as its columns are."""
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        of: Of = "ensemble" if self._is_mixed else self.of
        found = self._given_back(self._posterior().sample(n_samples, of=of, seed=seed))
        return found.astype(np.uint8) if self.kind_ == "binary" else found

    def impute(self, X: Any, draws: int = 20, return_draws: bool = False, sweeps: int = SWEEPS) -> Any:
        """X with each missing value replaced by what is expected there given the rest of the row; of 0/1 and of
        categories, by the likeliest.

        With `return_draws`, a list of so many copies of X whose missing values are drawn. More `sweeps` of the chains
        behind it help where the proposal is poor; a mixed table has no chains.
        """
        if self._is_mixed:
            return self._impute_mixed(X, draws, return_draws)
        table = self._table(X, allow_missing=True)
        how = ImputeConfig(sweeps=sweeps, local=self.kind_ == "binary")
        with use_threads(self._config.threads):
            rows = self._units.encode(table)
            found = self._posterior().impute(rows, draws, how, self.of, self._config.seed)
        expected = found.mean > 0.5 if self.kind_ == "binary" else found.mean
        given, missing = table.astype(np.float64), np.isnan(table)
        made = [
            self._framed(np.where(missing, self._units.decode(each), given), X)
            for each in (found.completions if return_draws else [expected])
        ]
        return made if return_draws else made[0]

    def _impute_mixed(self, X: Any, draws: int, return_draws: bool) -> Any:
        table = self._table(X)
        rows = torch.as_tensor(self._units.encode(table))
        at = np.flatnonzero(rows.isnan().any(1).numpy())
        made: list[dict[str, list[Any]]] = [{}] * (draws if return_draws else 1)
        if len(at):
            with use_threads(self._config.threads):
                found = complete(self._learnt, rows[torch.as_tensor(at)], max(draws, 1), self._config.seed)
            made = [self._units.decode(each) for each in (found.copies if return_draws else [found.expected])]
        completed = [self._as_it_came(X, table, self.kinds_, at, values) for values in made]
        return completed if return_draws else completed[0]

    # In between

    @property
    def _is_mixed(self) -> bool:
        check_is_fitted(self)
        return bool(self.kind_ == "mixed")

    def _read(self, rows: Tensor, codes: bool) -> Answers:
        with use_threads(self._config.threads):
            return self._reader.read(rows, codes)

    @property
    def _reader(self) -> Reader:
        return Reader(self._pairs(), self.draws, getattr(self, "estimate_", "draws"), self._config.seed)

    def _choose(self, valid: Tensor) -> Estimator:
        with use_threads(self._config.threads):
            return self._reader.choose(valid)

    def _pairs(self) -> list[Pair]:
        """The weights that answer, each with its proposal."""
        if self._is_mixed:
            return self._learnt.pairs
        method = build(self._config, self._facts)
        thetas = [self.weights_] if len(self.proposals_) == 1 else self.samples_
        return [
            Pair(method.model, torch.tensor(theta), method.proposal, torch.tensor(phi))
            for theta, phi in zip(thetas, self.proposals_[-len(thetas) :], strict=True)
        ]

    def _table(self, X: Any, allow_missing: bool = False) -> Any:
        """A table like the one that was learnt from, checked: an array, or columns by name."""
        if self._is_mixed:
            return self._columns(X, reset=False)
        finite = "allow-nan" if allow_missing or self._facts.has_missing else True
        return self._numbers(X, reset=False, ensure_all_finite=finite)

    def _rows(self, X: Any) -> Tensor:
        """The same as the model sees it."""
        table = self._table(X)
        rows = torch.as_tensor(self._units.encode(table))
        if rows.is_floating_point() and rows.isnan().any() and not self._facts.has_missing:
            raise UserError("the model has learnt from complete rows: impute missing values (NaN) first")
        return rows

    def _in_units(self, log_likelihood: np.ndarray, rows: Tensor) -> np.ndarray:
        return in_units(log_likelihood, rows.numpy(), self._units.log_scale)

    def _given_back(self, rows: Any, like: Any = None) -> Any:
        """Rows of the model as the table has them."""
        if not self._is_mixed:
            return self._framed(self._units.decode(rows), like)
        return self._table_of(self._units.decode(rows), self.kinds_, like)

    def _check_hidden(self) -> None:
        if not self.hidden_:
            raise UserError("a model with hidden=() has no codes: fit one with at least one hidden layer")

    @property
    def _n_features_out(self) -> int:
        coder = getattr(self, "_coder", None)
        return sum((coder or self).hidden_)
