"""A survey with unanswered questions: learn from it as it is, fill it in, and compare with simpler ways.

People have two hidden traits, and answer by category, yes or no, and numbers. A quarter of the answers is then hidden,
so that the truth is known. Each way is told the same matrix, in which a category is a cell for each of its levels, and
what it fills in is turned back into a table. Give a seed as argument; it takes about 20 seconds.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 - it must be asked for
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.preprocessing import StandardScaler

from doubly import DeepGenerativeModel
from doubly.data import Columns

Table = dict[str, list[Any]]
Way = Callable[[np.ndarray, Columns], np.ndarray]


def survey(people: int, rng: np.random.Generator) -> Table:
    """Everybody's answers: a person of traits t is likeliest to say what lies nearest to t."""
    t = rng.normal(size=(people, 2))

    def nearest(places: list[tuple[float, float]], names: list[Any]) -> list[Any]:
        liking = -3 * ((t[:, None] - np.array(places)) ** 2).sum(2) + rng.gumbel(size=(people, len(places)))
        return [names[i] for i in liking.argmax(1)]

    def noisy(value: np.ndarray, noise: float, digits: int) -> list[Any]:
        return [round(float(v), digits) for v in value + noise * rng.normal(size=people)]

    return {
        "commute": nearest([(-1, -1), (1, -1), (0, 1)], ["bicycle", "car", "train"]),
        "home": nearest([(-1, 1), (1, 1), (0, -1)], ["flat", "house", "shared"]),
        "news": nearest([(1, 0), (-1, 0), (0, 1.2), (0, -1.2)], ["paper", "radio", "online", "none"]),
        "pet": nearest([(0, 0), (1.5, 0), (-1.5, 0)], ["none", "dog", "cat"]),
        "votes": nearest([(1, 1), (-1, -1)], [True, False]),
        "smokes": nearest([(0, 0), (0, 1.5)], [False, True]),
        "gardens": nearest([(1, 0), (-1, 0)], [True, False]),
        "age": noisy(45 + 14 * t[:, 0], 3, 0),
        "children": noisy((1.5 + t[:, 1]).clip(0), 0.3, 0),
        "rent": noisy(700 + 200 * np.abs(t[:, 0]) + 150 * t[:, 1], 60, 0),
        "sport": noisy(6 * np.exp(-((t**2).sum(1)) / 2), 0.5, 1),
    }


def hide(table: Table, share: float, rng: np.random.Generator) -> Table:
    return {name: [None if rng.random() < share else value for value in values] for name, values in table.items()}


def by(imputer: Any) -> Way:
    """Columns scaled to be alike, and without the first level of each category, which is what the others leave over:
    regressions on all of them would find each in the others."""

    def fill(X: np.ndarray, columns: Columns) -> np.ndarray:
        names = [cell.partition("=")[0] for cell in columns.cells]
        category = np.array(["=" in cell for cell in columns.cells])
        first = category & np.array([name not in names[:at] for at, name in enumerate(names)])
        scaler = StandardScaler().fit(X[:, ~first])
        found = np.empty_like(X)
        found[:, ~first] = scaler.inverse_transform(imputer.fit_transform(scaler.transform(X[:, ~first])))
        for at in np.flatnonzero(first):
            rest = [other for other, name in enumerate(names) if name == names[at] and other != at]
            found[:, at] = 1 - found[:, rest].sum(1)
        return found

    return fill


def doubly(X: np.ndarray, columns: Columns) -> np.ndarray:
    """The blur is wider than by default, for answers are steps, and a density of steps would be all spikes."""
    return DeepGenerativeModel((5,), blur=0.2, epochs=100, collect=10, random_state=0).fit(X).impute(X, draws=10)


WAYS: dict[str, Way] = {
    "mean or mode": by(SimpleImputer()),
    "nearest neighbours": by(KNNImputer(n_neighbors=10, weights="distance")),
    "IterativeImputer": by(IterativeImputer(max_iter=10, random_state=0)),
    "doubly": doubly,
}


def errors(columns: Columns, truth: Table, holed: Table, filled: Table) -> dict[str, float]:
    """Of the hidden answers: the share of categories and of truths that is wrong; of numbers, rmse in deviations."""
    found: dict[str, list[float]] = {"categories": [], "yes or no": [], "numbers": []}
    for column in columns.columns:
        name = column.name
        at = [i for i, value in enumerate(holed[name]) if value is None]
        true, guess = ([table[name][i] for i in at] for table in (truth, filled))
        if column.kind in ("integer", "real"):
            off = (np.array(true) - np.array(guess)) / np.std(truth[name])
            found["numbers"].append(float(np.sqrt((off**2).mean())))
        else:
            kind = "categories" if column.kind == "category" else "yes or no"
            found[kind].append(float(np.mean([a != b for a, b in zip(true, guess, strict=True)])))
    return {kind: float(np.mean(values)) for kind, values in found.items()}


def main(seed: int = 0, people: int = 500) -> dict[str, dict[str, float]]:
    rng = np.random.default_rng(seed)
    truth = survey(people, rng)
    holed = hide(truth, 0.25, rng)
    columns = Columns.of(holed)
    X = columns.encode(holed)
    print(
        f"{people} people, {len(truth)} questions, {np.isnan(X).mean():.0%} of the cells missing; errors of filling in"
    )
    print(f"{'':20}{'categories':>12}{'yes or no':>12}{'numbers':>12}")
    scores = {}
    for name, fill in WAYS.items():
        scores[name] = errors(columns, truth, holed, columns.decode(fill(X, columns)))
        print(f"{name:20}" + "".join(f"{value:12.3f}" for value in scores[name].values()), flush=True)
    return scores


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    main(*(int(number) for number in sys.argv[1:]))
