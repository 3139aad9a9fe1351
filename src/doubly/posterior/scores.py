"""log p(x) of rows: of one set of weights or of an ensemble of them, by importance sampling, annealing or short chains.

Work that is stopped goes on where it was. What is random depends on the seed and on the part of the work, never on
where it was stopped.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from doubly.core.random import generator
from doubly.core.statistics import stderr
from doubly.latents import (
    RELIABLE,
    Annealing,
    Bounds,
    Gap,
    LikelihoodConfig,
    Marginal,
    Pair,
    PartialSums,
    RowLikelihoods,
    ShortChain,
    log_likelihood,
)
from doubly.posterior.work import Work, digest, digest_text

ANNEALED = 500  # rows at a time, at most; if the work is stopped, those under way are lost
ANNEALED_CELLS = 2**18  # chains x rows x values of a block


def members_by_draws(
    pairs: Iterable[Pair], whose: Sequence[str], rows: Tensor, how: LikelihoodConfig, work: Work
) -> list[RowLikelihoods]:
    """log p(x) of each row by each of these pairs; `whose` names each in what is told."""
    named = enumerate(zip(pairs, whose, strict=True))
    return [_member(pair, rows, dataclasses.replace(how, member=i), work, name) for i, (pair, name) in named]


def _member(pair: Pair, rows: Tensor, how: LikelihoodConfig, work: Work, whose: str) -> RowLikelihoods:
    """log p(x) by one pair, going on from what an earlier attempt has left."""
    name = f"evaluations/unfinished-{digest(pair.theta, pair.phi, rows)}-{digest_text(repr(how))}"
    found = work.load(name, RowLikelihoods)  # it is there if an ensemble was stopped at a later member
    if found is None:
        save = work.saver(name)

        def watch(partial: PartialSums, share: float) -> None:
            save(partial, f"scoring{whose}", share)

        found = log_likelihood(pair, rows, how, work.load(name, PartialSums), watch, work.ranks)
        work.save(name, found)
    work.hand_over(name)
    return found


def ensemble(members: list[RowLikelihoods]) -> RowLikelihoods:
    """The predictive log (1/M) sum_m p(x | theta_m) from the log-likelihoods of its members.

    All is as if the members' draws, which are independent, had been pooled: with S_m the sum of a member's weights, of
    which it has E_m effective ones, there are (sum S_m)^2 / sum (S_m^2 / E_m). The tail is the heaviest of any; if none
    is heavy, but nothing is known of one, nothing is known of all.
    """
    log_likelihood, ess, khat, noise, draws = (torch.stack(values) for values in zip(*members, strict=True))
    share = torch.softmax(log_likelihood, 0)
    heaviest = khat.nan_to_num(nan=-math.inf).amax(0)
    return RowLikelihoods(
        log_likelihood.logsumexp(0) - math.log(len(members)),
        1 / (share**2 / ess).sum(0),
        torch.where(khat.isnan().any(0) & ~(heaviest > RELIABLE), math.nan, heaviest),
        (share * noise).square().sum(0).sqrt(),
        draws.sum(0),
    )


# Annealing and short chains


def members_by_moves(
    pairs: Iterable[Pair], whose: Sequence[str], rows: Tensor, how: Annealing | ShortChain, seed: int, work: Work
) -> list[RowLikelihoods]:
    """The same by annealing or short chains: there is no tail of weights, and one chain says nothing of its noise."""
    found = []
    for i, (pair, name) in enumerate(zip(pairs, whose, strict=True)):
        annealed = anneal(pair, rows, how, seed, work, i, name)
        none = torch.full_like(annealed.log_likelihood, math.nan)
        chains = torch.full_like(none, float(how.chains))
        found.append(RowLikelihoods(annealed.log_likelihood, annealed.ess, none, none, chains))
    return found


def anneal(
    pair: Pair, rows: Tensor, how: Annealing | ShortChain, seed: int, work: Work, member: int = 0, whose: str = ""
) -> Marginal:
    """log p(x) by annealed importance sampling, or by a short chain; rows that are done stay in the cache until `tidy`.

    The members of an ensemble have random numbers of their own, so that their errors are independent. So has each block
    of rows: ranks take blocks in turn.
    """
    pair, at_once = _start(pair, how), _annealed_at_once(pair, how)
    name = f"evaluations/annealed-{digest(pair.theta, pair.phi, rows)}-{digest_text(repr((how, seed, member)))}"
    found = work.load(name, Marginal) or Marginal(torch.zeros(0), torch.zeros(0))
    kind = "annealing" if isinstance(how, Annealing) else "short chains of"

    def block(first: int) -> Marginal:
        some = rows[first : first + at_once].float()
        what = f"{kind} rows {first + 1} to {first + len(some)} of {len(rows)}{whose}"
        rng = generator(pair.theta.device, seed, "annealing", member, first)
        return how.log_likelihood(pair, some, rng, work.counter(what))

    while (done := len(found.ess)) < len(rows):
        more = _of_blocks(range(done, len(rows), at_once)[: work.ranks.size], block, work)
        for each in more:
            found = Marginal(*(torch.cat([old.to(new), new]) for old, new in zip(found, each, strict=True)))
        work.save(name, found)
    work.hand_over(name)
    return found


def annealing_gap(pair: Pair, n: int, how: Annealing, seed: int, work: Work) -> Gap:
    """Both bounds of annealed importance sampling for n rows drawn from the model; in the cache until `tidy`."""
    pair, at_once = _start(pair, how), _annealed_at_once(pair, how)
    name = f"evaluations/gap-{digest(pair.theta, pair.phi)}-{digest_text(repr((how, seed, n)))}"
    found = work.load(name, Gap)
    if found is None:

        def block(first: int) -> Bounds:
            rng = generator(pair.theta.device, seed, "annealing gap", first)
            what = "annealing rows of the model, both ways"
            return how.bounds(pair, min(at_once, n - first), rng, work.counter(what))

        parts = _of_blocks(range(0, n, at_once), block, work)
        found = Bounds(*(torch.cat(each) for each in zip(*parts, strict=True))).gap()
        work.save(name, found)
    work.hand_over(name)
    return found


Found = TypeVar("Found")


def _of_blocks(starts: Sequence[int], block: Callable[[int], Found], work: Work) -> list[Found]:
    """What the blocks of rows that start there give; of several ranks, each does some of them."""
    return work.ranks.shared(len(starts), lambda i: block(starts[i]))


def _annealed_at_once(pair: Pair, how: Annealing | ShortChain) -> int:
    """Rows of a block: enough that little is lost, and so few that ranks can share some hundreds of rows."""
    width = sum(layer.n_out for layer in pair.model.layers)
    return max(1, min(ANNEALED, ANNEALED_CELLS // (how.chains * width)))


def _start(pair: Pair, how: Annealing | ShortChain) -> Pair:
    """From the prior no proposal is needed, and what is found does not depend on it."""
    alone = isinstance(how, Annealing) and how.start == "prior"
    return Pair.alone(pair.model, pair.theta) if alone else pair


# What the log-likelihoods of rows come to


EVEN = 0.99  # of the draws effective: weights that are all the same


class LikelihoodSummary(NamedTuple):
    """The log-likelihoods of a set of rows in a few numbers."""

    log_likelihood: float
    """The mean over rows of log p(x), in nats."""
    stderr: float | None
    """Its standard error over rows."""
    draw_error: float
    """Its standard error due to the draws of the latent variables; NaN where one draw or annealing cannot say."""
    ess: float
    """The mean effective draws."""
    unreliable: int
    """Rows whose weights have so heavy a tail (k̂ > 0.7) that their log-likelihood is not to be relied on."""
    draws_used: float
    """The mean draws."""
    n: int
    unknown: int = 0
    """Rows of which the draws cannot tell (see `cannot_tell`)."""

    @property
    def draw_error_is_least(self) -> bool:
        """Whether the error due to the draws may be larger than it says: some rows are unreliable, or unknown."""
        return self.unreliable + self.unknown > 0


def cannot_tell(rows: RowLikelihoods) -> Tensor:
    """Rows whose draws say nothing of how reliable they are.

    There are too few draws for k̂, or nothing varies between them: almost all are effective, or their noise is zero.
    Such weights come from an exact proposal, and equally from one that never draws most of p(z | x).
    """
    return rows.khat.isnan() | (rows.ess > EVEN * rows.draws) | ~(rows.noise > 0)


def summarise(rows: RowLikelihoods, exact: bool = False) -> LikelihoodSummary:
    """The mean over a set of rows, with its errors; `exact` says that nothing was drawn."""
    n, heavy = len(rows.log_likelihood), rows.khat > RELIABLE
    return LikelihoodSummary(
        rows.log_likelihood.double().mean().item(),
        stderr(rows.log_likelihood),
        rows.noise.double().square().sum().sqrt().item() / n,
        rows.ess.double().mean().item(),
        int(heavy.sum()),
        rows.draws.double().mean().item(),
        n,
        0 if exact else int((cannot_tell(rows) & ~heavy).sum()),
    )
