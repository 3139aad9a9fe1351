"""The same algorithm in JAX: the whole step is one compiled program, and many steps are one call of it.

The thermostat is written by hand, because BlackJAX's has a single one for all weights. Autoregressive layers are a
`lax.scan` over their outputs, whose body is checkpointed: what it would store costs more than computing it again.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from peers import xla_moves
from peers.side import Arrays, Side, Task, serve

Params = dict[str, Array]
Draw = tuple[Array, Array]
CHUNK = 5  # draws of each row at a time when evaluating


class Layer(NamedTuple):
    log_prob: Callable[[Params, Array, Array | None], Array]
    """log p(value | given)."""
    draw: Callable[[Params, Array, int | None, Array], Draw]
    """A value for each given, or several along a new first axis, with log p; values carry no gradient if binary."""


LEAST = 2**-25  # exactly 0, once in 2^23, would draw what is impossible, with an enormous weight


def bernoulli(logits: Array, value: Array) -> Array:
    """log p(value), summed over the last axis."""
    return (value * logits - jax.nn.softplus(logits)).sum(-1)


def normal(mu: Array, log_sigma: Array, value: Array) -> Array:
    return -(((value - mu) * jnp.exp(-log_sigma)) ** 2 / 2 + log_sigma + math.log(2 * math.pi) / 2).sum(-1)


def several(draws: int | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if draws is None else (draws, *shape)


# sigmoid belief network: logits = W given + b


def sbn_log_prob(p: Params, value: Array, given: Array | None) -> Array:
    return bernoulli(p["b"] if given is None else given @ p["W"].T + p["b"], value)


def sbn_draw(p: Params, given: Array, draws: int | None, key: Array) -> Draw:
    logits = given @ p["W"].T + p["b"]
    uniform = jax.random.uniform(key, several(draws, logits.shape), minval=LEAST)
    value = (uniform < jax.nn.sigmoid(lax.stop_gradient(logits))).astype(jnp.float32)
    return value, bernoulli(logits, value)


# deep autoregressive network: logits = U given + W value + b, W strictly lower triangular, stored as that triangle


def darn_log_prob(p: Params, value: Array, given: Array | None) -> Array:
    n = len(p["b"])
    row, column = np.tril_indices(n, -1)
    square = jnp.zeros(n * n).at[row * n + column].set(p["W"], unique_indices=True, indices_are_sorted=True)
    logits = value @ square.reshape(n, n).T + p["b"]  # once for each row where all draws share the value
    return bernoulli(logits if given is None else logits + given @ p["U"].T, value)


# conditional NADE: logits_i = V_i sigmoid(U given + a + sum_{j<i} W_j value_j) + R_i given + b_i


def nade_start(p: Params, given: Array | None) -> tuple[Array, Array]:
    if given is None:
        return p["a"], p["b"]
    return given @ p["U"].T + p["a"], given @ p["R"].T + p["b"]


def nade_log_prob(p: Params, value: Array, given: Array | None) -> Array:
    start, bias = nade_start(p, given)
    W = jnp.pad(p["W"], ((0, 1), (0, 0)))

    @jax.checkpoint
    def output(added: Array, at: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        w, v, x = at
        return added + x[..., None] * w, jax.nn.sigmoid(start + added) @ v

    nothing = jnp.zeros((*value.shape[:-1], W.shape[1]))  # what all draws share, if they share the value
    _, outputs = lax.scan(output, nothing, (W, p["V"], jnp.moveaxis(value, -1, 0)))
    return bernoulli(jnp.moveaxis(outputs, 0, -1) + bias, value)


def nade_draw(p: Params, given: Array, draws: int | None, key: Array) -> Draw:
    start, bias = nade_start(p, given)
    W = jnp.pad(p["W"], ((0, 1), (0, 0)))
    uniform = jax.random.uniform(key, (bias.shape[-1], *several(draws, bias.shape[:-1])), minval=LEAST)

    @jax.checkpoint
    def output(hidden: Array, at: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        w, v, b, u = at
        logits = jax.nn.sigmoid(hidden) @ v + b
        x = (u < jax.nn.sigmoid(lax.stop_gradient(logits))).astype(jnp.float32)
        return hidden + x[..., None] * w, (x, logits)

    hidden = jnp.broadcast_to(start, several(draws, start.shape))
    _, (values, outputs) = lax.scan(output, hidden, (W, p["V"], jnp.moveaxis(bias, -1, 0), uniform))
    value = jnp.moveaxis(values, 0, -1)
    return value, bernoulli(jnp.moveaxis(outputs, 0, -1), value)


# perceptrons with two layers of tanh units


def perceptron(p: Params, given: Array) -> Array:
    return jnp.tanh(jnp.tanh(given @ p["W0"].T + p["b0"]) @ p["W1"].T + p["b1"])


def mlp_log_prob(p: Params, value: Array, given: Array | None) -> Array:
    assert given is not None
    return bernoulli(perceptron(p, given) @ p["W_logits"].T + p["b_logits"], value)


def gaussian_parameters(p: Params, given: Array) -> Draw:
    inner = perceptron(p, given)
    log_sigma = jnp.clip(inner @ p["W_sigma"].T + p["b_sigma"], -8, 8)
    return inner @ p["W_mu"].T + p["b_mu"], log_sigma


def gaussian_log_prob(p: Params, value: Array, given: Array | None) -> Array:
    assert given is not None
    return normal(*gaussian_parameters(p, given), value)


def gaussian_draw(p: Params, given: Array, draws: int | None, key: Array) -> Draw:
    mu, log_sigma = gaussian_parameters(p, given)
    value = mu + jnp.exp(log_sigma) * jax.random.normal(key, several(draws, mu.shape))
    return value, normal(mu, log_sigma, value)


def normal_log_prob(p: Params, value: Array, given: Array | None) -> Array:
    return -(value**2 / 2).sum(-1) - value.shape[-1] * math.log(2 * math.pi) / 2


def not_drawn(p: Params, given: Array, draws: int | None, key: Array) -> Draw:
    raise NotImplementedError("no proposal here has such a layer")


LAYERS = {
    "sbn": Layer(sbn_log_prob, sbn_draw),
    "darn": Layer(darn_log_prob, not_drawn),
    "nade": Layer(nade_log_prob, nade_draw),
    "mlp": Layer(mlp_log_prob, not_drawn),
    "gaussian": Layer(gaussian_log_prob, gaussian_draw),
    "normal": Layer(normal_log_prob, not_drawn),
}


def log_joint(kinds: list[str], theta: list[Params], values: list[Array]) -> Array:
    """log p(x, z), values from the data upward."""
    givens = [*values[1:], None]
    terms = [
        LAYERS[k].log_prob(p, value, given) for k, p, value, given in zip(kinds, theta, values, givens, strict=True)
    ]
    return sum(terms[1:], terms[0])


def propose(kinds: list[str], phi: list[Params], x: Array, draws: int, key: Array) -> tuple[list[Array], Array]:
    """z1, z2, … with log q(z | x)."""
    values, log_q = [x], jnp.zeros(())
    for level, (kind, params) in enumerate(zip(kinds, phi, strict=True)):
        value, term = LAYERS[kind].draw(params, values[-1], None if level else draws, jax.random.fold_in(key, level))
        values.append(value)
        log_q = log_q + term
    return values[1:], log_q


def log_proposal(kinds: list[str], phi: list[Params], values: list[Array]) -> Array:
    """log q(z | x) of given z, values from the data upward."""
    terms = [
        LAYERS[k].log_prob(p, value, given)
        for k, p, value, given in zip(kinds, phi, values[1:], values[:-1], strict=True)
    ]
    return sum(terms[1:], terms[0])


def weigh(log_weight: Array) -> Array:
    return lax.stop_gradient(jax.nn.softmax(log_weight, 0))


# what moves


class State(NamedTuple):
    theta: Array
    u: Array
    alpha: Array
    phi: Array
    m: Array
    v: Array
    t: Array


def prior_grad(task: Task, theta: Array) -> Array:
    """Of the Student-t prior."""
    return -(task.df + 1) * theta / (theta**2 + task.df * task.scale**2)


def make_step(task: Task, layers: Callable[[Array], Any], phi_layers: Callable[[Array], Any], x: Array) -> Any:
    """One step as a function of the state and a key; theta and phi are vectors that unfold into layers."""

    def theta_climb(theta: Array, phi: Array, key: Array) -> Array:
        z, log_q = propose(task.proposal, phi_layers(phi), x, task.draws, key)
        log_p = log_joint(task.model, layers(theta), [x, *z])
        return (weigh(log_p - log_q) * log_p).sum(0).mean()

    def phi_climb(phi: Array, theta: Array, key: Array) -> Array:
        z, log_q = propose(task.proposal, phi_layers(phi), x, task.draws, key)
        log_p = log_joint(task.model, layers(theta), [x, *z])
        if task.objective == "iwae":
            return jax.nn.logsumexp(log_p - log_q, 0).mean() - math.log(task.draws)
        return (weigh(log_p - log_q) * log_q).sum(0).mean()

    def step(state: State, key: Array) -> tuple[State, None]:
        for_theta, for_noise, for_phi = jax.random.split(key, 3)
        state = state._replace(theta=state.theta + state.u)
        state = told(task, state, jax.grad(theta_climb)(state.theta, state.phi, for_theta), for_noise)
        return adam(task, state, jax.grad(phi_climb)(state.phi, state.theta, for_phi)), None

    return step


def told(task: Task, state: State, grad: Array, key: Array) -> State:
    """The thermostat after a gradient of the mean over rows."""
    grad, noise = prior_grad(task, state.theta) + task.n_data * grad, jax.random.normal(key, state.u.shape)
    u = (1 - state.alpha) * state.u + task.eta * grad + math.sqrt(2 * task.friction * task.eta) * noise
    return state._replace(u=u, alpha=state.alpha + (u**2 - task.eta))


def adam(task: Task, state: State, grad: Array) -> State:
    m, v, t = 0.9 * state.m + 0.1 * grad, 0.999 * state.v + 0.001 * grad**2, state.t + 1
    move = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-10)
    return state._replace(phi=state.phi + task.phi_step * move, m=m, v=v, t=t)


def make_remembered_step(
    task: Task, layers: Callable[[Array], Any], phi_layers: Callable[[Array], Any], x: Array
) -> Any:
    """One step with remembered states, as a function of the state of the weights, those states and a key."""
    estimate = xla_moves.remembered(
        lambda theta, z: log_joint(task.model, layers(theta), [x, *z]),
        lambda phi, z: log_proposal(task.proposal, phi_layers(phi), [x, *z]),
        lambda phi, key: propose(task.proposal, phi_layers(phi), x, task.draws, key)[0],
        layers,
        x,
    )

    def step(carry: tuple[State, list[Array]], key: Array) -> tuple[tuple[State, list[Array]], None]:
        state, states = carry
        for_estimate, for_noise = jax.random.split(key)
        theta = state.theta + state.u
        found = estimate(theta, state.phi, states, for_estimate)
        theta_moved = told(task, state._replace(theta=theta), found.theta_grad, for_noise)
        return (adam(task, theta_moved, found.phi_grad), found.states), None

    return step


def score(task: Task, theta: list[Params], phi: list[Params], x: Array, key: Array) -> Array:
    """L_K, the mean over the rows."""

    def part(total: Array, key: Array) -> tuple[Array, None]:
        z, log_q = propose(task.proposal, phi, x, CHUNK, key)
        log_weight = log_joint(task.model, theta, [x, *z]) - log_q
        return jnp.logaddexp(total, jax.nn.logsumexp(log_weight, 0)), None

    keys = jax.random.split(key, task.score_draws // CHUNK)
    total, _ = lax.scan(part, jnp.full(len(x), -jnp.inf), keys)
    return (total - math.log(task.score_draws)).mean()


def unflat(vector: str, n_layers: int, arrays: Arrays) -> list[Params]:
    """A dictionary for each layer; a layer that is given nothing has no weights for it."""
    return [
        {
            name.split(".")[2]: jnp.asarray(array)
            for name, array in arrays.items()
            if name.startswith(f"{vector}.{i}.") and array.size
        }
        for i in range(n_layers)
    ]


class XLA(Side):
    def load(self, task: Task, arrays: Arrays) -> None:
        self.task, self.x, self.key = task, jnp.asarray(arrays["x"]), jax.random.key(0)
        self.theta = unflat("theta", len(task.model), arrays)
        self.phi = unflat("phi", len(task.proposal), arrays)
        (theta, layers), (phi, phi_layers) = ravel_pytree(self.theta), ravel_pytree(self.phi)
        u = math.sqrt(task.eta) * jax.random.normal(self.key, theta.shape)
        zero = jnp.zeros_like(phi)
        self.start = self.state = State(theta, u, jnp.full_like(u, task.friction), phi, zero, zero, jnp.zeros(()))
        step = make_step(task, layers, phi_layers, self.x)
        self.steps = jax.jit(lambda state, keys: lax.scan(step, state, keys)[0])
        self.evaluate = jax.jit(functools.partial(score, task))
        if task.work == "remembered":
            self.states = propose(task.proposal, self.phi, self.x, task.states, self.key)[0]
            remembered = make_remembered_step(task, layers, phi_layers, self.x)
            self.remembered = jax.jit(lambda carry, keys: lax.scan(remembered, carry, keys)[0])
        self.anneal = jax.jit(lambda key: xla_moves.anneal(self.theta, self.x, task.temperatures, 1, key))

    def run(self, times: int) -> None:
        self.key, key = jax.random.split(self.key)
        if self.task.work == "step":
            self.state = jax.block_until_ready(self.steps(self.state, jax.random.split(key, times)))
        elif self.task.work == "remembered":
            carry = self.start, self.states  # the weights begin anew and the states stay, as on the other side
            found = self.remembered(carry, jax.random.split(key, times))
            self.state, self.states = jax.block_until_ready(found)
        elif self.task.work == "anneal":
            for each in jax.random.split(key, times):
                self.score = float(self.anneal(each))
        else:
            for each in jax.random.split(key, times):
                self.score = float(self.evaluate(self.theta, self.phi, self.x, each))

    def densities(self, arrays: Arrays) -> Arrays:
        task, x = self.task, self.x
        z = [jnp.asarray(arrays[f"z{i}"]) for i in range(len(task.proposal))]
        log_p, log_q = log_joint(task.model, self.theta, [x, *z]), log_proposal(task.proposal, self.phi, [x, *z])
        weight = weigh(log_p - log_q)

        def theta_climb(theta: list[Params]) -> Array:
            return (weight * log_joint(task.model, theta, [x, *z])).sum(0).mean()

        def phi_climb(phi: list[Params]) -> Array:
            if task.objective == "wake":
                return (weight * log_proposal(task.proposal, phi, [x, *z])).sum(0).mean()
            mu, log_sigma = gaussian_parameters(phi[0], x)  # z as a function of phi and of the noise that is in it
            drawn = mu + jnp.exp(log_sigma) * lax.stop_gradient((z[0] - mu) * jnp.exp(-log_sigma))
            log_weight = log_joint(task.model, self.theta, [x, drawn]) - log_proposal(task.proposal, phi, [x, drawn])
            return jax.nn.logsumexp(log_weight, 0).mean() - math.log(task.draws)

        def posterior_grad(theta: Array, grad: Array) -> Array:
            return prior_grad(task, theta) + task.n_data * grad

        check_draws(task, self.phi, x, self.key)
        theta_grad = jax.tree.map(posterior_grad, self.theta, jax.grad(theta_climb)(self.theta))
        return (
            {"log_p": np.asarray(log_p), "log_q": np.asarray(log_q)}
            | named("theta_grad", theta_grad)
            | named("phi_grad", jax.grad(phi_climb)(self.phi))
        )

    def summary(self) -> dict[str, float]:
        if self.task.work in ("score", "anneal"):
            return {"score": self.score}
        of_states = {}
        if self.task.work == "remembered":
            of_states = {f"ones in z{i}": float(z.mean()) for i, z in enumerate(self.states, 1)}

        def moved(now: Array, then: Array) -> float:
            return float(jnp.sqrt(((now - then) ** 2).mean()))

        return of_states | {
            "temperature": float((self.state.u**2).mean() / self.task.eta),
            "theta moved": moved(self.state.theta, self.start.theta),
            "phi moved": moved(self.state.phi, self.start.phi),
        }


def check_draws(task: Task, phi: list[Params], x: Array, key: Array) -> None:
    """What a draw says of its own density is what the density says of it."""
    z, log_q = propose(task.proposal, phi, x, task.draws, key)
    np.testing.assert_allclose(log_q, log_proposal(task.proposal, phi, [x, *z]), rtol=1e-4, atol=1e-3)


def named(vector: str, layers: list[Params]) -> Arrays:
    return {
        f"{vector}.{i}.{name}": np.asarray(array) for i, layer in enumerate(layers) for name, array in layer.items()
    }


if __name__ == "__main__":
    serve(XLA())
