"""Every sampler with every estimator samples the reference posteriors of three tiny models (references.py).

A run has 32 independent chains on the same rows (stacked.py). The mean of a function over a chain is compared with that
of exact Hamiltonian Monte Carlo. The error of the mean of 32 independent numbers is known without autocorrelations:
Student-t with 31 degrees of freedom, at significance 1e-4, two-sided; the error of the reference is added in squares.
To this comes a budget, in posterior standard deviations, for what is known not to be exact (BUDGET).
"""

import dataclasses
import json
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from doubly import ESTIMATORS, SAMPLERS, Chain
from doubly.runs.build import Facts, build
from doubly.runs.config import Config
from doubly.samplers.priors import Flat, Prior
from doubly.training.method import Method
from doubly.training.state import init
from doubly.training.step import step
from references import EVERY_X, FILE, FUNCTIONS, MODELS, ROWS, VISIBLE, Model, rows_of
from stacked import join, split, stack, stacked

NOISY = [name for name in SAMPLERS if SAMPLERS[name].noisy]
COPIES = 32


class Setting(NamedTuple):
    """How a sampler is run; eta = step / 30."""

    step: float = 0.3
    friction: float = 0.2
    batch: int = 15
    steps: int = 250


# without a thermostat the noise of mini-batches would heat the chain
SETTINGS = {
    "sgld": Setting(0.15, batch=30, steps=400),
    "psgld": Setting(0.03, batch=30, steps=400),
    "sghmc": Setting(0.3, friction=0.2, batch=30),
}


class Found(NamedTuple):
    """For each function: by how many posterior standard deviations the mean is above the reference, and its error."""

    offset: np.ndarray
    stderr: np.ndarray


@pytest.fixture(scope="module")
def references() -> dict:
    return json.loads(FILE.read_text())


def method(model: Model, estimator: str, sampler: str, chosen: Setting) -> Method:
    config = Config(
        model=model.names,
        proposal=model.proposal,
        hidden=model.hidden,
        prior="normal:scale=1",
        sampler=sampler,
        step=chosen.step,
        friction=chosen.friction,
        estimator=estimator,
        phi_step=0.02,
        theta_steps=1,
        batch=chosen.batch,
    )
    return build(config, Facts(VISIBLE, "binary", (VISIBLE,)))


def compared(
    name: str, estimator: str, sampler: str, reference: dict, setting: Setting | None = None, prior: Prior | None = None
) -> Found:
    """The means over chains that start from the prior, against the reference."""
    model, x = MODELS[name], rows_of(reference)
    chosen = setting or SETTINGS.get(sampler, Setting())
    one = method(model, estimator, sampler, chosen)
    # a unit that the first, ignorant proposals of nais have switched off takes long to come back
    burn_in = 600 if estimator.startswith("nais") else 200
    way = stacked(one if prior is None else dataclasses.replace(one, prior=prior), COPIES)
    rows = x.repeat(COPIES, 1)
    state = init(way, rows)
    state = state._replace(theta=way.sampler.init(torch.randn(way.model.size, generator=state.rng), state.rng))
    found: list[Tensor] = []
    for t in range(burn_in + chosen.steps):
        if t % (ROWS // chosen.batch) == 0:
            order = torch.rand(COPIES, ROWS, generator=state.rng).argsort(1) + ROWS * torch.arange(COPIES)[:, None]
            index = [part.reshape(-1) for part in order.split(chosen.batch, 1)]
        part = index[t % len(index)]
        state = step(way, state._replace(began=None if t < burn_in else 0), rows[part], part, len(rows))
        if t >= burn_in and t % 5 == 0:
            found.append(model.functions(split(way.model, state.theta.theta).double(), x))
    means = torch.stack(found).mean(0).numpy()  # (chains, functions)
    known = {key: np.array([reference[function][key] for function in FUNCTIONS]) for key in ("mean", "sd", "stderr")}
    error = np.hypot(means.std(0, ddof=1) / math.sqrt(COPIES), known["stderr"])
    return Found((means.mean(0) - known["mean"]) / known["sd"], error / known["sd"])


BUDGET = {"nais:draws=5": 0.3, "nais:draws=20": 0.15}
"""What nais may be off, by its draws: its gradient is biased by O(1 / S). Measured on the rows of sbn by 32 chains of
1,200 steps after 500 of burn-in: |theta|² is off by -0.22 +- 0.03 at S = 5 and by -0.09 +- 0.02 at S = 20, the others
by less than 0.04; docs/reports/calibration.md has it over many data sets."""
STEP = 0.1
"""What any sampler may be off by the size of its step. It changes a variance 1 / lambda by eta lambda / 4 relatively,
sgld's by eta lambda / 2: with lambda, the stiffest precision, 1 + 30 / 4, by 2 % at eta = 0.01 and at sgld's 0.005. A
variance that is 2 % too large in all 14 directions raises |theta|² by 0.02 * 14 / 2 = 0.14, of 5.2, and lowers log p(X)
by at most as much, of 1.7: 0.1 standard deviations."""


def assert_near(found: Found, budget: float) -> None:
    bound = stats.t.isf(0.5e-4, COPIES - 1) * found.stderr + budget
    assert (abs(found.offset) < bound).all(), (found.offset, bound)


def test_the_laws_written_out_are_those_of_the_chains():
    """All of log p(x | theta) that the references rest on, against the library's layers, in double precision."""
    for model in MODELS.values():
        chain = Chain.build(model.names, data=VISIBLE, hidden=model.hidden)
        assert chain.size == model.size
        thetas = torch.randn(5, chain.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        z, width = torch.linspace(-7, 7, 701, dtype=torch.float64)[:, None], math.log(0.02)
        if chain.layers[-1].kind == "binary":
            z, width = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * model.hidden[0]), 0.0
            z = z.view(-1, model.hidden[0])
        for theta, law in zip(thetas, model.law(thetas), strict=True):
            joint = chain.log_prob(theta, (EVERY_X, z[:, None].expand(-1, len(EVERY_X), -1)))
            # the quadrature's error, exp(-2 pi d / h), is 5e-6 at |W0| = 4
            torch.testing.assert_close(joint.logsumexp(0) + width, law, rtol=0, atol=5e-6)
            bias = chain.unflatten(theta)[0].get("b", chain.unflatten(theta)[0].get("b_logits"))
            torch.testing.assert_close(bias, theta[model.bias])


@pytest.mark.parametrize("name", MODELS)
def test_the_references_were_made_with_care(name, references):
    """The chains accepted often, and the errors are small beside what tests can see."""
    assert references[name]["accepted"] > 0.8
    assert len(references[name]["rows"]) == ROWS
    for function in FUNCTIONS:
        found = references[name][function]
        assert found["stderr"] < 0.005 * found["sd"]
        assert sorted(found["quantiles"]) == found["quantiles"]


@pytest.mark.parametrize("name", MODELS)
def test_stacked_chains_are_single_ones(name):
    """Densities and their gradients of copies are those of the chain, with the weights and rows of each copy."""
    model, rng = MODELS[name], torch.Generator().manual_seed(1)
    for chain, given in (
        (Chain.build(model.names, data=VISIBLE, hidden=model.hidden), None),
        (Chain.build_proposal(model.proposal, data=VISIBLE, hidden=model.hidden), EVERY_X.float()[:7]),
    ):
        copies = stack(chain, 3)
        thetas = torch.randn(3, chain.size, generator=rng)
        theta = join(copies, thetas)
        assert torch.equal(split(copies, theta), thetas)
        if given is None:
            values = chain.sample(thetas[0], 21, rng)
            log_prob = copies.log_prob(theta.requires_grad_(), values)
        else:
            values, log_prob = copies.draw(theta.requires_grad_(), given.repeat(3, 1), rng, 4)
        (grad,) = torch.autograd.grad(log_prob.sum(), theta)
        for copy, (own, own_grad) in enumerate(zip(thetas, split(copies, grad), strict=True)):
            part = tuple(value.unflatten(-2, (3, -1)).select(-3, copy) for value in values)
            own.requires_grad_()
            single = chain.log_prob(own, part, given)
            torch.testing.assert_close(log_prob.unflatten(-1, (3, -1)).select(-2, copy), single)
            torch.testing.assert_close(torch.autograd.grad(single.sum(), own)[0], own_grad, rtol=1e-4, atol=1e-5)


ESTIMATED = {
    "sbn": ("nais:draws=5", "nais:draws=20", "gibbs", "persistent"),
    "nade": ("nais:draws=5", "nais:draws=20", "persistent"),
    "vae": ("nais:draws=5", "nais:draws=20", "persistent"),
}


def test_every_estimator_is_here():
    """One that is added has to be listed, with the models that it serves."""
    assert {spec.partition(":")[0] for specs in ESTIMATED.values() for spec in specs} == set(ESTIMATORS)


@pytest.mark.parametrize(("name", "estimator"), [(name, spec) for name in ESTIMATED for spec in ESTIMATED[name]])
def test_every_estimator_samples_the_reference(name, estimator, references):
    assert_near(compared(name, estimator, "sgnht-split", references[name]), STEP + BUDGET.get(estimator, 0))


@pytest.mark.parametrize("sampler", [name for name in NOISY if name != "sgnht-split"])
@pytest.mark.parametrize("estimator", ["nais:draws=20", "gibbs", "persistent"])
def test_every_sampler_with_every_estimator_samples_the_reference(sampler, estimator, references):
    assert_near(compared("sbn", estimator, sampler, references["sbn"]), STEP + BUDGET.get(estimator, 0))


@pytest.mark.parametrize("bug", ["noise 10 % too large", "no prior"])
def test_bugs_are_seen(bug, references):
    """The bounds are narrow enough for noise 1.1 times as large, which is a temperature of 1.21, and for no prior."""
    sampler, prior = ("sghmc:temperature=1.21", None) if bug.startswith("noise") else ("sghmc", Flat())
    found = compared("sbn", "persistent", sampler, references["sbn"], SETTINGS["sghmc"]._replace(steps=600), prior)
    with pytest.raises(AssertionError):
        assert_near(found, STEP)
