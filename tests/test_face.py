"""The first ten minutes: help, budgets, files of settings, verdicts, callbacks, trackers, plots, reprs."""

import dataclasses
import inspect
import json
import math
import sys
import time
import types
import typing
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch

import doubly
from doubly import cli
from doubly.analysis import outcome
from doubly.analysis.report.sections.latents import _on_khat
from doubly.cli import names, parser
from doubly.core.errors import UserError
from doubly.data import Data
from doubly.kernels import loops
from doubly.latents import RowLikelihoods
from doubly.posterior.estimates import Chosen
from doubly.runs import progress
from doubly.runs.build import Facts, build
from doubly.runs.config import GROUPS, Config
from doubly.runs.fields import ConfigFields
from doubly.runs.fit import _plan_in_words, fit_config
from doubly.runs.plan import TRAINING, Asked, Budget, spent_in
from doubly.runs.presets import PRESETS, preset
from doubly.runs.trackers import TRACKERS, tracker
from doubly.runs.watch import Watch
from test_cli import refused, write

TINY: dict[str, Any] = {"data": "bars", "hidden": (4,), "epochs": 8, "collect": 5, "valid_draws": 2, "threads": 1}
mpl.use("Agg")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run, and what its listeners were told."""
    told: dict[str, list] = {"epochs": [], "samples": [], "tracked": []}
    listener = SimpleNamespace(
        start=lambda name, settings: told["tracked"].append((name, settings["hidden"])),
        log=lambda epoch, numbers: told["tracked"].append((epoch, numbers)),
    )
    folder = tmp_path_factory.mktemp("face") / "run"
    run = doubly.fit(
        folder, quiet=True, on_epoch=lambda record: told["epochs"].append(record),
        on_sample=lambda number, theta: told["samples"].append((number, len(theta))), tracker=listener, **TINY,
    )  # fmt: skip
    return run, told


# The command line


def test_help_has_every_setting_in_one_group_and_basic_ones_first(capsys):
    grouped = [name for group in GROUPS.values() for name in group]
    assert len(grouped) == len(set(grouped))
    assert {field.name for field in dataclasses.fields(Config)} <= set(grouped)
    with pytest.raises(SystemExit) as stop:
        cli.main(["fit", "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    for name in grouped:
        assert f"  --{name.replace('_', '-')} " in text + " ", name
    assert text.index("--data") < text.index("--minutes") < text.index("--binarise") < text.index("--friction")
    assert "(default: " in text
    assert max(map(len, text.splitlines())) <= 100
    for symbol in ("gamma", "theta |", "eta", "the paper's S", "the paper's a)", "(M)", "(K)"):
        assert f" {symbol} " not in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["fti"], "doubly has no command 'fti' (did you mean fit?)"),
        (["fit", "--stepp", "3"], "doubly fit has no flag --stepp (did you mean --step?)"),
        (["evaluate", "runs/a", "--spilt=test"], "doubly evaluate has no flag --spilt (did you mean --split?)"),
        (["fit", "--preset", "rsw"], "no preset is called 'rsw' (did you mean rws?)"),
        (["fit", "--sampler", "termostat"], "no sampler is called 'termostat' (did you mean thermostat?)"),
        (["fit", "--model", "nade,sbnn"], "no layer is called 'sbnn' (did you mean sbn?)"),
        (["fit", "--prior", "student-t:scal=1"], "(did you mean scale?)"),
        (["fit", "--data", "digit"], "no data set is called 'digit' (did you mean digits?)"),
        (["fit", "--draws", "many"], "see doubly fit --help"),
        (["fit", "--minutes", "-1"], "minutes must not be negative"),
        (["fit", "--tracker", "wandbb"], "no tracker is called 'wandbb' (did you mean wandb?)"),
        (["data", "check", "nosuch.csv"], "there is no file nosuch.csv"),
        (["fit", "--config", "nosuch.toml"], "--config nosuch.toml cannot be read"),
    ],
)
def test_what_was_probably_meant_is_said_in_a_short_line(args, said, capsys):
    line = refused(capsys, *args)
    assert said in line
    assert len(line) < 400


def test_names_in_the_source_are_those_of_the_registries():
    for file, settings in names.REGISTRIES.items():
        noun, found = names._registry(file)
        module = f"doubly.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
        registries = [each for each in vars(sys.modules[module]).values() if getattr(each, "noun", None) == noun]
        assert [list(each) for each in registries] == [found], settings
    assert names._data_sets() == list(doubly.DATASETS)


def test_a_run_that_was_probably_meant_is_said(capsys, tmp_path):
    (tmp_path / "digits").mkdir()
    line = refused(capsys, "evaluate", str(tmp_path / "digit"))
    assert f"holds no run (did you mean {tmp_path / 'digits'}?): there is no such folder" in line


@pytest.mark.parametrize("option", ["drop=agee", "split=agee", "categories=agee"])
def test_a_column_that_was_probably_meant_is_said(option, capsys, tmp_path):
    file = write(tmp_path / "a.csv", "age,size\n" + "1.5,2\n3,4.5\n" * 9)
    assert "'agee' (did you mean age?)" in refused(capsys, "data", "info", f"{file}:{option}")


def test_the_version_is_said(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"doubly {doubly.__version__}\n")


def test_flags_win_over_a_file_and_a_file_over_a_preset(tmp_path):
    file = write(tmp_path / "a.toml", 'preset = "rws"\nhidden = [7, 3]\nphi-step = 0.5\ndraws = 9\n')
    found = parser._parse(["fit", "--config", file, "--draws", "4"])
    assert (found.hidden, found.phi_step, found.draws, found.sampler) == ((7, 3), 0.5, 4, "adam")
    assert parser._parse(["fit", f"--config={file}", "--preset", "nvil"]).objective == "nvil"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("hiden = [3]", "'hiden' (did you mean hidden?)"),
        ("hidden = 3", "hidden must be a list of whole numbers"),
        ('draws = "many"', "draws must be a whole number"),
        ("overwrite = 1", "overwrite in"),
        ("preset = 3", "preset in"),
        ("[model]\na = 1", "must be a value, got a table"),
        ("x = = 1", "is no TOML"),
        (f"epochs = {'9' * 5000}", "is no TOML"),
        ("hidden = " + "[" * 10**5, "is no TOML"),
        ("#" * 2**21, "is larger than 1 MB"),
        ("json = true", "'json'"),
    ],
)
def test_a_wrong_file_of_settings_is_one_line(content, said, capsys, tmp_path):
    file = write(tmp_path / "a.toml", content)
    assert said in refused(capsys, "fit", "--config", file, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_presets_show_validation_by_the_same_number_of_draws():
    by_draws = [name for name in PRESETS if name != "recommended"]  # which validates by temperatures of annealing
    assert {preset(name).valid_draws for name in by_draws} == {Config().valid_draws}


def test_a_fit_with_json_prints_one_object_and_resume_the_same(capsys, tmp_path):
    args = [
        "--data", "bars", "--hidden", "2", "--epochs", "6", "--collect", "5", "--valid-draws", "2", "--threads", "1",
        "--collect-every", "1",
    ]  # fmt: skip
    cli.main(["fit", *args, "--json", "--out", str(tmp_path / "run")])
    found = json.loads(capsys.readouterr().out)
    assert (found["epochs"], found["collected"], found["score"]["n"]) == (6, 5, 500)
    assert found["score"]["gain"] == found["score"]["log_likelihood"] - found["score"]["independent_columns"]
    assert found["convergence"]["samples"] == 5
    cli.main(["resume", str(tmp_path / "run"), "--json"])
    assert json.loads(capsys.readouterr().out) == found


# Verdicts


def test_independent_columns_are_the_densities_of_the_columns():
    train = np.array([[1, 0], [1, 1], [0, 0], [1, 0]])
    data = Data("bits", train, train, train, (2,), "binary")
    share = np.array([3.5 / 5, 1.5 / 5])
    expected = np.log(share[0]) + np.log(1 - share[1])
    assert outcome.independent(data, np.array([[1, 0]])) == pytest.approx([expected])
    values = np.array([[0.0], [2.0]])
    real = Data("reals", values, values, values, (1,), "real")
    assert outcome.independent(real, np.array([[1.0], [np.nan]])) == pytest.approx([-math.log(2 * math.pi) / 2, 0])


@pytest.mark.parametrize(
    ("gain", "error", "said"),
    [(1.0, 0.1, "better than"), (-1.0, 0.1, "worse than"), (0.1, 0.1, "no clear gain")],
)
def test_a_gain_is_called_one_beyond_two_standard_errors(gain, error, said):
    assert outcome.Score(-1 + gain, error, -1, gain, error, 10, "exact").text().startswith(said)


@pytest.mark.parametrize(
    ("rhat", "chance", "said"),
    [(1.02, 1.05, "has mixed, as far"), (1.3, 1.5, "too few samples to tell"), (1.3, 1.05, "has not mixed")],
)
def test_r_hat_is_judged_beside_chance(rhat, chance, said):
    text = outcome.Convergence("training bound", rhat, chance, 10, 20, apart=0.123).text()
    assert said in text
    assert ("halves differ by 0.12 nats in validation" in text) == ("not mixed" in said)


def test_finished_chains_are_not_told_to_go_on(capsys, tmp_path):
    doubly.fit(tmp_path / "run", quiet=True, **TINY | {"epochs": 3, "collect": 2})
    line = refused(capsys, "diagnose", str(tmp_path / "run"))
    assert "it is finished, so fit anew with a larger --collect" in line
    assert "resume" not in line


@pytest.mark.parametrize(("khat", "many", "said"), [
    ([0.9] + [0.1] * 9, False, "reliable for 90% of the rows (k̂ ≤ 0.7)"),
    ([0.9] * 2 + [0.1] * 8, True, "reliable only for 80% of the rows (k̂ ≤ 0.7): scores by draws are too low"),
    ([math.nan] + [0.1] * 9, False, "reliable for 90% of the rows (k̂ ≤ 0.7), and of 10% the draws cannot tell"),
    ([math.nan] * 3 + [0.1] * 7, True, "reliable only for 70% of the rows (k̂ ≤ 0.7), and of 30% the draws cannot"),
    ([math.nan] * 10, True, "reliable only for 0% of the rows (k̂ ≤ 0.7), and of 100% the draws cannot tell"),
])  # fmt: skip
def test_a_fit_and_its_report_agree_on_the_proposal(khat, many, said):
    """Of ten rows, one with a heavy tail or without a k̂ is few, and two are many; no k̂ is not a good one."""
    heavy, unknown = sum(k > 0.7 for k in khat), sum(map(math.isnan, khat))
    score = outcome.Score(-1.0, 0.1, -2.0, 1.0, 0.1, 10, "mean", unreliable=heavy / 10, unknown=unknown / 10)
    assert f"proposals are {said}" in " ".join(outcome._words(method(), [{"ess": 1.0}], score, None, None))
    one = torch.ones(10)
    remark = _on_khat(RowLikelihoods(-one, 20 * one, torch.tensor(khat), 0.1 * one, 200 * one), "draws")
    assert remark.level == ("note" if many else "good")
    assert ("The proposal finds" in remark.text) == (not many)


def test_draws_that_say_nothing_are_not_taken_for_annealing():
    """Few sizes of weights, as few binary latents have, leave every k̂ unknown."""
    rows = np.zeros((10, 5), dtype=np.uint8)
    one = torch.ones(10)
    scored = RowLikelihoods(-one, 20 * one, math.nan * one, 0.1 * one, 200 * one)
    posterior = SimpleNamespace(
        others=(), collected=1, rows=lambda x: x, choose=lambda *_: Chosen("draws"), score_by=lambda *_: scored,
        tidy=lambda: None,
    )  # fmt: skip
    run = SimpleNamespace(config=Config(minutes=1), posterior=lambda **_: posterior)
    data = Data("rows", rows, rows, rows, (5,), "binary")
    score = outcome._evaluated(run, data, method(), [{}], time.monotonic() + 1000)  # type: ignore[arg-type]
    assert score is not None
    assert score.how == "mean of the weights, 200 draws"
    assert (score.unreliable, score.unknown) == (0, 1)


# A budget


def method(**fields: Any):
    settings: dict[str, Any] = {"hidden": (3,), "epochs": 1000, "collect": 10} | fields
    return build(Config(**settings), Facts(5, "binary", (5,)))


def at(epoch: int, collected: int = 0, began: int | None = None) -> Any:
    return SimpleNamespace(epoch=epoch, collected=collected, began=began)


def test_a_budget_plans_as_many_epochs_as_fit():
    budget = Budget(1.0, 0.0, None, free_interval=True)  # of 60 seconds, 51 are for training
    assert budget.look(method(), at(1), 4.5, 1000) == {}  # loads much: it counts, but is no measure of the pace
    plan = budget.look(method(), at(2), 1.5, 1000)
    assert budget.left == pytest.approx(60 * TRAINING - 6)
    assert plan["epochs"] == 2 + (60 * TRAINING - 6) // 1.5
    # a third of its 320 steps is for 10 samples
    assert plan["collect_every"] == f"{int(plan['epochs'] * 10 / 3 / 10) // 10}epochs"


def test_a_budget_that_is_over_ends_the_run_with_samples():
    budget = Budget(0.1, 0.0, None, free_interval=True)
    budget.look(method(), at(1), 4.0, 1000)
    last = budget.look(method(), at(2), 4.0, 1000)
    assert last["epochs"] == 4  # one more to collect from
    assert budget.look(method(epochs=4), at(3, collected=5, began=2), 4.0, 1000) == {"epochs": 3}


def test_a_budget_shortens_a_warm_up_and_asks_for_no_more_epochs_than_the_user():
    budget = Budget(1.0, 0.0, None, free_interval=False)
    budget.look(method(warmup=500), at(1), 2.0, 1000)
    plan = budget.look(method(warmup=500), at(2), 2.0, 1000)
    assert plan == {"epochs": 25, "warmup": 12}
    asked = Budget(1.0, 0.0, 20, free_interval=False)
    asked.look(method(), at(1), 2.0, 1000)
    assert asked.look(method(), at(2), 2.0, 1000) == {"epochs": 20}
    assert Budget(0.0, 0.0, None, True).look(method(), at(1), 1e9, 10) == {}


def test_a_plan_never_goes_beyond_the_last_epoch_that_was_asked_for():
    asked = Budget(1.0, 0.0, 20, free_interval=False)
    asked.look(method(epochs=20), at(18), 50.0, 1000)
    assert asked.look(method(epochs=20), at(19), 50.0, 1000) == {}  # the minutes are over


def test_a_run_that_goes_on_keeps_what_was_asked_of_its_plan(tmp_path, monkeypatch):
    """Of 1000 minutes, 51,000 seconds are for training: at 2600 for an epoch, 18 more would fit in."""
    run = doubly.fit(
        tmp_path / "run", data="bars", hidden=(2,), minutes=1000, epochs=12, collect=1, valid_draws=2, threads=1,
        quiet=True, on_epoch=lambda record: True,
    )  # fmt: skip
    assert run.asked == Asked(12, True)
    budgets: list[Budget] = []
    monkeypatch.setattr("doubly.runs.fit._train", lambda *given: budgets.append(given[-3]))
    doubly.resume(tmp_path / "run")
    (budget,) = budgets
    budget.look(method(epochs=6), at(3), 1.0, 1000)
    assert budget.look(method(epochs=6), at(4), 2600.0, 1000)["epochs"] == 12


def test_a_budget_counts_from_when_the_user_began_to_wait_but_for_compiling(tmp_path, monkeypatch):
    """Of 60 seconds, 51 are for training; 20 went by before it, 12 of them on compiling."""
    budgets: list[Budget] = []
    monkeypatch.setattr("doubly.runs.fit._train", lambda *given: budgets.append(given[-3]))
    monkeypatch.setattr("doubly.runs.fit.time", SimpleNamespace(monotonic=lambda: 120.0))
    compiled = iter([3.0, 15.0])
    monkeypatch.setattr("doubly.runs.fit.compile_seconds", lambda: next(compiled))
    fit_config(Config(data="bars", hidden=(2,), minutes=1.0), tmp_path / "run", quiet=True, began=100.0)
    assert budgets[0].left == pytest.approx(60 * TRAINING - 8)


def test_kernels_that_compile_others_are_timed_once(monkeypatch):
    clock = iter([10.0, 17.0, 20.0, 21.0])
    monkeypatch.setattr("doubly.kernels.loops.time", SimpleNamespace(monotonic=lambda: next(clock)))
    heard, event = loops._Announcement(), SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=max)})
    for step in (heard.on_start, heard.on_start, heard.on_end, heard.on_end, heard.on_start, heard.on_end):
        step(event)
    assert heard.seconds == 8.0


def test_an_evaluation_for_which_no_time_is_left_is_not_begun(fitted, monkeypatch):
    monkeypatch.setattr(outcome, "ROWS", None)  # which it would look at first
    run = doubly.Run(fitted[0].path)
    run.config = dataclasses.replace(run.config, minutes=1.0)
    assert "single samples" in outcome.outcome(run, evaluate=True, until=0.0).text()
    with pytest.raises(TypeError):
        outcome.outcome(run, evaluate=True)


@pytest.mark.parametrize(("minutes", "said"), [(1.0, "plan for 1 minute: at most 9 epochs"), (0.5, "0.5 minutes")])
def test_a_plan_is_told_in_good_english(minutes, said):
    config = Config(hidden=(3,), minutes=minutes, collect_every="1epoch")
    plan = method(epochs=9, collect_every="1epoch", min_epochs=1)
    told = _plan_in_words(config, plan, 1000, Budget(minutes, 0.0, None, True))
    assert said in told
    assert "samples 1 epoch apart" in told
    over = _plan_in_words(config, plan, 1000, Budget(minutes, 99.0, None, True))
    assert over == f"the time of {said.removeprefix('plan for ').partition(':')[0]} is over: 9 epochs in all"


def test_compiling_is_not_counted_when_a_run_goes_on():
    assert spent_in([{"seconds": each} for each in (60.0, 1.0, 1.0, 1.0)]) == 6.0
    assert spent_in([]) == 0.0


def test_a_fit_within_minutes_ends_with_samples_and_is_finished(tmp_path, monkeypatch, capsys):
    """Whatever the machine: epochs are said to take a second each."""
    monkeypatch.setattr(Budget, "look", lambda self, *args, plain=Budget.look: plain(self, *args[:2], 1.0, *args[3:]))
    cli.main(
        ["fit", "--data", "bars", "--hidden", "2", "--minutes", "0.2", "--valid-draws", "2", "--threads", "1", "--out",
         str(tmp_path / "run")]
    )  # fmt: skip
    run = doubly.Run(tmp_path / "run")
    assert run.config.epochs == len(run.metrics()) == 10  # of 10.2 seconds
    assert run.metrics()[-1]["collected"] > 0
    told = capsys.readouterr()
    assert "plan for 0.2 minutes: at most " in told.err
    assert "independent columns" in told.out
    assert "nothing to do" in _said(capsys, ["resume", str(run.path)])


def _said(capsys, args: list[str]) -> str:
    cli.main(args)
    return capsys.readouterr().err


# Progress


def test_the_time_left_is_measured_late_and_bounded_by_the_plan(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("doubly.runs.watch.time", SimpleNamespace(monotonic=lambda: clock.now))
    watch = Watch(method(epochs=20), 1000, [])
    state = SimpleNamespace(epoch=0, batch=1, began=None, stale=0)
    assert "measuring the time left" in watch.line(state, None)  # type: ignore[arg-type]
    clock.now += 10
    state.batch = 6  # half a mini-batch a second, of which 194 are left
    assert "at most 6m28s left" in watch.line(state, None)  # type: ignore[arg-type]
    assert "at most 30s left" in watch.line(state, None, budget=30.0)  # type: ignore[arg-type]


def test_a_notebook_gets_one_cell(monkeypatch):
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda content, raw: shown.append(content["text/plain"]))
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(kernel=True)  # type: ignore[attr-defined]
    inside = types.ModuleType("IPython.display")
    inside.display = lambda *args, **options: handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    with progress.Progress() as bar:
        bar.show("half", share=0.5, trace=[1, 2, 3])
    assert len(shown) == 1
    assert "50%" in shown[0]
    assert shown[0].endswith("▁▅█\nhalf")


def test_a_terminal_gets_a_bar():
    panel = progress._panel("epoch 3", 0.25, [1.0, 2.0])
    from rich.console import Console

    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(panel)
    assert "25%" in captured.get()
    assert "▁█" in captured.get()
    assert "epoch 3" in captured.get()


# Python


def test_the_keyword_arguments_of_fit_are_the_fields_of_config():
    hints = typing.get_type_hints(ConfigFields)
    fields = {field.name: field for field in dataclasses.fields(Config)}
    assert hints.keys() == fields.keys()
    shown = inspect.signature(doubly.fit).parameters
    for name, field in fields.items():
        assert hints[name] == field.type or name == "data", name
        assert shown[name].default == field.default
        assert f"\n{name}: " in (doubly.fit.__doc__ or ""), name


def test_listeners_are_told_of_every_epoch_and_sample(fitted):
    run, told = fitted
    assert [record["epoch"] for record in told["epochs"]] == list(range(1, len(run.metrics()) + 1))
    assert told["samples"] == [(number, run.posterior().model.size) for number in range(1, 6)]
    assert told["tracked"][0] == (str(run.path), (4,))
    epoch, numbers = told["tracked"][-1]
    assert epoch == len(run.metrics())
    assert numbers["valid"] == run.metrics()[-1]["valid"]
    assert numbers["sampler/temperature"] == run.metrics()[-1]["sampler"]["temperature"]


def test_a_listener_may_stop_a_fit_which_goes_on_as_if_it_had_not(fitted, tmp_path):
    whole, _ = fitted
    run = doubly.fit(tmp_path / "run", quiet=True, on_epoch=lambda record: record["epoch"] == 2, **TINY)
    assert len(run.metrics()) == 2
    run = doubly.resume(run.path, quiet=True)
    assert bool((run.posterior().mean() == whole.posterior().mean()).all())


@pytest.mark.parametrize("name", TRACKERS)
def test_trackers_talk_to_their_packages(name, monkeypatch):
    """Stand-ins for the packages: what is called, and with what."""
    calls: list[tuple] = []

    class Writer:
        def __init__(self, log_dir):
            calls.append(("start", log_dir))

        def add_text(self, *args):
            calls.append(("text", *args))

        def add_scalar(self, key, value, step):
            calls.append(("log", {key: value}, step))

        def flush(self):
            pass

    log = lambda values, step: calls.append(("log", values, step))  # noqa: E731
    stand_ins: dict[str, dict[str, Any]] = {
        "torch.utils.tensorboard": {"SummaryWriter": Writer},
        "mlflow": {
            "active_run": lambda: None, "start_run": lambda run_name: calls.append(("start", run_name)),
            "log_params": lambda params: calls.append(("text", params)), "log_metrics": log,
        },
        "wandb": {
            "run": None,
            "init": lambda name, config: [calls.append(("start", name)), SimpleNamespace(log=log)][1],  # type: ignore[func-returns-value]
        },
    }  # fmt: skip
    for module, members in stand_ins.items():
        made = types.ModuleType(module)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, module, made)
    found = tracker(name)
    assert found is not None
    found.start("runs/a", {"hidden": (3,)})
    found.log(7, {"valid": -1.5})
    assert calls[0][0] == "start"
    assert calls[0][1].endswith(("runs/a", "runs-a"))
    assert calls[-1] == ("log", {"valid": -1.5}, 7)


def test_a_tracker_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'doubly\[wandb\]'"):
        tracker("wandb")


def test_reprs_are_short_and_escape_what_files_say(fitted):
    run, _ = fitted
    post = run.posterior()
    assert repr(run).startswith(f"Run({str(run.path)!r}, model=sbn-4, epochs=")
    assert repr(post).startswith("Posterior(model=SBN16-SBN4, weights=")
    assert len(repr(post)) < 120
    assert "<table>" in post._repr_html_()
    run.config = dataclasses.replace(run.config, sampler="<script>")
    assert "<script>" not in run._repr_html_()
    run.config = doubly.Run(run.path).config


def test_plots_draw_what_they_say(fitted):
    post = fitted[0].posterior(refit_passes=1)
    samples = post.plot_samples(9, seed=3)
    picture = np.asarray(samples.images[0].get_array())
    assert picture.shape == (3 * 5 - 1, 3 * 5 - 1)
    assert np.array_equal(picture[:4, :4].ravel(), post.sample(9, seed=3)[0])
    weights = np.asarray(post.plot_weights(2).images[0].get_array())
    units = post.model.unflatten(post.mean())[0]["W"].T
    assert np.allclose(weights[:4, :4].ravel(), units[units.abs().sum(1).argmax()])
    records = fitted[0].metrics()
    (line,) = post.plot_training().lines
    assert list(line.get_ydata()) == [record["valid"] for record in records]
    x = fitted[0].data().test[:3].astype(float)
    x[:, 8:] = np.nan
    axes = post.plot_completions(x, draws=2, of="mean")
    completed = np.asarray(axes.images[0].get_array())
    assert completed.shape == (3 * 5 - 1, 3 * 5 - 1)
    assert np.array_equal(completed[5:7, :4].ravel(), x[0, :8])
    given = mpl.figure.Figure().subplots()
    assert post.plot_samples(4, ax=given) is given
