"""What a report tells of: a run with its data, records and posterior, and what several sections need of them.

Work is bounded: so many rows are looked at, with so many draws. Nothing is written into the run but the report.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from doubly.analysis.evaluation import FiledEvaluation
from doubly.analysis.report.mixture import CellKinds, Mixture, best_mixture
from doubly.core.cache import Cache, Tensors
from doubly.core.errors import Damaged, UserError
from doubly.core.sealed import MOST_JSON, load_json
from doubly.core.types import Of, Split
from doubly.data import Data, missing_mask
from doubly.latents import LikelihoodConfig, RowLikelihoods, is_exact
from doubly.latents.likelihood import HEAVY_ROWS, RELIABLE
from doubly.posterior.estimates import Estimator, ScoreConfig
from doubly.posterior.store import Posterior
from doubly.posterior.work import digest
from doubly.runs.folder import Run

Record = dict[str, Any]
"""An epoch in metrics.jsonl."""
Work = TypeVar("Work")

TEST_ROWS = 300
"""Held-out rows that are scored for the report."""
DRAWS, TEMPERATURES = 200, 100
"""Draws of the latents for each of them, and temperatures where annealing is nearer."""
MOST_CELLS = 4_000_000
"""Rows x entries of the latent layers and of the data: wide models are shown with fewer rows."""
SAMPLES = 1000
"""Rows drawn from the model."""
TRAINING_ROWS = 2000
"""Training rows that a proposal is fitted to, and among which nearest rows are looked for."""
MEMBERS = 8
"""Samples of the weights of several chains that answer for the report, at least one of each."""
REFIT, STEPS = 10, 300
"""Passes over them, at most, where no proposal was fitted before, and steps that all passes come to, about."""


class ReadOnly:
    """A cache that is read and never written to: a report leaves a run as it is."""

    def __init__(self, inner: Cache):
        self._inner = inner

    def get(self, name: str) -> Tensors | None:
        return self._inner.get(name)

    def put(self, name: str, tensors: Tensors) -> None:
        pass

    def drop(self, name: str) -> None:
        pass


class Graded(NamedTuple):
    """The log-likelihood of some held-out rows, and how it was found."""

    numbers: np.ndarray
    """Which rows of the split."""
    rows: np.ndarray
    log_likelihood: np.ndarray
    """In nats, in the units of the table."""
    estimator: Estimator
    by_draws: RowLikelihoods
    """What the draws say of how far to trust them."""

    def how(self) -> str:
        """In words."""
        if self.estimator == "exact":
            return "exact"
        if self.estimator == "annealing":
            return f"by annealing with {TEMPERATURES} temperatures"
        return f"by {DRAWS} draws of the latent variables for each row"


@dataclasses.dataclass
class Story:
    """A run as its report tells it; `others` are runs to compare it with."""

    run: Run
    data: Data
    metrics: list[Record]
    posterior: Posterior
    evaluations: "dict[str, Record]"
    """What `doubly evaluate` and others have filed, by name."""
    others: "Sequence[Story]" = ()
    most_rows: int = TEST_ROWS
    """Held-out rows that are scored, at most: of runs compared, the same."""
    _done: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(cls, folder: str | Path, others: Sequence[str | Path] = ()) -> "Story":
        """Read a run; what cannot be read is refused here, before any work is done."""
        run = Run(folder)
        metrics = run.metrics()
        if not metrics:
            raise UserError(
                f"{run.path} has finished no epoch yet: let doubly fit (or doubly resume) run a little longer"
            )
        data, posterior = run.data(), run.posterior()
        found = cls(run, data, metrics, posterior, filed(run), [cls.open(other) for other in others])
        found.posterior = found._bounded(posterior)
        together = [found, *found.others]
        for each in together:
            each.most_rows = min(one._affordable for one in together)
        return found

    def _bounded(self, posterior: Posterior) -> Posterior:
        """The same posterior: its proposal is fitted to few rows, unless one is stored, and nothing is written."""
        theta = posterior.last_theta if posterior.mean_theta is None else posterior.mean_theta
        pattern = rf"posterior/proposal-{digest(theta, posterior.phi)}-(\d{{1,6}})(-moved)?\.safetensors"
        stored = [re.fullmatch(pattern, name) for name in self.run.folder.names("posterior", r"proposal-.*")]
        passes = [int(found[1]) for found in stored if found]
        rows = self._spaced(len(self.data.train), TRAINING_ROWS)
        device = posterior.phi.device
        if posterior.others:
            posterior = posterior.thinned(MEMBERS)
        return dataclasses.replace(
            posterior,
            refit_passes=max(passes, default=self.passes(len(rows))),
            train=lambda: torch.as_tensor(self.data.train[rows]).to(device),
            cache=ReadOnly(posterior.cache),
        )

    def passes(self, rows: int) -> int:
        """Passes that fit a proposal to so many rows, within the steps that a report may take."""
        a_pass = max(1, rows // max(1, self.run.config.batch))
        return max(2, min(REFIT, STEPS // a_pass))

    # What is asked of the weights

    @property
    def of(self) -> Of:
        """The weights that answer."""
        if self.posterior.mean_theta is None:
            return "last"
        return "ensemble" if self.posterior.others else "mean"

    @property
    def whose(self) -> str:
        if self.of == "ensemble":
            chains = 1 + len(self.posterior.others)
            return f"an ensemble of {len(self.posterior.samples())} samples of the weights, from {chains} chains"
        return "the posterior mean of the weights" if self.of == "mean" else "the last sample of the weights"

    @property
    def whose_theta(self) -> str:
        mean = "the last sample of the weights" if self.of == "last" else "the posterior mean of the weights"
        return f"{mean} of the first chain" if self.posterior.others else mean

    @property
    def theta(self) -> torch.Tensor:
        """One set of weights, to look at: of several chains, the mean of the first."""
        return self.one.last() if self.of == "last" else self.one.mean()

    @property
    def one(self) -> Posterior:
        """The first chain alone: latent units of several need not correspond."""
        return dataclasses.replace(self.posterior, others=())

    @property
    def exact(self) -> bool:
        """Whether the model has no latents to draw."""
        return is_exact(self.posterior.model, self.posterior.method.proposal)

    @property
    def images(self) -> bool:
        return len(self.data.shape) == 2

    @property
    def table(self) -> bool:
        """Whether the columns are of all kinds."""
        return self.data.kind == "mixed" and self.data.columns is not None

    @property
    def name(self) -> str:
        return self.run.path.name or str(self.run.path)

    def once(self, name: str, work: "Callable[[Story], Work]") -> Work:
        """The result of work that several sections share."""
        if name not in self._done:
            self._done[name] = work(self)
        found: Work = self._done[name]
        return found

    # Rows

    def some(self, split: Split, most: int) -> tuple[np.ndarray, np.ndarray]:
        """At most so many rows of a split, evenly spaced, and their numbers."""
        rows = self.data.split(split)
        index = self._spaced(len(rows), most)
        return index, rows[index]

    @staticmethod
    def _spaced(n: int, most: int) -> np.ndarray:
        return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))

    @property
    def _affordable(self) -> int:
        """Rows whose scoring the report can afford."""
        cells = DRAWS * (self.data.width + sum(self.run.config.hidden) + 1)
        deep = 40 * MOST_CELLS // (cells * max(1, sum(self.run.config.hidden) // 100 + 1))
        return int(min(TEST_ROWS, max(20, deep)))

    @cached_property
    def samples(self) -> np.ndarray:
        """Rows drawn from the model."""
        cells = max(100, min(SAMPLES, 20 * MOST_CELLS // max(1, self.data.width)))
        return self.posterior.sample(cells, self.of)

    @cached_property
    def graded(self) -> Graded:
        """Held-out rows with their log-likelihoods, by draws or by annealing, whichever is nearer."""
        return self.grade(self._chosen)

    @cached_property
    def _chosen(self) -> Estimator:
        """Annealing is tried where the draws miss much, and only with binary latents, where it is quick."""
        if self.exact:
            return "exact"
        heavy = float((self._by_draws.khat > RELIABLE).double().mean())
        quick = all(layer.kind == "binary" for layer in self.posterior.model.layers[1:])
        if heavy <= HEAVY_ROWS or not quick:
            return "draws"
        rows = self.posterior.rows(self._test[1])
        return self.posterior.choose(self._how, rows, None, self.of).estimator

    @property
    def can_anneal(self) -> bool:
        """Whether annealing serves this model and these rows."""
        return self.posterior.can_anneal(self._how, self.posterior.rows(self._test[1]))

    def grade(self, estimator: Estimator) -> Graded:
        """The same by one estimate."""
        index, rows = self._test
        values = self._by_draws if estimator != "annealing" else self._score("annealing")
        return Graded(
            index, rows, values.log_likelihood.double().cpu().numpy() - self.units(rows), estimator, self._by_draws
        )

    @cached_property
    def _test(self) -> tuple[np.ndarray, np.ndarray]:
        return self.some("test", self.most_rows)

    @cached_property
    def _by_draws(self) -> RowLikelihoods:
        return self._score("draws")

    def _score(self, estimator: Estimator) -> RowLikelihoods:
        return self.posterior.score_by(estimator, self.posterior.rows(self._test[1]), self._how, self.of)

    @property
    def _how(self) -> ScoreConfig:
        return ScoreConfig("auto", LikelihoodConfig(draws=DRAWS), TEMPERATURES)

    def units(self, rows: np.ndarray) -> np.ndarray:
        """What a density in the model's units has more than one in those of the table, row by row."""
        if self.data.columns is None or not self.data.columns.log_scale.any():
            return np.zeros(len(rows))
        return np.asarray(~missing_mask(rows) @ self.data.columns.log_scale)

    @cached_property
    def simple(self) -> tuple[Mixture, Mixture]:
        """Independent columns, and a mixture chosen by validation."""
        return best_mixture(self.data.split("train"), self.data.split("valid"), CellKinds.of(self.data))


def filed(run: Run) -> dict[str, Record]:
    """What lies in evaluations/, by name; a damaged file is refused."""
    found = {}
    for name in run.folder.names("evaluations", r".*\.json"):
        try:
            content = load_json(run.folder.read(name, MOST_JSON) or b"", run.path / name, required=False)
        except Damaged as error:
            raise UserError(f"{error}; remove it and run doubly evaluate again") from None
        found[Path(name).stem] = content
    return found


def scores(evaluations: dict[str, Record]) -> dict[str, FiledEvaluation]:
    """Those of them that are log-likelihoods of a split."""
    found = {name: FiledEvaluation.from_json(record) for name, record in evaluations.items() if not is_curve(name)}
    return {name: evaluation for name, evaluation in found.items() if evaluation}


def is_curve(name: str) -> bool:
    """Whether `doubly curve` has filed it."""
    return name.startswith("curve-")
