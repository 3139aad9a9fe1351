"""The short-chain estimator: the probability of a sweep, its reverse, and a mean of p(x) for a chain of any length.

Models are small enough to be enumerated: the matrix of a sweep is the product of those of its units, from nothing but
`log_prob`. A bound on a mean is four of its standard errors, estimated from independent repetitions: some 70 such means
are looked at, of which a two-hundredth would fall outside if all is well, and the seeds are fixed.
"""

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from doubly import UserError
from doubly.analysis.laws.layers import chi_square
from doubly.latents import Pair, ShortChain
from doubly.latents.paths import FromPrior
from doubly.latents.short_chain import COLD, _Law
from doubly.latents.sweep import log_transition, sweep_back
from doubly.layers import Values
from exact import MISSING, ROW, MissingCase, X, every_z, in_double, log_posterior, random_pair

MODELS = [("sbn", (3,)), ("sbn", (2, 2)), ("darn:order=3", (3,)), ("darn", (2, 2)), ("sbn,darn,sbn", (2, 2))]
each_model = pytest.mark.parametrize(("names", "hidden"), MODELS, ids=str)


@pytest.fixture(params=["0", ""], ids=["plain", "fused"])
def kernels(request, monkeypatch):
    """Both kinds of kernels for single precision; what is in double precision is plain anyway."""
    monkeypatch.setenv("DOUBLY_KERNELS", request.param)
    return request.param


def unit_matrices(pair: Pair, x: Tensor) -> list[Tensor]:
    """For each unit, from the first of the bottom layer to the last of the top: P(z' <- z) of drawing it, (z, z')."""
    law = log_posterior(pair, x)
    size, n = len(law), len(law).bit_length() - 1
    found = []
    for k in range(n):
        at = torch.arange(size)
        flipped = at ^ (1 << (n - 1 - k))  # the units of bits() come with the highest first
        stay = torch.sigmoid(law - law[flipped])
        matrix = torch.zeros(size, size, dtype=torch.float64)
        matrix[at, at], matrix[at, flipped] = stay, 1 - stay
        found.append(matrix)
    return found


def matrix(units: list[Tensor]) -> Tensor:
    """Of one unit after the other."""
    return reduce(torch.matmul, units)


def from_each_to_each(pair: Pair, x: Tensor) -> Tensor:
    """T(z' <- z) as `log_transition` has it, (z, z')."""
    z = every_z(pair.model)
    n = len(z[0])
    here, there = (tuple(value.to(pair.theta.dtype).unsqueeze(axis).expand(n, n, -1) for value in z) for axis in (1, 0))
    x = x.to(pair.theta.dtype)
    return log_transition(FromPrior(pair, x).odds, x, here, there).exp().double()


@each_model
def test_the_probability_of_a_sweep_is_that_of_its_units(names: str, hidden: tuple[int, ...], kernels: str):
    pair = random_pair(names, "sbn", hidden)
    for row in X:
        expected = matrix(unit_matrices(pair, row))
        found = from_each_to_each(pair, row)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.sum(1), torch.ones(len(found)).double(), rtol=1e-5, atol=0)
        torch.testing.assert_close(from_each_to_each(in_double(pair), row), expected, rtol=1e-9, atol=1e-12)


@each_model
def test_a_sweep_back_is_the_reverse(names: str, hidden: tuple[int, ...], kernels: str):
    """p(z | x) T(z' <- z) = p(z' | x) T~(z <- z'), where T is what `log_transition` says and T~ what is drawn."""
    pair, n, rng = random_pair(names, "sbn", hidden), 3000, torch.Generator().manual_seed(1)
    row, law = X[1], log_posterior(pair, X[1]).exp()
    reverse = (law[:, None] * from_each_to_each(in_double(pair), row) / law).T
    torch.testing.assert_close(reverse, matrix(unit_matrices(pair, row)[::-1]), rtol=1e-9, atol=1e-12)
    z = tuple(value.float().expand(n, *value.shape) for value in every_z(pair.model))
    drawn = torch.cat(sweep_back(FromPrior(pair, row.float()).odds, row.float(), z, rng), -1)
    places = (drawn.double() @ 2.0 ** torch.arange(sum(hidden) - 1, -1, -1).double()).long()
    for start in range(len(law)):
        counts = torch.bincount(places[:, start], minlength=len(law))
        assert chi_square(counts.numpy(), n * reverse[start].numpy()) > 1e-4


def repeated(pair: Pair, x: Tensor, star: Values, states: int, n: int, seed: int) -> Tensor:
    """The estimates of p(x) by n chains of their own around the same z*."""
    law = _Law.of(pair, x.to(pair.theta.dtype).expand(n, -1))
    stars = tuple(value.to(pair.theta.dtype).expand(n, -1) for value in star)
    rng = torch.Generator().manual_seed(seed)
    log_p = ShortChain(states)._log_posterior(law, stars, rng, lambda sweeps: None)
    return (law.log_joint(stars) - log_p).exp()


def assert_mean(values: Tensor, expected: float) -> None:
    """The mean is what is expected, within four standard errors."""
    assert abs(values.mean().item() - expected) <= 4 * values.std().item() / math.sqrt(len(values))


@each_model
@pytest.mark.parametrize("states", [1, 2, 7])
def test_the_mean_is_the_likelihood_whatever_the_state(names: str, hidden: tuple[int, ...], states: int, kernels: str):
    """Around the likeliest state, where chains are laid, and around one of the unlikely ones."""
    pair = random_pair(names, "sbn", hidden)
    z = every_z(pair.model)
    log_p = pair.model.log_prob(pair.theta.double(), (X[1], *z))
    exact, ranked = log_p.logsumexp(0).exp().item(), log_p.argsort(descending=True)
    for place in (0, 3):
        star = tuple(value[ranked[place]] for value in z)
        values = repeated(pair, X[1], star, states, 6000, seed=place)
        assert values.std() / values.mean() < 2 or states == 1  # or nothing would have been found
        assert_mean(values, exact)


def test_every_place_in_the_chain_is_as_likely(monkeypatch):
    """As many rows have 0, 1, … 4 states before z*, made backwards, and the rest of five after it, made forwards.

    A chain that always begins at z* would be off by less than a hundredth of p(x) here: means do not tell.
    """
    pair, n = random_pair("sbn", "sbn", (3,)), 2000
    moved: dict[str, list[int]] = {}
    for name in ("forward", "back"):
        real, rows = getattr(_Law, name), moved.setdefault(name, [n])

        def watched(law: _Law, *rest: Any, real: Any = real, rows: list[int] = rows) -> Any:
            rows.append(len(law.x))
            return real(law, *rest)

        monkeypatch.setattr(_Law, name, watched)
    repeated(pair, X[1], tuple(value[0] for value in every_z(pair.model)), 5, n, seed=0)
    after, before = (-np.diff([*moved[name], 0]) for name in ("forward", "back"))
    assert chi_square(before, np.full(5, n / 5)) > 1e-4
    assert after.tolist() == before[::-1].tolist()


@pytest.mark.parametrize("proposal", ["sbn", "mlp:widths=5"])
def test_the_estimate_from_end_to_end(proposal: str):
    """Unbiased with a z* of its own for each row, in blocks; nearer with more states; and progress ends."""
    pair, told = random_pair("sbn", proposal, (2, 2)), []
    x, rng = X.float().repeat(200, 1), torch.Generator().manual_seed(0)
    how, width = ShortChain(states=20, burn_in=3), 4 + 2 + 2
    found = how.log_likelihood(pair, x, rng, lambda done, total: told.append((done, total)), cells=400 * width)
    exact = pair.model.log_prob(pair.theta.double(), (X, *(z[:, None] for z in every_z(pair.model)))).logsumexp(0)
    error = found.log_likelihood - exact.repeat(200)
    alone = ShortChain(states=1, burn_in=3).log_likelihood(pair, x, rng).log_likelihood - exact.repeat(200)
    assert_mean(error.exp(), 1.0)
    assert error.square().mean() < alone.square().mean() / 4  # a twentieth, if the states were independent
    assert (found.ess == 1).all()
    assert told == sorted(told)
    assert told[-1] == (600 * (3 + COLD + 20),) * 2


@pytest.mark.parametrize("masked", [False, True])
def test_missing_values_are_summed_out(masked: bool):
    case = MissingCase("sbn", masked)
    exact = case.log_joint()[case.fits()].logsumexp((0, 1))
    x = ROW.masked_fill(MISSING, torch.nan).expand(4000, -1)
    found = ShortChain(states=3, burn_in=3).log_likelihood(case.pair, x, torch.Generator().manual_seed(0))
    assert_mean(found.log_likelihood.exp(), exact.exp().item())


def test_what_a_short_chain_refuses():
    row, rng = ROW.masked_fill(MISSING, torch.nan)[None], torch.Generator().manual_seed(0)
    with pytest.raises(UserError, match="independent given the latents, got DARN"):
        ShortChain().log_likelihood(MissingCase("darn").pair, row, rng)
    with pytest.raises(UserError, match="sbn and darn layers only, got NADE"):
        ShortChain().log_likelihood(MissingCase("nade").pair, ROW[None], rng)
    with pytest.raises(UserError, match="at least 1, got 0"):
        ShortChain(states=0)
    with pytest.raises(UserError, match="at least 0, got -1"):
        ShortChain(burn_in=-1)
    assert ShortChain().log_likelihood(MissingCase("sbn").pair, row[:0], rng).log_likelihood.shape == (0,)
