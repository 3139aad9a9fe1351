"""Simulation-based calibration of the whole chain of inference on a small model (Talts et al. 2018).

Weights are drawn from the prior, data from the model with these weights, and the posterior is sampled from the data. If
inference is right, the rank of a function of the true weights among that of the sampled ones is uniform. The functions
do not change when latent units are exchanged: |theta|^2, log p(X | theta) by enumeration, the mean of the data layer's
biases. Every estimator of the latents has the same sampler, steps and data.

    python benchmarks/calibrate.py --replicates 200 --estimator persistent --out FILE.json

goes on where it was stopped.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from doubly.core.random import generator
from doubly.layers import Chain
from doubly.runs.build import Facts, build
from doubly.runs.config import Config
from doubly.training.method import Method
from doubly.training.state import init
from doubly.training.step import batches, step

VISIBLE, HIDDEN, ROWS, BATCH = 5, 2, 40, 20
BURN_IN, THIN, DRAWS = 600, 60, 31  # steps; ranks go from 0 to 31
BINS = 8
FUNCTIONS = ("norm", "likelihood", "bias")
FOLDER = Path("benchmarks/calibration")


def method(estimator: str, seed: int) -> Method:
    config = Config(
        model="sbn",
        proposal="sbn",
        hidden=(HIDDEN,),
        prior="normal:scale=1",
        sampler="sgnht-split",
        step=0.2,
        friction=0.1,
        estimator=estimator,
        phi_step=0.02,
        theta_steps=1,
        batch=BATCH,
        seed=seed,
    )
    return build(config, Facts(VISIBLE, "binary", (VISIBLE,)))


def functions(model: Chain, theta: Tensor, x: Tensor) -> list[float]:
    z = torch.tensor([[i >> k & 1 for k in range(HIDDEN)] for i in range(2**HIDDEN)], dtype=torch.float32)
    with torch.no_grad():
        joint = model.log_prob(theta, (x, z[:, None].expand(-1, len(x), -1)))
        bias = model.unflatten(theta)[0]["b"].mean()
    return [theta.square().sum().item(), joint.logsumexp(0).sum().item(), bias.item()]


def ranks(estimator: str, replicate: int) -> list[list[float]]:
    """For each function: the rank of the truth among the samples, and by how many standard deviations it is off."""
    rng = generator("cpu", replicate, "calibrate")
    model = Chain.build("sbn", data=VISIBLE, hidden=(HIDDEN,))
    truth = torch.randn(model.size, generator=rng)
    x = model.sample(truth, ROWS, rng)[0]
    chosen = method(estimator, replicate)
    state, found = init(chosen, x), []
    index = batches(torch.arange(ROWS), BATCH)
    for t in range(BURN_IN + THIN * DRAWS):
        if t % len(index) == 0:
            index = batches(torch.randperm(ROWS, generator=state.rng), BATCH)
        rows = index[t % len(index)]
        state = step(chosen, state._replace(began=None if t < BURN_IN else 0), x[rows], rows, ROWS)
        if t >= BURN_IN and (t - BURN_IN + 1) % THIN == 0:
            found.append(functions(model, state.theta.theta, x))
    sampled, true = np.array(found), np.array(functions(model, truth, x))
    return [
        [int((sampled[:, i] < true[i]).sum()), float((sampled[:, i].mean() - true[i]) / sampled[:, i].std(ddof=1))]
        for i in range(len(FUNCTIONS))
    ]


def summary(results: list[list[list[float]]]) -> dict[str, dict[str, float]]:
    """chi-square of the ranks in eight bins, and the mean offset in standard deviations of the posterior."""
    found = {}
    for i, name in enumerate(FUNCTIONS):
        rank = np.array([result[i][0] for result in results])
        counts = np.bincount((rank * BINS // (DRAWS + 1)).astype(int), minlength=BINS)
        offset = np.array([result[i][1] for result in results])
        found[name] = {
            "p": float(stats.chisquare(counts).pvalue),
            "offset": float(offset.mean()),
            "stderr": float(offset.std(ddof=1) / math.sqrt(len(offset))),
            "mean_rank": float(rank.mean() / DRAWS),
        }
    return found


def run(estimator: str, replicates: int, out: Path) -> None:
    torch.set_num_threads(1)
    done = json.loads(out.read_text()) if out.exists() else {"estimator": estimator, "results": []}
    while len(done["results"]) < replicates:
        done["results"].append(ranks(estimator, len(done["results"])))
        if len(done["results"]) % 10 == 0 or len(done["results"]) == replicates:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(done))
            print(
                estimator,
                len(done["results"]),
                {k: round(v["p"], 3) for k, v in summary(done["results"]).items()},
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--estimator", default="persistent")
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    name = args.estimator.replace(":", "-").replace("=", "-")
    run(args.estimator, args.replicates, args.out or FOLDER / f"{name}.json")
