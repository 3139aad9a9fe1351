"""Diagnosing chains: have they mixed, what are their samples worth, and do they sample at their temperature?

Nearly all of it is read from what runs have recorded, epoch by epoch. The measures can speak against convergence; they
cannot prove it. Weights themselves are not compared: the latent units of two chains need not correspond. The training
bound of a model with latents is shown, but nothing is concluded from it: it is the proposal's as much as the model's,
and the proposal goes on learning. Which of its units a chain uses is found anew, on some of the training rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doubly.analysis.convergence import Rank, Summary, chance_rhat, mean_ranks, summarise
from doubly.analysis.results import Result, plain
from doubly.analysis.temperature import Temperature, temperature
from doubly.analysis.traces import History, collected, history, label
from doubly.analysis.verdict import Evidence, Optimised, verdict
from doubly.core.errors import UserError
from doubly.latents import ACTIVE, is_exact
from doubly.runs.build import build
from doubly.runs.folder import Run
from doubly.training.method import Every, Method

LEAST = 4
"""Samples without which a chain has no halves to compare."""
ASIDE = "the proposal's as much as the model's, and the proposal goes on learning: nothing is concluded from it"


@dataclass(frozen=True)
class Diagnosis(Result):
    """All that was found of some chains."""

    runs: list[str]
    samples: int
    """Epochs compared of each chain."""
    chance_rhat: float
    """An R-hat that independent samples, as few as these, exceed once in a hundred times."""
    traces: dict[str, Summary]
    temperature: Temperature | None
    ranks: dict[str, list[Rank]]
    """Of several chains, where each lies among all, by trace."""
    verdict: list[str]
    histories: list[History]
    active: dict[str, list[list[int]]]
    """For each run and latent layer, how many units are active, and how many there are."""
    aside: frozenset[str] = frozenset()
    """Traces that are not of the weights alone: nothing is concluded from them."""
    picture: Path | None = None
    """The picture of the traces, once it is drawn."""

    @property
    def relevant(self) -> dict[str, Summary]:
        """The traces that conclusions rest on."""
        return {name: summary for name, summary in self.traces.items() if name not in self.aside}

    def text(self) -> str:
        """One line for each trace, then the verdict."""
        head = ["", "mean", "± mcse", "sd", "R-hat", "bulk ESS", "tail ESS"]
        form = ("{:#.4g}", "{:.2g}", "{:.2g}", "{:.2f}", "{:.0f}", "{:.0f}")
        lines = [head]
        for name, s in self.traces.items():
            numbers = (s.mean, s.mcse, s.sd, s.rhat, s.ess_bulk, s.ess_tail)
            lines.append([label(name) + "*" * (name in self.aside), *map(_cell, form, numbers)])
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        rows = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        units = [f"{run}: {said}" for run, layers in self.active.items() if (said := _units(layers))]
        rows += [f"* {ASIDE}"] * bool(self.aside)
        return "\n".join([*rows, "", *self.verdict, *units, *[f"picture: {self.picture}"] * (self.picture is not None)])

    def to_json(self) -> Any:
        found = {
            "runs": self.runs,
            "chains": len(self.runs),
            "samples": self.samples,
            "chance_rhat": self.chance_rhat,
            "traces": self.traces,
            "aside": sorted(self.aside),
            "ranks": self.ranks,
            "temperature": self.temperature,
            "verdict": self.verdict,
            "active": self.active,
        }
        return plain(found | ({"picture": self.picture} if self.picture else {}))


def diagnose(*paths: str | Path, units: bool = True) -> Diagnosis:
    """The collected phase of one run, or of several that are chains of the same model on the same data.

    Which units are active takes longest; without `units` it is left out.
    """
    given = [Run(path) for path in paths]
    runs = [chain for run in given for chain in run.chains]
    lost = {f"chain {number} of {run.path}": why for run in given for number, why in run.lost.items()}
    methods = check_same_target(runs)
    histories = [history(run) for run in runs]
    check_enough(histories, [run for run, method in zip(runs, methods, strict=True) if _is_finished(run, method)])
    traces = {name: summarise(values, name.startswith("predicted")) for name, values in collected(histories).items()}
    ranks = {
        name: mean_ranks(values)
        for name, values in collected(histories).items()
        if len(runs) > 1 and not name.startswith("predicted") and np.ptp(values) > 0
    }
    exact = is_exact(methods[0].model, methods[0].proposal)
    aside = frozenset() if exact else frozenset(traces) & {"train"}
    one_sampler = len({method.sampler for method in methods}) == 1
    one_a_sample = {Every.parse(run.config.collect_every) for run in runs} == {Every(1, "epoch")}
    found = Evidence(
        lengths=[history.samples for history in histories],
        noun="samples" if one_a_sample else "epochs",
        traces={name: summary for name, summary in traces.items() if name not in aside},
        ranks={name: each for name, each in ranks.items() if name not in aside},
        chance=chance_rhat(len(runs), min(history.samples for history in histories)),
        temperature=temperature(methods[0].sampler, traces) if one_sampler else None,
        one_sampler=one_sampler,
        optimised=[
            Optimised(str(run.path), run.config.sampler)
            for run, method in zip(runs, methods, strict=True)
            if not method.sampler.noisy
        ],
        lost=lost,
        retried={str(run.path): number for run in runs if (number := max(r.get("retried", 0) for r in run.metrics()))},
    )
    return Diagnosis(
        runs=[str(run.path) for run in runs],
        samples=found.samples,
        chance_rhat=found.chance,
        traces=traces,
        temperature=found.temperature,
        ranks=ranks,
        verdict=list(verdict(found)),
        histories=histories,
        active={str(run.path): active_units(run) for run in runs} if units else {},
        aside=aside,
    )


def active_units(run: Run) -> list[list[int]]:
    """How many units of each latent layer say anything of some training rows, and how many there are."""
    try:
        posterior = run.posterior(refit_passes=0)
        if is_exact(posterior.model, posterior.method.proposal):
            return []
        shares = posterior.explained(of="last" if posterior.mean_theta is None else "mean")
    except UserError:  # checkpoint or data can no longer be read; what was recorded is diagnosed all the same
        return []
    return [[int((share > ACTIVE).sum()), len(share)] for share in shares]


def _units(layers: list[list[int]]) -> str:
    """In words; a unit is active if the row explains more than 1 % of its variance."""
    return ", ".join(f"{active} of {units} units of z{i + 1} are active" for i, (active, units) in enumerate(layers))


def check_same_target(runs: Sequence[Run]) -> list[Method]:
    """Chains can only mix if they have the same posterior; gives the methods of the runs."""
    if not runs:
        raise UserError("name a run folder, as in: doubly diagnose RUN (see doubly --help)")
    first, methods = runs[0], [build(run.config, run.facts) for run in runs]
    for i, (run, method) in enumerate(zip(runs, methods, strict=True)):
        pair = f"{first.path} and {run.path}"
        if run.data_digest != first.data_digest:
            raise UserError(f"{pair} were made with different data: they are not chains of one posterior")
        if method.model != methods[0].model:
            raise UserError(f"{pair} have different models: diagnose them one by one")
        if method.prior != methods[0].prior:
            raise UserError(f"{pair} have different priors, and so different posteriors: diagnose them one by one")
        if method.sampler.temperature != methods[0].sampler.temperature:
            raise UserError(f"{pair} were sampled at different temperatures: diagnose them one by one")
        for other in runs[:i]:
            if run.path.resolve() == other.path.resolve() or run.config == other.config:
                raise UserError(f"{other.path} and {run.path} are the same chain: fit another one with another --seed")
    return methods


def check_enough(histories: Sequence[History], ended: Sequence[Run] = ()) -> None:
    """A chain needs samples to be diagnosed; of those that have ended, no more will come."""
    for found in histories:
        if found.samples < LEAST:
            over = any(str(run.path) == found.name for run in ended)
            cure = "it is finished, so fit anew with a larger --collect" if over else "go on with doubly resume"
            raise UserError(
                f"a diagnosis needs at least {LEAST} epochs of collected samples, but {found.name} has "
                f"{found.samples}: {cure}"
            )


def _is_finished(run: Run, method: Method) -> bool:
    """Whether the protocol of a run has come to its end."""
    epoch = max((record["epoch"] for record in run.metrics()), default=0)
    collected = max((record.get("collected", 0) for record in run.metrics()), default=0)
    return epoch >= method.epochs or 0 < method.collect <= collected


def _cell(form: str, number: float) -> str:
    return "–" if math.isnan(number) else form.format(number)
