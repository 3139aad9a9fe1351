"""What the documents say is run: every block, the first commands of the README, the tables; links lead somewhere."""

import importlib
import os
import re
import runpy
import shlex
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import doubly
from doubly import cli
from doubly.kernels import choose
from doubly.runs.build import Facts, build
from doubly.runs.presets import preset
from doubly.training.state import init
from doubly.training.step import step

ROOT = Path(__file__).parents[1]
SOURCE = Path(doubly.__file__).parent
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


SHORTER = {"--minutes 3": "--epochs 6 --collect 4", "minutes=3": "epochs=6, collect=4"}  # no test waits for minutes


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        content = page.read_text()
        for minutes, epochs in SHORTER.items():
            content = content.replace(minutes, epochs)
        texts = re.findall(rf"^```{language}\n(.*?)^```", content, re.M | re.S)
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
    assert "independent columns" in done.stdout, "the verdict of the fit"
    assert re.search(r"test log-likelihood +-\d+\.\d+ ± \d", done.stdout), done.stdout
    report = Path(done.stdout.strip().splitlines()[-1].removeprefix("report: "))
    assert report.is_file()
    assert report.parent == tmp_path / "run"
    assert re.search(r"epoch \d+ +.*took .* +valid -\d+", done.stderr), done.stderr


def test_the_tables_of_the_registries_are_up_to_date():
    registry = runpy.run_path(str(ROOT / "docs" / "registry.py"))
    assert (ROOT / "docs" / "registry.md").read_text() == registry["page"](), "run make docs"


@pytest.mark.parametrize("page", [*TOP, *PAGES[1:]], ids=lambda page: page.name)
def test_links_and_pictures_are_there(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_every_page_that_is_named_is_there():
    """Files of docs/ that sources, tests, benchmarks and pages name by their path; the changelog may name old ones."""
    files = [
        path for folder in ("src", "tests", "benchmarks", "examples", "docs") for path in (ROOT / folder).rglob("*.*")
    ]
    named = re.compile(r"\bdocs/[\w/-]+\.(?:md|py|svg)\b")
    for path in (*TOP[:2], ROOT / "Makefile", *(path for path in files if path.suffix in (".py", ".toml", ".md"))):
        missing = [name for name in named.findall(path.read_text()) if not (ROOT / name).exists()]
        assert not missing, f"{path.relative_to(ROOT)} names {missing}"


REPORTS = [page for page in PAGES if page.parent.name == "reports"]


@pytest.mark.parametrize("page", REPORTS, ids=lambda page: page.name)
def test_a_report_opens_with_five_lines_of_conclusion(page):
    head = page.read_text().split("\n## ")[0]
    points = re.findall(r"^\d\. ", head, re.M)
    assert points == ["1. ", "2. ", "3. ", "4. ", "5. "], "five numbered conclusions before the first heading"
    assert max(len(line) for line in head.splitlines()) <= 120


def test_pages_say_what_their_scripts_write():
    """Whoever edits a report that a script writes edits the script: the text is the same, whatever the numbers are."""
    folder = ROOT / "docs" / "reports"
    objectives, page = runpy.run_path(str(folder / "objectives.py")), (folder / "objectives.md").read_text()
    assert page.startswith(objectives["HEAD"].split("MACHINE")[0])
    assert objectives["HEAD"].split("MACHINE")[1] in page
    assert page.endswith(objectives["TAIL"])
    samplers, page = runpy.run_path(str(folder / "samplers.py")), (folder / "samplers.md").read_text()
    parts = [literal for literal, *_ in string.Formatter().parse(samplers["TEXT"])]
    assert re.fullmatch("(?s:.*?)".join(map(re.escape, parts)), page)


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in re.findall(r"\]\(([\w./-]+\.md)\)", index.read_text())}
    assert listed == {page.resolve() for page in PAGES} - {index.resolve()}


def test_every_page_is_in_the_navigation_of_the_site():
    """docs/hooks.py puts pages at the root and the examples in their places; README.md of docs/ becomes pages.md."""
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1], re.M)
    here = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]} - {"README.md"}
    moved = re.findall(r'^    "\S+": "(\S+\.md)",$', (ROOT / "docs" / "hooks.py").read_text(), re.M)
    examples = {f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    assert len(moved) == 5
    assert sorted(listed) == sorted(here | set(moved) | examples)


def test_the_page_of_the_api_has_every_public_name_once():
    page = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^(?:::: |\| `)doubly\.(\w+)", page, re.M)) == sorted(doubly.__all__)


def test_the_page_of_the_method_names_functions_that_are_there():
    rows = re.findall(r"^\| (\d+) \| .* \| `(.*?)\.py` \| `(.*?)` \|$", (ROOT / "docs" / "method.md").read_text(), re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, 35))
    for _, file, name in rows:
        found = importlib.import_module(f"doubly.{file.replace('/', '.')}")
        for part in name.split("."):
            found = getattr(found, part)
        assert found.__module__ == f"doubly.{file.replace('/', '.')}", f"{name} is not of {file}.py"


def test_the_architecture_page_lists_the_files_of_a_step():
    """Take a step with the paper's settings and see in which files code runs."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.rand(40, 12, generator=rng).round()
    if not choose.fused(rows):
        pytest.skip("the page is about the fused kernels, which do not run here")
    method = build(preset("dsgnht-nais", hidden=(5, 4), resample=False), Facts(12, "binary", ()))
    state, index, ran = init(method, rows), torch.arange(20), set()
    state = step(method, state, rows[index], index, 40)  # the first step compiles

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            ran.add(path.relative_to(SOURCE).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        step(method, state, rows[index], index, 40)
    finally:
        sys.setprofile(before)
    page = (ROOT / "docs" / "architecture.md").read_text()
    (table,) = re.findall(r"<!-- files of a step -->(.*?)<!-- end -->", page, re.S)
    listed = re.findall(r"^\| (\d+) \| `(.*?)`", table, re.M)
    assert [int(number) for number, _ in listed] == list(range(1, len(ran) + 1))
    assert {file for _, file in listed} == ran
    assert f"code of {len(ran)} files" in page


def test_the_architecture_page_names_files_that_are_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z]+/[a-z_/]*(?:\.py)?)`", page))
    assert not [name for name in named if not ((SOURCE / name).exists() or (ROOT / name).exists())]


def test_first_lines_of_the_readme_are_the_two_commands():
    first = (ROOT / "README.md").read_text().split("```")[1]
    assert [line.split("#")[0].strip() for line in first.strip().splitlines()[1:]] == ["make run", "make test"]
    assert shutil.which("make")


def test_the_numbers_of_the_readme_are_those_of_the_results():
    table = (ROOT / "README.md").read_text().split("## What it reaches")[1].split("\n## ")[0]
    ours = re.findall(r"\| (-\d+\.\d+ ± \d\.\d+) \|", table)
    assert len(ours) >= 6
    results = (ROOT / "docs" / "results.md").read_text()
    assert not [number for number in ours if f"| {number} |" not in results]
    published = re.findall(r"(-\d+\.\d+) \(", table)
    assert not [number for number in published if f"| {number} |" not in results]
