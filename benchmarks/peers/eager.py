"""The same algorithm in plain PyTorch, as one would write it to be quick: autograd, in-place updates, fused Adam.

All draws of all rows go through a layer at once; what only depends on the row is computed once for each row.
With COMPILE=1 the densities and the sampler's update go through `torch.compile`.
"""

import functools
import math
import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peers.side import Arrays, Side, Task, serve

Params = dict[str, Tensor]
COMPILE = os.environ.get("COMPILE") == "1"
CHUNK = 20  # draws of each row at a time when evaluating


class Layer(NamedTuple):
    log_prob: Callable[[Params, Tensor, Tensor | None], Tensor]
    """log p(value | given)."""
    draw: Callable[[Params, Tensor, int | None], tuple[Tensor, Tensor]]
    """A value for each given, or several along a new first axis, with log p; values carry no gradient if binary."""


def bernoulli(logits: Tensor, value: Tensor) -> Tensor:
    """log p(value), summed over the last axis."""
    return (value * logits).sum(-1) - F.softplus(logits).sum(-1)  # quicker than binary_cross_entropy_with_logits


def normal(mu: Tensor, log_sigma: Tensor, value: Tensor) -> Tensor:
    return -(((value - mu) * torch.exp(-log_sigma)) ** 2 / 2 + log_sigma + math.log(2 * math.pi) / 2).sum(-1)


def spread(tensor: Tensor, draws: int | None) -> Tensor:
    """The same for each of several draws."""
    return tensor if draws is None else tensor.expand(draws, *tensor.shape)


# sigmoid belief network: logits = W given + b


def sbn_log_prob(p: Params, value: Tensor, given: Tensor | None) -> Tensor:
    return bernoulli(p["b"] if given is None else F.linear(given, p["W"], p["b"]), value)


def sbn_draw(p: Params, given: Tensor, draws: int | None) -> tuple[Tensor, Tensor]:
    logits = spread(F.linear(given, p["W"], p["b"]), draws)
    value = torch.bernoulli(torch.sigmoid(logits.detach()))
    return value, bernoulli(logits, value)


# deep autoregressive network: logits = U given + W value + b, W strictly lower triangular, stored as that triangle


@functools.cache
def below_diagonal(n: int) -> Tensor:
    row, column = torch.tril_indices(n, n, -1)
    return row * n + column


def darn_log_prob(p: Params, value: Tensor, given: Tensor | None) -> Tensor:
    n = len(p["b"])
    square = p["W"].new_zeros(n * n).index_copy(0, below_diagonal(n), p["W"]).view(n, n)
    logits = F.linear(value, square, p["b"])  # once for each row where all draws share the value
    return bernoulli(logits if given is None else logits + F.linear(given, p["U"]), value)


# conditional NADE: logits_i = V_i sigmoid(U given + a + sum_{j<i} W_j value_j) + R_i given + b_i


def nade_start(p: Params, given: Tensor | None) -> tuple[Tensor, Tensor]:
    if given is None:
        return p["a"], p["b"]
    return F.linear(given, p["U"], p["a"]), F.linear(given, p["R"], p["b"])


def nade_log_prob(p: Params, value: Tensor, given: Tensor | None) -> Tensor:
    hidden, bias = nade_start(p, given)
    added, outputs = hidden.new_zeros(()), []  # what the value adds is the same for all draws, if they share the value
    for i, v in enumerate(p["V"].unbind()):
        if i:
            added = torch.addcmul(added, value[..., i - 1 : i], p["W"][i - 1])
        outputs.append(torch.sigmoid(hidden + added) @ v)
    outputs[0] = outputs[0].expand(outputs[-1].shape)  # of a top layer, the first is the same for all
    return bernoulli(torch.stack(outputs, -1) + bias, value)


def nade_draw(p: Params, given: Tensor, draws: int | None) -> tuple[Tensor, Tensor]:
    hidden, bias = (spread(start, draws) for start in nade_start(p, given))
    uniform = torch.rand(bias.shape)
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    for i, v in enumerate(p["V"].unbind()):
        if i:
            hidden = torch.addcmul(hidden, values[-1].unsqueeze(-1), p["W"][i - 1])
        logits = torch.sigmoid(hidden) @ v + bias[..., i]
        values.append((uniform[..., i] < torch.sigmoid(logits.detach())).float())
        outputs.append(logits)
    value = torch.stack(values, -1)
    return value, bernoulli(torch.stack(outputs, -1), value)


# perceptrons with two layers of tanh units


def perceptron(p: Params, given: Tensor) -> Tensor:
    return torch.tanh(F.linear(torch.tanh(F.linear(given, p["W0"], p["b0"])), p["W1"], p["b1"]))


def mlp_log_prob(p: Params, value: Tensor, given: Tensor | None) -> Tensor:
    assert given is not None
    return bernoulli(F.linear(perceptron(p, given), p["W_logits"], p["b_logits"]), value)


def gaussian_parameters(p: Params, given: Tensor) -> tuple[Tensor, Tensor]:
    inner = perceptron(p, given)
    log_sigma = F.linear(inner, p["W_sigma"], p["b_sigma"]).clamp(-8, 8)
    return F.linear(inner, p["W_mu"], p["b_mu"]), log_sigma


def gaussian_log_prob(p: Params, value: Tensor, given: Tensor | None) -> Tensor:
    assert given is not None
    return normal(*gaussian_parameters(p, given), value)


def gaussian_draw(p: Params, given: Tensor, draws: int | None) -> tuple[Tensor, Tensor]:
    mu, log_sigma = gaussian_parameters(p, given)
    value = mu + torch.exp(log_sigma) * torch.randn(spread(mu, draws).shape)
    return value, normal(mu, log_sigma, value)


def normal_log_prob(p: Params, value: Tensor, given: Tensor | None) -> Tensor:
    return -(value**2 / 2).sum(-1) - value.shape[-1] * math.log(2 * math.pi) / 2


def not_drawn(p: Params, given: Tensor, draws: int | None) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("no proposal here has such a layer")


LAYERS = {
    "sbn": Layer(sbn_log_prob, sbn_draw),
    "darn": Layer(darn_log_prob, not_drawn),
    "nade": Layer(nade_log_prob, nade_draw),
    "mlp": Layer(mlp_log_prob, not_drawn),
    "gaussian": Layer(gaussian_log_prob, gaussian_draw),
    "normal": Layer(normal_log_prob, not_drawn),
}


def log_joint(kinds: list[str], theta: list[Params], values: list[Tensor]) -> Tensor:
    """log p(x, z), values from the data upward."""
    givens = [*values[1:], None]
    terms = [
        LAYERS[k].log_prob(p, value, given) for k, p, value, given in zip(kinds, theta, values, givens, strict=True)
    ]
    return sum(terms[1:], terms[0])


def propose(kinds: list[str], phi: list[Params], x: Tensor, draws: int) -> tuple[list[Tensor], Tensor]:
    """z1, z2, … with log q(z | x)."""
    values, log_q = [x], x.new_zeros(())
    for level, (kind, params) in enumerate(zip(kinds, phi, strict=True)):
        value, term = LAYERS[kind].draw(params, values[-1], None if level else draws)
        values.append(value)
        log_q = log_q + term
    return values[1:], log_q


def log_proposal(kinds: list[str], phi: list[Params], values: list[Tensor]) -> Tensor:
    """log q(z | x) of given z, values from the data upward."""
    terms = [
        LAYERS[k].log_prob(p, value, given)
        for k, p, value, given in zip(kinds, phi, values[1:], values[:-1], strict=True)
    ]
    return sum(terms[1:], terms[0])


def weigh(log_weight: Tensor) -> Tensor:
    return torch.softmax(log_weight.detach(), 0)


# what moves


class Weights:
    """Named leaves that are views of one vector, so that gradients go by name and updates by vector."""

    def __init__(self, vector: str, n_layers: int, arrays: Arrays) -> None:
        names = [
            [name for name in arrays if name.startswith(f"{vector}.{i}.") and arrays[name].size]  # none from nothing
            for i in range(n_layers)
        ]
        parts = [torch.from_numpy(arrays[name]) for layer in names for name in layer]
        self.vector = torch.cat([part.reshape(-1) for part in parts])
        places = iter(self.vector.split([part.numel() for part in parts]))
        self.layers: list[Params] = [
            {name.split(".")[2]: next(places).view(arrays[name].shape).detach() for name in layer} for layer in names
        ]
        self.leaves = [leaf for layer in self.layers for leaf in layer.values()]

    def want(self, wanted: bool) -> list[Params]:
        for leaf in self.leaves:
            leaf.requires_grad_(wanted)
        return self.layers


def theta_climb(task: Task, theta: list[Params], phi: list[Params], x: Tensor) -> Tensor:
    with torch.no_grad():
        z, log_q = propose(task.proposal, phi, x, task.draws)
    log_p = log_joint(task.model, theta, [x, *z])
    return (weigh(log_p - log_q) * log_p).sum(0).mean()


def phi_climb(task: Task, theta: list[Params], phi: list[Params], x: Tensor) -> Tensor:
    z, log_q = propose(task.proposal, phi, x, task.draws)
    log_p = log_joint(task.model, theta, [x, *z])
    if task.objective == "iwae":
        return torch.logsumexp(log_p - log_q, 0).mean() - math.log(task.draws)
    return (weigh(log_p - log_q) * log_q).sum(0).mean()


def prior_grad(task: Task, theta: Tensor) -> Tensor:
    """Of the Student-t prior."""
    return torch.div(theta, theta**2 + task.df * task.scale**2).mul_(-(task.df + 1))


def thermostat(task: Task, theta: Tensor, u: Tensor, alpha: Tensor, grad: Tensor) -> None:
    """One step of the sampler; grad is that of the mean log-likelihood of a row."""
    grad = prior_grad(task, theta).add_(grad, alpha=task.n_data)
    u.mul_(1 - alpha).add_(grad, alpha=task.eta)
    u.add_(torch.randn_like(u), alpha=math.sqrt(2 * task.friction * task.eta))
    alpha.add_(u**2).sub_(task.eta)


class Eager(Side):
    def load(self, task: Task, arrays: Arrays) -> None:
        torch.manual_seed(0)
        self.task, self.x = task, torch.from_numpy(arrays["x"])
        self.theta = Weights("theta", len(task.model), arrays)
        self.phi = Weights("phi", len(task.proposal), arrays)
        self.start = self.theta.vector.clone(), self.phi.vector.clone()
        self.u = math.sqrt(task.eta) * torch.randn_like(self.theta.vector)
        self.alpha = torch.full_like(self.u, task.friction)
        self.adam = torch.optim.Adam(self.phi.leaves, task.phi_step, eps=1e-10, maximize=True, fused=True)
        compiled = torch.compile if COMPILE else lambda function: function
        self.theta_climb = compiled(functools.partial(theta_climb, task))
        self.phi_climb = compiled(functools.partial(phi_climb, task))
        self.thermostat = compiled(functools.partial(thermostat, task))
        self.log_weight = compiled(functools.partial(log_weight, task))

    def run(self, times: int) -> None:
        for _ in range(times):
            if self.task.work == "step":
                self.step()
            else:
                self.score = self.evaluate()

    def step(self) -> None:
        with torch.no_grad():
            self.theta.vector += self.u
        climb = self.theta_climb(self.theta.want(True), self.phi.want(False), self.x)
        grads = torch.autograd.grad(climb, self.theta.leaves)
        with torch.no_grad():
            grad = torch.cat([grad.reshape(-1) for grad in grads])
            self.thermostat(self.theta.vector, self.u, self.alpha, grad)
        climb = self.phi_climb(self.theta.want(False), self.phi.want(True), self.x)
        self.adam.zero_grad()
        climb.backward()
        self.adam.step()

    @torch.no_grad()
    def evaluate(self) -> float:
        parts = [
            self.log_weight(self.theta.layers, self.phi.layers, self.x) for _ in range(self.task.score_draws // CHUNK)
        ]
        return (torch.logsumexp(torch.cat(parts), 0) - math.log(self.task.score_draws)).mean().item()

    def densities(self, arrays: Arrays) -> Arrays:
        task, theta, phi = self.task, self.theta.want(True), self.phi.want(True)
        z = [torch.from_numpy(arrays[f"z{i}"]) for i in range(len(task.proposal))]
        log_p, log_q = log_joint(task.model, theta, [self.x, *z]), log_proposal(task.proposal, phi, [self.x, *z])
        weight = weigh(log_p - log_q)
        climb = (weight * log_q).sum(0).mean()
        if task.objective == "iwae":  # z as a function of phi and of the noise that is in it
            mu, log_sigma = gaussian_parameters(phi[0], self.x)
            noise = ((z[0] - mu) * torch.exp(-log_sigma)).detach()
            z = [mu + torch.exp(log_sigma) * noise]
            log_weight = log_joint(task.model, theta, [self.x, *z]) - log_proposal(task.proposal, phi, [self.x, *z])
            climb = torch.logsumexp(log_weight, 0).mean() - math.log(task.draws)
        theta_grad = torch.autograd.grad((weight * log_p).sum(0).mean(), self.theta.leaves, retain_graph=True)
        theta_grad = tuple(
            prior_grad(task, leaf.detach()) + task.n_data * grad
            for leaf, grad in zip(self.theta.leaves, theta_grad, strict=True)
        )
        phi_grad = torch.autograd.grad(climb, self.phi.leaves)
        check_draws(task, phi, self.x)
        return (
            {"log_p": log_p.detach().numpy(), "log_q": log_q.detach().numpy()}
            | named("theta_grad", theta, theta_grad)
            | named("phi_grad", phi, phi_grad)
        )

    def summary(self) -> dict[str, float]:
        if self.task.work == "score":
            return {"score": self.score}
        return {
            "temperature": ((self.u**2).mean() / self.task.eta).item(),
            "theta moved": (self.theta.vector - self.start[0]).square().mean().sqrt().item(),
            "phi moved": (self.phi.vector - self.start[1]).square().mean().sqrt().item(),
        }


def log_weight(task: Task, theta: list[Params], phi: list[Params], x: Tensor) -> Tensor:
    z, log_q = propose(task.proposal, phi, x, CHUNK)
    return log_joint(task.model, theta, [x, *z]) - log_q


def check_draws(task: Task, phi: list[Params], x: Tensor) -> None:
    """What a draw says of its own density is what the density says of it."""
    z, log_q = propose(task.proposal, phi, x, task.draws)
    torch.testing.assert_close(log_q, log_proposal(task.proposal, phi, [x, *z]), rtol=1e-4, atol=1e-3)


def named(vector: str, layers: list[Params], grads: tuple[Tensor, ...]) -> Arrays:
    flat = iter(grads)
    return {f"{vector}.{i}.{name}": np.asarray(next(flat)) for i, layer in enumerate(layers) for name in layer}


if __name__ == "__main__":
    serve(Eager())
