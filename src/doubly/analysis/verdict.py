"""A diagnosis in words: what speaks against convergence, what the samples are worth, and what cannot be told."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from doubly.analysis.convergence import Rank, Summary
from doubly.analysis.temperature import Temperature
from doubly.analysis.traces import label
from doubly.runs.progress import counted

MIXED = 1.1
"""Chains with an R-hat above this have not mixed."""
SURE = 0.08
"""The error of a mean rank with about ten effective samples."""
CHANCE = 0.01
"""How often chains that agree may be told to differ."""
ENOUGH = 100
"""The ESS that Vehtari et al. ask of each chain before relying on such numbers."""


@dataclass(frozen=True)
class Optimised:
    """A run whose weights were optimised, not sampled."""

    path: str
    sampler: str


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on."""

    lengths: list[int]
    """Epochs with samples in each chain."""
    noun: str
    """What is counted: samples, or epochs where an epoch has not one sample."""
    traces: dict[str, Summary]
    chance: float
    """An R-hat that independent samples, as few as these, exceed once in a hundred times."""
    temperature: Temperature | None
    one_sampler: bool
    """Whether all chains have the same sampler."""
    optimised: list[Optimised]
    ranks: dict[str, list[Rank]] = field(default_factory=dict)
    """Of several chains, where each lies among all, by trace."""
    lost: dict[str, str] = field(default_factory=dict)
    """Chains that diverged or died, and why."""
    retried: dict[str, int] = field(default_factory=dict)
    """Runs whose chain has diverged, and how often the step became a third."""

    @property
    def chains(self) -> int:
        return len(self.lengths)

    @property
    def samples(self) -> int:
        """Samples compared of each chain."""
        return min(self.lengths)


def verdict(found: Evidence) -> Iterator[str]:
    """One sentence a line."""
    for name, why in found.lost.items():
        yield f"{name} is lost: {why}; it is left out here and in all answers"
    for path, number in found.retried.items():
        yield (
            f"{path} has diverged {counted(number, 'time')} and went on each time with a third of the step: "
            f"take a step of 1/{3**number} from the start"
        )
    if len(set(found.lengths)) > 1:
        yield f"the chains have {_list(found.lengths)} {found.noun}: the last {found.samples} of each are compared"
    for run in found.optimised:
        yield (
            f"{run.path} is an optimiser's run ({run.sampler}), not a chain: it has no temperature, and its numbers "
            "say how it approaches a mode or wanders near it, not how wide the posterior is"
        )
    if found.optimised:
        return
    against = [*_convergence(found), *_apart(found)]
    yield from against
    yield from _sizes(found)
    yield _temperature(found)
    if found.chains == 1:
        yield (
            "only one chain was looked at, its first half against its second: chains from other seeds may have gone "
            "elsewhere"
        )
    if not against and (found.temperature is None or found.temperature.compatible):
        yield "nothing here speaks against convergence, which is not a proof"


def _convergence(found: Evidence) -> Iterator[str]:
    """What R-hat says against convergence."""
    traces, chance = found.traces, found.chance
    over = f"over {found.chains} chains" if found.chains > 1 else "between the halves of the chain"
    ranked = sorted(
        (name for name in traces if traces[name].rhat > min(MIXED, chance)), key=lambda name: -traces[name].rhat
    )
    if not ranked:
        return
    worst = traces[ranked[0]].rhat
    others = f" (and above {min(MIXED, chance):.2f} in {len(ranked) - 1} more)" if len(ranked) > 1 else ""
    said = f"R-hat of the {label(ranked[0])} is {worst:.2f} {over}{others}"
    if worst > max(MIXED, chance):
        yield f"{said}: {'they have' if found.chains > 1 else 'it has'} not mixed; run longer"
    elif worst > MIXED:
        yield (
            f"{said}, but {found.samples} independent {found.noun} a chain may give {chance:.2f}: too few to tell; "
            "collect more"
        )
    else:
        yield (
            f"{said}, above the {chance:.2f} of independent {found.noun}: the chains mix slowly; longer chains would "
            "show it"
        )


def _apart(found: Evidence) -> Iterator[str]:
    """The chain that lies farthest from the others, if that is more than chance: over all chains and traces."""
    each = [
        (rank, name, number)
        for name, ranks in found.ranks.items()
        for number, rank in enumerate(ranks)
        if rank.stderr < SURE  # with fewer effective samples, their number itself is a guess
    ]
    if not each:
        return
    rank, name, number = max(each, key=lambda one: one[0].apart)
    if rank.apart > NormalDist().inv_cdf(1 - CHANCE / 2 / len(each)):
        side = "above" if rank.mean > 0.5 else "below"
        yield (
            f"chain {number} lies {side} the others: its mean rank in the {label(name)} is {rank.mean:.2f} ± "
            f"{rank.stderr:.2f}, where 0.50 is expected of chains that agree"
        )


def _sizes(found: Evidence) -> Iterator[str]:
    """What the samples are worth."""
    moving = {name: summary.ess_bulk for name, summary in found.traces.items() if summary.sd > 0}
    if not moving:
        return
    name = min(moving, key=lambda name: moving[name])
    n, least, noun = found.chains * found.samples, moving[name], found.noun
    worth = f"is worth {least:.0f} independent ones" if least < 0.9 * n else "is worth as many independent ones"
    yield f"ESS of the {label(name)} is {least:.0f} of {n} {noun}: the mean of {n} {noun} {worth}"
    if least < ENOUGH * found.chains:
        yield (
            f"below an ESS of {ENOUGH} for each chain, R-hat, ESS and errors are rough themselves; "
            f"{n} independent {noun} could have an R-hat of {found.chance:.2f}"
        )


def _temperature(found: Evidence) -> str:
    if found.temperature is not None:
        return found.temperature.text()
    if not found.one_sampler:
        return "the chains have different samplers: diagnose them one by one to see their temperatures"
    return "this sampler has no momentum: it has no kinetic temperature to check"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
