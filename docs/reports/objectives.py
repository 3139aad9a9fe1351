"""Measure bias and variance of the gradient that each objective gives the proposal; write docs/reports/objectives.md.

python docs/reports/objectives.py   (about a minute of one core)
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly import OBJECTIVES, Chain
from doubly.latents import NAIS, Batch, Pair

HERE = Path(__file__).parent
SEED, DRAWS, ROWS, BLOCKS, BURN_IN = 1, 5, 100, 2000, 300
SPREAD = 0.4  # of the weights
X = torch.tensor([1.0, 0, 1, 1, 0, 0], dtype=torch.float64)


class Atoms(NamedTuple):
    """Values of z that stand for all of them: q(z | x) is `mass` on `z`, exactly or by quadrature."""

    z: Tensor
    log_mass: Tensor


class Case(NamedTuple):
    """A small model with fixed weights, and its proposal."""

    title: str
    model: Chain
    proposal: Chain
    theta: Tensor
    phi: Tensor
    proposed: Callable[["Case", Tensor], Atoms]
    """Atoms of the proposal for X, through which gradients flow to phi."""
    prior: Callable[["Case"], Atoms]
    """Atoms of the model's z."""


def bits(n: int) -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)), dtype=torch.float64)


def nodes() -> Atoms:
    """Gauss and Hermite's for a standard normal."""
    z, mass = (torch.from_numpy(array) for array in np.polynomial.hermite_e.hermegauss(16))
    return Atoms(z[:, None], (mass / mass.sum()).log())


def joint(case: Case, phi: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """log p(X, z) and log q(z | X)."""
    x = X.expand(len(z), -1)
    return case.model.log_prob(case.theta, (x, z)), case.proposal.log_prob(phi, (z,), x)


def binary_proposed(case: Case, phi: Tensor) -> Atoms:
    z = bits(case.model.layers[1].n_out)
    return Atoms(z, joint(case, phi, z)[1])


def binary_prior(case: Case) -> Atoms:
    z = bits(case.model.layers[1].n_out)
    return Atoms(z, Chain(case.model.layers[1:]).log_prob(case.theta[-len(z[0]) :], (z,)))


def normal_proposed(case: Case, phi: Tensor) -> Atoms:
    standard, params = nodes(), case.proposal.unflatten(phi)[0]
    mu, log_sigma = (params[f"W_{head}"] @ X + params[f"b_{head}"] for head in ("mu", "sigma"))
    return Atoms(mu + log_sigma.exp() * standard.z, standard.log_mass)


def weights(chain: Chain, seed: int) -> Tensor:
    return torch.randn(chain.size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * SPREAD


def cases() -> list[Case]:
    binary = Chain.build("sbn", data=6, hidden=(4,)), Chain.build_proposal("sbn", data=6, hidden=(4,))
    normal = (
        Chain.build("sbn,normal", data=6, hidden=(1,)),
        Chain.build_proposal("gaussian:widths=none", data=6, hidden=(1,)),
    )
    units = (
        ("Four binary latent units", *binary, binary_proposed, binary_prior),
        ("One Gaussian latent unit", *normal, normal_proposed, lambda _: nodes()),
    )
    return [Case(title, p, q, weights(p, 1), weights(q, 2), *atoms) for title, p, q, *atoms in units]


def wake(case: Case, phi: Tensor) -> Tensor:
    """E_{p(z|x)}[log q(z | x)]."""
    z, log_mass = (part.detach() for part in case.proposed(case, phi))
    log_p, log_q = joint(case, phi, z)
    return (torch.softmax(log_mass + (log_p - log_q).detach(), 0) * log_q).sum()


def sleep(case: Case, phi: Tensor) -> Tensor:
    """E_{p(x,z)}[log q(z | x)]."""
    prior = case.prior(case)
    rows = bits(len(X))
    x, z = rows.repeat_interleave(len(prior.z), 0), prior.z.repeat(len(rows), 1)
    given = Chain(case.model.layers[:1], z.shape[1])  # p(x | z)
    log_x = given.log_prob(case.theta[: given.size], (x,), z)
    return ((prior.log_mass.repeat(len(rows)) + log_x).exp() * case.proposal.log_prob(phi, (z,), x)).sum()


def bound(case: Case, phi: Tensor, draws: int) -> Tensor:
    """E[L_S] over all sets of S atoms, each as often as there are orders of it; with S = 1 the evidence lower bound."""
    z, log_mass = case.proposed(case, phi)
    log_p, log_q = joint(case, phi, z)
    sets = torch.combinations(torch.arange(len(z)), draws, with_replacement=True)
    same = torch.stack([(sets == i).sum(1) for i in range(len(z))])
    orders = math.lgamma(draws + 1) - torch.lgamma(same.double() + 1).sum(0)
    chance = (orders + log_mass[sets].sum(1)).exp()
    return (chance * (torch.logsumexp((log_p - log_q)[sets], 1) - math.log(draws))).sum()


class Ascended(NamedTuple):
    """What an objective ascends."""

    formula: str
    value: Callable[[Case, Tensor], Tensor]


L_S = Ascended(f"E[L_{DRAWS}]", lambda case, phi: bound(case, phi, DRAWS))
ASCENDED = {
    "wake": Ascended("E_{p(z\\|x)}[log q(z\\|x)]", wake),
    "sleep": Ascended("E_{p(x,z)}[log q(z\\|x)]", sleep),
    "wake-sleep": Ascended("half of each", lambda case, phi: (wake(case, phi) + sleep(case, phi)) / 2),
    "iwae": L_S,
    "dreg": L_S,
    "vimco": L_S,
    "nvil": Ascended("E[L_1]", lambda case, phi: bound(case, phi, 1)),
}


class Measured(NamedTuple):
    gradient: float
    """Norm of the exact gradient."""
    bias: float
    noise: float
    """What the norm of the bias would be by chance, were there none."""
    variance: float
    """Trace of the covariance of the gradient from one row."""
    variance_stderr: float
    scale: float
    """What nvil divides by; 1 for the others."""


def measure(case: Case, name: str, blocks: int = BLOCKS) -> Measured:
    phi = case.phi.clone().requires_grad_()
    (exact,) = torch.autograd.grad(ASCENDED[name].value(case, phi), phi)
    estimator, rng = NAIS(DRAWS, OBJECTIVES.make(name)), torch.Generator().manual_seed(SEED)
    memory = {key: value.double() for key, value in estimator.init(case.model, ROWS, rng).items()}
    x, index, found = X.expand(ROWS, -1), torch.arange(ROWS), []
    for block in range(BURN_IN + blocks):  # nvil has a baseline to learn first
        done = estimator(Batch(Pair(case.model, case.theta, case.proposal, case.phi), x, index, memory, rng), "phi")
        memory = done.memory
        if block >= BURN_IN:
            found.append(done.phi_grad)
    grads = torch.stack(found)
    # rows are independent, so one row has ROWS times the variance of the mean over them
    squares = (grads - grads.mean(0)).square().sum(1) * ROWS * blocks / (blocks - 1)
    variance = squares.mean().item()
    return Measured(
        exact.norm().item(),
        (grads.mean(0) - exact).norm().item(),
        math.sqrt(variance / (ROWS * blocks)),
        variance,
        squares.std().item() / math.sqrt(blocks),
        max(1.0, memory["nvil.variance"].sqrt().item()) if "nvil.variance" in memory else 1.0,
    )


def table(case: Case) -> list[str]:
    lines = [
        f"## {case.title}",
        "",
        f"Model {describe(case.model)}, proposal {describe(case.proposal)}, {case.proposal.size} weights in φ.",
        "",
        "| objective | ascends | norm of gradient | norm of bias (by chance alone) | variance | variance / norm² |",
        "|---|---|---|---|---|---|",
    ]
    for name in OBJECTIVES:
        if OBJECTIVES[name].pathwise and case.model.layers[1].kind == "binary":
            lines.append(f"| `{name}` | {ASCENDED[name].formula} | needs real latent variables | | | |")
            continue
        got = measure(case, name)
        if got.scale > 1:
            raise SystemExit(f"{name} divides by {got.scale}: choose smaller weights, or its bias means nothing")
        print(f"{case.title}: {name:10} {got}", flush=True)
        lines.append(
            f"| `{name}` | {ASCENDED[name].formula} | {got.gradient:.4f} | {got.bias:.4f} ({got.noise:.4f}) "
            f"| {got.variance:.4f} ± {got.variance_stderr:.4f} | {got.variance / got.gradient**2:.1f} |"
        )
    return [*lines, ""]


def describe(chain: Chain) -> str:
    return ", ".join(f"{type(layer).__name__} {layer.n_in} → {layer.n_out}" for layer in chain.layers)


def machine() -> str:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ": unknown")
    return f"{cpu.split(':')[1].strip()}, {torch.get_num_threads()} thread, PyTorch {torch.__version__}"


HEAD = f"""# Objectives: bias and variance of the gradient of the proposal

1. **For real latent variables `dreg` has the least noise** of the three that ascend the bound L_5: a fifth of the
   variance of `iwae`, a seventh of that of `vimco`.
2. **For binary latent variables only `vimco` ascends L_5**; `iwae` and `dreg` need values that can be differentiated.
3. **`wake` is biased** with five draws, and so is half of `wake-sleep`; the bias falls with more draws. The other
   objectives are unbiased.
4. **`sleep` needs the most rows for a gradient**: roughly 10 and 13 in these two cases.
5. **Variances of different objectives compare only relative to the gradient**, in the last column.

## How it was measured

Written by `python docs/reports/objectives.py`; do not edit it by hand. Seed {SEED}, {DRAWS} draws for each row,
{ROWS * BLOCKS:,} rows; MACHINE.

The gradient is that of φ, from one row x and {DRAWS} draws, at fixed weights (normal, of standard deviation {SPREAD}).
Its expectation is computed exactly: by enumeration for binary values, by Gauss-Hermite quadrature for a Gaussian one.
The bias is the distance of the mean of the estimates from the exact gradient; in brackets, the distance expected by
chance without any bias. The variance is the trace of the covariance of the estimates, with its standard error.
"""

TAIL = """## What can be compared with what

* `iwae`, `dreg` and `vimco` ascend the same function, the bound of five draws, so their variances can be compared
  directly. The first two need values that can be differentiated; without such values only `vimco` is left.
* `nvil` ascends the bound of one draw (its five draws are averaged), which has another gradient. It had time to learn
  its baseline, for one x that is always the same; on data it has more to learn. Here the standard deviation of the
  signal is below 1, so `nvil` does not divide by it. Where it does, the gradient is shorter.
* `wake` and `sleep` minimise the KL divergence in the other direction, so their gradients point elsewhere. Besides,
  `sleep` averages over rows x that the model draws, with one draw of z for each. The others use five draws for the
  given x.
* `wake` is biased, and so is half of `wake-sleep`: its weights are normalised over five draws. The bias falls with more
  draws, or as the proposal approaches the posterior. The others are unbiased.
* Across the groups only the last column can be compared: the squared noise of one row divided by the squared gradient,
  so roughly how many rows a gradient takes. It depends on φ. As the proposal approaches the posterior, the gradients of
  the bounds vanish, and so do the variances of `dreg` and `nvil`, but not those of the others.
"""


def main() -> None:
    torch.set_num_threads(1)
    head = HEAD.replace("MACHINE", machine()).splitlines()
    body = [line for case in cases() for line in table(case)]
    (HERE / "objectives.md").write_text("\n".join([*head, "", *body, TAIL]))
    print("written: objectives.md")


if __name__ == "__main__":
    main()
