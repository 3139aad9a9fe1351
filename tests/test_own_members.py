"""Members of a user's own: a file is executed once, a run keeps its source, and `doubly check` finds what is broken."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import doubly
from doubly import ESTIMATORS, LAYERS, OBJECTIVES, PRIORS, SAMPLERS, SCHEDULES, Chain, UserError
from doubly.analysis.laws import KINDS, check
from doubly.cli import main
from doubly.core.sealed import dump_json, load_json
from doubly.runs.build import build
from doubly.runs.fit import resume

HEAD = """
import math
from dataclasses import dataclass
from typing import NamedTuple
import torch
from torch import Tensor
from doubly import *
from doubly.layers import *
from doubly.samplers import *
from doubly.samplers.priors import *
from doubly.samplers.sgld import SGLDState
from doubly.latents import *
from doubly.latents.objectives import *
from doubly.data.bars import bars
"""
MINE = """
@dataclass(frozen=True)
class Mine(SBN):
    extra: int = 1
"""
SETTINGS: dict[str, Any] = {"data": "bars", "hidden": (3,), "epochs": 2, "collect": 1, "theta_steps": 1, "quiet": True}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A function that writes a file of one's own into the folder one is in."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + text)
        return path

    return write


# A file is executed once


def test_two_models_of_one_file_are_equal(own):
    own(MINE)
    one, other = (Chain.build("mine.py:Mine:extra=3", data=4, hidden=(3,)) for _ in range(2))
    assert one == other
    assert one != Chain.build("mine.py:Mine:extra=4", data=4, hidden=(3,))
    assert Chain.build(str(Path("mine.py").resolve()) + ":Mine:extra=3", data=4, hidden=(3,)) == one


def test_a_file_is_executed_once(own):
    path = own(MINE + "open('count', 'a').write('x')\n")
    for _ in range(3):
        LAYERS.make(f"{path}:Mine", 0, 2)
    assert Path("count").read_text() == "x"


def test_files_of_the_same_name_are_two(own):
    """Even of the name of a module that is there."""
    for folder, extra in (("a", 5), ("b", 6)):
        own(MINE.replace("extra: int = 1", f"extra: int = {extra}"), f"{folder}/json.py")
    assert [LAYERS.make(f"{folder}/json.py:Mine", 0, 2).extra for folder in "ab"] == [5, 6]
    assert sys.modules["json"] is json


def test_equal_files_in_two_folders_each_find_their_own_data(own):
    for folder, rows in (("a", 4), ("b", 6)):
        own("from pathlib import Path\ndef count(): return int((Path(__file__).parent / 'n').read_text())\n",
            f"{folder}/same.py")  # fmt: skip
        (Path(folder) / "n").write_text(str(rows))
    assert [LAYERS.read(f"{folder}/same.py:count")[0]() for folder in "ab"] == [4, 6]


def test_a_file_that_changed_is_an_error(own):
    path = own(MINE)
    LAYERS.make("mine.py:Mine", 0, 2)
    path.write_text(path.read_text() + "\n# changed\n")
    with pytest.raises(UserError, match=r"mine\.py has changed since this process executed it: start a new process"):
        LAYERS.make("mine.py:Mine", 0, 2)


def test_a_file_that_failed_may_be_mended(own):
    own("1 / 0")
    with pytest.raises(UserError, match="ZeroDivisionError"):
        LAYERS.make("mine.py:Mine", 0, 2)
    own(MINE)
    assert LAYERS.make("mine.py:Mine", 0, 2).n_out == 2


@pytest.mark.parametrize("spec", ["mine.py", "mine.py:Nosuch", "nosuch.py:Mine"])
def test_what_is_not_there_is_one_line(spec, own):
    own(MINE)
    with pytest.raises(UserError) as refused:
        LAYERS.make(spec, 0, 2)
    assert "\n" not in str(refused.value)


# A run keeps the source


def test_a_run_opens_from_its_copy(own, monkeypatch):
    path = own(MINE)
    run = doubly.fit("run", model="mine.py:Mine", prior="normal", **SETTINGS)
    sample = run.posterior().sample(5)
    kept = json.loads((run.path / "own_files" / "sources.json").read_text())
    assert kept == {"mine.py": {"origin": str(path), "sha256": kept["mine.py"]["sha256"]}, "seal": kept["seal"]}
    assert (run.path / "own_files" / "mine.py").read_bytes() == path.read_bytes()
    folder = run.path.resolve()
    path.unlink()
    monkeypatch.chdir("/")
    code = "import sys, doubly; print(doubly.load(sys.argv[1], allow_code=True).sample(5).tolist())"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == sample.tolist()


def test_resume_says_that_it_uses_the_copy(own, capsys):
    """Where the file changed: it goes on with the copy, to the same bits as if it had not changed."""
    path = own(MINE)
    # a step that is tuned until samples are collected would know how many epochs there are
    settings = SETTINGS | {"epochs": 4, "quiet": True, "step": 0.03}
    whole = doubly.fit("whole", model="mine.py:Mine", **settings)
    cut = doubly.fit("cut", model="mine.py:Mine", **(settings | {"epochs": 2}))
    state = cut.restore(build(cut.config, cut.facts))
    assert state is not None
    cut.forget_samples(state)
    cut.plan(4)
    path.write_text("raise RuntimeError('not this one')\n")
    capsys.readouterr()
    resumed = resume("cut")
    said = capsys.readouterr().err
    assert f"{path} has changed since the run was created: the run uses its copy, cut/own_files/mine.py" in said
    assert len(resumed.metrics()) == len(whole.metrics()) == 4
    assert torch.equal(resumed.posterior().last_theta, whole.posterior().last_theta)


def test_a_copy_that_changed_is_an_error(own):
    own(MINE)
    run = doubly.fit("run", model="mine.py:Mine", **SETTINGS)
    copy = run.path / "own_files" / "mine.py"
    copy.write_text(copy.read_text() + "\n")
    with pytest.raises(UserError, match=r"own_files/mine\.py has changed: expected SHA-256 .*put it back$"):
        doubly.load("run")


def test_two_runs_have_equal_models(own):
    """By the file itself, and by the copies once it is gone: ensembles of one's own layer work."""
    path = own(MINE)
    for name in ("a", "b"):
        doubly.fit(name, model="mine.py:Mine", **SETTINGS)
    assert doubly.load("a").method.model == doubly.load("b").method.model
    path.unlink()
    code = "import doubly; assert doubly.load('a', True).method.model == doubly.load('b', True).method.model"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_kind_of_member_goes_with_the_run(own):
    own("""
@dataclass(frozen=True)
class L(SBN): pass
@dataclass(frozen=True)
class S(SGLD): pass
@dataclass(frozen=True)
class P(Laplace): pass
@dataclass(frozen=True)
class E(NAIS): pass
@dataclass(frozen=True)
class O(Wake): pass
def data(): return bars()
""")
    own(MINE, "other/mine.py")
    run = doubly.fit(
        "run", model="mine.py:L,other/mine.py:Mine:extra=2", sampler="mine.py:S", prior="mine.py:P:scale=0.2",
        estimator="mine.py:E:survivors=2", objective="mine.py:O", **(SETTINGS | {"data": "mine.py:data"}),
    )  # fmt: skip
    assert sorted(file.name for file in (run.path / "own_files").iterdir()) == ["mine-2.py", "mine.py", "sources.json"]
    for path in ("mine.py", "other/mine.py"):
        Path(path).unlink()
    code = "import doubly; run = doubly.Run('run', True); run.data(); run.posterior().log_likelihood(run.data().test)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def stranger(path: Path) -> Path:
    """A run of someone else's whose code leaves a mark where it is executed; made in another process."""
    path.write_text(HEAD + MINE + "from pathlib import Path\nPath('EXECUTED').touch()\n")
    fit = f"import doubly; doubly.fit('run', model='{path.name}:Mine', **{SETTINGS})"
    subprocess.run([sys.executable, "-c", fit], check=True, capture_output=True)
    Path("EXECUTED").unlink()
    return Path("run")


def test_no_code_of_a_run_is_executed_unless_the_user_says_so(own, capsys, tmp_path):
    """Neither the copy nor the file it was made of, by any command; then the copy, whose checksum is shown."""
    folder = stranger(tmp_path / "theirs.py")
    commands = [
        ["sample"],
        ["report"],
        ["evaluate"],
        ["resume"],
        ["diagnose"],
        ["curve"],
        ["impute", "--hide", "random"],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as stopped:
            main([command[0], str(folder), *command[1:]])
        said = capsys.readouterr().err
        assert stopped.value.code == 2
        assert len(said.splitlines()) == 1
        assert re.search(r"comes with code, run/own_files/theirs\.py \(SHA-256 [0-9a-f]{16}….*--allow-code", said)
    with pytest.raises(UserError, match="comes with code"):
        doubly.load(folder)
    assert not Path("EXECUTED").exists()
    main(["sample", str(folder), "--out", "rows.csv", "--allow-code"])
    assert re.search(r"own_files/theirs\.py \(SHA-256 [0-9a-f]{16}…\) is executed", capsys.readouterr().err)
    assert Path("EXECUTED").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "evil.py:Mine"},
        {"model": "sbn,evil.py:Mine"},
        {"sampler": "evil.py:Mine"},
        {"prior": " evil.py:Mine:extra=2"},
        {"data": "evil.py:Mine"},
        {"estimator": "evil.py#0123456789abcdef:Mine"},
        {"objective": "evil.py:Mine,b=evil.py"},
    ],
)
def test_code_that_a_run_has_no_copy_of_is_never_executed(change, own, tmp_path):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('EXECUTED').touch()\nclass Mine: pass\n")
    run = doubly.fit("run", **SETTINGS)
    file = run.path / "config.json"
    fields = load_json(file.read_bytes(), file, required=True) | change
    file.write_bytes(dump_json(fields))  # a stranger can seal, too
    for allow in (False, True):
        with pytest.raises(UserError, match="has no copy"):
            doubly.load("run", allow_code=allow)
        with pytest.raises(UserError, match="has no copy"):
            resume("run", allow_code=allow)
    assert not Path("EXECUTED").exists()


# doubly check


@pytest.mark.parametrize(
    "name", [*LAYERS, *SAMPLERS, *PRIORS, *ESTIMATORS, *OBJECTIVES, *SCHEDULES, "darn:order=3", "nade:order=reversed"]
)
def test_registered_members_keep_the_laws(name, capsys):
    main(["check", name])
    said = capsys.readouterr().out
    assert "broken" not in said
    assert said.count("ok ") >= 1


BROKEN = {
    "log_prob off by a constant": (
        "probabilities sum to one",
        """
class Member(SBN):
    def log_prob(self, params, value, given): return super().log_prob(params, value, given) + 0.01
""",
    ),
    "density of real values off by a constant": (
        "probabilities sum to one",
        """
class Member(Gaussian):
    def log_prob(self, params, value, given): return super().log_prob(params, value, given) + 0.01
""",
    ),
    "draws from another law": (
        "draws follow log_prob",
        """
class Member(SBN):
    def draw(self, params, given, rng, draws=None):
        value, _ = super().draw(params | {"b": params["b"] + 0.1}, given, rng, draws)
        return Drawn(value, self.log_prob(params, value, given))
""",
    ),
    "noise of a layer 10 % too large": (
        "draws follow log_prob",
        """
class Member(Gaussian):
    def draw(self, params, given, rng, draws=None):
        value, _ = super().draw(params | {"b_sigma": params["b_sigma"] + math.log(1.1)}, given, rng, draws)
        return Drawn(value, self.log_prob(params, value, given))
""",
    ),
    "log_prob of a draw without its gradient": (
        "draw returns its own log_prob",
        """
class Member(SBN):
    def draw(self, params, given, rng, draws=None):
        value, log_prob = super().draw(params, given, rng, draws)
        return Drawn(value, log_prob.detach())
""",
    ),
    "draws of the global generator": (
        "draws come from the generator",
        """
class Member(SBN):
    def draw(self, params, given, rng, draws=None):
        return super().draw(params, given, torch.Generator().manual_seed(int(torch.randint(1000, ()))), draws)
""",
    ),
    "a gradient that is cut": (
        "gradients agree with finite differences",
        """
class Member(SBN):
    def log_prob(self, params, value, given):
        return super().log_prob(params | {"b": params["b"].detach()}, value, given)
""",
    ),
    "no broadcasting": (
        "axes before the last broadcast",
        """
class Member(SBN):
    def log_prob(self, params, value, given):
        return super().log_prob(params, value, given).flatten()[:1].expand(value.shape[:-1])
""",
    ),
    "init of another shape": (
        "shapes and init agree",
        """
class Member(SBN):
    def init(self, rng, mean=None): return super().init(rng, mean) | {"b": torch.zeros(self.n_out + 1)}
""",
    ),
    "cells of something else": (
        "cells sum to log_prob",
        """
class Member(SBN):
    def cells(self, params, value, given): return super().cells(params, value, given) / 2
""",
    ),
    "the mean of something else": (
        "mean is the expectation",
        """
class Member(MLP):
    def mean(self, params, value, given): return super().mean(params, value, given) ** 1.1
""",
    ),
    "factorised but autoregressive": (
        "values are independent where factorised says so",
        """
class Member(DARN):
    factorised = True
""",
    ),
    "a vjp of half the size": (
        "log_prob_vjp and draw_vjp agree with autograd",
        """
class Member(SBN):
    def log_prob_vjp(self, params, value, given, grad=True):
        found = super().log_prob_vjp(params, value, given, grad)
        return found._replace(vjp=lambda weight, into: found.vjp(weight / 2, into))
""",
    ),
    "a pathwise vjp of half the size": (
        "log_prob_pathwise_vjp and draw_pathwise_vjp agree with autograd",
        """
class Member(Gaussian):
    def log_prob(self, params, value, given): return super().log_prob(params, value, given)
    def draw(self, params, given, rng, draws=None): return super().draw(params, given, rng, draws)
    def log_prob_pathwise_vjp(self, params, value, given, to_value=True):
        found = super().log_prob_pathwise_vjp(params, value, given, to_value)
        return found._replace(vjp=lambda weight, into: found.vjp(weight / 2, into))
""",
    ),
    "pathwise draws without a gradient": (
        "draw_pathwise carries the gradient",
        """
class Member(Gaussian):
    def draw_pathwise(self, params, given, rng, draws=None): return self.draw(params, given, rng, draws)
""",
    ),
    "log-odds of something else": (
        "linear_log_odds are those of log_prob",
        """
class Member(SBN):
    def linear_log_odds(self, params): return LogOdds(params["b"] + 0.01, params["W"])
""",
    ),
    "noise of a sampler 10 % too large": (
        "it keeps mean and variance of a Gaussian",
        """
class Member(SGLD):
    def tell(self, state, grad, eta, rng):
        moved = state.theta + eta * grad
        return SGLDState(moved + 1.1 * math.sqrt(2 * eta) * torch.randn(grad.shape, generator=rng, dtype=grad.dtype))
""",
    ),
    "a temperature that is ignored": (
        "it keeps them at another temperature and with a tiny step",
        """
class Member(SGLD):
    def tell(self, state, grad, eta, rng):
        moved = state.theta + eta * grad
        return SGLDState(moved + math.sqrt(2 * eta) * torch.randn(grad.shape, generator=rng, dtype=grad.dtype))
""",
    ),
    "a drift that is wrong": (
        "it keeps mean and variance of a Gaussian",
        """
class Member(SGHMC):
    def tell(self, state, grad, eta, rng): return super().tell(state, grad + 0.1, eta, rng)
""",
    ),
    "a state written into": (
        "old states are left alone",
        """
class Member(SGLD):
    def tell(self, state, grad, eta, rng):
        state.theta.add_(grad, alpha=eta)
        return super().tell(state, 0 * grad, eta, rng)
""",
    ),
    "a state beside the fields": (
        "it goes on from its fields",
        """
class Member(SGLD):
    count = [0]
    def tell(self, state, grad, eta, rng):
        self.count[0] += 1
        return super().tell(state, grad * self.count[0], eta, rng)
""",
    ),
    "theta that is not the first field": (
        "a state is its fields, theta first",
        """
class Turned(NamedTuple):
    u: Tensor
    theta: Tensor
@dataclass(frozen=True)
class Member(Sampler):
    state_type = Turned
    def init(self, theta, rng): return Turned(theta, theta)
    def tell(self, state, grad, eta, rng): return state._replace(theta=state.theta + eta * grad)
""",
    ),
    "a wrong gradient of a prior": (
        "grad is the gradient of log_prob",
        """
class Member(Laplace):
    def grad(self, theta): return -theta.sign() / self.scale**2
""",
    ),
    "a learnt scale with half a weight too many": (
        "the law of a learnt scale is log_prob",
        """
@dataclass(frozen=True)
class Member(LearntNormal):
    def by_log_scale(self, theta):
        law = super().by_log_scale(theta)
        return lambda at: Jet(law(at).value - at / 2, law(at).first - 0.5, law(at).second)
""",
    ),
    "a biased objective": (
        "the gradient vanishes at the posterior",
        """
class Member(Wake):
    def __call__(self, round):
        rows, memory = super().__call__(round)
        return Ascent(rows + 0.1 * round.batch.pair.phi.sum(), memory)
""",
    ),
    "an objective that descends": (
        "the gradient leads to the posterior",
        """
class Member(VIMCO):
    def __call__(self, round):
        rows, memory = super().__call__(round)
        return Ascent(-rows, memory)
""",
    ),
    "an objective that is not plain": (
        "plain and bound are what they say",
        """
class Member(Wake):
    plain = True
    def __call__(self, round):
        rows, memory = super().__call__(round)
        return Ascent(2 * rows, memory)
""",
    ),
    "a layer whose bias does not take up a shift": (
        "bias_of: a bias takes up a shift",
        """
class Member(SBN):
    def log_prob(self, params, value, given):
        return super().log_prob(params, value, given**2)  # the same for 0 and 1
""",
    ),
    "an estimator that forgets the weights": (
        "gradients approach the enumerated ones as draws grow",
        """
class Member(NAIS):
    def __call__(self, batch, wanted="both"):
        found = super().__call__(batch, wanted)
        return found._replace(theta_grad=None if found.theta_grad is None else 1.1 * found.theta_grad)
""",
    ),
    "a schedule that turns": (
        "factors are finite and not negative",
        """
@dataclass(frozen=True)
class Member(Schedule):
    def __call__(self, time): return 1 - time / 10
""",
    ),
    "data drawn anew": (
        "each call gives the same rows",
        """
def Member():
    import dataclasses, numpy
    data = bars()
    return dataclasses.replace(data, train=numpy.random.default_rng().permutation(data.train))
""",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_each_fault_is_found_by_its_law(fault, own, capsys):
    law, text = BROKEN[fault]
    if "class Member" in text and "@dataclass" not in text:
        text = text.replace("class Member", "@dataclass(frozen=True)\nclass Member")
    own(text)
    with pytest.raises(SystemExit) as stopped:
        main(["check", "mine.py:Member"])
    assert stopped.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.split(maxsplit=1)[1].startswith(law)]
    assert line.strip().startswith("broken"), lines
    assert "expected" in line
    assert "got" in line


def test_every_law_finds_something():
    """Each law of layers, samplers, priors, estimators and objectives that can be broken alone has a broken member."""
    found = {law for law, _ in BROKEN.values()}
    not_alone = {
        "it says what it draws, and equal options make equal layers", "draws have their shape",
        "missing values drop out", "row_biases are added row by row", "single precision is enough",
        "noise comes from the generator",
        "an optimiser finds the mode", "shapes and types are theta's", "added is grad, added",
        "gradients are given as wanted", "a number for each row", "the gradient for theta is left alone",
        "it returns Data",
    }  # fmt: skip
    assert found | not_alone == {law for kind in KINDS for law in kind.laws}
    assert not found & not_alone


def test_check_prints_json(own, capsys):
    own(MINE)
    main(["check", "mine.py:Mine:extra=2", "--json"])
    (found,) = json.loads(capsys.readouterr().out)["checks"]
    assert found["ok"]
    assert {law["verdict"] for law in found["laws"]} == {"ok", "left out"}


@pytest.mark.parametrize(
    ("text", "spec", "expected"),
    [
        ("1 / 0", "mine.py:Mine", "ZeroDivisionError"),
        (MINE, "mine.py:Nosuch", "no class or function 'Nosuch'"),
        (MINE, "nosuch.py:Mine", "there is no file nosuch.py"),
        (MINE, "mine.py:math", "must be a subclass of one of Layer"),
        (MINE, "mine.py:Mine:nosuch=3", "no option 'nosuch'"),
        (MINE, "nosuch", "no member is called 'nosuch'"),
    ],
)
def test_what_cannot_be_loaded_is_exit_code_2(text, spec, expected, own, capsys):
    own(text)
    with pytest.raises(SystemExit) as stopped:
        main(["check", spec])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


def test_a_layer_of_one_s_own_is_checked_by_python(own):
    own(MINE)
    (report,) = check("mine.py:Mine")
    assert report.ok
    assert report.noun == "layer"
