"""Stacking: observed cells are hidden from the models, and their weights are those that suit these cells best."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.runs.mixture import Layout, Mixture, by_em

CLASSES = (1, 2, 3, 5, 8, 13, 21)
ROWS_A_CLASS = 10  # at least
INFLATIONS = (1.0, 1.1, 1.25, 1.5)
LEAST_WEIGHT = 0.03  # below, a model is dropped
MOST_ALIKE = 13
FITS = 4  # of mixtures that answer
TRIAL, FINAL = 12, 20  # iterations of EM
HIDDEN = (0.05, 0.35)  # shares of a row's observed cells that are hidden, at least and at most


class Held(NamedTuple):
    """A table of which some cells are hidden from learning."""

    rows: Tensor
    seen: Tensor
    """The same without the cells that are hidden."""
    cells: int

    def score(self, log_prob: Callable[[Tensor], Tensor]) -> Tensor:
        """log p(hidden | seen) of each row."""
        return log_prob(self.rows).double() - log_prob(self.seen).double()


def hold_out(layout: Layout, rows: Tensor, rng: torch.Generator) -> Held:
    """Hide some observed cells of every row; one at least stays."""
    at = [*layout.reals[:, None], *layout.levels]
    there = torch.stack([~rows[:, entries].isnan().any(1) for entries in at], 1)
    low, high = HIDDEN
    share = low + (high - low) * torch.rand(len(rows), 1, generator=rng)
    order = torch.rand(there.shape, generator=rng).masked_fill(~there, 2.0)
    hidden = (order < share) & there
    kept = order.masked_fill(~there, -1).argmax(1)  # of each row the last to be hidden
    hidden[torch.arange(len(rows)), kept] = False
    seen = rows.clone()
    for column, entries in enumerate(at):
        seen[hidden[:, column][:, None] & torch.isin(torch.arange(rows.shape[1]), entries)] = math.nan
    return Held(rows, seen, max(1, int(hidden.sum())))


def stacked(scores: Tensor) -> Tensor:
    """Weights of models (models,) that maximise the mean log of the weighted density, from log densities (models, n).

    By EM, with one observation more that says nothing of them.
    """
    density = torch.softmax(scores, 0)  # of each row in proportion
    weight = torch.full((len(scores),), 1 / len(scores), dtype=torch.float64)
    for _ in range(300):
        share = weight[:, None] * density
        share = (share / share.sum(0).clamp(min=1e-300)).sum(1) + 1 / len(scores)
        weight = share / share.sum()
    return weight


def pruned(weight: Tensor) -> Tensor:
    """The same without those that are small."""
    weight = torch.where(weight < min(LEAST_WEIGHT, float(weight.max())), 0.0, weight)
    return weight / weight.sum()


class Design(NamedTuple):
    """A mixture that may suit a table."""

    name: str
    classes: int
    prior: float
    diagonal: float
    inflation: float = 1.0

    def fit(
        self, layout: Layout, rows: Tensor, seed: int = 0, weight: Tensor | None = None, iterations: int = FINAL
    ) -> Mixture:
        """Fitted to rows that count as `weight` says."""
        found = by_em(layout, rows, self.classes, self.prior, self.diagonal, weight, seed, iterations)
        return found.inflated(self.inflation)


class Contestant(NamedTuple):
    """A model that was fitted without the hidden cells, and log p(hidden | seen) of each row."""

    design: Design
    scores: Tensor


def designs(layout: Layout, rows: int) -> list[Design]:
    """Mixtures from one class to many: loose ones, and ones whose classes are alike and columns nearly independent."""
    n = max(1, len(layout.reals))
    found = [Design("normal by EM", 1, 0, 0), Design("shrunk normal", 1, 0, n)]
    for classes in CLASSES[1:]:
        if classes * ROWS_A_CLASS <= rows:
            found.append(Design(f"{classes} classes", classes, n, 0))
        if classes * ROWS_A_CLASS <= min(rows, MOST_ALIKE * ROWS_A_CLASS):
            found.append(Design(f"{classes} classes alike", classes, 4 * n, 2 * n))
    return found


def contest(layout: Layout, held: Held, seed: int, more: Callable[[], bool]) -> list[Contestant]:
    """Fit the mixtures without the hidden cells, each with the inflation that suits these best.

    More classes are tried while there is time, and until two numbers of classes in a row have brought nothing.
    """
    found: list[Contestant] = []
    best, since, classes = -math.inf, 0, 1
    for design in designs(layout, len(held.rows)):
        if design.classes > classes:
            top = max(float(each.scores.sum()) for each in found)
            best, since, classes = max(best, top), 0 if top > best else since + 1, design.classes
        if found and (since > 1 or not more()):
            break
        fitted = design.fit(layout, held.seen, seed, iterations=TRIAL)
        tried = [(held.score(fitted.inflated(factor).log_prob), factor) for factor in INFLATIONS]
        scores, factor = max(tried, key=lambda pair: float(pair[0].sum()))
        found.append(Contestant(design._replace(inflation=factor), scores))
    return found


def bootstrap(n: int, rng: torch.Generator) -> Tensor:
    """How much each of n rows counts in a Bayesian bootstrap: Exp(1), of mean and variance one."""
    return -torch.rand(n, generator=rng, dtype=torch.float64).clamp(min=1e-9).log()


def answering(
    designs: list[Design], weights: list[float], layout: Layout, rows: Tensor, seed: int, more: Callable[[], bool]
) -> list[tuple[float, Mixture]]:
    """The mixtures that answer, fitted to all cells: several of each, to rows that count by chance.

    What differs between them is what is not known of the table.
    """
    rng, found = torch.Generator().manual_seed(seed), []
    for design, share in zip(designs, weights, strict=True):
        fits = [design.fit(layout, rows, seed)]
        for turn in range(1, max(1, round(FITS * share))):
            if not more():
                break
            fits.append(design.fit(layout, rows, seed + turn, bootstrap(len(rows), rng)))
        found += [(share / len(fits), fit) for fit in fits]
    return found
