"""What the estimators of the latent variables reach after equal steps: validation by annealing, and CPU time.

    python benchmarks/latents.py --data caltech-silhouettes --hidden 200 --steps 4920 --variants persistent nais-20

Every variant takes as many steps of the thermostat (step 0.03, Adam 0.001 for the proposal, a mini-batch for each step)
and is scored by the mean of the weights over the last quarter of the steps, and by the last weights, on the first 200
validation rows: annealed from the proposal and from the prior, one chain, whichever bound is larger. Active units are
those of whose variance these rows explain more than 1 % (results of before count those that the proposal switches on
for 1 to 99 % of the training rows; they have no `active_by`). Results are kept
in benchmarks/latents.json; what is there is not made again. `--table` prints them as Markdown.
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import torch

from doubly.data import load
from doubly.latents import ACTIVE, Annealing, Pair, bound, explained
from doubly.runs.build import build
from doubly.runs.config import Config
from doubly.training.method import Method
from doubly.training.state import State, init
from doubly.training.step import batches, rows_at, step

RESULTS = Path(__file__).with_suffix(".json")
BASIS: dict[str, Any] = {
    "estimator": "persistent", "draws": 5, "sampler": "sgnht", "step": 0.03, "phi_step": 1e-3, "theta_steps": 1,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    # name of the variant: settings in which it differs; `warmup` is the share of the steps that are Adam's
    "nais-5": {"estimator": "nais", "draws": 5},
    "nais-20": {"estimator": "nais", "draws": 20},
    "gibbs-5": {"estimator": "gibbs", "draws": 5},
    "persistent": {"estimator": "persistent", "draws": 5},
    "no-moves": {"estimator": "persistent:sweeps=0", "draws": 5},
    "two-chains": {"estimator": "persistent:chains=2", "draws": 5},
    "two-sweeps": {"estimator": "persistent:sweeps=2", "draws": 5},
    "half-sweeps": {"estimator": "persistent", "draws": 5, "moves": "gibbs:share=0.5"},
    "third-sweeps": {"estimator": "persistent", "draws": 5, "moves": "gibbs:share=0.3"},
    "draws-2": {"estimator": "persistent", "draws": 2},
    "draws-10": {"estimator": "persistent", "draws": 10},
    "wake-sleep": {"estimator": "persistent", "draws": 5, "objective": "wake-sleep"},
    "two-chains-wide": {"estimator": "persistent:chains=2", "draws": 5, "prior": "student-t:scale=0.3"},
    "nais-20-wide": {"estimator": "nais", "draws": 20, "prior": "student-t:scale=0.3"},
    "step-0.01": {"estimator": "persistent", "draws": 5, "step": 0.01},
    "step-0.1": {"estimator": "persistent", "draws": 5, "step": 0.1},
    "friction-0.03": {"estimator": "persistent", "draws": 5, "friction": 0.03},
    "friction-0.3": {"estimator": "persistent", "draws": 5, "friction": 0.3},
    "split": {"estimator": "persistent", "draws": 5, "sampler": "sgnht-split"},
    "adam-first": {"estimator": "persistent", "draws": 5, "warmup": 0.3, "warmup_step": 3e-3},
    "adam": {"estimator": "persistent", "draws": 5, "sampler": "adam", "step": 1e-3},
    "scale-0.03": {"estimator": "persistent", "draws": 5, "prior": "student-t:scale=0.03"},
    "proposal-darn": {"estimator": "persistent", "draws": 5, "proposal": "darn"},
    "proposal-mlp": {"estimator": "persistent", "draws": 5, "proposal": "mlp:widths=200"},
    "thermostat": {"estimator": "persistent", "draws": 5, "sampler": "thermostat"},
    "thermostat-0.1": {"estimator": "persistent", "draws": 5, "sampler": "thermostat", "step": 0.1},
    # what latents.json calls uncentred-auto… is of the code before the automatic step had centred coordinates
    "auto": {"estimator": "persistent", "draws": 5, "sampler": "thermostat", "step": "auto"},
    # the scale of the prior: 0.09 (persistent), set by hand, and learnt
    "wide": {"estimator": "persistent", "draws": 5, "prior": "student-t:scale=0.3"},
    "wider": {"estimator": "persistent", "draws": 5, "prior": "student-t:scale=1"},
    "learnt-scale": {"estimator": "persistent", "draws": 5, "prior": "learnt-student-t"},
    # the same beside the automatic step
    "auto-wide": {"prior": "student-t:scale=0.3", "sampler": "thermostat", "step": "auto"},
    "auto-wider": {"prior": "student-t:scale=1", "sampler": "thermostat", "step": "auto"},
    "auto-learnt": {"prior": "learnt-student-t", "sampler": "thermostat", "step": "auto"},
    "auto-adam-first": {"sampler": "thermostat", "step": "auto", "warmup": 0.3, "warmup_step": 1e-3},
    "auto-two-chains": {"estimator": "persistent:chains=2", "sampler": "thermostat", "step": "auto"},
    "auto-friction-0.03": {"sampler": "thermostat", "step": "auto", "friction": 0.03},
    "auto-friction-0.3": {"sampler": "thermostat", "step": "auto", "friction": 0.3},
    "auto-darn": {"sampler": "thermostat", "step": "auto", "proposal": "darn"},
    "auto-draws-1": {"draws": 1, "sampler": "thermostat", "step": "auto"},
    "auto-three-chains": {
        "estimator": "persistent:chains=3",
        "draws": 1,
        "sampler": "thermostat",
        "step": "auto",
    },
    "auto-three-chains-draws-5": {"estimator": "persistent:chains=3", "sampler": "thermostat", "step": "auto"},
    "auto-learnt-draws-1": {"prior": "learnt-student-t", "draws": 1, "sampler": "thermostat", "step": "auto"},
    "auto-learnt-two-sweeps": {
        "prior": "learnt-student-t",
        "estimator": "persistent:sweeps=2",
        "draws": 1,
        "sampler": "thermostat",
        "step": "auto",
    },
    "auto-learnt-three-chains": {
        "prior": "learnt-student-t",
        "estimator": "persistent:chains=3",
        "draws": 1,
        "sampler": "thermostat",
        "step": "auto",
    },
    "auto-learnt-six-chains": {
        "prior": "learnt-student-t",
        "estimator": "persistent:chains=6",
        "draws": 1,
        "sampler": "thermostat",
        "step": "auto",
        "batch": 50,
    },
    "auto-two-sweeps": {"estimator": "persistent:sweeps=2", "sampler": "thermostat", "step": "auto"},
    "auto-half-sweeps": {"moves": "gibbs:share=0.5", "sampler": "thermostat", "step": "auto"},
    "auto-nais-20": {"estimator": "nais", "draws": 20, "sampler": "thermostat", "step": "auto"},
    "auto-gibbs-5": {"estimator": "gibbs", "draws": 5, "sampler": "thermostat", "step": "auto"},
    "auto-sms-ubu": {"sampler": "sms-ubu", "step": "auto"},
    "auto-mlp": {"sampler": "thermostat", "step": "auto", "proposal": "mlp:widths=200"},
}
ROWS, TEMPERATURES = 200, 500


def learn(method: Method, train: torch.Tensor, steps: int) -> tuple[State, torch.Tensor]:
    """The state after so many steps, and the mean of the weights over the last quarter of them."""
    state, mean, done, taken = init(method, train), torch.zeros(method.model.size, dtype=torch.float64), 0, 0
    while done < steps:
        if state.epoch == method.warmup > 0:
            state = state._replace(theta=method.sampler.init(state.theta.theta, state.rng))
        for index in batches(torch.randperm(len(train), generator=state.rng), method.batch):
            x = rows_at(method, train, index, state.rng)
            state = step(method, state, x, index, len(train))
            done += 1
            if done > 0.75 * steps and done % 20 == 0:
                taken += 1
                mean += (state.theta.theta.double() - mean) / taken
            if done == steps:
                break
        state = state._replace(epoch=state.epoch + 1)
    return state, mean.float()


def scores(pair: Pair, x: torch.Tensor) -> dict[str, float]:
    found = {"L_100": bound(pair, x, 100, torch.Generator().manual_seed(0))}
    for start in ("proposal", "prior"):
        how = Annealing(TEMPERATURES, chains=1, start=start)
        found[f"annealed from the {start}"] = how.log_likelihood(pair, x, torch.Generator().manual_seed(0))
    return {name: round(rows.log_likelihood.double().mean().item(), 3) for name, rows in found.items()}


def measure(data: str, hidden: tuple[int, ...], steps: int, variant: str, seed: int) -> dict[str, Any]:
    sets = load(data)
    chosen = BASIS | VARIANTS[variant]
    if "warmup" in chosen:  # a share of the steps
        chosen["warmup"] = round(chosen["warmup"] * steps / math.ceil(len(sets.train) / 100))
    config = Config(data=data, hidden=hidden, seed=seed, **chosen)
    method, train = build(config, sets), torch.as_tensor(sets.train)
    learn(method, train[:500], 3)  # compiles what has to be compiled
    started = time.process_time()
    state, mean = learn(method, train, steps)
    seconds = time.process_time() - started
    x = torch.as_tensor(sets.valid)[:ROWS].float()
    pairs = {"mean": mean, "last": state.theta.theta}
    found = {
        name: scores(Pair(method.model, theta, method.proposal, state.phi.theta), x) for name, theta in pairs.items()
    }
    shares = explained(Pair(method.model, state.theta.theta, method.proposal, state.phi.theta), x, 100, state.rng)
    active = [int((share > ACTIVE).sum()) for share in shares]
    stats = {name: round(value.item(), 3) for name, value in method.sampler.stats(state.theta).items()}
    prior = {name: round(value, 4) for name, value in method.prior.stats(state.prior).items()}
    return {
        "cpu_seconds": round(seconds, 1),
        "active": active,
        "active_by": "explained",
        "sampler": stats,
        "prior": prior,
        **found,
    }


def table(results: dict[str, Any]) -> str:
    lines = [
        "| data, model, steps | variant | mean of the weights | last weights | L_100 of the mean | CPU s "
        "| active units | temperature |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        data, hidden, steps, variant, seed = name.split("/")
        best = {kind: max(value for key, value in found[kind].items() if key != "L_100") for kind in ("mean", "last")}
        lines.append(
            f"| {data}, SBN {hidden}, {int(steps):,}, seed {seed} | `{variant}` | {best['mean']:.2f} | "
            f"{best['last']:.2f} | {found['mean']['L_100']:.1f} | {found['cpu_seconds']:.0f} | "
            f"{', '.join(map(str, found['active']))} | {found['sampler'].get('temperature', '')} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="caltech-silhouettes")
    parser.add_argument("--hidden", type=int, nargs="*", default=[200])
    parser.add_argument("--steps", type=int, default=4920)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    for seed in args.seeds if not args.table else []:
        for variant in args.variants:
            key = f"{args.data}/{'-'.join(map(str, args.hidden))}/{args.steps}/{variant}/{seed}"
            if key not in kept:
                kept[key] = measure(args.data, tuple(args.hidden), args.steps, variant, seed)
                kept[key]["machine"] = f"{platform.processor() or platform.machine()}, torch {torch.__version__}"
                args.out.write_text(json.dumps(kept, indent=1) + "\n")
                print(key, kept[key], flush=True)
    if args.table:
        print(table(kept))
