"""Gibbs sweeps, annealing and remembered states in JAX, for sigmoid belief networks.

A sweep is a `lax.scan` over the units, each for all rows at once. As in `doubly`, sigmoids are carried in the place of
logits, and logarithms are taken of products: that is three times as fast here as sums of softplus. Nothing guards
against weights that are too steep for it.
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
    noise, lanes = jax.random.logistic(key, value.T.shape), math.gcd(logits.shape[1], 16)

    def unit(carry: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        off, on = carry  # sigmoid(-logits), sigmoid(logits)
        old, factors, total, f, u = at
        is_on = old[:, None] > 0
        x, y = jnp.where(is_on, on, off), factors * jnp.where(is_on, off, on)
        sums = x + y
        product = jnp.log(sums.reshape(len(sums), lanes, -1).prod(-1)).sum(-1)
        odds = f - power * jnp.where(old > 0, total - product, product)
        new = (odds > u).astype(jnp.float32)
        x, y, changed = x / sums, y / sums, (new != old)[:, None]
        turned = jnp.where(is_on, y, x), jnp.where(is_on, x, y)
        return (jnp.where(changed, turned[0], off), jnp.where(changed, turned[1], on)), new

    field = jnp.broadcast_to(field, value.shape)
    start = jax.nn.sigmoid(-logits), jax.nn.sigmoid(logits)
    return lax.scan(unit, start, (value.T, jnp.exp(W), W.sum(1), field.T, noise))[1].T


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
