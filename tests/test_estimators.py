"""Which estimate of log p(x) an evaluation takes, and when its number is called settled."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import doubly
from doubly import UserError, cli
from doubly.analysis import estimators
from doubly.analysis.config import EvaluateConfig
from doubly.analysis.estimators import choose, trial_rows, trust
from doubly.analysis.evaluate import compare, evaluate
from doubly.analysis.evaluation import FiledEvaluation
from doubly.analysis.report.sections.quality import result
from doubly.data import load
from doubly.latents import Annealing, Gap, Mean, Pair, RowLikelihoods, bound
from doubly.layers import Chain
from doubly.posterior.estimates import TRIAL_ROWS, Chosen, Estimator, ScoreConfig
from doubly.posterior.store import Posterior
from doubly.runs.folder import Run
from exact import bits

QUICK: dict[str, Any] = {"epochs": 4, "collect": 2, "theta_steps": 2, "step": 0.1, "valid_draws": 5, "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return doubly.fit(tmp_path_factory.mktemp("run") / "a", data="bars", hidden=(6,), **QUICK)


@pytest.fixture(scope="module")
def incomplete(tmp_path_factory) -> Run:
    """Values are missing in the training rows alone."""
    folder = tmp_path_factory.mktemp("incomplete")
    data = load("bars")
    train = data.train[:300].astype(np.float32)
    train[np.random.default_rng(0).random(train.shape) < 0.3] = np.nan
    np.savez(folder / "x.npz", train=train, valid=data.valid[:60], test=data.test[:40])
    return doubly.fit(folder / "run", data=str(folder / "x.npz"), hidden=(5,), **QUICK)


def test_the_larger_bound_is_taken(run):
    """On these rows both are tried; the one that gives them more is taken for the rows that are scored."""
    settings, posterior = EvaluateConfig(draws=1, temperatures=50, refit=1), run.posterior(refit_passes=1)
    data = load("bars")
    few = choose(settings, posterior, data.test, data.valid)
    assert few.estimator == "annealing", "a single draw is worse than fifty temperatures"
    assert few.by_annealing is not None
    assert few.by_draws is not None
    assert few.by_annealing > few.by_draws
    many = choose(dataclasses.replace(settings, draws=2000, temperatures=1), posterior, data.test, data.valid)
    assert many.estimator == "draws", "one temperature is a single draw"
    posterior.tidy()


def test_what_is_insisted_on_is_taken(run):
    for by in ("draws", "annealing"):
        found = evaluate(run.path, quiet=True, by=by, draws=5, temperatures=5, refit=1, settle=False)
        assert found.chosen.estimator == by
        assert found.chosen.by_draws is None
        assert f"{'annealed, 5 temperatures' if by == 'annealing' else '5 draws'}" in found.text()
    printed = found.to_json()
    assert (printed["estimator"], printed["unreliable"]) == ("annealing", 0)
    assert printed["draw_error"] is None


def test_a_short_chain_is_taken_where_it_is_asked_for(run, monkeypatch, capsys):
    """Near what annealing says, with a proposal as it is; and never by itself."""
    how: dict[str, Any] = {"quiet": True, "refit": 1, "settle": False}
    annealed = evaluate(run.path, by="annealing", temperatures=100, **how)
    with monkeypatch.context() as patch:
        patch.setattr(Posterior, "_refitted", lambda *args: (pytest.fail("a proposal is fitted") for _ in args))
        found = evaluate(run.path, by="short-chain", states=100, **how)
    # by one chain of either, a row has an error of some 0.2 nat, and there are hundreds of rows
    assert abs(found.summary.log_likelihood - annealed.summary.log_likelihood) < 0.1
    assert "short chains of 100 states" in found.text()
    assert (found.to_json()["estimator"], found.to_json()["draw_error"]) == ("short-chain", None)
    filed = FiledEvaluation.from_json(json.loads((run.path / f"evaluations/{found.settings.name}.json").read_text()))
    assert filed is not None
    assert (filed.estimator, filed.states) == ("short-chain", 100)
    assert "short chains, S=100" in result(filed, exact=False).how
    with pytest.raises(SystemExit, match="2"):
        cli.main(["evaluate", str(run.path), "--by", "short-chain", "--states", "0"])
    assert "states must be at least 1, got 0" in capsys.readouterr().err
    with pytest.raises(UserError, match="whole rows only"):
        run.posterior().log_conditional(*([load("bars").test[:1].astype(float)] * 3), by="short-chain")


def test_rows_with_missing_values_are_annealed_where_these_can_be_summed_out(incomplete, tmp_path):
    """Complete validation rows do not hide that the rows to be scored are not."""
    x = load("bars").test[:10].astype(float)
    x[0, 0] = np.nan
    how: dict[str, Any] = {"x": x, "quiet": True, "draws": 2000, "temperatures": 200, "refit": 1, "settle": False}
    annealed, drawn = (evaluate(incomplete.path, by=by, **how).rows for by in ("annealing", "draws"))
    # one chain of 200 temperatures has a standard error of some 0.3 on a row, 2,000 draws of less: 5 of these
    assert (annealed.log_likelihood - drawn.log_likelihood).abs().max() < 1.5
    ordered = doubly.fit(tmp_path / "ordered", **incomplete.config.__dict__ | QUICK | {"model": "darn", "epochs": 2})
    assert evaluate(ordered.path, **how).chosen.estimator == "draws"
    with pytest.raises(UserError, match="independent given the latents, got DARN: score these rows by draws"):
        evaluate(ordered.path, by="annealing", **how)


def test_a_proposal_that_knows_missing_values_can_be_annealed_from(incomplete):
    """Its mask is zero for complete rows: annealing starts from the same law as draws."""
    found = evaluate(incomplete.path, quiet=True, by="annealing", temperatures=20, refit=1, settle=False)
    assert np.isfinite(found.summary.log_likelihood)
    model = Chain.build("sbn", data=4, hidden=(3,))
    proposal = Chain.build_proposal("sbn", data=4, hidden=(3,), masked=True)
    rng = torch.Generator().manual_seed(0)
    pair = Pair(model, torch.randn(model.size, generator=rng), proposal, torch.randn(proposal.size, generator=rng) / 2)
    x, z = bits(4).float(), bits(3).float()
    exact = model.log_prob(pair.theta, (x, z[:, None].expand(8, 16, 3))).logsumexp(0)
    annealed = Annealing(30, chains=4000, start="proposal").log_likelihood(pair, x, rng).log_likelihood
    drawn = bound(pair, x, 20_000, rng).log_likelihood
    # 4,000 chains whose log-weights spread by less than 1: a standard error of 0.016, and four of them
    assert (annealed - exact).abs().max() < 0.065
    assert (drawn - exact).abs().max() < 0.065


class Fake:
    """A posterior whose estimates are given."""

    def __init__(
        self, once: list[float], more: list[float], khat: float = 0.0, gap: Mean | None = None, ess: float = 50.0
    ):
        self.found = {1: once, estimators.MORE: more}
        self.khat, self.gap, self.ess = khat, gap, ess
        self.model = self.proposal = Chain.build("sbn", data=3)
        self.method, self.others = self, ()

    def rows(self, x: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(x)

    def score_by(self, estimator: Estimator, rows: Any, how: ScoreConfig, *rest: Any) -> RowLikelihoods:
        """With so many times the draws, the temperatures and the states."""
        times = how.temperatures // ScoreConfig().temperatures
        assert how.states == times * ScoreConfig().states
        assert how.draws.draws == times * ScoreConfig().draws.draws
        found = torch.tensor(self.found[times])
        each = [torch.full_like(found, value) for value in (self.ess, self.khat, 0.1, 1000.0)]
        return RowLikelihoods(found, *each)

    def annealing_gap(self, *args: Any) -> Gap:
        assert self.gap is not None
        return Gap(self.gap, self.gap, self.gap)


@pytest.mark.parametrize(
    ("fake", "chosen", "settled"),
    [
        (Fake([-10.0, -11.0], [-10.0, -11.0]), "draws", True),
        (Fake([-10.0, -11.0], [-7.0, -8.0]), "draws", False),  # three nats more, however the rows spread
        (Fake([-10.0, -90.0], [-7.0, -87.0]), "draws", False),
        (Fake([-10.0, -11.0], [-9.0, -12.0]), "draws", False),  # no move in the mean, but the error of that is large
        (Fake([-10.0, -11.0], [-10.0, -11.0], khat=0.9), "draws", False),
        (Fake([-10.0, -11.0], [-10.0, -11.0], khat=float("nan")), "draws", False),
        (Fake([-10.0, -11.0], [-10.0, -11.0], ess=999.0), "draws", False),  # exact, or most of p(z | x) is never drawn
        (Fake([-10.0, -11.0], [-10.0, -11.0], ess=999.0), "both", True),  # annealing has found no more
        (Fake([-10.0, -11.0], [-10.0, -11.0], khat=float("nan")), "both", False),
        (Fake([], [], gap=Mean(0.1, 0.05)), "annealing", True),
        (Fake([-10.0, -11.0], [-8.0, -9.0], gap=Mean(0.4, 0.2)), "annealing", False),
        (Fake([-10.0, -11.0], [-9.9, -10.9], gap=Mean(3.0, 0.2)), "annealing", True),
        (Fake([-10.0, -11.0], [-9.9, -10.9], khat=float("nan")), "short-chain", True),
        (Fake([-10.0, -11.0], [-9.0, -10.0], khat=float("nan")), "short-chain", False),
    ],
)
def test_a_number_is_settled_if_it_is_known_to_be_near(fake, chosen, settled):
    decided = Chosen("draws", -10.0, -10.0) if chosen == "both" else Chosen(chosen)
    assert trust(EvaluateConfig(), fake, decided, np.zeros((2, 3)), error=5.0).settled == settled


@pytest.mark.parametrize(("error", "settled"), [(0.05, False), (0.2, True), (None, True), (5.0, True)])
def test_a_number_that_more_work_moves_by_more_than_its_error_is_not_settled(error, settled):
    """By 0.1 nat, where bounds from both sides are not near each other."""
    fake = Fake([-10.0, -11.0], [-9.9, -10.9], gap=Mean(3.0, 0.2))
    assert trust(EvaluateConfig(), fake, Chosen("annealing"), np.zeros((2, 3)), error).settled == settled  # type: ignore[arg-type]


def test_runs_are_compared_by_the_same_estimate(run, tmp_path, monkeypatch):
    """Where they choose differently and both can be annealed, all are: draws alone may miss one by many nats."""
    other = doubly.fit(tmp_path / "b", data="bars", hidden=(4,), seed=1, **QUICK)
    turn: Iterator[Estimator] = iter(["annealing", "draws"])

    def differently(settings: Any, *rest: Any) -> Any:
        found = choose(settings, *rest)
        return dataclasses.replace(found, estimator=next(turn)) if settings.by == "auto" else found

    monkeypatch.setattr("doubly.analysis.evaluate.choose", differently)
    found = compare([run.path, other.path], quiet=True, draws=5, temperatures=5, refit=1)
    assert {one.evaluation.chosen.estimator for one in found.runs} == {"annealing"}
    assert found.runs[0].evaluation.trust is None, "that takes time, and says nothing of the difference"


def test_the_report_says_what_was_annealed(run, capsys):
    evaluate(run.path, quiet=True, by="annealing", temperatures=7, refit=1, settle=False)
    cli.main(["report", str(run.path)])
    assert "annealed, T=7" in capsys.readouterr().out
    filed = [json.loads(file.read_text()) for file in (run.path / "evaluations").glob("*annealing*.json")]
    assert any(each["temperatures"] == 7 for each in filed)


def test_trial_rows_are_evenly_spaced():
    rows = np.arange(1000)[:, None]
    assert len(trial_rows(rows)) == TRIAL_ROWS
    assert set(np.diff(trial_rows(rows)[:, 0])) == {20}


@pytest.mark.parametrize(("field", "value"), [("by", "foo"), ("temperatures", 0)])
def test_wrong_settings_are_refused(field, value):
    with pytest.raises(UserError, match=field):
        EvaluateConfig(**{field: value})


def test_nothing_is_left_in_the_cache(run):
    evaluate(run.path, quiet=True, draws=5, temperatures=5, refit=1)
    assert not list((Path(run.path) / "evaluations").glob("*.safetensors"))
