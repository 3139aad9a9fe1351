"""Every prior is the density it is named after, and its gradient is its own."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from doubly import PRIORS, Prior, UserError
from doubly.core.registry import options

IMPROPER = {"flat"}
REFERENCE: dict[str, tuple[tuple[str, ...], Callable]] = {
    "student-t": (("df", "scale"), lambda df, scale: stats.t(df, scale=scale)),
    "normal": (("scale",), lambda scale: stats.norm(scale=scale)),
    "laplace": (("scale",), lambda scale: stats.laplace(scale=scale)),
}
REFERENCE |= {f"learnt-{name}": law for name, law in REFERENCE.items()}  # at the scale where they start


def moved(name: str, factor: float) -> Prior:
    """A prior with its real options moved away from where they stand."""
    found = {option: value for option, value in options(PRIORS[name]).items() if isinstance(value, float)}
    return PRIORS[name](**{option: value * factor for option, value in found.items()})


# each prior as it comes, and with all its options moved away from where they stand
EACH = [pytest.param(moved(name, factor), id=f"{name}-times-{factor}") for name in PRIORS for factor in (1, 1.7)]
each_prior = pytest.mark.parametrize("prior", EACH)
THETA = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("factor", [1, 1.7])
@pytest.mark.parametrize("name", REFERENCE)
def test_log_prob_is_the_density_it_is_named_after(name: str, factor: float):
    """log_prob of a vector is the sum of scipy's log densities of its entries, from the middle to far tails."""
    names, law = REFERENCE[name]
    settings = {option: factor * options(PRIORS[name])[option] for option in names}
    for size in (1e-3, 0.1, 1, 10):
        theta = size * THETA
        expected = law(**settings).logpdf(theta.numpy()).sum()
        assert PRIORS[name](**settings).log_prob(theta).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", [name for name in PRIORS if name not in IMPROPER])
@pytest.mark.parametrize("factor", [1, 1.7])
def test_density_integrates_to_one(name: str, factor: float):
    """In one dimension the density integrates to 1 (by half-lines, so that a kink at 0 lies at an end)."""
    prior = moved(name, factor)

    def density(theta: float) -> float:
        return math.exp(prior.log_prob(torch.tensor([theta], dtype=torch.float64)))

    halves = [integrate.quad(density, *ends, epsabs=1e-11)[0] for ends in ((-np.inf, 0), (0, np.inf))]
    assert sum(halves) == pytest.approx(1, abs=1e-8)


@each_prior
@pytest.mark.parametrize("size", [1e-3, 0.1, 1, 100])
def test_grad_is_the_gradient_of_log_prob(prior: Prior, size: float):
    """The closed form equals what autograd finds."""
    theta = (size * THETA).requires_grad_()
    (expected,) = torch.autograd.grad(prior.log_prob(theta) + 0 * theta.sum(), theta)
    torch.testing.assert_close(prior.grad(theta.detach()), expected, rtol=1e-10, atol=1e-12)


@each_prior
def test_shapes_and_types(prior: Prior):
    """log_prob is a scalar and grad of theta's shape, both of theta's type; a vector of no weights has log_prob 0."""
    for theta in (THETA, THETA.float()):
        assert prior.log_prob(theta).shape == ()
        assert prior.grad(theta).shape == theta.shape
        assert prior.log_prob(theta).dtype == prior.grad(theta).dtype == theta.dtype
    assert prior.log_prob(torch.zeros(0)).item() == 0


def test_laplace_leaves_a_zero_alone():
    """At its kink the Laplace prior pulls to neither side, so that a weight at 0 stays."""
    assert torch.equal(PRIORS["laplace"]().grad(torch.zeros(3)), torch.zeros(3))


@pytest.mark.parametrize("value", [0.0, -0.1, math.nan])
@pytest.mark.parametrize(
    ("name", "option"), [(n, o) for n in PRIORS for o in ("df", "scale") if o in options(PRIORS[n])]
)
def test_bad_scales_are_refused(name: str, option: str, value: float):
    """A scale (or degrees of freedom) that is not positive is the user's mistake, named in the message."""
    with pytest.raises(UserError, match=f"{option} must be positive"):
        PRIORS[name](**{option: value})
