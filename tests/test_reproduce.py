"""Rows of the paper's tables: every recipe can be built, and one that is small runs from training to the page."""

import dataclasses
import itertools
import json
import math
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from doubly import cli
from doubly.analysis.config import EvaluateConfig
from doubly.analysis.evaluate import anneal, evaluate
from doubly.core.errors import UserError
from doubly.latents import Gap, Persistent
from doubly.latents.annealing import Mean
from doubly.layers import NADE
from doubly.paper import budget, history, reproduce, scoring, tables, tasks
from doubly.paper.recipes import RECOMMENDED, Recipe, recipes, with_recommended
from doubly.paper.result import RowResult
from doubly.paper.tasks import Task
from doubly.runs.build import Facts, build
from doubly.runs.fit import fit_config
from doubly.runs.folder import Run
from doubly.runs.presets import preset

RESULTS = Path(__file__).parents[1] / "results"

PAPER = {  # the rows that the method owns, and the baselines beside them
    "mnist-sbn-200": -101.8, "mnist-sbn-200-200": -92.5, "mnist-sbn-200-200-200": -89.9, "mnist-darn-200": -89.3,
    "mnist-nade-200": -83.67, "mnist-gibbs-sbn-200": -102.9, "mnist-gibbs-sbn-200-200": -100.6,
    "mnist-gibbs-sbn-200-200-200": -97.5, "mnist-gibbs-darn-200": -101.1,
    "mnist-rws-sbn-200": -103.1, "mnist-rws-sbn-200-200": -93.4,
    "mnist-rws-sbn-200-200-200": -90.1, "mnist-rws-darn-200": -89.2, "mnist-rws-nade-200": -86.8,
    "mnist-wake-sleep-sbn-200": -116.3, "mnist-wake-sleep-sbn-200-200": -106.9,
    "mnist-wake-sleep-sbn-200-200-200": -101.3, "mnist-nvil-sbn-200": -113.1, "mnist-nvil-sbn-200-200": -99.8,
    "mnist-nvil-sbn-200-200-200": -96.7,
    "mnist-nade-500-alone": -88.86, "caltech-sbn-200": -122.7, "caltech-sbn-200-200": -108.0,
    "caltech-sbn-200-200-200": -105.2, "caltech-sbn-300-100-50-10": -103.6, "caltech-nade-150": -100.0,
    "caltech-rws-sbn-200": -134.4, "caltech-rws-sbn-200-200": -126.0, "caltech-rws-sbn-300-100-50-10": -113.3,
    "caltech-rws-nade-150": -104.3, "caltech-nade-500-alone": -110.6,
    "caltech-fvsbn-alone": -96.4, "mnist-vae-50": -86.93, "mnist-vae-50-vae": -88.83, "mnist-vae-50-iwae": -87.63,
    "omniglot-vae-50": -106.1, "omniglot-vae-50-vae": -107.62, "omniglot-vae-50-iwae": -106.12,
}  # fmt: skip


KEYS = [  # of a result's file, on which the page and its readers rely
    "name", "table", "label", "preset", "published", "log_likelihood", "stderr", "annealed", "by_draws", "draw_error",
    "of", "draws", "draws_of_the_recipe", "refit", "refine", "ess", "unreliable_share", "samples",
    "samples_of_the_paper", "cut", "epochs", "steps", "valid_last", "hours", "training_hours", "cores", "threads",
    "seed", "versions", "data_sha256", "config", "commit", "estimator", "temperatures", "gap", "settled", "temperature",
    "burn_in", "weights",
]  # fmt: skip


def test_every_row_has_its_recipe():
    assert {name: recipe.published for name, recipe in recipes().items()} == PAPER


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_can_be_built(name):
    recipe = recipes()[name]
    method = build(recipe.config, Facts(784, "binary", (28, 28)))
    assert recipe.evaluation.of == ("mean" if method.sampler.noisy else "last")
    assert recipe.optimised == (not method.sampler.noisy)
    assert recipe.config.collect >= 20, "the mean of a rival's weights is scored, too"
    if not recipe.optimised:
        assert recipe.config.collect == (200 if "vae" in name else 100)
    exact = not recipe.config.hidden
    assert recipe.evaluation.draws == (1 if exact else 500 if "ade" in recipe.config.proposal
                                     else 5000 if "vae" in name else 1000 if "gibbs" in name
                                     else 10_000 if recipe.optimised and "mnist" in name else 100_000)  # fmt: skip
    days_here = "mnist" in name and not recipe.optimised and "vae" not in name and name != "mnist-sbn-200"
    assert recipe.only_cost == days_here
    assert (recipe.config.schedule != "constant") == (recipe.preset in ("vae", "iwae"))
    assert recipe.can_anneal == (not exact and "nade" not in recipe.config.model)
    assert recipe.seeds == (3 if name.startswith("caltech") or name == "mnist-sbn-200" else 1)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_way_has_no_refining_and_no_annealing(name):
    """Only Gibbs chains are annealed, for how the paper scored them is not known."""
    settings = recipes()[name].evaluation
    assert settings.refine == 0
    assert settings.ais == 0
    assert settings.by == ("annealing" if "gibbs" in name else "draws")
    assert settings.refit_objective is None, "the proposal is fitted by the objective of its training"


@pytest.mark.parametrize("name", [name for name, recipe in recipes().items() if recipe.preset in RECOMMENDED])
def test_a_recipe_with_the_recommended_settings_can_be_built(name):
    recipe = with_recommended(recipes()[name])
    method = build(recipe.config, Facts(784, "binary", (28, 28)))
    assert method.theta_steps == 1
    assert method.collect == recipes()[name].config.collect
    if "gibbs" not in name:
        assert (recipe.config.sampler, recipe.config.step) == ("thermostat", "auto")
    # remembered states, where there is a cheap local move for them
    remembered = "gibbs" not in name and "vae" not in name and not isinstance(method.model.layers[0], NADE)
    if method.model.layers[1:]:
        assert isinstance(method.estimator, Persistent) == remembered
        assert (recipe.evaluation.by == "auto") == remembered
        assert (method.warmup > 0) == (not remembered and "gibbs" not in name), "Adam first with importance sampling"
    steps = math.ceil((50_000 if "mnist" in name else 23_000 if "omniglot" in name else 4_100) / method.batch)
    assert method.patience * steps >= 4_000, "validation is noisy: it must not begin to collect too early"
    assert "mnist" not in name or method.patience >= 20


def only(monkeypatch, recipe: Recipe) -> None:
    """No other recipe is known."""
    for module in (tasks, tables):
        monkeypatch.setattr(module, "recipes", lambda: {recipe.name: recipe})


def a_small_recipe() -> Recipe:
    config = preset("dsgnht-nais", data="bars", hidden=(6,), theta_steps=2, batch=300, epochs=40, collect=4, threads=1)
    evaluation = EvaluateConfig(of="mean", draws=50, refit=2, temperatures=30)
    return Recipe("small", "Table 0", "small", -5.58, False, "dsgnht-nais", config, evaluation, alike=30)


@pytest.fixture
def small(monkeypatch) -> Recipe:
    recipe = a_small_recipe()
    only(monkeypatch, recipe)
    return recipe


@pytest.fixture(scope="module")
def made_once(tmp_path_factory) -> Path:
    """The small row, whole, in a folder that no test may change."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        only(patch, a_small_recipe())
        reproduce.reproduce(Task("small"), folder / "results", folder / "runs", threads=1, quiet=True)
    return folder


@pytest.fixture
def made(made_once, small, tmp_path) -> RowResult:
    """The small row in the test's own folder."""
    shutil.copytree(made_once, tmp_path, dirs_exist_ok=True)
    return RowResult.read(tmp_path / "results" / "small.json")


@pytest.fixture
def ticking(monkeypatch) -> None:
    """A clock that goes on by 5 ms whenever it is read: a budget is a count of work, as long on any machine.

    A mini-batch reads it three times, so that an epoch of seven takes about 0.1 s.
    """
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks) / 200)


def test_a_row_within_a_budget_is_cut_and_says_so(small, ticking, monkeypatch, tmp_path, capsys):
    """A hundred thousand epochs would take hours of the clock that ticks."""
    longer = dataclasses.replace(small, config=dataclasses.replace(small.config, epochs=100_000, collect=10_000))
    only(monkeypatch, longer)
    index = [
        "--results",
        str(tmp_path / "results"),
        "--runs",
        str(tmp_path / "runs"),
        "--page",
        str(tmp_path / "r.md"),
    ]
    cli.main(["reproduce", "small", "--budget", "2s", "--threads", "1", "--json", *index])
    found = json.loads(capsys.readouterr().out)
    run = Run(tmp_path / "runs" / "small")
    assert found["cut"]
    assert 2 <= found["epochs"] < 100_000
    assert found["samples"] == run.metrics()[-1]["collected"] > 0
    assert found["config"]["epochs"] == run.config.epochs == found["epochs"]
    assert math.isfinite(found["log_likelihood"])
    assert found == json.loads((tmp_path / "results" / "small.json").read_text())
    assert list(found) == KEYS
    page = (tmp_path / "r.md").read_text()
    assert f"| small | `small` | -5.58 | {found['log_likelihood']:.2f} ± {found['stderr']:.2f} |" in page
    assert "| cut" in page
    assert found["annealed"] is found["weights"] is None, "a budget is for the number alone"
    cli.main(["reproduce", "--list", *index])
    assert f"{found['log_likelihood']:.2f}" in capsys.readouterr().out


def test_a_row_that_is_made_again_goes_on_with_its_run(small, monkeypatch, tmp_path):
    short = dataclasses.replace(small, config=dataclasses.replace(small.config, epochs=6))
    only(monkeypatch, short)
    first = reproduce.reproduce(Task("small"), tmp_path / "results", tmp_path / "runs", quiet=True)
    assert not first.cut, "the recipe itself has so few epochs"
    checkpoint = Run(tmp_path / "runs" / "small").checkpoint.read_bytes()
    again = reproduce.reproduce(Task("small"), tmp_path / "results", tmp_path / "runs", quiet=True)
    assert again.log_likelihood == first.log_likelihood
    assert Run(tmp_path / "runs" / "small").checkpoint.read_bytes() == checkpoint


def test_a_budget_is_never_too_short_for_a_sample(small, monkeypatch, tmp_path):
    rarely = dataclasses.replace(small, config=dataclasses.replace(small.config, collect_every="10epochs"))
    only(monkeypatch, rarely)
    found = reproduce.reproduce(Task("small"), tmp_path / "results", tmp_path / "runs", budget=0.01, quiet=True)
    assert found.cut
    assert found.samples == 1


def test_the_times_of_a_draw_and_of_a_pass_are_measured_beside_all_else(small, ticking, monkeypatch, tmp_path):
    """Three seconds go by before anything is drawn, seven with each pass, a microsecond with each draw of a row.

    A step of refining takes half a second for a few rows; 20 are a share of the test rows in that, twenty times.
    """
    run = fit_config(dataclasses.replace(small.config, epochs=1, collect=1), tmp_path / "run", quiet=True)

    def trial(run: Run, settings: EvaluateConfig, draws: int, passes: int = 0, refine: int = 0) -> float:
        return 3 + 7 * passes + 1e-6 * budget.FEW_ROWS * draws + 0.5 * refine

    monkeypatch.setattr(budget, "_trial", trial)
    settings = dataclasses.replace(small.evaluation, draws=100_000)
    assert budget._seconds_a_draw(run, settings) == pytest.approx(1e-6 * len(run.data().test), rel=1e-3)
    assert budget._seconds_a_pass(run, settings) == pytest.approx(7)
    assert budget._seconds_of_refining(run, settings) == 0, "it is not asked for"
    refined, share = dataclasses.replace(settings, refine=20), len(run.data().test) / budget.FEW_ROWS
    assert budget._seconds_of_refining(run, refined) == pytest.approx(10 * share)
    soon, later = (budget.within(time.monotonic() + 10 * share * factor, run, refined) for factor in (1.5, 3))
    assert (soon.refine, later.refine) == (0, 20), "not if it takes more than half of the time"


def test_a_refit_comes_out_of_the_time_for_training(small, ticking, monkeypatch, tmp_path):
    """Passes that are said to take an hour leave nothing but what a sample takes; those that take no time, all."""
    config, epochs = dataclasses.replace(small.config, epochs=100_000, collect=10_000), []
    for seconds in (3600.0, 0.0):
        monkeypatch.setattr(budget, "_seconds_a_pass", lambda run, settings, seconds=seconds: seconds)
        folder = tmp_path / str(seconds)
        epochs.append(len(budget.train(config, folder, 3.0, small.evaluation, quiet=True).metrics()))
    assert epochs[0] < epochs[1]


def test_a_budget_leaves_a_finished_run_as_it_is(small, monkeypatch, tmp_path):
    short = dataclasses.replace(small, config=dataclasses.replace(small.config, epochs=6))
    only(monkeypatch, short)
    first = reproduce.reproduce(Task("small"), tmp_path / "results", tmp_path / "runs", quiet=True)
    proposals = set((tmp_path / "runs" / "small" / "posterior").glob("proposal*"))
    (tmp_path / "results" / "small.json").unlink()  # or it would stand
    again = reproduce.reproduce(Task("small"), tmp_path / "results", tmp_path / "runs", budget=5, quiet=True)
    assert again.config == first.config
    assert not again.cut
    there = set((tmp_path / "runs" / "small" / "posterior").glob("proposal*"))
    assert there == proposals, "the proposal that is fitted to see how long scoring takes is the one that scores"


def test_a_row_that_was_cut_goes_on_to_its_end_without_a_budget(small, tmp_path):
    """What it collected before validation had levelled off is forgotten, and it waits again."""
    index = tmp_path / "results", tmp_path / "runs"
    first = reproduce.reproduce(Task("small"), *index, budget=0.01, quiet=True)
    assert first.cut
    assert 0 < first.samples < small.config.collect
    whole = reproduce.reproduce(Task("small"), *index, quiet=True)
    assert whole.samples == small.config.collect
    assert whole.config.epochs == small.config.epochs
    assert not whole.cut
    assert whole.hours > whole.training_hours > first.training_hours
    run = Run(tmp_path / "runs" / "small")
    assert [record["phase"] for record in run.metrics()][-small.config.collect - 1 :] == ["burn-in", *["collect"] * 4]
    posterior = run.posterior()
    torch.testing.assert_close(torch.stack(posterior.thetas).double().mean(0).float(), posterior.mean())


def test_a_plan_with_more_epochs_waits_for_what_was_collected_early(small, tmp_path):
    """Of 40 epochs the first 10 are waited for and the last 4 collected from; planned as 8, it collects after 4."""
    run = fit_config(dataclasses.replace(small.config, epochs=8), tmp_path / "run", quiet=True)
    assert [record["phase"] for record in run.metrics()] == [*["burn-in"] * 4, *["collect"] * 4]

    def began() -> int | None:
        state = run.restore(build(run.config, run.facts))
        assert state is not None
        return state.began

    budget._plan(run, small.config, 12)  # in which collecting would start after 8 epochs, which are over
    assert began() == 4
    budget._plan(run, small.config, 13)
    assert began() is None
    assert not list((run.path / "posterior").glob("mean-*"))


def test_an_optimiser_that_was_cut_goes_on_too(small, monkeypatch, tmp_path):
    """It has nothing to collect, and ends where validation has levelled off or its epochs are over."""
    config = preset("rws", data="bars", hidden=(6,), epochs=30, collect=0, patience=30, threads=1)
    optimised = dataclasses.replace(small, config=config, evaluation=dataclasses.replace(small.evaluation, of="last"))
    only(monkeypatch, optimised)
    index = tmp_path / "results", tmp_path / "runs"
    first = reproduce.reproduce(Task("small"), *index, budget=0.01, quiet=True)
    assert first.cut
    assert first.epochs < 30
    whole = reproduce.reproduce(Task("small"), *index, quiet=True)
    assert not whole.cut
    assert whole.epochs == 30


def test_a_row_that_is_scored_by_annealing_is_annealed_alike_at_once(small, monkeypatch, tmp_path):
    asked = EvaluateConfig(of="mean", draws=50, refit=2, by="annealing", temperatures=30)
    gibbs = dataclasses.replace(
        small, config=dataclasses.replace(small.config, estimator="gibbs", epochs=6), evaluation=asked
    )
    only(monkeypatch, gibbs)
    found = reproduce.reproduce(Task("small"), tmp_path / "results", tmp_path / "runs", threads=1, quiet=True)
    assert (found.estimator, found.temperatures, found.by_draws) == ("annealing", 30, None)
    annealed = found.annealed
    assert annealed is not None
    assert (annealed.temperatures, annealed.chains, annealed.start) == (30, 1, "proposal")
    assert annealed.found.log_likelihood == found.log_likelihood
    assert annealed.found.gap_on_simulated_rows == found.gap
    assert annealed.found.n == len(Run(tmp_path / "runs" / "small").data().test)
    assert len(history.read_scores(tmp_path / "results")) == 1


def test_a_row_by_draws_is_annealed_alike_and_its_value_stays(small, monkeypatch, tmp_path):
    by_draws = dataclasses.replace(small, evaluation=dataclasses.replace(small.evaluation, by="draws"))
    only(monkeypatch, by_draws)
    where = tmp_path / "results", tmp_path / "runs"
    found = reproduce.reproduce(Task("small"), *where, threads=1, quiet=True)
    assert found.by_draws == found.log_likelihood
    assert found.annealed is not None
    settings = {"refit": 2, "ais": 30, "ais_chains": 1, "ais_rows": 10**9, "threads": 1}
    alone = anneal(tmp_path / "runs" / "small", True, "proposal", **settings)
    assert found.annealed.found.log_likelihood == pytest.approx(alone.log_likelihood, abs=1e-6)
    assert found.annealed.found.gap_on_simulated_rows == pytest.approx(alone.gap_on_simulated_rows, abs=1e-6)
    page = tables.page(tmp_path / "results")
    assert "### Annealed alike, 30 temperatures" in page
    assert f"| small | `small` | {found.annealed.text()} |" in page


def test_last_mean_and_ensemble_are_compared_on_validation_rows(small, made, tmp_path):
    """By the row's own estimate, on some of the validation rows, and on no test row."""
    found = made
    scores, run = found.weights, Run(tmp_path / "runs" / "small")
    assert scores is not None
    valid = run.data().valid
    rows = valid[:: math.ceil(len(valid) / scoring.COMPARED_ROWS)]
    assert scores.n == len(rows)
    assert scores.members == small.config.collect
    assert (scores.estimator, scores.work) == (found.estimator, 30 if found.estimator == "annealing" else 50)
    fields = {"by": found.estimator, "draws": 50, "temperatures": 30, "refit": 2, "settle": False, "threads": 1}
    for of in scoring.WEIGHTS:
        again = evaluate(run.path, x=rows, of=of, quiet=True, **fields)
        assert getattr(scores, of) == pytest.approx(again.summary.log_likelihood, abs=1e-6)
    assert scores.mean_over_last[0] == pytest.approx(scores.mean - scores.last, abs=1e-4)
    assert scores.ensemble_over_mean[0] == pytest.approx(scores.ensemble - scores.mean, abs=1e-4)
    assert scores.text() in tables.page(tmp_path / "results")
    assert RowResult.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_parts_that_are_missing_are_added_and_test_rows_are_not_scored_again(made, monkeypatch, tmp_path):
    where = tmp_path / "results", tmp_path / "runs"
    file, whole = tmp_path / "results" / "small.json", made
    assert whole.missing() == []
    dataclasses.replace(whole, annealed=None, weights=None).save(file)
    assert RowResult.read(file).missing() == ["not annealed alike", "last, mean and ensemble not compared"]

    def never(*args: Any) -> None:
        raise AssertionError("the number stands")

    monkeypatch.setattr(reproduce, "score", never)
    (tmp_path / "results" / history.FILE).unlink()  # as after a kill between both files
    again = reproduce.reproduce(Task("small"), *where, threads=1, quiet=True)
    assert dataclasses.replace(again, hours=whole.hours) == whole
    assert [score.title for score in history.read_scores(tmp_path / "results")] == ["small"]
    other: dict[str, Any]
    for other in ({"epochs": 1}, {"valid_last": whole.valid_last - 1e-6}, {"refit": (7, "wake")}, {"of": "last"}):
        dataclasses.replace(whole, **other).save(file)
        with pytest.raises(AssertionError, match="the number stands"):  # of other weights, or otherwise
            reproduce.reproduce(Task("small"), *where, threads=1, quiet=True)


def test_temperatures_are_doubled_until_the_bounds_are_near(small, monkeypatch, tmp_path):
    """The gap is said to be 60 / T nats: 0.5 takes 120 temperatures, of which 160 is the next that is looked at."""
    run = fit_config(dataclasses.replace(small.config, epochs=3, collect=1), tmp_path / "run", quiet=True)
    looked = []

    def gap(self, n, how, of="mean", samples=None, seed=0):
        looked.append(how.temperatures)
        nats = Mean(60 / how.temperatures, 0.0)
        return Gap(nats, nats, nats)

    monkeypatch.setattr("doubly.posterior.store.Posterior.annealing_gap", gap)
    settings = EvaluateConfig(by="annealing", temperatures=20, refit=0, settle=False, threads=1)
    assert scoring._enough_temperatures(run, settings, 1000, True) == 160
    assert looked == [20, 40, 80, 160]
    assert scoring._enough_temperatures(run, settings, 100, True) == 100, "no more than the most"
    assert scoring._enough_temperatures(run, settings, 0, True) == 20
    assert scoring._enough_temperatures(run, dataclasses.replace(settings, by="draws"), 1000, True) == 20
    assert scoring.score(run, settings, 50, True).settings.temperatures == 50


def test_the_time_that_annealing_takes_is_foreseen(small, monkeypatch, tmp_path):
    run = fit_config(dataclasses.replace(small.config, epochs=3), tmp_path / "run", quiet=True)
    clock = [0.0]

    def anneal(self, x, how, of):
        clock[0] += len(x) * how.temperatures * how.chains
        assert how.start == "proposal"

    monkeypatch.setattr("doubly.posterior.store.Posterior.anneal", anneal)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    loaded = Run.data

    def slow_data(self):
        clock[0] += 1e6
        return loaded(self)

    monkeypatch.setattr(Run, "data", slow_data)
    by_draws, annealed = (
        dataclasses.replace(small.evaluation, by=by, temperatures=200) for by in ("draws", "annealing")
    )
    assert budget._seconds_of_annealing(run, by_draws) == 0
    # all test rows, and a hundred of the model up and down
    assert budget._seconds_of_annealing(run, annealed) == pytest.approx((len(run.data().test) + 200) * 200)


def test_a_run_of_other_settings_is_not_taken_for_the_row(small, tmp_path):
    other = dataclasses.replace(small.config, step=0.123, epochs=3)
    fit_config(other, tmp_path / "runs" / "small", quiet=True)
    with pytest.raises(UserError, match=r"made with step 0\.123, but the recipe has 0\.005"):
        reproduce.reproduce(Task("small"), tmp_path / "results", tmp_path / "runs", quiet=True)


@pytest.mark.parametrize(
    ("scores", "hurried"), [([1, 2, 3, 4], True), ([1, 3, 2, 2], False), ([3, 1, 1], True), ([3, 1, 1, 2], False)]
)
def test_whether_waiting_ended_too_early_is_seen_from_the_metrics(scores, hurried):
    """Two epochs without a rise are waited for, and the first two epochs of all do not count."""
    method = build(preset("rws", hidden=(3,), collect=0, min_epochs=2, patience=2), Facts(4, "binary", (4,)))
    metrics: list[dict[str, Any]] = [
        {"epoch": i, "phase": "burn-in", "valid": float(score)} for i, score in enumerate(scores, start=1)
    ]
    assert budget.hurried(method, metrics, 100) == hurried
    assert not budget.hurried(dataclasses.replace(method, epochs=len(scores)), metrics, 100), "all there were"
    before: list[dict[str, Any]] = [{"epoch": i, "phase": "burn-in", "valid": 9.0} for i in (1, 2, 3)]
    later = [record | {"epoch": record["epoch"] + 3} for record in metrics]
    warmed = dataclasses.replace(method, warmup=2, min_epochs=5)
    assert budget.hurried(warmed, before + later, 100) == hurried, "to warm up and to leave the mode is no waiting"


def test_an_epoch_during_which_the_process_was_stopped_counts_as_the_others():
    assert reproduce._training([{"seconds": seconds} for seconds in (2.0, 1.0, 2700.0, 2.0, 3.0)]) == 10.0


def test_a_result_that_is_none_is_named(small, tmp_path):
    (tmp_path / "small.json").write_text("{}")
    with pytest.raises(UserError, match=r"small\.json is no result"):
        tables.page(tmp_path)


def test_a_result_says_in_what_it_differs_from_its_recipe(small, tmp_path):
    found = reproduce.reproduce(Task("small"), tmp_path, tmp_path / "runs", budget=0.01, quiet=True)
    found = dataclasses.replace(found, commit="abc", settled=None, temperature=1.0)
    assert found.marks() == ["cut"]

    def changed(refit: tuple[int, str] = found.refit, **settings: Any) -> RowResult:
        return dataclasses.replace(found, cut=False, refit=refit, config=dataclasses.replace(found.config, **settings))

    assert changed((7, "sleep"), step=0.1, epochs=3).marks() == ["step 0.1", "refit 7 sleep"]
    assert changed(warmup_step=0.5).marks() == [], "of no warm-up"
    assert changed(warmup_step=0.5, warmup=2).marks() == ["warmup 2", "warmup_step 0.5"]


def test_a_result_says_what_it_lacks(small, made, monkeypatch):
    found = dataclasses.replace(made, commit="abc", settled=None, temperature=1.0)
    assert found.marks() == []
    assert (
        dataclasses.replace(found, annealed=None).text()
        == f"small: {found.value()}, published -5.58, {found.hours:.2f} hours"
    )
    newer = dataclasses.replace(small, config=dataclasses.replace(small.config, phi_schedule="cosine"))
    only(monkeypatch, newer)
    fields = found.to_json()
    assert RowResult.from_json(fields) == found
    del fields["config"]["phi_schedule"]  # as before there was such a setting
    for name in ("annealed", "by_draws", "refine", "data_sha256", "commit", "burn_in", "weights"):  # and such fields
        del fields[name]
    fields["effective"] = fields.pop("ess")
    older = RowResult.from_json(fields)
    assert older.ess == found.ess
    assert older.by_draws == found.log_likelihood
    lacks = ["code not committed", "data not checksummed", "phi_schedule constant"]
    assert older.marks() == lacks
    parts = ["made with other settings", "not annealed alike", "last, mean and ensemble not compared"]
    assert older.missing() == parts


def test_a_row_with_the_recommended_settings_is_filed_apart(small, tmp_path):
    found = reproduce.reproduce(Task("small", "recommended"), tmp_path / "results", tmp_path / "runs", 2.0, quiet=True)
    assert found.config.step == preset("recommended").step != small.config.step
    assert found.config.hidden == small.config.hidden
    assert (tmp_path / "results" / "small-recommended.json").exists()
    paper, recommended = tables.page(tmp_path / "results").split("### Recommended")
    assert f"| {found.value()} |" in recommended
    assert "| small | `small` | -5.58 | not yet |" in paper
    assert "recommended, in" in tables.listing(tmp_path / "results")


def test_larger_data_make_the_recommended_settings_wait_for_fewer_epochs():
    """An epoch of binarised MNIST has 500 mini-batches, one of Caltech 41."""
    small, large = preset("recommended"), with_recommended(recipes()["mnist-sbn-200"]).config
    assert (small.collect_every, large.collect_every) == ("10epochs", "1epoch")
    assert (large.patience, large.warmup) == (small.patience / 5, small.warmup)
    assert (large.draws, large.warmup_step) == (small.draws, small.warmup_step)


def test_the_recommended_settings_are_for_rows_of_the_method():
    with pytest.raises(UserError, match="caltech-rws-sbn-200 is one of rws"):
        reproduce.reproduce(Task("caltech-rws-sbn-200", "recommended"))


@pytest.mark.parametrize("text", ["", "soon", "2 hours", "h", "-1h"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="written as 2h"):
        budget.seconds(text)


def test_the_page_is_that_of_the_results():
    root = Path(__file__).parents[1]
    assert (root / "docs" / "results.md").read_text() == tables.page(root / "results"), "make it anew"


def test_every_score_of_a_row_is_listed_and_marks_tell_what_a_result_lacks(made, tmp_path):
    results, runs, first = tmp_path / "results", tmp_path / "runs", made
    reproduce.reproduce(Task("small"), results, runs, threads=1, quiet=True)  # the same weights, the same way
    assert [score.log_likelihood for score in history.read_scores(results)] == [round(first.log_likelihood, 4)]
    second = dataclasses.replace(first, seed=1, log_likelihood=first.log_likelihood - 1)
    history.add_score(results, history.score_of("small-seed-1", second))
    looks = " → ".join(f"{each.log_likelihood:.2f} ({first.estimate().split(',')[0]})" for each in (first, second))
    assert f"| `small` | 2 | {looks} |" in tables.page(results)
    assert first.temperature is not None
    assert 0.5 < first.temperature < 2
    assert f"| {first.temperature:.2f} |" in tables.page(results)
    unclean = dataclasses.replace(first, commit="abc-dirty", data_sha256=None, settled=False)
    assert {"code not committed", "data not checksummed", "not settled"} <= set(unclean.marks())
    clean = dataclasses.replace(first, commit="abc", settled=True)
    assert not {"code not committed", "data not checksummed", "not settled"} & set(clean.marks())
    for temperature, mark in ((1.04, None), (1.37, "temperature off by +37%"), (0.94, "temperature off by -6%")):
        off = [each for each in dataclasses.replace(clean, temperature=temperature).marks() if "temperature" in each]
        assert off == [mark] * (mark is not None)
    (results / history.FILE).write_text("{}\n")
    with pytest.raises(UserError, match="is no list of scores"):
        tables.page(results)


def test_the_list_of_scores_has_every_result_and_those_of_before():
    scores = history.read_scores(RESULTS)
    for file in RESULTS.glob("*.json"):
        value = round(json.loads(file.read_text())["log_likelihood"], 4)
        assert any(score.title == file.stem and score.log_likelihood == value for score in scores), file.name
    told = [score.log_likelihood for score in scores if score.row == "caltech-sbn-300-100-50-10"]
    assert told[:3] == [-106.0954, -104.7053, -101.4384]


def test_the_commit_of_a_row_is_that_of_the_code_alone(tmp_path):
    """The page and the results that rows write into the repository do not make its code another."""

    def git(*args: str) -> str:
        named = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *named, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    for name in ("src/code.py", "docs/results.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("1\n")
    git("init", "-q")
    assert reproduce._commit(tmp_path / "src") is None
    git("add", "-A")
    git("commit", "-qm", "all")
    clean = git("describe", "--always")
    assert reproduce._commit(tmp_path / "src") == clean
    (tmp_path / "docs/results.md").write_text("2\n")
    assert reproduce._commit(tmp_path / "src") == clean
    (tmp_path / "src/code.py").write_text("2\n")
    assert reproduce._commit(tmp_path / "src") == f"{clean}-dirty"


@pytest.mark.parametrize(("row", "matters"), [("caltech-fvsbn-alone-recommended", False), ("caltech-sbn-200", True)])
def test_settings_of_latents_matter_where_there_are_latents(row: str, matters: bool):
    result = RowResult.from_json(json.loads((Path(__file__).parents[1] / "results" / f"{row}.json").read_text()))
    other = dataclasses.replace(result, config=dataclasses.replace(result.config, draws=7, estimator="gibbs"))
    assert ({"draws 7", "estimator gibbs"} <= set(other.differs())) == matters
    assert matters or other.differs() == result.differs()
