"""Symmetric passes over mini-batches: the bias is of order h², and the sampler has the law that is computed for it.

`docs/reports/samplers.py` computes the law of the step on a Gaussian with four mini-batches, over all their orders.
"""

import math
import runpy
from pathlib import Path

import numpy as np
import torch

from doubly.samplers import SMSUBU

REPORT = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "reports" / "samplers.py"))


def test_the_bias_is_of_second_order_with_mini_batches():
    """Halving h divides mean and square by 4, to the next order: h at 0.01 changes the power by some 0.01.

    Drawn with replacement the square is of first order: a factor of 2.
    """
    for name, power in (("back", 2), ("drawn", 1)):
        coarse, fine = (REPORT["passes_law"](h, name) for h in (0.01, 0.005))
        assert abs(math.log2(coarse.square / fine.square) - power) < 0.05
    coarse, fine = (REPORT["passes_law"](h, "back") for h in (0.01, 0.005))
    assert abs(math.log2(coarse.mean / fine.mean) - 2) < 0.05


def test_without_mini_batches_the_law_is_that_of_ubu():
    """With equal curvatures and centres, mini-batches make no difference, and the bias is -h²/6 to leading order.

    UBU on a harmonic target of frequency 1: E[theta²] = 1 - h² / 6 + …, as `ubu_law` in test_sampler_laws.py has it.
    """
    law = REPORT["passes_law"]
    names = law.__globals__
    before = names["CURVATURES"], names["CENTRES"]
    names["CURVATURES"], names["CENTRES"] = np.full(4, 0.25), np.zeros(4)
    try:
        found = {name: law(0.02, name) for name in REPORT["PASSES"]}
    finally:
        names["CURVATURES"], names["CENTRES"] = before
    for one in found.values():
        np.testing.assert_allclose(one, found["back"], atol=1e-10)
        assert abs(one.mean) < 1e-10
    assert abs(found["back"].square + 0.02**2 / 6) < 0.02**3


def test_the_noise_of_half_a_step_has_the_covariance_derived():
    """Of 400,000 weights that stand still at 0: noise dw at a time s before the end of half a step leaves exp(-a s) dw
    in v and (1 - exp(-a s)) / a dw in theta, with dw of variance 2 a T ds, integrated numerically.

    v, and theta as far as it goes along with v and beside it, each within five standard errors, 1 / sqrt(2 n) of a
    standard deviation and 1 / sqrt(n) in units of what is beside of a slope: 0.6 %, where 5 % must be seen.
    """
    n, a, T, rng = 400_000, 0.7, 0.6, torch.Generator().manual_seed(1)
    zero = torch.zeros(n, dtype=torch.float64)
    sampler = SMSUBU(friction=a, temperature=T)
    state = sampler.ask(sampler.init(zero, rng)._replace(v=zero), 1.0, rng)
    back = (np.arange(10_000) + 0.5) / 20_000
    left = np.stack([np.exp(-a * back), -np.expm1(-a * back) / a])
    expected = np.linalg.cholesky(2 * a * T * left @ left.T / 20_000)
    found = np.linalg.cholesky(np.cov(torch.stack([state.v, state.theta]).numpy()))
    allowed = 5 / math.sqrt(n)
    assert abs(found[0, 0] / expected[0, 0] - 1) < allowed / math.sqrt(2)
    assert abs(found[1, 1] / expected[1, 1] - 1) < allowed / math.sqrt(2)
    assert abs(found[1, 0] - expected[1, 0]) < allowed * np.hypot(*expected[1])
    assert allowed * np.hypot(*expected[1]) < 0.05 * expected[1, 0], "5 % of each must be seen"


def test_the_sampler_has_the_law_that_is_computed_for_it():
    """Chains that each have orders of their own, at a step where mini-batches that are drawn heat by 19 %.

    Averages over whole cycles after 15 units of time, five standard errors allowed.
    """
    h, chains, sampler, rng = 0.2, 10_000, SMSUBU(friction=0.2), torch.Generator().manual_seed(3)
    k = torch.from_numpy(REPORT["CURVATURES"]).float()
    m = torch.from_numpy(REPORT["centres"]()).float()
    state = sampler.init(torch.randn(chains, generator=rng), rng)
    total, square, cycles = torch.zeros(chains), torch.zeros(chains), 60
    for cycle in range(10 + cycles):
        forward = torch.rand(4, chains, generator=rng).argsort(0)
        for j in (*forward, *forward.flip(0)):
            state = sampler.ask(state, h**2, rng)
            state = sampler.tell(state, 4 * k[j] * (m[j] - state.theta), h**2, rng)
            if cycle >= 10:
                total += state.theta / (8 * cycles)
                square += state.theta**2 / (8 * cycles)
    law, drawn = REPORT["passes_law"](h, "back"), REPORT["passes_law"](h, "drawn")
    stderr = square.std().item() / math.sqrt(chains)
    assert abs(total.mean().item() - law.mean) < 5 * total.std().item() / math.sqrt(chains)
    assert abs(square.mean().item() - 1 - law.square) < 5 * stderr
    assert drawn.square > 20 * stderr, "the case is too mild to show anything"
