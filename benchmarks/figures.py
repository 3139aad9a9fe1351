"""The paper's figures 1 to 3, and what a posterior gains, from the runs of its rows: `python benchmarks/figures.py`,
after `doubly reproduce`.

Scores are those of validation rows: the test rows are looked at once for each row of a table, and not for a curve. What
is found is kept in figures.json, so that a curve is not worked out twice; the page is docs/reports/figures.md.
"""

import argparse
import functools
import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from doubly.analysis.evaluate import curve, evaluate
from doubly.analysis.evaluation import Evaluation, paired
from doubly.analysis.report.figures import BLUE, FAINT, GREEN, PURPLE, QUIET, TEXT, VERMILION, image_grid, weights
from doubly.data import load
from doubly.runs.fit import fit_config, resume
from doubly.runs.folder import Run
from doubly.runs.presets import preset
from results import Table, about, put
from study import WEIGHTS, read

HERE = Path(__file__).parent
STORE = HERE / "figures.json"
REPORTS = HERE.parent / "docs" / "reports"
PAGE = REPORTS / "figures.md"
RUNS = HERE.parent / "runs" / "reproduce"
RESULTS = HERE.parent / "results"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, QUIET)
REFIT: dict[str, Any] = {"refit": 50, "refit_objective": "wake-sleep", "split": "valid", "threads": 1}

# Figure 1: the mean of more and more samples
ROWS = ["caltech-sbn-200", "caltech-sbn-200-200", "caltech-sbn-200-200-200", "caltech-sbn-300-100-50-10"]
SAMPLES, DRAWS = (1, 5, 10, 20, 50, 100), 1000
# Figure 2: draws of a training step, from the study, and draws for scoring
STUDIED = {"quicker-fresh": 5, "fresh-draws-10": 10, "fresh-draws-20": 20}
SCORED_BY = (10, 100, 1000, 10_000)
# What a posterior gains over its last sample, and over an optimiser
COMPARED = (("mean", "over last"), ("ensemble", "over last"), ("mean", "over optimised"))
OPTIMISED = {"caltech-sbn-200": "caltech-rws-sbn-200", "caltech-sbn-200-200": "caltech-rws-sbn-200-200"}
# Figure 3: data, samples, features
PRIORS = ("student-t", "normal")
EPOCHS, IMAGES = 400, 100


def known() -> dict[str, Any]:
    return json.loads(STORE.read_text()) if STORE.exists() else {}


def store(kind: str, folder: Path, make: Callable[[], Any], **how: Any) -> None:
    """Find something of a run, unless it was found before, of the run as it stands and in the same way."""
    key, how = f"{kind} {folder.name}", {"run": Run(folder).fingerprint[:16], **REFIT, **how}
    how = json.loads(json.dumps(how))  # as it is read again
    if known().get(key, {}).get("how") != how:
        STORE.write_text(json.dumps(known() | {key: {"how": how, "found": make()}}, indent=1) + "\n")


def stored(kind: str) -> dict[str, Any]:
    """All of a kind, by the name of the run, also of runs that are not here."""
    return {key.split()[1]: entry["found"] for key, entry in known().items() if key.split()[0] == kind}


def points(folder: Path, over: str, values: tuple[int, ...], **question: Any) -> list[dict[str, float]]:
    found = curve(folder, over, values, **(REFIT | question))  # type: ignore[arg-type]
    return [{name: point[name] for name in ("at", "log_likelihood", "stderr")} for point in found.to_json()]


def finished() -> list[Path]:
    """The runs of the rows whose result is there, with the recommended settings where there are both."""
    found = []
    for name in ROWS:
        both = [RUNS / f"{name}-recommended", RUNS / name]
        found += [folder for folder in both if (RESULTS / f"{folder.name}.json").exists() and folder.exists()][:1]
    return found


def curves(over: str, values: tuple[int, ...], **question: Any) -> dict[str, list[dict[str, float]]]:
    """Of every run that is here, and of those whose curve was found before, by the name of the run."""
    for folder in finished():
        most = Run(folder).metrics()[-1]["collected"] if over == "samples" else max(values)
        there = tuple(value for value in values if value <= most)
        make = functools.partial(points, folder, over, there, **question)
        store(over, folder, make, values=there, **question)
    return stored(over)


def panel(axes: Axes, label: str) -> None:
    """Its looks, once all lines are there."""
    axes.set_xscale("log")
    at = sorted({float(x) for found in axes.lines for x in found.get_xdata()})
    axes.set_xticks(at, [f"{value:,.0f}" for value in at])
    axes.minorticks_off()
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=QUIET, labelcolor=TEXT, labelsize=9)
    axes.set_xlabel(label)


def line(axes: Axes, found: list[dict[str, float]], name: str, colour: str) -> None:
    at = [point["at"] for point in found]
    axes.plot(at, [point["log_likelihood"] for point in found], "o-", color=colour, label=name, markersize=4)


def figure_1() -> Figure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for (name, found), colour in zip(curves("samples", SAMPLES, draws=DRAWS).items(), cycle(COLOURS), strict=False):
        line(axes, found, name, colour)
    panel(axes, "samples of the weights in the mean (M)")
    axes.set_ylabel(f"validation log-likelihood, K = {DRAWS:,} (nats)")
    axes.legend(frameon=False, fontsize=9)
    return figure


def figure_2() -> Figure:
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    studied = read("caltech-silhouettes")["runs"]
    for of, colour in zip(WEIGHTS, COLOURS, strict=False):
        line(left, [{"at": draws, "log_likelihood": studied[f"{name}/0"]["valid"][of]}
                    for name, draws in STUDIED.items() if f"{name}/0" in studied], of, colour)  # fmt: skip
    panel(left, "draws in a training step (S)")
    left.set_title("SBN 200-200, 12,300 steps (the study)", fontsize=10, color=TEXT)
    left.set_ylabel("validation log-likelihood (nats)")
    for (name, found), colour in zip(curves("draws", SCORED_BY).items(), cycle(COLOURS), strict=False):
        line(right, found, name, colour)
    panel(right, "draws for scoring (K)")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
    return figure


def figure_3() -> dict[str, Figure]:
    """Data and samples, and the features under the two priors."""
    data = load("caltech-silhouettes")
    rows = data.train[np.linspace(0, len(data.train) - 1, IMAGES).astype(int)]
    sparse, normal = (featured(prior).posterior() for prior in PRIORS)
    return {
        "data": image_grid(rows, data.shape, "training rows"),
        "samples": image_grid(np.asarray(sparse.sample(IMAGES, of="mean")), data.shape, "samples"),
        "student-t": weights(sparse.mean(), sparse.method.model, data.shape),
        "normal": weights(normal.mean(), normal.method.model, data.shape),
    }


def featured(prior: str) -> Run:
    """A run of its own for each prior, which no row of a table has for both."""
    folder = RUNS.parent / "figures" / prior
    if (folder / "config.json").exists():
        return resume(folder)
    fields: dict[str, Any] = {"data": "caltech-silhouettes", "hidden": (200,), "prior": prior, "threads": 1}
    # without Adam: what the features look like is then the sampler's doing
    fields |= {"epochs": EPOCHS, "collect": 20, "collect_every": "5epochs", "warmup": 0}
    return fit_config(preset("recommended", **fields), folder)


def gain(folder: Path, rival: Path) -> dict[str, Any]:
    """Of each kind of weights, and how much it gains over the last sample; of the mean, over the optimiser's, too."""
    scored = {of: evaluate(folder, of=of, draws=DRAWS, **REFIT) for of in WEIGHTS}
    found: dict[str, Any] = {of: {"log_likelihood": scored[of].summary.log_likelihood} for of in WEIGHTS}
    for of in ("mean", "ensemble"):
        found[of]["over last"] = over(scored[of], scored["last"])
    found["mean"]["over optimised"] = over(scored["mean"], evaluate(rival, of="last", draws=DRAWS, **REFIT))
    return found


def over(one: Evaluation, other: Evaluation) -> list[float | None]:
    found = paired(one.rows, other.rows)
    return [found.difference, found.difference_stderr]


def gains() -> Table:
    for folder in finished():
        rival = RUNS / OPTIMISED.get(folder.name.removesuffix("-recommended"), "none")
        if (RESULTS / f"{rival.name}.json").exists() and rival.exists():
            store(
                "gain", folder, functools.partial(gain, folder, rival), draws=DRAWS, rival=Run(rival).fingerprint[:16]
            )
    rows = []
    for name, found in stored("gain").items():
        told = [f"{found[of]['log_likelihood']:.2f}" for of in WEIGHTS]
        pairs = [found[of][of_what] for of, of_what in COMPARED]
        rows.append([f"`{name}`", *told, *(f"{difference:+.2f} ± {error:.2f}" for difference, error in pairs)])
    head = ["run", "last sample", "mean", "ensemble", *(f"{of} {what}" for of, what in COMPARED)]
    return Table(head, rows)


def save(name: str, figure: Figure) -> None:
    with matplotlib.rc_context({"svg.hashsalt": "figures"}):  # the same figures give the same file
        figure.savefig(REPORTS / name, metadata={"Date": None} if name.endswith(".svg") else None, dpi=100)


def all_of_figure_3() -> None:
    for name, figure in figure_3().items():
        save(f"figure-3-{name}.png", figure)


PARTS: dict[str, Callable[[], None]] = {
    "1": lambda: save("figure-1.svg", figure_1()),
    "2": lambda: save("figure-2.svg", figure_2()),
    "3": all_of_figure_3,
    "gains": lambda: put(PAGE, "gains", f"{gains()}\n\n`python benchmarks/figures.py`, K = {DRAWS:,}, {about()}."),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    for part in parser.parse_args().parts:
        PARTS[part]()


if __name__ == "__main__":
    main()
