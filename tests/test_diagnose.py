"""Diagnosing chains: the measures are right, the temperature is understood, and the words say what was found."""

import json
import math
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import doubly
from doubly import cli
from doubly.analysis.convergence import chance_rhat, ess_bulk, ess_tail, rhat, summarise
from doubly.analysis.diagnose import diagnose
from doubly.analysis.inference_data import inference_data
from doubly.analysis.report.figures import png, traces
from doubly.analysis.temperature import temperature
from doubly.analysis.traces import history
from doubly.core.errors import UserError
from doubly.core.sealed import dump_json
from doubly.runs import records
from doubly.runs.fit import _tell_temperature
from doubly.runs.folder import Run
from doubly.samplers import (
    SGHMC,
    SGLD,
    SGNHT,
    Sampler,
    ScalarSGNHT,
    ScalarThermostat,
    SplitSGNHT,
    Thermostat,
)

FIELDS: dict[str, Any] = {
    "data": "bars", "hidden": (6,), "epochs": 12, "collect": 6, "keep": 3, "theta_steps": 1, "batch": 300, "step": 0.05,
    "valid_draws": 5, "threads": 1, "quiet": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return doubly.fit(tmp_path_factory.mktemp("diagnose") / "run", **FIELDS)


@pytest.fixture(scope="module")
def second(tmp_path_factory) -> Run:
    return doubly.fit(tmp_path_factory.mktemp("diagnose") / "second", **FIELDS, seed=1)


# The measures


def autoregressive(rho: float, chains: int, n: int, seed: int = 0) -> np.ndarray:
    """x_t = rho x_{t-1} + noise with unit variance, from the first sample on; sum_t rho^|t| = (1 + rho) / (1 - rho)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((chains, n))
    for t in range(1, n):
        x[:, t] = rho * x[:, t - 1] + math.sqrt(1 - rho**2) * x[:, t]
    return x


KINDS = {
    "independent": lambda chains, n: autoregressive(0, chains, n),
    "slow": lambda chains, n: autoregressive(0.95, chains, n),
    "alternating": lambda chains, n: autoregressive(-0.7, chains, n),
    "shifted": lambda chains, n: autoregressive(0.3, chains, n) + np.arange(chains)[:, None],
    "heavy-tailed": lambda chains, n: np.random.default_rng(1).standard_cauchy((chains, n)),
    "tied": lambda chains, n: np.round(2 * autoregressive(0.5, chains, n)),
}


@pytest.mark.parametrize("shape", [(2, 4), (2, 5), (3, 8), (2, 9), (4, 21), (4, 40), (2, 101), (3, 1000)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_measures_are_those_of_arviz(kind, shape):
    arviz = pytest.importorskip("arviz")
    values = KINDS[kind](*shape)
    ours = [rhat(values), ess_bulk(values), ess_tail(values), summarise(values).mcse]
    with np.errstate(all="ignore"):  # four tied values may leave no variance within the halves
        theirs = [arviz.rhat(values), arviz.ess(values), arviz.ess(values, method="tail"), arviz.mcse(values)]
    assert ours == pytest.approx([float(np.squeeze(value)) for value in theirs], rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_ess_knows_the_autocorrelation_time(rho):
    """tau = (1 + rho) / (1 - rho), of which a window of W lags has a relative error of sqrt(2 (2 W + 1) / n).

    (Madras & Sokal 1988.) The sum ends where the autocorrelation rho^W is lost in its error, of some sqrt(tau / n): at
    rho = 0.9 and n = 80,000 with W = 40, so that the error is 0.045. Ranks of a Gaussian chain have nearly the tau of
    the chain itself: their normal scores are it.
    """
    values = autoregressive(rho, 4, 20_000)
    tau = (1 + rho) / (1 - rho)
    assert ess_bulk(values) == pytest.approx(values.size / tau, rel=4 * 0.045)
    assert summarise(values).mcse == pytest.approx(math.sqrt(tau / values.size), rel=2 * 0.045)
    assert rhat(values) < 1.01


def test_the_error_of_a_mean_is_what_means_scatter_by():
    """Of 400 chains, the scatter of their means is known to 1 / sqrt(800), 3.5 %; the mcse is taken as a mean square.

    A chain of 500 with tau = 3 gives its tau within some 20 %, of which the mean over 400 is another 1 %, but cuts
    off its sum and with it a few percent: 4 * 3.5 % + 5 % = 19 %.
    """
    sets = autoregressive(0.5, 400, 500, seed=3)
    expected = math.sqrt(np.mean([summarise(chain[None]).mcse ** 2 for chain in sets]))
    assert sets.mean(1).std(ddof=1) == pytest.approx(expected, rel=0.19)


def test_rhat_sees_chains_that_differ():
    """Of two chains with means 1 apart, four halves have means of variance 1/3, so R-hat is near sqrt(4/3) = 1.155."""
    same = autoregressive(0, 2, 1000)
    assert rhat(same) < 1.01
    assert rhat(same + np.array([[0], [1]])) == pytest.approx(1.155, abs=0.03)
    assert rhat(same * [[1], [4]]) > 1.1, "one chain is wider than the other"
    assert rhat(same[:1] + np.linspace(0, 2, 1000)) > 1.1, "a single chain that drifts"
    assert rhat(np.array([[0.0] * 10, [1.0] * 10])) == math.inf
    assert math.isnan(rhat(np.ones((2, 10))))


@pytest.mark.parametrize("shape", [(1, 10), (2, 40)], ids=str)
def test_chance_exceeds_its_level_once_in_a_hundred_times(shape):
    """Whatever the density. Level and frequency, from 1000 trials each, err by sqrt(2 * 0.01 / 1000) = 0.0045."""
    rng = np.random.default_rng(5)
    level = chance_rhat(*shape)
    frequency = np.mean([rhat(rng.standard_exponential(shape)) > level for _ in range(1000)])
    assert frequency == pytest.approx(0.01, abs=4 * 0.0045)


def test_random_numbers_of_a_chain_s_own_are_not_held_against_it():
    values = autoregressive(0.5, 3, 100)
    shifted = values + np.array([[0], [5], [-5]])
    assert summarise(shifted).rhat > 2
    assert summarise(shifted, own_draws=True).rhat < 1.1
    assert summarise(shifted, own_draws=True)[1:] == pytest.approx(summarise(values, own_draws=True)[1:])
    assert summarise(values[:1], own_draws=True) == pytest.approx(summarise(values[:1]))


# Temperature

ETA, FRICTION, NOISE = 1e-3, 0.1, 100.0
# (2 a eta + eta^2 var(grad)) / (2 a - a^2) / eta, the kinetic temperature with Euler's friction and no thermostat
HOT = (2 * FRICTION + ETA * NOISE) / (2 * FRICTION - FRICTION**2)
# the same where friction is solved exactly between two halves of the gradient
HOT_SPLIT = 1 + ETA * NOISE * ((1 + math.exp(-FRICTION)) / 2) ** 2 / (1 - math.exp(-2 * FRICTION))


def traces_of(sampler: Sampler, noise: float) -> dict:
    """Of a chain on 4000 standard normal weights whose gradients have noise of that variance."""
    rng = torch.Generator().manual_seed(0)
    state = sampler.init(torch.randn(4000, generator=rng), rng)
    records = []
    for t in range(2000):
        state = sampler.ask(state, ETA, rng)
        grad = -state.theta + math.sqrt(noise) * torch.randn(4000, generator=rng)
        state = sampler.tell(state, grad, ETA, rng)
        if t >= 800 and t % 30 == 0:
            records.append({name: value.item() for name, value in sampler.stats(state).items()})
    return {name: summarise(np.array([[record[name] for record in records]])) for name in records[0]}


@pytest.mark.parametrize(
    ("sampler", "noise", "expected", "without", "compatible"),
    [
        (SGHMC(FRICTION), 0.0, 1 / 0.95, 1 / 0.95, True),
        (SGHMC(FRICTION), NOISE, 1 / 0.95, HOT, False),
        (SGNHT(FRICTION, rate=1e-6), NOISE, 1, HOT, False),  # too slow to have done anything
        (ScalarSGNHT(FRICTION, rate=10), NOISE, 1, HOT, True),
        (SplitSGNHT(FRICTION, rate=1e-6), NOISE, 1, HOT_SPLIT, False),
        (SplitSGNHT(FRICTION, rate=3), NOISE, 1, HOT_SPLIT, True),
        (Thermostat(FRICTION), NOISE, 1, HOT_SPLIT, True),
        (ScalarThermostat(FRICTION), NOISE, 1, HOT_SPLIT, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Sampler) else None,
)
def test_the_heat_of_the_noise_is_known_with_and_without_a_thermostat(sampler, noise, expected, without, compatible):
    """The mean of 40 snapshots, 6 times of relaxation apart, errs by 1.6 sqrt(2 / 4000 / 40) = 0.006.

    What the curvature of 1 adds is of the order of eta / 2. Thermostats of single weights scatter, for which 0.02 more.
    """
    found = temperature(sampler, traces_of(sampler, noise))
    assert found is not None
    assert found.expected == pytest.approx(expected)
    assert found.noise == pytest.approx(without, abs=4 * 0.006 + 0.02)
    assert found.compatible == compatible


class Warm(SGLD):
    """A sampler of one's own that answers for itself: it has a momentum, no thermostat, and is always too cold."""

    too_cold = "it was made so"

    def expected_temperature(self) -> float:
        return 2.0


def test_a_sampler_of_one_s_own_says_what_its_temperature_should_be():
    found = temperature(Warm(), {"temperature": summarise(autoregressive(0, 1, 100))})
    assert found is not None
    assert (found.expected, found.noise) == (2.0, found.mean)
    assert found.text().startswith("warning: kinetic temperature ")
    assert found.text().endswith("% below 2, which Euler's friction makes of 1; it was made so")
    assert found.to_json().keys() == {"mean", "mcse", "expected", "noise", "compatible"}


class Said(list):
    """Takes note of what a fit says."""

    say = list.append


@pytest.mark.parametrize(("mean", "warned"), [(1.04, False), (0.96, False), (1.06, True), (0.94, True)])
@pytest.mark.parametrize("set_to", [1.0, 0.5])
def test_a_temperature_is_told_from_5_percent_on(mean, set_to, warned):
    """At the end of a fit and in a diagnosis: where samples were collected, and in units of what it was set to."""
    sampler, off = Thermostat(temperature=set_to), {"temperature": 9.0, "thermostat": 0.1}
    held = {"temperature": mean * set_to, "thermostat": 0.1}
    records = [{"phase": "burn-in", "sampler": off}] + [{"phase": "collect", "sampler": held}] * 3
    said = Said()
    _tell_temperature(said, SimpleNamespace(sampler=sampler), records)  # type: ignore[arg-type]
    assert len(said) == 1
    assert said[0].startswith("warning: kinetic temperature" if warned else "kinetic temperature")
    if warned:
        assert ("wider" if mean > 1 else "closer together") in said[0]
    values = np.full((1, 100), mean * set_to) + 1e-6 * np.sin(np.arange(100))
    found = temperature(sampler, {"temperature": summarise(values), "thermostat": summarise(0 * values + 0.1)})
    assert found is not None
    assert found.compatible != warned
    assert found.text().startswith("warning") == warned


def test_without_momentum_there_is_no_temperature():
    assert temperature(SGLD(), {"valid": summarise(autoregressive(0, 1, 10))}) is None


# Runs


def made_up(run: Run, folder: Path, values: np.ndarray, seed: int, drift: float = 0.0, **config: Any) -> str:
    """A run whose records have these validation scores, while all else in them is independent; at temperature 1.

    The training bound rises by `drift` in each epoch.
    """
    shutil.copytree(run.path, folder)
    fields = json.loads((folder / "config.json").read_text()) | {"seed": seed} | config
    del fields["seal"]
    (folder / "config.json").write_bytes(dump_json(fields))
    rng = np.random.default_rng(seed)
    lines = []
    for i, valid in enumerate([*rng.normal(-50, 1, 5), *values]):
        a, b, c, d, e, f, g = (float(value) for value in rng.standard_normal(7))
        sampler = {} if fields["sampler"] in ("adam", "sgld") else {"temperature": 1 + 0.05 * a, "thermostat": 0.1 + b}
        lines.append({
            "epoch": i + 1, "phase": "burn-in" if i < 5 else "collect", "valid": float(valid),
            "train": c + drift * i,
            "sampler": sampler, "norms": {"x": d, "z1": e}, "predicted": {"mean": f, "spread": g},
            "ess": 1.0, "largest_gradient": 1.0, "seconds": 1.0, "collected": max(0, i - 4),
        })  # fmt: skip
    (folder / "metrics.jsonl").write_bytes(b"".join(records.line(line) for line in lines))
    return str(folder)


def test_traces_are_those_of_the_collected_phase(run):
    found = history(run)
    records = run.metrics()
    assert found.epoch[found.collecting].tolist() == list(range(7, 13))
    for name, values in {
        "valid": [record["valid"] for record in records],
        "norm_z1": [record["norms"]["z1"] for record in records],
        "thermostat": [record["sampler"]["thermostat"] for record in records],
        "predicted_spread": [record["predicted"]["spread"] for record in records],
    }.items():
        assert found.values[name].tolist() == values
    said = diagnose(run.path)
    assert said.samples == 6
    assert said.traces["valid"].mean == pytest.approx(np.mean([record["valid"] for record in records[6:]]))


def test_what_adam_left_in_a_warm_up_is_no_sample(run, tmp_path):
    found = history(Run(made_up(run, tmp_path / "warm", np.arange(10.0), seed=0, warmup=7)))
    assert found.epoch[found.collecting].tolist() == list(range(8, 16))


def test_chains_that_agree_are_not_doubted_and_not_praised(run, tmp_path):
    folders = [made_up(run, tmp_path / str(i), autoregressive(0, 1, 600, i)[0], seed=i) for i in range(2)]
    found = diagnose(*folders)
    assert found.verdict[-1] == "nothing here speaks against convergence, which is not a proof"
    assert any("compatible with 1" in line for line in found.verdict)
    assert not any("mixed" in line for line in found.verdict)
    (alone,) = [line for line in diagnose(folders[0]).verdict if "only one chain" in line]
    assert "first half against its second" in alone


def test_chains_that_differ_have_not_mixed(run, tmp_path):
    folders = [made_up(run, tmp_path / str(i), i + autoregressive(0, 1, 600, i)[0], seed=i) for i in range(2)]
    found = diagnose(*folders)
    assert found.verdict[0].startswith("R-hat of the validation log-likelihood is 1.1")
    assert found.verdict[0].endswith("they have not mixed; run longer")
    assert not any("nothing here" in line for line in found.verdict)


@pytest.mark.parametrize("latents", [True, False])
def test_a_bound_that_the_proposal_still_raises_says_nothing_of_the_weights(run, tmp_path, latents):
    """Without latents there is no proposal: the bound is log p itself, and its drift counts."""
    values = autoregressive(0, 1, 600, 3)[0]
    found = diagnose(
        made_up(run, tmp_path / "drift", values, seed=3, drift=0.02, **({} if latents else {"hidden": []}))
    )
    assert found.traces["train"].rhat > 2
    assert any("training bound" in line for line in found.verdict) == (not latents)
    assert ("training bound*" in found.text()) == latents
    assert ("train" in found.relevant) == (not latents)


def test_few_independent_samples_are_said_to_be_few(run, tmp_path):
    """A slow chain of 600 with tau = 19 is worth some 30 independent samples; four samples may have any R-hat."""
    slow = made_up(run, tmp_path / "slow", autoregressive(0.9, 1, 600, 2)[0], seed=2)
    (line,) = [line for line in diagnose(slow).verdict if line.startswith("ESS")]
    ess = diagnose(slow).traces["valid"].ess_bulk
    assert f"{ess:.0f} of 600 samples: the mean of 600 samples is worth {ess:.0f} independent ones" in line
    assert 10 < ess < 90
    four = made_up(run, tmp_path / "four", np.array([1.0, 2.0, 3.0, 4.0]), seed=3)
    assert "too few to tell; collect more" in diagnose(four).verdict[0]


def test_the_last_of_a_longer_chain_are_compared(run, tmp_path):
    """The longer one starts far away, which does not show in its last samples."""
    late = autoregressive(0, 1, 400, 1)[0] + np.where(np.arange(400) < 100, 50, 0)
    folders = [
        made_up(run, tmp_path / "a", autoregressive(0, 1, 300, 0)[0], seed=0),
        made_up(run, tmp_path / "b", late, seed=1),
    ]
    found = diagnose(*folders)
    assert found.samples == 300
    assert found.verdict[0] == "the chains have 300 and 400 samples: the last 300 of each are compared"
    assert found.traces["valid"].rhat < 1.1


def test_an_optimiser_s_run_is_no_chain(run, tmp_path):
    found = diagnose(made_up(run, tmp_path / "adam", autoregressive(0, 1, 600)[0], seed=0, sampler="adam"))
    (line,) = found.verdict
    assert "optimiser's run (adam), not a chain" in line
    assert found.temperature is None
    found = diagnose(made_up(run, tmp_path / "sgld", autoregressive(0, 1, 600)[0], seed=0, sampler="sgld"))
    assert any("no momentum" in line for line in found.verdict)


def test_the_command_prints_a_table_or_json_and_makes_a_picture(run, second, tmp_path, capsys):
    folders = [str(run.path), str(second.path)]
    cli.main(["diagnose", *folders, "--json"])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)  # NaN and infinity are no JSON
    assert found["chains"] == 2
    names = {"valid", "train", "norm_x", "norm_z1", "temperature", "thermostat", "predicted_mean", "predicted_spread"}
    assert set(found["traces"]) == names
    assert Path(found["picture"]) == run.path / "figures" / "traces.png"
    assert Path(found["picture"]).read_bytes().startswith(b"\x89PNG")
    (run.path / "figures" / "traces.png").unlink()
    cli.main(["diagnose", *folders])
    lines = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in lines[: len(names) + 1]}) == 1, "columns are aligned"
    units = [f"{folder}: {active} of {n} units of z1 are active" for folder, [[active, n]] in found["active"].items()]
    assert list(found["active"]) == folders
    assert lines[len(names) + 1].startswith("* ")
    assert lines[len(names) + 3 : -1] == found["verdict"] + units
    assert (run.path / "figures" / "traces.png").exists()


def test_what_stands_still_is_null(run, tmp_path, capsys):
    cli.main(["diagnose", made_up(run, tmp_path / "still", np.ones(10), seed=0), "--json"])
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["traces"]["valid"]["rhat"] is None
    assert found["traces"]["valid"]["sd"] == 0
    cli.main(["diagnose", str(tmp_path / "still")])
    assert "–" in capsys.readouterr().out.splitlines()[1]


def test_pictures_have_a_panel_for_each_trace_and_a_line_for_each_chain(run, second):
    histories = [history(run), history(second)]
    figure = traces(histories)
    assert len(figure.axes) == len(histories[0].values) == 8
    for axes, name in zip(figure.axes, histories[0].values, strict=True):
        low, high = axes.get_ylim()
        late = np.concatenate([found.values[name][found.collecting] for found in histories])
        assert low < late.min() <= late.max() < high, "what was collected is in the frame"
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert [name for name in labels if not str(name).startswith("_")] == [str(run.path), str(second.path)]
    assert png(figure) == png(traces(histories))


# For ArviZ


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arviz_gets_the_weights_and_the_traces(run, second, tmp_path):
    arviz = pytest.importorskip("arviz")
    cli.main(["diagnose", str(run.path), str(second.path), "--out", str(tmp_path / "out.nc")])
    found, read = inference_data(run.path, second.path), arviz.from_netcdf(str(tmp_path / "out.nc"))
    for data in (found, read):
        assert {name: tuple(value.shape) for name, value in data.posterior.data_vars.items()} == {
            "x.W": (2, 3, 16, 6), "x.b": (2, 3, 16), "z1.b": (2, 3, 6),
        }  # fmt: skip
        for chain, one in enumerate((run, second)):
            posterior = one.posterior()
            for draw, theta in enumerate(posterior.samples()):
                x, z1 = posterior.model.unflatten(theta)
                assert np.array_equal(data.posterior["x.W"][chain, draw], x["W"].numpy())
                assert np.array_equal(data.posterior["z1.b"][chain, draw], z1["b"].numpy())
            valid = [record["valid"] for record in one.metrics() if record["phase"] == "collect"]
            assert data.sample_stats["valid"][chain].values.tolist() == valid
            assert data.sample_stats["epoch"][chain].values.tolist() == list(range(7, 13))
    assert run.posterior().to_arviz().posterior["x.W"].shape == (1, 3, 16, 6)


def test_arviz_needs_as_many_draws_of_each_chain(run, second):
    one, other = run.posterior(), second.posterior()
    other.thetas.pop()
    one.others = [other]
    with pytest.raises(UserError, match="as many draws of each chain, got 3, 2"):
        one.to_arviz()
    other.thetas.clear()
    with pytest.raises(UserError, match="stored no samples"):
        other.to_arviz()


# What cannot be answered


def refused(capsys, *args: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(["diagnose", *args])
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.strip().splitlines()
    return line


def test_what_cannot_be_answered_is_said_in_a_line(run, second, tmp_path, capsys):
    path = str(run.path)
    short = str(doubly.fit(tmp_path / "short", **FIELDS | {"collect": 3, "epochs": 5}).path)
    wide = str(doubly.fit(tmp_path / "wide", **FIELDS | {"hidden": (7,), "epochs": 2}).path)
    digits = str(doubly.fit(tmp_path / "digits", **FIELDS | {"data": "digits", "epochs": 2}).path)
    flat = made_up(run, tmp_path / "flat", np.arange(5.0), seed=2, prior="flat")
    cold = made_up(run, tmp_path / "cold", np.arange(5.0), seed=2, sampler="sgnht:temperature=0.5")
    shutil.copytree(run.path, tmp_path / "copy")
    assert "name a run folder" in refused(capsys)
    assert "holds no run" in refused(capsys, str(tmp_path))
    assert f"at least 4 epochs of collected samples, but {short} has 3" in refused(capsys, short)
    assert "different data" in refused(capsys, path, digits)
    assert "different models" in refused(capsys, path, wide)
    assert "different priors" in refused(capsys, path, flat)
    assert "different temperatures" in refused(capsys, path, cold)
    assert "are the same chain" in refused(capsys, path, path)
    assert "are the same chain" in refused(capsys, path, str(tmp_path / "copy"))
    assert "ends in .nc" in refused(capsys, path, "--out", str(tmp_path / "out.txt"))


def test_without_arviz_all_works_but_its_file(run, second, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "arviz", None)
    cli.main(["diagnose", str(run.path), str(second.path)])
    assert "R-hat" in capsys.readouterr().out
    assert "pip install 'doubly[arviz]'" in refused(capsys, str(run.path), "--out", str(tmp_path / "out.nc"))
    assert not (tmp_path / "out.nc").exists()
