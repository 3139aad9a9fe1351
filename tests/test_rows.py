"""All rows of the tables: the plan, its costs, working through it with kills, the page's columns, and seeds."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from doubly import cli
from doubly.core.errors import UserError
from doubly.paper import costs, queue, tables
from doubly.paper.plan import plan
from doubly.paper.recipes import OWN, _read, recipes
from doubly.paper.reproduce import reproduce
from doubly.paper.result import RowResult
from doubly.paper.tasks import Task, tasks

RECIPES = """
title = "Table 0: bars"

[all]
data = "bars"
hidden = [6]
batch = 300
theta_steps = 1
epochs = 60
collect = 4
burn_in = 50
alike = 20
checkpoint_epochs = 20
keep = 2

[score]
draws = 20
refit = 1

[recommended]
epochs = 12
min_epochs = 5
patience = 5
collect_every = "1epoch"
burn_in = 8

[rows.bars-sbn]
label = "SBN 6"
published = -5.6
preset = "dsgnht-nais"
seeds = 2

[rows.bars-rws]
label = "RWS, SBN 6"
published = -5.7
bound = true
preset = "rws"
score.of = "last"

[rows.bars-nade]
label = "NADE alone"
published = -5.5
preset = "dsgnht-nais"
model = "nade"
hidden = []
"""


@pytest.fixture
def small_tables(tmp_path, monkeypatch) -> Path:
    """Tables of three small rows, in place of the paper's; costs take little time to measure."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "table0.toml").write_text(RECIPES)
    monkeypatch.setenv(OWN, str(folder))
    monkeypatch.setattr(costs, "SECONDS", 0.01)
    return tmp_path


def where(folder: Path) -> list[str]:
    return [part for name in ("results", "runs", "page") for part in (f"--{name}", str(folder / name))]


def a_result(task: Task, value: float, **fields) -> RowResult:
    """A whole result of a task, as if it had been made."""
    recipe = task.recipe()
    weights = {"n": 9, "estimator": "draws", "work": 20, "refit": 1, "members": 2, "last": -8.0, "mean": -7.0,
               "ensemble": -6.5, "mean_over_last": [1.0, 0.1], "ensemble_over_mean": [0.5, 0.1]}  # fmt: skip
    annealed = {"temperatures": 20, "chains": 1, "start": "proposal", "n": 9, "log_likelihood": value + 0.5,
                "stderr": 0.1, "gap_on_simulated_rows": 0.25, "gap_stderr": None}  # fmt: skip
    return RowResult.from_json({
        "name": task.name, "table": recipe.table, "label": recipe.label, "preset": recipe.preset,
        "published": recipe.published, "log_likelihood": value, "stderr": 0.1, "draw_error": 0.1,
        "of": recipe.evaluation.of, "draws": recipe.evaluation.draws, "draws_of_the_recipe": recipe.evaluation.draws,
        "refit": recipe.refit, "refine": 0, "ess": 3.0, "unreliable_share": 0.5, "samples": 4,
        "samples_of_the_paper": 4, "cut": False, "epochs": 40, "steps": 280, "valid_last": -7.0, "hours": 1.0,
        "training_hours": 0.5, "cores": 1, "threads": 1, "seed": task.seed, "versions": {}, "data_sha256": "0",
        "config": vars(recipe.config), "commit": "abc", "by_draws": value, "temperature": 1.0, "burn_in": 36,
        "weights": weights, "annealed": annealed if recipe.can_anneal else None, **fields,
    })  # fmt: skip


def test_every_row_has_its_ways_and_seeds():
    """The method's rows are made in both ways, those of rivals in their own."""
    found = tasks()
    assert len({task.title for task in found}) == len(found)
    assert Task("mnist-sbn-200", "recommended", 2) in found
    assert Task("mnist-rws-sbn-200") in found
    assert Task("mnist-rws-sbn-200", "recommended") not in found
    assert sum(task.seed == 0 and task.way == "paper" for task in found) == len(recipes()) == 38


def test_the_plan_has_what_is_missing_the_cheapest_first(small_tables, capsys):
    results = small_tables / "results"
    a_result(Task("bars-rws"), -7.0).save(results / "bars-rws.json")
    cli.main(["reproduce", "--plan", *where(small_tables)])
    out = capsys.readouterr().out
    assert "6 to make" in out
    assert "bars-rws" not in out
    found = plan(results)
    assert [each.task.seed for each in found.todo] == [0, 0, 0, 0, 1, 1], "every row once before further seeds"
    for seed in (0, 1):
        left = [each.left for each in found.todo if each.task.seed == seed]
        assert left == sorted(left)
    sbn = next(each for each in found.todo if each.task == Task("bars-sbn"))
    assert sbn.cost is not None
    assert sbn.seconds == pytest.approx((50 + 4) * (7 * sbn.cost.step + sbn.cost.validation) + sbn.cost.scoring)
    assert sbn.column == "the paper's way"
    page = (small_tables / "page").read_text()
    assert f"| `bars-sbn` | the paper's way | no result | {1 / sbn.cost.step:.1f} | 378 |" in page
    # another seed costs the same, and what was measured is not measured again
    again = next(each for each in found.todo if each.task == Task("bars-sbn", seed=1))
    assert again.cost == sbn.cost
    assert len((results / costs.FILE).read_text().splitlines()) == 4
    cli.main(["reproduce", "--plan", "--json", *where(small_tables)])
    assert json.loads(capsys.readouterr().out) == found.to_json()


def test_results_tell_how_long_a_burn_in_is_and_what_is_not_whole(small_tables):
    results = small_tables / "results"
    whole = a_result(Task("bars-sbn"), -7.0)
    whole.save(results / "bars-sbn.json")
    lacking = {task: each for each in plan(results, measure=False).todo for task in [each.task]}
    assert Task("bars-sbn") not in lacking
    assert lacking[Task("bars-sbn", seed=1)].burn_in == 36, "as the other seed's"
    assert lacking[Task("bars-sbn", "recommended")].burn_in == 8, "as the recipe guesses"
    for fields, lacks in (
        ({"cut": True}, "cut"),
        ({"weights": None}, "last, mean and ensemble not compared"),
        ({"annealed": None}, "not annealed alike"),
        ({"config": dataclasses.replace(whole.config, step=0.5)}, "made with other settings"),
        ({"draws": 19}, "cut"),
    ):
        dataclasses.replace(whole, **fields).save(results / "bars-sbn.json")
        (found,) = [each for each in plan(results, measure=False).todo if each.task == Task("bars-sbn")]
        assert found.lacks == lacks


def test_what_takes_too_long_is_said_with_its_cost(small_tables, capsys):
    results = small_tables / "results"
    plan(results)
    found = {cost.row: cost for cost in costs.read_costs(results).values()}
    slow = dataclasses.replace(found["bars-sbn"], scoring=13 * 3600.0)
    lines = [json.dumps(cost.to_json()) for cost in (found | {"bars-sbn": slow}).values()]
    (results / costs.FILE).write_text("\n".join(lines) + "\n")
    planned = plan(results)
    assert [each.task.title for each in planned.too_long] == ["bars-sbn", "bars-sbn-seed-1"]
    page = tables.page(results)
    assert "| SBN 6 | `bars-sbn` | -5.6 | not made: would take 13h00m of one core |" in page
    assert "because they would take more than 12h00m each" in page
    longer = plan(results, longest=14 * 3600.0)
    assert not longer.too_long


def test_a_recipe_that_has_changed_is_measured_anew(small_tables, monkeypatch):
    results, task = small_tables / "results", Task("bars-nade")
    first = costs.cost_of(task, results)
    assert costs.cost_of(task, results) == first
    other = small_tables / "other"
    other.mkdir()
    (other / "table0.toml").write_text(RECIPES.replace('model = "nade"', 'model = "nade:width=9"'))
    monkeypatch.setenv(OWN, str(other))
    assert costs.known_cost(task, costs.read_costs(results)) is None
    assert costs.cost_of(task, results).settings != first.settings
    (results / costs.FILE).write_text("nothing\n")
    with pytest.raises(UserError, match="is no list of costs"):
        costs.read_costs(results)


def test_the_page_keeps_the_columns_apart_and_has_seeds(small_tables):
    results = small_tables / "results"
    for task, value in ((Task("bars-sbn"), -7.0), (Task("bars-sbn", seed=1), -9.0), (Task("bars-rws"), -8.0),
                        (Task("bars-sbn", "recommended"), -6.0)):  # fmt: skip
        a_result(task, value).save(results / f"{task.title}.json")
    page = tables.page(results)
    paper, rest = page.split("### Recommended")
    recommended, alike = rest.split("### Annealed alike, 20 temperatures")
    assert (
        "| `bars-sbn` | -5.6 | -8.00 ± 1.41 (sd of 2 seeds) | -2.40 | 20 draws, k̂ > 0.7: 50% | 4 | 1.00 1.00 |" in paper
    )
    assert "| `bars-rws` | (-5.7) | -8.00 ± 0.10 |  | 20 draws, k̂ > 0.7: 50% | last |" in paper, (
        "a bound: no difference"
    )
    assert "-8.00 / -7.00 / -6.50 (+1.00 ± 0.10, +0.50 ± 0.10)" in paper
    assert "| `bars-sbn` | -5.6 | -6.00 ± 0.10 | -0.40 |" in recommended
    assert "over published (another estimate)" in recommended
    assert "bars-rws" not in recommended
    assert "| `bars-sbn` | -7.50 ± 1.41 (sd of 2 seeds) (0.25) | -5.50 ± 0.10 (0.25) |" in alike
    assert "| `bars-rws` | -7.50 ± 0.10 (0.25) | – |" in alike
    assert "`bars-nade`" not in alike.split("##")[0]


def _children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def _is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def test_all_rows_are_made_through_a_kill(small_tables):
    """Kill the command with -9 while rows are under way: their processes end by themselves, and the next call goes on
    to results that are those of a row that was never stopped."""
    results, runs = small_tables / "results", small_tables / "runs"
    rivals = RECIPES[: RECIPES.index("[rows.bars-sbn]")] + RECIPES[RECIPES.index("[rows.bars-rws]") :]
    rivals = rivals[: rivals.index("[rows.bars-nade]")].replace("epochs = 60", "epochs = 80")
    (small_tables / "recipes" / "table0.toml").write_text(rivals)
    _read.cache_clear()
    assert [each.task.title for each in plan(results).todo] == ["bars-rws"]
    command = [sys.executable, "-m", "doubly", "reproduce", "--all", *where(small_tables)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    under_way = runs / "bars-rws" / "metrics.jsonl"
    while not under_way.exists() or len(under_way.read_bytes().splitlines()) < 3:
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.02)
    rows = _children(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    while any(_is_alive(pid) for pid in rows):
        time.sleep(0.02)
    assert not (results / "bars-rws.json").exists(), "it was under way"
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1 rows made" in second.stdout
    assert "0 are still missing" in second.stdout
    assert plan(results, measure=False).todo == ()
    alone = reproduce(Task("bars-rws"), small_tables / "alone", small_tables / "runs-alone", threads=1, quiet=True)
    made = RowResult.read(results / "bars-rws.json")
    assert (made.log_likelihood, made.epochs, made.weights) == (alone.log_likelihood, alone.epochs, alone.weights)
    assert f"| {made.value()} |" in (small_tables / "page").read_text()


def test_a_budget_stops_rows_which_go_on_another_time(small_tables, monkeypatch):
    """With no time at all nothing is started; rows under way would be told to stop."""
    results = small_tables / "results"
    plan(results)
    said: list[str] = []
    found = queue.work(results, small_tables / "runs", budget=0.0, tell=said.append)
    assert (found.made, found.stopped, found.left) == ((), (), 7)
    assert found.text().startswith("0 rows made")
    with pytest.raises(UserError, match="rows_at_once must be at least 1"):
        queue.work(results, small_tables / "runs", at_once=0)


def test_only_one_thing_is_asked_for_at_a_time(small_tables, capsys):
    for wrong in (["bars-sbn", "--all"], ["--all", "--plan"], ["--list", "--plan"]):
        with pytest.raises(SystemExit) as error:
            cli.main(["reproduce", *wrong, *where(small_tables)])
        assert error.value.code == 2
        assert "more than one was given" in capsys.readouterr().err
