"""The automatic step measures what it should, is held once samples are collected, and resumes bit for bit."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from doubly import UserError
from doubly.core.codec import to_tensors
from doubly.data import load
from doubly.runs.build import build
from doubly.runs.config import Config, from_dict
from doubly.samplers import PSGLD, SMSUBU, Thermostat
from doubly.training import tuning
from doubly.training.protocol import fit
from doubly.training.state import State, decode, init
from doubly.training.step import batches
from doubly.training.tuning import Tuned, untuned
from test_training import method, rows


def test_the_step_is_the_share_of_the_mean_squared_gradient():
    """Of normal gradients of standard deviations from 1 to 1000: a mean of 1000 squares errs by sqrt(2 / 1000). To each
    mean, a thousandth of the mean of all is added."""
    rng, sd = torch.Generator().manual_seed(0), torch.logspace(0, 3, 200)
    tuned, theta = untuned(torch.zeros(200)), torch.full((200,), 100.0)
    for t in range(1000):
        assert (tuned.eta() == 0).all() == (t < tuning.FIRST)
        tuned = tuned.after(theta, sd * torch.randn(200, generator=rng))
    ratio = tuned.eta() * (sd**2 + (sd**2).mean() / tuning.MEMORY) / tuning.SHARE
    assert abs(ratio.mean() - 1) < 5 * math.sqrt(2 / 1000 / 200) + 2 / 1000  # E[1 / mean] is 2 / n above
    assert (abs(ratio - 1) < 6 * math.sqrt(2 / 1000)).all()


def test_what_is_measured_is_forgotten_in_so_many_steps():
    """However long the burn-in was: a step counts for 1 / MEMORY of the running means."""
    one = torch.ones(2)
    now = untuned(one)._replace(square=one, size=one, t=10 * tuning.MEMORY).after(2 * one, 3 * one)
    torch.testing.assert_close(now.square, one * (1 + 8 / tuning.MEMORY))
    torch.testing.assert_close(now.size, one * (1 + 3 / tuning.MEMORY))


def test_a_weight_without_a_gradient_does_not_run_away():
    """It moves by no more than a share of its own size, and of that of all weights where it stands at 0."""
    tuned = untuned(torch.zeros(3))
    for _ in range(20):
        tuned = tuned.after(torch.tensor([0.0, 0.3, 0.4]), torch.tensor([0.0, 1e-9, 100.0]))
    least = tuning.START * 0.25 / 3
    unseen = 1e4 / 3 / tuning.MEMORY
    expected = [tuning.REACH * least, tuning.REACH * (0.09 + least), tuning.SHARE / (1e4 + unseen)]
    torch.testing.assert_close(tuned.eta(), torch.tensor(expected))


def test_a_gradient_that_is_hardly_ever_there_is_no_blow_when_it_comes():
    """A pixel that is on in one row of 10,000: in most spans of 1,000 steps its gradient is 0, and once it is 500, like
    that of any row. Whatever was seen, the kick sqrt(eta) 500 / 2 of each half step stays below that of a weight that
    is kicked in every step, times sqrt(MEMORY)."""
    tuned = untuned(torch.zeros(100))
    for _ in range(2 * tuning.MEMORY):
        grad = torch.full((100,), 500.0)
        grad[0] = 0
        tuned = tuned.after(torch.full((100,), 100.0), grad)
    usual, seldom = tuned.eta()[1], tuned.eta()[0]
    assert seldom > 100 * usual  # it may move
    assert seldom.sqrt() * 500 / 2 <= 1.01 * math.sqrt(tuning.MEMORY) * usual.sqrt() * 500 / 2


def test_scales_are_evened_out_and_the_law_is_right_once_they_are_held():
    """A Gaussian whose precisions span a factor of 10⁴ with noise as of mini-batches: after tuning, each weight has
    its variance, and all have forgotten where they started. What is added for gradients that were not seen takes half
    of the step of the smallest precision, which is a thousandth of their mean.

    With noise of variance 99 k, eta k is SHARE / 100: a weight relaxes by eta k / alpha a step, alpha = a + b with
    b < SHARE / 2. Six relaxation times burn in; the step biases the variance by eta k / 4 (`split_law` in
    test_sampler_laws.py). SHARE / 100 < REACH: no weight is held back by its size.
    """
    n, sampler, rng = 4000, Thermostat(), torch.Generator().manual_seed(2)
    k = torch.logspace(0, 4, n)
    relax = round((0.1 + tuning.SHARE / 2) / (tuning.SHARE / 100))
    tuned, state = untuned(torch.zeros(n)), sampler.init(3 / k.sqrt(), rng)
    total, number = torch.zeros(n), 30 * relax
    for step in range(600 + 12 * relax + number):
        eta = tuned.eta()
        state = sampler.ask(state, eta, rng)
        grad = -k * state.theta + math.sqrt(99) * k.sqrt() * torch.randn(n, generator=rng)
        if step < 600 + 6 * relax:
            tuned = tuned.after(state.theta, grad)
        state = sampler.tell(state, grad, eta, rng)
        if step >= 600 + 12 * relax:
            total += k * state.theta**2 / number
    assert tuned.t == 600 + 6 * relax
    share = tuned.eta() * k / (tuning.SHARE / 100)
    assert (share * (1 + k.mean() / (tuning.MEMORY * k)) > 0.5).all()
    for group in torch.arange(n).tensor_split(4):
        mean, stderr = total[group].mean(), total[group].std() / math.sqrt(n / 4)
        slack = tuning.SHARE / 400 + (0.1 + tuning.SHARE / 2) / 100  # the last as in test_thermostat.py
        assert abs(mean - 1) < 5 * stderr + slack


def tuned_method(**fields: Any) -> Any:
    chosen: dict[str, Any] = {"sampler": Thermostat(), "step": "auto", "epochs": 6, "collect": 2, "batch": 7}
    return method(**(chosen | fields))


def reread(chosen: Any, state: State) -> State:
    """Written to tensors and numbers, and read again."""
    return decode(chosen, to_tensors(state), len(state.order))


def same(one: Any, other: Any) -> bool:
    first, second = to_tensors(one), to_tensors(other)
    return first.numbers == second.numbers and all(torch.equal(x, second.tensors[n]) for n, x in first.tensors.items())


@pytest.mark.parametrize("sampler", [Thermostat(), SMSUBU()], ids=["thermostat", "sms-ubu"])
@pytest.mark.parametrize("warmup", [0, 1])
def test_a_restart_while_tuning_gives_the_same_bits(sampler: Any, warmup: int):
    """From any mini-batch of the first three epochs, the end is the same: also on the way back of sms-ubu."""
    chosen = tuned_method(sampler=sampler, warmup=warmup, epochs=5)
    train, valid = rows(30), rows(5, seed=1)
    # encoded at once, for the generator of a state is advanced in place
    saved, last = [], init(chosen, train)
    for state, _ in fit(chosen, train, valid, last):
        if state.epoch < 3:
            saved.append(to_tensors(state))
        last = state
    assert last.collected == 2
    assert last.tuned is not None
    for encoded in saved[::4]:
        *_, (again, _) = fit(chosen, train, valid, decode(chosen, encoded, len(train)))
        assert same(again, last)


def test_a_checkpoint_from_before_a_field_of_the_sampler_is_read():
    """As of a thermostat that knew nothing of being held."""
    chosen = tuned_method()
    encoded = to_tensors(init(chosen, rows(30)))
    del encoded.numbers["theta.held"]
    assert decode(chosen, encoded, 30).theta.held == 0


def test_steps_are_held_from_the_first_sample_on():
    chosen = tuned_method()
    seen: dict[int, list[Tuned]] = {}
    for state, _ in fit(chosen, rows(30), rows(5), init(chosen, rows(30))):
        assert state.tuned is not None
        seen.setdefault(-1 if state.began is None else state.began, []).append(state.tuned)
    assert [one.t for one in seen[-1][:3]] == [1, 2, 3]
    (began,) = [key for key in seen if key >= 0]
    assert all(torch.equal(one.square, seen[began][0].square) for one in seen[began])
    assert len({one.t for one in seen[began]}) == 1


def test_a_chain_whose_burn_in_is_shorter_than_the_first_measurements_moves_all_the_same():
    """Three steps an epoch, samples from the second epoch on: measuring goes on to the tenth step, and is held then."""
    chosen = tuned_method(epochs=7, collect=6, min_epochs=1, patience=1)
    states = [state for state, _ in fit(chosen, rows(30), rows(5), init(chosen, rows(30)))]
    assert 0 < sum(state.began is None for state in states) < tuning.FIRST
    assert states[-1].tuned is not None
    assert states[-1].tuned.t == tuning.FIRST
    assert not torch.equal(states[-1].theta.theta, states[0].theta.theta)
    assert not torch.equal(states[-1].theta.theta, states[-5].theta.theta)


def test_samplers_are_held_from_the_first_sample_on():
    """psgld's preconditioner stays as it is once samples are collected, and moves before."""
    chosen = method(sampler=PSGLD(), step=1e-3, epochs=5, collect=2)
    seen: dict[bool, list[Any]] = {False: [], True: []}
    for state, _ in fit(chosen, rows(30), rows(5), init(chosen, rows(30))):
        seen[state.began is not None].append(state.theta)
    assert [one.held for one in seen[False]] == [0] * len(seen[False])
    assert not torch.equal(seen[False][0].v, seen[False][1].v)
    assert len(seen[True]) > 3
    assert all(one.held == 1 and torch.equal(one.v, seen[True][0].v) for one in seen[True])


def test_the_step_is_recorded():
    """A number as it was set and scheduled; of an automatic one, n_data times the median of the weights."""
    chosen = tuned_method()
    for state, record in fit(chosen, rows(30), rows(5), init(chosen, rows(30))):
        before = state.tuned
        if record:
            assert before is not None
            assert record.step == pytest.approx(30 * before.eta().median().item())
    plain = method(epochs=1, collect=0, step=0.25)
    assert [record.step for _, record in fit(plain, rows(30), rows(5), init(plain, rows(30))) if record] == [0.25]


def test_auto_is_a_setting_like_others():
    config = from_dict({"step": "auto", "sampler": "thermostat"})
    assert from_dict(dataclasses.asdict(config)) == config
    assert build(config, load("bars")).step == "auto"
    for wrong in ("fast", None, [0.1]):
        with pytest.raises(UserError, match="step must be a number, or auto, got"):
            Config(step=wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="step must be positive and finite, got 0"):
        Config(step=0)
    assert build(Config(step="auto", sampler="sgnht"), load("bars")).step == 0.03, "which cannot measure one"
    assert build(Config(step="auto", sampler="adam"), load("bars")).step == 0.001


def indices(chosen: Any, train: Tensor) -> list[list[Tensor]]:
    """The mini-batches of each epoch, in the order in which they were used."""
    found: list[list[Tensor]] = []
    estimator = chosen.estimator

    class Spy(type(estimator)):  # type: ignore[misc]
        def __call__(self, batch, wanted="both"):
            if wanted != "phi":
                found[-1].append(batch.row_index)
            return super().__call__(batch, wanted)

    spied = dataclasses.replace(chosen, estimator=Spy())
    found.append([])
    for _, record in fit(spied, train, rows(5), init(spied, train)):
        if record:
            found.append([])
    return found[:-1]


def test_every_other_epoch_goes_back_where_the_sampler_asks_for_it():
    """Forward, the same mini-batches backward, then a new partition; other samplers shuffle every epoch."""
    train = rows(25)
    there, back, again, last = indices(method(sampler=SMSUBU(), epochs=4, collect=0, batch=10), train)
    assert [len(index) for index in there] == [9, 8, 8]
    assert all(torch.equal(one, other) for one, other in zip(there, back[::-1], strict=True))
    assert all(torch.equal(one, other) for one, other in zip(again, last[::-1], strict=True))
    assert not torch.equal(torch.cat(there), torch.cat(again))
    assert torch.equal(torch.cat(again).sort().values, torch.arange(25))
    one, two = indices(method(epochs=2, collect=0, batch=10), train)
    assert not any(torch.equal(a, b) for a in one for b in two)
    assert len(batches(torch.arange(25), 10)) == 3


def test_symmetric_passes_need_one_step_on_a_mini_batch():
    with pytest.raises(UserError, match="the sampler sms-ubu takes one step on each mini-batch"):
        build(Config(sampler="sms-ubu", theta_steps=10), load("bars"))
