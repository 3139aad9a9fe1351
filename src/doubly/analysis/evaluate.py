"""Evaluating runs: one, several compared, and curves over samples, draws and training draws.

Everything here reads runs and writes only results, into their evaluations/; no chain is moved.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from doubly.analysis.config import EvaluateConfig
from doubly.analysis.estimators import GAP_ROWS, choose, score, trial_rows, trust
from doubly.analysis.evaluation import Annealed, Compared, Comparison, Curve, Evaluation, Point, paired
from doubly.core.errors import UserError
from doubly.core.launch import is_first
from doubly.core.ranks import team
from doubly.core.statistics import stderr
from doubly.core.types import Over
from doubly.data import Data, missing_mask
from doubly.latents import (
    OBJECTIVES,
    Annealing,
    Gap,
    Marginal,
    RowLikelihoods,
    check_refinable,
    is_exact,
)
from doubly.latents.paths import Start
from doubly.posterior.estimates import Chosen
from doubly.posterior.scores import summarise
from doubly.posterior.store import Posterior, together
from doubly.runs.build import build
from doubly.runs.fit import fit_config, resume, use_threads
from doubly.runs.folder import Run, file_json
from doubly.runs.progress import Progress
from doubly.runs.stops import Interrupted, stop_signal

MOST_SECONDS = 7 * 24 * 3600.0  # that ranks wait for each other
DRAWS_OF_CURVE = (1, 2, 5, 10, 20, 50, 100, 200, 500)
TRAINING_DRAWS_OF_CURVE = (1, 2, 5, 10, 20)


def evaluate(
    path: str | Path, *others: str | Path, x: np.ndarray | None = None, quiet: bool = False, **fields: Any
) -> Evaluation:
    """The log-likelihood of held-out rows, or of rows x; several runs are chains whose samples make one ensemble.

    The other arguments are the fields of `EvaluateConfig`. The result of a split is filed in the first run's
    evaluations/.
    """
    runs = [Run(folder) for folder in (path, *others)]
    settings = _settled(EvaluateConfig(**fields), runs)
    data = runs[0].data()
    for run in runs[1:]:
        _check_same_data(runs[0], run)
    rows = data.split(settings.split) if x is None else x
    _check_each_once(runs)
    if settings.ais:  # refused before hours of scoring
        _check_annealing(settings, runs)
    if settings.refine:
        for run in runs:
            check_refinable(build(run.config, run.facts).proposal)
    with at_work(settings, runs[0], quiet) as open_posterior:
        posterior = together([open_posterior(run) for run in runs])
        # annealing first: its result stays in the cache until scoring, which can be stopped and resumed, is over
        annealed = _anneal(settings, posterior, rows, runs[0]) if settings.ais else None
        chosen = choose(settings, posterior, rows, data.valid)
        likelihoods = score(settings, posterior, rows, chosen.estimator)
        settled = None
        if settings.settle:
            settled = trust(settings, posterior, chosen, data.valid, stderr(likelihoods.log_likelihood))
        posterior.tidy()
    likelihoods = _in_units(likelihoods, runs[0], rows)
    found = _evaluation(settings, posterior, data if x is None else None, rows, likelihoods)
    found = dataclasses.replace(found, chosen=_chosen_in_units(chosen, runs[0], data.valid), trust=settled)
    if annealed:
        found = dataclasses.replace(found, annealed=_beside(*annealed, likelihoods))
    if x is None and is_first():
        name = settings.name + (f"-of-{found.chains}-chains" if found.chains > 1 else "")
        file_json(runs[0], f"evaluations/{name}.json", found.to_json())
    return found


def _settled(settings: EvaluateConfig, runs: Sequence[Run]) -> EvaluateConfig:
    """The same, with the weights named that are to answer."""
    if settings.of != "auto":
        return settings
    many = len(runs) > 1 or runs[0].config.chains > 1
    return dataclasses.replace(settings, of="ensemble" if many else "mean")


def anneal(path: str | Path, quiet: bool = False, start: Start = "prior", **fields: Any) -> Annealed:
    """What annealing alone gives held-out rows; the other arguments are the fields of `EvaluateConfig`."""
    run = Run(path)
    settings = _settled(EvaluateConfig(**fields), [run])
    _check_annealing(settings, [run], start)
    rows = run.data().split(settings.split)
    with at_work(settings, run, quiet) as open_posterior:
        posterior = open_posterior(run)
        found = _annealed(*_anneal(settings, posterior, rows, run, start))
    posterior.tidy()
    return found


def compare(paths: Sequence[str | Path], quiet: bool = False, **fields: Any) -> Comparison:
    """Several runs on the same rows, best first, each with its paired difference to the best."""
    if len(paths) < 2:
        raise UserError(f"a comparison needs at least two runs, got {len(paths)}")
    for folder in paths[1:]:
        _check_same_data(Run(paths[0]), Run(folder))
    _check_each_once([Run(folder) for folder in paths])
    found = {str(folder): evaluate(folder, quiet=quiet, **{"settle": False} | fields) for folder in paths}
    if len({one.chosen.estimator for one in found.values()}) > 1:  # like is compared with like
        by = "annealing" if all(one.chosen.can_anneal for one in found.values()) else "draws"
        found = {name: evaluate(name, quiet=quiet, **{"settle": False} | fields | {"by": by}) for name in found}
    ranked = sorted(found, key=lambda name: -found[name].summary.log_likelihood)
    best = found[ranked[0]].rows
    return Comparison(tuple(Compared(name, found[name], paired(found[name].rows, best)) for name in ranked))


def curve(path: str | Path, over: Over, values: Sequence[int] = (), quiet: bool = False, **fields: Any) -> Curve:
    """The log-likelihood against the samples in the mean (M), the draws for scoring (K) or those for training (S)."""
    if over not in CURVES:
        raise UserError(f"over must be one of {', '.join(CURVES)}, got {over!r}")
    run = Run(path)
    found = Curve(over, tuple(CURVES[over](run, values, quiet, EvaluateConfig(**fields))))
    if is_first():
        file_json(run, f"evaluations/curve-over-{over}.json", {"points": found.to_json()})
    return found


def _over_samples(run: Run, values: Sequence[int], quiet: bool, settings: EvaluateConfig) -> Iterator[Point]:
    posterior = run.posterior()
    posterior.mean()  # an error where there is none
    for samples in values or sorted({*posterior.means, posterior.collected}):
        yield _point(run.path, samples, quiet, dataclasses.replace(settings, of="mean", samples=samples))


def _over_draws(run: Run, values: Sequence[int], quiet: bool, settings: EvaluateConfig) -> Iterator[Point]:
    for draws in values or [*(k for k in DRAWS_OF_CURVE if k < settings.draws), settings.draws]:
        yield _point(run.path, draws, quiet, dataclasses.replace(settings, draws=draws))


def _over_training_draws(run: Run, values: Sequence[int], quiet: bool, settings: EvaluateConfig) -> Iterator[Point]:
    """Runs that differ only in the draws of a training step are fitted beside this one, and found again next time."""
    least = OBJECTIVES.make(run.config.objective).least_draws
    for draws in values or [draws for draws in TRAINING_DRAWS_OF_CURVE if draws >= least]:
        folder = run.path
        if draws != run.config.draws:
            run.folder.make(f"curves/training-draws-{draws}")  # refuses links
            folder = run.path / "curves" / f"training-draws-{draws}"
            if (folder / "config.json").exists():
                resume(folder, quiet)
            else:
                fit_config(dataclasses.replace(run.config, draws=draws), folder, quiet=quiet)
        yield _point(folder, draws, quiet, settings)


CURVES: dict[str, Callable[[Run, Sequence[int], bool, EvaluateConfig], Iterator[Point]]] = {
    "samples": _over_samples,
    "draws": _over_draws,
    "training-draws": _over_training_draws,
}


def _point(path: Path, at: int, quiet: bool, settings: EvaluateConfig) -> Point:
    """All points of a curve are by draws, unless annealing is asked for: like is compared with like."""
    by = "draws" if settings.by == "auto" else settings.by
    return Point(at, evaluate(path, quiet=quiet, **vars(settings) | {"by": by, "settle": False}))


@contextmanager
def at_work(settings: EvaluateConfig, run: Run, quiet: bool) -> Iterator[Callable[[Run], Posterior]]:
    """Threads, progress, and a stop that leaves unfinished work in the cache; gives what opens a run's posterior."""
    # how long a rank takes for its rows says nothing of whether it lives; sums in one order make the same answers
    ranks = team(run.config.device, MOST_SECONDS, deterministic=True)
    shown, threads = Progress(quiet or not ranks.first), settings.threads or run.config.threads
    with shown, stop_signal() as stopped, use_threads(threads):

        def check() -> None:
            if stopped:
                raise Interrupted("stopped; results so far are saved: the same command goes on from there", stopped[0])

        def progress(what: str, share: float) -> None:
            shown.show(f"{what}: {share:.0%}")
            check()

        try:
            yield lambda run: run.posterior(
                refit_passes=settings.refit,
                refit_objective=settings.refit_objective,
                refit_shards=settings.refit_shards,
                progress=progress,
                ranks=ranks,
            )
        except UserError:
            check()  # a rank that was told to stop may first find that another has
            raise


def _evaluation(
    settings: EvaluateConfig, posterior: Posterior, data: Data | None, rows: np.ndarray, likelihoods: RowLikelihoods
) -> Evaluation:
    """The result for rows of the run's data, or for other rows where `data` is None."""
    exact = is_exact(posterior.model, posterior.method.proposal)
    summary = summarise(likelihoods, exact)
    density = None if data is None else data.log_density
    return Evaluation(
        summary=summary,
        rows=likelihoods,
        settings=settings,
        split=None if data is None else settings.split,
        epoch=posterior.epoch,
        collected=posterior.collected,
        chains=1 + len(posterior.others),
        exact=exact,
        truth=None if density is None else float(density(rows).mean()),
        advice=tuple(_advice(settings, posterior)) if summary.unreliable else (),
    )


Scores = TypeVar("Scores", RowLikelihoods, Marginal)


def _in_units(likelihoods: Scores, run: Run, rows: np.ndarray) -> Scores:
    """Densities of a table whose columns were scaled, in the units of the table."""
    change = torch.as_tensor(_log_units(run, rows)).to(likelihoods.log_likelihood)
    return likelihoods._replace(log_likelihood=likelihoods.log_likelihood - change)


def _log_units(run: Run, rows: np.ndarray) -> np.ndarray:
    """What a row's log density has more in the units of the model than in those of the table."""
    columns = run.columns
    if columns is None or not columns.log_scale.any():
        return np.zeros(len(rows))
    found: np.ndarray = ~missing_mask(rows) @ columns.log_scale
    return found


def _chosen_in_units(chosen: Chosen, run: Run, valid: np.ndarray) -> Chosen:
    """What both estimates gave the trial rows, in the units of the table."""
    if chosen.by_draws is None or chosen.by_annealing is None:
        return chosen
    change = float(_log_units(run, trial_rows(valid)).mean())
    return Chosen(chosen.estimator, chosen.by_draws - change, chosen.by_annealing - change)


def _advice(settings: EvaluateConfig, posterior: Posterior) -> list[str]:
    """What may help where draws miss much of p(z | x): what can be done with this run, and was not asked for."""
    can_refine = posterior.method.proposal.n_row_biases > 0
    one_model = settings.of != "ensemble" and not posterior.others
    return [
        "more --draws",
        "a longer --refit",
        *["--refine 200"] * (can_refine and not settings.refine),
        *["--ais 1000"]
        * (one_model and not settings.ais and Annealing().serves(posterior.model, posterior.method.proposal)),
    ]


def _annealing(settings: EvaluateConfig, start: Start = "prior") -> Annealing:
    return Annealing(temperatures=settings.ais, chains=settings.ais_chains, start=start)


def _anneal(
    settings: EvaluateConfig, posterior: Posterior, rows: np.ndarray, run: Run, start: Start = "prior"
) -> tuple[Marginal, Gap]:
    """Annealed importance sampling on the first rows, and how far apart its bounds are on rows of the model."""
    some, how = rows[: settings.ais_rows], _annealing(settings, start)
    found = _in_units(posterior.anneal(some, how, settings.of, settings.samples, settings.seed), run, some)
    return found, posterior.annealing_gap(min(len(some), GAP_ROWS), how, settings.of, settings.samples, settings.seed)


def _annealed(found: Marginal, gap: Gap) -> Annealed:
    return Annealed(
        n=len(found.log_likelihood),
        log_likelihood=found.log_likelihood.double().mean().item(),
        stderr=stderr(found.log_likelihood),
        gap_on_simulated_rows=gap.difference.mean,
        gap_stderr=gap.difference.stderr,
    )


def _beside(found: Marginal, gap: Gap, likelihoods: RowLikelihoods) -> Annealed:
    """With how much more annealing gives than importance sampling gives the same rows."""
    gaps = (found.log_likelihood - likelihoods.log_likelihood[: len(found.log_likelihood)]).double()
    return dataclasses.replace(_annealed(found, gap), above_score=gaps.mean().item(), above_score_stderr=stderr(gaps))


def _check_annealing(settings: EvaluateConfig, runs: Sequence[Run], start: Start = "prior") -> None:
    if settings.of == "ensemble" or len(runs) > 1 or runs[0].config.chains > 1:
        raise UserError(
            "bounds from both sides are of one set of weights: of one run, --of mean or --of last; leave --ais out, or "
            "take --by annealing"
        )
    if settings.ais_rows < 1:
        raise UserError(f"ais_rows must be at least 1, got {settings.ais_rows}")
    method = build(runs[0].config, runs[0].facts)
    _annealing(settings, start).check(method.model, method.proposal)


def _check_same_data(one: Run, other: Run) -> None:
    if one.data_digest != other.data_digest:
        raise UserError(f"{one.path} and {other.path} were made with different data: their rows cannot be paired")


def _check_each_once(runs: Sequence[Run]) -> None:
    chains = [chain.fingerprint for run in runs for chain in run.chains]
    if len(set(chains)) < len(chains):
        raise UserError("the same chain was named twice: name each run once")
