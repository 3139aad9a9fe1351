"""Measure how biased the samplers are; write samplers.md and sampler-bias.svg beside this.

python docs/reports/samplers.py                      everything (four minutes of one core)
python docs/reports/samplers.py thermostat passes    these sections only; the rest of the page stays as it is
"""

import itertools
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from doubly import SAMPLERS

HERE = Path(__file__).parent
SEED, CHAINS, BURN_IN = 1, 50_000, 15.0
FRICTION_PER_TIME, FIXED_FRICTION = 1.0, 0.1


class Series(NamedTuple):
    """One line of the picture."""

    label: str
    sampler: str
    steps: tuple[float, ...]
    """Time steps h = sqrt(eta)."""
    time: float
    """How long each chain is averaged over, in units of time."""
    order: int
    """The power of h that is derived in the text."""
    next: int
    """The power of h of the next term, relative to the first."""
    fixed: bool = False
    """Whether the friction a of one step is held, and not a / h."""
    colour: str = "#000000"
    marker: str = "o"
    lift: int = 0
    """Points by which its label is moved up."""


# colours of Okabe and Ito, which the colour-blind can tell apart; markers differ too
SERIES = [
    Series("sgnht, a = 0.1", "sgnht", (0.04, 0.05, 0.07, 0.1, 0.13), 200, 0, 2, True, "#D55E00", "s"),
    Series("sgnht, a = h", "sgnht", (0.02, 0.03, 0.045, 0.07, 0.1), 1000, 1, 1, False, "#E69F00", "D"),
    Series("sgnht-split, a = h", "sgnht-split", (0.05, 0.08, 0.12, 0.18, 0.27), 1000, 2, 2, False, "#0072B2", "o", 4),
    Series("sgld", "sgld", (0.07, 0.1, 0.14, 0.19, 0.25), 700, 2, 2, False, "#CC79A7", "v"),
    Series("sghmc, a = h", "sghmc", (0.08, 0.11, 0.15, 0.2, 0.27), 3000, 2, 1, False, "#009E73", "^", -9),
]


def gradient(theta: torch.Tensor) -> torch.Tensor:
    """Of the log density -theta²/2 - theta⁴/4: anharmonic, so that no scheme is exact by luck."""
    return -theta - theta**3


def exact() -> float:
    """E[theta²], by a sum over a grid, which is exact to rounding for so smooth a density."""
    theta = np.linspace(-8, 8, 4001)
    density = np.exp(-(theta**2) / 2 - theta**4 / 4)
    return float(density @ theta**2 / density.sum())


class Bias(NamedTuple):
    """Bias of E[theta²] and its standard error."""

    value: float
    stderr: float


def bias(sampler: str, h: float, friction: float, time: float, seed: int, chains: int = CHAINS) -> Bias:
    """Measured over independent chains, the elements of one vector; their spread gives the standard error.

    A step is h long in time for samplers with a momentum, and h² for sgld, which has none. The slowest mode of this
    target decays at a rate above 0.4, its square at twice that, and chains start at the mean: what the burn-in leaves
    of the start, averaged over `time`, is below exp(-0.8 * 15) / time < 1e-6.
    """
    eta, made, rng = h**2, SAMPLERS.make(sampler, friction=friction), torch.Generator().manual_seed(seed)
    length = eta if sampler == "sgld" else h
    burn_in, steps = round(BURN_IN / length), round(time / length)
    state, total = made.init(torch.zeros(chains), rng), torch.zeros(chains, dtype=torch.float64)
    for step in range(burn_in + steps):
        state = made.ask(state, eta, rng)
        state = made.tell(state, gradient(state.theta), eta, rng)
        if step >= burn_in:
            total += state.theta**2
    means = total / steps
    return Bias(means.mean().item() - exact(), means.std().item() / math.sqrt(chains))


class Order(NamedTuple):
    """log |bias| = constant + power log h + bend h^next, by weighted least squares."""

    power: float
    stderr: float
    constant: float
    bend: float


def order(steps: tuple[float, ...], found: list[Bias], next: int | None) -> Order:
    """The power of h with which the bias falls as h -> 0; with `next` None, the plain slope of a straight line."""
    h, value, stderr = (np.array(numbers) for numbers in (steps, [b.value for b in found], [b.stderr for b in found]))
    columns = [np.ones_like(h), np.log(h), *([h**next] if next else [])]
    weight = np.abs(value) / stderr  # 1 / the standard error of log |bias|
    design = np.stack(columns, 1) * weight[:, None]
    covariance = np.linalg.inv(design.T @ design)
    constant, power, *bend = covariance @ design.T @ (np.log(np.abs(value)) * weight)
    return Order(float(power), math.sqrt(covariance[1, 1]), float(constant), float(bend[0]) if bend else 0.0)


def measure(series: Series, seed: int) -> list[Bias]:
    found: list[Bias] = []
    for h in series.steps:
        friction = FIXED_FRICTION if series.fixed else FRICTION_PER_TIME * h
        # a seed for each point: from one noise their errors would go together, and the fit takes them as independent
        found.append(bias(series.sampler, h, friction, series.time, seed + len(found)))
        print(f"{series.label:20} h = {h:<6} bias {found[-1].value:+.5f} ± {found[-1].stderr:.5f}", flush=True)
    return found


def picture(results: list[tuple[Series, list[Bias], Order]]) -> Figure:
    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for series, found, fit in results:
        h, size = np.array(series.steps), np.array([abs(b.value) for b in found])
        fine = np.geomspace(h[0], h[-1], 50)
        fitted = np.exp(fit.constant + fit.power * np.log(fine) + fit.bend * fine**series.next)
        axes.plot(fine, fitted, color=series.colour, linewidth=1)
        axes.errorbar(h, size, [b.stderr for b in found], fmt=series.marker, color=series.colour, markersize=5)
        text = f"{series.label}\nh^({fit.power:.2f} ± {fit.stderr:.2f})"
        left = series.order < 2
        place = (h[0], size[0]) if left else (h[-1], size[-1])
        axes.annotate(
            text, place, xytext=(-8 if left else 9, series.lift), textcoords="offset points", color=series.colour,
            ha="right" if left else "left", va="center", fontsize=9,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="h = sqrt(eta)", ylabel="|bias of E[theta²]|")
    axes.set_xlim(0.009, 0.65)
    for axis, ticks in ((axes.xaxis, (0.02, 0.05, 0.1, 0.2)), (axes.yaxis, (0.001, 0.003, 0.01, 0.03))):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def machine() -> str:
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ": unknown")
    return f"{cpu.split(':')[1].strip()}, {torch.get_num_threads()} thread, PyTorch {torch.__version__}"


# The thermostats where noise heats

ETAS, WEIGHTS, SETTLING, MEASURED, STIFF = (1e-2, 1e-4, 1e-6, 1e-8), 6000, 1000, 2000, 0.02
NOISES = {"0.1": "isotropic, b = 0.1", "0 to 1": "anisotropic, b from 0 to 1"}


class Held(NamedTuple):
    """What a chain on noisy Gaussians has, in units in which all of it should be 0, 1 and 1."""

    mean: float
    variance: float
    temperature: float
    stderr: float
    """Of the variance."""


def held(sampler: str, eta: float, noise: str, temperature: float, seed: int) -> Held:
    """Gaussians of precision STIFF / eta, from 3 standard deviations away, with gradients of noise 2 b T / eta.

    The first SETTLING steps are left out. In units of sqrt(eta) the problem is the same at every eta.
    """
    made, rng = SAMPLERS.make(sampler, temperature=temperature), torch.Generator().manual_seed(seed)
    b = torch.linspace(0, 1, WEIGHTS) if noise == "0 to 1" else torch.full((WEIGHTS,), float(noise))
    sd, strength = math.sqrt(eta / STIFF), torch.sqrt(2 * b * temperature / eta)
    state = made.init(torch.zeros(WEIGHTS), rng)
    total, square, energy = torch.zeros(3, WEIGHTS, dtype=torch.float64)
    for step in range(SETTLING + MEASURED):
        state = made.ask(state, eta, rng)
        grad = (3 * sd - state.theta) / sd**2 + strength * torch.randn(WEIGHTS, generator=rng)
        state = made.tell(state, grad, eta, rng)
        if step >= SETTLING:
            off = state.theta.double() / sd - 3
            total, square = total + off, square + off**2 / temperature
            energy = energy + made.stats(state)["temperature"] / temperature
    means = square / MEASURED
    return Held(
        total.mean().item() / MEASURED,
        means.mean().item(),
        energy.mean().item() / MEASURED,
        means.std().item() / math.sqrt(WEIGHTS),
    )


def thermostat_section() -> str:
    rows = []
    for noise, label in NOISES.items():
        for eta in ETAS:
            cells = [f"{eta:.0e}", label]
            for sampler, temperature in (("sgnht", 1.0), ("thermostat", 1.0), ("thermostat", 0.5)):
                found = held(sampler, eta, noise, temperature, SEED + 10 * len(rows) + len(cells))
                moments = f"{found.mean:+.3f}, {found.variance:.3f} ± {found.stderr:.3f}, {found.temperature:.3f}"
                cells.append("diverges" if math.isnan(found.mean) else moments)
            rows.append("| " + " | ".join(cells) + " |")
            print(rows[-1], flush=True)
    return "\n".join(rows)


# Mini-batches there and back


CURVATURES, CENTRES = np.array([0.1, 0.2, 0.3, 0.4]), np.array([3.0, -2.0, 1.5, 0.0])
PASSES = {"back": "`sms-ubu`: there and back", "shuffled": "shuffled every epoch", "drawn": "drawn with replacement"}
PASS_STEPS = (0.16, 0.08, 0.04, 0.02, 0.01)


def centres() -> np.ndarray:
    """Of the mini-batches, moved so that the posterior, which has the precision 1, is centred at 0."""
    return CENTRES - CURVATURES @ CENTRES


class Off(NamedTuple):
    """How far moments are off, averaged over all steps."""

    mean: float
    square: float


def passes_law(h: float, order: str) -> Off:
    """The bias of sms-ubu's step on a Gaussian with four mini-batches, exactly, for a friction a = h.

    Mini-batch j has the gradient 4 k_j (m_j - theta), where k_j sum to 1: the posterior is N(0, 1). With x = (theta, v,
    1) a step is x' = F_j x + noise of covariance Q_j, so second moments S of x move by S' = F_j S F_jᵀ + Q_j. Averaged
    over all 24 orders of a cycle, the stationary S solves a linear system. A cycle is a forward and a backward pass, an
    epoch in a new order, or a single step on a mini-batch that is drawn.
    """
    a, count = FRICTION_PER_TIME * h, len(CURVATURES)
    lost = -math.expm1(-a / 2)
    U, own = np.array([[1, h * lost / a, 0], [0, 1 - lost, 0], [0, 0, 1]]), np.zeros((3, 3))
    own[:2, :2] = [[h**2 * (a - lost * (2 + lost)) / a**2, h * lost**2 / a], [h * lost**2 / a, lost * (2 - lost)]]
    moves = []
    for k, m in zip(CURVATURES, centres(), strict=True):
        B = np.eye(3)
        B[1, 0], B[1, 2] = -h * count * k, h * count * k * m
        moves.append((U @ B @ U, U @ B @ own @ B.T @ U.T + own))
    orders = list(itertools.permutations(range(count)))
    cycles = {"back": [(*one, *one[::-1]) for one in orders], "shuffled": orders, "drawn": [(j,) for j in range(count)]}
    steps = []
    for cycle in cycles[order]:
        F, Q = np.eye(3), np.zeros((3, 3))
        for j in cycle:
            F, Q = moves[j][0] @ F, moves[j][0] @ Q @ moves[j][0].T + moves[j][1]
            steps.append((F, Q))
    ends = steps[len(cycles[order][0]) - 1 :: len(cycles[order][0])]
    kept = np.mean([np.kron(F, F) for F, _ in ends], 0)
    added = np.mean([Q for _, Q in ends], 0).reshape(-1)
    # the last entry of S is 1, which the system itself leaves open
    system, right = np.vstack([np.eye(9) - kept, np.eye(9)[8]]), np.append(added, 1.0)
    S = np.linalg.lstsq(system, right, rcond=None)[0].reshape(3, 3)
    found = np.mean([F @ S @ F.T + Q for F, Q in steps], 0)
    return Off(float(found[0, 2]), float(found[0, 0] - 1))


def passes_section() -> str:
    rows = []
    for name, label in PASSES.items():
        off = [passes_law(h, name).square for h in PASS_STEPS]
        cells = [f"{value:+.5f}" for value in off] + [f"{math.log2(off[-2] / off[-1]):.2f}"]
        rows.append(f"| {label} | " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    return "\n".join(rows)


TEXT = """# Samplers: how biased each is, against its step

1. **The bias of the paper's thermostat (`sgnht`) does not vanish with the step**: with the friction fixed at a = 0.1,
   it samples too narrowly, however small η is. With a friction per unit of time held fixed, it is of order h = √η.
2. **`sgnht-split` is of second order in h**, and so are `sghmc` and `sgld`, but noise in the gradient heats these two.
3. **The measured powers agree with the derived ones**; a test compares them.
4. **Noise of mini-batches heats `sgnht` at small η, where its thermostat stands still; `thermostat` holds its
   temperature at every η**, within 5 % after 330 steps and 1 % after 500.
5. **`sms-ubu` keeps its order h² with mini-batches**, where drawing them at random leaves order h.

## How it was measured

Written by `python docs/reports/samplers.py`; do not edit it by hand. Seed {seed}, {chains:,} chains for each point;
{machine}.

![Bias against the step, with fitted powers](sampler-bias.svg)

The target has the log density -θ²/2 - θ⁴/4, in one dimension, with E[θ²] = {exact:.5f}. The picture shows how far the
average of θ² over long chains is from that. Gradients are exact, so only the error of the step is seen.

**What h is.** With a momentum, u ← u + η grad and θ ← θ + u: η = step / n_data is the *square* of the step in time,
h = √η. The friction a of one step is then h times the friction per unit of time. To see the order of a scheme, the
friction per unit of time is held fixed (here at 1, so a = h). Holding a itself fixed is another limit: the first row.
Langevin dynamics have no momentum. Their step in time is η itself, so h² here is first order in their own time.

## Orders

| sampler | friction | power of h, derived | power of h, measured | bias at h ≈ 0.1 |
|---|---|---|---|---|
{rows}

The powers come from log \\|bias\\| = c + p log h + d hᵐ, by least squares with the weights of the standard errors. The
last term is the next order of the expansion (m = 1, but 2 for `sgnht-split`, `sgld` and the fixed friction), so
that p is the power as h → 0. A straight line through the points of `sgnht` with a = h has the slope
{plain}, through those of `sgnht-split` {plain_split}: they bend a little.
The errors are of sampling only. For `sghmc` two next terms matter, h from η' (see below) and h² from the target. A fit
with one of them gives a power that is somewhat too low.

## Why

* `sgnht`: Euler's thermostat holds E[u²] at η. But at the right temperature of θ, the momentum, which is taken half a
  step away, has E[u²] = η / (1 - α/2). So θ is sampled at the temperature 1 - α/2 (derived at the head of
  `tests/test_samplers.py`), with α near a. This is first order in h if a/h is fixed, and does not converge if a is.
* `sgnht-split` is symmetric, so the expansion of its bias has even powers of h only.
* `sghmc` has no thermostat. With g = a / (1 - a/2) and η' = η / (1 - a/2), its step is
  (1 + g/2) θ₊ - 2 θ + (1 - g/2) θ₋ = η' grad + N(0, 2 g η'). That is the scheme of Brünger, Brooks and Karplus, of
  second order in θ. Only its u is too hot, by about a/2.
* `sgld`: Euler's scheme is of first order in its step η.

## Thermostats and noise

Gaussians of precision k with η k = {stiff}, started three standard deviations away, whose gradients have noise of
variance 2 b T / η: at a friction of a = 0.1 such noise would raise the temperature by b / a. In units of √η this is the
same problem at every η, so a sampler that holds its temperature gives the same numbers in every row. There are
{weights:,} weights; {settling:,} steps are left out, and {measured:,} more are averaged over. The cells have the mean
(0 is right), the variance of θ and the kinetic temperature (1 is right), in units of T.

| η | noise of the gradient | `sgnht`, T = 1 | `thermostat`, T = 1 | `thermostat`, T = 0.5 |
|---|---|---|---|---|
<!-- thermostat -->
{thermostat}
<!-- end -->

`sgnht` adds u² − ηT to α in a step. At η = 1e-2 it settles (and samples too narrowly, by α/2), unless the noise asks
for more friction than Euler's step can bear; at 1e-4 it is on its way; at 1e-6 and below it stands still and the noise
heats. `thermostat` adds (v²/T − 1) / settle to log α, with v = u / √η, so it does not know η. Its law is
derived in `samplers/thermostat.py` and tested in `tests/test_thermostat.py`. `thermostat` is a splitting: friction is
solved exactly, so that noise up to b = 2 can be taken up; Euler's step would be unstable well before that. Noise that
is *correlated* between weights is not taken up exactly by a thermostat for each weight: it is not tested here.

## Mini-batches

The bias of E[θ²] (exact value 1) on a Gaussian with four mini-batches whose centres and curvatures differ, computed
exactly by averaging over all orders; a = h.

| mini-batches | {heads} | power of h |
|---|{rules}---|
<!-- passes -->
{passes}
<!-- end -->

Mini-batches drawn with replacement heat at order h. Going there and back cancels that. Shuffling the rows in every
epoch, which is what the protocol does for the other samplers, cancels it on this target too: each mini-batch is used
once an epoch. Noise that comes from drawn latent variables does not repeat, so nothing cancels it but a thermostat.

## Limits

On this target the thermostats sample too narrowly, `sgld` and `sghmc` too widely; other targets may differ. Gradients
are exact here. Noise of variance s² in them heats `sgld` by a factor of 1 + η s²/2 and `sghmc` by 1 + η s²/(2a), unless
it is told the variance. The thermostats absorb such noise. `tests/test_sampler_laws.py` tests the whole law of every
sampler, with and without noise, and the powers above, in a few seconds.
"""


def page(results: list[tuple[Series, list[Bias], Order]], sections: dict[str, str]) -> str:
    rows = []
    for series, found, fit in results:
        near = min(range(len(found)), key=lambda i: abs(series.steps[i] - 0.1))
        held_at = "none" if series.sampler == "sgld" else f"a = {FIXED_FRICTION}" if series.fixed else "a = h"
        at = f"{found[near].value:+.5f} ± {found[near].stderr:.5f} (h = {series.steps[near]})"
        power = f"{fit.power:.3f} ± {fit.stderr:.3f}"
        rows.append(f"| `{series.sampler}` | {held_at} | {series.order} | {power} | {at} |")
    lines = [order(series.steps, found, None) for series, found, _ in results]
    plain, plain_split = (f"{lines[i].power:.3f} ± {lines[i].stderr:.3f}" for i in (1, 2))
    return TEXT.format(
        seed=SEED, chains=CHAINS, machine=machine(), exact=exact(), rows="\n".join(rows), plain=plain,
        plain_split=plain_split, stiff=STIFF, weights=WEIGHTS, settling=SETTLING, measured=MEASURED,
        heads=" | ".join(f"h = {h}" for h in PASS_STEPS), rules="---|" * len(PASS_STEPS),
        **sections,
    )  # fmt: skip


SECTIONS: dict[str, Callable[[], str]] = {"thermostat": thermostat_section, "passes": passes_section}


def main(only: list[str]) -> None:
    torch.set_num_threads(1)
    sections = {name: write() for name, write in SECTIONS.items() if not only or name in only}
    file = HERE / "samplers.md"
    if only:
        text = file.read_text()
        for name, rows in sections.items():
            text = re.sub(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", rf"\1{rows}\2", text, flags=re.S)
        file.write_text(text)
        return
    results = []
    for i, series in enumerate(SERIES):
        found = measure(series, SEED + 100 * i)
        results.append((series, found, order(series.steps, found, series.next)))
    matplotlib.rcParams["svg.hashsalt"] = "doubly"  # the same numbers make the same file
    picture(results).savefig(HERE / "sampler-bias.svg", metadata={"Date": None})
    file.write_text(page(results, sections))
    print("written: samplers.md, sampler-bias.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
