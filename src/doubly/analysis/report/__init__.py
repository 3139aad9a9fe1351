"""The report of a run: results, curves, data, samples and weights in one HTML file that needs no other."""

import base64
import dataclasses
import shlex
from collections.abc import Sequence
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from matplotlib.figure import Figure

from doubly import __version__
from doubly.analysis.evaluation import FiledEvaluation
from doubly.analysis.report import figures
from doubly.analysis.report.figures import Record
from doubly.analysis.report.files import save_figure
from doubly.core.errors import Damaged, UserError
from doubly.core.sealed import MOST_JSON, load_json
from doubly.core.types import Of
from doubly.data import SPLITS, Data
from doubly.latents import ESTIMATORS, OBJECTIVES
from doubly.posterior.store import Posterior
from doubly.runs.config import Config
from doubly.runs.folder import Run
from doubly.runs.progress import span

SHOWN = 100
"""Rows that are shown of the data and of the samples."""
WIDE, MIDDLE, HALF = 776, 540, 370
"""Widths on the page, where two halves stand side by side."""
HEALTH_ADVICE = {
    "ess": "Effective draws: how many draws of equal weight the draws of the latent variables in a step are worth. "
    "Near 1, the proposal fits badly.",
    "temperature": "The kinetic temperature should stay near 1: if it is well above, take a smaller step.",
    "thermostat": "The thermostat should level off once it has taken up the noise of the gradient.",
}


class Fact(NamedTuple):
    """A line of the results in words."""

    name: str
    text: str


class Result(NamedTuple):
    """A log-likelihood with its error bar, as text, and how it was found."""

    name: str
    value: str
    stderr: str
    how: str


class Drawing(NamedTuple):
    """A figure as the page shows it."""

    name: str
    alternative: str
    """What it shows, for those who cannot see it."""
    png: bytes
    width: int
    """How wide it is shown where there is room, in CSS pixels."""


class Section(NamedTuple):
    """Figures that belong together, and what to look for in them."""

    title: str
    advice: str
    drawings: list[Drawing]


def make(folder: str | Path) -> tuple[str, Path]:
    """Write the run's report.html and figures/, and nothing else; returns its results as plain text and the page."""
    run = Run(folder)
    metrics = run.metrics()
    if not metrics:
        raise UserError(f"{run.path} has finished no epoch yet: let doubly fit (or doubly resume) run a little longer")
    data, posterior = run.data(), run.posterior()
    scores, others = _evaluations(run)
    facts = [*_facts(run.config, metrics, data, posterior), *others]
    results = [_best(metrics, run.config), *scores]
    sections = _sections(metrics, data, posterior, run.config)
    for drawing in (drawing for section in sections for drawing in section.drawings):
        save_figure(run.path, drawing.name, drawing.png)
    page = run.path / "report.html"
    title = f"{_model_name(run.config, data)} on {data.name}"
    run.folder.write("report.html", _page(run, title, facts, results, sections).encode())
    return _table(facts, results), page


# Results


def _facts(config: Config, metrics: Sequence[Record], data: Data, posterior: Posterior) -> list[Fact]:
    shape = "×".join(str(n) for n in data.shape) if len(data.shape) > 1 else f"{data.width} columns"
    counts = ", ".join(f"{len(data.split(split))} {split}" for split in SPLITS)
    epochs, samples = _count(len(metrics), "epoch"), _count(metrics[-1]["collected"], "sample")
    time = span(sum(record["seconds"] for record in metrics))
    return [
        Fact("model", f"{_model_name(config, data)} ({posterior.model.size} weights)"),
        Fact("data", f"{data.name} ({counts} rows of {shape})"),
        Fact("training", f"{epochs} in {time}, {samples} collected"),
    ]


def _model_name(config: Config, data: Data) -> str:
    return f"{config.model} {'-'.join(str(n) for n in (data.width, *config.hidden))}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _best(metrics: Sequence[Record], config: Config) -> Result:
    best = max(metrics, key=lambda record: record["valid"])
    estimator = ESTIMATORS.make(config.estimator, draws=config.draws, objective=OBJECTIVES.make(config.objective))
    draws = f", {estimator.validation}={config.valid_draws}" if config.hidden else ""
    name = "best validation log-likelihood"
    return Result(name, f"{best['valid']:.2f}", f"{best['valid_stderr']:.2f}", f"epoch {best['epoch']}{draws}")


def _evaluations(run: Run) -> tuple[list[Result], list[Fact]]:
    """What `doubly evaluate` has found; and, in words, what other files there say."""
    results, facts = [], []
    for name in run.folder.names("evaluations", r".*\.json"):
        file, found = run.path / name, _read(run, name)
        if file.stem.startswith("curve-"):
            continue  # `doubly curve` draws a picture of its own
        if evaluation := FiledEvaluation.from_json(found):
            results.append(_result(evaluation, exact=not run.config.hidden))
        else:
            facts.append(Fact(file.stem, ", ".join(f"{name} {_short(value)}" for name, value in found.items())))
    return results, facts


def _read(run: Run, name: str) -> Record:
    try:
        return load_json(run.folder.read(name, MOST_JSON) or b"", run.path / name, required=False)
    except Damaged as error:
        raise UserError(f"{error}; remove it and run doubly evaluate again") from None


def _result(found: FiledEvaluation, exact: bool) -> Result:
    draws = "exact" if exact else f"K={found.draws}, {found.ess:.1f} effective"
    if found.estimator == "annealing":
        draws = f"annealed, T={found.temperatures}"
    truth = "" if found.truth is None else f"; truth {found.truth:.2f}"
    samples = f" of {found.samples} samples" if found.samples else ""
    ways = ", adaptive" * found.adaptive + (f", refined by {found.refine} steps" if found.refine else "")
    return Result(
        name=f"{found.split} log-likelihood",
        value=f"{found.log_likelihood:.2f}",
        stderr=f"{found.stderr or 0:.2f}",
        how=f"{found.of}{samples}, {draws}{ways}{truth}",
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(facts: list[Fact], results: list[Result]) -> str:
    """The results for a terminal.

    >>> print(_table([Fact("model", "sbn 64-100")], [Result("test log-likelihood", "-19.87", "0.31", "mean, K=1000")]))
    model                sbn 64-100
    test log-likelihood  -19.87 ± 0.31  (mean, K=1000)
    """
    name = max(len(name) for name, *_ in [*facts, *results])
    value, stderr = max(len(r.value) for r in results), max(len(r.stderr) for r in results)
    lines = [f"{fact.name:{name}}  {fact.text}" for fact in facts]
    lines += [f"{r.name:{name}}  {r.value:>{value}} ± {r.stderr:>{stderr}}  ({r.how})" for r in results]
    return "\n".join(lines)


# Figures


def _sections(metrics: Sequence[Record], data: Data, posterior: Posterior, config: Config) -> list[Section]:
    of: Of = "last" if posterior.mean_theta is None else "mean"
    whose = "the posterior mean of the weights" if of == "mean" else "the last sample of the weights"
    return [
        _training(metrics, data),
        _images(data, posterior, of, whose) if len(data.shape) == 2 else _columns(data, posterior, of, whose),
        *_weights(data, posterior, of, whose),
        *_chain(metrics, config),
    ]


def _training(metrics: Sequence[Record], data: Data) -> Section:
    truth = None if data.log_density is None else float(data.log_density(data.valid).mean())
    return Section(
        "Training",
        "The validation curve should rise and level off before the shaded epochs, in which the samples of the weights "
        "are collected. If it still rises at the end, more epochs would help. If it falls while the training curve "
        "rises, the model overfits.",
        [_drawing("training", "Log-likelihood against epoch", figures.training_curve(metrics, truth), WIDE)],
    )


def _images(data: Data, posterior: Posterior, of: Of, whose: str) -> Section:
    train = data.split("train")
    chosen = np.sort(np.random.default_rng(0).permutation(len(train))[:SHOWN])
    rows, samples = train[chosen], posterior.sample(SHOWN, of)[: len(chosen)]
    limits = figures.ink_limits(train)
    return Section(
        "Data and samples",
        f"The samples, drawn with {whose}, should look like the data: as clear and as varied.",
        [
            _drawing("data", "Rows of the data as images", figures.image_grid(rows, data.shape, "data", limits), HALF),
            _drawing("samples", "Samples as images", figures.image_grid(samples, data.shape, "samples", limits), HALF),
        ],
    )


def _columns(data: Data, posterior: Posterior, of: Of, whose: str) -> Section:
    samples = posterior.sample(10 * SHOWN, of)
    return Section(
        "Data and samples",
        f"Each point is a column of the table, with standard errors. The means of the samples, drawn with {whose}, "
        "should agree with those of the data: the points should lie along the dotted line.",
        [
            _drawing(
                "columns",
                "Column means of samples and data",
                figures.column_means(data.split("train"), samples),
                MIDDLE,
            )
        ],
    )


def _weights(data: Data, posterior: Posterior, of: Of, whose: str) -> list[Section]:
    if not figures.has_weight_images(posterior.model, data.shape):
        return []
    theta = posterior.mean() if of == "mean" else posterior.last()
    section = Section(
        "Weights",
        f"What each latent unit adds to the pixels when it is on: red is more ink, blue is less. The weights are "
        f"{whose}, the strongest units first. A unit that shows a stroke or a part of the images has learnt something; "
        "a pale one does little.",
        [_drawing("weights", "Weights of the data layer", figures.weights(theta, posterior.model, data.shape), MIDDLE)],
    )
    return [section]


def _chain(metrics: Sequence[Record], config: Config) -> list[Section]:
    draws = config.draws if config.hidden else 1
    shown = figures.health(metrics, draws)
    if not shown:
        return []
    advice = " ".join(sentence for name, sentence in HEALTH_ADVICE.items() if name in shown)
    figure = figures.chain_health(metrics, draws)
    return [
        Section("Health of the chain", advice, [_drawing("chain", "Health of the chain against epoch", figure, WIDE)])
    ]


def _drawing(name: str, alternative: str, figure: Figure, width: int) -> Drawing:
    return Drawing(name, alternative, figures.png(figure), width)


# The page


def _page(run: Run, title: str, facts: list[Fact], results: list[Result], sections: list[Section]) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    template = environment.from_string((resources("doubly.analysis.report") / "template.html").read_text())
    return template.render(
        title=title,
        facts=facts,
        results=results,
        sections=sections,
        settings={name: _words(value) for name, value in dataclasses.asdict(run.config).items()},
        command=_command(run),
        version=__version__,
    )


def _command(run: Run) -> str:
    """The command that makes the run again: what differs from the defaults."""
    words = ["doubly", "fit"]
    for field in dataclasses.fields(Config):
        value, flag = getattr(run.config, field.name), "--" + field.name.replace("_", "-")
        if value == field.default:
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, *map(str, value if isinstance(value, tuple) else [value])]
    return shlex.join([*words, "--out", str(run.path)])


def _words(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
