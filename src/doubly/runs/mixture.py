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

    def log_prob(self, rows: Tensor) -> Tensor:
        """log p of the observed entries of each row."""
        return torch.cat([self._joint(*self.layout.split(part)).logsumexp(0) for part in self._blocks(rows)])

    def inflated(self, factor: float) -> "Mixture":
        """The same with so many times the variances: regressions are as they were, intervals are wider."""
        return self._replace(covariance=factor * self.covariance)

    def complete(self, rows: Tensor, copies: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The expectation of missing entries, and copies (copies, rows, D) of which they are drawn."""
        parts = [self._completed(part, copies, rng) for part in self._blocks(rows)]
        return torch.cat([mean for mean, _ in parts]), torch.cat([drawn for _, drawn in parts], 1)

    def _completed(self, rows: Tensor, copies: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        reals, levels = self.layout.split(rows)
        weight = torch.softmax(self._joint(reals, levels), 0)
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
                mine = completed[at] + torch.einsum("nij,cnj->cni", root, noise)
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

    def _joint(self, reals: Tensor, levels: list[Tensor]) -> Tensor:
        """log p(class, what is observed), (classes, rows)."""
        found = self.share.log()[:, None].expand(len(self.share), len(reals))
        if len(self.layout.reals):
            normals = zip(self.mean, self.covariance, strict=True)
            found = found + torch.stack([conditioned(*each, reals, whole=False).log_prob for each in normals])
        for block, chance in zip(levels, self.levels, strict=True):
            found = found + chance.log() @ block.T
        return found

    def _blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = rows.split(max(1, int(MOST_NUMBERS / max(1, len(self.layout.reals)) ** 2)))
        return found


class Conditioned(NamedTuple):
    """What the observed entries of each row say of the others, under a normal."""

    log_prob: Tensor
    completed: Tensor
    left: Tensor
    """Covariances of the missing entries given the observed, for each row; zero elsewhere."""


def conditioned(mean: Tensor, covariance: Tensor, rows: Tensor, whole: bool = True) -> Conditioned:
    """Of rows with NaN; without `whole`, log_prob alone."""
    missing = rows.isnan()
    observed = (~missing).double()
    both = observed[:, :, None] * observed[:, None, :]
    # the covariance of the observed entries, with ones on the diagonal in the place of the missing
    factor = torch.linalg.cholesky(covariance * both + torch.diag_embed(1 - observed))
    residual = torch.where(missing, 0.0, rows - mean)
    solved = torch.cholesky_solve(residual[..., None], factor)[..., 0]
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    distance = (residual * solved).sum(-1)
    log_prob = -(distance + log_determinant + observed.sum(-1) * math.log(2 * math.pi)) / 2
    if not whole:
        return Conditioned(log_prob, rows, rows)
    completed = torch.where(missing, mean + (solved * observed) @ covariance, rows)
    # with L L^T the covariance of the observed, what is left is C - C_o (L L^T)^-1 C_o^T
    half = torch.linalg.solve_triangular(factor, covariance * observed[:, :, None], upper=False)
    left = (covariance - half.mT @ half) * ((1 - observed)[:, :, None] * (1 - observed)[:, None, :])
    return Conditioned(log_prob, completed, left)


def by_em(
    layout: Layout,
    rows: Tensor,
    classes: int,
    prior: float,
    diagonal: float = 0.0,
    weight: Tensor | None = None,
    seed: int = 0,
    iterations: int = ITERATIONS,
) -> Mixture:
    """A mixture of so many classes, fitted to incomplete rows that count as `weight` says.

    The covariance of a class is drawn, as by `prior` further rows, to the one that all classes share, and that one, as
    by `diagonal` further rows, to its own diagonal.
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
    width = len(layout.reals)
    means = reals.nanmean(0).nan_to_num()
    spread = (reals - means).square().nanmean(0).nan_to_num(1.0).clamp(min=1e-4)
    found = Mixture(layout, torch.ones(classes, dtype=torch.float64) / classes, means.expand(classes, width).clone(),
                    torch.diag(spread).expand(classes, width, width).clone(), tuple(frequencies))  # fmt: skip
    for turn in range(iterations):
        known = [conditioned(*each, reals) for each in zip(found.mean, found.covariance, strict=True)] if width else []
        if turn or classes == 1:
            joint = found.share.log()[:, None].expand(classes, len(rows))
            joint = joint + torch.stack([each.log_prob for each in known]) if width else joint
            for block, chance in zip(levels, found.levels, strict=True):
                joint = joint + chance.log() @ block.T
            response = torch.softmax(joint, 0) * weight
        number = response.sum(1)
        chances = tuple(
            _normal(response @ block + ALIKE * frequency) for block, frequency in zip(levels, frequencies, strict=True)
        )
        found = found._replace(share=_normal(number + 1), levels=chances)
        if width:
            mean, covariance = _moments(known, response, number, prior, diagonal)
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
    known: list[Conditioned], response: Tensor, number: Tensor, prior: float, diagonal: float
) -> tuple[Tensor, Tensor]:
    """Means and covariances of the classes, of rows that belong to them in part."""
    sums = torch.stack([share @ each.completed for share, each in zip(response, known, strict=True)])
    single = len(known) == 1
    middle = sums.sum(0) / number.sum()
    mean = sums / number[:, None] if single else (sums + ALIKE * middle) / (number + ALIKE)[:, None]
    scatter = []
    for share, each, centre in zip(response, known, mean, strict=True):
        around = each.completed - centre
        scatter.append((share[:, None] * around).T @ around + torch.einsum("n,nij->ij", share, each.left))
    both = torch.stack(scatter)
    pooled = both.sum(0) / number.sum()
    alone = diagonal / (number.sum() + diagonal)
    pooled = (1 - alone) * pooled + alone * torch.diag(pooled.diagonal())
    ridge = RIDGE * torch.eye(len(middle), dtype=torch.float64)
    if single:
        return mean, pooled[None] + ridge
    return mean, (both + prior * pooled) / (number + prior)[:, None, None] + ridge


def _smoothed(counts: Tensor, levels: int) -> Tensor:
    return _normal(counts + 0.5 * torch.ones(1, levels, dtype=torch.float64))


def _normal(numbers: Tensor) -> Tensor:
    return numbers / numbers.sum(-1, keepdim=True)
