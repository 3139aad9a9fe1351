"""How much faster the fused kernels are than PyTorch's own way: `python benchmarks/kernels.py [--record]`.

Both sides of a ratio are timed in turn, many times over, in one process with two threads, so that a busy neighbour
slows both. The sizes are the paper's: batch 100, five draws, 784 outputs with MNIST's 13 % of ones, 200 hidden units.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor

from doubly.kernels import bernoulli, choose, darn, gibbs, nade, noise
from doubly.layers.darn import DARN
from results import Table, record

BATCH, DRAWS, WIDTH, HIDDEN, ONES = 100, 5, 784, 200, 0.13
Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """Two ways to do the same work, and how many times faster the second should at least be."""

    name: str
    slow: Work
    fast: Work
    target: float | None = None


@dataclass(frozen=True)
class Result:
    """Milliseconds, best of all, and the ratios slow / fast of the rounds: median and quartiles."""

    name: str
    slow: float
    fast: float
    ratio: float
    lower: float
    upper: float
    target: float | None


def measure(case: Case, rounds: int) -> Result:
    slow, fast = repeated(case.slow), repeated(case.fast)
    pairs = [(slow(), fast()) for _ in range(rounds)]
    lower, ratio, upper = statistics.quantiles([slow / fast for slow, fast in pairs], n=4)
    best_slow, best_fast = (1e3 * min(times) for times in zip(*pairs, strict=True))
    return Result(case.name, best_slow, best_fast, ratio, lower, upper, case.target)


def repeated(work: Work, at_least: float = 0.01) -> Callable[[], float]:
    """A stop-watch for the work, which repeats it until one reading takes some hundredth of a second."""

    def seconds(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - start) / times

    seconds(1)  # the first call may compile
    times = math.ceil(at_least / seconds(3))
    return lambda: seconds(times)


# PyTorch's way


def nade_loop(c: Tensor, r: Tensor, W: Tensor, V: Tensor, value: Tensor) -> Tensor:
    """log p(value), one output after the other."""
    a, outputs = c, []
    for w, v, x in zip(W, V, value.unbind(-1), strict=True):
        outputs.append(torch.sigmoid(a) @ v)
        a = a + x.unsqueeze(-1) * w
    logits = torch.stack(outputs, -1) + r
    return (value * logits - F.softplus(logits)).sum(-1)


def nade_draw_loop(c: Tensor, r: Tensor, W: Tensor, V: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A value and its log-probability, one output after the other."""
    a, values, outputs = c, [], []
    uniform = torch.rand(r.shape, generator=rng)
    for w, v, bias, u in zip(W, V, r.unbind(-1), uniform.unbind(-1), strict=True):
        logits = torch.sigmoid(a) @ v + bias
        x = (u < torch.sigmoid(logits)).float()
        a = a + x.unsqueeze(-1) * w
        values.append(x)
        outputs.append(logits)
    value, logits = torch.stack(values, -1), torch.stack(outputs, -1)
    return value, (value * logits - F.softplus(logits)).sum(-1)


def both_passes(log_prob: Callable[..., Tensor], inputs: tuple[Tensor, ...], value: Tensor) -> Work:
    return lambda: torch.autograd.grad(log_prob(*inputs, value).sum(), inputs)


def without_grad(work: Work) -> Work:
    return torch.no_grad()(work)


# the cases


def cases() -> list[Case]:
    rng = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=rng)

    def bits(ones: float) -> Tensor:
        return (torch.rand(BATCH, WIDTH, generator=rng) < ones).float()

    logits, value = normal(DRAWS * BATCH, WIDTH), bits(ONES).repeat(DRAWS, 1)
    watched = logits.clone().requires_grad_()
    values = {ones: bits(ones) for ones in (ONES, 0.55)}
    c, r = normal(DRAWS, BATCH, HIDDEN), normal(DRAWS, BATCH, WIDTH)
    model = c, r, normal(WIDTH, HIDDEN, scale=0.1), normal(WIDTH, HIDDEN, scale=0.1)
    for tensor in model:
        tensor.requires_grad_()
    start, bias = normal(BATCH, HIDDEN), normal(BATCH, HIDDEN)
    proposal = normal(HIDDEN, HIDDEN, scale=0.1), normal(HIDDEN, HIDDEN, scale=0.1)
    many = start.repeat(DRAWS, 1), bias.repeat(DRAWS, 1)
    square = normal(WIDTH, WIDTH, scale=0.02).tril(-1)
    return [
        Case(
            "Bernoulli log-prob + residual, 500 x 784",
            lambda: ((value * watched - F.softplus(watched)).sum(-1), value - torch.sigmoid(logits)),
            lambda: bernoulli.log_prob(watched, value),
            5,
        ),
        Case(
            "  against softplus + sigmoid alone",
            lambda: (F.softplus(watched), torch.sigmoid(logits)),
            lambda: bernoulli.log_prob(watched, value),
            5,
        ),
        Case(
            "Bernoulli log-prob + gradient by autograd, 500 x 784",
            both_passes(bernoulli.plain_log_prob, (watched,), value),
            both_passes(bernoulli.fused_log_prob, (watched,), value),
        ),
        Case(
            "Bernoulli draw + log-prob, 500 x 784",
            without_grad(lambda: bernoulli.plain_log_prob(logits, bernoulli.plain_draw(logits, rng))),
            without_grad(lambda: bernoulli.draw_with_log_prob(logits, rng)),
        ),
        Case(
            "157,000 normals",
            lambda: torch.randn(157_000, generator=rng),
            lambda: noise.normal((157_000,), rng),
            3,
        ),
        Case(
            "NADE 784/200 log-prob",
            without_grad(lambda: nade_loop(*model, values[ONES])),
            without_grad(lambda: nade.log_prob(*model, values[ONES])),
            15,
        ),
        Case(
            "NADE 784/200 log-prob + gradient",
            both_passes(nade_loop, model, values[ONES]),
            both_passes(nade.log_prob, model, values[ONES]),
            12,
        ),
        Case(
            "  the same with 55 % of ones",
            both_passes(nade_loop, model, values[0.55]),
            both_passes(nade.log_prob, model, values[0.55]),
        ),
        Case(
            "NADE proposal 784->200: draw + log-prob",
            lambda: nade_draw_loop(*many, *proposal, rng),
            lambda: nade.draw(start, bias, *proposal, rng, DRAWS),
            10,
        ),
        Case(
            "DARN 784 draw, 500 rows",
            lambda: darn.plain_draw(r[0].detach() - 2, square, rng, DRAWS),
            lambda: darn.draw(r[0].detach() - 2, square, rng, DRAWS),
        ),
        darn_case(values[ONES], rng),
        *gibbs_cases(1, rng),
        *gibbs_cases(DRAWS, rng),
    ]


def darn_case(value: Tensor, rng: torch.Generator) -> Case:
    """The layer's log-prob and gradient against nothing but its products, which it may exceed by half."""
    layer = DARN(HIDDEN, WIDTH)
    params = {name: tensor.requires_grad_() for name, tensor in layer.init(rng).items()}
    given = (torch.rand(DRAWS, BATCH, HIDDEN, generator=rng) < 0.5).float()
    matrix, rows = torch.randn(WIDTH, WIDTH, generator=rng), given.view(-1, HIDDEN)
    U, sent_back = torch.randn(WIDTH, HIDDEN, generator=rng), torch.randn(DRAWS * BATCH, WIDTH, generator=rng)

    def products() -> list[Tensor]:
        return [rows @ U.T, value @ matrix.T, sent_back.T @ rows, sent_back[:BATCH].T @ value]

    def layered() -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer.log_prob(params, value, given).sum(), list(params.values()))

    return Case("DARN 784 log-prob + gradient, against its products", products, layered, 1 / 1.5)


@njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
def floor_row(x, y, factors, k):
    """One fma and one product for each logit, which are summed up to nothing that would be of use."""
    g, product = factors[k], np.float32(1)
    for i in range(g.shape[0]):
        product *= x[i] + y[i] * g[i]
    return product


@njit(parallel=True, error_model="numpy")
def floor(state, factors, out):
    """What no sweep by products can do without: every row of the state times every row of the factors."""
    for row in prange(out.shape[0]):
        for k in range(factors.shape[0]):
            out[row] += floor_row(state[row, 0], state[row, 1], factors, k)


def gibbs_cases(chains: int, rng: torch.Generator) -> list[Case]:
    """A sweep over the units of an SBN in equilibrium, against PyTorch's way and against the floor (ratio below 1)."""
    W, bias = 0.3 * torch.randn(HIDDEN, WIDTH, generator=rng), torch.randn(WIDTH, generator=rng) - 2
    x = (torch.rand(BATCH, WIDTH, generator=rng) < ONES).float()
    field = torch.randn(HIDDEN, generator=rng) + x @ W.T
    value = (torch.rand(chains, BATCH, HIDDEN, generator=rng) < 0.5).float()
    for _ in range(20):
        value = gibbs.sweep(value, field, value @ W + bias, W, None, rng).value
    logits = value @ W + bias
    some = torch.rand(HIDDEN, generator=rng) < 0.3
    factors, rows = W.exp().numpy(), torch.sigmoid(logits).view(-1, 1, WIDTH)
    state, out = torch.cat([1 - rows, rows], 1).numpy(), np.empty(chains * BATCH, np.float32)

    def bare() -> None:
        choose.loops()  # as many threads as PyTorch has
        floor(state, factors, out)

    def sweep(chosen: Tensor | None = None) -> Work:
        return lambda: gibbs.sweep(value, field, logits, W, None, rng, None, chosen)

    name = f"Gibbs sweep 784-200, {chains * BATCH} rows"
    return [
        Case(name, lambda: gibbs.plain_sweep(value, field, logits, W, None, rng), sweep()),
        Case("  its floor against it", bare, sweep()),
        Case("  all units against 30 % of them", sweep(), sweep(some)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=25, help="times that each pair is measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", action="store_true", help="write results.json and docs/reports/performance.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = []
    print(f"{'':52}{'PyTorch':>10}{'fused':>10}{'ratio':>8}{'quartiles':>16}{'target':>8}")
    for case in cases():
        result = measure(case, options.rounds)
        results.append(result)
        spread, target = f"{result.lower:.2f} - {result.upper:.2f}", f"{result.target:.2g}" if result.target else ""
        times = f"{result.slow:7.2f} ms{result.fast:7.2f} ms"
        print(f"{result.name:52}{times}{result.ratio:8.2f}{spread:>16}{target:>8}", flush=True)
    if options.record:
        head = ["work", "PyTorch, ms", "fused, ms", "ratio (quartiles)", "target"]
        table = Table(head, [list(cells(result)) for result in results])
        record("kernels", [asdict(result) for result in results], table, "python benchmarks/kernels.py")


def cells(result: Result) -> Iterator[str]:
    yield result.name.replace("  ", "… ")
    yield from (f"{result.slow:.2f}", f"{result.fast:.2f}")
    yield f"{result.ratio:.2f} ({result.lower:.2f} – {result.upper:.2f})"
    yield f"{result.target:.2g}" if result.target else ""


if __name__ == "__main__":
    main()
