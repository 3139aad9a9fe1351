"""The same models by scikit-learn's conventions: `DeepGenerativeModel().fit(X)`, in memory, with no run folder.

`__init__` only stores, what is learnt ends in `_`, and what is learnt is arrays, so that it clones, pickles and goes
through joblib. Settings called "auto" are chosen from the table in `fit`.
"""

import dataclasses
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_feature_names, _check_n_features, check_is_fitted, validate_data
from torch import Tensor

from doubly.analysis.tables import complete
from doubly.core.errors import Diverged, UserError
from doubly.core.random import generator
from doubly.core.types import Of
from doubly.data import guess
from doubly.data.columns import sheet_of
from doubly.data.dataset import first_place, is_binary, missing_mask
from doubly.kernels.noise import normal
from doubly.latents.pair import Pair
from doubly.latents.sweep import is_swept
from doubly.layers.chain import Chain
from doubly.posterior.codes import read
from doubly.posterior.estimates import Estimator, ScoreConfig, larger, trial_stride
from doubly.posterior.store import Posterior
from doubly.runs import automatic
from doubly.runs.build import Facts, build
from doubly.runs.config import MOST_THREADS, Config, from_dict
from doubly.runs.fit import enough_threads, use_threads
from doubly.runs.learn import LEAST_ROWS, learn
from doubly.runs.progress import Progress
from doubly.training import protocol
from doubly.training.method import Method
from doubly.training.refit import refit
from doubly.training.state import finished, init, planned

FARTHEST = 1e15  # standard deviations from the mean: beyond, squares would leave single precision
ATTEMPTS = 8  # with steps that fall by a third each time, 0.05 ends below 1e-4 and 0.001 below 1e-6
TEMPERATURES, CHAINS = 50, 8  # of a row that is annealed: some 30 ms for each of the weights that answer
PAYS = 0.5  # nats by which annealing must be ahead: it takes fifty times as long as draws do
MOST_VALID = 1000  # rows that validation takes at most: it only has to see when it levels off


class DeepGenerativeModel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A density over the rows of a 0/1 or real table, with the weights' uncertainty in it, as a scikit-learn estimator.

    A table of nothing but 0 and 1 gets a sigmoid belief network, any other one a Gaussian data layer over normal
    hidden variables, for which the columns are standardised inside; all log-likelihoods are in the table's own units.

    >>> X = np.random.default_rng(0).integers(0, 2, (100, 1)).repeat(4, axis=1)
    >>> model = DeepGenerativeModel(hidden=(2,), epochs=3, random_state=0).fit(X)
    >>> model.score_samples(X).shape, model.transform(X).shape, model.sample(5).shape
    ((100,), (100, 2), (5, 4))

    Parameters
    ----------
    hidden : "auto" or tuple of int
        Widths of the hidden layers, from the data upward. "auto" takes one layer, of as many units as there are
        columns, but 10 to 100 of 0/1 tables and at most 20 of real ones. () is a model with nothing hidden.
    layer : str
        Layer types as in `Config.model`, data layer first: "sbn", "nade,sbn", "gaussian,normal", …; "auto" as above.
    proposal : str or None
        Layer types of the proposal as in `Config.proposal`; None takes what fits the hidden layers.
    prior, sampler : str
        As in `Config`. The default prior is wider than the paper's, under which small tables learn nothing.
    epochs : "auto" or int
        At most this many epochs; "auto" takes up to 300 for small tables, down to 20 for large ones.
    step : "auto" or float
        The sampler's step; "auto" starts from 0.05 for 0/1 data and 0.001 for real data, and starts over with a third
        of it whenever the chain diverges.
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

    Attributes
    ----------
    kind_ : "binary" or "real"
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
    offset_, scale_, varies_ : ndarray
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
    }

    def __init__(
        self,
        hidden: str | Sequence[int] = "auto",
        layer: str = "auto",
        *,
        proposal: str | None = None,
        prior: str = "student-t:scale=0.3",
        sampler: str = "sgnht",
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # Learning

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the density of the rows of X; y is not looked at."""
        self._validate_params()
        # one row to learn from, one to validate on
        X = self._numbers(X, ensure_min_samples=2, ensure_all_finite="allow-nan")
        rng = check_random_state(self.random_state)
        self._learn_columns(X)
        config = self._settings(X, int(rng.randint(2**31 - 1)))
        rows = self._rows(X)[torch.as_tensor(rng.permutation(len(X)))]
        n_valid = min(max(1, round(self.valid_fraction * len(X))), len(X) - 1, MOST_VALID)
        found = self._sample_weights(config, rows[n_valid:], rows[:n_valid])
        config = found.config
        self.hidden_, self.step_, self.n_iter_ = config.hidden, config.step, len(found.history)
        self.history_ = found.history
        self.weights_, self.samples_, self.proposals_ = (
            found.mean.numpy(),
            found.samples.numpy(),
            found.proposals.numpy(),
        )
        self._config = config
        self.estimate_ = self._choose(rows[:n_valid])
        return self

    def _learn_columns(self, X: np.ndarray) -> None:
        """The kind of the table; mean and spread of real columns, and which of them vary."""
        n = X.shape[1]
        kind = "binary" if is_binary(X) else "real"
        if self.layer != "auto":  # the data layer is what it is, whatever there is above it
            kind = Chain.build(self.layer, data=1, hidden=self._widths("binary", 1)).layers[0].kind
        self.kind_ = kind
        self.offset_, self.scale_, self.varies_ = np.zeros(n), np.ones(n), np.ones(n, dtype=bool)
        missing = missing_mask(X)
        self._has_missing = bool(missing.any())
        if missing.all(0).any():
            raise UserError(f"column {int(missing.all(0).argmax())} has no value in any row: leave it out")
        if kind == "binary":
            self._mean = np.nanmean(X, 0).clip(0, 1)  # what is not 0 or 1 is refused later
            self._spread = np.sqrt(self._mean * (1 - self._mean))
            return
        values = X.astype(np.float64)
        self.varies_ = np.nanmin(values, 0) < np.nanmax(values, 0)
        if not self.varies_.any():
            raise UserError(f"all {n} columns are constant: a density needs one that varies; leave constant ones out")
        with np.errstate(over="ignore", invalid="ignore"):
            self.offset_ = np.where(self.varies_, np.nanmean(values, 0), np.nanmax(values, 0))
            self.scale_ = np.where(self.varies_, np.nanstd(values, 0), 1.0)
        bad = ~np.isfinite(self.offset_ + self.scale_) | (self.scale_ == 0)
        if bad.any():
            raise UserError(f"column {int(bad.argmax())} has values too large or too close to square: scale it first")
        self._mean, self._spread = np.zeros(self.varies_.sum()), np.ones(self.varies_.sum())

    def _widths(self, kind: str, columns: int) -> tuple[int, ...]:
        if isinstance(self.hidden, str):
            return automatic.widths(kind == "binary", columns)
        return tuple(int(width) for width in self.hidden)

    def _settings(self, X: np.ndarray, seed: int) -> Config:
        """All settings, with numbers in the place of "auto"."""
        columns = int(self.varies_.sum())
        hidden = self._widths(self.kind_, columns)
        chosen = automatic.of_array(self.kind_ == "binary", columns, len(X), self.layer, hidden)
        said = {"step": self.step, "batch": self.batch, "epochs": self.epochs, "proposal": self.proposal or "auto"}
        stated = {name: value for name, value in said.items() if not isinstance(value, str) or value != "auto"}
        batch = stated.get("batch", chosen["batch"])
        config = from_dict(
            chosen
            | automatic.lengths(len(X), batch)
            | {"prior": self.prior, "sampler": self.sampler, "patience": self.patience}
            | {"collect": self.collect, "keep": self.keep, "seed": seed}
            | stated
        )
        method = build(config, self._facts())
        return dataclasses.replace(config, threads=self.n_threads or enough_threads(method, config.draws))

    def _facts(self) -> Facts:
        columns = int(self.varies_.sum())
        return Facts(columns, self.kind_, (columns,), has_missing=self._has_missing)

    def _sample_weights(self, config: Config, rows: Tensor, valid: Tensor) -> "_Learnt":
        """Run the chain, with smaller steps when it diverges, and fit proposals to what it collected."""
        blur = self.blur if self.kind_ == "real" else 0.0
        with use_threads(config.threads), Progress(quiet=not self.verbose) as progress:
            for attempt in range(ATTEMPTS):
                try:
                    return self._run_chain(config, rows, valid, blur, progress)
                except Diverged:
                    if self.step != "auto" or config.step == "auto" or attempt + 1 == ATTEMPTS:
                        raise
                    progress.say(f"the chain diverged with step {config.step:.2g}: once more with a third of it")
                    config = dataclasses.replace(config, step=config.step / 3)
        raise AssertionError("the last attempt returns or raises")

    def _run_chain(self, config: Config, rows: Tensor, valid: Tensor, blur: float, progress: Progress) -> "_Learnt":
        method, rng = build(config, self._facts()), generator("cpu", config.seed, "blur")
        seen = _blurred(rows, blur, rng)
        state = init(method, seen)
        samples: list[Tensor] = []
        history: list[dict[str, Any]] = []
        for state, record in protocol.fit(method, seen, valid, state):  # noqa: B020 - each state comes from the last
            if record is None:
                continue
            number = state.collected
            if number and protocol.keeps_sample(number, planned(method, state, len(rows)), self.keep):
                samples.append(state.theta.theta.clone())
            history.append({name: getattr(record, name) for name in ("epoch", "phase", "train", "valid")})
            last = finished(method, state)
            line = f"epoch {record.epoch} of at most {config.epochs}  valid {record.valid:.3f}  {record.phase}"
            progress.show(line, last)
            if blur and not last:
                seen.copy_(_blurred(rows, blur, rng))
        mean = state.mean.float()
        answering = [mean, *(samples if self.of == "ensemble" else [])]
        proposals = []
        for i, theta in enumerate(answering):
            progress.show(f"fitting proposal {i + 1} of {len(answering)}")
            proposals.append(refit(method, theta, state.phi.theta, seen, self.refit))
        return _Learnt(config, mean, torch.stack(samples), torch.stack(proposals), history)

    # Answers

    @property
    def posterior_(self) -> Posterior:
        """What was learnt, as a `Posterior`; of a real table it takes and gives rows in standardised units.

        These are (x - offset_) / scale_ of the columns that vary. It is built anew each time, so that the estimator
        holds nothing but arrays. It fits no proposals: where the estimator answers by its mean, an ensemble has the
        proposal of the mean.
        """
        check_is_fitted(self)
        samples = [torch.tensor(theta) for theta in self.samples_]  # copies: joblib may map the arrays read-only
        found = Posterior(
            method=self._method(),
            phi=torch.tensor(self.proposals_[0]),
            last_theta=samples[-1],
            mean_theta=torch.tensor(self.weights_),
            thetas=samples,
            train=self._two_rows,
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
        rows = self._table(X)
        standard = self._read(rows, codes=False).log_likelihood
        found: np.ndarray = standard - np.log(self.scale_[self.varies_]) @ ~missing_mask(rows.numpy()).T
        return found

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of `score_samples`: the higher, the better."""
        return float(self.score_samples(X).mean())

    def transform(self, X: Any) -> np.ndarray:
        """E[z | x], the mean codes of all hidden layers beside each other, from the data upward."""
        rows = self._table(X)
        self._check_hidden()
        return self._read(rows, codes=True).codes

    def inverse_transform(self, X: Any) -> np.ndarray:
        """E[x | z] for codes z of the first hidden layer; codes of further layers may stand behind them."""
        check_is_fitted(self)
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
        framed: np.ndarray = self._framed(self._from_model(torch.stack(found).mean(0)), X)
        return framed

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """New rows: of type uint8 where the table was 0/1, else float64."""
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        rows = self._from_model(self.posterior_.sample(n_samples, of=self.of, seed=seed))
        found: np.ndarray = self._framed(rows.astype(np.uint8) if self.kind_ == "binary" else rows)
        return found

    def impute(self, X: Any, draws: int = 20) -> np.ndarray:
        """X with each NaN replaced by what is expected there given the rest of the row; of 0/1, the likelier one."""
        table = self._table(X, allow_missing=True)
        with use_threads(self._config.threads):
            expected = self.posterior_.impute(table.numpy(), draws=draws, of=self.of, seed=self._config.seed).mean
        if self.kind_ == "binary":
            expected = expected > 0.5
        given = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan")
        found: np.ndarray = self._framed(np.where(np.isnan(given), self._from_model(expected), given), X)
        return found

    # In between

    def _read(self, rows: Tensor, codes: bool) -> "_Answers":
        """Rows one at a time, each with a generator of its own, made from what the row is.

        A batch would be some three times as fast, but then a row's answer would depend on which rows came with it.
        Of 0/1 tables, codes of rows with few effective draws are found by chains that move, some 40 ms a row.
        """
        pairs, annealed = self._pairs(), getattr(self, "estimate_", "draws") == "annealing"
        moves = codes and is_swept(pairs[0].model)
        log_likelihood, found_codes = np.empty(len(rows)), np.empty((len(rows), sum(self.hidden_)))
        with use_threads(self._config.threads):
            for i, row in enumerate(rows.split(1)):
                rng = generator("cpu", self._config.seed, "look", row.numpy().tobytes().hex())
                bounds = self._annealed(pairs, row, rng) if annealed and (len(pairs) > 1 or not codes) else None
                if codes or bounds is None:
                    found = read(pairs, row, self.draws, rng, moves=moves, log_likelihood=bounds)
                    bounds = found.log_likelihood
                    found_codes[i] = np.concatenate([[], *(layer[0].numpy() for layer in found.codes)])
                log_likelihood[i] = np.logaddexp.reduce(bounds[:, 0].double().numpy()) - math.log(len(pairs))
        return _Answers(log_likelihood, found_codes)

    def _annealed(self, pairs: Sequence[Pair], rows: Tensor, rng: torch.Generator) -> Tensor:
        """log p(x) by each of the pairs (pairs, rows)."""
        how = ScoreConfig(temperatures=TEMPERATURES).annealing(pairs[0].model, pairs[0].proposal)
        how = dataclasses.replace(how, chains=CHAINS)
        return torch.stack([how.log_likelihood(pair, rows.float(), rng).log_likelihood.float() for pair in pairs])

    def _choose(self, valid: Tensor) -> Estimator:
        """By what rows are scored, from a few of the validation rows."""
        pairs, trial = self._pairs(), valid[:: trial_stride(len(valid))]
        rng = generator("cpu", self._config.seed, "trial")
        if not self.hidden_ or not is_swept(pairs[0].model):  # Hamiltonian moves would take a second a row
            return "draws"
        if trial.isnan().any() and not pairs[0].data_layer[0].factorised:
            return "draws"
        with use_threads(self._config.threads):
            return larger(
                lambda: read(pairs, trial, self.draws, rng).log_likelihood.logsumexp(0),
                lambda: self._annealed(pairs, trial, rng).logsumexp(0),
                PAYS,
            ).estimator

    def _method(self) -> Method:
        return build(self._config, self._facts())

    def _pairs(self) -> list[Pair]:
        """The weights that answer, each with its proposal."""
        method = self._method()
        thetas = [self.weights_] if len(self.proposals_) == 1 else self.samples_
        return [
            Pair(method.model, torch.tensor(theta), method.proposal, torch.tensor(phi))
            for theta, phi in zip(thetas, self.proposals_[-len(thetas) :], strict=True)
        ]

    def _table(self, X: Any, allow_missing: bool = False) -> Tensor:
        """A table like the one that was learnt from, as the model sees it."""
        check_is_fitted(self)
        finite = "allow-nan" if allow_missing or self._has_missing else True
        return self._rows(self._numbers(X, reset=False, ensure_all_finite=finite))

    def _numbers(self, X: Any, **how: Any) -> np.ndarray:
        """The table by scikit-learn's checks, which let dates through."""
        try:
            X = validate_data(self, X, dtype="numeric", **how)
        except np.exceptions.DTypePromotionError as error:
            raise UserError("the table has dates among its numbers: leave them out or convert them") from error
        if X.dtype.kind not in "biuf":
            raise UserError(f"the table holds values of type {X.dtype}: expected real numbers; convert it first")
        found: np.ndarray = X
        return found

    def _rows(self, X: np.ndarray) -> Tensor:
        if self.kind_ == "real":
            standard = (X[:, self.varies_] - self.offset_[self.varies_]) / self.scale_[self.varies_]
            return torch.as_tensor(standard.clip(-FARTHEST, FARTHEST).astype(np.float32))
        missing = missing_mask(X)
        bad = (X != 0) & (X != 1) & ~missing
        if bad.any():
            at = first_place(bad)
            raise UserError(
                f"the data layer draws 0 or 1, but row {at[0]}, column {at[1]} is {X[at]:.6g}: binarise the table (for "
                f"example with sklearn's Binarizer), or fit with a real data layer such as layer='gaussian,normal'"
            )
        return torch.as_tensor(X.astype(np.float32 if missing.any() else np.uint8))

    def _from_model(self, rows: Any) -> np.ndarray:
        """Rows of the model in the table's own units, with the constant columns."""
        table = np.tile(self.offset_, (len(rows), 1))
        table[:, self.varies_] += np.asarray(rows, dtype=np.float64) * self.scale_[self.varies_]
        return table

    def _two_rows(self) -> Tensor:
        """In place of the training rows, which are not kept: two with their mean and spread, all that is asked."""
        return torch.as_tensor(np.stack([self._mean - self._spread, self._mean + self._spread]))

    def _framed(self, rows: np.ndarray, like: Any = None) -> Any:
        """As a pandas frame with the table's columns, where `set_output` asks for one."""
        wish = getattr(self, "_sklearn_output_config", {}).get("transform") or get_config()["transform_output"]
        if wish != "pandas":
            return rows
        import pandas

        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(rows.shape[1])])
        return pandas.DataFrame(rows, columns=names, index=getattr(like, "index", None))

    def _check_hidden(self) -> None:
        if not self.hidden_:
            raise UserError("a model with hidden=() has no codes: fit one with at least one hidden layer")

    @property
    def _n_features_out(self) -> int:
        return sum(self.hidden_)


class DeepImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Missing values of a table completed by the best of several generative models, as a scikit-learn transformer.

    Columns may be numbers, or in a DataFrame texts, categories and booleans: their kinds are guessed as `doubly fill`
    does. Values that are there are never changed. What is missing becomes its expectation; of a category its likeliest
    level, of whole numbers of few values the one in the middle.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 1)) + 0.1 * rng.normal(size=(60, 3))
    >>> X[0, 0] = np.nan
    >>> completed = DeepImputer(epochs=4, random_state=0).fit_transform(X)
    >>> bool(np.isnan(completed).any()), completed.shape
    (False, (60, 3))

    Parameters
    ----------
    minutes : float
        Time to learn, at most.
    epochs : "auto" or int
        Epochs of each candidate, at most; "auto" lets the time and the size of the table decide.
    random_state : int, RandomState or None
    verbose : bool
        Show on standard error how the candidates compare.

    Attributes
    ----------
    kinds_ : doubly.data.Kinds
        What each column was taken for, and which were left out: these come back as they are.
    chosen_ : str
        The candidate or base line that answers.
    scores_ : dict
        Mean log-likelihood of held-out rows, in scaled units, of every candidate and base line.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "minutes": [Interval(Real, 0, None, closed="neither")],
        "epochs": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self, minutes: float = 2.0, *, epochs: str | int = "auto", random_state: Any = None, verbose: bool | int = False
    ):
        self.minutes = minutes
        self.epochs = epochs
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the density of the rows of X, of what is there; y is not looked at."""
        self._validate_params()
        table = self._table(X, reset=True)
        self.kinds_ = guess(sheet_of(table))
        empty = [each.name for each in self.kinds_.left_out if not each.value and "no value" in each.why]
        if empty:
            raise UserError(f"column {empty[0]} has no value in any row: leave it out")
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = self.kinds_.columns.encode(table)
        with use_threads(1), Progress(quiet=not self.verbose) as progress:
            self._learnt = learn(
                self.kinds_.columns, torch.as_tensor(rows.clip(-FARTHEST, FARTHEST).astype(np.float32)),
                minutes=self.minutes, seed=self._seed, epochs=0 if isinstance(self.epochs, str) else self.epochs,
                tell=progress.say,
            )  # fmt: skip
        self.chosen_, self.scores_ = self._learnt.name, self._learnt.scores
        return self

    def transform(self, X: Any) -> Any:
        """X with every missing value replaced."""
        return self._completed(X, 0)[0]

    def draws(self, X: Any, copies: int = 5) -> list[Any]:
        """Several copies of X whose missing values are drawn: for multiple imputation, with `doubly.pool`."""
        if copies < 1:
            raise UserError(f"the number of copies must be at least 1, got {copies}")
        return self._completed(X, copies)[1:]

    def _completed(self, X: Any, copies: int) -> list[Any]:
        check_is_fitted(self)
        table = self._table(X, reset=False)
        columns = self.kinds_.columns
        rows = torch.as_tensor(columns.encode(table, {}).clip(-FARTHEST, FARTHEST).astype(np.float32))
        at = np.flatnonzero(rows.isnan().any(1).numpy())
        decoded: list[dict[str, list[Any]]] = [{}] * (copies + 1)
        if len(at):
            with use_threads(1):
                found = complete(self._learnt, rows[torch.as_tensor(at)], max(copies, 1), self._seed)
            decoded = [columns.decode(each) for each in (found.expected, *found.copies[:copies])]
        return [self._merged(X, table, at, values) for values in decoded]

    def _merged(self, X: Any, table: dict[str, Any], at: np.ndarray, values: dict[str, list[Any]]) -> Any:
        """The table as it was, with these values where cells were missing."""
        import pandas

        frame = pandas.DataFrame(table) if not hasattr(X, "columns") else X.copy()
        for place, name in enumerate(table):
            column, missing = frame.iloc[:, place], pandas.isna(frame.iloc[:, place]).to_numpy()
            constant = next((each.value for each in self.kinds_.left_out if each.name == name and each.value), None)
            if constant is not None and missing.any():
                column = column.where(~missing, float(constant) if column.dtype.kind in "iuf" else constant)
            elif name in values:
                new = pandas.Series(values[name], index=column.index[at])
                wanted = missing[at]
                column = column.copy()
                column.iloc[at[wanted]] = _like(column, new[wanted].tolist())
            frame.isetitem(place, column)
        wish = getattr(self, "_sklearn_output_config", {}).get("transform") or get_config()["transform_output"]
        return frame if wish == "pandas" else frame.to_numpy()

    def _table(self, X: Any, reset: bool) -> dict[str, Any]:
        """Columns by name: a DataFrame's own, or numbered ones of an array of numbers."""
        if hasattr(X, "columns") and any(kind.kind not in "iuf" for kind in map(np.dtype, _dtypes(X))):
            _check_feature_names(self, X, reset=reset)
            _check_n_features(self, X, reset=reset)
            least = LEAST_ROWS if reset else 1
            if len(X) < least:
                raise UserError(f"found {len(X)} rows while a minimum of {least} is required")
            return {str(name): X[name] for name in X.columns}
        how = {"ensure_min_samples": LEAST_ROWS} if reset else {"reset": False}
        rows = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", **how)
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(rows.shape[1])])
        return {str(name): rows[:, i] for i, name in enumerate(names)}


def _dtypes(X: Any) -> list[Any]:
    """NumPy types of the columns of a frame; what pandas has of its own counts as objects."""
    return [kind if isinstance(kind, np.dtype) else np.dtype(object) for kind in X.dtypes]


def _like(column: Any, values: list[Any]) -> list[Any]:
    """Values as a column has them: booleans come back as booleans, not as words."""
    kinds = {type(value) for value in column.dropna().tolist()[:100]}
    if kinds == {bool}:
        return [value == "True" if isinstance(value, str) else bool(value) for value in values]
    return values


class _Learnt(NamedTuple):
    """What a chain came to."""

    config: Config
    mean: Tensor
    samples: Tensor
    proposals: Tensor
    history: list[dict[str, Any]]


class _Answers(NamedTuple):
    """What the draws for each row say."""

    log_likelihood: np.ndarray
    codes: np.ndarray


def _blurred(rows: Tensor, blur: float, rng: torch.Generator) -> Tensor:
    return rows + blur * normal(rows.shape, rng) if blur else rows
