"""What four chains buy over one of equal cost: `python benchmarks/chains.py [--seeds 3]`.

On the digits, four chains of E epochs each are compared with one chain of 4 E epochs: as many steps, as many samples in
the ensemble. Scores of test rows are by the same draws with proposals fitted in the same way. Hidden cells say how
well the predictive covers: their log loss, and how far predicted probabilities are from observed frequencies.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np

import doubly
from doubly.analysis.diagnose import diagnose
from doubly.data import load
from doubly.runs.chains import chain_seed

FIT = {
    "data": "digits",
    "hidden": (50,),
    "prior": "student-t:scale=1",
    "threads": 1,
    "quiet": True,
    "collect_every": "2",
}
CHAINS, EPOCHS, MEMBERS = 4, 100, 8
HIDDEN, ROWS, REFIT, DRAWS = 0.5, 150, 5, 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found = [compared(100 * seed) for seed in range(options.seeds)]
    print(json.dumps(found))
    for name in found[0]["four"]:
        gaps = np.array([each["four"][name] - each["one"][name] for each in found])
        error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
        one, four = (np.mean([each[which][name] for each in found]) for which in ("one", "four"))
        print(f"{name:12} one {one:.4f}  four {four:.4f}  difference {gaps.mean():+.4f} ± {error:.4f}")


def compared(seed: int) -> dict[str, dict[str, float]]:
    """Four chains and one of equal cost, from seeds that no other pair has."""
    with tempfile.TemporaryDirectory() as folder:
        short = [
            doubly.fit(
                f"{folder}/{i}", epochs=EPOCHS, collect=16, keep=MEMBERS // CHAINS, seed=chain_seed(seed, i), **FIT
            )
            for i in range(CHAINS)
        ]
        long = doubly.fit(f"{folder}/long", epochs=CHAINS * EPOCHS, collect=64, keep=MEMBERS, seed=seed + 1, **FIT)
        return {
            "four": asked([run.path for run in short], seed),
            "one": asked([long.path], seed),
        }


def asked(paths: list[Path], seed: int) -> dict[str, float]:
    """The score of test rows, what is predicted of hidden cells, and R-hat."""
    from doubly.posterior.store import together

    posterior = together([doubly.load(path, refit_passes=REFIT) for path in paths])
    rows = load("digits").test[:ROWS].astype(float)
    scores = posterior.log_likelihood(rows, draws=DRAWS, of="ensemble", by="draws")
    hidden = np.random.default_rng(seed).random(rows.shape) < HIDDEN
    mean = posterior.impute(np.where(hidden, np.nan, rows), draws=40, of="ensemble").mean[hidden].clip(0.005, 0.995)
    truth = rows[hidden]
    bins = np.digitize(mean, np.linspace(0, 1, 11)[1:-1])
    off = [abs(mean[bins == b].mean() - truth[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return {
        "score": float(scores.mean()),
        "log loss": float(-np.where(truth == 1, np.log(mean), np.log1p(-mean)).mean()),
        "calibration": float(sum(off)),
        "R-hat": max(each.rhat for each in diagnose(*paths).traces.values() if each.sd > 0),
    }


if __name__ == "__main__":
    main()
