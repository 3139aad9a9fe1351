"""The paper's figures 1 to 4 from run folders, and what a posterior gains: `python benchmarks/figures.py [RUN …]`.

Without run folders, those of `doubly reproduce` are taken (--runs). Scores are those of validation rows: test rows are
looked at once for each run of a table, and not for a curve. Runs whose latent variables are remembered are scored by
annealing, others by draws: a figure never has both on one axis. What is found is kept in figures.json, so that a curve
is not worked out twice; the page is docs/reports/figures.md.
"""

import argparse
import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from doubly.analysis.accuracy import CellErrors, errors, imputation_accuracy, mask
from doubly.analysis.evaluate import evaluate
from doubly.analysis.report.figures import BLUE, FAINT, GREEN, PURPLE, QUIET, TEXT, VERMILION, image_grid, weights
from doubly.analysis.report.pictures import completions
from doubly.latents import Persistent
from doubly.latents.completions import ImputeConfig
from doubly.latents.gibbs import Gibbs
from doubly.paper.plan import read_results
from doubly.runs.build import build
from doubly.runs.fit import use_threads
from doubly.runs.folder import Run
from features import effective_pixels, features_of, radius
from results import Table, about, put
from study import WEIGHTS, read

HERE = Path(__file__).parent
STORE = HERE / "figures.json"
REPORTS = HERE.parent / "docs" / "reports"
RUNS = HERE.parent / "runs" / "reproduce"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, QUIET)
REFIT: dict[str, Any] = {"refit": 50, "threads": 1}
ROWS = 500  # of the validation rows, evenly spaced

# The runs of a whole page, if they are there: the mean of more samples, draws of a step and for scoring, features,
# completions. The normal prior has no row in a table: `doubly fit --preset recommended --prior normal …`
NAMES = [
    f"{data}-sbn-{widths}{way}"
    for data in ("caltech", "mnist")
    for widths in ("200", "200-200", "200-200-200", "300-100-50-10")
    for way in ("-recommended", "")
] + ["caltech-normal", "mnist-normal"]
SAMPLES, DRAWS, TEMPERATURES = (1, 5, 10, 20, 50, 100), 1000, 200  # figure 1
STUDIED = {"quicker-fresh": 5, "fresh-draws-10": 10, "fresh-draws-20": 20}  # figure 2, on the left
SCORED_BY = {"draws": (10, 100, 1000, 10_000), "annealing": (10, 30, 100, 300, 1000)}  # and on the right
IMAGES = 100  # figure 3
COMPLETED, COMPLETIONS = 100, 20  # figure 4: rows, and completions of each


@dataclass(frozen=True)
class Place:
    """Which runs are drawn, and where what is found goes."""

    folders: list[Path]
    store: Path = STORE
    out: Path = REPORTS
    results: Path = HERE.parent / "results"

    @property
    def page(self) -> Path:
        return self.out / "figures.md"

    def known(self) -> dict[str, Any]:
        return json.loads(self.store.read_text()) if self.store.exists() else {}

    def find(self, kind: str, folder: Path, make: Callable[[], Any], **how: Any) -> Any:
        """What there is to say of a run, unless it was found before, of the run as it stands and in the same way."""
        key, how = f"{kind} {folder.name}", {"run": Run(folder).fingerprint[:16], **REFIT, **how}
        how = json.loads(json.dumps(how))  # as it is read again
        if self.known().get(key, {}).get("how") != how:
            self.store.write_text(json.dumps(self.known() | {key: {"how": how, "found": make()}}, indent=1) + "\n")
        return self.known()[key]["found"]

    def save(self, name: str, figure: Figure) -> None:
        with matplotlib.rc_context({"svg.hashsalt": "figures"}):  # the same figures give the same file
            figure.savefig(self.out / name, metadata={"Date": None} if name.endswith(".svg") else None, dpi=100)

    def put(self, section: str, table: Table, pictures: Sequence[str] = ()) -> None:
        """A table and pictures in their place on the page; nothing where there is nothing to say."""
        if table.rows:
            shown = "".join(f"\n\n![{Path(name).stem}]({name})" for name in pictures)
            put(self.page, section, f"{table}\n\n`python benchmarks/figures.py`, {about()}.{shown}")


def data_of(folder: Path) -> str:
    return Path(Run(folder).config.data).name


def by_data(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The runs by the name of their data."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        found.setdefault(data_of(folder), []).append(folder)
    return found


def estimate_of(folder: Path) -> str:
    """By which estimate a run is scored: where states are remembered, draws of the proposal miss most of p(z | x)."""
    run = Run(folder)
    remembers = isinstance(build(run.config, run.facts).estimator, Persistent | Gibbs)
    return "annealing" if remembers else "draws"


def some_rows(folder: Path, most: int = ROWS) -> np.ndarray:
    """Some of the validation rows, evenly spaced."""
    valid = Run(folder).data().valid
    return valid[:: math.ceil(len(valid) / most)]


def scored(folder: Path, **fields: Any) -> float:
    """The mean log-likelihood of some validation rows, by the estimate of the run."""
    how = {"by": estimate_of(folder), "draws": DRAWS, "temperatures": TEMPERATURES, "settle": False, **REFIT}
    return evaluate(folder, x=some_rows(folder), quiet=True, **how | fields).summary.log_likelihood


def points(folder: Path, name: str, values: Sequence[int], **fields: Any) -> list[dict[str, float]]:
    return [{"at": value, "log_likelihood": scored(folder, **fields | {name: value})} for value in values]


def panel(axes: Axes, label: str, title: str) -> None:
    """Its looks, once all lines are there."""
    if not axes.lines:
        axes.set_axis_off()
        return
    axes.set_xscale("log")
    at = sorted({float(x) for found in axes.lines for x in np.asarray(found.get_xdata())})
    axes.set_xticks(at, [f"{value:,.0f}" for value in at])
    axes.minorticks_off()
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=QUIET, labelcolor=TEXT, labelsize=9)
    axes.set_xlabel(label)
    axes.set_title(title, fontsize=10, color=TEXT)
    axes.legend(frameon=False, fontsize=8)


def line(axes: Axes, found: list[dict[str, float]], name: str, colour: str) -> None:
    at = [point["at"] for point in found]
    axes.plot(at, [point["log_likelihood"] for point in found], "o-", color=colour, label=name, markersize=4)


def grouped(folders: Sequence[Path]) -> dict[tuple[str, str], list[Path]]:
    """Runs that may stand in one panel: of the same data, scored by the same estimate."""
    found: dict[tuple[str, str], list[Path]] = {}
    for folder in folders:
        found.setdefault((data_of(folder), estimate_of(folder)), []).append(folder)
    return found


def figure_1(place: Place) -> None:
    """The mean of more and more samples: a panel for each data set and estimate."""
    groups = grouped([folder for folder in place.folders if Run(folder).posterior().collected])
    figure = Figure(figsize=(5.2 * max(1, len(groups)), 4.2), layout="constrained")
    panels = figure.subplots(1, max(1, len(groups)), squeeze=False)[0]
    for axes, ((data, by), folders) in zip(panels, groups.items(), strict=False):
        for folder, colour in zip(folders, cycle(COLOURS), strict=False):
            posterior = Run(folder).posterior()
            there = sorted({samples for samples in SAMPLES if samples in posterior.means} | {posterior.collected})
            make = functools.partial(points, folder, "samples", there, of="mean")
            line(axes, place.find("mean-of", folder, make, values=there, by=by), folder.name, colour)
        panel(axes, "samples of the weights in the mean (M)", f"{data}, {_work(by)}")
        axes.set_ylabel("validation log-likelihood (nats)")
    place.save("figure-1.svg", figure)


def _work(by: str) -> str:
    return f"{TEMPERATURES} temperatures" if by == "annealing" else f"{DRAWS:,} draws"


def figure_2(place: Place) -> None:
    """Draws of a training step, from the study and from runs that differ in nothing else; and work for scoring."""
    groups = grouped(place.folders)
    figure = Figure(figsize=(5.2 * (1 + len(groups)), 4.2), layout="constrained")
    left, *right = figure.subplots(1, 1 + len(groups), squeeze=False)[0]
    studied = read("caltech-silhouettes").get("runs", {})
    for of, colour in zip(WEIGHTS, COLOURS, strict=False):
        line(left, [{"at": draws, "log_likelihood": studied[f"{name}/0"]["valid"][of]}
                    for name, draws in STUDIED.items() if f"{name}/0" in studied], f"study: {of}", colour)  # fmt: skip
    for (name, same), colour in zip(_only_draws_differ(place.folders).items(), cycle(COLOURS), strict=False):
        found = [{"at": Run(folder).config.draws, "log_likelihood": place.find(
            "last", folder, functools.partial(scored, folder, of="last"), by=estimate_of(folder))}
            for folder in sorted(same, key=lambda folder: Run(folder).config.draws)]  # fmt: skip
        line(left, found, name, colour)
    panel(left, "draws in a training step (S)", "the study: Caltech SBN 200-200, 12,300 steps")
    left.set_ylabel("validation log-likelihood (nats)")
    for axes, ((data, by), folders) in zip(right, groups.items(), strict=True):
        name = "temperatures" if by == "annealing" else "draws"
        for folder, colour in zip(folders, cycle(COLOURS), strict=False):
            make = functools.partial(points, folder, name, SCORED_BY[by], of=_best(folder))
            line(axes, place.find("work-of", folder, make, values=SCORED_BY[by], by=by), folder.name, colour)
        panel(axes, "temperatures for scoring" if by == "annealing" else "draws for scoring (K)", data)
    place.save("figure-2.svg", figure)


def _best(folder: Path) -> str:
    return "mean" if Run(folder).posterior().collected else "last"


def _only_draws_differ(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Runs that differ in the draws of a training step alone, by the name of the first."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        rest = {name: value for name, value in vars(Run(folder).config).items() if name not in ("draws", "epochs")}
        found.setdefault(repr(sorted(rest.items())), []).append(folder)
    return {same[0].name: same for same in found.values() if len(same) > 1}


def figure_3(place: Place) -> None:
    """Data and samples of each data set; features of each run whose data layer has weights, and how local they are."""
    rows, pictures = [], []

    def keep(name: str, figure: Figure) -> None:
        place.save(name, figure)
        pictures.append(name)

    for data, folders in by_data(place.folders).items():
        loaded = Run(folders[0]).data()
        train = loaded.train[np.linspace(0, len(loaded.train) - 1, IMAGES).astype(int)]
        keep(f"figure-3-{data}-data.png", image_grid(train, loaded.shape, "training rows"))
        for folder in folders:
            posterior, of = Run(folder).posterior(), _best(folder)
            theta = posterior.mean() if of == "mean" else posterior.last()
            samples = np.asarray(posterior.sample(IMAGES, of=of))  # type: ignore[arg-type]
            keep(f"figure-3-{folder.name}-samples.png", image_grid(samples, loaded.shape, "samples"))
            features = features_of(posterior.model, theta)
            if features is None or len(loaded.shape) != 2:
                continue
            keep(f"figure-3-{folder.name}-features.png", weights(theta, posterior.model, loaded.shape))
            local = [np.median(measure(features, loaded.shape)) for measure in (effective_pixels, radius)]
            whole = math.sqrt(sum((side**2 - 1) / 12 for side in loaded.shape))
            rows.append([f"`{folder.name}`", Run(folder).config.prior, f"{len(features)}", f"{local[0]:.0f}",
                         f"{local[1]:.1f} (of {whole:.1f})"])  # fmt: skip
    head = ["run", "prior", "active units", "effective pixels (median)", "radius in pixels (median)"]
    place.put("features", Table(head, rows), pictures)


def completed(folder: Path, out: Path) -> dict[str, dict[str, float | None]]:
    """Errors of completed lower halves by imputer, and the picture of some."""
    run = Run(folder)
    data, x = run.data(), some_rows(folder, COMPLETED)
    missing, of = mask("lower-half", len(x), data.shape, 0.5), _best(folder)
    with use_threads(1):
        posterior = run.posterior(refit_passes=REFIT["refit"])
        found = imputation_accuracy(posterior, x, data.train, missing, COMPLETIONS, of=of)  # type: ignore[arg-type]
        hidden = np.where(missing, np.nan, x.astype(np.float32))
        paper = posterior.impute(hidden, COMPLETIONS, ImputeConfig(method="paper"), of=of)  # type: ignore[arg-type]
    named: dict[str, CellErrors] = {"doubly": found.errors["doubly"]}
    named["the paper's procedure"] = errors(paper.mean, x, missing, binary=True)
    named |= {name: each for name, each in found.errors.items() if name != "doubly"}
    shown = np.linspace(0, len(x) - 1, 12).astype(int)
    if len(data.shape) == 2:
        picture = completions(x[shown], missing[shown], found.imputed.completions[0][shown], data.shape)
        (out / f"figure-4-{folder.name}.png").write_bytes(picture)
    return {name: each.to_json() for name, each in named.items()}


def figure_4(place: Place) -> None:
    """Lower halves completed, with log p(missing | observed) and errors of cells, beside simpler imputers."""
    rows = []
    for folder in place.folders:
        make = functools.partial(completed, folder, place.out)
        for name, found in place.find("completed", folder, make, rows=COMPLETED, completions=COMPLETIONS).items():
            log_p = found.get("log_conditional")
            told = "" if log_p is None else f"{log_p:.2f} ± {found['log_conditional_stderr'] or 0:.2f}"
            cells = [f"{found[each]:.4f}" for each in ("error_rate", "rmse", "log_loss")]
            rows.append([f"`{folder.name}`", name, told, *cells])
    head = ["run", "imputer", "log p(missing given observed), nats", "wrong pixels", "RMSE", "log loss"]
    pictures = [f"figure-4-{folder.name}.png" for folder in place.folders]
    place.put("completions", Table(head, rows), [name for name in pictures if (place.out / name).exists()])


def gains(place: Place) -> None:
    """What the mean and the ensemble gain over the last weights, from the results of the tables: validation rows."""
    rows = []
    for title, result in read_results(place.results):
        if (found := result.weights) is not None:
            pairs = [
                f"{gain:+.2f} ± {error or 0:.2f}" for gain, error in (found.mean_over_last, found.ensemble_over_mean)
            ]
            values = [f"{value:.2f}" for value in (found.last, found.mean, found.ensemble)]
            work = (
                "exact" if not found.work else f"{found.work:,} {found.estimator.replace('annealing', 'temperatures')}"
            )
            rows.append([f"`{title}`", *values, *pairs, work])
    head = ["run", "last", "mean", "ensemble", "mean over last", "ensemble over mean", "estimate"]
    place.put("gains", Table(head, rows))


PARTS: dict[str, Callable[[Place], None]] = {
    "1": figure_1, "2": figure_2, "3": figure_3, "4": figure_4, "gains": gains,
}  # fmt: skip
DEEP = ("200-200-200",)  # figure 4 is of these, unless runs are named


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="RUN", help="run folders; else those of the tables")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--runs", type=Path, default=RUNS, help="where doubly reproduce has its runs")
    parser.add_argument("--results", type=Path, default=Place.results)
    parser.add_argument("--store", type=Path, default=STORE, help="where what was found is kept")
    parser.add_argument("--out", type=Path, default=REPORTS, help="the folder of figures.md and of the pictures")
    asked = parser.parse_args(arguments)
    folders = asked.folders or [folder for name in NAMES if (folder := asked.runs / name).exists()]
    for part in asked.parts:
        mine = [each for each in folders if part != "4" or asked.folders or any(deep in each.name for deep in DEEP)]
        PARTS[part](Place(mine, asked.store, asked.out, asked.results))


if __name__ == "__main__":
    main()
