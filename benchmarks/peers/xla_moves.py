"""Gibbs sweeps, annealing and remembered states in JAX, for sigmoid belief networks.

A sweep is a `lax.scan` over the units, each for all rows at once. The softplus of the present logits is carried along,
so that a unit takes one pass over the logits, those where it is turned over.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

Params = dict[str, Array]


def sweep_units(value: Array, field: Array, logits: Array, W: Array, power: Array | float, key: Array) -> Array:
    """Draw the units of `value` (N, H) in turn; W (H, D) is how they enter the logits (N, D)."""
    noise = jax.random.logistic(key, value.T.shape)

    def unit(carry: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        logits, total = carry
        old, w, f, u = at
        turned = logits + (1 - 2 * old)[:, None] * w
        other = jax.nn.softplus(turned).sum(-1)
        odds = f - power * (1 - 2 * old) * (other - total)
        new = (odds > u).astype(jnp.float32)
        changed = new != old
        return (jnp.where(changed[:, None], turned, logits), jnp.where(changed, other, total)), new

    field = jnp.broadcast_to(field, value.shape)
    start = logits, jax.nn.softplus(logits).sum(-1)
    return lax.scan(unit, start, (value.T, W, field.T, noise))[1].T


def sweep(theta: list[Params], x: Array, z: list[Array], key: Array, data_power: Array | float = 1.0) -> list[Array]:
    """One sweep over all latent layers, from the bottom to the top, of states (C, B, H)."""
    values = [jnp.broadcast_to(x, (*z[0].shape[:2], x.shape[-1])), *z]
    for level in range(1, len(values)):
        own, below, power = theta[level], theta[level - 1], data_power if level == 1 else 1.0
        field = own["b"] + power * (values[level - 1] @ below["W"])
        if level + 1 < len(values):
            field = field + values[level + 1] @ own["W"].T
        logits = values[level] @ below["W"].T + below["b"]
        flat = [each.reshape(-1, each.shape[-1]) for each in (values[level], field, logits)]
        drawn = sweep_units(*flat, below["W"].T, power, jax.random.fold_in(key, level))
        values[level] = drawn.reshape(values[level].shape)
    return values[1:]


def anneal(theta: list[Params], x: Array, temperatures: int, chains: int, key: Array) -> Array:
    """log p(x) by annealing from the prior, of a network with one latent layer: the mean over the rows."""
    steps = jnp.arange(temperatures + 1) / temperatures
    s = jax.nn.sigmoid(4.0 * (2 * steps - 1))
    betas = (s - s[0]) / (s[-1] - s[0])
    data, top = theta
    key, first = jax.random.split(key)
    z = (jax.random.logistic(first, (chains, len(x), len(top["b"]))) < top["b"]).astype(jnp.float32)

    def ratio(z: Array) -> Array:
        logits = z @ data["W"].T + data["b"]
        return (x * logits - jax.nn.softplus(logits)).sum(-1)

    def temperature(carry: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
        z, total = carry
        width, beta, key = at
        total = total + width * ratio(z)
        (z,) = sweep(theta, x, [z], key, beta)
        return (z, total), None

    keys = jax.random.split(key, temperatures - 1)
    (z, total), _ = lax.scan(temperature, (z, jnp.zeros(z.shape[:2])), (jnp.diff(betas)[:-1], betas[1:-1], keys))
    total = total + (betas[-1] - betas[-2]) * ratio(z)
    return (jax.nn.logsumexp(total, 0) - math.log(chains)).mean()


class Estimate(NamedTuple):
    """Both gradients, and the states from now on."""

    theta_grad: Array
    phi_grad: Array
    states: list[Array]


def remembered(
    log_p: Callable[[Array, list[Array]], Array],
    log_q: Callable[[Array, list[Array]], Array],
    draw: Callable[[Array, Array], list[Array]],
    layers: Callable[[Array], Any],
    x: Array,
) -> Callable[[Array, Array, list[Array], Array], Estimate]:
    """The estimate by remembered states: they are swept, fresh draws compete with each, and all give the gradients."""

    def estimate(theta: Array, phi: Array, states: list[Array], key: Array) -> Estimate:
        for_sweep, for_draws, for_choice = jax.random.split(key, 3)
        states = sweep(layers(theta), x, states, for_sweep)
        n = len(states[0])
        z = [jnp.concatenate(both) for both in zip(states, draw(phi, for_draws), strict=True)]
        of_p, theta_back = jax.vjp(lambda theta: log_p(theta, z), theta)
        of_q, phi_back = jax.vjp(lambda phi: log_q(phi, z), phi)
        log_weight = of_p - of_q
        fresh = jnp.broadcast_to(log_weight[n:, None], (len(log_weight) - n, n, len(x)))
        candidates = jnp.concatenate([log_weight[None, :n], fresh])  # (1 + S, C, B)
        share = jax.nn.softmax(candidates, 0) / n
        weight = jnp.concatenate([share[0], share[1:].sum(1)]) / len(x)
        winner = jax.random.categorical(for_choice, candidates, axis=0)
        chosen = jnp.where(winner == 0, jnp.arange(n)[:, None], n + winner - 1)
        kept = [jnp.take_along_axis(each, chosen[..., None], 0) for each in z]
        return Estimate(theta_back(weight)[0], phi_back(weight)[0], kept)

    return estimate
