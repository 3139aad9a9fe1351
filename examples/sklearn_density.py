"""Log-likelihoods of rows that were not trained on: DeepGenerativeModel with its defaults beside simpler densities.

A quarter of the rows is held out. The mixture's number of components and covariance type are chosen by BIC on the
training rows, and its floor of the variances is that of our `blur`, in standardised units. Give seeds as arguments;
the table in docs/sklearn.md is of `python examples/sklearn_density.py 0 1 2`.
"""

import sys
import time
import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from doubly import DeepGenerativeModel


def bernoullis(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Independent columns, with one 0 and one 1 more than there were, so that nothing is impossible."""
    p = (train.sum(0) + 1) / (len(train) + 2)
    return np.where(test == 1, np.log(p), np.log1p(-p)).sum(1)


def mixture(train: np.ndarray, test: np.ndarray, components: tuple[int, ...], types: tuple[str, ...]) -> np.ndarray:
    """The mixture of the lowest BIC; one component of type diag is an independent Gaussian for each column."""
    fits = [
        GaussianMixture(k, covariance_type=kind, reg_covar=0.03**2, random_state=0).fit(train)
        for kind in types
        for k in components
    ]
    return min(fits, key=lambda fit: fit.bic(train)).score_samples(test)


def main(seeds: list[int]) -> None:
    tables = {
        "digits > 7": (load_digits().data > 7).astype(np.uint8),
        "wine": load_wine().data,
        "breast cancer": load_breast_cancer().data,
    }
    for name, table in tables.items():
        for seed in seeds:
            train, test = train_test_split(table, test_size=0.25, random_state=seed)
            if table.dtype == np.uint8:
                others = {"independent": bernoullis(train, test)}
            else:
                scaler = StandardScaler().fit(train)
                train, test = scaler.transform(train), scaler.transform(test)
                others = {
                    "independent": mixture(train, test, (1,), ("diag",)),
                    "mixture": mixture(train, test, (1, 2, 3, 5, 8, 12), ("full", "tied", "diag")),
                }
            began = time.process_time()
            model = DeepGenerativeModel(random_state=seed).fit(train)
            seconds = time.process_time() - began
            scores = others | {"doubly": model.score_samples(test)}
            words = [f"{key} {rows.mean():.2f} ± {rows.std() / len(rows) ** 0.5:.2f}" for key, rows in scores.items()]
            print(f"{name}, seed {seed}: {', '.join(words)} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    main([int(seed) for seed in sys.argv[1:]] or [0])
