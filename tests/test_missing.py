"""Learning from incomplete rows: what is missing is summed out, exactly; and all the way from a table to answers."""

import itertools
import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

import doubly
from doubly import LAYERS, Chain, DeepGenerativeModel, UserError, cli
from doubly.data import Data, load, read_table
from doubly.latents import (
    NAIS,
    OBJECTIVES,
    Batch,
    LikelihoodConfig,
    Persistent,
    bound,
    is_exact,
    log_likelihood,
    propose,
    weigh,
)
from doubly.latents.memory import pack, unpack
from doubly.latents.pair import Pair
from doubly.runs.build import Facts, build
from doubly.runs.config import from_dict
from doubly.training.protocol import fit
from doubly.training.refit import refit
from doubly.training.state import init
from exact import (
    MISSING,
    MISSING_MODELS,
    ROW,
    D,
    MissingCase,
    assert_law,
    assert_same_law,
    bits,
    numbers,
    random_params,
    wanted,
)

INCOMPLETE = ROW.masked_fill(MISSING, math.nan)
ORDERED = [name for name in MISSING_MODELS if not LAYERS[name.partition(":")[0]].factorised]
INDEPENDENT = [name for name in MISSING_MODELS if name not in ORDERED]


def exact_gradient(case: MissingCase) -> Tensor:
    """The gradient of log p(x_observed), summed over all that is missing and hidden."""
    case.theta.requires_grad_()
    (grad,) = torch.autograd.grad(case.log_joint()[case.fits()].flatten().logsumexp(0), case.theta)
    case.theta.requires_grad_(False)
    return grad


# What is missing drops out


@pytest.mark.parametrize("name", [name for name in LAYERS if LAYERS[name].factorised])
def test_the_density_of_what_is_observed_is_the_sum_over_the_rest(name):
    """Of binary values, over all completions for all 16 masks; of real ones, the sum of the observed cells."""
    layer = LAYERS[name](0 if name == "normal" else 3, D)
    params, given = random_params(layer), torch.ones(layer.n_in, dtype=torch.float64)
    value = layer.draw(params, given, torch.Generator().manual_seed(1)).value
    for mask in bits(D).bool():
        found = layer.log_prob_observed(params, value.masked_fill(mask, math.nan), given)
        if layer.kind == "binary":
            fits = bits(D)[(bits(D) == value)[:, ~mask].all(1)]
            exact = layer.log_prob(params, fits, given).logsumexp(0)
        else:
            exact = layer.cells(params, value, given)[~mask].sum()
        torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["sbn", "mlp"])
def test_the_fused_kernel_leaves_missing_values_out(name):
    """In single precision, where the fused kernel is used: densities as by cells, no gradient from missing values."""
    rng = torch.Generator().manual_seed(0)
    layer = LAYERS[name](5, 300)
    params = {key: value.float().requires_grad_() for key, value in random_params(layer).items()}
    given, value = torch.bernoulli(torch.full((2, 40, 5), 0.5), generator=rng), torch.full((40, 300), 0.5)
    value = torch.bernoulli(value, generator=rng)
    value[torch.rand(value.shape, generator=rng) < 0.5] = math.nan
    value[:, 7], value[0] = math.nan, math.nan  # a column and a row of nothing
    found = layer.log_prob_observed(params, value, given)
    torch.testing.assert_close(
        found, super(type(layer), layer).log_prob_observed(params, value, given), rtol=1e-5, atol=1e-4
    )
    assert (found[:, 0] == 0).all()
    bias = next(grad for key, grad in zip(params, torch.autograd.grad(found.sum(), list(params.values())), strict=True)
                if key in ("b", "b_logits"))  # fmt: skip
    assert bias[7] == 0
    assert (bias[:7] != 0).all()


@pytest.mark.parametrize("name", INDEPENDENT)
def test_weights_and_gradients_are_those_of_what_is_observed(name):
    """The sum over all z of the weighed densities is log p(x_observed), and so is its gradient: no draws are needed."""
    case = MissingCase(name, masked=True)
    theta = case.theta.clone().requires_grad_()
    drawn = weigh(
        Pair(case.model, theta, case.proposal, case.phi), INCOMPLETE[None], (case.z[:, None],), INCOMPLETE[None]
    )
    log_observed = drawn.log_p.logsumexp(0).squeeze()
    torch.testing.assert_close(log_observed, case.log_joint()[case.fits()].flatten().logsumexp(0))
    (grad,) = torch.autograd.grad(log_observed, theta)
    torch.testing.assert_close(grad, exact_gradient(case))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_the_estimator_approaches_the_exact_gradient(name):
    """40 calls with 4,000 draws each: within five standard errors, and the bias is of the order of 1 / 4,000."""
    case, rng = MissingCase(name, masked=True), torch.Generator().manual_seed(0)
    estimator = NAIS(4000).for_missing(case.model)
    assert type(estimator) is NAIS
    grads = torch.stack([
        wanted(estimator(Batch(case.pair, INCOMPLETE[None], torch.tensor([0]), {}, rng), "theta").theta_grad)
        for _ in range(40)
    ])  # fmt: skip
    stderr, exact = grads.std(0) / math.sqrt(40), exact_gradient(case)
    assert ((grads.mean(0) - exact).abs() <= 5 * stderr + 1e-3 * exact.abs() + 1e-6).all()
    assert (stderr < 0.02).all(), "or the test sees nothing"


@pytest.mark.parametrize("name", ["darn", "nade", "darn:order=3", "nade:order=reversed"])
def test_the_fused_kernels_impute_by_the_law_of_the_layer(name):
    """In single precision, where they are used: what is there stays, and its density is that of the cells.

    20,000 completions for each of three masks have the law prod_missing p(x_i | x_<i, given) (chi-square).
    """
    layer = LAYERS.make(name, 3, D, start="glorot")
    exact = random_params(layer)
    params, given = {key: value.float() for key, value in exact.items()}, torch.tensor([1.0, 0.0, 1.0])
    for seed, mask in enumerate(bits(D)[[5, 9, 14]].bool()):
        x = ROW.float().masked_fill(mask, math.nan).expand(20_000, D)
        drawn = layer.impute(params, x, mask, given, torch.Generator().manual_seed(seed))
        assert (drawn.value == ROW)[:, ~mask].all()
        cells = layer.cells(exact, bits(D), given.double())
        fits = (bits(D) == ROW)[:, ~mask].all(1)
        assert_same_law(drawn.value, cells.masked_fill(~mask, 0).sum(1).masked_fill(~fits, -math.inf))
        at = (drawn.value.double() @ torch.tensor([8.0, 4, 2, 1]).double()).long()
        known = cells.masked_fill(mask, 0).sum(1)[at]
        torch.testing.assert_close(drawn.log_prob, known.float(), rtol=1e-4, atol=1e-4)


# Where the data layer has an order, missing values are remembered


def in_law(case: MissingCase, n: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """n exact draws of x and z given what is observed."""
    joint = case.log_joint()[case.fits()]
    drawn = torch.multinomial(joint.flatten().softmax(0), n, replacement=True, generator=rng)
    return bits(4)[case.fits()][drawn // joint.shape[1]], case.z[drawn % joint.shape[1]]


@pytest.mark.parametrize("name", ORDERED)
def test_a_visit_keeps_the_law_and_its_gradient_is_exact(name):
    """40,000 rows whose completions are exact draws, visited once with two fresh draws each.

    The law of what is remembered is as before (chi-square), and the mean gradient is the exact one, which it would not
    be without the remembered draw: its standard error is that of 50 groups of rows.
    """
    case, n, groups = MissingCase(name, masked=True), 40_000, 50
    rng = torch.Generator().manual_seed(4)
    estimator = NAIS(2).for_missing(case.model)
    x, z = in_law(case, n, rng)
    memory = estimator.init(case.model, n, rng)
    assert memory.keys() == {"visited", "state.x", *(["state.z1"] if z.shape[1] else [])}
    memory["visited"].fill_(1)
    memory["state.x"] = pack(x)[None]
    if z.shape[1]:
        memory["state.z1"] = pack(z)[None]
    grads = []
    for index in torch.arange(n).chunk(groups):
        found = estimator(Batch(case.pair, INCOMPLETE.expand(len(index), 4), index, memory, rng))
        grads.append(wanted(found.theta_grad))
    mean, stderr = torch.stack(grads).mean(0), torch.stack(grads).std(0) / math.sqrt(groups)
    exact = exact_gradient(case)
    assert ((mean - exact).abs() <= 5 * stderr + 1e-9).all()
    assert (stderr < 0.02).all(), "or the test sees nothing"
    left = unpack(memory["state.x"][0], 4, torch.float64)
    assert (left == ROW)[:, ~MISSING].all()
    assert_law(numbers(left), case.target())
    if z.shape[1]:  # and the law of z beside it
        codes = (unpack(memory["state.z1"][0], 3, torch.float64) @ torch.tensor([4.0, 2.0, 1.0]).double()).long()
        assert_law(numbers(left) * 8 + codes.numpy(), case.log_joint()[case.fits()].flatten().softmax(0))


@pytest.mark.parametrize("name", ORDERED)
def test_visits_forget_where_they_began(name):
    """5,000 rows whose completions start from zeros have the right law after 30 visits with two draws each."""
    case, rng = MissingCase(name, masked=True), torch.Generator().manual_seed(5)
    estimator = NAIS(2).for_missing(case.model)
    memory = estimator.init(case.model, 5000, rng)
    memory["visited"].fill_(1)  # or they would start from draws of the proposal
    x, index = INCOMPLETE.expand(5000, 4), torch.arange(5000)
    for _ in range(30):
        memory = estimator(Batch(case.pair, x, index, memory, rng), "theta").memory
    assert_law(numbers(unpack(memory["state.x"][0], 4, torch.float64)), case.target())


def test_real_latents_are_remembered_too():
    model = Chain.build("nade,normal", data=4, hidden=(2,))
    estimator = NAIS(3).for_missing(model)
    rng = torch.Generator().manual_seed(0)
    memory = estimator.init(model, 6, rng)
    proposal = Chain.build_proposal("gaussian:widths=3", data=4, hidden=(2,), masked=True)
    theta, phi = model.init(rng), proposal.init(rng)
    x = INCOMPLETE.float().expand(2, 4)
    for _ in range(5):
        memory = estimator(Batch(Pair(model, theta, proposal, phi), x, torch.tensor([1, 4]), memory, rng)).memory
    moved = memory["state.z1"][0].abs().sum(1) > 0
    assert moved.tolist() == [False, True, False, False, True, False]
    assert memory["visited"].bool().tolist() == moved.tolist()


# The proposal sees a mask


def test_what_a_masked_proposal_draws_has_its_density():
    """10,000 draws given an incomplete row, over both latent layers; the density is what `log_prob` says."""
    chain = Chain.build_proposal("sbn", data=4, hidden=(2, 2), masked=True)
    assert chain.layers[-1].n_in == chain.n_given == 8
    phi = torch.randn(chain.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = chain.draw(phi, INCOMPLETE, torch.Generator().manual_seed(1), 10_000)
    torch.testing.assert_close(drawn.log_prob, chain.log_prob(phi, drawn.values, INCOMPLETE))
    log_prob = chain.log_prob(phi, bits(4).split([2, 2], 1), INCOMPLETE)
    assert log_prob.exp().sum().item() == pytest.approx(1, abs=1e-10)
    assert_same_law(torch.cat(drawn.values, 1), log_prob)


def test_a_mask_of_nothing_changes_nothing():
    """On complete rows a masked proposal is the one without the weights for the mask."""
    masked, plain = (Chain.build_proposal("sbn", data=4, hidden=(3,), masked=each) for each in (True, False))
    phi = torch.randn(masked.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (params,) = masked.unflatten(phi)
    without = torch.cat([params["W"][:, :4].flatten(), params["b"]])
    z, x = bits(3), bits(4)[:8]
    torch.testing.assert_close(masked.log_prob(phi, (z,), x), plain.log_prob(without, (z,), x))


@pytest.mark.parametrize("name", MISSING_MODELS)
def test_the_mean_weight_is_the_density_of_what_is_observed(name):
    """400 rows with 500 draws each: their mean weight is p(x_observed) within 4 of its standard errors."""
    case = MissingCase(name, masked=True)
    found = log_likelihood(case.pair, INCOMPLETE.expand(400, 4), LikelihoodConfig(draws=500)).log_likelihood.exp()
    exact = case.log_joint()[case.fits()].flatten().logsumexp(0).exp()
    assert abs(found.mean() - exact) <= 4 * found.std() / math.sqrt(400) + 1e-9
    assert found.std() < 0.3 * found.mean(), "or the test sees nothing"


def test_without_latents_and_with_independent_values_one_look_is_exact():
    case = MissingCase("nade:order=reversed", masked=True)
    assert not is_exact(case.model, case.proposal)
    model = Chain.build("sbn", data=4)
    theta = torch.randn(model.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert is_exact(model, case.proposal)
    found = bound(Pair(model, theta, case.proposal, case.phi), INCOMPLETE[None], 3, torch.Generator())
    exact = model.log_prob(theta, (bits(4)[case.fits()],)).logsumexp(0)
    torch.testing.assert_close(found.log_likelihood[0], exact)


def test_asleep_values_are_missing_where_the_rows_have_none():
    """Sleep ascends log q(z | x) with values missing in x: with no weights but for the mask, its gradient for those of
    x is zero where all rows have none."""
    case = MissingCase("sbn", masked=True)
    estimator = NAIS(2, OBJECTIVES.make("sleep")).for_missing(case.model)
    rng = torch.Generator().manual_seed(0)
    grad = estimator(Batch(case.pair, INCOMPLETE.expand(50, 4), torch.arange(50), {}, rng)).phi_grad
    (of,) = case.proposal.unflatten(wanted(grad))
    assert (of["W"][:, :4][:, MISSING] == 0).all()
    assert (of["W"][:, :4][:, ~MISSING] != 0).all()
    assert (of["W"][:, 4:][:, MISSING] != 0).all()


# With nothing missing, nothing is changed


def test_complete_data_are_learnt_as_ever():
    config = from_dict({"data": "bars", "hidden": (5,), "model": "nade,sbn"})
    data = load("bars")
    method = build(config, data)
    assert not data.has_missing
    assert not method.proposal.masked
    assert type(method.estimator) is type(method.refitter) is NAIS
    incomplete = build(config, Facts(16, "binary", (16,), has_missing=True))
    assert incomplete.proposal.masked
    remembered = Persistent(5, sweeps=0, remembers_rows=True)
    assert incomplete.estimator == incomplete.refitter == remembered


def test_complete_rows_have_the_same_bits_with_and_without_a_mask_that_is_cut_off():
    """One draw of (z, weights, gradients) for complete rows: a masked proposal whose weights for the mask are zero."""
    rng = torch.Generator()
    model = Chain.build("sbn", data=6, hidden=(3,))
    masked, plain = (Chain.build_proposal("sbn", data=6, hidden=(3,), masked=each) for each in (True, False))
    theta, phi = model.init(rng.manual_seed(0)), plain.init(rng)
    (params,) = plain.unflatten(phi)
    wide = torch.cat([torch.cat([params["W"], torch.zeros(3, 6)], 1).flatten(), params["b"]])
    x = torch.bernoulli(torch.full((9, 6), 0.4), generator=rng)
    one = propose(Pair(model, theta, masked, wide), x, 4, rng.manual_seed(1))
    other = propose(Pair(model, theta, plain, phi), x, 4, rng.manual_seed(1))
    assert torch.equal(one.latents[0], other.latents[0])
    torch.testing.assert_close(one.log_weight, other.log_weight)


# All the way


def incomplete(rows: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """The rows with cells taken out at random."""
    return np.where(np.random.default_rng(seed).random(rows.shape) < share, np.nan, rows)


def learnt(train: np.ndarray, valid: np.ndarray, model: str) -> float:
    """How many nats a model of these rows loses against the density of the bars, on complete test rows."""
    bars = load("bars")
    data = Data("mine", train, valid, bars.test, (16,), "binary")
    settings = {"model": model, "hidden": (16,), "step": 0.2, "theta_steps": 5, "phi_step": 1e-2}
    settings |= {"prior": "normal:scale=3", "epochs": 15, "collect": 5, "valid_draws": 10}
    method = build(from_dict(settings), data)
    rows, held_out, test = (torch.as_tensor(each) for each in (data.train, data.valid, data.test))
    *_, (state, _) = fit(method, rows, held_out, init(method, rows))
    theta = state.mean.float()
    phi = refit(method, theta, state.phi.theta, rows, passes=5)
    assert bars.log_density is not None
    found = log_likelihood(Pair(method.model, theta, method.proposal, phi), test, LikelihoodConfig(draws=500))
    return float((bars.log_density(bars.test) - found.log_likelihood.double().numpy()).mean())


@pytest.mark.parametrize("model", ["sbn", "darn,sbn"])
def test_a_model_of_incomplete_rows_is_near_that_of_complete_ones(model):
    """30 % of the cells are missing. What is lost by that is at most a third of what is lost by putting each
    column's more frequent value (0) in their place. Seen: 1.13 nats of complete rows, 1.50, and 3.27 (sbn); 0.31,
    0.42 and 2.41 (darn)."""
    bars = load("bars")
    train, valid = incomplete(bars.train, 0.3), incomplete(bars.valid, 0.3, seed=1)
    complete, found = learnt(bars.train, bars.valid, model), learnt(train, valid, model)
    guessed = learnt(np.nan_to_num(train), np.nan_to_num(valid), model)
    assert found - complete < (guessed - complete) / 3, (complete, found, guessed)
    assert guessed - complete > 1, "or the test sees nothing"


def table(path, rows: int = 60) -> str:
    """A table with categories, truth and numbers, a fifth of whose cells are empty."""
    rng = np.random.default_rng(0)
    lines = ["colour,big,n,size"]
    for _ in range(rows):
        big = rng.random() < 0.5
        cells = [rng.choice(["red", "blue"]), str(big), str(int(rng.integers(5))), f"{big + rng.normal():.3f}"]
        lines.append(",".join("" if rng.random() < 0.2 else cell for cell in cells))
    path.write_text("\n".join([*lines, ",,,"]) + "\n")  # and a row of nothing
    return str(path)


def bits_table(path, rows: int = 80) -> str:
    np.savez(path, data=incomplete(load("bars").train[:rows, :6], 0.3))
    return str(path)


SHORT = ["--epochs", "3", "--collect", "2", "--theta-steps", "1", "--valid-draws", "5", "--threads", "1"]


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        ("table", ["--model", "gaussian:widths=5,normal", "--proposal", "gaussian:widths=5", "--objective", "iwae"]),
        ("bits", []),
        ("bits", ["--model", "mlp:widths=4,sbn", "--objective", "nvil"]),
        ("bits", ["--model", "nade,sbn", "--objective", "wake-sleep"]),
    ],
)
def test_an_incomplete_file_is_fitted_scored_and_imputed(kind, args, capsys, tmp_path):
    file = table(tmp_path / "a.csv") if kind == "table" else bits_table(tmp_path / "a.npz")
    run = str(tmp_path / "run")
    cli.main(["fit", "--data", file, "--hidden", "3", *args, *SHORT, "--out", run])
    said = capsys.readouterr().err
    assert "of the training cells are missing" in said
    assert kind != "table" or "1 rows have no value at all" in said
    cli.main(["evaluate", run, "--draws", "20", "--refit", "2", "--by", "draws", "--json"])
    first = json.loads(capsys.readouterr().out)
    assert math.isfinite(first["log_likelihood"])
    assert not first["exact"]
    cli.main(["evaluate", run, "--input", file, "--draws", "20", "--refit", "2", "--by", "draws", "--json"])
    assert math.isfinite(json.loads(capsys.readouterr().out)["log_likelihood"])
    out = tmp_path / ("out.csv" if kind == "table" else "out.npz")
    cli.main(["impute", run, "--input", file, "--out", str(out), "--draws", "2", "--sweeps", "4", "--refit", "1"])
    assert "missing values" in capsys.readouterr().out
    before, after = (
        read_table(file),
        read_table(out) if kind == "table" else np.load(out)["rows"],
    )
    assert np.isnan(before).any()
    assert not np.isnan(after).any()
    np.testing.assert_allclose(after[~np.isnan(before)], before[~np.isnan(before)])
    cli.main(["impute", run, "--hide", "random", "-n", "5", "--draws", "2", "--sweeps", "4", "--refit", "1", "--json"])
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert all(value is not None for found in scores.values() for value in found.values())
    cli.main(["report", run])
    cli.main(["data", "check", file])
    assert "they count for nothing" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["sbn", "darn,sbn"])
def test_a_run_on_incomplete_rows_resumes_to_the_same_bits(model, tmp_path):
    """Stopped after 5 mini-batches, in the middle of an epoch, with the completions in the checkpoint."""
    settings = {"data": bits_table(tmp_path / "a.npz"), "model": model, "hidden": (3,), "batch": 10, "theta_steps": 2}
    settings |= {"epochs": 4, "collect": 2, "threads": 1, "valid_draws": 5}
    whole = doubly.fit(tmp_path / "whole", quiet=True, **settings)
    data = whole.data()
    with doubly.Run.create(tmp_path / "parts", whole.config, data) as run:
        method = build(run.config, data)
    train, valid = torch.as_tensor(data.train), torch.as_tensor(data.valid)
    for state, record in itertools.islice(fit(method, train, valid, init(method, train)), 5):
        assert record is None
        run.save(state)
    doubly.resume(run.path, quiet=True)
    one, other = (safetensors.torch.load_file(each.checkpoint) for each in (whole, run))
    assert one.keys() == other.keys()
    assert ("memory.state.x" in one) == (model != "sbn")
    for name in one:
        assert torch.equal(one[name], other[name]), name


def refused(capsys, *args: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(args))
    assert stop.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--preset", "dsgnht-gibbs"], "the estimator gibbs needs complete rows, but values are missing: take"),
        (["--model", "nade,sbn", "--objective", "vimco"], "the objective vimco needs complete rows or a data layer"),
        (["--binarise", "dynamic"], "missing values cannot be binarised"),
    ],
)
def test_what_cannot_learn_from_incomplete_rows_says_so_in_a_line(args, said, capsys, tmp_path):
    file = bits_table(tmp_path / "a.npz")
    assert said in refused(capsys, "fit", "--data", file, *args, "--hidden", "3", "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_run_on_complete_rows_scores_no_others(capsys, tmp_path):
    np.savez(tmp_path / "whole.npz", data=load("bars").train[:80, :6])
    file, run, other = bits_table(tmp_path / "a.npz"), str(tmp_path / "run"), str(tmp_path / "other")
    cli.main(["fit", "--data", str(tmp_path / "whole.npz"), "--hidden", "3", *SHORT, "--out", run])
    cli.main(["fit", "--data", file, "--hidden", "3", *SHORT, "--out", other])
    capsys.readouterr()
    line = refused(capsys, "evaluate", run, "--input", file, "--refit", "0")
    assert "but the model expects 0 or 1: it has learnt from complete rows; impute them first" in line
    assert "holes" not in json.loads((tmp_path / "run" / "data.json").read_text()), "data.json is what it was before"
    found = doubly.load(other).anneal(read_table(file), doubly.latents.Annealing(temperatures=3))
    assert torch.isfinite(found.log_likelihood).all(), "what has learnt from such rows takes them"


def test_a_posterior_of_incomplete_rows_answers_all_questions(tmp_path):
    """p(x_missing | x_observed) of all completions sums to one, up to the error of the draws, about 1 / sqrt(2000)."""
    file = bits_table(tmp_path / "a.npz")
    run = doubly.fit(tmp_path / "run", data=file, hidden=(3,), epochs=5, collect=2, threads=1, quiet=True)
    post = run.posterior(refit_passes=5)
    rows, missing = bits(6).numpy()[[0, 1, 2, 3]], np.array([[False] * 4 + [True] * 2] * 4)
    found = post.log_conditional(rows, missing, rows[None], draws=2000, of="mean", by="draws")
    assert np.exp(found).sum() == pytest.approx(1, abs=0.1)
    codes = post.encode(np.where(missing, np.nan, rows))[0]
    assert codes.shape == (4, 3)
    assert ((codes >= 0) & (codes <= 1 + 1e-6)).all()


# By scikit-learn's conventions


def test_a_table_of_bits_with_nan_is_learnt_and_scored():
    """p of an incomplete row is the sum over its completions, up to the error of 2,000 draws; and it is imputed."""
    X = np.random.default_rng(0).integers(0, 2, (200, 1)).repeat(4, axis=1) ^ (np.arange(4) % 2)
    table = incomplete(X, 0.3)
    model = DeepGenerativeModel((3,), epochs=60, draws=2000, random_state=0, n_threads=1).fit(table)
    every = np.array(list(itertools.product([0, 1], repeat=4)), dtype=float)
    p = np.exp(model.score_samples(every))
    assert p.sum() == pytest.approx(1, abs=0.1)
    one = np.exp(model.score_samples(np.where(np.arange(4) == 2, np.nan, every[:1])))
    assert one[0] == pytest.approx(p[0] + p[2], rel=0.1)
    assert np.exp(model.score_samples(np.full((1, 4), np.nan)))[0] == pytest.approx(1, abs=0.05)
    imputed, missing = model.impute(table), np.isnan(table) & ~np.isnan(table).all(1)[:, None]
    assert (imputed[missing] == X[missing]).mean() > 0.95
    assert DeepGenerativeModel().__sklearn_tags__().input_tags.allow_nan


def test_a_real_table_with_nan_has_a_density_in_its_own_units():
    """Of a row of which one column is there, the density integrates to one over that column, whose scale is 0.01."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1)) * [0.01, 3.0, 1.0] + rng.normal(size=(200, 3)) * [0.002, 0.6, 0.2] + [1, 100, 0]
    X[:, 2] = 7  # a constant column, in which values are missing
    table = incomplete(X, 0.2)
    model = DeepGenerativeModel((2,), epochs=150, collect=10, draws=200, random_state=0, n_threads=1).fit(table)
    grid = np.linspace(1 - 0.12, 1 + 0.12, 1001)
    rows = np.stack([grid, np.full(1001, np.nan), np.full(1001, np.nan)], 1)
    assert np.trapezoid(np.exp(model.score_samples(rows)), grid) == pytest.approx(1, abs=0.02)
    imputed = model.impute(table)
    assert not np.isnan(imputed).any()
    assert (imputed[:, 2] == 7).all()
    error, by_mean = (((guess - X) / X.std(0).clip(1e-9))[:, :2] ** 2 for guess in (imputed, np.nanmean(table, 0)))
    missing = np.isnan(table)[:, :2]
    assert error[missing].mean() < 0.7 * by_mean[missing].mean()


def test_what_a_table_with_nan_cannot_be_is_said_so():
    X = np.where(np.arange(4) == 2, np.nan, np.ones((20, 4)))
    with pytest.raises(UserError, match="column 2 has no value in any row: leave it out"):
        DeepGenerativeModel().fit(X)


def test_the_survey_is_imputed_better_than_by_means_and_neighbours(capsys):
    """The example, with its own seed; chained regressions (IterativeImputer) are about as good as we are there."""
    survey = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "survey.py"))
    scores = survey["main"](0)
    for way in ("mean or mode", "nearest neighbours"):
        assert all(scores["doubly"][kind] < scores[way][kind] for kind in scores[way]), scores
    assert "errors of filling in" in capsys.readouterr().out
