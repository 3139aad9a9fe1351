"""What makes the method better: `python benchmarks/study.py --data digits` changes one setting at a time.

Every variant takes as many steps of the sampler as the paper's settings do, on the same rows, with several seeds.
Variants are compared on validation rows alone: test rows are not used. Runs are stored in study/ as they end, and a
study that was stopped continues where it was. The page is docs/reports/study.md.
"""

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import doubly
from doubly.core.errors import Diverged
from doubly.data import load
from doubly.posterior.store import Posterior
from results import Table, about, put

STORES = Path(__file__).with_name("study")
PAGE = Path(__file__).parents[1] / "docs" / "reports" / "study.md"
DRAWS, REFIT_PASSES, MEMBERS = 500, 30, 5
GENERATED = 4000  # rows drawn from the model, to see which of its units are active
WEIGHTS = ("last", "mean", "ensemble")
# the variant without noise, and those that differ from it in what moves the weights alone
OPTIMISER, SAMPLED = "fresh-adam", ("fresh-draws-20", "fresh-warm")

Settings = dict[str, Any]


class Setting(NamedTuple):
    """Data and chain of a study, and how long its runs are."""

    base: Settings
    rows: int
    """To train on, in mini-batches of 100 unless a variant says otherwise."""
    steps: int
    """Of the sampler, in all; the last third of them are collected from."""
    variants: tuple[str, ...]
    """Those that are tried."""


STUDIES = {
    "digits": Setting(
        {"hidden": (100,), "step": 0.02, "phi_step": 1e-3},
        1197,
        12_000,
        (
            *("paper", "long", "quicker", "quicker-fresh", "fresh-draws-20", "fresh", "fresh-long"),
            *("fresh-batch-33", "fresh-sleep", "fresh-warm", "fresh-warm-sleep"),
            *("fresh-wide", "fresh-wide-long", "fresh-normal", "fresh-wider-long", "fresh-wide-longer"),
            *("split", "quick", "warm", "often", "windows"),
            *("falling", "wake-sleep", "draws-10", "gibbs", "fresh-adam", "rws"),
        ),
    ),
    "caltech-silhouettes": Setting(
        {"hidden": (200, 200), "step": 0.01},
        4100,
        12_300,
        (
            *("paper", "long", "longest", "shared", "phi-long", "phi-longer", "quicker", "phi-quicker"),
            *("quicker-fresh", "quicker-wide", "quicker-draws-10", "fresh-draws-10", "fresh-draws-20"),
            *("fresh-draws-50", "fresh-batch-33", "fresh-sleep", "fresh-warm", "fresh-warm-sleep"),
            *("fresh-warm-narrow", "fresh-phi-2", "fresh-often", "fresh-wide-long", "fresh-adam", "rws"),
        ),
    ),
}

# What each variant changes in the paper's settings; `paper` is what they are.
FRESH: Settings = {"theta_steps": 1}
WIDE: Settings = FRESH | {"prior": "student-t:scale=0.3"}
QUICK: Settings = {"phi_step": 1e-3, "resample": False, "step": 3.0}
OFTEN: Settings = {"collect": 1000, "collect_every": "4steps"}
ADAM: Settings = {"sampler": "adam", "step": 3e-3}
VARIANTS: dict[str, tuple[str, Settings]] = {
    "paper": ("ten steps on each mini-batch, constant step", {}),
    "long": ("the step three times as long", {"step": 3.0}),
    "longest": ("the step ten times as long", {"step": 10.0}),
    "shared": ("one set of draws for both updates of a step", {"resample": False}),
    "phi-long": ("the proposal's step 0.001", {"phi_step": 1e-3}),
    "phi-longer": ("the proposal's step 0.003", {"phi_step": 3e-3}),
    "quicker": ("phi-long, shared and long", QUICK),
    "phi-quicker": ("phi-longer, shared and long", QUICK | {"phi_step": 3e-3}),
    "quicker-fresh": ("quicker, a mini-batch for each step", QUICK | FRESH),
    "quicker-wide": ("quicker, prior of scale 0.3", QUICK | {"prior": "student-t:scale=0.3"}),
    "quicker-draws-10": ("quicker, ten draws", QUICK | {"draws": 10}),
    "fresh-draws-10": ("quicker-fresh, ten draws", QUICK | FRESH | {"draws": 10}),
    "fresh-draws-20": ("quicker-fresh, twenty draws", QUICK | FRESH | {"draws": 20}),
    "fresh-draws-50": ("quicker-fresh, fifty draws", QUICK | FRESH | {"draws": 50}),
    "fresh-batch-33": ("fresh-draws-20, mini-batches of 33 rows", QUICK | FRESH | {"draws": 20, "batch": 33}),
    "fresh-sleep": (
        "fresh-draws-20, proposal by wake and sleep",
        QUICK | FRESH | {"draws": 20, "objective": "wake-sleep"},
    ),
    "fresh-warm": (
        "fresh-draws-20 after half of Adam",
        QUICK | FRESH | {"draws": 20, "warmup": 0.5, "warmup_step": 3e-3},
    ),
    "fresh-warm-sleep": (
        "fresh-warm, proposal by wake and sleep",
        QUICK | FRESH | {"draws": 20, "warmup": 0.5, "warmup_step": 3e-3, "objective": "wake-sleep"},
    ),
    "fresh-warm-narrow": (
        "fresh-warm, prior of scale 0.03",
        QUICK | FRESH | {"draws": 20, "warmup": 0.5, "warmup_step": 3e-3, "prior": "student-t:scale=0.03"},
    ),
    "fresh-phi-2": ("fresh-draws-20, two steps of the proposal", QUICK | FRESH | {"draws": 20, "phi_steps": 2}),
    "fresh-often": (
        "fresh-draws-20, ten times as many samples, the ensemble one of their windows' means",
        QUICK | FRESH | {"draws": 20, "window": 200} | OFTEN,
    ),
    "fresh-adam": ("fresh-draws-20 by Adam: the optimiser of the same budget", QUICK | FRESH | {"draws": 20} | ADAM),
    "fresh": ("a mini-batch for each step", FRESH),
    "fresh-long": ("fresh, the step three times as long", FRESH | {"step": 3.0}),
    "fresh-wide": ("a mini-batch for each step, prior of scale 0.3", WIDE),
    "fresh-wide-long": ("fresh-wide, the step three times as long", WIDE | {"step": 3.0}),
    "fresh-normal": ("fresh-long, normal prior", FRESH | {"prior": "normal", "step": 3.0}),
    "fresh-wider-long": ("fresh-wide-long, prior of scale 1", FRESH | {"prior": "student-t:scale=1", "step": 3.0}),
    "fresh-wide-longer": ("fresh-wide-long, the step three times as long again", WIDE | {"step": 9.0}),
    "split": ("fresh-wide-long by splitting", WIDE | {"step": 3.0, "sampler": "sgnht-split"}),
    "quick": ("fresh-wide-long, thermostats 100 times as quick", WIDE | {"step": 3.0, "sampler": "sgnht:rate=100"}),
    "warm": ("fresh-wide-long after a tenth of Adam", WIDE | {"step": 3.0, "warmup": 0.1, "warmup_step": 0.01}),
    "often": ("fresh-wide-long, ten times as many samples", WIDE | {"step": 3.0} | OFTEN),
    "windows": ("fresh-wide-long, the ensemble one of means over windows", WIDE | {"step": 3.0, "window": 20}),
    "falling": (
        "fresh-wide-long, the step falling",
        WIDE | {"step": 3.0, "schedule": "polynomial:power=0.55,offset=30"},
    ),
    "wake-sleep": ("fresh-wide-long, proposal by wake and sleep", WIDE | {"step": 3.0, "objective": "wake-sleep"}),
    "draws-10": ("fresh-wide-long, ten draws", WIDE | {"step": 3.0, "draws": 10}),
    "gibbs": ("fresh-wide-long with Gibbs chains", WIDE | {"step": 3.0, "estimator": "gibbs"}),
    "rws": ("reweighted wake-sleep, as many steps", {"preset": "rws", "step": None}),
}


def fields(data: str, name: str, seed: int) -> Settings:
    """The settings of a run: steps in all are the same, however many a mini-batch gets."""
    study, changes = STUDIES[data], dict(VARIANTS[name][1])
    chosen = {"preset": "dsgnht-nais"} | study.base | {"theta_steps": 10} | changes
    if changes.get("step") and changes.get("sampler") != "adam":
        chosen["step"] = changes["step"] * study.base["step"]  # in units of the paper's
    if chosen["preset"] != "dsgnht-nais":
        chosen = {"preset": chosen["preset"], "theta_steps": 1} | {"hidden": study.base["hidden"]}
    epochs = study.steps // (math.ceil(study.rows / chosen.get("batch", 100)) * chosen["theta_steps"])
    if "warmup" in chosen:
        chosen["warmup"] = round(chosen["warmup"] * epochs)
    collect = epochs // 3
    alike = {
        "epochs": epochs,
        "collect": min(collect, 100),
        "collect_every": f"{max(1, collect // 100)}epochs",
        "patience": epochs,
        "valid_draws": 10,
        "keep": MEMBERS,
        "threads": 1,
        "checkpoint_minutes": 60.0,
    }
    return alike | chosen | {"data": data, "seed": seed}


def fit(chosen: Settings) -> dict[str, Any]:
    """One run, scored on validation rows with the last weights, their mean and an ensemble of five."""
    rows = load(chosen["data"]).valid
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = doubly.fit(folder + "/run", quiet=True, **chosen)
        except Diverged as error:
            return {"diverged": str(error), "seconds": time.monotonic() - began}
        trained = time.monotonic() - began
        posterior = run.posterior(refit_passes=REFIT_PASSES)
        valid = {of: float(posterior.log_likelihood(rows, DRAWS, of).mean()) for of in WEIGHTS}
        active = active_units(posterior)
    return {"valid": valid, "seconds": trained, "active": active}


def active_units(posterior: Posterior) -> list[int]:
    """How many units of each latent layer are on in 2 % to 98 % of what the mean of the weights draws."""
    hidden = posterior.model.sample(posterior.mean(), GENERATED, torch.Generator().manual_seed(0))[1:]
    shares = [layer.mean(0) for layer in hidden]
    return [int(((share > 0.02) & (share < 0.98)).sum()) for share in shares]


def study(data: str, names: list[str], seeds: int) -> None:
    """Whatever is not stored yet, seed after seed, so that each table is as even as it can be."""
    for seed in range(seeds):
        for name in names:
            stored = read(data).get("runs", {})
            key = f"{name}/{seed}"
            chosen = json.loads(json.dumps(fields(data, name, seed)))
            if stored.get(key, {}).get("fields") == chosen:
                continue
            found = fit(chosen)
            write(data, key, {"fields": chosen} | found)
            print(f"{data} {key:24} {words(found)}  {found['seconds']:.0f} s", flush=True)


def words(found: dict[str, Any]) -> str:
    return "diverged" if "diverged" in found else "  ".join(f"{of} {found['valid'][of]:.2f}" for of in WEIGHTS)


def read(data: str) -> dict[str, Any]:
    store = STORES / f"{data}.json"
    return json.loads(store.read_text()) if store.exists() else {}


def write(data: str, key: str, run: dict[str, Any]) -> None:
    runs = read(data).get("runs", {}) | {key: run}
    STORES.mkdir(exist_ok=True)
    whole = STORES / f"{data}.tmp"
    whole.write_text(json.dumps({"machine": about(), "runs": runs}, indent=1) + "\n")
    whole.replace(STORES / f"{data}.json")  # a study that is killed leaves the old file or the new one


def table(runs: dict[str, Any]) -> Table:
    """Variants in the order in which they are told, with what they do on average over the seeds."""
    rows = []
    for name, (what, _) in VARIANTS.items():
        mine = [run for key, run in runs.items() if key.split("/")[0] == name]
        if not mine:
            continue
        well = [run for run in mine if "valid" in run]
        cells = [over_seeds([run["valid"][of] for run in well]) if well else "diverged" for of in WEIGHTS]
        seconds = f"{np.mean([run['seconds'] for run in mine]):.0f}"
        counts = [run["active"] for run in well if "active" in run]
        active = ", ".join(f"{np.mean(layer):.0f}" for layer in zip(*counts, strict=True))
        rows.append([f"`{name}`", what, *cells, active, seconds, str(len(mine))])
    return Table(
        [
            *("variant", "what it is", "last sample", "mean of weights", f"ensemble of {MEMBERS}"),
            *("active units", "seconds", "seeds"),
        ],
        rows,
    )


def gains(runs: dict[str, Any]) -> Table:
    """What a posterior gains over one of its samples, and over the optimiser of the same budget, seed by seed."""
    valid = {key: run["valid"] for key, run in runs.items() if "valid" in run}
    seeds = sorted(key.split("/")[1] for key in valid if key.split("/")[0] == OPTIMISER)
    rows = []
    for name in SAMPLED:
        mine = [seed for seed in seeds if f"{name}/{seed}" in valid]
        if len(mine) < 3:
            continue
        pairs = [(valid[f"{name}/{seed}"], valid[f"{OPTIMISER}/{seed}"]) for seed in mine]
        differences = [
            [own["mean"] - own["last"] for own, _ in pairs],
            [own["ensemble"] - own["last"] for own, _ in pairs],
            *([own["mean"] - other[of] for own, other in pairs] for of in WEIGHTS),
        ]
        rows.append([f"`{name}`", *(over_seeds(each, "+") for each in differences), str(len(mine))])
    head = ["mean over last sample", "ensemble over last sample"]
    head += [f"mean over Adam's {of}" for of in WEIGHTS]
    return Table(["variant", *head, "seeds"], rows)


def over_seeds(values: list[float], sign: str = "") -> str:
    """The mean and, from three on, its standard error: of two, that is no more than a guess."""
    error = f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.2f}" if len(values) > 2 else ""
    return f"{np.mean(values):{sign}.2f}{error}"


def publish() -> None:
    text = ""
    for data in STUDIES:
        if not (section := read(data)):
            continue
        steps, hidden = STUDIES[data].steps, "-".join(str(width) for width in STUDIES[data].base["hidden"])
        text += (
            f"### {data}, SBN {hidden}, {steps:,} steps\n\n{table(section['runs'])}\n\n"
            f"`python benchmarks/study.py --data {data} --seeds SEEDS --variants VARIANT …`, {section['machine']}, "
            "each run on one thread.\n\n"
        )
        if (gained := gains(section["runs"])).rows:
            text += f"What the posterior gains there, paired by seed:\n\n{gained}\n\n"
    put(PAGE, "study", text.rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", choices=STUDIES, default="digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, metavar="VARIANT", help="none: the page only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    all_of_them = list(STUDIES[options.data].variants)
    study(options.data, all_of_them if options.variants is None else options.variants, options.seeds)
    publish()


if __name__ == "__main__":
    main()
