"""What the documents say is run: every block of the README, the two commands in its first lines, the tables."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doubly import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        texts = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)
        found += [pytest.param(text, id=f"{page.name}-{i}") for i, text in enumerate(texts)]
    return found


@pytest.mark.parametrize("text", blocks("python"))
def test_python_blocks_run(text, tmp_path):
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, capture_output=True)


SHELL = [block for block in blocks("sh") if "make run" not in block.values[0]]


@pytest.mark.parametrize("text", SHELL)
def test_shell_blocks_run(text, tmp_path, monkeypatch):
    """The first block as people run it; others in this process, where PyTorch is loaded, if they are but our commands.

    A command that fails raises SystemExit.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if text == SHELL[0].values[0] or not all(re.fullmatch(r"doubly [^|&;<>$`\\]*", line) for line in lines):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path}
        subprocess.run(["bash", "-ec", text], cwd=tmp_path, check=True, capture_output=True, env=environment)
        return
    monkeypatch.chdir(tmp_path)
    for line in lines:
        cli.main(shlex.split(line, comments=True)[1:])


def test_make_run_ends_with_a_table_and_a_report(tmp_path):
    """The first command of the README, made short; the second is the one that runs this test."""
    if not (ROOT / ".venv" / ".installed").exists():
        pytest.skip("make setup has not been run here: the suite was started by other means")
    short = "FIT=--hidden 20 --epochs 3 --collect 2 --theta-steps 1 --threads 1"
    done = subprocess.run(
        ["make", "-s", "run", f"RUN={tmp_path / 'run'}", short], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert re.search(r"test log-likelihood +-\d+\.\d+ ± \d", done.stdout), done.stdout
    report = Path(done.stdout.strip().splitlines()[-1].removeprefix("report: "))
    assert report.is_file()
    assert report.parent == tmp_path / "run"
    assert re.search(r"epoch \d+ +\d+ steps/s +.* left +valid -\d+", done.stderr), done.stderr


def test_the_tables_of_members_are_up_to_date():
    members = runpy.run_path(str(ROOT / "docs" / "members.py"))
    assert (ROOT / "docs" / "members.md").read_text() == members["page"](), "run make docs"


def test_first_lines_of_the_readme_are_the_two_commands():
    first = (ROOT / "README.md").read_text().split("```")[1]
    assert [line.split("#")[0].strip() for line in first.strip().splitlines()[1:]] == ["make run", "make test"]
    assert shutil.which("make")
