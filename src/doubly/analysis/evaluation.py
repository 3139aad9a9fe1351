"""The results of evaluations: the log-likelihood of one run, a comparison of several, a curve."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from doubly.analysis.config import EvaluateConfig
from doubly.analysis.estimators import Trust
from doubly.analysis.results import Result, fields_of, plain, plus_minus
from doubly.core.sealed import is_number
from doubly.core.statistics import stderr
from doubly.core.types import Over, Split
from doubly.latents import RowLikelihoods
from doubly.posterior.estimates import Chosen
from doubly.posterior.scores import LikelihoodSummary

WEIGHTS = {"mean": "mean of the weights", "last": "last sample of the weights", "ensemble": "ensemble of the weights"}
UNSAID = ("threads", "memory")  # settings that change no result
RENAMED = {"effective": "ess"}  # what files until version 0.2 call it


@dataclass(frozen=True)
class Annealed(Result):
    """The log-likelihood of some rows by annealed importance sampling."""

    n: int
    log_likelihood: float
    stderr: float | None
    gap_on_simulated_rows: float
    """How far apart its bounds from below and above are on rows drawn from the model."""
    gap_stderr: float | None
    above_score: float | None = None
    """How much more it gives than importance sampling gives the same rows, where both were done."""
    above_score_stderr: float | None = None

    def text(self) -> str:
        beside = ""
        if self.above_score is not None:
            beside = f", {self.above_score:+.3f}{plus_minus(self.above_score_stderr)} beside importance sampling"
        return (
            f"annealing gives the first {self.n} rows {self.log_likelihood:.3f}{plus_minus(self.stderr)}{beside}; on "
            f"rows drawn from the model its bounds from below and above are "
            f"{self.gap_on_simulated_rows:.3f}{plus_minus(self.gap_stderr)} apart"
        )

    def to_json(self) -> Any:
        found = super().to_json()
        if self.above_score is None:
            del found["above_score"], found["above_score_stderr"]
        return found


@dataclass(frozen=True)
class Evaluation(Result):
    """The log-likelihood of some rows, how it was found, and how far to trust it."""

    summary: LikelihoodSummary
    rows: RowLikelihoods
    """The log-likelihood of each row."""
    settings: EvaluateConfig
    split: Split | None
    """None where the rows are not of the run's own data."""
    epoch: int
    collected: int
    """Samples that the run had collected."""
    chains: int
    exact: bool
    """Whether the model has no latent variables to draw."""
    truth: float | None = None
    """What the density that made the data gives these rows, where it is known."""
    advice: tuple[str, ...] = ()
    """What may help where rows are unreliable."""
    annealed: Annealed | None = None
    """A second estimate, if it was asked for."""
    chosen: Chosen = field(default_factory=lambda: Chosen("draws"))
    """By which estimate the rows were scored, and why."""
    trust: Trust | None = None
    """Whether the number is settled, if that was looked at."""
    file: str | None = None
    """The file the rows were read from."""

    def text(self) -> str:
        found = self.summary
        how = self._how()
        which = f"rows of {self.file}" if self.file else f"{self.split} rows" if self.split else "given rows"
        lines = [
            f"log-likelihood of {found.n} {which}: {found.log_likelihood:.3f}{plus_minus(found.stderr)} nats "
            f"({WEIGHTS[self.settings.of]}, {how})"
        ]
        if self.chosen.estimator == "draws" and not self.exact:
            lines += self._draws()
        lines += [self._why()] if self.chosen.by_draws is not None else []
        lines += [self._settled()] if self.trust and not self.exact else []
        if found.unreliable:
            lines.append(
                f"warning: {found.unreliable} of {found.n} rows have k̂ > 0.7: their draws miss much of p(z|x); "
                f"try {' or '.join(self.advice)}"
            )
        if self.annealed:
            lines.append(self.annealed.text())
        if self.truth is not None:
            lines.append(f"the data's own density gives {self.truth:.3f}")
        return "\n".join(lines)

    def _how(self) -> str:
        if self.exact:
            return "exact"
        if self.chosen.estimator == "annealing":
            return f"annealed, {self.settings.temperatures} temperatures"
        if self.chosen.estimator == "short-chain":
            return f"short chains of {self.settings.states} states"
        return f"{self.summary.draws_used:.0f} draws, {self.summary.ess:.1f} of them effective"

    def _draws(self) -> list[str]:
        """The error due to the draws, and of which rows they cannot tell."""
        found = self.summary
        error = f"± {found.draw_error:.3f}{' or more' if found.draw_error_is_least else ''} of that is due to the draws"
        lines = ["one draw does not say what of that is due to it" if math.isnan(found.draw_error) else error]
        if found.unknown:
            lines.append(
                f"{found.unknown} of {found.n} rows have too few draws for k̂, or draws of one weight: whether these "
                "miss some of p(z|x) is unknown; see --by annealing"
            )
        return lines

    def _why(self) -> str:
        return (
            f"scored by {self.chosen.estimator}: on validation rows draws of the proposal give "
            f"{self.chosen.by_draws:.3f}, annealing {self.chosen.by_annealing:.3f} (lower bounds: the larger is nearer)"
        )

    def _settled(self) -> str:
        assert self.trust is not None
        gap, moved = self.trust.gap, self.trust.moved
        said = [] if gap is None else [f"on rows of the model the bounds from below and above are {gap:.3f} apart"]
        said += [] if moved is None else [f"ten times the work changes validation rows by {moved:+.3f}"]
        said += [f"{self.trust.heavy:.0%} of them keep a heavy tail (k̂ > 0.7)"] if self.trust.heavy else []
        said += [f"of {self.trust.unknown:.0%} the draws cannot tell"] if self.trust.unknown else []
        return f"{'settled' if self.trust.settled else 'not settled'}: {', '.join(said)}"

    def to_json(self) -> Any:
        left_out = (*UNSAID, *["split"] * (self.split is None))
        settings = {name: value for name, value in vars(self.settings).items() if name not in left_out}
        trusted = None if self.trust is None else fields_of(self.trust)
        optional = {"truth": self.truth, "trust": trusted, "advice": self.advice or None, "annealed": self.annealed}
        return plain({
            **fields_of(self.summary),
            "draw_error_is_least": self.summary.draw_error_is_least,
            "epoch": self.epoch,
            "collected": self.collected,
            "chains": self.chains,
            "exact": self.exact,
            "estimator": self.chosen.estimator,
            **settings,
            **{name: value for name, value in optional.items() if value is not None},
        })  # fmt: skip


@dataclass(frozen=True)
class FiledEvaluation:
    """What a file in RUN/evaluations/ says of an evaluation, of this version or of an earlier one."""

    log_likelihood: float
    stderr: float | None
    draws: int
    ess: float
    split: str
    of: str
    truth: float | None = None
    samples: int | None = None
    adaptive: bool = False
    refine: int = 0
    estimator: str = "draws"
    temperatures: int | None = None
    states: int | None = None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "FiledEvaluation | None":
        """None where the file holds something else."""
        known = {RENAMED.get(name, name): value for name, value in found.items()}
        fields = dataclasses.fields(cls)
        if any(field.default is dataclasses.MISSING and field.name not in known for field in fields):
            return None
        given = {field.name: known[field.name] for field in fields if field.name in known}
        given |= {name: math.nan for name in ("log_likelihood", "ess") if given[name] is None}
        if not all(_is_of(field.type, given[field.name]) for field in fields if field.name in given):
            return None
        return cls(**given)


def _is_of(kind: Any, value: Any) -> bool:
    """Whether a value of JSON is of this type, or of one of those that it names."""
    kinds = get_args(kind) or (kind,)
    return type(value) in kinds or (float in kinds and is_number(value))


@dataclass(frozen=True)
class Difference:
    """How much better one run is than another on the same rows, and the standard error of that."""

    difference: float
    difference_stderr: float | None


def paired(one: RowLikelihoods, other: RowLikelihoods) -> Difference:
    """The mean over rows of the difference. Its error comes from the spread over rows, which includes the draws'."""
    gaps = (one.log_likelihood - other.log_likelihood).double()
    return Difference(gaps.mean().item(), stderr(gaps))


@dataclass(frozen=True)
class Compared:
    """A run in a comparison."""

    run: str
    evaluation: Evaluation
    to_best: Difference


@dataclass(frozen=True)
class Comparison(Result):
    """Several runs on the same rows, the best first."""

    runs: tuple[Compared, ...]

    def text(self) -> str:
        width = max(len(one.run) for one in self.runs)
        return "\n".join(f"{one.run:{width}}  {self._line(one)}" for one in self.runs)

    def _line(self, one: Compared) -> str:
        found, gap = one.evaluation.summary, one.to_best
        behind = f"{gap.difference:9.3f} ± {gap.difference_stderr or 0:.3f}"
        value = f"{found.log_likelihood:9.3f} ± {found.stderr or 0:.3f}"
        return f"{value}  {'     best' if one is self.runs[0] else behind}{doubt(found)}"

    def to_json(self) -> Any:
        return [{"run": one.run, **one.evaluation.to_json(), **fields_of(one.to_best)} for one in self.runs]


@dataclass(frozen=True)
class Point:
    """A point of a curve."""

    at: int
    evaluation: Evaluation


@dataclass(frozen=True)
class Curve(Result):
    """The log-likelihood of a run against a number of samples or draws."""

    over: Over
    points: tuple[Point, ...]
    picture: Path | None = None
    """Once it is drawn."""

    def text(self) -> str:
        lines = []
        for point in self.points:
            found = point.evaluation.summary
            lines.append(f"{point.at:8d}  {found.log_likelihood:9.3f}{plus_minus(found.stderr)}{doubt(found)}")
        return "\n".join([*lines, *[f"picture: {self.picture}"] * (self.picture is not None)])

    def to_json(self) -> Any:
        return [{"at": point.at, **point.evaluation.to_json()} for point in self.points]


def doubt(found: LikelihoodSummary) -> str:
    """A remark behind a number that rests on unreliable rows."""
    said = [f"{found.unreliable} rows with k̂ > 0.7"] if found.unreliable else []
    annealed = math.isnan(found.draw_error)  # or by a short chain: there is no tail of weights to look at
    said += [f"{found.unknown} of unknown k̂"] if found.unknown and not annealed else []
    return f"  ({', '.join(said)})" if said else ""
