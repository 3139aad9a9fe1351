"""Short chains beside annealing: which lower bound is nearer at equal sweeps, and the CPU time of each.

    python benchmarks/short_chain.py --data caltech-silhouettes --hidden 200 --steps 4920

A model is learnt as the variant `auto` of benchmarks/latents.py (mean of the weights over the last quarter of the
steps), and the first 100 validation rows are scored by annealing from the proposal and by short chains that make about
as many Gibbs sweeps (burn_in + 5 + 2 states), each with several seeds, one thread. With --keep FILE.npz the weights are
stored, and found there next time.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from doubly.data import load
from doubly.latents import Annealing, Pair, ShortChain
from doubly.runs.build import build
from doubly.runs.config import Config
from latents import BASIS, VARIANTS, learn

WORK: dict[str, Annealing | ShortChain] = {
    "annealing, 20 temperatures": Annealing(20, chains=1, start="proposal"),
    "short chain, 3 states": ShortChain(3, burn_in=9),
    "annealing, 100 temperatures": Annealing(100, chains=1, start="proposal"),
    "short chain, 32 states": ShortChain(32, burn_in=31),
    "annealing, 500 temperatures": Annealing(500, chains=1, start="proposal"),
    "short chain, 198 states": ShortChain(198),
    "short chain, 1,000 states": ShortChain(1000),
}
ROWS = 100


def learnt(config: Config, steps: int, keep: Path | None) -> tuple[Pair, torch.Tensor]:
    """Model and proposal after so many steps, and the rows to score."""
    sets = load(config.data)
    method, x = build(config, sets), torch.as_tensor(sets.valid)[:ROWS].float()
    if keep is None or not keep.exists():
        state, mean = learn(method, torch.as_tensor(sets.train), steps)
        weights = {"theta": mean.numpy(), "phi": state.phi.theta.numpy()}
        if keep is not None:
            np.savez(keep, **weights)
    else:
        weights = dict(np.load(keep))
    theta, phi = (torch.as_tensor(weights[name]) for name in ("theta", "phi"))
    return Pair(method.model, theta, method.proposal, phi), x


def measure(pair: Pair, x: torch.Tensor, how: Annealing | ShortChain, seeds: int) -> tuple[float, float, float]:
    """The mean over rows and seeds, its standard error over seeds, and CPU seconds for each seed."""
    started, found = time.process_time(), []
    for seed in range(seeds):
        rows = how.log_likelihood(pair, x, torch.Generator().manual_seed(seed)).log_likelihood
        found.append(rows.double().mean().item())
    return float(np.mean(found)), float(np.std(found, ddof=1) / seeds**0.5), (time.process_time() - started) / seeds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="caltech-silhouettes")
    parser.add_argument("--hidden", type=int, nargs="*", default=[200])
    parser.add_argument("--steps", type=int, default=4920)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3, help="of each estimate")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = Config(data=args.data, hidden=tuple(args.hidden), seed=args.seed, **BASIS | VARIANTS["auto"])
    pair, x = learnt(config, args.steps, args.keep)
    for how in (Annealing(2, chains=1, start="proposal"), ShortChain(2)):  # compiles what has to be compiled
        how.log_likelihood(pair, x, torch.Generator().manual_seed(0))
    print(f"| {args.data}, SBN {'-'.join(map(str, args.hidden))} | lower bound | CPU s |\n|---|---|---|")
    for name, how in WORK.items():
        mean, error, seconds = measure(pair, x, how, args.seeds)
        print(f"| {name} | {mean:.2f} ± {error:.2f} | {seconds:.2f} |", flush=True)
