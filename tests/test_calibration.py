"""The whole chain of inference is calibrated: a run of 3,000 replicates for every sampler, in one vector.

Simulation-based calibration (Talts et al. 2018): weights from the prior, data from the model, samples of the posterior;
the rank of the true weight among the samples is uniform. In a model without latents every column has a weight of its
own, and the posterior is independent over the columns: each of them is a replicate. Everything from the settings to the
step is as in a run, with mini-batches. `make calibrate` does the same with latents (docs/reports/calibration.md).

With 3,000 ranks in 16 bins a posterior standard deviation that is 10 % too large is seen (the last test).
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from doubly import SAMPLERS
from doubly.runs.build import Facts, build
from doubly.runs.config import Config
from doubly.training.state import init
from doubly.training.step import batches, step

COLUMNS, ROWS, DRAWS, BINS = 3000, 20, 15, 16
NOISY = [name for name in SAMPLERS if SAMPLERS[name].noisy]


class Setting(NamedTuple):
    """How a sampler is run.

    The posterior of a weight has a precision lambda of 1 + 20 p (1 - p), from 1 to 6. With eta = step / 20, Euler's
    steps change its variance by eta lambda / 2 relatively, splittings by eta lambda / 4, a friction of 0.05 the paper's
    by 2.5 %, and a thermostat takes up the noise of half of the rows: 3 % of variance at most, 1.5 % of the standard
    deviation. Such ranks have a chi-square of 15 degrees that is larger by 3000 * 2 * 0.015², or 1.4, in the mean.
    Ranked samples are 100 steps apart: 7 or 10 units of the time in which a momentum relaxes, of 1 / (eta lambda) = 100
    steps at most for sgld.
    """

    step: float = 0.1
    friction: float = 0.05
    thin: int = 100
    batch: int = 10


# without a thermostat the noise of mini-batches would heat the chain
SETTINGS = {
    "sgld": Setting(0.2, batch=20),
    "psgld": Setting(0.05, batch=20),
    "sghmc": Setting(0.1, batch=20),
}


def ranks(name: str, prior: str = "normal:scale=1") -> np.ndarray:
    """Of the true weight of each column among the samples, of its size, and of the column's likelihood: (3, columns).

    A prior that was forgotten makes weights larger on both sides of 0, which the ranks of the weights alone hardly see.
    Data that were forgotten leave draws of the prior, among which the truth has uniform ranks; its likelihood has not.
    """
    chosen = SETTINGS.get(name.partition(":")[0], Setting())
    rng = torch.Generator().manual_seed(7)
    truth = torch.randn(COLUMNS, generator=rng)
    x = torch.bernoulli(torch.sigmoid(truth).expand(ROWS, -1), generator=rng)
    method = build(
        Config(
            model="sbn",
            hidden=(),
            prior=prior,
            sampler=name,
            step=chosen.step,
            friction=chosen.friction,
            batch=chosen.batch,
            theta_steps=1,
        ),
        Facts(COLUMNS, "binary", (COLUMNS,)),
    )

    def looks(theta: torch.Tensor) -> torch.Tensor:
        return torch.stack([theta, theta.abs(), x.sum(0) * theta - ROWS * F.softplus(theta)])

    state, below = init(method, x), torch.zeros(3, COLUMNS)
    index = batches(torch.arange(ROWS), chosen.batch)
    for t in range(1, chosen.thin * (DRAWS + 4) + 1):
        if t % len(index) == 0:
            index = batches(torch.randperm(ROWS, generator=state.rng), chosen.batch)
        rows = index[t % len(index)]
        state = step(method, state, x[rows], rows, ROWS)
        if t > 4 * chosen.thin and t % chosen.thin == 0:
            below += looks(state.theta.theta) < looks(truth)
    return below.numpy().astype(int)


def p_value(found: np.ndarray) -> float:
    """The smallest of the three."""
    return min(float(stats.chisquare(np.bincount(each, minlength=DRAWS + 1)).pvalue) for each in found)


@pytest.mark.parametrize("name", NOISY)
def test_ranks_are_uniform(name: str):
    assert p_value(ranks(name)) > 1e-4


@pytest.mark.parametrize(("name", "prior"), [("sgld:temperature=1.21", "normal:scale=1"), ("sgld", "flat")])
def test_bugs_are_seen(name: str, prior: str):
    """Noise 1.1 times as large, which is a temperature of 1.21, and a prior that was forgotten."""
    assert p_value(ranks(name, prior)) < 1e-4
