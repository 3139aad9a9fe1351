"""How long a whole training step takes, against the same algorithm elsewhere: `python benchmarks/steps.py [--record]`.

A step moves theta (draws, weights, gradient, prior, noise) and then phi with fresh draws. Each side is a process of
its own (benchmarks/peers), on the same number of cores; they are timed in turn, and stopped (SIGSTOP) while it is not
their turn, so that they do not slow each other. The machine must be quiet: a busy neighbour makes the barriers of
OpenMP crawl (`doubly`, PyTorch, the floor) and leaves JAX's threads almost alone. Before anything is timed, all sides
have to agree on densities and gradients of the same weights, and on where so many steps lead. JAX and Pyro are
installed into benchmarks/.peers, at the versions in peers/requirements.txt.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from peers.floor import BIG, flops
from peers.own import RUNS, start
from peers.side import Arrays, Task
from results import Table, record

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "peers" / "requirements.txt"
ENVIRONMENT = HERE / ".peers"
AGREE = 2e-5  # relative, of densities
AGREE_GRADIENTS = 1e-4  # relative, beside what the densities' own differences do to the weights of draws
# relative, of what the work comes to, whose noise differs
ALIKE = {"step": 0.1, "remembered": 0.1, "score": 0.01, "anneal": 0.01, "sweep": 0.02}
WALK = 20  # steps after which that is looked at
READING = 0.3  # seconds that a reading takes at least, in whole runs

SBN = Task("SBN 200", ["sbn", "sbn"], ["sbn"], [784, 200])
SBN2 = Task("SBN 200-200", ["sbn"] * 3, ["sbn"] * 2, [784, 200, 200])
TASKS = {
    "sbn": SBN,
    # draws are nearly alike once a run has learnt, and that is where it spends its time
    "sbn-learnt": replace(SBN, name="SBN 200, as learnt from Caltech", run="caltech-sbn-200"),
    "sbn2-learnt": replace(SBN2, name="SBN 200-200, as learnt", run="caltech-sbn-200-200-recommended"),
    "sbn3": Task("SBN 200-200-200", ["sbn"] * 4, ["sbn"] * 3, [784, 200, 200, 200]),
    "darn": Task("DARN/NADE 200", ["darn", "darn"], ["nade"], [784, 200]),
    "nade": Task("NADE/NADE 200", ["nade", "nade"], ["nade"], [784, 200]),
    "vae": Task("VAE 50 (200-200)", ["mlp", "normal"], ["gaussian"], [784, 50], objective="iwae", step=0.001),
    "score": replace(SBN, name="L_K, SBN 200, 100 rows, K = 10,000", work="score"),
    "score-learnt": replace(SBN, name="L_K, the same, as learnt", work="score", run="caltech-sbn-200"),
    "sweep": replace(SBN, name="Gibbs sweep, SBN 200, 500 chains", work="sweep"),
    "remembered": replace(SBN, name="Step with two remembered states, SBN 200", work="remembered"),
    "remembered2": replace(SBN2, name="Step with two remembered states, SBN 200-200", work="remembered"),
    "anneal": replace(SBN, name="Annealing, SBN 200, 100 rows, 100 temperatures", work="anneal"),
}
STEPS = [name for name, task in TASKS.items() if task.work == "step"]
SCORES = [name for name, task in TASKS.items() if task.work == "score"]
MOVES = ["remembered", "remembered2", "anneal"]
LINEAR = [name for name in STEPS if name.startswith("sbn")]


class Program(NamedTuple):
    """What a side is run with."""

    module: str
    tasks: Sequence[str]
    in_peers: bool = False
    environment: Mapping[str, str] = MappingProxyType({})


SIDES = {
    "doubly": Program("own", list(TASKS)),
    "floor": Program("floor", [*STEPS, *SCORES]),
    "eager": Program("eager", [*STEPS, *SCORES]),
    # the loops of NADE are unrolled by torch.compile, for minutes: there is nothing to win
    "compiled": Program("eager", [*LINEAR, "vae", *SCORES], environment={"COMPILE": "1"}),
    "jax": Program("xla", [*STEPS, *SCORES, *MOVES], in_peers=True),
    "pyro": Program("wakesleep", [*LINEAR, "vae"], in_peers=True),
    "plain": Program("own", ["sweep"], environment={"DOUBLY_KERNELS": "0"}),
}
TITLES = {"doubly": "`doubly`", "eager": "PyTorch", "compiled": "… compiled", "jax": "JAX", "pyro": "Pyro RWS"}
SAME_WORK = ["eager", "compiled", "jax"]


@dataclass(frozen=True)
class Target:
    """How many times the best peer's speed is wanted, and how many times the floor's time is allowed."""

    peer: float
    floor: float | None = None


TARGETS = {
    "sbn": Target(1.8, 1.5),
    "sbn-learnt": Target(1.8, 1.5),
    "sbn2-learnt": Target(1.8, 1.5),
    "sbn3": Target(1.8, 1.5),
    "darn": Target(5),
    "nade": Target(12),
    "vae": Target(1.3, 2),
    "score": Target(2),
    "score-learnt": Target(2),
    "sweep": Target(20),
    "remembered": Target(3),
    "remembered2": Target(3),
    "anneal": Target(5),
}
RATE_TARGET = 0.6  # of the rate of a plain product, for evaluation


# processes


class Worker:
    """A side in its own process, which runs only while it is asked something."""

    def __init__(self, name: str, threads: int) -> None:
        program = SIDES[name]
        python = ENVIRONMENT / "bin" / "python" if program.in_peers else Path(sys.executable)
        number = str(threads)
        environment = os.environ | {"OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number, "NUMBA_NUM_THREADS": number}
        self.name = name
        self.process = subprocess.Popen(
            [python, "-m", f"peers.{program.module}"],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | {"JAX_PLATFORMS": "cpu", **program.environment},
            text=True,
            # as many cores as threads: XLA has as many threads as it sees cores
            preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads]),
        )

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        print(json.dumps({"do": do} | given), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the side {self.name} ended in the midst of {do}: its message is above")
        self.process.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def seconds(self, times: int, clock: str) -> float:
        """For one run, of so many."""
        return self.ask("run", times=times)[clock] / times

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def install() -> None:
    """The peers' environment, unless it is there already; PyTorch first, which must not come with CUDA."""
    wanted, stamp = REQUIREMENTS.read_text(), ENVIRONMENT / ".installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("installing the peers into benchmarks/.peers", flush=True)
    subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", "-c", str(REQUIREMENTS)]
    subprocess.run([*pip, "torch==2.13.0"], check=True)
    subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
    stamp.write_text(wanted)


# agreement


def check(workers: dict[str, Worker], task: Task, arrays: Arrays, folder: Path) -> None:
    """Load the task on all sides and see that they agree; whoever does not ends the benchmark."""
    beginning = folder / "start.npz"
    np.savez(beginning, **arrays)
    found, ends = {}, {}
    for name, worker in workers.items():
        worker.ask("load", task=asdict(task), start=str(beginning))
        if task.work in ("step", "remembered") and name != "floor":
            worker.ask("densities", start=str(beginning), out=str(folder / f"{name}.npz"))
            found[name] = dict(np.load(folder / f"{name}.npz"))
        if name not in ("floor", "pyro"):
            worker.ask("run", times=WALK if task.work in ("step", "remembered") else 1)
            ends[name] = worker.ask("summary")
    for name in found.keys() - {"doubly"}:
        errors = dict(disagreement(found["doubly"], found[name]))
        worst = {kind: max(error for at, error in errors.items() if at.startswith(kind)) for kind in kinds(errors)}
        print(f"  {name}: " + ", ".join(f"{kind} {error:.0e}" for kind, error in worst.items()), flush=True)
        # weights are exponentials of log p - log q: where these differ by d, they differ by a share of up to 2 d
        apart = sum(worst[kind] * np.abs(found["doubly"][kind]).max() for kind in ("log_p", "log_q"))
        for kind, error in worst.items():
            bound = AGREE if kind.startswith("log_") else AGREE_GRADIENTS + 2 * apart
            if not error < bound:
                raise SystemExit(f"{task.name}: {kind} of {name} and doubly differ by {error:.1e}, allowed {bound:.1e}")
    for name, end in ends.items():
        print(f"  {name} ends at: " + ", ".join(f"{what} {value:.4g}" for what, value in end.items()), flush=True)
        for what, value in end.items():
            if not abs(value / ends["doubly"][what] - 1) < ALIKE[task.work]:
                raise SystemExit(
                    f"{task.name}: {what} is {value:.4g} with {name}, {ends['doubly'][what]:.4g} with doubly"
                )


def disagreement(expected: Arrays, found: Arrays) -> Iterator[tuple[str, float]]:
    """The largest difference of each array, relative to its largest entry."""
    for name, there in found.items():
        here = expected[name] if there.ndim else expected[name][0].sum()  # Pyro adds over the rows
        yield name, float(np.abs(there - here).max() / np.abs(here).max())


def kinds(errors: dict[str, float]) -> list[str]:
    return sorted({name.split(".")[0] for name in errors})


# timing


@dataclass(frozen=True)
class Timed:
    """Milliseconds of one run on one side: median and quartiles of the readings, and the best."""

    median: float
    lower: float
    upper: float
    best: float


@dataclass(frozen=True)
class Result:
    task: str
    sides: dict[str, Timed]
    best_peer: str | None
    speedup: tuple[float, float, float] | None
    """Best peer's time / doubly's in the same round: lower quartile, median, upper quartile."""
    over_floor: tuple[float, float, float] | None
    """doubly's time / the floor's."""
    target: Target


def measure(key: str, workers: dict[str, Worker], rounds: int, clock: str) -> Result:
    """Time all sides in turn, round after round."""
    times = {name: repeats(worker, clock) for name, worker in workers.items()}
    readings = {name: [] for name in workers}  # type: dict[str, list[float]]
    for turn in range(rounds):
        # now in one order, now in the other, so that no side always comes after the same one
        for name in sorted(workers, reverse=turn % 2 == 1):
            readings[name].append(workers[name].seconds(times[name], clock))
    peers = [name for name in workers if name in (*SAME_WORK, "plain")]
    best = min(peers, key=lambda name: statistics.median(readings[name])) if peers else None
    return Result(
        TASKS[key].name,
        {name: timed(each) for name, each in readings.items()},
        best,
        ratio(readings, best, "doubly"),
        ratio(readings, "doubly", "floor"),
        TARGETS[key],
    )


def repeats(worker: Worker, clock: str) -> int:
    """How many runs make a reading, after a first one of that many, for which JAX compiles anew."""
    worker.seconds(1, clock)
    times = max(1, round(READING / worker.seconds(1, clock)))
    if times > 1:
        worker.seconds(times, clock)
    return times


def timed(readings: list[float]) -> Timed:
    lower, median, upper = quartiles([1e3 * each for each in readings])
    return Timed(median, lower, upper, 1e3 * min(readings))


def ratio(readings: dict[str, list[float]], above: str | None, below: str) -> tuple[float, float, float] | None:
    if above not in readings or below not in readings:
        return None
    return quartiles([a / b for a, b in zip(readings[above], readings[below], strict=True)])


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, median, upper


# tables


def steps_table(results: list[Result]) -> Table:
    """Milliseconds of a step on every side, and the two ratios."""
    head = ["model", *(f"{TITLES[side]}, ms" for side in TITLES), "floor, ms", "speed-up (quartiles)", "target"]
    rows = []
    for result in results:
        times = [shown(result.sides.get(side)) for side in (*TITLES, "floor")]
        speedup, floor = spread(result.speedup), spread(result.over_floor)
        allowed = f"≤ {result.target.floor:g}" if result.target.floor else ""
        rows.append([result.task, *times, speedup, f"≥ {result.target.peer:g}", floor, allowed])
    return Table([*head, "times the floor", "target"], rows)


def evaluation_table(results: list[Result]) -> Table:
    head = [
        "work",
        "`doubly`, ms",
        "best peer, ms",
        "speed-up (quartiles)",
        "target",
        "share of the GEMM rate",
        "target",
    ]
    rows = []
    for result in results:
        peer = f"{shown(result.sides[result.best_peer])} ({result.best_peer})" if result.best_peer else ""
        share = rate_share(result)
        rows.append(
            [
                result.task,
                shown(result.sides.get("doubly")),
                peer,
                spread(result.speedup),
                f"≥ {result.target.peer:g}",
                f"{share:.0%}" if share else "",
                f"≥ {RATE_TARGET:.0%}" if share else "",
            ]
        )
    return Table(head, rows)


def moves_table(results: list[Result]) -> Table:
    head = ["work", "`doubly`, ms", "JAX, ms", "speed-up (quartiles)", "target"]
    rows = [
        [
            result.task,
            shown(result.sides.get("doubly")),
            shown(result.sides.get("jax")),
            spread(result.speedup),
            f"≥ {result.target.peer:g}",
        ]
        for result in results
    ]
    return Table(head, rows)


def section_of(key: str) -> str:
    return "steps" if key in STEPS else "moves" if key in MOVES else "evaluation"


def rate_share(result: Result) -> float | None:
    """The rate at which doubly does the products of an evaluation, as a share of that of one plain big product."""
    if result.over_floor is None:
        return None
    return flops(TASKS["score"]) / (2 * BIG**3) / result.over_floor[1]


def shown(timed: Timed | None) -> str:
    return f"{timed.median:.3g} ({timed.lower:.3g} – {timed.upper:.3g})" if timed else ""


def spread(ratio: tuple[float, float, float] | None) -> str:
    return f"{ratio[1]:.2f} ({ratio[0]:.2f} – {ratio[2]:.2f})" if ratio else ""


def weights_are_here(key: str) -> bool:
    """Whether a task can be done; says so where the run whose weights it has is missing."""
    run = RUNS / TASKS[key].run
    if TASKS[key].run and not run.exists():
        print(f"  {TASKS[key].name} is left out: its weights are made by doubly reproduce, into {run}", flush=True)
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=TASKS, default=list(TASKS), help="what to run")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="who takes part besides doubly")
    parser.add_argument("--rounds", type=int, default=15, help="times that each side is timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu where other work cannot be stopped: one thread"
    )
    parser.add_argument("--check", action="store_true", help="only see that all sides do the same")
    parser.add_argument("--record", action="store_true", help="write results.json and docs/reports/performance.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no side is left behind, stopped for ever
    chosen = ["doubly", *(side for side in SIDES if side in options.sides and side != "doubly")]
    if any(SIDES[side].in_peers for side in chosen):
        install()
    if os.getloadavg()[0] > 0.5 and not options.check:
        print(f"the machine is busy (load {os.getloadavg()[0]:.1f}): ratios between OpenMP and JAX will mean nothing")
    results = {}
    for key in options.models:
        print(TASKS[key].name, flush=True)
        if not weights_are_here(key):
            continue
        workers = {side: Worker(side, options.threads) for side in chosen if key in SIDES[side].tasks}
        try:
            with tempfile.TemporaryDirectory() as folder:
                check(workers, TASKS[key], start(TASKS[key]), Path(folder))
            if not options.check:
                # an evaluation takes seconds, and is the steadier for it
                rounds = max(2, options.rounds // 3) if key in SCORES else options.rounds
                results[key] = measure(key, workers, rounds, options.clock)
                show(results[key])
        finally:
            for worker in workers.values():
                worker.close()
    if options.record:
        command = "python benchmarks/steps.py" + (" --clock cpu" if options.clock == "cpu" else "")
        for section, table in (("steps", steps_table), ("evaluation", evaluation_table), ("moves", moves_table)):
            part = [result for key, result in results.items() if section_of(key) == section]
            if part:
                record(section, [asdict(result) for result in part], table(part), command)


def show(result: Result) -> None:
    for side, timed in result.sides.items():
        print(f"  {side:10}{timed.median:10.2f} ms  ({timed.lower:.2f} - {timed.upper:.2f}, best {timed.best:.2f})")
    print(f"  {result.best_peer} / doubly: {spread(result.speedup)}, wanted {result.target.peer:g}")
    print(f"  doubly / floor: {spread(result.over_floor)}, allowed {result.target.floor or '-'}", flush=True)


if __name__ == "__main__":
    main()
