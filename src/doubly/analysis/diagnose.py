"""Diagnosing chains: have they mixed, what are their samples worth, and do they run at their temperature?

Everything here reads what runs have written down, epoch by epoch, and moves no chain. The measures can speak against
convergence; nothing they say proves it.

Weights themselves are not compared: the hidden units of two chains need not correspond.
"""

import dataclasses
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from doubly.analysis.convergence import Summary, chance_rhat, summarise
from doubly.core.errors import UserError
from doubly.core.files import write
from doubly.runs.build import build
from doubly.runs.folder import Run
from doubly.samplers import SGHMC, SGNHT, Sampler, SplitSGNHT
from doubly.training.method import Every, Method

LEAST = 4
"""Samples without which a chain has no halves to compare."""
MIXED = 1.1
"""Chains with an R-hat above this have not mixed."""
ENOUGH = 100
"""The ESS that Vehtari et al. ask of each chain before relying on such numbers."""

LABELS = {
    "valid": "validation log-likelihood",
    "train": "training bound",
    "temperature": "kinetic temperature",
    "thermostat": "thermostat",
    "predicted_mean": "predicted mean",
    "predicted_spread": "predicted spread",
}


class History(NamedTuple):
    """What a run has written down: for every trace, a value for each epoch."""

    name: str
    epoch: np.ndarray
    collecting: np.ndarray
    """In which of the epochs samples were collected."""
    values: dict[str, np.ndarray]


class Warmth(NamedTuple):
    """The mean kinetic temperature against what it should be."""

    mean: float
    mcse: float
    expected: float
    """Where the sampler would hold it if all were well: 1, unless it was set otherwise or friction adds to it."""
    noise: float
    """About where the noise of mini-batches would bring it, were there no thermostat."""
    compatible: bool
    """Whether it is within two standard errors of what is expected."""


class Diagnosis(NamedTuple):
    """All that was found of some chains."""

    runs: list[str]
    samples: int
    """Epochs looked at in each chain."""
    chance: float
    """An R-hat that independent samples, as few as these, exceed once in a hundred times."""
    traces: dict[str, Summary]
    temperature: Warmth | None
    verdict: list[str]
    histories: list[History]

    def facts(self) -> dict[str, Any]:
        """As names and values, for JSON."""
        return {
            "runs": self.runs,
            "chains": len(self.runs),
            "samples": self.samples,
            "chance_rhat": self.chance,
            "traces": {name: summary._asdict() for name, summary in self.traces.items()},
            "temperature": self.temperature._asdict() if self.temperature else None,
            "verdict": self.verdict,
        }

    def table(self) -> str:
        """For people: one line for each trace, then the verdict."""
        head = ["", "mean", "± mcse", "sd", "R-hat", "bulk ESS", "tail ESS"]
        form = ("{:#.4g}", "{:.2g}", "{:.2g}", "{:.2f}", "{:.0f}", "{:.0f}")
        lines = [head]
        for name, s in self.traces.items():
            numbers = (s.mean, s.mcse, s.sd, s.rhat, s.ess_bulk, s.ess_tail)
            lines.append([label(name), *map(_cell, form, numbers)])
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        rows = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        return "\n".join([*rows, "", *self.verdict])


def diagnose(*paths: str | Path) -> Diagnosis:
    """Look at the collected phase of one run, or of several that are chains of the same model on the same data."""
    runs = [Run(path) for path in paths]
    methods = _check_same_target(runs)
    histories = [history(run) for run in runs]
    _check_enough(runs, histories)
    samples = min(int(history.collecting.sum()) for history in histories)
    traces = {name: summarise(values, name.startswith("predicted")) for name, values in collected(histories).items()}
    warmth = temperature(methods[0].sampler, traces) if len({method.sampler for method in methods}) == 1 else None
    chance = chance_rhat(len(runs), samples)
    verdict = list(_verdict(runs, methods, histories, traces, warmth, chance))
    return Diagnosis([str(run.path) for run in runs], samples, chance, traces, warmth, verdict, histories)


def history(run: Run) -> History:
    """The traces of a run; what its warm-up by Adam has left belongs to the burn-in."""
    records = run.metrics()
    epoch = np.array([record["epoch"] for record in records], dtype=int)
    collecting = np.array([record["phase"] == "collect" for record in records], dtype=bool)
    flat = [_flat(record) for record in records]
    names = dict.fromkeys(name for record in flat for name in record)
    values = {name: np.array([record.get(name, math.nan) for record in flat], dtype=float) for name in names}
    return History(str(run.path), epoch, collecting & (epoch > run.config.warmup), values)


def collected(histories: Sequence[History]) -> dict[str, np.ndarray]:
    """The traces that all chains have, as (chains, samples): of each chain its last, as many as the shortest has."""
    samples = min(int(history.collecting.sum()) for history in histories)
    found = {
        name: np.stack([history.values[name][history.collecting][-samples:] for history in histories])
        for name in histories[0].values
        if all(name in history.values for history in histories)
    }
    return {name: values for name, values in found.items() if np.isfinite(values).all()}


def label(name: str) -> str:
    """A trace's name for people."""
    return LABELS.get(name) or name.replace("norm_", "norm of layer ")


def _flat(record: dict[str, Any]) -> dict[str, float]:
    """The scalars of an epoch, by name."""
    return {
        "valid": record["valid"],
        "train": record["train"],
        **{f"norm_{layer}": value for layer, value in record["norms"].items()},
        **record["sampler"],
        **{f"predicted_{name}": value for name, value in record["predicted"].items()},
    }


def _check_same_target(runs: Sequence[Run]) -> list[Method]:
    """Chains can only mix if they have one posterior to go to."""
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
        if _heat(method.sampler) != _heat(methods[0].sampler):
            raise UserError(f"{pair} were sampled at different temperatures: diagnose them one by one")
        for other in runs[:i]:
            if run.path.resolve() == other.path.resolve() or run.config == other.config:
                raise UserError(f"{other.path} and {run.path} are the same chain: fit another one with another --seed")
    return methods


def _check_enough(runs: Sequence[Run], histories: Sequence[History]) -> None:
    for run, found in zip(runs, histories, strict=True):
        if (n := int(found.collecting.sum())) < LEAST:
            raise UserError(
                f"a diagnosis needs at least {LEAST} epochs of collected samples, but {run.path} has {n}: "
                "collect more (doubly resume, or doubly fit with a larger --collect)"
            )


# Temperature


def temperature(sampler: Sampler, traces: dict[str, Summary]) -> Warmth | None:
    """The kinetic temperature mean(u^2) / eta against where the sampler should hold it; None where there is no u.

    In a steady state, what friction takes from u^2 in a step is what noise adds: with Euler's step
    (2 alpha - alpha^2) u^2 = 2 a eta T + eta^2 var(grad). A thermostat moves alpha until u^2 = eta T. Without one alpha
    is a, and u^2 / eta is T / (1 - a / 2) for an exact gradient, more for a noisy one. A chain that still climbs adds
    the heat of its climb, which cannot be told from that of the noise.
    """
    if "temperature" not in traces or not isinstance(sampler, SGNHT | SGHMC):
        return None
    found, own = traces["temperature"], sampler.friction
    expected, alpha = sampler.temperature, sampler.friction
    if isinstance(sampler, SGNHT):
        alpha = traces["thermostat"].mean
    else:
        expected /= 1 - own / 2
    # where friction is solved exactly it does not take alpha^2 twice
    lost, kept = (alpha, own) if isinstance(sampler, SplitSGNHT) else (alpha * (2 - alpha), own * (2 - own))
    return Warmth(
        mean=found.mean,
        mcse=found.mcse,
        expected=expected,
        noise=found.mean * lost / kept,
        compatible=abs(found.mean - expected) <= 2 * found.mcse,
    )


def _heat(sampler: Sampler) -> float:
    """The temperature that a sampler was set to."""
    return float(getattr(sampler, "temperature", 1.0))


# For ArviZ


def inference_data(*paths: str | Path) -> Any:
    """An arviz.InferenceData of the weights kept (posterior) and of the traces of the collected phase (sample_stats).

    Of the weights only some samples are kept, of the traces there is a value for every epoch: the `draw` of one group
    is not that of the other.
    """
    runs = [Run(path) for path in paths]
    _check_same_target(runs)
    histories = [history(run) for run in runs]
    _check_enough(runs, histories)
    chains = [run.posterior() for run in runs]
    found = dataclasses.replace(chains[0], others=chains[1:]).to_arviz()
    traces = collected(histories)
    samples = next(iter(traces.values())).shape[1]
    epochs = np.stack([history.epoch[history.collecting][-samples:] for history in histories])
    found.add_groups(sample_stats=traces | {"epoch": epochs})
    return found


def save_inference_data(path: Path, *runs: str | Path) -> None:
    """Write it as a netCDF file, whole or not at all."""
    if path.suffix != ".nc":
        raise UserError(f"cannot write {path}: expected a netCDF file, whose name ends in .nc")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path.name
        inference_data(*runs).to_netcdf(str(file))
        write(path, file.read_bytes())


# In words


def _verdict(
    runs: Sequence[Run],
    methods: Sequence[Method],
    histories: Sequence[History],
    traces: dict[str, Summary],
    warmth: Warmth | None,
    chance: float,
) -> Iterator[str]:
    """What can be said, what speaks against convergence, and what cannot be told."""
    lengths = [int(history.collecting.sum()) for history in histories]
    noun = "samples" if {Every.parse(run.config.collect_every) for run in runs} == {Every(1, "epoch")} else "epochs"
    if len(set(lengths)) > 1:
        yield f"the chains have {_list(lengths)} {noun}: the last {min(lengths)} of each are compared"
    climbers = [run for run, method in zip(runs, methods, strict=True) if not method.sampler.noisy]
    for run in climbers:
        yield (
            f"{run.path} is an optimiser's run ({run.config.sampler}), not a chain: it has no temperature, and its "
            "numbers say how it climbs or wanders near a mode, not how wide the posterior is"
        )
    if climbers:
        return
    mixing = list(_mixing(traces, len(runs), min(lengths), noun, chance))
    yield from mixing
    yield from _sizes(traces, len(runs), min(lengths), noun, chance)
    yield _warmth_in_words(methods, warmth)
    if len(runs) == 1:
        yield (
            "only one chain was looked at, its first half against its second: others, from other seeds, may have gone "
            "elsewhere"
        )
    if not mixing and (warmth is None or warmth.compatible):
        yield "nothing here speaks against convergence, which is not a proof"


def _mixing(traces: dict[str, Summary], chains: int, samples: int, noun: str, chance: float) -> Iterator[str]:
    """What R-hat has to say against convergence."""
    over = f"over {chains} chains" if chains > 1 else "between the halves of the chain"
    ranked = sorted(
        (name for name in traces if traces[name].rhat > min(MIXED, chance)), key=lambda name: -traces[name].rhat
    )
    if not ranked:
        return
    worst = traces[ranked[0]].rhat
    others = f" (and above {min(MIXED, chance):.2f} in {len(ranked) - 1} more)" if len(ranked) > 1 else ""
    said = f"R-hat of the {label(ranked[0])} is {worst:.2f} {over}{others}"
    if worst > max(MIXED, chance):
        yield f"{said}: {'they have' if chains > 1 else 'it has'} not mixed; run longer"
    elif worst > MIXED:
        yield f"{said}, but {samples} independent {noun} a chain may give {chance:.2f}: too few to tell; collect more"
    else:
        yield f"{said}: more than the {chance:.2f} of independent {noun}: slow mixing, which longer chains would show"


def _sizes(traces: dict[str, Summary], chains: int, samples: int, noun: str, chance: float) -> Iterator[str]:
    """What the samples are worth."""
    moving = {name: summary.ess_bulk for name, summary in traces.items() if summary.sd > 0}
    if not moving:
        return
    name = min(moving, key=lambda name: moving[name])
    n, least = chains * samples, moving[name]
    worth = f"is worth {least:.0f} independent ones" if least < 0.9 * n else "is worth as many independent ones"
    yield f"ESS of the {label(name)} is {least:.0f} of {n} {noun}: the mean of {n} {noun} {worth}"
    if least < ENOUGH * chains:
        yield (
            f"below an ESS of {ENOUGH} for each chain, R-hat, ESS and errors are rough themselves; "
            f"{n} independent {noun} could have an R-hat of {chance:.2f}"
        )


def _warmth_in_words(methods: Sequence[Method], warmth: Warmth | None) -> str:
    sampler = methods[0].sampler
    if warmth is None:
        if len({method.sampler for method in methods}) > 1:
            return "the chains have different samplers: diagnose them one by one to have their temperatures judged"
        return "this sampler has no momentum: there is no kinetic temperature to judge it by"
    expected, thermostat = warmth.expected, isinstance(sampler, SGNHT)
    said = f"kinetic temperature {warmth.mean:.3f} ± {warmth.mcse:.3f}"
    euler = "" if thermostat else f", which Euler's friction makes of {_heat(sampler):g}"
    if warmth.compatible:
        return f"{said}: compatible with {expected:.3g}{euler}"
    if warmth.mean < expected:
        why = "the thermostat has overshot, and comes back only slowly" if thermostat else "see its noise_estimate"
        return f"{said}: below {expected:.3g}{euler}; {why}"
    if thermostat:
        return (
            f"{said}: above {expected:.3g}; mini-batch noise would bring it to about {warmth.noise:.2f} without the "
            "thermostat, which has not taken up all of that yet; burn in longer, or take a smaller step"
        )
    return (
        f"{said}: above {expected:.3g}{euler}; the rest is mini-batch noise, which nothing takes up here, so that "
        "samples are spread wider than the posterior; take a smaller step, larger batches, or a thermostat (sgnht)"
    )


def _cell(form: str, number: float) -> str:
    return "–" if math.isnan(number) else form.format(number)


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
