"""Features: what each latent unit adds to the data, and which rows are hardest and easiest."""

import math

import numpy as np

from doubly.analysis.report.mosaic import ink, ink_limits, mosaic, warm_and_cold
from doubly.analysis.report.page import Figure, Section, Table
from doubly.analysis.report.story import Story
from doubly.analysis.report.svg import number, plain_text

UNITS, ROWS = 100, 10


def has_features(story: Story) -> bool:
    """Whether the data layer has a matrix W with an image for each latent unit."""
    layer, shape = story.posterior.model.layers[0], story.data.shape
    return len(shape) == 2 and layer.n_in > 0 and layer.shapes().get("W") == (math.prod(shape), layer.n_in)


def features(story: Story) -> Section:
    """The columns of W as images, the largest norm first."""
    units = story.posterior.model.unflatten(story.theta)[0]["W"].detach().cpu().numpy().T
    norm = np.linalg.norm(units, axis=1)
    order = np.argsort(-norm, kind="stable")[:UNITS]
    largest = float(np.quantile(np.abs(units[order]), 0.995)) or 1.0  # a few huge weights would leave all others pale
    tips = [f"unit {at}\nnorm of its weights {number(float(norm[at]))}" for at in order]
    chart = mosaic(warm_and_cold(units[order], largest), story.data.shape, tips, "Weights of latent units as images")
    shown = f"{len(order)} of {len(units)} units" if len(order) < len(units) else f"all {len(units)} units"
    return Section(
        "Features",
        f"What each latent unit adds to the pixels when it is on: red is more ink, blue is less "
        f"({shown}, the strongest "
        f"first; {story.whose_theta}; full colour at ±{number(largest)}). A unit that shows a stroke or a part "
        f"of the images has "
        "learnt something; a pale one does little.",
        [Figure("weights", chart)],
    )


def extremes(story: Story) -> Section:
    """The rows with the lowest and the highest log-likelihood."""
    graded = story.graded
    order = np.argsort(graded.log_likelihood, kind="stable")
    hardest, easiest = order[:ROWS], order[::-1][:ROWS]
    advice = (
        "The test rows to which the model gives least and most. The hardest should look odd to you, too: if they look "
        f"ordinary, the model lacks something that they have in common. Log-likelihoods {graded.how()}."
    )
    parts: list[Figure | Table] = []
    for name, chosen in (("hardest", hardest), ("easiest", easiest)):
        said = [f"test row {graded.numbers[at]}\n{number(graded.log_likelihood[at], 4)} nats" for at in chosen]
        if story.images:
            colours = ink(graded.rows[chosen], ink_limits(story.data.train))
            chart = mosaic(colours, story.data.shape, said, f"The {name} test rows", 5)
            low, high = sorted(graded.log_likelihood[chosen[[0, -1]]])
            note = f"{number(low, 4)} to {number(high, 4)} nats"
            parts.append(Figure(name, chart, f"The {len(chosen)} {name} rows", note))
        else:
            parts.append(_rows(story, name, chosen))
    return Section("Hardest and easiest rows", advice, parts)


def _rows(story: Story, name: str, chosen: np.ndarray) -> Table:
    """Rows of a plain table: where they are, and their first cells."""
    graded, origin, lines = story.graded, story.data.origin, []
    for at in chosen:
        row = int(graded.numbers[at])
        where = f"test row {row}"
        if origin is not None and "test" in origin.rows:
            where += f" (row {int(origin.rows['test'][row])} of the file)"
        cells = " ".join(number(float(value)) for value in graded.rows[at][:12])
        more = " …" if story.data.width > 12 else ""
        lines.append([where, number(graded.log_likelihood[at], 4), plain_text(cells, 90) + more])
    return Table([f"{name} rows", "nats", "cells"], lines, numbers=False)
