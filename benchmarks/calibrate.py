"""Simulation-based calibration of the whole chain of inference on small models (Talts et al. 2018).

Weights are drawn from the prior, data from the model with these weights, and the posterior is sampled from the data. If
inference is right, the rank of a function of the true weights among that of the sampled ones is uniform. The functions
do not change when latent units are exchanged: |theta|^2, log p(X | theta), p(x_1 = 1 | theta), the mean of the data
layer's biases. Of binary latents log p(X | theta) is a sum, of two normal ones a quadrature. Replicate r has the same
weights and data in every case of a model, so that cases can be compared replicate by replicate.

    python benchmarks/calibrate.py                      all cases, 200 replicates each; then the page and its picture
    python benchmarks/calibrate.py sbn-gibbs --look     the numbers of one case that were found before

What was run before is kept in benchmarks/calibration/, a file for each case, and gone on with. A case is one entry of
`cases()`.
"""

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from doubly import SAMPLERS
from doubly.core.random import generator
from doubly.kernels import choose
from doubly.latents import Batch, Estimate, Estimator, Memory, Wanted
from doubly.layers import Chain
from doubly.runs.build import Facts, build
from doubly.runs.config import Config
from doubly.training.method import Method
from doubly.training.state import init
from doubly.training.step import step

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from stacked import join, split, stack, stacked

FOLDER = Path("benchmarks/calibration")
PAGE, PICTURE = Path("docs/reports/calibration.md"), Path("docs/reports/calibration.svg")
REPLICATES = 200
BLOCK = 100  # replicates in one run
BETWEEN = 4  # recordings for each of them: these have the mean and the standard deviation
BINS = 8


@dataclass(frozen=True)
class World:
    """A model small enough for its likelihood to be computed, with its prior N(0, 1) and the size of its data."""

    model: str
    hidden: tuple[int, ...]
    proposal: str
    visible: int = 5
    rows: int = 40
    kind: str = "binary"
    """Of the data."""

    def chain(self) -> Chain:
        return Chain.build(self.model, data=self.visible, hidden=self.hidden)


@dataclass(frozen=True)
class Case:
    """A way of sampling the posterior of a world."""

    world: World
    estimator: str
    sampler: str = "sgnht-split"
    step: float = 0.4
    """eta = step / rows."""
    friction: float = 0.2
    batch: int = 20
    burn_in: int = 250
    thin: int = 32
    """Steps between two of the samples that are ranked."""
    draws: int = 15
    """Samples that are ranked: the rank of the truth lies between 0 and this."""
    settings: dict[str, Any] = field(default_factory=dict)
    """More settings of the run."""


SBN = World("sbn", (2,), "sbn")
NADE = World("nade:width=3,sbn", (2,), "sbn")
VAE = World("mlp:widths=3,normal", (2,), "gaussian:widths=6")
# a binary, a real, a category and an ordinal column; the floor keeps the precision of the real one below the others' by
# no more than a step of 0.2 bears
MIXED = World("mixed:columns=b-r-c3-o3,floor=0.99,normal", (2,), "gaussian:widths=6", visible=8, kind="mixed")
NAIS = 600  # steps of burn-in: a unit that the first, ignorant proposals have switched off takes long to come back
# remembered states, by a move that takes all data sets at once
LANGEVIN = "persistent:moves=langevin"
EXACT = "exact"


def cases() -> dict[str, Case]:
    """Estimators of the latents first; then every sampler, each with an estimator that has no bias."""
    found = {
        "sbn-nais-5": Case(SBN, "nais:draws=5", burn_in=NAIS),
        "sbn-nais-20": Case(SBN, "nais:draws=20", burn_in=NAIS),
        "nade-nais-5": Case(NADE, "nais:draws=5", burn_in=NAIS),
        "nade-nais-20": Case(NADE, "nais:draws=20", burn_in=NAIS),
        "nade-persistent": Case(NADE, "persistent"),
        "vae-nais-5": Case(VAE, "nais:draws=5", burn_in=NAIS, settings={"objective": "iwae"}),
        "vae-nais-20": Case(VAE, "nais:draws=20", burn_in=NAIS, settings={"objective": "iwae"}),
        "vae-persistent": Case(VAE, "persistent"),
        # a quarter of the step: what is left of the others' offsets is due to it
        "vae-small-step": Case(VAE, "persistent", step=0.1, friction=0.1, thin=64, burn_in=500),
        # gradients by enumeration and quadrature: what the sampler does without any estimator of the latents
        "sbn-exact": Case(SBN, EXACT),
        "nade-exact": Case(NADE, EXACT),
        "vae-exact": Case(VAE, EXACT),
        "mixed-nais-20": Case(
            MIXED, "nais:draws=20", step=0.2, thin=48, burn_in=2 * NAIS, settings={"objective": "iwae"}
        ),
        "mixed-persistent": Case(MIXED, "persistent", step=0.2, thin=48, burn_in=400),
        "sbn-persistent": Case(SBN, "persistent"),
        "sbn-gibbs": Case(SBN, "gibbs"),
    }
    found["sgnht-friction-0.2"] = Case(SBN, LANGEVIN, "sgnht")
    noisy = [name for name in SAMPLERS if SAMPLERS[name].noisy and name != Case.sampler]
    return found | {f"sampler-{name}": SAMPLER_CASES.get(name, Case(SBN, LANGEVIN, name)) for name in noisy}


# the paper's thermostat samples at the temperature 1 - alpha / 2, so its friction is small here;
# without a thermostat the noise of mini-batches heats the chain: all rows in each step leave that of the latents alone
SAMPLER_CASES = {
    "thermostat": Case(SBN, LANGEVIN, "thermostat", burn_in=400),
    "thermostat-scalar": Case(SBN, LANGEVIN, "thermostat-scalar", batch=40, burn_in=400),
    "sms-ubu": Case(SBN, LANGEVIN, "sms-ubu", step=0.3, friction=0.3, thin=48),
    "sgnht": Case(SBN, LANGEVIN, "sgnht", step=0.3, friction=0.03, batch=40, thin=48),
    "sgnht-scalar": Case(SBN, LANGEVIN, "sgnht-scalar", step=0.3, friction=0.03, batch=40, thin=48),
    "sghmc": Case(SBN, LANGEVIN, "sghmc", step=0.3, friction=0.3, batch=40, thin=48),
    "sgld": Case(SBN, LANGEVIN, "sgld", step=0.3, batch=40, thin=100, draws=7),
    "psgld": Case(SBN, LANGEVIN, "psgld", step=0.05, batch=40, thin=100, draws=7),
}


# Replicates, a block of them in one run


class Replicate(NamedTuple):
    """For each function: where the truth is, and what the chain says."""

    rank: list[int]
    offset: list[float]
    """By how many posterior standard deviations the posterior mean is above the truth."""
    mean: list[float]
    sd: list[float]
    drift: list[float]
    """The second half of the recordings minus the first, in standard deviations: burn-in has to leave none."""
    correlation: list[float]
    """Of one ranked sample with the next: thinning has to leave little."""


FUNCTIONS = ("‖θ‖²", "log p(X)", "p(x₁ = 1)", "mean bias")


def functions(world: World, thetas: Tensor, x: Tensor) -> Tensor:
    """Of weights (R, size) and data sets (R, rows, visible): (R, functions)."""
    model, copies = stack(world.chain(), len(thetas)), len(thetas)
    with torch.no_grad():
        thetas = thetas.double()
        theta = join(model, thetas)
        params = model.unflatten(theta)[0]
        bias = params[next(name for name in ("b", "b_logits", "b_scores") if name in params)].mean(1)
        if world.kind == "binary":  # every row that there is; those of the data are among them
            every = _bits(world.visible)
            law = _marginal(model, theta, every.repeat(copies, 1)).view(copies, -1)
            number = (x.double() @ 2.0 ** torch.arange(world.visible - 1, -1, -1, dtype=torch.float64)).long()
            whole, first = law.gather(1, number).sum(1), law[:, every[:, 0] == 1].exp().sum(1)
        else:
            whole = _marginal(model, theta, x.double().flatten(0, 1)).view(copies, -1).sum(1)
            z, log_weight = _nodes(model)
            share = torch.softmax(log_weight - z.square().sum(1) / 2, 0)  # of the standard normal latents
            one = model.layers[0].mean(params, x.double()[:, 0], z[:, None].expand(-1, copies, -1))[..., 0]
            first = share @ one
        return torch.stack([thetas.square().sum(1), whole, first, bias], 1)


def _marginal(model: Chain, theta: Tensor, rows: Tensor) -> Tensor:
    """log p(x) of rows (R B, D), those of each data set after those of the one before it."""
    z, log_weight = _nodes(model)
    return (model.log_prob(theta, (rows, z[:, None].expand(-1, len(rows), -1))) + log_weight[:, None]).logsumexp(0)


def _bits(width: int) -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=width)), dtype=torch.float64)


def _nodes(model: Chain) -> tuple[Tensor, Tensor]:
    """Values of the latents whose p(x, z), times the weights exp(log_weight), sum to p(x)."""
    top = model.layers[-1]
    if top.kind == "binary":
        z = _bits(top.n_out)
        return z, torch.zeros(len(z), dtype=torch.float64)
    at, weight = np.polynomial.hermite_e.hermegauss(12)
    z = torch.tensor(list(itertools.product(at, repeat=top.n_out)))
    weights = torch.tensor(list(itertools.product(np.log(weight), repeat=top.n_out))).sum(1)
    return z, weights + z.square().sum(1) / 2  # p(x, z) has the normal density, which these weights have, too


@dataclass(frozen=True)
class Exact(Estimator):
    """The gradient of log p(x) itself; the proposal is not used."""

    def check(self, model: Chain, proposal: Chain) -> None:
        pass

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        return {}

    def __call__(self, batch: Batch, wanted: Wanted = "both") -> Estimate:
        pair = batch.pair
        theta = pair.theta.detach().double().requires_grad_()
        mean = _marginal(pair.model, theta, batch.x.double()).mean()
        (gradient,) = torch.autograd.grad(mean, theta)
        stats = {"train": mean.detach().float(), "ess": torch.ones(())}
        return Estimate(gradient.float(), torch.zeros_like(pair.phi), batch.memory, stats)


def simulate(world: World, replicate: int) -> tuple[Tensor, Tensor]:
    """Weights from the prior and rows from the model with these weights."""
    rng = generator("cpu", replicate, "calibrate")
    model = world.chain()
    truth = torch.randn(model.size, generator=rng)
    return truth, model.sample(truth, world.rows, rng)[0]


def method(case: Case, seed: int, copies: int) -> Method:
    world = case.world
    config = Config(
        **{
            "model": world.model,
            "proposal": world.proposal,
            "hidden": world.hidden,
            "prior": "normal:scale=1",
            "sampler": case.sampler,
            "step": case.step,
            "friction": case.friction,
            "estimator": "nais" if case.estimator == EXACT else case.estimator,
            "phi_step": 0.02,
            "theta_steps": 1,
            "batch": case.batch,
            "seed": seed,
            **case.settings,
        }
    )
    chosen = stacked(build(config, Facts(world.visible, world.kind, (world.visible,))), copies)
    return replace(chosen, estimator=Exact()) if case.estimator == EXACT else chosen


def walk(case: Case, x: Tensor, seed: int, steps: int) -> Iterator[Tensor]:
    """The weights (R, size) after each step on data sets (R, rows, visible), in the order of mini-batches of a run.

    The weights start at a draw of the prior, which is wider than the posterior. Moves and samplers tune themselves in
    the burn-in only, as in a run.
    """
    copies, n = x.shape[:2]
    chosen, rows = method(case, seed, copies), x.flatten(0, 1)
    state = init(chosen, rows)
    theta = torch.randn(chosen.model.size, generator=state.rng)
    state = state._replace(theta=chosen.sampler.init(theta, state.rng))
    index: list[Tensor] = []
    for t in range(case.burn_in + steps):
        epoch, batch = divmod(t, n // case.batch)
        if batch == 0 and chosen.sampler.there_and_back and epoch % 2:
            index.reverse()
        elif batch == 0:  # each data set has an order of its own
            order = torch.rand(copies, n, generator=state.rng).argsort(1) + n * torch.arange(copies)[:, None]
            index = [part.reshape(-1) for part in order.split(case.batch, 1)]
        part = index[batch]
        if t == case.burn_in:
            state = state._replace(theta=chosen.sampler.hold(state.theta))
        state = step(chosen, state._replace(began=None if t < case.burn_in else 0), rows[part], part, len(rows))
        if t >= case.burn_in:
            yield split(chosen.model, state.theta.theta)


def run_block(case: Case, numbers: range) -> list[Replicate]:
    """These replicates, each with its own data, in one run."""
    pairs = [simulate(case.world, number) for number in numbers]
    truth, x = torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    every, found = case.thin // BETWEEN, []
    for t, thetas in enumerate(walk(case, x, numbers.start, case.thin * case.draws), start=1):
        if t % every == 0:
            found.append(functions(case.world, thetas, x))
    sampled, true = torch.stack(found).numpy(), functions(case.world, truth, x).numpy()
    mean, sd = sampled.mean(0), sampled.std(0, ddof=1)
    first, second = np.split(sampled, 2)
    ranked = sampled[BETWEEN - 1 :: BETWEEN]
    near = ((ranked[1:] - mean) * (ranked[:-1] - mean)).mean(0) / sd**2
    fields = ((mean - true) / sd, mean, sd, (second.mean(0) - first.mean(0)) / sd, near)
    ranks = (ranked < true).sum(0).tolist()
    return [Replicate(ranks[r], *(value[r].round(5).tolist() for value in fields)) for r in range(len(pairs))]


# All replicates of a case, kept as they come


def kept(name: str, case: Case) -> list[Replicate]:
    """The replicates that were run with these settings."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    if _case(found["case"]) != case:
        raise SystemExit(f"{path} was run with other settings: delete it to start over, or bring them back")
    return [Replicate(*replicate) for replicate in found["replicates"]]


def kernels() -> str:
    """Their random numbers differ, and so do the rows that are drawn from a model."""
    return "plain" if os.environ.get(choose.VARIABLE) == "0" else "fused"


def _data(name: str) -> str:
    """With which kernels the data of a case were drawn."""
    return str(json.loads((FOLDER / f"{name}.json").read_text()).get("kernels", "fused"))


def _case(fields: dict[str, Any]) -> Case:
    """As it was written; a setting that there was not then has its default."""
    world = fields["world"] | {"hidden": tuple(fields["world"]["hidden"])}
    return Case(**fields | {"world": World(**world)})


def keep(name: str, case: Case, replicates: list[Replicate], seconds: float) -> None:
    path = FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head: dict[str, Any] = {
        "functions": FUNCTIONS,
        "fields": Replicate._fields,
        "case": asdict(case),
        "cpu_seconds": seconds,
    }
    head["kernels"] = kernels()
    lines = ",\n".join(json.dumps(replicate) for replicate in replicates)
    text = json.dumps(head, ensure_ascii=False)[:-1] + f', "replicates": [\n{lines}\n]}}\n'
    beside = path.with_suffix(".tmp")
    beside.write_text(text)
    beside.replace(path)


def run(name: str, case: Case, wanted: int) -> None:
    """Go on until there are as many replicates as wanted; every block is written."""
    found, path = kept(name, case), FOLDER / f"{name}.json"
    spent = json.loads(path.read_text())["cpu_seconds"] if found else 0.0
    while len(found) < wanted:
        start = time.process_time()
        found += run_block(case, range(len(found), min(len(found) + BLOCK, wanted)))
        spent += time.process_time() - start
        keep(name, case, found, round(spent, 1))


# What they say


class Verdict(NamedTuple):
    """Of one function in one case."""

    counts: list[int]
    """Of the ranks in eight bins."""
    p: float
    """chi-square of these counts against equal ones."""
    offset: float
    """The posterior mean minus the truth, in posterior standard deviations; its mean over the replicates."""
    stderr: float
    drift: float
    drift_stderr: float
    correlation: float


def verdicts(case: Case, replicates: list[Replicate]) -> list[Verdict]:
    found = []
    for i in range(len(FUNCTIONS)):
        rank = np.array([replicate.rank[i] for replicate in replicates])
        counts = np.bincount(rank * BINS // (case.draws + 1), minlength=BINS)
        offset, stderr = _mean([replicate.offset[i] for replicate in replicates])
        drift = _mean([replicate.drift[i] for replicate in replicates])
        correlation, _ = _mean([replicate.correlation[i] for replicate in replicates])
        p = float(stats.chisquare(counts).pvalue)
        found.append(Verdict(counts.tolist(), p, offset, stderr, *drift, correlation))
    return found


def shift(one: list[Replicate], other: list[Replicate], i: int) -> tuple[float, float]:
    """By how many standard deviations the first's posterior means are above the other's of the same data."""
    pairs = zip(one, other, strict=False)
    return _mean([2 * (a.mean[i] - b.mean[i]) / (a.sd[i] + b.sd[i]) for a, b in pairs])


def level(case: Case, replicates: list[Replicate]) -> tuple[float, float]:
    """The mean rank of ‖θ‖² above one half, in standard errors: as it is, and without what chance gave the truths.

    Weights that were drawn from the prior happen to be larger or smaller than these are in the mean, the same for all
    cases. Where the true ‖θ‖² stands under the prior is known to be uniform, and it explains most of a rank: what it
    explains is taken out (a control variate).
    """
    size = case.world.chain().size
    drawn = [torch.randn(size, generator=generator("cpu", i, "calibrate")) for i in range(len(replicates))]
    quantile = stats.chi2(size).cdf([theta.double().square().sum().item() for theta in drawn]) - 0.5
    rank = (np.array([replicate.rank[0] for replicate in replicates]) + 0.5) / (case.draws + 1) - 0.5
    rest = rank - np.cov(rank, quantile)[0, 1] / quantile.var(ddof=1) * quantile
    plain, left = (_mean(values.tolist()) for values in (rank, rest))
    return plain[0] / plain[1], left[0] / left[1]


def levels(chosen: dict[str, Case]) -> str:
    """Rows of Markdown: the mean rank of ‖θ‖², with and without what chance gave the truths."""
    lines = ["| case | mean rank of ‖θ‖², in standard errors | without the chance of the truths |", "|---|---|---|"]
    for name, case in chosen.items():
        if len(replicates := kept(name, case)) > 1:
            plain, left = level(case, replicates)
            lines.append(f"| `{name}` | {plain:+.1f} | {left:+.1f} |")
    return "\n".join(lines)


def _mean(values: list[float]) -> tuple[float, float]:
    """With its standard error."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def table(chosen: dict[str, Case]) -> str:
    """Rows of Markdown: for each case and function p, offset, drift and correlation."""
    lines = [
        "| case | replicates | function | χ² p | offset in sd | drift in sd | correlation |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in chosen.items():
        replicates = kept(name, case)
        for i, v in enumerate(verdicts(case, replicates) if len(replicates) > 1 else []):
            head = (f"`{name}`", str(len(replicates))) if i == 0 else ("", "")
            offset, drift = f"{v.offset:+.2f} ± {v.stderr:.2f}", f"{v.drift:+.2f} ± {v.drift_stderr:.2f}"
            cells = (*head, FUNCTIONS[i], f"{v.p:.3f}", offset, drift, f"{v.correlation:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace("-0.00", "+0.00")


def shifts(chosen: dict[str, Case]) -> str:
    """Rows of Markdown: what a way of sampling does to posterior means, against exact gradients on the same data.

    Where the data are not the same, against `persistent`.
    """
    lines = [f"| case, against | {' | '.join(FUNCTIONS)} |", "|---|" + "---|" * len(FUNCTIONS)]
    there = {name: found for name, case in chosen.items() if (found := kept(name, case))}
    for name, one in there.items():
        world = "sbn" if name.startswith(("sampler", "sgnht")) else name.partition("-")[0]
        others = [each for each in (f"{world}-exact", f"{world}-persistent") if each in there and each != name]
        against = next((each for each in others if _data(each) == _data(name)), None)
        if against is None or name.endswith("-exact"):
            continue
        other = there[against]
        found = [shift(one, other, i) for i in range(len(FUNCTIONS))]
        lines.append(f"| `{name}`, `{against}` | {' | '.join(f'{m:+.3f} ± {e:.3f}' for m, e in found)} |")
    return "\n".join(lines)


def draw(chosen: dict[str, Case], path: Path) -> None:
    """Rank histograms, a row for each case, with the band where 99 of 100 bars of uniform ranks lie."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "doubly", "font.size": 8})
    rows = {name: found for name, case in chosen.items() if (found := kept(name, case))}
    figure, axes = plt.subplots(
        len(rows), len(FUNCTIONS), figsize=(8, 0.95 * len(rows) + 0.6), sharex=True, squeeze=False, layout="constrained"
    )
    for line, (name, replicates) in zip(axes, rows.items(), strict=True):
        n = len(replicates)
        low, high = stats.binom.ppf([0.005, 0.995], n, 1 / BINS)
        for i, (ax, verdict) in enumerate(zip(line, verdicts(chosen[name], replicates), strict=True)):
            ax.axhspan(low, high, color="0.88", zorder=0)
            ax.axhline(n / BINS, color="0.6", lw=0.7, zorder=1)
            colour = "#b2182b" if verdict.p < 0.01 else "#2166ac"
            ax.bar(np.arange(BINS), verdict.counts, width=0.86, color=colour, zorder=2)
            ax.text(0.98, 0.95, f"p {verdict.p:.3f}", ha="right", va="top", transform=ax.transAxes, fontsize=6.5)
            ax.set(xticks=[], yticks=[], ylim=(0, 2.5 * n / BINS))
            ax.spines[["top", "right", "left"]].set_visible(False)
            if ax in axes[0]:
                ax.set_title(FUNCTIONS[i], fontsize=9)
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names of cases, or their beginnings; all without any")
    parser.add_argument("--replicates", type=int, default=REPLICATES)
    parser.add_argument("--look", action="store_true", help="print what there is and write the page, but run nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    every = cases()
    wanted = args.cases or [""]
    chosen = {name: case for word in wanted for name, case in every.items() if name.startswith(word)}
    if not chosen:
        raise SystemExit(f"no case is called {' or '.join(args.cases)}; there are: {', '.join(every)}")
    for name, case in chosen.items() if not args.look else ():
        run(name, case, args.replicates)
        print(table({name: case}), flush=True)
        write({name: case for name, case in every.items() if kept(name, case)})
    if args.look:
        print(table(chosen), levels(chosen), shifts(chosen), sep="\n\n")
        write({name: case for name, case in every.items() if kept(name, case)})


def write(there: dict[str, Case]) -> None:
    """The picture, and the numbers of the page, between its two marks."""
    draw(there, PICTURE)
    head, _, rest = PAGE.read_text().partition("<!-- numbers -->")
    _, _, tail = rest.partition("<!-- end -->")
    tables = {"Ranks": table, "Mean ranks": levels, "Posterior means on the same data": shifts}
    numbers = "\n\n".join(f"## {title}\n\n{rows(there)}" for title, rows in tables.items())
    PAGE.write_text(f"{head}<!-- numbers -->\n\n{numbers}\n\n<!-- end -->{tail}")


if __name__ == "__main__":
    main()
