"""Cells of tables: how well hidden ones are imputed, beside simple ways; strange rows with the cells to blame."""

import math
from typing import NamedTuple

import numpy as np
import torch

from doubly.analysis.report.page import Figure, Level, Remark, Section, Table
from doubly.analysis.report.sections.tables import columns_of, values_of
from doubly.analysis.report.story import Story
from doubly.analysis.report.svg import Chart, number, plain_text, signed_bars
from doubly.analysis.report.ways import simple_ways
from doubly.analysis.tables import complete, odd_cells
from doubly.core.random import generator
from doubly.data import Column, Columns
from doubly.posterior.imputation import spaced
from doubly.runs.build import build
from doubly.runs.learn import Learnt
from doubly.training.refit import refit
from doubly.training.state import init

ROWS = 200
"""Held-out rows of which cells are hidden."""
SHARE = 0.25
COPIES = 100
INTERVAL = 0.9
MEMBERS = 3
"""Samples of the weights that answer."""
FIT_ROWS, NEIGHBOUR_ROWS = 1000, 2000
"""Training rows that the proposal is fitted to, and among which neighbours are looked for."""
MOST_ENTRIES, MOST_CELLS = 60_000, 150_000
"""Rows x entries of the rows with hidden cells, and rows x entries x columns of those whose cells are looked at one by
one: of wide tables, fewer rows."""
ODD_ROWS, WORST, BLAME = 8, 3, 2.0


def learnt(story: Story) -> Learnt:
    """The run as something that completes rows: some samples, and a proposal that has seen more missing cells."""
    posterior, config = story.posterior, story.run.config
    thetas = spaced(posterior.thetas, MEMBERS) if posterior.thetas else [posterior.last()]
    method, phi, facts = posterior.method, posterior.phi, story.run.facts._replace(has_missing=True)
    if method.proposal.layers:
        rows = torch.as_tensor(story.some("train", FIT_ROWS)[1]).to(phi.device)
        more = _with_more_missing(columns_of(story), rows)
        if method.proposal.masked:
            phi = refit(method, story.theta, phi, torch.cat([rows, more]), story.passes(2 * len(rows)))
        else:  # a run of complete rows: its proposal knows of no missing cells, and another one learns of them
            method = build(config, facts)
            phi = init(method, rows).phi.theta
            phi = refit(method, story.theta, phi, torch.cat([rows, more]), 3 * story.passes(2 * len(rows)))
    return Learnt("this model", config, facts, thetas, phi, scores={}, notes=())


def _with_more_missing(columns: Columns, rows: torch.Tensor) -> torch.Tensor:
    rng = generator("cpu", 0, "report masks")
    share = torch.rand(len(rows), 1, generator=rng) * 0.5
    gone = torch.rand(len(rows), len(columns.columns), generator=rng) < share
    return rows.masked_fill(gone[:, torch.as_tensor(columns.sources)], math.nan)


# Hidden cells


class ColumnScore(NamedTuple):
    """How well the hidden cells of a column are imputed, by each way: errors of numbers, shares of wrong levels."""

    column: Column
    cells: int
    error: dict[str, float]
    coverage: float
    """Of intervals that should hold 90 %; NaN for levels."""
    log_loss: dict[str, float]
    """Of levels; empty for numbers."""


def hidden_cells(story: Story) -> Section:
    """A quarter of the cells of held-out rows is hidden."""
    columns, scores = columns_of(story), column_scores(story)
    numbers = [each for each in scores if not each.log_loss]
    levels = [each for each in scores if each.log_loss]
    parts: list[Figure | Table] = []
    if numbers:
        ways = list(numbers[0].error)
        lines = [
            [
                plain_text(each.column.name),
                str(each.cells),
                *(number(each.error[way]) for way in ways),
                f"{each.coverage:.0%}",
            ]
            for each in numbers
        ]
        note = (
            "Root mean square error in the units of the column; the last column is the share of hidden "
            "values inside the "
        )
        parts.append(
            Table(
                ["numbers", "hidden", *ways, f"in {INTERVAL:.0%} intervals"],
                lines,
                note=note + f"model's {INTERVAL:.0%} intervals, which should be about {INTERVAL:.0%}.",
                levels=[_level(each) for each in numbers],
            )
        )
    if levels:
        ways = list(levels[0].error)
        lines = [
            [
                plain_text(each.column.name),
                str(each.cells),
                *(f"{each.error[way]:.0%}" for way in ways),
                *(f"{loss:.2f}" for loss in each.log_loss.values()),
            ]
            for each in levels
        ]
        losses = [f"log loss: {way}" for way in levels[0].log_loss]
        note = (
            "Share of hidden cells whose likeliest level is wrong, and −log of the probability given to the true level."
        )
        parts.append(
            Table(["levels", "hidden", *ways, *losses], lines, note=note, levels=[_level(each) for each in levels])
        )
    if len(scores) > 1:
        parts.insert(0, _picture(scores))
    n = min(ROWS, len(story.data.test) + len(story.data.valid))
    return Section(
        "Hidden cells",
        f"{SHARE:.0%} of the known cells of {n} held-out rows were hidden and imputed given the others: by this model "
        f"({COPIES} completions with {len(spaced(story.posterior.thetas, MEMBERS)) or 1} samples of the "
        f"weights{' of the first chain' if story.posterior.others else ''}), by the "
        "column alone (mean, most frequent level), by the ten nearest training rows, and by linear "
        "regressions on all other cells. A model "
        f"that has learnt how the {len(columns.columns)} columns go together beats the column alone "
        f"wherever the others say anything.",
        parts,
        _remarks(scores),
    )


def column_scores(story: Story) -> list[ColumnScore]:
    """Every column that has hidden cells."""
    columns = columns_of(story)
    held = np.concatenate([story.data.test, story.data.valid])[:ROWS]
    held = held[: max(10, MOST_ENTRIES // held.shape[1])]
    rng = np.random.default_rng(0)
    gone = (rng.random((len(held), len(columns.columns))) < SHARE)[:, columns.sources] & ~np.isnan(held)
    incomplete = np.where(gone, np.nan, held).astype(np.float32)
    found = complete(story.once("learnt", learnt), torch.as_tensor(incomplete), COPIES)
    train = story.some("train", NEIGHBOUR_ROWS)[1]
    ways = {"this model": found.expected, **simple_ways(train, incomplete)}
    return [
        score
        for at in range(len(columns.columns))
        if (score := _score(columns, at, held, gone, ways, found.copies)) is not None
    ]


def _score(
    columns: Columns, at: int, truth: np.ndarray, gone: np.ndarray, ways: dict[str, np.ndarray], copies: np.ndarray
) -> ColumnScore | None:
    column, mine = columns.columns[at], columns.sources == at
    rows = gone[:, mine].any(1)
    if not rows.any():
        return None
    true = values_of(columns, truth[rows], at)
    if column.has_levels or column.kind == "binary":
        index = true.round().astype(int)
        shares = {way: _probabilities(column, values[rows][:, mine]) for way, values in ways.items()}
        wrong = {way: float(np.mean(share.argmax(1) != index)) for way, share in shares.items()}
        loss = {
            way: float(-np.log(shares[way][np.arange(len(index)), index]).mean())
            for way in ("this model", "column alone")
        }
        return ColumnScore(column, int(rows.sum()), wrong, math.nan, loss)
    errors = {
        way: float(np.sqrt(np.mean((values_of(columns, values[rows], at) - true) ** 2))) for way, values in ways.items()
    }
    drawn = np.stack([values_of(columns, copy[rows], at) for copy in copies])
    low, high = np.quantile(drawn, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=0, method="weibull")
    return ColumnScore(column, int(rows.sum()), errors, float(np.mean((low <= true) & (true <= high))), {})


def _probabilities(column: Column, cells: np.ndarray) -> np.ndarray:
    """Of each level, from what a way expects of the one-hot cells."""
    share = cells if column.has_levels else np.stack([1 - cells[:, 0], cells[:, 0]], 1)
    share = np.clip(np.nan_to_num(share, nan=0.5), 1e-3, 1)
    return np.asarray(share / share.sum(1, keepdims=True))


def _gain(each: ColumnScore) -> float:
    """How much of the error of the column alone the model takes away."""
    kind = each.log_loss or each.error
    alone = kind["column alone"]
    return 1 - kind["this model"] / alone if alone > 0 else 0.0


def _level(each: ColumnScore) -> Level | None:
    return "bad" if _gain(each) < -0.05 else "good" if _gain(each) > 0.1 else None


def _picture(scores: list[ColumnScore]) -> Figure:
    """The gain over the column alone, column by column."""
    order = sorted(scores, key=_gain, reverse=True)
    order = order if len(order) <= 30 else [*order[:15], *order[-15:]]
    gains = [max(_gain(each), -1.0) for each in order]
    names = [plain_text(each.column.name, 24) for each in order]
    tips = [
        f"{name}\n{'saves' if gain >= 0 else 'adds'} {abs(gain):.0%} of the error of the column alone"
        for name, gain in zip(names, gains, strict=True)
    ]
    chart = signed_bars(names, gains, tips, "Error saved by the model in each column")
    note = "Of numbers the root mean square error, of levels the log loss. Below zero the model does harm."
    return Figure("hidden-cells", chart, "Error saved beside the column alone", note)


def _remarks(scores: list[ColumnScore]) -> list[Remark]:
    if not scores:
        return []
    better, worse = sum(_gain(each) > 0.1 for each in scores), sum(_gain(each) < -0.05 for each in scores)
    typical = float(np.mean([_gain(each) for each in scores]))
    text = (
        f"Hidden cells: the model saves {typical:.0%} of the error of each column's mean or most "
        f"frequent level, on average; "
    )
    text += f"it is clearly better in {better} of {len(scores)} columns and worse in {worse}."
    level: Level = "bad" if typical < 0.02 or worse > better else "note" if worse else "good"
    found = [Remark(level, text.replace("-", "−"), 1)]
    known = [(each.coverage, each.cells) for each in scores if not math.isnan(each.coverage)]
    if known:
        coverage = sum(share * cells for share, cells in known) / sum(cells for _, cells in known)
        error = math.sqrt(INTERVAL * (1 - INTERVAL) / sum(cells for _, cells in known))
        off = abs(coverage - INTERVAL)
        level = "good" if off < max(0.04, 2.5 * error) else "note" if off < max(0.1, 4 * error) else "bad"
        word = "" if level == "good" else " They are too narrow." if coverage < INTERVAL else " They are too wide."
        found.append(
            Remark(
                level, f"{coverage:.0%} of the hidden numbers lie inside the model's {INTERVAL:.0%} intervals.{word}", 2
            )
        )
    return found


# Odd rows


def odd(story: Story) -> Section:
    """The strangest rows of the table, with the cells to blame and what was expected there."""
    columns, model = columns_of(story), story.once("learnt", learnt)
    model = model._replace(thetas=model.thetas[-1:])
    splits = [(split, i) for split in ("train", "valid", "test") for i in range(len(story.data.split(split)))]
    rows = np.concatenate([story.data.train, story.data.valid, story.data.test])
    most = max(50, MOST_CELLS // (rows.shape[1] * len(columns.columns)))
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), most)).round().astype(int))
    some = torch.as_tensor(rows[chosen])
    found = odd_cells(model, columns, some)
    order = np.argsort(-found.strangeness, kind="stable")[:ODD_ROWS]
    lines = []
    for at in order:
        split, row = splits[chosen[at]]
        cells = _blamed(columns, model, some, found.excess[at], int(at))
        lines.append([f"row {row} of {split}", f"{found.strangeness[at]:.1f}", cells])
    which = f"{len(chosen)} of {len(rows)} rows" if len(chosen) < len(rows) else f"all {len(rows)} rows"
    return Section(
        "Strangest rows",
        f"Of {which}, those whose cells the other cells of the row let expect least. Strangeness is in "
        f"nats beyond what is "
        "usual: above 10 or so, look whether the row is an error. A model that has learnt little finds "
        "nothing strange, or "
        "everything.",
        [_strangeness(found.strangeness), Table(["row", "strangeness", "cells to blame"], lines, numbers=False)],
    )


def _blamed(columns: Columns, model: Learnt, rows: torch.Tensor, excess: np.ndarray, at: int) -> str:
    worst = [j for j in np.argsort(-np.nan_to_num(excess, nan=-math.inf))[:WORST] if excess[j] > BLAME]
    said = []
    for j in worst:
        row = rows[at : at + 1].clone()
        row[:, torch.as_tensor(columns.sources == j)] = math.nan
        expected = complete(model, row, 50)
        said.append(_blame(columns, int(j), rows[at : at + 1].numpy(), expected.expected, expected.copies))
    return "; ".join(said) or "none by itself: the row as a whole"


def _blame(columns: Columns, j: int, row: np.ndarray, expected: np.ndarray, copies: np.ndarray) -> str:
    column = columns.columns[j]
    names = [plain_text(columns.decode(each)[column.name][0]) for each in (row, expected)]
    spread = ""
    if column.kind in ("real", "integer"):
        spread = f" ± {number(float(np.std([values_of(columns, copy, j)[0] for copy in copies])))}"
    return f"{plain_text(column.name)} is {names[0]}, expected {names[1]}{spread}"


def _strangeness(values: np.ndarray) -> Figure:
    low, high = float(values.min()), float(values.max())
    high = high if high > low else low + 1
    counts, edges = np.histogram(values, 30, (low, high))
    chart = Chart((low, high), (0, float(counts.max()) * 1.08), "strangeness (nats)", "rows", tall=190)
    for count, a, b in zip(counts, edges, edges[1:], strict=False):
        chart.bar(a, b, float(count), "f1 soft", f"{number(a)} to {number(b)}: {count} rows")
    return Figure("strangeness", chart.svg("How strange the rows are"), "How strange the rows are")
