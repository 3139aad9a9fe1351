"""What four chains buy over one of equal cost: `python benchmarks/chains.py --seeds 0 1 2 --out FILE.jsonl`.

On the digits, four chains of E epochs each are compared with one chain of 4 E epochs: as many steps, as many samples in
the ensemble. Scores of test rows are by the same draws with proposals fitted in the same way. Hidden cells say how
well the predictive covers: their log loss, how far predicted probabilities are from observed frequencies, and how often
the central 80 % of the completions hold the number of ones that a row has among its hidden cells. A line is added to
the file for each seed, so that seeds can be run one by one; `--seeds` without any only prints the table of the file.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import doubly
from doubly.analysis.diagnose import diagnose
from doubly.data import load
from doubly.posterior.store import together
from doubly.runs.chains import chain_seed

FIT: dict[str, Any] = {
    "data": "digits",
    "hidden": (20,),
    "prior": "student-t:scale=1",
    "batch": 200,
    "threads": 1,
    "quiet": True,
    "collect_every": "2",
}
CHAINS, EPOCHS, SAMPLES, MEMBERS = 4, 80, 16, 8
HIDDEN, ROWS, REFIT, DRAWS, COMPLETIONS, LEVEL = 0.5, 150, 3, 100, 20, 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("chains.jsonl"))
    options = parser.parse_args()
    for seed in options.seeds:
        line = json.dumps({"seed": seed} | compared(1000 * seed))
        with options.out.open("a") as file:
            file.write(line + "\n")
    found = [json.loads(line) for line in options.out.read_text().splitlines()]
    print(f"seeds {', '.join(str(each['seed']) for each in found)}")
    for name in found[0]["four"]:
        one, four = (np.array([each[which][name] for each in found]) for which in ("one", "four"))
        print(f"{name:12} one {_told(one)}  four {_told(four)}  difference {_told(four - one)}")


def _told(values: np.ndarray) -> str:
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{values.mean():+.4f} ± {error:.4f}"


def compared(seed: int) -> dict[str, dict[str, float]]:
    """Four chains and one of equal cost, from seeds that no other pair has."""
    with tempfile.TemporaryDirectory() as folder:
        short = [
            doubly.fit(
                f"{folder}/{i}", epochs=EPOCHS, collect=SAMPLES, keep=MEMBERS // CHAINS, seed=chain_seed(seed, i), **FIT
            )
            for i in range(CHAINS)
        ]
        long = doubly.fit(
            f"{folder}/long", epochs=CHAINS * EPOCHS, collect=CHAINS * SAMPLES, keep=MEMBERS, seed=seed + 1, **FIT
        )
        return {"four": asked([run.path for run in short], seed), "one": asked([long.path], seed)}


def asked(paths: list[Path], seed: int) -> dict[str, float]:
    """The score of test rows, what is predicted of hidden cells, and R-hat."""
    posterior = together([doubly.load(path, refit_passes=REFIT) for path in paths])
    assert len(posterior.samples()) == MEMBERS
    rows = load("digits").test[:ROWS].astype(float)
    scores = posterior.log_likelihood(rows, draws=DRAWS, of="ensemble", by="draws")
    hidden = np.random.default_rng(seed).random(rows.shape) < HIDDEN
    found = posterior.impute(np.where(hidden, np.nan, rows), draws=COMPLETIONS, of="ensemble")
    mean, truth = found.mean[hidden].clip(0.005, 0.995), rows[hidden]
    bins = np.digitize(mean, np.linspace(0, 1, 11)[1:-1])
    off = [abs(mean[bins == b].mean() - truth[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return {
        "score": float(scores.mean()),
        "log loss": float(-np.where(truth == 1, np.log(mean), np.log1p(-mean)).mean()),
        "calibration": float(sum(off)),
        "coverage": covered((found.completions * hidden).sum(-1), (rows * hidden).sum(-1), seed),
        "R-hat": max(each.rhat for each in diagnose(*paths).traces.values() if each.sd > 0),
    }


def covered(counts: np.ndarray, truth: np.ndarray, seed: int) -> float:
    """How often the central part of the completions (draws, rows) holds the truth; ties are broken at random.

    The rank of the truth among all that could be in its place is then uniform if the predictive is right.
    """
    below, equal = (counts < truth).sum(0), (counts == truth).sum(0)
    rank = (below + np.random.default_rng(seed).random(len(truth)) * (equal + 1)) / (len(counts) + 1)
    return float(np.mean(np.abs(rank - 0.5) < LEVEL / 2))


if __name__ == "__main__":
    main()
