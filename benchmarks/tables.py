"""Missing cells of tables, completed by this library and by simpler ways: `make bench-tables`.

Cells of public tables are hidden, every method completes them, and what was hidden is scored. Each result is stored in
tables.json as soon as it is there, so that a run that was stopped goes on. `--page` writes docs/reports/tables.md.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from doubly.analysis.tables import complete, log_missing
from doubly.runs.learn import learn
from table_peers import MECHANISMS, PEERS, TABLES, Answer, Hidden, hide, measures

STORE = Path(__file__).with_name("tables.json")
MINUTES = 0.5  # of one core
COPIES = 100
VERBOSE = bool(os.environ.get("TABLES_VERBOSE"))


def doubly(hidden: Hidden, seed: int, latents: bool = True) -> Answer:
    """`doubly fill` at its defaults, but for the time."""
    rows = torch.as_tensor(hidden.encoded.astype(np.float32))
    tell = print if VERBOSE else lambda line: None
    learnt = learn(
        hidden.columns, rows, minutes=MINUTES, seed=seed, latents=latents, clock=time.process_time, tell=tell
    )
    return answer(hidden, learnt, seed)


def mixtures(hidden: Hidden, seed: int) -> Answer:
    """The same without models with latents."""
    return doubly(hidden, seed, latents=False)


def answer(hidden: Hidden, learnt: Any, seed: int) -> Answer:
    rows = torch.as_tensor(hidden.encoded.astype(np.float32))
    whole = torch.as_tensor(np.where(_scored(hidden), hidden.encoded_truth, hidden.encoded).astype(np.float32))
    found = complete(learnt, rows, COPIES, seed)
    log_prob = log_missing(learnt, whole, rows, seed) + hidden.cells @ hidden.log_units
    told = "; ".join(learnt.notes)
    return Answer(hidden.as_matrix(found.expected), draws=hidden.as_matrix(found.copies), log_prob=log_prob, told=told)


def _scored(hidden: Hidden) -> np.ndarray:
    return np.repeat(hidden.cells, [column.width for column in hidden.columns.columns], 1)


METHODS: dict[str, Callable[[Hidden, int], Answer]] = {**PEERS, "doubly, mixtures alone": mixtures, "doubly": doubly}


def run(store: Path, tables: list[str], methods: list[str], mechanisms: list[str], seeds: int, again: bool) -> None:
    """Every result that is not there yet."""
    for seed in range(seeds):
        for table in tables:
            for mechanism in mechanisms:
                hidden = hide(TABLES[table](), mechanism, seed)
                for method in methods:
                    key = f"{table} | {mechanism} | {seed} | {method}"
                    if key in _stored(store) and not again:
                        continue
                    began = time.process_time()
                    found = METHODS[method](hidden, seed)
                    entry: dict[str, Any] = measures(hidden, found) | {"cpu": round(time.process_time() - began, 2)}
                    entry |= {"told": found.told} if found.told else {}
                    results = _stored(store) | {key: entry}
                    store.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
                    shown = {name: round(v, 3) if isinstance(v, float) else v for name, v in entry.items()}
                    print(key, shown, flush=True)


def _stored(store: Path) -> dict[str, Any]:
    return json.loads(store.read_text()) if store.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=TABLES)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--mechanisms", nargs="*", default=list(MECHANISMS), choices=MECHANISMS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--store", type=Path, default=STORE)
    parser.add_argument("--again", action="store_true", help="replace results that are there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    run(args.store, args.tables, args.methods, args.mechanisms, args.seeds, args.again)


if __name__ == "__main__":
    main()
