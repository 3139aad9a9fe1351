"""Reference posteriors of three tiny models, by Hamiltonian Monte Carlo on the exact likelihood, without doubly.

Each model is written out here by hand: log p(x | theta) is a sum over its binary latents, or for a normal latent a
quadrature, all in double precision. 256 chains of HMC, each started at a draw of the prior N(0, 1), give
the posterior of the weights given some rows. What is kept in references.json are the rows, and for functions that do
not change when units are exchanged the mean, the standard deviation, five quantiles and the standard error of the
mean, from the spread of the chains. It is made anew, in some minutes, with

    python tests/references.py
"""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

FILE = Path(__file__).with_name("references.json")
VISIBLE, ROWS = 4, 30
CHAINS, BURN_IN, ITERATIONS = 256, 150, 1000
FUNCTIONS = ("norm", "likelihood", "first", "bias")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
EVERY_X = torch.tensor(list(itertools.product((0.0, 1.0), repeat=VISIBLE)), dtype=torch.float64)


def log_bernoulli(x: Tensor, logit: Tensor) -> Tensor:
    """Summed over the last axis."""
    return (x * logit - F.softplus(logit)).sum(-1)


def cut(theta: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Weights (chains, size) as arrays (chains, *shape), in this order."""
    parts = theta.split([math.prod(shape) for shape in shapes], 1)
    return [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


def sbn(theta: Tensor) -> Tensor:
    """Two binary latents: log p(x) of every x, (chains, 16)."""
    W, b, c = cut(theta, (VISIBLE, 2), (VISIBLE,), (2,))
    z = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    logit = torch.einsum("zh,cdh->czd", z, W) + b[:, None]
    given = log_bernoulli(EVERY_X, logit[:, :, None])
    return (given + log_bernoulli(z, c[:, None])[:, :, None]).logsumexp(1)


def nade(theta: Tensor) -> Tensor:
    """One binary latent above a NADE of two hidden units: no latent units that could be exchanged."""
    V, W, U, R, a, b, c = cut(theta, (VISIBLE, 2), (VISIBLE - 1, 2), (2, 1), (VISIBLE, 1), (2,), (VISIBLE,), (1,))
    found = []
    for z in (0.0, 1.0):
        hidden = (a + z * U[..., 0])[:, None].expand(-1, len(EVERY_X), -1)
        total = -F.softplus(-c[:, 0] if z else c[:, 0])[:, None]
        for i in range(VISIBLE):
            logit = torch.einsum("cxk,ck->cx", torch.sigmoid(hidden), V[:, i]) + (z * R[:, i] + b[:, i, None])
            total = total + EVERY_X[:, i] * logit - F.softplus(logit)
            if i + 1 < VISIBLE:
                hidden = hidden + EVERY_X[:, i, None] * W[:, i, None]
        found.append(total)
    return torch.stack(found).logsumexp(0)


def vae(theta: Tensor) -> Tensor:
    """One normal latent and two deterministic units of tanh."""
    W0, b0, W, b = cut(theta, (2, 1), (2,), (VISIBLE, 2), (VISIBLE,))
    # the trapezoid rule: its error is exp(-2 pi d / h), with d = pi / (2 |W0|) the distance of tanh's pole and h = 0.2
    z = torch.linspace(-6.4, 6.4, 65, dtype=torch.float64)
    log_weight = (-z.square() / 2).log_softmax(0)
    features = torch.tanh(z[:, None] * W0[:, None, :, 0] + b0[:, None])
    logit = torch.einsum("czk,cdk->czd", features, W) + b[:, None]
    given = torch.einsum("xd,czd->czx", EVERY_X, logit) - F.softplus(logit).sum(-1, keepdim=True)
    return (given + log_weight[:, None]).logsumexp(1)


@dataclass(frozen=True)
class Model:
    """A model as doubly names it, and as it is written out above."""

    names: str
    hidden: tuple[int, ...]
    proposal: str
    size: int
    law: Callable[[Tensor], Tensor]
    bias: slice
    """Where the biases of the data layer stand."""

    def functions(self, theta: Tensor, rows: Tensor) -> Tensor:
        """|theta|², log p(X | theta), p(x_1 = 1 | theta) and the mean bias of weights (chains, size)."""
        law = self.law(theta)
        first = law[:, EVERY_X[:, 0] == 1].exp().sum(1)
        return torch.stack([theta.square().sum(1), law @ counts(rows), first, theta[:, self.bias].mean(1)], 1)


MODELS = {
    "sbn": Model("sbn", (2,), "sbn", 14, sbn, slice(8, 12)),
    "nade": Model("nade:width=2,sbn", (1,), "sbn", 27, nade, slice(22, 26)),
    "vae": Model("mlp:widths=2,normal", (1,), "gaussian:widths=4", 16, vae, slice(12, 16)),
}


def counts(rows: Tensor) -> Tensor:
    """How often each of the 16 rows occurs."""
    return (rows.double()[:, None] == EVERY_X).all(2).double().sum(0)


def hmc(model: Model, rows: Tensor, rng: torch.Generator) -> tuple[Tensor, float]:
    """The functions of the samples, (iterations, chains, functions), and the share of proposals accepted."""
    n = counts(rows)

    def log_density(theta: Tensor) -> tuple[Tensor, Tensor]:
        theta = theta.detach().requires_grad_()
        value = model.law(theta) @ n - theta.square().sum(1) / 2
        return value.detach(), torch.autograd.grad(value.sum(), theta)[0]

    theta = torch.randn(CHAINS, model.size, generator=rng, dtype=torch.float64)
    value, grad = log_density(theta)
    found, accepted = [], 0.0
    for t in range(BURN_IN + ITERATIONS):
        u = torch.randn(theta.shape, generator=rng, dtype=torch.float64)
        # paths of random length, so that no frequency of the target is in step with them
        size = 0.22 * (0.8 + 0.4 * torch.rand((), generator=rng, dtype=torch.float64))
        length = int(torch.randint(4, 11, (), generator=rng))
        at, slope, v = theta, grad, u
        for _ in range(length):
            v = v + size / 2 * slope
            at = at + size * v
            height, slope = log_density(at)
            v = v + size / 2 * slope
        rise = height - v.square().sum(1) / 2 - value + u.square().sum(1) / 2
        taken = torch.rand(CHAINS, generator=rng, dtype=torch.float64).log() < rise
        theta = torch.where(taken[:, None], at, theta)
        value, grad = torch.where(taken, height, value), torch.where(taken[:, None], slope, grad)
        if t >= BURN_IN:
            found.append(model.functions(theta, rows))
            accepted += taken.double().mean().item() / ITERATIONS
    return torch.stack(found), accepted


def simulate(model: Model, rng: torch.Generator) -> Tensor:
    """Rows from the model with weights of the prior, 1.3 times as large: there is something to learn."""
    theta = 1.3 * torch.randn(1, model.size, generator=rng, dtype=torch.float64)
    return EVERY_X[torch.multinomial(model.law(theta)[0].exp(), ROWS, replacement=True, generator=rng)]


def reference(name: str) -> dict:
    model, rng = MODELS[name], torch.Generator().manual_seed(list(MODELS).index(name))
    rows = simulate(model, rng)
    samples, accepted = hmc(model, rows, rng)
    half = ITERATIONS // 2
    drift = samples[half:].mean((0, 1)) - samples[:half].mean((0, 1))
    found = {"rows": [int("".join(str(int(bit)) for bit in row), 2) for row in rows], "accepted": round(accepted, 3)}
    for i, function in enumerate(FUNCTIONS):
        one = samples[..., i]
        error = one.mean(0).std() / math.sqrt(CHAINS)
        found[function] = {
            "mean": round(one.mean().item(), 5),
            "sd": round(one.std().item(), 5),
            "stderr": round(error.item(), 5),
            "quantiles": [round(v, 5) for v in np.quantile(one.numpy(), QUANTILES).tolist()],
        }
        # burn-in was long enough: the halves differ by no more than chance; 2 errors of a mean of half the samples
        assert abs(drift[i]) < 4 * 2 * error, (name, function, drift[i], error)
    return found


def rows_of(found: dict) -> Tensor:
    """The rows of a reference, as bits."""
    return torch.stack([EVERY_X[number] for number in found["rows"]]).float()


if __name__ == "__main__":
    torch.set_num_threads(1)
    FILE.write_text(json.dumps({name: reference(name) for name in MODELS}, indent=1) + "\n")
