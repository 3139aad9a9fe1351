"""log p(x) of rows by any number of draws: streaming sums, bounded memory, and a stop at any point that loses nothing.

For each row, K draws z_k ~ q(z | x) have weights w_k = p(x, z_k) / q(z_k | x), and L_K = log 1/K sum_k w_k is, in
expectation, a bound on log p(x) from below. Of the weights only sums are kept, and the largest for a look at the tail.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.random import generator
from doubly.core.ranks import ALONE, Ranks
from doubly.latents.importance import Marginal, is_exact, propose
from doubly.latents.pair import Pair
from doubly.latents.psis import khat, tail_length
from doubly.latents.refine import DRAWS_A_STEP, check_refinable, refine
from doubly.layers.chain import Chain

GROUPS = 20  # in which the draws are summed apart, to be resampled for their error
FIRST = 100  # draws that every row gets where draws are spent adaptively
RELIABLE = 0.7  # the largest k̂ at which a mean weight can be relied on
HEAVY_ROWS = 0.1  # of the rows with a larger one, beyond which scores by draws are called too low
REFINED_AT_ONCE = 2**21  # cells, at most: some seconds of work, after which it may be stopped
BYTES_PER_CELL = 16  # the logits of all layers, and what is made of them on the way
BLOCKS = 4  # of rows that each of several ranks scores before all put together what they have


@dataclass(frozen=True)
class LikelihoodConfig:
    """How rows are scored."""

    draws: int = 1000
    """Draws for each row (the paper's K); where they are spent adaptively, at most."""
    adaptive: bool = False
    """Rounds of more and more draws: a row whose round was worth `enough` equally weighted draws and had no heavy tail
    gets one more, and its score is of that alone. (The draws that decide when to stop cannot be averaged as well: a
    lucky round would stop, and an unlucky one be diluted.)"""
    enough: float = 100.0
    refine: int = 0
    """Steps by which the proposal is refined for each row before it is scored; what that finds, a number for each unit
    of the proposal and row, is kept besides the memory below."""
    memory: float = 128.0
    """Megabytes that the work may take at a time, besides a few numbers for each row."""
    seed: int = 0
    member: int = 0
    """Which of several weights is scored: each has draws of its own, so that their errors are independent."""

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"draws must be at least 1, got {self.draws}")
        if self.refine < 0:
            raise UserError(f"refine must not be negative, got {self.refine}")
        for name in ("enough", "memory"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} must be positive and finite, got {getattr(self, name)}")

    def rounds(self) -> list[int]:
        """How many draws each round has: all at once, or twice as many each time and in the last what is left.

        >>> LikelihoodConfig(draws=2000, adaptive=True).rounds()
        [100, 200, 400, 1300]
        """
        found: list[int] = []
        size = FIRST
        while self.adaptive and self.draws - sum(found) >= 3 * size:
            found.append(size)
            size *= 2
        return [*found, self.draws - sum(found)]


class PartialSums(NamedTuple):
    """What is known of the weights of each row's last round, and how far the work has come."""

    counts: Tensor
    """Draws (groups, rows)."""
    sums: Tensor
    """log of the sum of the weights (groups, rows)."""
    squares: Tensor
    """log of the sum of the squared weights (rows)."""
    largest: Tensor
    """The largest log-weights (tail + 1, rows)."""
    active: Tensor
    """Rows that get draws in this round."""
    final: Tensor
    """Those of them for which it is the last."""
    spent: Tensor
    """Draws in all rounds (rows)."""
    round: Tensor
    part: Tensor
    """Parts of this round that are done."""
    shifts: Tensor
    """What the proposal has of its own for each row (rows, n_row_biases), if it is refined."""
    refined: Tensor
    """For how many rows that has been found."""


class RowLikelihoods(NamedTuple):
    """log p(x) of each row, and how far to trust it."""

    log_likelihood: Tensor
    ess: Tensor
    """How many equally weighted draws these are worth."""
    khat: Tensor
    """The shape of the weights' tail; beyond 0.7 the estimate is not to be relied on, nan where nothing can be said."""
    noise: Tensor
    """The standard error due to the draws, by bootstrap; 0 where nothing is random, nan where one draw cannot say.
    Where k̂ > 0.7, the draws with the largest weights have not occurred yet, and it is too small."""
    draws: Tensor
    """Draws that were spent."""


Watch = Callable[[PartialSums, float], None]


def fresh(how: LikelihoodConfig, x: Tensor, proposal: Chain) -> PartialSums:
    """Before the first draw."""
    n, device = len(x), x.device
    nowhere = torch.full((GROUPS, n), -math.inf, dtype=torch.float64, device=device)
    return PartialSums(
        counts=torch.zeros(GROUPS, n, dtype=torch.int64, device=device),
        sums=nowhere,
        squares=nowhere[0].clone(),
        largest=torch.full((tail_length(how.draws) + 1, n), -math.inf, device=device),
        active=torch.ones(n, dtype=torch.bool, device=device),
        final=torch.full((n,), len(how.rounds()) == 1, device=device),
        spent=torch.zeros(n, dtype=torch.int64, device=device),
        round=torch.tensor(0),
        part=torch.tensor(0),
        shifts=torch.zeros(n, proposal.n_row_biases if how.refine else 0, device=device),
        refined=torch.tensor(0),
    )


@torch.no_grad()
def log_likelihood(
    pair: Pair,
    x: Tensor,
    how: LikelihoodConfig,
    partial: PartialSums | None = None,
    watch: Watch = lambda partial, share: None,
    ranks: Ranks = ALONE,
) -> RowLikelihoods:
    """log p(x) of rows of any number type, from the beginning or from where a sum stands (which is then written on).

    `watch` is shown the sums after each part of the work, with the share of the work that is done. Of several ranks,
    each scores some of the rows, with the random numbers that one process takes for them: all have the same answer, bit
    for bit, and the sums that are shown are those of all rows.
    """
    if is_exact(pair.model, pair.proposal):
        return _exact(pair, x, how, ranks)
    partial = fresh(how, x, pair.proposal) if partial is None else partial
    if how.refine:
        check_refinable(pair.proposal)
        partial = _refine(pair, x, how, partial, watch, ranks)
    partial = _draw(pair, x, how, partial, watch, ranks)
    return RowLikelihoods(*(tensor.to(pair.theta.dtype) for tensor in _finish(partial, how.seed)))


def bound(pair: Pair, x: Tensor, draws: int, rng: torch.Generator, memory: float = LikelihoodConfig.memory) -> Marginal:
    """The bound L_K with K = `draws` for each row, and nothing else."""
    seed = int(torch.randint(2**62, (), generator=rng, device=rng.device))
    found = log_likelihood(pair, x, LikelihoodConfig(draws=draws, memory=memory, seed=seed))
    return Marginal(found.log_likelihood, found.ess)


# Stages: exact where nothing is drawn; else refined, if that is asked for, then drawn in rounds, each in parts


def _exact(pair: Pair, x: Tensor, how: LikelihoodConfig, ranks: Ranks) -> RowLikelihoods:
    rng, parts = generator(x.device, how.seed, "nothing is drawn"), x.split(1000)

    def score(part: int) -> Tensor:
        return propose(pair, parts[part].to(pair.theta.dtype), 1, rng).log_weight[0]

    found = torch.cat(ranks.shared(len(parts), score))
    one, none = torch.ones_like(found), torch.zeros_like(found)
    return RowLikelihoods(found, one, one * -math.inf, none, one.clone())  # which may be saved side by side


def _refine(
    pair: Pair, x: Tensor, how: LikelihoodConfig, partial: PartialSums, watch: Watch, ranks: Ranks
) -> PartialSums:
    """Biases of its own for each row, for as many rows at a time as memory allows; each rank has such a block."""
    if not pair.proposal.n_row_biases:
        return partial
    cells = (_width(pair.model) + 2 * pair.proposal.n_row_biases) * DRAWS_A_STEP  # of a row, gradients among them
    at_once = max(1, min(REFINED_AT_ONCE, _cells(how)) // cells)

    def refined(start: int) -> Tensor:
        rng = generator(x.device, how.seed, how.member, "refine", start)
        return refine(pair, x[start : start + at_once].to(pair.theta.dtype), how.refine, rng)

    for first in range(int(partial.refined), len(x), at_once * ranks.size):
        starts = range(first, min(len(x), first + at_once * ranks.size), at_once)
        found = torch.cat(ranks.shared(len(starts), lambda i, starts=starts: refined(starts[i])))  # type: ignore[misc]
        partial.shifts[first : first + len(found)] = found
        partial = partial._replace(refined=torch.tensor(first + len(found)))
        watch(partial, _refining_share(how) * int(partial.refined) / len(x))
    return partial


def _refining_share(how: LikelihoodConfig) -> float:
    """The share of the work that refining takes."""
    return how.refine * DRAWS_A_STEP / (how.refine * DRAWS_A_STEP + how.draws)


def _draw(
    pair: Pair, x: Tensor, how: LikelihoodConfig, partial: PartialSums, watch: Watch, ranks: Ranks
) -> PartialSums:
    """Rounds of draws for the rows that need them."""
    rounds, refining = how.rounds(), _refining_share(how)
    for r in range(int(partial.round), len(rounds)):
        if not partial.active.any():
            break
        if r > 0 and not int(partial.part):
            _forget(partial, partial.active)
        parts = list(_parts(how, pair.model, rounds[r], partial.active.nonzero().flatten()))
        for shares in _shares(parts, int(partial.part), ranks):
            partial = _add_parts(pair, x, how, parts, shares, partial, ranks)
            done = (sum(rounds[:r]) + rounds[r] * int(partial.part) / len(parts)) / how.draws
            watch(partial, refining + (1 - refining) * done)
        active = partial.active & ~partial.final
        final = active & (_settled(partial, how) if r + 2 < len(rounds) else active)
        partial = partial._replace(round=torch.tensor(r + 1), part=torch.tensor(0), active=active, final=final)
    return partial


Part = tuple[Tensor, int]
"""Some rows, and how many draws they get."""


def _shares(parts: Sequence[Part], first: int, ranks: Ranks) -> Iterator[list[list[int]]]:
    """The parts from the first on, some at a time: which of them each rank draws. All those of a row go to one rank,
    in their order.

    >>> rows = torch.tensor([0]), torch.tensor([1])
    >>> list(_shares([(rows[0], 5), (rows[0], 5), (rows[1], 5)], 0, ALONE))
    [[[0]], [[1]], [[2]]]
    """
    if ranks.size == 1:
        yield from ([[i]] for i in range(first, len(parts)))
        return
    of_rows = itertools.groupby(range(first, len(parts)), key=lambda i: int(parts[i][0][0]))
    blocks = [list(numbers) for _, numbers in of_rows]
    for start in range(0, len(blocks), BLOCKS * ranks.size):
        some = blocks[start : start + BLOCKS * ranks.size]
        ends = [len(some) * rank // ranks.size for rank in range(ranks.size + 1)]
        yield [list(itertools.chain(*some[low:high])) for low, high in itertools.pairwise(ends)]


def _add_parts(
    pair: Pair,
    x: Tensor,
    how: LikelihoodConfig,
    parts: Sequence[Part],
    shares: list[list[int]],
    partial: PartialSums,
    ranks: Ranks,
) -> PartialSums:
    """Draw the parts of this rank, add them, and put together the sums of all ranks."""
    refined = how.refine > 0 and pair.proposal.n_row_biases > 0
    if ranks.size > 1:  # what is saved when it is stopped meanwhile must not have some of the ranks' parts
        partial = PartialSums(*(tensor.clone() for tensor in partial))
    for i in shares[ranks.rank]:
        rows, draws = parts[i]
        # every part has a generator of its own, so that any of them can be the next
        rng = generator(x.device, how.seed, how.member, "score", int(partial.round), i)
        shifts = partial.shifts[rows].to(pair.theta.dtype) if refined else None
        _add(partial, rows, propose(pair, x[rows].to(pair.theta.dtype), draws, rng, shifts=shifts).log_weight)
    if ranks.size > 1:
        _put_together(partial, [[parts[i][0] for i in share] for share in shares], ranks)
    return partial._replace(part=torch.tensor(1 + max(i for share in shares for i in share)))


def _put_together(partial: PartialSums, rows: list[list[Tensor]], ranks: Ranks) -> None:
    """Take the sums of each rank's rows from that rank."""
    summed = [partial.counts, partial.sums, partial.squares, partial.largest, partial.spent]
    nobody = torch.zeros(0, dtype=torch.int64, device=partial.counts.device)
    each = [torch.cat([nobody, *some]).unique() for some in rows]
    for rank, found in ranks.everywhere({ranks.rank: [sums[..., each[ranks.rank]] for sums in summed]}).items():
        for sums, values in zip(summed, found, strict=True):
            sums[..., each[rank]] = values


def _parts(how: LikelihoodConfig, model: Chain, draws: int, rows: Tensor) -> Iterator[Part]:
    """Some rows and some draws at a time, so that the work takes no more memory than it may."""
    cells, width = _cells(how), _width(model)
    at_once = max(1, min(draws, cells // width))
    for block in rows.split(max(1, cells // (width * at_once))):
        for start in range(0, draws, at_once):
            yield block, min(at_once, draws - start)


def _cells(how: LikelihoodConfig) -> int:
    return int(how.memory * 2**20 / BYTES_PER_CELL)


def _width(model: Chain) -> int:
    return sum(layer.n_out for layer in model.layers)


def _forget(partial: PartialSums, rows: Tensor) -> None:
    """Before another round: what went before has decided on it, and must not be in the score."""
    partial.counts[:, rows] = 0
    partial.sums[:, rows] = partial.squares[rows] = -math.inf
    partial.largest[:, rows] = -math.inf


def _add(partial: PartialSums, rows: Tensor, log_weight: Tensor) -> None:
    """Add the draws (draws, rows) of some rows; the k-th of a round goes to group k % GROUPS."""
    draws, n = log_weight.shape
    before = int(partial.counts[:, rows[0]].sum())  # the same in all of these rows
    groups = (torch.arange(GROUPS, device=rows.device) - before) % GROUPS  # where each group stands in this deal
    padding = log_weight.new_full((-draws % GROUPS, n), -math.inf)
    dealt = torch.cat([log_weight, padding]).view(-1, GROUPS, n).double()
    partial.counts[:, rows] += (draws + GROUPS - 1 - groups[:, None]) // GROUPS
    partial.spent[rows] += draws
    partial.sums[:, rows] = torch.logaddexp(partial.sums[:, rows], dealt.logsumexp(0)[groups])
    partial.squares[rows] = torch.logaddexp(partial.squares[rows], (2 * dealt).logsumexp((0, 1)))
    both = torch.cat([partial.largest[:, rows], log_weight.float()]).t().contiguous()  # sorting goes along the memory
    partial.largest[:, rows] = both.topk(len(partial.largest)).values.t()


def _settled(partial: PartialSums, how: LikelihoodConfig) -> Tensor:
    """Rows that need no more draws."""
    return (_ess(partial) >= how.enough) & (_khat(partial) <= RELIABLE)


def _ess(partial: PartialSums) -> Tensor:
    """(sum w)^2 / sum w^2."""
    return torch.exp(2 * partial.sums.logsumexp(0) - partial.squares)


def _khat(partial: PartialSums) -> Tensor:
    draws, found = partial.counts.sum(0), torch.full_like(partial.squares, math.nan)
    for n in draws.unique().tolist():
        found[draws == n] = khat(partial.largest[: tail_length(n) + 1, draws == n], n)
    return found


def _finish(partial: PartialSums, seed: int) -> RowLikelihoods:
    draws = partial.counts.sum(0)
    total = partial.sums.logsumexp(0) - draws.double().log()
    return RowLikelihoods(total, _ess(partial), _khat(partial), _noise(partial, seed), partial.spent)


def _noise(partial: PartialSums, seed: int, replicates: int = 200) -> Tensor:
    """The spread of log mean weight when the groups of draws are drawn again, with replacement."""
    filled = (partial.counts > 0).any(1)  # all of them, unless there are fewer draws than groups
    n = int(filled.sum())
    rng = generator(partial.sums.device, seed, "bootstrap")
    chosen = torch.randint(n, (replicates, n), generator=rng, device=rng.device)
    times = F.one_hot(chosen, n).sum(1).double()  # each replicate has each group so many times
    sums = torch.exp(partial.sums[filled] - partial.sums.amax(0))
    # groups may all be empty of weight in a replicate, whose logarithm would be -inf
    means = (times @ sums).clamp_(min=1e-300) / (times @ partial.counts[filled].double())
    if n == 1:
        return torch.full_like(partial.squares, math.nan)
    return means.log().std(0, correction=0) * math.sqrt(n / (n - 1))  # n groups vary by 1 - 1/n less than their source
