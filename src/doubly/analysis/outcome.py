"""What a fit came to, in words: what it gains, whether it can be trusted, and what to change."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from doubly.analysis.convergence import Summary
from doubly.analysis.diagnose import LEAST, Diagnosis, diagnose
from doubly.analysis.results import Result, plus_minus
from doubly.analysis.traces import collected, label
from doubly.analysis.verdict import ENOUGH, MIXED
from doubly.core.statistics import stderr
from doubly.core.types import Of
from doubly.data import Data, missing_mask
from doubly.latents import HEAVY_ROWS, RELIABLE, LikelihoodConfig
from doubly.posterior.estimates import ScoreConfig
from doubly.posterior.scores import summarise
from doubly.runs.baseline import baselines
from doubly.runs.build import build
from doubly.runs.checkpoints import peek_epoch
from doubly.runs.folder import Run
from doubly.runs.plan import TRAINING
from doubly.training.method import Method

ROWS = 300  # validation rows of a short evaluation
SHORT = ScoreConfig(draws=LikelihoodConfig(draws=200), temperatures=100)
REFITTING = 0.6  # of the seconds of a short evaluation
MOST_PASSES = 100
MEMBERS = 8  # samples of the weights in a short evaluation of several chains, at least one of each
WIDER = "a wider prior (--prior student-t:scale=1)"


@dataclass(frozen=True)
class Score(Result):
    """The validation log-likelihood beside that of independent columns, in nats for each row."""

    log_likelihood: float
    stderr: float | None
    independent_columns: float
    gain: float
    gain_stderr: float | None
    n: int
    how: str
    """Which weights, and by which estimate."""
    unreliable: float | None = None
    """The share of rows whose draws have a heavy tail (k̂ > 0.7); None where rows were not scored by draws."""
    unknown: float = 0.0
    """The share of rows of which the draws cannot tell (`posterior.scores.cannot_tell`)."""

    def text(self) -> str:
        gain = f"{abs(self.gain):.3f}{plus_minus(self.gain_stderr)} nats a row"
        against = (
            f"{self.log_likelihood:.3f} against {self.independent_columns:.3f} on {self.n} validation rows ({self.how})"
        )
        if self.clear:
            return f"better than independent columns by {gain}: {against}"
        if self.gain < 0:
            return f"worse than independent columns by {gain}: {against}"
        return f"no clear gain over independent columns, {gain}: {against}"

    @property
    def clear(self) -> bool:
        """Whether the gain is more than two standard errors."""
        return self.gain > 2 * (self.gain_stderr or 0.0)


@dataclass(frozen=True)
class Convergence(Result):
    """Whether the chain has mixed, as far as one chain, or several, can tell."""

    trace: str
    """The trace with the largest R-hat."""
    rhat: float
    chance_rhat: float
    """An R-hat that independent samples, as few as these, exceed once in a hundred times."""
    ess: float
    """Of the trace with the fewest effective samples."""
    samples: int
    """Epochs with samples, of each chain."""
    chains: int = 1
    apart: float | None = None
    """How far apart the mean validation log-likelihoods of the halves of all chains are, in nats."""

    @property
    def mixed(self) -> bool:
        return not self.rhat > max(MIXED, self.chance_rhat)

    def text(self) -> str:
        many = self.chains > 1
        between = f"over {self.chains} chains" if many else "between its halves"
        rhat = f"R-hat {between} is {self.rhat:.2f} at most ({self.trace})"
        each = f" of each of {self.chains} chains" if many else ""
        worth = f"{self.samples} epochs of samples{each} are worth {self.ess:.0f} independent ones"
        which = "the chains have" if many else "the chain has"
        if self.rhat > MIXED and self.mixed:
            return f"too few samples to tell whether {which} mixed: {rhat}; {worth}"
        if self.mixed:
            witness = f"{self.chains} chains" if many else "one chain"
            return f"{which} mixed, as far as {witness} can tell: {rhat}; {worth}"
        matters = "" if self.apart is None else f"; halves differ by {self.apart:.2f} nats in validation"
        return f"{which} not mixed: {rhat}{matters}; {worth}"


@dataclass(frozen=True)
class Outcome(Result):
    """What a fit came to."""

    run: str
    epochs: int
    collected: int
    seconds: float
    """Spent on training."""
    score: Score | None
    """None where the records of its epochs are lost."""
    convergence: Convergence | None
    verdict: list[str]
    advice: list[str]
    chains: int = 1
    """Chains that are left, and so answer."""
    lost: dict[int, str] = field(default_factory=dict)
    """The chains that are not, and why."""

    def text(self) -> str:
        many = f"{self.chains} chains, " if self.chains + len(self.lost) > 1 else ""
        lines = [f"{self.run}: {many}{self.epochs} epochs, {self.collected} samples of the weights"]
        lines += [f"  {line}" for line in self.verdict]
        return "\n".join(lines + [f"  to change: {'; '.join(self.advice)}"] * bool(self.advice))


def outcome(run: Run, evaluate: bool = False, until: float = math.inf) -> Outcome:
    """What a run has come to by its records; with `evaluate`, by a short evaluation in what its minutes leave.

    The diagnosis, which is quick, is made first, in the same time. `until` (`time.monotonic`) is when the minutes are
    over, if that comes first.
    """
    deadline = min(until, time.monotonic() + 60 * run.config.minutes * (1 - TRAINING))
    chains = [each for chain in run.chains if (each := chain.metrics())]
    if not chains:
        lost = "its records (metrics.jsonl) are lost: doubly evaluate tells what it is worth"
        done = max(peek_epoch(chain.folder) for chain in run.chains)
        return Outcome(str(run.path), done, 0, 0.0, None, None, [lost], [])
    records, data, method = chains[0], run.data(), build(run.config, run.facts)
    spent = max(sum(record.get("seconds", 0.0) for record in each) for each in chains)
    found = _diagnosis(run, method, chains)
    score = _evaluated(run, data, method, records, deadline) if evaluate else None
    score = score or _recorded(data, method, chains)
    convergence = _convergence(found) if found else None
    return Outcome(
        run=str(run.path),
        epochs=max(len(each) for each in chains),
        collected=sum(each[-1]["collected"] for each in chains),
        seconds=round(spent, 1),
        score=score,
        convergence=convergence,
        verdict=[*_lost(run), *_words(method, records, score, convergence, found)],
        advice=list(_advice(run, method, chains, score, convergence)),
        chains=len(run.chains),
        lost=run.lost,
    )


def _lost(run: Run) -> Iterator[str]:
    for number, why in run.lost.items():
        yield f"chain {number} is lost: {why}; answers are without it"


def _words(
    method: Method,
    records: Sequence[dict[str, Any]],
    score: Score,
    convergence: Convergence | None,
    found: Diagnosis | None,
) -> Iterator[str]:
    yield score.text()
    if not method.sampler.noisy:
        yield "weights were optimised, not sampled: nothing here says how uncertain they are"
    elif convergence is None:
        yield f"too few samples to tell whether the chain has mixed (a diagnosis needs {LEAST} epochs of them)"
    else:
        yield convergence.text()
    if score.unreliable is not None:
        yield _reliability(score.unreliable, score.unknown)
    elif method.model.layers[1:] and records[-1]["ess"] and not math.isnan(records[-1]["ess"]):
        yield f"proposals: the draws for a row in a training step are worth {records[-1]['ess']:.1f} equal ones"
    if found is not None and found.temperature is not None:
        yield found.temperature.text()


def _reliability(heavy: float, unknown: float) -> str:
    """What k̂ says of the proposal: of rows of which it says nothing, neither good nor bad."""
    few = max(heavy, unknown) > HEAVY_ROWS
    said = f"proposals are {'reliable only' if few else 'reliable'} for {1 - heavy - unknown:.0%} of the rows"
    said += f" (k̂ ≤ {RELIABLE})"
    said += f", and of {unknown:.0%} the draws cannot tell" if unknown else ""
    return said + (": scores by draws are too low" if heavy > HEAVY_ROWS else "")


def _advice(
    run: Run, method: Method, chains: Sequence[Sequence[dict[str, Any]]], score: Score, convergence: Convergence | None
) -> Iterator[str]:
    which = "the chains have" if len(chains) > 1 else "the chain has"
    why = [
        *["little was learnt"] * (not score.clear),
        *["validation still rose when burn-in had to end"] * any(_hurried(method, records) for records in chains),
        *[f"{which} not mixed"] * (convergence is not None and not convergence.mixed),
    ]
    if why:
        yield f"more time ({'--minutes' if run.config.minutes else '--epochs'}), since {' and '.join(why)}"
    if not score.clear:
        yield WIDER
    if convergence and convergence.mixed and convergence.ess < ENOUGH:
        yield f"more samples (--collect): with fewer than {ENOUGH} effective ones, R-hat itself is rough"
    if score.unreliable is not None and score.unreliable > HEAVY_ROWS:
        yield "doubly evaluate --by annealing, or a longer --refit, for tighter scores"


def _hurried(method: Method, records: Sequence[dict[str, Any]]) -> bool:
    """Whether validation had risen within its patience when samples had to be collected."""
    burn_in = [record["valid"] for record in records if record["phase"] != "collect"]
    if method.warmup or not method.collect or len(burn_in) < 2:
        return False
    return len(burn_in) - 1 - int(np.argmax(burn_in)) < method.patience


# The score


def _recorded(data: Data, method: Method, chains: Sequence[Sequence[dict[str, Any]]]) -> Score:
    """By what was recorded of the epochs with samples, or of the last, over all chains."""
    sampled = [record["valid"] for records in chains for record in records if record["phase"] == "collect"]
    sampled = sampled or [records[-1]["valid"] for records in chains]
    last, base = chains[0][-1], independent(data, data.valid)
    if not method.model.layers[1:]:
        how = "exact"
    else:
        kind = "temperatures" if "annealed" in method.estimator.validation else "draws"
        how = f"{method.valid_draws} {kind}"
    which = f"single samples of the weights, {how}" if method.sampler.noisy else f"last weights, {how}"
    gain = float(np.mean(sampled)) - float(base.mean())
    error = last["valid_stderr"]
    return Score(float(np.mean(sampled)), error, float(base.mean()), gain, error, len(data.valid), which)


def _evaluated(
    run: Run, data: Data, method: Method, records: Sequence[dict[str, Any]], deadline: float
) -> Score | None:
    """By a short evaluation of the posterior mean, or of an ensemble of several chains; None if time runs out first."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        return None
    pace = float(np.mean([record.get("seconds", 0.0) for record in records[-5:]]))
    members = max(len(run.chains), MEMBERS) if run.config.chains > 1 else 1
    passes = int(min(MOST_PASSES, max(1, REFITTING * seconds / max(pace, 1e-6) / members)))
    rows = data.valid[:: max(1, math.ceil(len(data.valid) / ROWS))]

    def watch(what: str, share: float) -> None:
        if time.monotonic() > deadline:
            raise _Enough

    posterior = run.posterior(refit_passes=passes, progress=watch)
    of: Of = "auto" if posterior.collected else "last"
    if posterior.others:
        posterior = posterior.thinned(members)
        of = "ensemble" if posterior.pairs() else "last"
    try:
        given = posterior.rows(rows)
        estimator = posterior.choose(SHORT, given, None, of).estimator
        found = posterior.score_by(estimator, given, SHORT, of)
    except _Enough:
        return None
    posterior.tidy()
    values, base = found.log_likelihood.double().cpu().numpy(), independent(data, rows)
    short = {"exact": "exact", "annealing": f"annealed, {SHORT.temperatures} temperatures", "draws": "200 draws"}
    summary = summarise(found)
    whose = "last weights" if of == "last" else "mean of the weights"
    if of == "ensemble":
        whose = f"ensemble of {len(posterior.samples())} samples of the weights"
    gains = values - base
    return Score(
        log_likelihood=float(values.mean()),
        stderr=stderr(torch.as_tensor(values)),
        independent_columns=float(base.mean()),
        gain=float(gains.mean()),
        gain_stderr=stderr(torch.as_tensor(gains)),
        n=len(rows),
        how=f"{whose}, {short[estimator]}",
        unreliable=summary.unreliable / summary.n if estimator == "draws" else None,
        unknown=summary.unknown / summary.n if estimator == "draws" else 0.0,
    )


class _Enough(Exception):
    """Time is over."""


def independent(data: Data, rows: np.ndarray) -> np.ndarray:
    """log p of each row if columns were independent, each with the distribution it has in the training rows.

    Bits have their frequency, with half a row of each value added; real columns are normal. Missing cells are left out.
    """
    if data.kind == "mixed" and data.columns is not None:
        base = baselines(data.columns.layout(), torch.as_tensor(data.train).float())
        alone: np.ndarray = base.log_prob(torch.as_tensor(rows).float())["independent columns"].numpy()
        return alone
    train, rows = data.train.astype(float) / (255 if data.dynamic else 1), rows.astype(float)
    missing = missing_mask(rows)
    if data.kind == "binary":
        seen = (~missing_mask(train)).sum(0)
        share = (np.nansum(train, 0) + 0.5) / (seen + 1)
        found = rows * np.log(share) + (1 - rows) * np.log1p(-share)
    else:
        mean, spread = np.nanmean(train, 0), np.nanstd(train, 0).clip(1e-3)
        found = -(((rows - mean) / spread) ** 2) / 2 - np.log(spread * math.sqrt(2 * math.pi))
    total: np.ndarray = np.where(missing, 0.0, found).sum(1)
    return total


# The chain


def _diagnosis(run: Run, method: Method, chains: Sequence[Sequence[dict[str, Any]]]) -> Diagnosis | None:
    collected = min(
        sum(record["phase"] == "collect" and record["epoch"] > method.warmup for record in records)
        for records in chains
    )
    return diagnose(run.path, units=False) if method.sampler.noisy and collected >= LEAST else None


def _convergence(found: Diagnosis) -> Convergence | None:
    moving: dict[str, Summary] = {name: each for name, each in found.relevant.items() if each.sd > 0}
    if not moving:
        return None
    worst = max(moving, key=lambda name: moving[name].rhat)
    least = min(each.ess_bulk for each in moving.values())
    valid = collected(found.histories).get("valid", np.zeros((0, 0)))
    halves = [float(part.mean()) for chain in valid for part in np.array_split(chain, 2)]
    apart = max(halves) - min(halves) if halves else None
    rhat, chance = moving[worst].rhat, found.chance_rhat
    return Convergence(label(worst), rhat, chance, least, found.samples, len(found.runs), apart)
