"""What refining a proposal row by row gains: `python benchmarks/refine.py RUN --rows 60 --seeds 3`.

The first validation rows of a run are scored with the same number of draws, after 0 steps and after those asked for, by
the mean of its weights and the proposal that `--refit` and `--refit-objective` ask for. Prints a line for each reading.
"""

import argparse
import time

import torch

from doubly.analysis.evaluation import paired
from doubly.latents import LikelihoodConfig, RowLikelihoods
from doubly.runs.folder import Run


def line(found: RowLikelihoods, plain: RowLikelihoods, seconds: float) -> str:
    gap = paired(found, plain)
    return (
        f"{found.log_likelihood.mean():9.2f}  {gap.difference:+.2f} ± {gap.difference_stderr or 0:.2f}  "
        f"effective {found.ess.mean():.0f} "
        f"(median {found.ess.median():.0f})  k̂ > 0.7: {(found.khat > 0.7).float().mean():.0%}  "
        f"noise of a row {found.noise.mean():.2f}  {seconds:.1f} CPU seconds"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("run")
    options.add_argument("--rows", type=int, default=60)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--draws", type=int, default=5000)
    options.add_argument("--steps", type=int, nargs="+", default=[200])
    options.add_argument("--refit", type=int, default=100)
    options.add_argument("--refit-objective")
    asked = options.parse_args()
    torch.set_num_threads(1)
    run = Run(asked.run)
    posterior = run.posterior(refit_passes=asked.refit, refit_objective=asked.refit_objective)
    rows = run.data().valid[: asked.rows]
    posterior.score(
        rows[:1], how=LikelihoodConfig(1, refine=1)
    )  # fits the proposal, and loads what has to be loaded once
    for seed in range(asked.seeds):
        plain = None
        for steps in (0, *asked.steps):
            began = time.process_time()
            found = posterior.score(rows, how=LikelihoodConfig(asked.draws, refine=steps, seed=1000 * seed + steps))
            plain = found if plain is None else plain
            print(f"seed {seed}  {steps:4} steps  {line(found, plain, time.process_time() - began)}", flush=True)


if __name__ == "__main__":
    main()
