"""Which method learns best, from the same rows in as many steps: `make bench-quality`.

Every preset fits the same chain to the same data for as many epochs, with as many steps on each mini-batch; the
validation log-likelihood is noted after every epoch together with the time, and the test rows are scored when a run is
over, once. Each run that ends is stored in quality.json, so that `--resume` goes on where a benchmark was stopped.
"""

import argparse
import itertools
import json
import math
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import doubly
from doubly.core.errors import Diverged
from doubly.data import load
from doubly.runs.presets import preset
from results import Table, about, put

STORE = Path(__file__).with_name("quality.json")
PAGE = Path(__file__).parents[1] / "docs" / "reports" / "quality.md"
PICTURE = PAGE.with_suffix(".svg")
DATA = ("digits", "caltech-silhouettes")

DRAWS, REFIT_PASSES = 1000, 30
TUNING_SEED = 100  # none of those in the table
NOTE = "times measured with other work on the machine"  # empty after a run on a quiet one

SBN: dict[str, Any] = {"hidden": (100,)}
# half the preset's widths: there are 64 pixels and 1197 rows
VAE: dict[str, Any] = {"model": "mlp:widths=100-100,normal", "proposal": "gaussian:widths=100-100", "hidden": (20,)}

# On Caltech the grids are shorter: a run takes a minute there, and a long Adam step ends far below the others.
SAMPLER_GRIDS = {"digits": (0.02, 0.06, 0.2, 0.6), "caltech-silhouettes": (0.02, 0.06, 0.2)}
ADAM_GRIDS = {"digits": (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3), "caltech-silhouettes": (1e-3, 3e-3, 0.01)}


class Entry(NamedTuple):
    """A preset in the benchmark: its chain, the steps tried with it and those that `--tune` found best."""

    chain: dict[str, Any]
    grids: dict[str, tuple[float, ...]]
    steps: dict[str, float]


def found_best(digits: float, caltech: float) -> dict[str, float]:
    return {"digits": digits, "caltech-silhouettes": caltech}


# The step is the one with the highest validation log-likelihood at the end of a run, of the weights that the table
# scores. It is looked for at the benchmark's own length, because a short run wants a longer step than a long one. One
# seed; on the digits the grids go on upward until no method of theirs is best at the end.
ENTRIES: dict[str, Entry] = {
    "dsgnht-nais": Entry(SBN, SAMPLER_GRIDS, found_best(0.06, 0.2)),
    "dsgnht-nais-faithful": Entry(SBN, SAMPLER_GRIDS, found_best(0.06, 0.2)),
    "dsgnht-gibbs": Entry(SBN, SAMPLER_GRIDS, found_best(0.2, 0.02)),
    "rws": Entry(SBN, ADAM_GRIDS, found_best(0.1, 0.01)),
    "wake-sleep": Entry(SBN, ADAM_GRIDS, found_best(0.1, 0.01)),
    "nvil": Entry(SBN, ADAM_GRIDS, found_best(0.01, 0.01)),
    "vimco": Entry(SBN, ADAM_GRIDS, found_best(0.1, 0.01)),
    "dsgnht-vae": Entry(VAE, SAMPLER_GRIDS, found_best(0.06, 0.02)),
    "vae": Entry(VAE, ADAM_GRIDS, found_best(3e-3, 3e-3)),
    "iwae": Entry(VAE, ADAM_GRIDS, found_best(3e-3, 3e-3)),
}
GROUPS = {
    "sigmoid belief network": [name for name, entry in ENTRIES.items() if entry.chain is SBN],
    "variational autoencoder": [name for name, entry in ENTRIES.items() if entry.chain is VAE],
}

Stored = dict[str, Any]
Of = Literal["mean", "last"]


# Running


def fields(name: str, data: str, seed: int, epochs: int, step: float) -> dict[str, Any]:
    """The settings of one run: those in which everyone is alike win over the preset's."""
    alike = {
        "theta_steps": 5,  # else the samplers would take ten steps where the optimisers take one
        "phi_step": 1e-3,
        "valid_draws": 50,
        "epochs": epochs,
        "collect": epochs // 3,
        "patience": epochs,  # no early start of the collection, which would end a run early
        "threads": 1,
    }
    return ENTRIES[name].chain | alike | {"data": data, "seed": seed, "step": step}


def of(name: str) -> Of:
    """The weights by which a method's step is chosen: a sampler's mean, an optimiser's last."""
    return "last" if preset(name).sampler == "adam" else "mean"


def fit(name: str, chosen: dict[str, Any], splits: tuple[str, ...], weights: tuple[Of, ...]) -> Stored:
    """One run, scored on these splits with these weights."""
    data = load(chosen["data"])
    with tempfile.TemporaryDirectory() as folder:
        run = doubly.fit(folder + "/run", preset=name, quiet=True, **chosen)
        metrics = run.metrics()
        posterior = run.posterior(refit_passes=REFIT_PASSES)
        scores = {
            split: {kind: score(posterior.log_likelihood(data.split(split), DRAWS, kind)) for kind in weights}
            for split in splits
        }
    return {
        "preset": name,
        "fields": as_stored(chosen),
        "valid": [round(record["valid"], 4) for record in metrics],
        "seconds": [record["seconds"] for record in metrics],
        "scores": scores,
    }


def score(rows: np.ndarray) -> dict[str, float]:
    return {"log_likelihood": float(rows.mean()), "stderr": float(rows.std(ddof=1)) / math.sqrt(len(rows))}


def benchmark(data: str, names: list[str], seeds: int, epochs: int, resume: bool) -> list[Stored]:
    """All runs of this data set, made now or stored; stored ones with other settings are dropped from the table."""

    def settings(name: str, seed: int) -> dict[str, Any]:
        return as_stored(fields(name, data, seed, epochs, ENTRIES[name].steps[data]))

    def usable() -> list[Stored]:
        found = read().get(data, {}).get("runs", [])
        return [run for run in found if run["fields"] == settings(run["preset"], run["fields"]["seed"])]

    if not resume:
        write(data, {"runs": [run for run in usable() if run["preset"] not in names]})
    done = {(run["preset"], run["fields"]["seed"]) for run in usable()}
    warm: set[str] = set()
    for seed, name in itertools.product(range(seeds), names):  # a busy hour of the machine falls on all methods
        if (name, seed) in done:
            continue
        chosen = settings(name, seed)
        if name not in warm:  # the first call loads compiled kernels, which is no part of learning
            fit(name, chosen | {"epochs": 1, "collect": 1}, (), ())
            warm.add(name)
        began = time.monotonic()
        run = fit(name, chosen, ("valid", "test"), ("mean", "last"))
        write(data, {"machine": about(), "note": NOTE, "runs": [*usable(), run]})
        print(f"{name:22} seed {seed}  {of(name):4}  {words(run)}  {time.monotonic() - began:.0f} s", flush=True)
    return usable()


def as_stored(value: Any) -> Any:
    """What comes back when this is written as JSON, which has no tuples."""
    return json.loads(json.dumps(value))


def words(run: Stored) -> str:
    values = {split: run["scores"][split][of(run["preset"])]["log_likelihood"] for split in run["scores"]}
    return "  ".join(f"{split} {value:.3f}" for split, value in values.items())


def tune(data: str, names: list[str], epochs: int, resume: bool) -> None:
    """Every step of every grid with one seed, judged by validation rows alone."""
    for name in names:
        mine = read().get(data, {}).get("tuning", {}).get(name, {}) if resume else {}
        found: dict[str, float | None] = mine["valid"] if mine.get("epochs") == epochs else {}
        for step in ENTRIES[name].grids[data]:
            if f"{step:g}" not in found:
                found[f"{step:g}"] = tried_step(name, data, epochs, step)
                others = read().get(data, {}).get("tuning", {})
                write(data, {"tuning": others | {name: {"epochs": epochs, "valid": found}}})
        reached = {step: value for step, value in found.items() if value is not None}
        best = float(max(reached, key=lambda step: reached[step]))
        listed = "  ".join(
            f"{step}: {'diverged' if value is None else f'{value:.3f}'}" for step, value in found.items()
        )
        print(f"{name:22} {listed}   best {best:g}, in use {ENTRIES[name].steps[data]:g}", flush=True)


def tried_step(name: str, data: str, epochs: int, step: float) -> float | None:
    """What validation comes to with this step; None where the chain diverges."""
    try:
        run = fit(name, fields(name, data, TUNING_SEED, epochs, step), ("valid",), (of(name),))
    except Diverged:
        return None
    return run["scores"]["valid"][of(name)]["log_likelihood"]


def read() -> dict[str, Any]:
    return json.loads(STORE.read_text()) if STORE.exists() else {}


def write(data: str, section: dict[str, Any]) -> None:
    everything = read()
    everything[data] = everything.get(data, {}) | section
    whole = STORE.with_suffix(".tmp")
    whole.write_text(
        re.sub(r"(?<=[\d,\[])\n +(?=[-\d])|(?<=\d)\n +(?=\])", " ", json.dumps(everything, indent=1)) + "\n"
    )
    whole.replace(STORE)  # a benchmark that is killed leaves the old file or the new one


# Showing


class Line(NamedTuple):
    """A method's place in the table."""

    name: str
    mean: tuple[float, float]  # test log-likelihood of the mean of the weights, and its standard error over seeds
    last: tuple[float, float]
    valid: tuple[float, float]  # of the mean of the weights
    seconds: float


def ranking(runs: list[Stored], group: list[str]) -> list[Line]:
    """The methods of a group, best first: all by the mean of their weights, which costs an optimiser nothing either."""
    lines = []
    for name in group:
        mine = [run["scores"] | {"seconds": sum(run["seconds"])} for run in runs if run["preset"] == name]
        if not mine:
            continue
        test = {kind: over_seeds([run["test"][kind]["log_likelihood"] for run in mine]) for kind in ("mean", "last")}
        valid = over_seeds([run["valid"]["mean"]["log_likelihood"] for run in mine])
        seconds = float(np.mean([run["seconds"] for run in mine]))
        lines.append(Line(name, test["mean"], test["last"], valid, seconds))
    return sorted(lines, key=lambda line: -line.mean[0])


def over_seeds(values: list[float]) -> tuple[float, float]:
    """The mean and its standard error, which one seed alone does not have."""
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), error


def table(data: str, runs: list[Stored], group: list[str]) -> Table:
    head = ["", "method", "step", "test, mean over the collection", "test, last weights", "valid", "seconds"]
    rows = []
    for place, line in enumerate(ranking(runs, group), start=1):
        cells = [plus_minus(line.mean, bold=True), plus_minus(line.last)]
        rest = [plus_minus(line.valid), f"{line.seconds:.0f}"]
        rows.append([str(place), f"`{line.name}`", f"{ENTRIES[line.name].steps[data]:g}", *cells, *rest])
    return Table(head, rows)


def tried(data: str, tuning: dict[str, Any]) -> Table:
    """The steps of each method's grid, the one in use in bold."""
    rows, most = [], max(len(entry.grids[data]) for entry in ENTRIES.values())
    for name, entry in ENTRIES.items():
        if name in tuning:
            cells = []
            for step in entry.grids[data]:
                found = tuning[name]["valid"]
                value = found.get(f"{step:g}")
                text = f"{step:g}: " + ("diverged" if value is None else f"{value:.2f}")
                cells.append("" if f"{step:g}" not in found else f"**{text}**" if step == entry.steps[data] else text)
            rows.append([f"`{name}`", *cells, *[""] * (most - len(cells))])
    return Table(["method", *[""] * most], rows)


def plus_minus(found: tuple[float, float], bold: bool = False) -> str:
    value, error = found
    text = f"{value:.2f}" + ("" if math.isnan(error) else f" ± {error:.2f}")
    return f"**{text}**" if bold else text


def sections() -> Iterator[str]:
    """What stands on the page for each data set that has been run."""
    for data, section in read().items():
        runs = section.get("runs", [])
        if not runs:
            continue
        settings, seeds = runs[0]["fields"], max(run["fields"]["seed"] for run in runs) + 1
        yield f"### {data}"
        for title, group in GROUPS.items():
            if any(run["preset"] in group for run in runs):
                yield f"{title.capitalize()}:\n\n{table(data, runs, group)}"
        if tuning := section.get("tuning"):
            yield f"Steps tried, and the validation log-likelihood that they ended with:\n\n{tried(data, tuning)}"
        errors = [run["scores"]["test"]["mean"]["stderr"] for run in runs]
        yield (
            f"The error that the choice of test rows adds, to all methods nearly alike, is {np.mean(errors):.2f}.\n\n"
            f"`python benchmarks/quality.py --data {data} --seeds {seeds} --epochs {settings['epochs']}`, "
            f"{section['machine']}{'; ' if section['note'] else ''}{section['note']}."
        )


def publish() -> None:
    """Put the tables in their place on the page, and the picture beside it."""
    put(PAGE, "quality", "\n\n".join(sections()))
    with matplotlib.rc_context({"svg.hashsalt": "quality"}):  # the same figures give the same file
        picture().savefig(PICTURE, metadata={"Date": None})


# of the palette of Okabe and Ito, which the colour-blind can tell apart; samplers have solid lines
COLOURS = ["#000000", "#0072B2", "#009E73", "#D55E00", "#E69F00", "#CC79A7", "#56B4E9"]


def picture() -> Figure:
    """Validation log-likelihood against time: a row for each data set, a column for each kind of model."""
    shown = {data: section["runs"] for data, section in read().items() if section.get("runs")}
    figure = Figure(figsize=(9, 4.2 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), len(GROUPS), squeeze=False)
    for row, (data, runs) in zip(panels, shown.items(), strict=True):
        for axes, (title, group) in zip(row, GROUPS.items(), strict=True):
            axes.set_title(f"{data}, {title}", fontsize=10)
            curves(axes, runs, group)
        row[0].set_ylabel("validation log-likelihood, nats", fontsize=9)
    return figure


def curves(axes: Axes, runs: list[Stored], group: list[str]) -> None:
    """Mean and standard error over seeds; a diamond for the mean of the weights."""
    tops = []
    for line in ranking(runs, group):
        mine = [run for run in runs if run["preset"] == line.name]
        valid, seconds = (np.array([run[key] for run in mine]) for key in ("valid", "seconds"))
        at, middle = seconds.cumsum(1).mean(0), valid.mean(0)
        error = valid.std(0, ddof=1) / math.sqrt(len(mine)) if len(mine) > 1 else np.zeros_like(middle)
        colour = COLOURS[group.index(line.name)]
        sampler = of(line.name) == "mean"
        axes.plot(at, middle, color=colour, linewidth=1.5, linestyle="-" if sampler else (0, (4, 1.5)), label=line.name)
        axes.fill_between(at, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)
        axes.errorbar(at[-1], line.valid[0], np.nan_to_num(line.valid[1]), color=colour, marker="D", markersize=5)
        tops += [middle.max(), line.valid[0]]
    if not tops:
        axes.set_axis_off()
        return
    # the first epochs lie far below: they leave the frame rather than squash the rest
    span = max(tops) - min(tops)
    axes.set_ylim(min(tops) - 0.5 * span - 1, max(tops) + 0.1 * span)
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())  # between two powers of ten it would label every line
    axes.set_xlabel("seconds", fontsize=9)
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method, with seeds 0, 1, …")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--presets", nargs="+", choices=ENTRIES, default=list(ENTRIES), metavar="PRESET")
    parser.add_argument("--resume", action="store_true", help="keep the stored runs that have the same settings")
    parser.add_argument("--tune", action="store_true", help="try the steps on validation rows, and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.tune:
        tune(options.data, options.presets, options.epochs, options.resume)
        return
    try:
        runs = benchmark(options.data, options.presets, options.seeds, options.epochs, options.resume)
    except KeyboardInterrupt:
        raise SystemExit("stopped; the runs that had ended are stored: go on with --resume") from None
    for title, group in GROUPS.items():
        if any(run["preset"] in group for run in runs):
            print(f"\n{title}\n\n{table(options.data, runs, group)}")
    publish()


if __name__ == "__main__":
    main()
