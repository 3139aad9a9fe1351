"""The core needs only torch, numpy, numba and safetensors; what an extra is for says so in one line."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import doubly
from doubly.core.extras import EXTRAS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = ("torch", "numpy", "numba", "safetensors")


def name_of(requirement: str) -> str:
    """The name of a distribution, as package indexes compare it."""
    return re.sub("[-_.]+", "-", re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]).lower()


def closure(names: tuple[str, ...]) -> set[str]:
    """These distributions and all that they need, without their extras."""
    found, waiting = set(), [name_of(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another system or another Python
        waiting += [name_of(each) for each in needed if "extra ==" not in each]
    return found


def blocked() -> list[str]:
    """The modules here that an installation of the core alone would not have."""
    here, core = importlib.metadata.packages_distributions(), closure(CORE)
    others = {module for module, owners in here.items() if not {name_of(owner) for owner in owners} & core}
    return sorted((others | {each for modules in EXTRAS.values() for each in modules}) - {"doubly", "_virtualenv"})


BLOCKER = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run_core(script: str, folder: Path) -> subprocess.CompletedProcess:
    """A script in a Python that has the core alone."""
    paths = [str(Path(doubly.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    code = f"BLOCKED = set({blocked()!r})\n{BLOCKER}\n{script}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, timeout=600
    )


USE = """
import doubly, numpy as np
rows = (np.random.default_rng(0).random((60, 6)) < 0.5).astype(np.uint8)
run = doubly.fit("run", data="bars", hidden=(3,), epochs=4, collect=2, valid_draws=2, threads=1)
post = doubly.load("run", refit_passes=1)
assert post.sample(5).shape == (5, 16)
x = run.data().test[:4].astype(float)
assert post.log_likelihood(x, draws=5).shape == (4,)
x[:, 8:] = np.nan
assert post.impute(x, draws=3).mean.shape == (4, 16)
assert post.encode(x[:, :8].repeat(2, 1))[0].shape == (4, 3)
table = doubly.fit("memory", data=rows, hidden=(2,), epochs=3, collect=1, valid_draws=2, threads=1)
doubly.resume("memory")
doubly.pool([1.0, 1.2], [0.1, 0.1])
"""


def test_the_core_fits_scores_samples_and_completes(tmp_path):
    assert {name_of(each) for each in PROJECT["dependencies"]} == set(CORE)
    assert {"sklearn", "tyro", "rich", "matplotlib", "pooch", "scipy", "pandas", "jinja2"} <= set(blocked())
    found = run_core(USE, tmp_path)
    assert found.returncode == 0, found.stderr


ASKED = {
    "plots": "doubly.load('run').plot_samples(4)",
    "sklearn": "doubly.DeepGenerativeModel()",
    "arviz": "doubly.load('run').to_arviz()",
    "hub": "doubly.pull('someone/something', 'pulled')",
    "xlsx": "doubly.fit('b', data='a.xlsx')",
    "parquet": "doubly.fit('b', data='a.parquet')",
    "data": "doubly.fit('b', data='pictures')",
    "tensorboard": "doubly.fit('b', data='bars', tracker='tensorboard')",
    "mlflow": "doubly.fit('b', data='bars', tracker='mlflow')",
    "wandb": "doubly.fit('b', data='bars', tracker='wandb')",
    "cli": "from doubly import cli; cli.main(['list'])",
    "serve": "from doubly.cli.serve import Serve; Serve('run').run()",
}


def test_a_missing_extra_is_one_line_that_says_what_to_install(tmp_path):
    """All in one process, for the start of a process is what takes the time."""
    assert set(ASKED) == set(EXTRAS)
    script = f"""
import contextlib, io, json, os, doubly
doubly.fit("run", data="bars", hidden=(3,), epochs=4, collect=2, valid_draws=2, threads=1, quiet=True)
for name in ("a.xlsx", "a.parquet"):
    open(name, "wb").close()
for split in ("train", "valid", "test"):
    os.makedirs(f"pictures/{{split}}")
    open(f"pictures/{{split}}/a.png", "wb").close()
sys.modules["tyro"] = None
said = {{}}
for name, code in {ASKED!r}.items():
    if name == "serve":
        sys.modules.pop("tyro")
        BLOCKED.discard("tyro")  # the command line is there, but not the server
        BLOCKED.discard("typeguard"), BLOCKED.discard("docstring_parser")
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            exec(code)
    except doubly.UserError as error:
        said[name] = str(error)
    except SystemExit as stop:
        said[name] = errors.getvalue().strip() + f" ({{stop.code}})"
print(json.dumps(said))
"""
    found = run_core(script, tmp_path)
    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)
    assert set(said) == set(ASKED)
    for name, line in said.items():
        assert re.search(rf"needs ({'|'.join(EXTRAS[name])}), which is not here: pip install 'doubly\[{name}\]'", line)
        assert "\n" not in line
    assert said["cli"].startswith("doubly: the command line")
    assert said["cli"].endswith("(2)")


def test_extras_bring_the_modules_that_they_are_asked_for():
    extras = PROJECT["optional-dependencies"]
    module = {
        "scikit-learn": "sklearn",
        "pillow": "PIL",
        "mlflow-skinny": "mlflow",
        "huggingface-hub": "huggingface_hub",
    }
    for name, modules in EXTRAS.items():
        brought = {module.get(name_of(each), name_of(each)) for each in extras[name]}
        assert brought <= set(modules), name
    everything = " ".join(extras["all"] + extras["trackers"])
    assert all(re.search(rf"\b{name}\b", everything) for name in EXTRAS)


@pytest.mark.parametrize("name", ["all", "trackers", "dev"])
def test_extras_of_extras_exist(name):
    extras = PROJECT["optional-dependencies"]
    for each in extras[name]:
        if inner := re.fullmatch(r"doubly\[(.*)\]", each):
            assert set(inner[1].split(",")) <= set(extras)
