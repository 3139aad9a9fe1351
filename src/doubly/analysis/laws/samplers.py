"""The laws of a sampler: its state is its fields, its noise is the generator's, and it keeps a Gaussian as it is.

An optimiser, a sampler without noise, finds the mode instead.
"""

import math
from typing import Any

import torch
from torch import Tensor

from doubly.analysis.laws.law import Law, LeftOut, expect, expect_close
from doubly.core.registry import options
from doubly.samplers import SAMPLERS, Sampler

MEAN, SPREAD = 1.0, 0.7
"""The Gaussian that is sampled: chains start at 0, off its mean."""
CHAINS = 4000
ETA, FRICTION = 0.01, 0.03
"""A small step, and the friction of samplers that have such an option."""
TINY, COLD = 1e-8, 0.7
"""A step as on large data, and a temperature that is not 1."""


def cases(spec: str) -> dict[str, str]:
    """The sampler as it comes; laws build it with the friction that they need."""
    SAMPLERS.make(spec)
    return {"": spec}


def state_is_its_fields(spec: str) -> None:
    """A state is a NamedTuple of `state_type`, theta first, of vectors and numbers: that is a checkpoint."""
    sampler: Sampler = SAMPLERS.make(spec)
    theta = torch.arange(3.0)
    fields = getattr(getattr(sampler, "state_type", None), "_fields", ())
    expect(fields[:1] == ("theta",), f"state_type: expected a NamedTuple whose first field is theta, got {fields}")
    started = sampler.init(theta, torch.Generator())
    expect(type(started) is sampler.state_type, f"init: expected a {sampler.state_type.__name__}, got {type(started)}")
    expect(torch.equal(started.theta, theta), f"init: expected to start at theta, got {started.theta}")
    moved = _step(sampler, started, torch.Generator().manual_seed(0))
    expect(type(moved) is sampler.state_type, f"tell: expected a {sampler.state_type.__name__}, got {type(moved)}")
    for name, field in zip(fields, moved, strict=True):
        good = isinstance(field, int | float) or (isinstance(field, Tensor) and field.shape in ((3,), ()))
        expect(good, f"field {name}: expected a number or a tensor of theta's shape, got {field!r}")
        if isinstance(field, Tensor):
            expect(field.dtype == theta.dtype, f"field {name}: expected theta's type, got {field.dtype}")


def old_states_are_left_alone(spec: str) -> None:
    """`init`, `ask` and `tell` write into nothing that they are handed."""
    sampler: Sampler = SAMPLERS.make(spec)
    rng = torch.Generator().manual_seed(2)
    theta, grad = torch.randn(2, 100, generator=rng, dtype=torch.float64)
    handed = theta.clone(), grad.clone()
    state = sampler.init(theta, rng)
    for _ in range(3):
        before = _copy(state)
        asked = sampler.ask(state, 0.01, rng)
        expect(_same(state, before), "ask: expected the state it was handed to stay as it was, got it changed")
        before = _copy(asked)
        told = sampler.tell(asked, grad, 0.01, rng)
        expect(_same(asked, before), "tell: expected the state it was handed to stay as it was, got it changed")
        state = told
    expect(torch.equal(theta, handed[0]), "expected theta, handed to init, to stay as it was, got it changed")
    expect(torch.equal(grad, handed[1]), "expected the gradient to stay as it was, got it changed")


def noise_comes_from_the_generator(spec: str) -> None:
    """The same generator gives the same bits, whatever the global seed, which is left alone; another gives others."""
    sampler: Sampler = SAMPLERS.make(spec)
    before, found = torch.get_rng_state(), []
    for seed in (3, 3, 4):
        rng = torch.Generator().manual_seed(seed)
        state = sampler.init(torch.ones(100), rng)
        for _ in range(3):
            state = _step(sampler, state, rng)
        found.append(state)
    expect(
        torch.equal(before, torch.get_rng_state()), "expected noise from `rng` alone, got the global generator moved"
    )
    expect(_same(found[0], found[1]), "expected the same states from the same seed, got others")
    if sampler.noisy:
        expect(not _same(found[0], found[2]), "expected other noise from another seed, got the same; is noisy = False?")
    else:
        expect(_same(found[0], found[2]), "expected no noise where noisy is False, got other states from another seed")


def goes_on_from_its_fields(spec: str) -> None:
    """Written down between or within steps, by fields, and read back, a sampler goes on as if nothing had happened."""
    sampler: Sampler = SAMPLERS.make(spec)
    for cut in (6, 7):
        rng = torch.Generator().manual_seed(7)
        middle = _walk(sampler, sampler.init(torch.randn(50, generator=rng), rng), rng, range(cut))
        fields, stream = _copy(middle)._asdict(), rng.get_state()
        through = _walk(sampler, middle, rng, range(cut, 14))
        rng = torch.Generator()
        rng.set_state(stream)
        again = _walk(SAMPLERS.make(spec), sampler.state_type(**fields), rng, range(cut, 14))
        expect(_same(through, again), "expected the same bits from a state that was built from its fields, got others")


def keeps_a_gaussian(spec: str) -> None:
    """Samples of a Gaussian have its mean and variance, up to the bias of a small step.

    Each coordinate is a chain of its own, so the spread of their averages gives the standard error; five are allowed.
    The bias of Euler's scheme is eta / 2 in units of the variance, 2 eta is allowed; that of a thermostat is half the
    friction. Noise that is 5 % too large makes the variance 10 % too large, and is found.
    """
    _expect_moments(SAMPLERS.make(spec, **_wishes(spec)), ETA, 1.0)


def keeps_a_cold_gaussian(spec: str) -> None:
    """At another temperature the variance is that times as large, also where the step is tiny.

    The Gaussian is narrower in the same measure, so that it is the same problem in other units; but a thermostat whose
    speed is the step stands still, and no longer hides noise that is too large. One that does not stand still then has
    a friction that is too large: 10 % for noise that is 5 % too large.
    """
    wishes = _wishes(spec, temperature=COLD)
    sampler = SAMPLERS.make(spec, **wishes)
    if sampler.noisy and "temperature" not in wishes:
        raise LeftOut("it has no option temperature")
    # eta that does not shrink with the number of rows is in units of its own
    _expect_moments(sampler, ETA if sampler.eta(1.0, 100) == 1.0 else TINY, COLD)


def _expect_moments(sampler: Sampler, eta: float, temperature: float) -> None:
    """The moments of a Gaussian at this temperature, which is as wide as the step eta asks for."""
    if not sampler.noisy:
        raise LeftOut("noisy is False: it is an optimiser")
    unit = math.sqrt(eta / ETA)
    rng = torch.Generator().manual_seed(1)
    state = sampler.init(torch.zeros(CHAINS, dtype=torch.float64), rng)
    burn_in, after = round(15 / ETA), round(10 / ETA)
    total, squares, friction = torch.zeros(3, CHAINS, dtype=torch.float64)
    for at in range(burn_in + after):
        state = _step(sampler, state, rng, eta, unit)
        if at == burn_in - 1:
            state = sampler.hold(state)
        if at >= burn_in:
            theta = state.theta / unit
            total, squares = total + theta, squares + (theta - MEAN) ** 2
            friction = friction + sampler.stats(state).get("thermostat", torch.zeros(()))
    variance = temperature * SPREAD**2
    looks = [("mean", total, MEAN, 0.0), ("variance", squares, variance, 2 * ETA + FRICTION / 2 * variance)]
    if eta == TINY and sampler.has_thermostat and "friction" in options(type(sampler)):
        # the friction that exact gradients need; Euler's step has (2 - a) a for 2 a, and twice that is allowed
        looks.append(("friction of the thermostat", friction, FRICTION, FRICTION**2))
    for what, chains, expected, slack in looks:
        chains = chains / after
        slack += 5 * chains.std().item() / math.sqrt(CHAINS)
        got = chains.mean().item()
        expect(abs(got - expected) <= slack, f"{what} of a Gaussian at eta = {eta:g}, temperature {temperature:g}: "
               f"expected {expected:.4g} ± {slack:.2g}, got {got:.4g}")  # fmt: skip


def finds_the_mode(spec: str) -> None:
    """An optimiser ends at the mode of a Gaussian."""
    sampler: Sampler = SAMPLERS.make(spec)
    if sampler.noisy:
        raise LeftOut("noisy is True: it is a sampler")
    rng = torch.Generator().manual_seed(0)
    state = sampler.init(torch.zeros(10, dtype=torch.float64), rng)
    for _ in range(2000):
        state = _step(sampler, state, rng)
    expect_close("where it ends, beside the mode", state.theta, torch.full_like(state.theta, MEAN), 0, 0.02)


LAWS: dict[str, Law] = {
    "a state is its fields, theta first": state_is_its_fields,
    "old states are left alone": old_states_are_left_alone,
    "noise comes from the generator": noise_comes_from_the_generator,
    "it goes on from its fields": goes_on_from_its_fields,
    "it keeps mean and variance of a Gaussian": keeps_a_gaussian,
    "it keeps them at another temperature and with a tiny step": keeps_a_cold_gaussian,
    "an optimiser finds the mode": finds_the_mode,
}


def _wishes(spec: str, **more: float) -> dict[str, float]:
    """The friction of these laws and more, as far as the sampler has such options."""
    member, _ = SAMPLERS.read(spec)
    return {name: value for name, value in ({"friction": FRICTION} | more).items() if name in options(member)}


def _step(sampler: Sampler, state: Any, rng: torch.Generator, eta: float = ETA, unit: float = 1.0) -> Any:
    """One step on the Gaussian, which is measured in that unit."""
    state = sampler.ask(state, eta, rng)
    return sampler.tell(state, (MEAN - state.theta / unit) / (SPREAD**2 * unit), eta, rng)


def _walk(sampler: Sampler, state: Any, rng: torch.Generator, halves: range) -> Any:
    """Asked and told by turns, while the step falls and the gradient has noise from the same generator."""
    for half in halves:
        eta = 0.01 / (1 + half // 2)
        if half % 2 == 0:
            state = sampler.ask(state, eta, rng)
        else:
            grad = torch.randn(state.theta.shape, generator=rng) - state.theta
            state = sampler.tell(state, grad, eta, rng)
    return state


def _copy(state: Any) -> Any:
    return type(state)(*(field.clone() if isinstance(field, Tensor) else field for field in state))


def _same(one: Any, other: Any) -> bool:
    """Whether two states have the same bits."""
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)
