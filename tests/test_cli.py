"""The command line: what it prints, what it refuses, and that it starts at once."""

import dataclasses
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest

import doubly
from doubly import cli
from doubly.cli import parser
from doubly.runs.config import Config
from doubly.runs.presets import PRESETS


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    cli.main(["fit", "--data", "bars", "--hidden", "5", "--epochs", "4", "--collect", "2", "--out", str(folder)])
    return folder


def refused(capsys, *args: str) -> str:
    """The one line that a mistake is answered with."""
    with pytest.raises(SystemExit) as stop:
        cli.main(list(args))
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("doubly: ")
    assert "Traceback" not in err
    return lines[0]


def write(path, content) -> str:
    path.write_text(content)
    return str(path)


NOUNS = {"data": "data set", "model": "layer", "proposal": "layer", "prior": "prior", "sampler": "sampler",
         "estimator": "estimator", "objective": "objective", "preset": "preset"}  # fmt: skip


@pytest.mark.parametrize("flag", NOUNS)
def test_an_unknown_name_is_told_which_exist(flag, capsys, tmp_path):
    line = refused(capsys, "fit", f"--{flag}", "nosuch", "--out", str(tmp_path / "run"))
    assert f"no {NOUNS[flag]} is called 'nosuch'; there are: " in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--step", "-1"], "step must be positive and finite, got -1.0"),
        (["--draws", "-1"], "must be at least 0, got -1"),
        (["--hidden", "0"], "at least one unit"),
        (["--hidden", "-3"], "at least one unit"),
        (["--model", "sbn,sbn,sbn"], "3 layer types (sbn, sbn, sbn) for 2 layers"),
        (["--batch", "0"], "batch must be at least 1"),
        (["--friction", "2"], "friction must lie between 0 and 1, got 2.0"),
        (["--prior", "student-t:scale=0"], "scale must be positive"),
        (["--prior", "student-t:width=1"], "has no option 'width'; its options are: df, scale"),
        (["--prior", "normal:scale"], "has no value"),
        (["--prior", "normal:scale=big"], "scale of prior 'normal:scale=big' must be float, got 'big'"),
        (["--estimator", "nais:draws=2.5"], "must be int, got 2.5"),
        (["--sampler", "adam:beta1=2"], "beta1 and beta2 must lie in [0, 1)"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--draws", "many"], "--draws"),
        (["--nosuch", "1"], "--nosuch"),
        (["--seed", "-1"], "seed must not be negative"),
        (["--data", "nosuch.csv"], "no file nosuch.csv"),
        (["--model", "nosuch.py:Mine"], "no file nosuch.py"),
    ],
)
def test_bad_settings_are_one_line(args, said, capsys, tmp_path):
    assert said in refused(capsys, "fit", *args, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("0,1\n1,0,1\n", "line 2"),
        ("0,nan\n" * 10, "no column to learn from: column 1: always 0; column 2: has no value in any row"),
        ("0,1\n", "no column to learn from"),
        ("0,1\n1,0\n", "too few"),
        ("0,1\n" * 9 + "0,cat\n", "'cat', which is no number"),
    ],
)
def test_bad_files_are_one_line(content, said, capsys, tmp_path):
    file = write(tmp_path / "rows.csv", content)
    assert said in refused(capsys, "fit", "--data", file, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["0,1\n" * 9 + "0,0.5\n", "0,1\n" * 9 + "0,2\n"])
def test_a_layer_of_bits_that_is_named_wants_bits(content, capsys, tmp_path):
    file = write(tmp_path / "rows.csv", content)
    line = refused(capsys, "fit", "--data", file, "--model", "nade", "--out", str(tmp_path / "run"))
    assert "draws 0 or 1, but" in line


def test_a_split_without_rows_is_one_line(capsys, tmp_path):
    np.savez(tmp_path / "rows.npz", train=np.ones((9, 2)), valid=np.ones((0, 2)), test=np.ones((3, 2)))
    line = refused(capsys, "fit", "--data", str(tmp_path / "rows.npz"), "--out", str(tmp_path / "run"))
    assert "valid" in line
    assert "no rows" in line


@pytest.mark.parametrize("command", ["resume", "evaluate", "sample", "report"])
def test_a_folder_without_a_run_is_one_line(command, capsys, tmp_path):
    assert "holds no run" in refused(capsys, command, str(tmp_path))


def test_a_run_without_samples_says_what_can_be_asked_for(capsys, tmp_path):
    folder = str(tmp_path / "run")
    cli.main(["fit", "--data", "bars", "--hidden", "3", "--epochs", "1", "--collect", "0", "--out", folder])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(["evaluate", folder])
    assert "--of last" in capsys.readouterr().err
    cli.main(["evaluate", folder, "--of", "last", "--draws", "3", "--refit", "1"])
    assert "last sample of the weights" in capsys.readouterr().out


# the models of the paper's tables, at a tenth of their widths; and mixtures
CHAINS = [
    ("sbn", "sbn", ["8"]),
    ("sbn", "sbn", ["8", "8"]),
    ("sbn", "sbn", ["8", "6", "5", "4"]),
    ("darn", "nade", ["8"]),
    ("nade", "nade", ["8"]),
    ("nade:width=20", "sbn", []),
    ("darn:order=reversed", "sbn", []),
    ("mlp:widths=10-10,normal", "gaussian:widths=10-10", ["5"]),
    ("mlp:widths=9", "sbn", ["6"]),
    ("nade,sbn", "sbn", ["6"]),
    ("sbn,darn,nade", "nade,sbn", ["6", "5"]),
    ("sbn,gaussian:widths=4,normal", "gaussian:widths=4", ["3", "2"]),
]


@pytest.mark.parametrize(("model", "proposal", "hidden"), CHAINS)
def test_every_chain_can_be_named_fitted_scored_and_sampled(model, proposal, hidden, capsys, tmp_path):
    folder = str(tmp_path / "run")
    args = ["--data", "bars", "--epochs", "2", "--collect", "1", "--theta-steps", "1", "--out", folder]
    cli.main(["fit", "--model", model, "--proposal", proposal, "--hidden", *hidden, *args])
    capsys.readouterr()
    cli.main(["evaluate", folder, "--draws", "10", "--refit", "1", "--by", "draws", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert -16 < found["log_likelihood"] < found["truth"]
    cli.main(["sample", folder, "-n", "3", "--out", str(tmp_path / "rows.npz")])
    assert np.load(tmp_path / "rows.npz")["rows"].shape == (3, 16)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["--model", "sbn,normal", "--proposal", "sbn"],
            "latent layer 1 is real in the model but binary in the proposal",
        ),
        (["--model", "gaussian"], "draws real numbers, but the data are 0 or 1"),
        (["--estimator", "gibbs", "--objective", "vimco"], "leave it out, or take estimator nais"),
        (["--estimator", "gibbs", "--model", "nade"], "Gibbs sampling needs sbn or darn layers"),
        (["--objective", "iwae"], "the objective iwae needs real latent layers"),
        (["--objective", "vimco", "--draws", "1"], "needs at least 2"),
        (["--model", "normal,sbn"], "can only be the top of a model"),
        (["--model", "sbn,nade", "--proposal", "sbn,nade"], "2 layer types (sbn, nade) for 1 layers"),
    ],
)
def test_layers_that_do_not_meet_are_one_line(args, said, capsys, tmp_path):
    line = refused(capsys, "fit", "--data", "bars", "--hidden", "3", *args, "--out", str(tmp_path / "run"))
    assert said in line


def test_real_data_are_learnt_by_a_gaussian_layer(tmp_path):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(3, 0.5, (300, 4)))
    run = doubly.fit(
        tmp_path / "run",
        data=str(tmp_path / "rows.npy"),
        model="gaussian:widths=8,normal",
        proposal="gaussian:widths=8",
        hidden=(2,),
        step=0.05,
        epochs=60,
        collect=10,
        quiet=True,
    )
    x = run.data().test
    truth = (-(((x - 3) / 0.5) ** 2) / 2 - math.log(0.5 * math.sqrt(2 * math.pi))).sum(1)
    lost = truth - run.posterior().log_likelihood(x, draws=200)
    stderr = lost.std() / math.sqrt(len(lost))
    # 8 numbers (means and spreads) learnt from 240 rows cost 8 / 480 = 0.02 nats; the 80 weights of the perceptron at
    # most 80 / 480 = 0.17
    assert -3 * stderr < lost.mean() < 0.17 + 3 * stderr


def test_an_output_that_cannot_be_is_one_line_and_writes_nothing(finished, capsys, tmp_path):
    assert ".npz" in refused(capsys, "sample", str(finished), "--out", str(tmp_path / "rows.docx"))
    assert "at least 1" in refused(capsys, "sample", str(finished), "-n", "0", "--out", str(tmp_path / "rows.csv"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("of", ["mean", "last", "ensemble"])
def test_evaluate_prints_one_json_object_that_can_be_repeated(of, finished, capsys):
    found = []
    for _ in range(2):
        cli.main(["evaluate", str(finished), "--draws", "20", "--of", of, "--refit", "3", "--json"])
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert {"log_likelihood", "stderr", "draws", "n", "ess", "split", "of"} <= found[0].keys()
    assert (found[0]["draws"], found[0]["n"], found[0]["split"], found[0]["of"]) == (20, 500, "test", of)
    assert 1 <= found[0]["ess"] <= found[0]["draws_used"] <= 20 * (2 if of == "ensemble" else 1)
    assert found[0]["log_likelihood"] < found[0]["truth"], "no model beats the density that made the data"


def test_samples_come_as_numbers_and_as_a_picture(finished, capsys, tmp_path):
    for name in ("rows.npz", "rows.csv", "rows.png"):
        cli.main(["sample", str(finished), "-n", "7", "--out", str(tmp_path / name)])
    table = np.loadtxt(tmp_path / "rows.csv", delimiter=",")
    assert table.shape == (7, 16)
    assert set(np.unique(table)) <= {0, 1}
    assert np.array_equal(np.load(tmp_path / "rows.npz")["rows"], table)
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_the_parser_and_the_config_have_the_same_defaults():
    parsed = parser._parse(["fit"])
    assert Config(**{field.name: getattr(parsed, field.name) for field in dataclasses.fields(Config)}) == Config()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_flags_and_flags_beside_it_win(name):
    for spelling in (["--preset", name], [f"--preset={name}"]):
        parsed = parser._parse(["fit", *spelling, "--step", "0.123"])
        for field, value in PRESETS[name][1].items():
            assert getattr(parsed, field) == (0.123 if field == "step" else value)
        assert parsed.step == 0.123


def test_list_names_every_member_in_text_and_json(capsys):
    from doubly.cli.listing import REGISTRIES

    cli.main(["list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    cli.main(["list"])
    text = capsys.readouterr().out
    for title, registry in REGISTRIES.items():
        assert set(listed[title]) == set(registry)
        for name in registry:
            assert listed[title][name]["about"], f"{name} needs a docstring"
            assert f"  {name} " in text


def test_a_layer_of_the_users_own_is_one_class_in_one_file(tmp_path, capsys):
    file = write(
        tmp_path / "mine.py",
        "from dataclasses import dataclass\n"
        "from doubly.layers.sbn import SBN\n"
        "@dataclass(frozen=True)\n"
        "class Mine(SBN):\n"
        "    '''Mine.'''\n"
        "    gain: float = 1.0\n"
        "    def _logits(self, params, given):\n"
        "        return self.gain * super()._logits(params, given)\n",
    )
    folder = str(tmp_path / "run")
    args = ["--data", "bars", "--hidden", "3", "--epochs", "1", "--theta-steps", "1", "--out", folder]
    cli.main(["fit", "--model", f"{file}:Mine:gain=0.5,sbn", *args])
    cli.main(["sample", folder, "-n", "2", "--out", str(tmp_path / "rows.csv")])


HEAVY = ("torch", "numba", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "rich", "sympy")


@pytest.mark.parametrize(
    "args",
    [
        None,
        [],
        ["--help"],
        ["fit", "--help"],
        ["evaluate", "--help"],
        ["fit", "--hiden", "2"],
        ["fit", "--epochs", "two"],
        ["evaluate", "--wrong"],
        ["fti"],
        ["fit", "--data", "digts"],
        ["evaluate", "runs/no-such-run"],
    ],
    ids=str,
)
def test_what_needs_no_computing_is_quick_because_nothing_heavy_is_imported(args):
    code = "import sys, doubly\n"
    if args is not None:
        code += f"import doubly.cli\ntry: doubly.cli.main({args})\nexcept SystemExit: pass\n"
    code += f"heavy = [name for name in {HEAVY} if name in sys.modules]\nassert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_fit_of_the_digits_imports_no_more_than_it_needs():
    code = "import sys, doubly.runs.fit\nfrom doubly.data import load\nload('digits')\n"
    heavy = tuple(name for name in HEAVY if name not in ("torch", "numpy", "rich"))
    code += f"heavy = [name for name in {heavy} if name in sys.modules]\nassert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_overview_names_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    said = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(re.search(rf"^  {command.__name__.lower()} +\w", said, re.M) for command in cli.parser.COMMANDS)
