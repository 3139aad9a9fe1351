"""What adaptive draws save: `python benchmarks/adaptive.py [--record]`.

A sigmoid belief network on the digits is scored with a fixed number of draws for each row and with draws spent where
they are needed; a third score, with other random numbers and many more draws, stands for the truth.
"""

import argparse
import tempfile
import time
from typing import NamedTuple

import doubly
from doubly.analysis.evaluate import evaluate
from doubly.analysis.evaluation import paired
from results import Table, record

FIT = {"data": "digits", "hidden": (100,), "step": 0.02, "epochs": 60, "collect": 20, "theta_steps": 5, "threads": 1}
MOST, MANY = 20_000, 200_000


class Result(NamedTuple):
    """Draws for each row, seconds, and the difference to the score by many draws with its standard error."""

    name: str
    draws: float
    seconds: float
    difference: float
    stderr: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="write results.json and docs/reports/performance.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = doubly.fit(f"{folder}/run", quiet=True, **FIT)
        truth = evaluate(run.path, quiet=True, draws=MANY, seed=1).rows
        evaluate(run.path, quiet=True, draws=10)  # what is fitted or compiled once is done now
        results = []
        for name, fields in (("fixed", {}), ("adaptive", {"adaptive": True})):
            start = time.perf_counter()
            found = evaluate(run.path, quiet=True, draws=MOST, **fields)
            seconds = time.perf_counter() - start
            gap = paired(found.rows, truth)
            results.append(Result(name, found.summary.draws_used, seconds, gap.difference, gap.difference_stderr))
    rows = [[r.name, f"{r.draws:.0f}", f"{r.seconds:.1f}", f"{r.difference:+.4f} ± {r.stderr:.4f}"] for r in results]
    table = Table(["draws", "for each row", "seconds", f"difference to {MANY:,} draws, nats"], rows)
    print(table)
    if options.record:
        record("adaptive", [r._asdict() for r in results], table, "python benchmarks/adaptive.py")


if __name__ == "__main__":
    main()
