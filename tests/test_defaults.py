"""What a fit does where nobody says: the estimator, the step, and a plan in steps."""

import math

import pytest

from doubly.latents import NAIS, Persistent
from doubly.runs.build import Facts, build, with_plan
from doubly.runs.config import Config
from doubly.runs.presets import preset
from doubly.samplers import SGNHT, Thermostat


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, Persistent),
        ({"model": "darn"}, Persistent),
        ({"model": "nade", "proposal": "nade"}, NAIS),  # no sweep moves these
        ({"model": "mlp:widths=4,normal", "proposal": "gaussian:widths=4"}, NAIS),
        ({"objective": "vimco"}, NAIS),  # which needs draws of the proposal alone
        ({"hidden": ()}, NAIS),
        ({"model": "nade", "proposal": "nade", "moves": "langevin"}, Persistent),  # asked for by name
        ({"estimator": "nais"}, NAIS),
    ],
)
def test_states_are_remembered_where_sweeps_move_them(settings, kind):
    method = build(Config(**{"hidden": (3,)} | settings), Facts(5, "binary", (5,)))
    assert type(method.estimator) is kind


@pytest.mark.parametrize("rows", [50, 1_197, 4_100, 50_000])
def test_the_plan_is_made_in_steps(rows):
    found = with_plan(Config(), rows)
    steps = math.ceil(rows / 100)  # in an epoch
    assert found.patience * steps >= 2_000
    assert found.patience == 10 or (found.patience - 1) * steps < 2_000
    assert found.epochs * steps >= 40_000
    apart = int(found.collect_every.rstrip("epochst"))
    apart = apart if found.collect_every.endswith("steps") else apart * steps
    assert 50 < apart <= 100
    given = with_plan(Config(patience=7, epochs=20, collect=5, collect_every="3"), rows)
    assert (given.patience, given.epochs, given.collect_every) == (7, 20, "3")


def test_few_epochs_leave_room_for_all_samples():
    found = with_plan(Config(epochs=20, collect=5), 700)  # 7 steps in an epoch
    assert found.collect_every == "2epochs"


def test_the_paper_s_settings_stand_in_its_presets():
    default, paper = (build(each, Facts(5, "binary", (5,))) for each in (Config(), preset("dsgnht-nais")))
    assert (type(default.sampler), default.step, default.theta_steps) == (Thermostat, "auto", 1)
    assert (type(paper.sampler), paper.step, paper.theta_steps) == (SGNHT, 0.005, 10)
    assert (type(paper.estimator), paper.patience, paper.epochs, paper.phi_step) == (NAIS, 10, 1000, 3e-4)
