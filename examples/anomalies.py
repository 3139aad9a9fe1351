"""Anomaly scores on a table: the lower the density of a row, the stranger it is.

Run `python examples/anomalies.py`, with other seeds as arguments if you like; it takes some ten seconds for each.

Everything learns from two thirds of the benign rows of the breast cancer table (30 measurements of cells), and then has
to tell the benign rows that were held out from two kinds of anomalies. The area under the ROC curve is the chance that
an anomaly is scored stranger than an ordinary row; 0.5 is guessing.

* Malignant rows, most of which lie outside the cloud: every way finds them, and none is better than the others.
* Mixed-up rows: a third of the measurements are those of another patient. Each value is ordinary, only their company is
  not. An isolation forest is near to guessing (0.58), local outlier factors do little better (0.7); densities see it
  (0.96). The best is the plain Gaussian (0.99), for these columns are nearly linear functions of each other: try it
  first.
"""

import sys

import numpy as np
from sklearn.covariance import EmpiricalCovariance
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor
from sklearn.preprocessing import StandardScaler

from doubly import DeepGenerativeModel


def mixed_up(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The rows with a third of the cells of each taken from another row."""
    third = rng.permuted(np.arange(rows.size).reshape(rows.shape) % rows.shape[1] < rows.shape[1] // 3, axis=1)
    return np.where(third, np.roll(rows, 1, axis=0), rows)


def areas(seed: int) -> dict[str, dict[str, float]]:
    """The area under the ROC curve of each way, for each kind of anomaly."""
    table, benign = load_breast_cancer(return_X_y=True)
    train, held_out = train_test_split(table[benign == 1], test_size=1 / 3, random_state=seed)
    anomalies = {"malignant": table[benign == 0], "mixed-up": mixed_up(held_out, np.random.default_rng(seed))}

    scaler = StandardScaler().fit(train)  # the others need it; a density moves with the units
    scaled = scaler.transform(train)
    forest = IsolationForest(random_state=seed).fit(scaled)
    neighbours = LocalOutlierFactor(novelty=True).fit(scaled)
    gaussian = EmpiricalCovariance().fit(scaled)
    model = DeepGenerativeModel(random_state=seed).fit(train)
    ways = {
        "doubly": lambda rows: -model.score_samples(rows),
        "Gaussian": lambda rows: gaussian.mahalanobis(scaler.transform(rows)),
        "local outlier factor": lambda rows: -neighbours.score_samples(scaler.transform(rows)),
        "isolation forest": lambda rows: -forest.score_samples(scaler.transform(rows)),
    }
    found: dict[str, dict[str, float]] = {}
    for way, strangeness in ways.items():
        ordinary = strangeness(held_out)
        found[way] = {
            kind: roc_auc_score([0] * len(ordinary) + [1] * len(rows), np.concatenate([ordinary, strangeness(rows)]))
            for kind, rows in anomalies.items()
        }
    return found


def main(seeds: list[int]) -> None:
    for seed in seeds:
        found = areas(seed)
        print(f"{f'AUC, seed {seed}':24}" + "".join(f"{kind:>12}" for kind in found["doubly"]))
        for way, by_kind in found.items():
            print(f"{way:24}" + "".join(f"{area:12.3f}" for area in by_kind.values()))


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0])
