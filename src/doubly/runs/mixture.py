"""Mixtures for tables, by EM from incomplete rows: in each class a normal of the real columns, and levels by frequency.

One class is a multivariate normal with independent other columns. Everything that is asked of a mixture is exact: the
density of what is observed, and the law of what is missing given it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.layers.chain import Chain
from doubly.layers.mixed import Mixed

RIDGE = 1e-3  # of a standardised column's variance
ITERATIONS = 25
MOST_WORK = 5e8  # rows x classes x real columns^3 in an iteration
MOST_NUMBERS = 2e7  # rows x real columns^2 at a time
NORMAL = math.inf  # degrees of freedom of a normal
ALIKE = 1.0  # rows by which the levels and the mean of a class are drawn to those of the table


class Layout(NamedTuple):
    """Where a table's real entries stand, and the entries of its other columns."""

    width: int
    reals: Tensor
    levels: tuple[Tensor, ...]
    """Of each column that is not real, its entries; a bit has one."""

    @classmethod
    def of(cls, columns: str, width: int) -> "Layout":
        """Of a table with these columns, as a mixed layer writes them."""
        layer = Chain.build(f"mixed:columns={columns}" if columns else "mixed", data=width).layers[0]
        assert isinstance(layer, Mixed)
        at, reals, levels = 0, [], []
        for block in layer.blocks():
            if block.discrete:
                levels.append(torch.arange(at, at + block.width))
            else:
                reals.append(at)
            at += block.width
        return cls(width, torch.tensor(reals, dtype=torch.int64), tuple(levels))

    def split(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Real columns with NaN, and of each other column its levels one-hot, with zeros where it is missing."""
        found = []
        for entries in self.levels:
            block = rows[:, entries].double()
            block = torch.cat([1 - block, block], 1) if len(entries) == 1 else block
            found.append(block.masked_fill(block.isnan().any(1, keepdim=True), 0))
        return rows[:, self.reals].double(), found


class Mixture(NamedTuple):
    """Classes with their shares; in each, a normal and the probabilities of the levels of every other column."""

    layout: Layout
    share: Tensor
    mean: Tensor
    """(classes, real columns)"""
    covariance: Tensor
    """(classes, real columns, real columns)"""
    levels: tuple[Tensor, ...]
    """Of each other column (classes, levels)."""
    tails: float = NORMAL
    """Degrees of freedom: a class is a multivariate t, or a normal where they are infinite."""

    def log_prob(self, rows: Tensor) -> Tensor:
        """log p of the observed entries of each row."""
        return self.distances(rows).log_prob(self.tails)

    def distances(self, rows: Tensor) -> "Distances":
        """What the densities of rows are made of, whatever the tails and the size of the covariances."""
        parts = [self._distances(*self.layout.split(part)) for part in self._blocks(rows)]
        if len(parts) == 1:
            return parts[0]
        constant, distance, observed = zip(*parts, strict=True)
        return Distances(torch.cat(constant, 1), torch.cat(distance, 1), torch.cat(observed))

    def spread(self, tails: float, factor: float) -> "Mixture":
        """The same with other tails, and so many times the variances: regressions are as they were."""
        return self._replace(covariance=factor * self.covariance, tails=tails)

    def complete(self, rows: Tensor, copies: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The expectation of missing entries, and copies (copies, rows, D) of which they are drawn."""
        parts = [self._completed(part, copies, rng) for part in self._blocks(rows)]
        return torch.cat([mean for mean, _ in parts]), torch.cat([drawn for _, drawn in parts], 1)

    def _completed(self, rows: Tensor, copies: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        reals, levels = self.layout.split(rows)
        far = self._distances(reals, levels)
        weight = torch.softmax(far.joint(self.tails), 0)
        expected = torch.zeros(len(rows), self.layout.width, dtype=torch.float64)
        drawn = torch.zeros(copies, len(rows), self.layout.width, dtype=torch.float64)
        chosen = torch.multinomial(weight.T, copies, replacement=True, generator=rng).T
        if len(self.layout.reals):
            known = [conditioned(*each, reals) for each in zip(self.mean, self.covariance, strict=True)]
            completed = torch.stack([each.completed for each in known])
            expected[:, self.layout.reals] = (weight[..., None] * completed).sum(0)
            small = 1e-10 * torch.eye(reals.shape[1], dtype=torch.float64)
            noise = torch.randn(copies, *reals.shape, generator=rng, dtype=torch.float64)
            filled = torch.empty_like(noise)
            for at, each in enumerate(known):
                root = torch.linalg.cholesky(each.left + small)
                size = self._sizes(far.distance[at], far.observed, copies, rng)
                mine = completed[at] + size * torch.einsum("nij,cnj->cni", root, noise)
                filled = torch.where((chosen == at)[..., None], mine, filled)
            drawn[:, :, self.layout.reals] = torch.where(reals.isnan(), filled, reals.nan_to_num())
        for entries, chance in zip(self.layout.levels, self.levels, strict=True):
            mean = weight.T @ chance
            picked = torch.multinomial(chance[chosen.flatten()], 1, generator=rng)[:, 0].view(chosen.shape)
            hot = torch.nn.functional.one_hot(picked, chance.shape[1]).double()
            expected[:, entries], drawn[:, :, entries] = mean[:, -len(entries) :], hot[..., -len(entries) :]
        missing = rows.isnan()
        return (
            torch.where(missing, expected.to(rows), rows),
            torch.where(missing, drawn.to(rows), rows.expand(copies, *rows.shape)),
        )

    def _distances(self, reals: Tensor, levels: list[Tensor]) -> "Distances":
        constant = self.share.log()[:, None].expand(len(self.share), len(reals))
        for block, chance in zip(levels, self.levels, strict=True):
            constant = constant + chance.log() @ block.T
        distance = torch.zeros_like(constant)
        if len(self.layout.reals):
            normals = zip(self.mean, self.covariance, strict=True)
            known = [conditioned(*each, reals, whole=False) for each in normals]
            constant = constant - torch.stack([each.log_determinant for each in known]) / 2
            distance = torch.stack([each.distance for each in known])
        return Distances(constant, distance, (~reals.isnan()).sum(-1).double())

    def _sizes(self, distance: Tensor, observed: Tensor, copies: int, rng: torch.Generator) -> Tensor:
        """By how much draws of a normal differ in size from those of a t, given what is observed: (copies, rows, 1).

        Given d entries at a distance D, a t with nu degrees of freedom is one with nu + d, (nu + D) / (nu + d) times
        as wide in squares.
        """
        if self.tails == NORMAL:
            return distance.new_ones(1, 1, 1)
        freedom = (self.tails + observed).expand(copies, len(observed))
        chi2 = 2 * torch._standard_gamma(freedom / 2, generator=rng)
        return ((self.tails + distance) / chi2).sqrt()[..., None]

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = rows.split(max(1, int(MOST_NUMBERS / max(1, len(self.layout.reals)) ** 2)))
        return found


class Distances(NamedTuple):
    """Of rows and classes: what their log densities are made of."""

    constant: Tensor
    """(classes, rows): log of the share and of the levels, less half of the log determinant."""
    distance: Tensor
    """(classes, rows): squared, in units of the covariance."""
    observed: Tensor
    """(rows,) how many real entries are."""

    def joint(self, tails: float = NORMAL, factor: float = 1.0) -> Tensor:
        """log p(class, what is observed), (classes, rows), with so many times the variances."""
        d = self.observed
        if tails == NORMAL:
            return self.constant - (self.distance / factor + d * math.log(2 * math.pi * factor)) / 2
        whole = torch.lgamma((tails + d) / 2) - math.lgamma(tails / 2) - d / 2 * math.log(math.pi * tails * factor)
        return self.constant + whole - (tails + d) / 2 * torch.log1p(self.distance / (tails * factor))

    def log_prob(self, tails: float = NORMAL, factor: float = 1.0) -> Tensor:
        return self.joint(tails, factor).logsumexp(0)


class Conditioned(NamedTuple):
    """What the observed entries of each row say of the others, under a normal; under a t, `left` is as if of one."""

    distance: Tensor
    log_determinant: Tensor
    completed: Tensor
    left: Tensor
    """Covariances of the missing entries given the observed, for each row; zero elsewhere."""

    def counts(self, tails: float, observed: Tensor) -> Tensor | float:
        """How much rows count for the mean and covariance of a t: those that lie far away count less."""
        return 1.0 if tails == NORMAL else (tails + observed) / (tails + self.distance)


def conditioned(mean: Tensor, covariance: Tensor, rows: Tensor, whole: bool = True) -> Conditioned:
    """Of rows with NaN; without `whole`, distances alone."""
    missing = rows.isnan()
    observed = (~missing).double()
    both = observed[:, :, None] * observed[:, None, :]
    # the covariance of the observed entries, with ones on the diagonal in the place of the missing
    factor = torch.linalg.cholesky(covariance * both + torch.diag_embed(1 - observed))
    residual = torch.where(missing, 0.0, rows - mean)
    solved = torch.cholesky_solve(residual[..., None], factor)[..., 0]
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    distance = (residual * solved).sum(-1)
    if not whole:
        return Conditioned(distance, log_determinant, rows, rows)
    completed = torch.where(missing, mean + (solved * observed) @ covariance, rows)
    # with L L^T the covariance of the observed, what is left is C - C_o (L L^T)^-1 C_o^T
    half = torch.linalg.solve_triangular(factor, covariance * observed[:, :, None], upper=False)
    left = (covariance - half.mT @ half) * ((1 - observed)[:, :, None] * (1 - observed)[:, None, :])
    return Conditioned(distance, log_determinant, completed, left)


def by_em(
    layout: Layout,
    rows: Tensor,
    classes: int,
    prior: float,
    diagonal: float = 0.0,
    spread: float = 1.0,
    tails: float = NORMAL,
    weight: Tensor | None = None,
    seed: int = 0,
    iterations: int = ITERATIONS,
) -> Mixture:
    """A mixture of so many classes, fitted to incomplete rows that count as `weight` says.

    The covariance of a class is drawn, as by `prior` further rows, to the one that all classes share, and that one, as
    by `diagonal` further rows, to its own diagonal. Only as by `spread` further rows are its variances: a class of rows
    that are alike in a column, such as those with a zero in it, is narrow there. With `tails`, classes are t with so
    many degrees of freedom, to which rows that lie far away count less.
    """
    rng = torch.Generator().manual_seed(seed)
    most = max(300, int(MOST_WORK / classes / max(1, len(layout.reals)) ** 3))
    if len(rows) > most:
        at = torch.randperm(len(rows), generator=rng)[:most]
        rows, weight = rows[at], None if weight is None else weight[at]
    reals, levels = layout.split(rows)
    weight = torch.ones(len(rows), dtype=torch.float64) if weight is None else weight.double()
    # classes that nothing tells apart would stay so: rows are dealt to the nearest of some of them
    response = _dealt(layout, reals, levels, classes, rng) * weight
    frequencies = [_smoothed(weight[None] @ block, block.shape[1]) for block in levels]
    width, observed = len(layout.reals), (~reals.isnan()).sum(-1).double()
    means = reals.nanmean(0).nan_to_num()
    variance = (reals - means).square().nanmean(0).nan_to_num(1.0).clamp(min=1e-4)
    found = Mixture(layout, torch.ones(classes, dtype=torch.float64) / classes, means.expand(classes, width).clone(),
                    torch.diag(variance).expand(classes, width, width).clone(), tuple(frequencies), tails)  # fmt: skip
    for turn in range(iterations):
        known = [conditioned(*each, reals) for each in zip(found.mean, found.covariance, strict=True)] if width else []
        if turn or classes == 1:
            joint = found.share.log()[:, None].expand(classes, len(rows))
            if width:
                constant = joint - torch.stack([each.log_determinant for each in known]) / 2
                joint = Distances(constant, torch.stack([each.distance for each in known]), observed).joint(tails)
            for block, chance in zip(levels, found.levels, strict=True):
                joint = joint + chance.log() @ block.T
            response = torch.softmax(joint, 0) * weight
        number = response.sum(1)
        chances = tuple(
            _normal(response @ block + ALIKE * frequency) for block, frequency in zip(levels, frequencies, strict=True)
        )
        found = found._replace(share=_normal(number + 1), levels=chances)
        if width:
            counts = torch.stack([response[at] * each.counts(tails, observed) for at, each in enumerate(known)])
            mean, covariance = _moments(known, response, counts, prior, diagonal, spread)
            found = found._replace(mean=mean, covariance=covariance)
    return found


def _dealt(layout: Layout, reals: Tensor, levels: list[Tensor], classes: int, rng: torch.Generator) -> Tensor:
    """(classes, rows): each row to the nearest of some rows, by what both have; far ones are likelier chosen."""
    if classes == 1:
        return torch.ones(1, len(reals), dtype=torch.float64)
    there = (~reals.isnan()).double()
    entries = torch.cat([reals.nan_to_num(), *levels], 1)
    known = torch.cat([there, *(block.sum(1, keepdim=True).expand_as(block) for block in levels)], 1)
    centres = torch.empty(0, entries.shape[1], dtype=torch.float64)
    filled = torch.where(known > 0, entries, (entries.sum(0) / known.sum(0).clamp(min=1)))

    def distance(centres: Tensor) -> Tensor:
        apart = (entries[None] - centres[:, None]).square() * known
        return apart.sum(-1) / known.sum(-1).clamp(min=1)

    chance = torch.ones(len(reals), dtype=torch.float64)
    for _ in range(classes):
        centres = torch.cat([centres, filled[torch.multinomial(chance + 1e-9, 1, generator=rng)]])
        chance = distance(centres).min(0).values
    for _ in range(5):
        nearest = torch.nn.functional.one_hot(distance(centres).argmin(0), classes).double().T
        number = nearest @ known
        centres = torch.where(number > 0, nearest @ (entries * known) / number.clamp(min=1), centres)
    return torch.nn.functional.one_hot(distance(centres).argmin(0), classes).double().T


def _moments(
    known: list[Conditioned], response: Tensor, counts: Tensor, prior: float, diagonal: float, spread: float
) -> tuple[Tensor, Tensor]:
    """Means and covariances of the classes, of rows that belong to them in part and count as the tails say."""
    sums = torch.stack([count @ each.completed for count, each in zip(counts, known, strict=True)])
    single, number, counted = len(known) == 1, response.sum(1), counts.sum(1)
    middle = sums.sum(0) / counted.sum()
    mean = sums / counted[:, None] if single else (sums + ALIKE * middle) / (counted + ALIKE)[:, None]
    scatter = []
    for count, share, each, centre in zip(counts, response, known, mean, strict=True):
        around = each.completed - centre
        scatter.append((count[:, None] * around).T @ around + torch.einsum("n,nij->ij", share, each.left))
    both = torch.stack(scatter)
    pooled = both.sum(0) / number.sum()
    alone = diagonal / (number.sum() + diagonal)
    pooled = (1 - alone) * pooled + alone * torch.diag(pooled.diagonal())
    ridge = RIDGE * torch.eye(len(middle), dtype=torch.float64)
    if single:
        return mean, pooled[None] + ridge
    # variances as `spread` says; correlations as `prior` says, to those that all classes share
    variance = (both.diagonal(dim1=-2, dim2=-1) + spread * pooled.diagonal()) / (number + spread)[:, None]
    drawn = both + prior * _with_variances(pooled.expand_as(both), variance)
    return mean, _with_variances(drawn, variance) + ridge


def _with_variances(covariance: Tensor, variance: Tensor) -> Tensor:
    """The same correlations with these variances."""
    size = (variance / covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-12)).sqrt()
    return covariance * size[..., :, None] * size[..., None, :]


def _smoothed(counts: Tensor, levels: int) -> Tensor:
    return _normal(counts + 0.5 * torch.ones(1, levels, dtype=torch.float64))


def _normal(numbers: Tensor) -> Tensor:
    return numbers / numbers.sum(-1, keepdim=True)
