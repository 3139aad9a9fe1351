"""Evaluating runs: what is collected is what it says, results fit together, and evaluating changes no run."""

import dataclasses
import hashlib
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import doubly
from doubly import cli
from doubly.analysis.config import EvaluateConfig
from doubly.analysis.evaluate import _advice, compare, curve, evaluate
from doubly.analysis.evaluation import FiledEvaluation, paired
from doubly.cli import parser
from doubly.core.cache import NoCache
from doubly.core.errors import UserError
from doubly.core.sealed import load_json
from doubly.data import load
from doubly.latents import Annealing
from doubly.runs.build import build
from doubly.runs.config import from_dict
from doubly.runs.folder import Run
from doubly.runs.progress import Progress
from doubly.training.protocol import fit
from doubly.training.state import State, init

FIELDS: dict[str, Any] = {
    "data": "bars", "hidden": (6,), "epochs": 12, "collect": 6, "keep": 3, "theta_steps": 2, "batch": 300, "step": 0.05,
    "means": (1, 2, 6), "valid_draws": 5, "threads": 1,
    # as in the paper, where draws of the proposal serve: most of what is asked here is about them
    "estimator": "nais", "sampler": "sgnht", "phi_step": 3e-4, "patience": 10, "collect_every": "1epoch",
}  # fmt: skip


STEPS = 2 * math.ceil(len(load("bars").train) / 300)  # in an epoch


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return doubly.fit(tmp_path_factory.mktemp("evaluate") / "run", quiet=True, **FIELDS)


@pytest.fixture(scope="module")
def second(tmp_path_factory) -> Run:
    return doubly.fit(tmp_path_factory.mktemp("evaluate") / "second", quiet=True, **FIELDS, seed=1)


# What is collected


def samples(every: str, **fields) -> tuple[list[torch.Tensor], list[int], State]:
    """The weights at each sample, the steps between them, and the last state of a fit that is watched from outside."""
    config = from_dict(FIELDS | {"collect_every": every} | fields)
    data = load(config.data)
    method, train = build(config, data), torch.as_tensor(data.train)
    state = init(method, train)
    found: list[torch.Tensor] = []
    when: list[int] = []
    for state, _ in fit(method, train, torch.as_tensor(data.valid), state):  # noqa: B020 - each comes from the last
        if state.collected > len(found):
            found.append(state.theta.theta.double())
            when.append(state.epoch * STEPS + state.batch * 2 + state.inner)
    return found, when, state


@pytest.mark.parametrize(("every", "steps"), [("1", STEPS), ("2 epochs", 2 * STEPS), ("3steps", 3), ("1step", 1)])
def test_samples_come_as_often_as_they_are_asked_for(every, steps):
    found, when, state = samples(every, epochs=12 if every != "2 epochs" else 20)
    assert len(found) == 6 == state.collected
    assert np.diff(when).tolist() == [steps] * 5
    assert state.batch == state.inner == 0, "a fit ends with an epoch"


def test_the_mean_is_that_of_the_samples():
    found, _, state = samples("3steps")
    torch.testing.assert_close(state.mean, torch.stack(found).mean(0), rtol=0, atol=1e-12)


def test_means_windows_and_samples_on_disk_are_those_of_the_chain(tmp_path):
    """6 samples make 3 windows of 2, of which a budget of 2 keeps the second and the third, spaced evenly from 0."""
    found, _, _ = samples("3steps")
    run = doubly.fit(tmp_path / "run", quiet=True, **FIELDS | {"collect_every": "3steps", "window": 2, "keep": 2})
    posterior = run.posterior()
    assert sorted(posterior.means) == [1, 2, 6]
    for number, mean in posterior.means.items():
        torch.testing.assert_close(mean, torch.stack(found[:number]).mean(0).float(), rtol=1e-6, atol=1e-6)
    assert sorted(file.stem for file in (run.path / "posterior").glob("draw-*")) == ["draw-00004", "draw-00006"]
    for kept, last in zip(posterior.samples(), (4, 6), strict=True):
        torch.testing.assert_close(kept, torch.stack(found[last - 2 : last]).mean(0).float(), rtol=1e-6, atol=1e-6)


def test_single_samples_are_kept_as_they_are(run):
    found, _, _ = samples("1")
    assert all(
        torch.equal(kept.double(), found[i]) for kept, i in zip(run.posterior().samples(), (1, 3, 5), strict=True)
    )


@pytest.mark.parametrize(("keep_mb", "kept"), [(1000.0, 3), (2 * 4 * 118 / 2**20, 2), (0.0, 0)])
def test_no_more_samples_are_kept_than_fit_into_the_budget(tmp_path, keep_mb, kept):
    """A sample has 16 * 6 + 16 + 6 = 118 weights of 4 bytes."""
    run = doubly.fit(tmp_path / "run", quiet=True, **FIELDS | {"keep_mb": keep_mb})
    assert len(list((run.path / "posterior").glob("draw-*"))) == kept


def test_the_budget_holds_when_validation_levels_off_before_time_presses(tmp_path):
    """Then more samples come than fit into half of the epochs; those kept are still evenly spaced and not too many."""
    still = {"step": 1e-30, "phi_steps": 0}  # weights that do not move in single precision: validation never rises
    run = doubly.fit(
        tmp_path / "run",
        quiet=True,
        **FIELDS
        | still
        | {"collect": 50, "epochs": 20, "patience": 1, "min_epochs": 3, "keep": 4, "collect_every": "1"},
    )
    numbers = sorted(int(file.stem[-5:]) for file in (run.path / "posterior").glob("draw-*"))
    assert numbers == [4, 8, 12, 16]
    assert run.metrics()[-1]["collected"] == 16


# Asking


def state_of(folder: Path) -> dict[str, str]:
    """A fingerprint of every file that belongs to the chain."""
    names = ["config.json", "data.json", "metrics.jsonl", "checkpoint", "posterior/draw*", "posterior/mean*"]
    files = [file for name in names for file in folder.glob(name)] + list((folder / "checkpoint").iterdir())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}


COMMANDS = {
    "evaluate": ["evaluate", "RUN", "--draws", "10", "--refit", "1"],
    "evaluate-last": ["evaluate", "RUN", "--draws", "10", "--refit", "1", "--of", "last", "--adaptive"],
    "evaluate-ensemble": ["evaluate", "RUN", "OTHER", "--draws", "10", "--refit", "1", "--of", "ensemble"],
    "compare": ["compare", "RUN", "OTHER", "--draws", "10", "--refit", "1"],
    "curve-samples": ["curve", "RUN", "--draws", "10", "--refit", "1"],
    "curve-draws": ["curve", "RUN", "--over", "draws", "--draws", "10", "--refit", "1"],
    "curve-training-draws": [
        "curve", "RUN", "--over", "training-draws", "--at", "2", "5", "--draws", "10", "--refit", "1",
    ],
    "diagnose": ["diagnose", "RUN", "OTHER", "--out", "OUT/x.nc"],
    "sample": ["sample", "RUN", "-n", "3", "--out", "OUT/x.csv"],
    "report": ["report", "RUN"],
    "impute": ["impute", "RUN", "--hide", "lower-half", "-n", "3", "--draws", "3", "--sweeps", "2", "--refit", "1"],
    "export": ["export", "RUN", "OUT/x.doubly", "--refit", "1"],
    "list": ["list"],
    "reproduce": ["reproduce", "--list"],
    "profile": ["profile", "--data", "bars", "--hidden", "5", "--steps", "2"],
    "data": ["data", "list"],
    "verify": ["verify", "RUN"],
    "repair": ["repair", "RUN"],
}  # fmt: skip


@pytest.mark.parametrize("name", [*COMMANDS, "others"])
def test_asking_moves_no_chain(name, run, second, tmp_path, capsys):
    """θ, φ, the sampler's state, the generator and all else of the runs have the same bytes before and after."""
    if name == "others":
        asked = {args[0] for args in COMMANDS.values()}
        # those of a chain; these read a table; serve waits for visitors, push and pull for a hub (tests of their own)
        left_out = {"fit", "resume", "check", "fill", "odd", "serve", "push", "pull"}
        unasked = {command.__name__.lower() for command in parser.COMMANDS} - asked - left_out
        assert not unasked, "every command that reads a run belongs into this test"
        return
    index = {"RUN": str(run.path), "OTHER": str(second.path)}
    before = state_of(run.path) | state_of(second.path)
    cli.main([index.get(arg, arg.replace("OUT", str(tmp_path))) for arg in COMMANDS[name]])
    assert before == state_of(run.path) | state_of(second.path)
    capsys.readouterr()


def test_scores_of_rows_come_as_columns(run, tmp_path, capsys):
    for ending in ("csv", "npz"):
        file = tmp_path / f"rows.{ending}"
        cli.main(["evaluate", str(run.path), "--draws", "10", "--refit", "1", "--rows", str(file), "--json"])
        found = json.loads(capsys.readouterr().out)
        read: Any = np.load(file) if ending == "npz" else np.genfromtxt(file, delimiter=",", names=True)
        table = {name: read[name] for name in (read.files if ending == "npz" else read.dtype.names)}
        assert len(table["log_likelihood"]) == found["n"] == 500
        assert np.mean(table["log_likelihood"]) == pytest.approx(found["log_likelihood"], abs=1e-5)
        assert {"ess", "khat", "noise", "draws"} <= set(table)


def test_rows_of_a_file_are_scored_like_those_of_a_split(run, tmp_path, capsys):
    np.savetxt(tmp_path / "x.csv", load("bars").test, fmt="%d", delimiter=",")
    args = ["evaluate", str(run.path), "--draws", "10", "--refit", "1", "--json"]
    cli.main([*args, "--input", str(tmp_path / "x.csv")])
    cli.main(args)
    of_file, of_split = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert of_file["log_likelihood"] == of_split["log_likelihood"]
    assert "split" not in of_file


def test_a_comparison_pairs_the_rows(run, second):
    ranked = compare([run.path, second.path], quiet=True, draws=10, refit=1)
    rows = {folder: evaluate(folder, quiet=True, draws=10, refit=1).rows.log_likelihood.double().numpy()
            for folder in (str(run.path), str(second.path))}  # fmt: skip
    best, other = ranked.runs
    gap = rows[other.run] - rows[best.run]
    assert best.evaluation.summary.log_likelihood >= other.evaluation.summary.log_likelihood
    assert best.to_best.difference == best.to_best.difference_stderr == 0
    assert other.to_best.difference == pytest.approx(gap.mean())
    assert other.to_best.difference_stderr == pytest.approx(gap.std(ddof=1) / np.sqrt(len(gap)))
    (first, second_line), listed = ranked.text().splitlines(), ranked.to_json()
    assert first.startswith(best.run)
    assert first.endswith("best")
    assert f"{other.to_best.difference:.3f} ± {other.to_best.difference_stderr:.3f}" in second_line
    assert [one["run"] for one in listed] == [best.run, other.run]
    assert listed[1]["difference"] == other.to_best.difference
    assert listed[1]["log_likelihood"] == other.evaluation.summary.log_likelihood


def test_curves_pass_through_the_evaluations(run):
    over_samples = curve(run.path, "samples", quiet=True, draws=10, refit=1)
    assert [point.at for point in over_samples.points] == [1, 2, 6]
    whole = evaluate(run.path, quiet=True, draws=10, refit=1, by="draws").summary
    assert over_samples.points[-1].evaluation.summary == whole
    over_draws = curve(run.path, "draws", quiet=True, draws=10, refit=1)
    assert [point.at for point in over_draws.points] == [1, 2, 5, 10]
    assert over_draws.points[-1].evaluation.summary == whole
    filed = json.loads((run.path / "evaluations" / "curve-over-draws.json").read_text())
    assert filed["points"] == over_draws.to_json()
    assert [(point["at"], point["draws"]) for point in filed["points"]] == [(1, 1), (2, 2), (5, 5), (10, 10)]


def test_a_curve_over_training_draws_fits_each_run_once(run):
    curve(run.path, "training-draws", [1, 5], quiet=True, draws=10, refit=1)
    fitted = run.path / "curves" / "training-draws-1"
    assert Run(fitted).config == dataclasses.replace(run.config, draws=1)
    before = state_of(fitted)
    curve(run.path, "training-draws", [1, 5], quiet=True, draws=10, refit=1)
    assert state_of(fitted) == before


@pytest.mark.parametrize("objective", ["wake", "sleep", "wake-sleep"])
def test_the_proposal_is_refitted_as_asked(run, objective):
    """However it is fitted, the answer is a bound on the same number: within its error of that with many more draws."""
    few = evaluate(run.path, quiet=True, of="last", by="draws", draws=50, refit=20, refit_objective=objective)
    many = evaluate(run.path, quiet=True, of="last", by="draws", draws=5000, refit=20, refit_objective=objective)
    assert few.summary.log_likelihood <= many.summary.log_likelihood + 4 * few.summary.draw_error
    (file,) = (run.path / "posterior").glob(f"proposal-*-20-{objective}.safetensors")
    others = [other for other in (run.path / "posterior").glob("proposal-*-20-*.safetensors") if other != file]
    fitted = safetensors.torch.load_file(file)["phi"]
    assert not any(torch.equal(fitted, safetensors.torch.load_file(other)["phi"]) for other in others)


def test_annealing_is_a_second_opinion(run):
    """Both estimate log p(x): over 100 rows their difference is within 4 standard errors, beside what each is low by.

    10,000 draws leave a bias of 1 / (2 effective draws), some 1e-4; annealing one of half the variance of its log mean
    weight, which the gap between its own bounds tells.
    """
    found = evaluate(run.path, quiet=True, draws=10_000, refit=20, by="draws", ais=200, ais_rows=100).annealed
    assert found is not None
    assert found.gap_stderr is not None
    assert found.above_score is not None
    assert found.above_score_stderr is not None
    low = max(found.gap_on_simulated_rows, 0) + 4 * found.gap_stderr
    assert abs(found.above_score) <= 4 * found.above_score_stderr + low
    assert low < 0.1


def test_an_ensemble_of_chains_is_annealed_member_by_member(run, second):
    """log 1/M sum_m p(x | theta_m) over the samples of both chains: on 100 rows, what 2,000 draws of each member give.

    The draws leave a bias of some 1e-3; the annealed bounds one of half the variance of a row's log-weight, averaged
    over the members: below 0.1 here. The mean over 100 rows of the difference is within 4 standard errors beside that.
    """
    how: dict[str, Any] = {"quiet": True, "refit": 5, "of": "ensemble", "settle": False, "draws": 2000}
    x = load("bars").test[:100]
    annealed = evaluate(run.path, second.path, x=x, by="annealing", temperatures=100, **how)
    drawn = evaluate(run.path, second.path, x=x, by="draws", **how)
    found = paired(annealed.rows, drawn.rows)
    assert found.difference_stderr is not None
    assert abs(found.difference) <= 4 * found.difference_stderr + 0.1
    assert found.difference_stderr < 0.05
    assert annealed.rows.draws.eq(6).all(), "a chain for each of three samples of two runs"
    assert "annealed, 100 temperatures" in annealed.text()
    first = evaluate(run.path, x=x, by="draws", **how | {"of": "last"})
    assert abs(paired(drawn.rows, first.rows).difference) > 0.15, "a single member gives something else"


def test_what_the_draws_cannot_tell_is_said(run):
    """One draw has no k̂ and no noise; its error is not zero but unknown, in words and in JSON."""
    found = evaluate(run.path, quiet=True, by="draws", draws=1, refit=1, settle=False)
    assert found.summary.unknown == 500
    assert "one draw does not say" in found.text()
    assert "500 of 500 rows have too few draws for k̂" in found.text()
    printed = found.to_json()
    assert (printed["draw_error"], printed["unknown"], printed["draw_error_is_least"]) == (None, 500, True)
    summary = found.summary._replace(draw_error=0.01, unreliable=3, unknown=0)
    assert "± 0.010 or more of that is due to the draws" in dataclasses.replace(found, summary=summary).text()
    settled = dataclasses.replace(found, summary=summary._replace(unreliable=0)).text()
    assert "± 0.010 of that is due to the draws" in settled
    assert "too few draws" not in settled


def test_results_of_earlier_versions_are_read():
    """What is called ess was called effective, NaN became null, and a file of something else is no evaluation."""
    fields: dict[str, Any] = {"log_likelihood": -9.0, "stderr": 0.1, "draws": 20, "split": "test", "of": "mean"}
    older = FiledEvaluation.from_json(fields | {"effective": 2.5, "n": 500})
    assert (
        older == FiledEvaluation.from_json(fields | {"ess": 2.5}) == FiledEvaluation(-9.0, 0.1, 20, 2.5, "test", "mean")
    )
    unknown = FiledEvaluation.from_json(fields | {"ess": 2.5, "log_likelihood": None})
    assert unknown is not None
    assert math.isnan(unknown.log_likelihood)
    assert FiledEvaluation.from_json({"log_likelihood": -9.0}) is None


def test_an_evaluation_is_filed_as_it_is_printed(run, capsys):
    found = evaluate(run.path, quiet=True, draws=10, refit=1)
    cli.main(["evaluate", str(run.path), "--draws", "10", "--refit", "1", "--json"])
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    file = run.path / "evaluations" / "test-mean-10-refit-1.json"
    assert printed == found.to_json() == load_json(file.read_bytes(), file, required=True)
    assert list(printed)[:7] == ["log_likelihood", "stderr", "draw_error", "ess", "unreliable", "draws_used", "n"]
    others = {"unknown", "draw_error_is_least", "epoch", "collected", "chains", "exact", "split", "draws", "of",
              "samples", "adaptive", "refit", "refit_objective", "refit_shards", "refine", "ais", "ais_rows", "states",
              "ais_chains", "seed", "truth", "estimator", "by", "temperatures", "settle", "trust"}  # fmt: skip
    assert set(list(printed)[7:]) - {"advice"} == others
    assert printed["truth"] == found.truth
    line, *_ = found.text().splitlines()
    assert line.startswith(f"log-likelihood of 500 test rows: {found.summary.log_likelihood:.3f} ± ")
    assert "rows of x.csv" in dataclasses.replace(found, file="x.csv").text()


def test_a_refined_score_is_of_the_same_likelihood_with_more_effective_draws(run):
    """Both estimate log p(x), with a bias of 1 / (2 effective draws) each: their mean difference is within 4 errors."""
    how: dict[str, Any] = {"draws": 2000, "refit": 0, "quiet": True}
    plain, refined = evaluate(run.path, **how), evaluate(run.path, refine=100, **how)
    found = paired(refined.rows, plain.rows)
    assert refined.summary.ess > 1.2 * plain.summary.ess > 100
    assert found.difference_stderr is not None
    assert abs(found.difference) <= 4 * found.difference_stderr + 1 / plain.summary.ess
    assert (run.path / "evaluations" / "test-mean-2000-refit-0-refine-100.json").exists()


def test_advice_names_what_can_be_done_and_was_not(run, tmp_path):
    def advice(there: Run, **asked: Any) -> list[str]:
        return _advice(EvaluateConfig(**asked), there.posterior())

    ordered = doubly.fit(
        tmp_path / "nade", quiet=True, **FIELDS | {"model": "nade", "proposal": "nade", "epochs": 2, "collect": 1}
    )
    assert advice(run) == ["more --draws", "a longer --refit", "--refine 200", "--ais 1000"]
    assert advice(run, refine=10, of="ensemble") == advice(run, refine=10, ais=10) == advice(ordered)
    assert advice(ordered) == ["more --draws", "a longer --refit"]
    with pytest.raises(UserError, match="NADE layers cannot be refined"):
        evaluate(ordered.path, refine=10, refit=10**9, quiet=True)  # refused before it is fitted


def test_annealing_that_is_stopped_goes_on_after_the_rows_that_are_done(run, monkeypatch):
    monkeypatch.setattr("doubly.posterior.scores.ANNEALED", 8)

    def unfinished() -> set[Path]:
        return {file for name in ("annealed-*", "gap-*") for file in (run.path / "evaluations").glob(name)}

    before = unfinished()  # of other tests of this run
    x, how, told = load("bars").test[:20], Annealing(temperatures=5, chains=3), []

    def impatient(what: str, share: float) -> None:
        told.append(what)
        if "17 to 20" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.posterior(progress=impatient).anneal(x, how)
    told.clear()
    resumed = run.posterior(progress=lambda what, share: told.append(what)).anneal(x, how)
    assert set(told) == {"annealing rows 17 to 20 of 20"}
    whole = dataclasses.replace(run.posterior(), cache=NoCache()).anneal(x, how)
    assert unfinished() > before
    posterior = run.posterior()
    posterior.anneal(x, how)
    gap = posterior.annealing_gap(5, how)
    told.clear()
    again = run.posterior(progress=lambda what, share: told.append(what)).annealing_gap(5, how)
    assert again == gap
    assert not told, "found again, not made again"
    posterior.tidy()
    assert unfinished() == before
    assert torch.equal(resumed.log_likelihood, whole.log_likelihood)
    assert torch.equal(resumed.ess, whole.ess)


def test_an_evaluation_that_is_stopped_goes_on_where_it_was(run, tmp_path, monkeypatch, capsys):
    """SIGTERM comes when scoring is first told of, so that it never comes too late."""
    x = load("bars").test[:60]
    np.savetxt(tmp_path / "x.csv", x, fmt="%d", delimiter=",")
    how = {"draws": 2000, "refit": 1, "memory": 0.05, "threads": 1}
    evaluate(run.path, x=x, quiet=True, **how | {"draws": 1})  # the proposal is fitted, so that scoring is told first

    def unfinished() -> set[Path]:
        return set((run.path / "evaluations").glob("unfinished-*"))

    before_it = unfinished()  # of other tests of this run
    flags = [part for name, value in how.items() for part in (f"--{name}", str(value))]

    def told(self: Progress, message: str, last: bool = False) -> None:
        if "scoring" in message:  # after the trial of annealing
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a command that does not listen goes on
    monkeypatch.setattr(Progress, "show", told)
    try:
        with pytest.raises(SystemExit) as stop:
            cli.main(["evaluate", str(run.path), "--input", str(tmp_path / "x.csv"), *flags])
    finally:
        signal.signal(signal.SIGTERM, before)
        monkeypatch.undo()
    assert stop.value.code == 128 + signal.SIGTERM
    assert "goes on from there" in capsys.readouterr().err.splitlines()[-1]
    (left,) = unfinished() - before_it
    resumed = evaluate(run.path, x=x, quiet=True, **how)
    assert not left.exists(), "it was taken up and finished"
    afresh = evaluate(run.path, x=x, quiet=True, **how)
    torch.testing.assert_close(resumed.rows, afresh.rows, rtol=0, atol=0, equal_nan=True)


# What cannot be answered


def refused(capsys, *args: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(args))
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.strip().splitlines()[-1]


def test_what_cannot_be_answered_is_said_in_a_line(run, second, tmp_path, capsys):
    path, other = str(run.path), str(second.path)
    wide = doubly.fit(tmp_path / "wide", quiet=True, **FIELDS | {"hidden": (7,)}).path
    digits = doubly.fit(tmp_path / "digits", quiet=True, **FIELDS | {"data": "digits", "epochs": 2, "collect": 1}).path
    empty = doubly.fit(tmp_path / "empty", quiet=True, **FIELDS | {"collect": 0, "epochs": 2}).path
    np.savetxt(tmp_path / "narrow.csv", np.ones((2, 5)), fmt="%d", delimiter=",")
    assert "name a run folder" in refused(capsys, "evaluate")
    assert "collected no samples" in refused(capsys, "evaluate", str(empty))
    assert "stored no samples" in refused(capsys, "evaluate", str(empty), "--of", "ensemble")
    assert "the first 1, 2, 6 samples, not of 50" in refused(capsys, "evaluate", path, "--samples", "50")
    assert "several chains" in refused(capsys, "evaluate", path, other, "--of", "mean")
    assert "one set of weights" in refused(capsys, "evaluate", path, "--of", "ensemble", "--ais", "10")
    assert "one set of weights" in refused(capsys, "evaluate", path, other, "--of", "last", "--ais", "10")
    assert "ais_rows" in refused(capsys, "evaluate", path, "--ais", "10", "--ais-rows", "0")
    assert "named twice" in refused(capsys, "evaluate", path, path, "--of", "ensemble")
    assert "named twice" in refused(capsys, "compare", path, path)
    assert "name a run folder" in refused(capsys, "curve")
    for flag, value in (("--keep-mb", "inf"), ("--means", "0"), ("--window", "200"), ("--warmup", "2000")):
        line = refused(capsys, "fit", "--data", "bars", "--epochs", "2000", flag, value, "--out", str(tmp_path / "x"))
        assert flag.removeprefix("--").replace("-", "_")[:4] in line
    late = ["--collect-every", "5", "--epochs", "4"]
    assert "gives no sample" in refused(capsys, "fit", "--data", "bars", *late, "--out", str(tmp_path / "x"))
    assert "different models" in refused(capsys, "evaluate", path, str(wide), "--of", "ensemble")
    assert "different data" in refused(capsys, "evaluate", path, str(digits), "--of", "ensemble")
    assert "different data" in refused(capsys, "compare", path, str(digits))
    assert "at least two runs" in refused(capsys, "compare", path)
    assert "16 columns" in refused(capsys, "evaluate", path, "--input", str(tmp_path / "narrow.csv"))
    assert "draws must be at least 1" in refused(capsys, "evaluate", path, "--draws", "0")
    assert "refit must not be negative" in refused(capsys, "evaluate", path, "--refit", "-1")
    assert ".csv, .npz" in refused(capsys, "evaluate", path, "--rows", "rows.txt")
    assert "steps" in refused(capsys, "fit", "--collect-every", "often", "--out", str(tmp_path / "x"))
    assert "window must be at least 1" in refused(capsys, "fit", "--window", "0", "--out", str(tmp_path / "x"))
