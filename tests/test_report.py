"""Reports: one page that needs nothing else, figures that can be looked at, and the numbers that were found."""

import base64
import hashlib
import html
import io
import itertools
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

import doubly
from doubly import cli
from doubly.analysis.evaluation import FiledEvaluation
from doubly.analysis.report import figures, make
from doubly.analysis.report.files import WRITERS, save_rows
from doubly.analysis.report.mixture import CellKinds, best_mixture, fit_mixture
from doubly.analysis.report.mosaic import mosaic
from doubly.analysis.report.raster import to_png
from doubly.analysis.report.sections.cells import column_scores
from doubly.analysis.report.sections.quality import result
from doubly.analysis.report.sections.tables import association, distance
from doubly.analysis.report.sections.training import curve, health, health_figures, trend, without_bad_start
from doubly.analysis.report.story import Story
from doubly.analysis.report.svg import Chart, heat_map, standalone
from doubly.analysis.report.ways import simple_ways
from doubly.cli import parser
from doubly.core.errors import UserError
from doubly.data import Column, load
from doubly.runs.config import Config
from doubly.runs.folder import Run

FIT: dict[str, Any] = {"epochs": 3, "collect": 2, "theta_steps": 1, "batch": 400, "valid_draws": 10, "quiet": True}
ROWS = np.random.default_rng(0).integers(0, 2, (7, 12), dtype=np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A short run on images, evaluated; nobody may change it but `make`."""
    run = doubly.fit(tmp_path_factory.mktemp("report") / "run", data="digits", hidden=(20,), **FIT)
    cli.main(["evaluate", str(run.path), "--by", "draws", "--draws", "20", "--refit", "1"])
    return run


@pytest.fixture(scope="module")
def made(run) -> tuple[str, Path]:
    return make(run.path)


def pixels(content: bytes) -> np.ndarray:
    return imread(io.BytesIO(content), format="png")


def record(epoch: int, valid: float, phase: str = "burn-in", **sampler: float) -> dict:
    values = {"train": valid - 1, "valid": valid, "valid_stderr": 0.1, "ess": 2.5, "sampler": sampler}
    return {"epoch": epoch, "phase": phase, "collected": 0, "seconds": 1.0} | values


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refusal(action, *args) -> str:
    with pytest.raises(UserError) as caught:
        action(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The page


def test_page_needs_nothing_else(made):
    page = made[1].read_text()
    assert re.findall(r'src="([^"]*)"', page) == []
    addresses = set(re.findall(r'href="([^"]*)"', page))
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in addresses)
    assert not re.search(r"url\(|@import|<link", page)
    assert not set(re.findall(r"https?://[^\"\s<]+", page)) - {"http://www.w3.org/2000/svg"}
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_every_section_is_listed_and_every_figure_is_a_file(run, made):
    page = made[1].read_text()
    for key in ("verdict", "scores", "training", "samples", "completions", "features", "rows", "latents", "chain"):
        assert f'<a href="#{key}">' in page
        assert f'<section id="{key}"' in page
    names = {file.stem for file in (run.path / "figures").glob("*.svg")}
    assert {"training", "data", "samples", "nearest", "weights", "completions", "hardest", "khat", "units-z1"} <= names
    for file in (run.path / "figures").glob("*.svg"):
        root = ElementTree.fromstring(file.read_bytes())
        assert root.tag.endswith("svg"), file
        wide, tall = map(float, root.attrib["viewBox"].split()[2:])
        assert imread(file.with_suffix(".png")).shape == (math.ceil(2 * tall), math.ceil(2 * wide), 4)


def test_results_are_those_found(run, made):
    table, page = made[0], made[1].read_text()
    (file,) = (run.path / "evaluations").glob("test-mean-20*.json")
    found = json.loads(file.read_text())
    best = max(run.metrics(), key=lambda record: record["valid"])
    assert "sbn 64-20" in table
    assert "3 epochs" in table
    assert "2 samples" in table
    score = f"{found['log_likelihood']:.2f} ± {found['stderr']:.2f}  (mean, K=20, {found['ess']:.1f} effective)"
    assert re.search("test log-likelihood +" + re.escape(score), table)
    assert f"{best['valid']:.2f} ± {best['valid_stderr']:.2f}  (epoch {best['epoch']}" in table
    assert f"{found['log_likelihood']:.2f}".replace("-", "−") in page
    assert f"mean, K=20, {found['ess']:.1f} effective" in page


def test_a_model_that_was_hardly_trained_looks_bad(made):
    assert re.search("problem .* worse than a mixture", made[0])
    assert "Too few epochs to tell" in made[0] or "Validation still rose" in made[0]


def test_every_setting_is_on_the_page_and_the_command_makes_the_run_again(run, made):
    page = made[1].read_text()
    for name in Config.__dataclass_fields__:
        assert f'<th scope="row">{name}</th>' in page
    command = re.search("<pre[^>]*>(doubly .*?)</pre>", page)
    assert command
    parsed = parser._parse(shlex.split(html.unescape(command[1]))[1:])
    assert {name: getattr(parsed, name) for name in Config.__dataclass_fields__} == vars(run.config)
    assert parsed.out == str(run.path)


def test_nothing_else_of_the_run_is_touched_and_making_again_gives_the_same(run, made):
    before = everything(run.path)
    table, _ = make(run.path)
    assert table == made[0]
    assert everything(run.path) == before


def test_runs_side_by_side(run, made, tmp_path):
    other = doubly.fit(tmp_path / "other", data="digits", hidden=(10,), **FIT)
    _, page = make(other.path, run.path)
    text = page.read_text()
    assert page == other.path / "report.html"
    assert "2 runs compared, on digits" in text
    assert '<th scope="row">hidden</th><td>10</td><td>20</td>' in text
    assert '<th scope="row">seed</th><td>0</td><td>0</td>' not in text
    assert re.search(r"(is best|cannot be told apart)", text)


NASTY = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> tuple[Run, str]:
    """A short run on a table whose names and levels are markup, with missing cells; and its page."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    lines = [f'"{NASTY}",b,c']
    for i in range(60):
        level = "<script>alert(2)</script>" if i % 3 else "plain"
        lines.append(f"{level},{rng.normal() + 3 * (i % 3 > 0):.2f},{'' if i % 9 == 0 else round(rng.normal(), 2)}")
    (folder / "a<b>&c.csv").write_text("\n".join(lines) + "\n")
    fit: dict[str, Any] = {"epochs": 4, "warmup": 1, "collect": 2, "batch": 30, "valid_draws": 5, "quiet": True}
    run = doubly.fit(folder / "run", data=str(folder / "a<b>&c.csv") + ":columns=mixed", **fit, patience=1)
    return run, make(run.path)[1].read_text()


def test_texts_of_data_are_not_markup(table):
    run, page = table
    assert "<img" not in page
    assert "<script>alert" not in page
    assert "<b>" not in page
    assert "\u202e" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    for file in (run.path / "figures").glob("*.svg"):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(file.read_bytes()).iter()}
        assert tags <= {"svg", "style", "text", "line", "rect", "path", "circle", "image"}


def test_a_table_has_its_own_sections(table):
    run, page = table
    for key in ("columns", "associations", "hidden-cells", "odd-rows", "missing"):
        assert f'<section id="{key}"' in page
    assert 'id="samples"' not in page
    for text in ("column alone", "nearest rows", "in 90% intervals", "cells to blame", "In samples of the model"):
        assert text in page
    assert (run.path / "figures" / "column-001.svg").exists()


def test_cells_of_complete_rows_are_hidden_and_completed_too(tmp_path):
    """The proposal of such a run knows of no missing cells: another one has to learn of them."""
    lines = [f"{20 + i % 17}.5,{'ABC'[i % 3]},{i % 2}" for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["age,town,member", *lines]) + "\n")
    run = doubly.fit(tmp_path / "run", data=str(tmp_path / "a.csv"), hidden=(3,), epochs=4, collect=2, quiet=True)
    story = Story.open(run.path)
    assert not story.posterior.method.proposal.masked
    scores = column_scores(story)
    assert [each.cells > 0 for each in scores] == [True] * 3
    assert np.isfinite([value for each in scores for value in each.error.values()]).all()


def test_plain_tables_are_not_shown_as_pictures(tmp_path, capsys):
    rows = np.random.default_rng(0).integers(0, 2, (200, 5))
    np.savetxt(tmp_path / "a<b>&c.csv", rows, fmt="%d", delimiter=",")
    run = doubly.fit(tmp_path / "run", data=str(tmp_path / "a<b>&c.csv"), hidden=(3,), **FIT)
    cli.main(["report", str(run.path)])
    page = (run.path / "report.html").read_text()
    assert "a&lt;b&gt;&amp;c" in page
    assert "<b>" not in page
    assert "5 columns" in capsys.readouterr().out
    assert not (run.path / "figures" / "weights.svg").exists()


def test_nothing_hidden_is_exact():
    found = FiledEvaluation(log_likelihood=-9.0, stderr=0.1, draws=20, ess=1.0, split="test", of="mean", truth=-8.5)
    assert result(found, exact=True).how == "mean, exact; truth -8.50"
    assert health([record(1, -9.0)], draws=1) == {}


def test_run_without_samples_shows_the_last_draw(tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(4,), **FIT | {"collect": 0, "epochs": 1})
    table, page = make(run.path)
    assert "1 epoch in" in table
    assert "0 samples" in table
    assert "the last sample of the weights" in page.read_text()


def test_run_without_epochs_says_so(tmp_path):
    with Run.create(tmp_path / "run", Config(), load("digits")) as run:
        pass
    assert "no epoch" in refusal(make, run.path)
    assert not (run.path / "report.html").exists()
    assert "holds no run" in refusal(make, tmp_path)


def test_other_evaluations_are_told_in_words_curves_drawn_and_damaged_ones_refused(tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(4,), **FIT)
    (run.path / "evaluations").mkdir()
    older = {"log_likelihood": -9.0, "stderr": 0.1, "draws": 20, "effective": 1.5, "split": "test", "of": "mean"}
    (run.path / "evaluations" / "older.json").write_text(json.dumps(older))
    (run.path / "evaluations" / "imputed.json").write_text('{"accuracy": 0.912345, "n": 3}')
    points = [{"at": 1, "log_likelihood": -9.5, "stderr": 0.1}, {"at": 10, "log_likelihood": -9.0}, {"at": "x"}, 3]
    (run.path / "evaluations" / "curve-over-draws.json").write_text(json.dumps({"points": points}))
    table, page = make(run.path)
    assert re.search(r"test log-likelihood +-9.00 ± 0.10 +\(mean, K=20, 1.5 effective\)", table)
    assert re.search("imputed +accuracy 0.9123, n 3", table)
    assert 'id="curves"' in page.read_text()
    (run.path / "evaluations" / "broken.json").write_text('{"accuracy": ')
    assert "broken.json" in refusal(make, run.path)


# Figures as PNG files


def test_a_png_shows_what_the_chart_does():
    """Two pixels for each unit, from the top left corner, in the light colours of the page."""
    chart = Chart((0, 10), (0, 10), wide=200, tall=120, x_ticks=[], y_ticks=[])
    chart.bar(2, 4, 8, "f1")
    chart.points([8], [5], "f2", ["tip"], radius=6)
    chart.hover([5], ["tip"])  # seen under the pointer only
    seen = pixels(to_png(chart.svg("label")))
    assert seen.shape == (240, 400, 4)

    def at(x: float, y: float) -> list[int]:
        return (255 * seen[round(2 * chart.y(y)), round(2 * chart.x(x)), :3]).round().astype(int).tolist()

    assert at(3, 4) == [0x00, 0x72, 0xB2]
    assert at(3, 8.5) == at(5, 5) == at(1, 4) == [255, 255, 255]
    assert at(8, 5) == pytest.approx([255 - 0.75 * (255 - v) for v in (0xC8, 0x50, 0x0A)], abs=1)


def test_a_png_has_the_pixels_of_pictures_and_its_texts_where_they_belong():
    red, blue, green = [200, 0, 0], [0, 0, 200], [0, 200, 0]
    colours = np.array([[red, red, blue, blue], [green] * 4], dtype=np.uint8)
    chart = mosaic(colours, (2, 2), ["", ""], "label", names=["a name"], wide=100)
    seen = (255 * pixels(to_png(chart))).round().astype(int)
    assert seen[40, 5, :3].tolist() == red
    assert seen[100, 5, :3].tolist() == blue
    assert seen[40, -5, :3].tolist() == seen[100, -5, :3].tolist() == green
    assert seen[:36, :100, :3].min() < 150
    assert seen[:36, 120:, :3].min() == 255
    turned = heat_map(["one", "two"], np.array([[1.0, -1.0], [-1.0, 1.0]]), [["", ""], ["", ""]], "label")
    dark = pixels(to_png(turned))[-60:, :, :3].max(-1) < 0.4
    assert dark.any(1).sum() > 20  # names rise: they take many lines


# Numbers behind the figures


def test_bad_start_does_not_squash_the_curve():
    low, high = without_bad_start(np.array([-5000.0, *(-100 + epoch / 10 for epoch in range(2, 40))]))
    assert low > -120
    assert high > -96.2


def test_a_steady_rise_is_shown_whole():
    low, high = without_bad_start(np.arange(-30.0, -20.0), truth=-15.0)
    assert low < -30
    assert high > -15


@pytest.mark.parametrize(
    ("valid", "level", "word"),
    [
        (np.linspace(-30, -20, 50), "bad", "rose"),
        (np.concatenate([np.linspace(-30, -20, 20), np.linspace(-20, -26, 40)]), "bad", "fallen"),
        (np.concatenate([np.linspace(-30, -20, 20), np.full(60, -20.0)]), "good", "levelled"),
        (np.array([-3.0]), "note", "Too few"),
    ],
)
def test_trends_are_told(valid, level, word):
    found = trend(valid)
    assert found[0] == level
    assert word in found[1]


def test_a_chain_that_wanders_where_it_should_is_not_told_to_rise():
    """Stationary chains with a correlation of 0.9 from epoch to epoch; taken for white noise, 16 of 40 seem to rise. A
    true rise of 0.3 nats from the window before the last is told of half of them, where 0.2 is their spread."""
    told, rising = [], []
    for seed in range(40):
        kicks = np.random.default_rng(seed).standard_normal(300) * math.sqrt(1 - 0.9**2)
        values = np.array(list(itertools.accumulate(kicks, lambda at, kick: 0.9 * at + kick)))
        told.append(trend(-20 + 0.2 * values)[0] == "bad")
        rising.append(trend(-20 + 0.2 * values + 2.0 * np.arange(300) / 300)[0] == "bad")
    assert sum(told) <= 6
    assert sum(rising) >= 16


def test_curves_of_odd_records():
    """One epoch, one validation row (no error bar), log-likelihoods that are minus infinity."""
    for metrics in ([record(1, -3.0) | {"valid_stderr": np.nan}], [record(1, -np.inf), record(2, -3.0, "collect")]):
        ElementTree.fromstring(curve(metrics, None, 400))


def test_health_has_a_chart_for_what_the_records_have():
    bare = [record(1, -3.0), record(2, -3.0)]
    full = [record(epoch, -3.0, "collect", temperature=1.2, thermostat=0.1) for epoch in (1, 2)]
    assert [len(health_figures(metrics, 5)) for metrics in (bare, full)] == [1, 3]
    assert list(health(full, draws=1)) == ["temperature", "thermostat"]


def test_a_mixture_finds_what_independent_columns_cannot():
    """Two kinds of rows, all ones or all zeros but for 5 % of the bits: the best is near the entropy of that."""
    rng = np.random.default_rng(0)
    rows = (rng.random((600, 1)) < 0.5) ^ (rng.random((600, 8)) < 0.05)
    kinds = CellKinds(np.zeros(8, bool), np.ones(8, bool), np.zeros(8, bool), np.full(8, 0.5))
    alone, best = best_mixture(rows[:400], rows[400:500], kinds)
    test = rows[500:].astype(float)
    entropy = math.log(2) - 8 * (0.05 * math.log(0.05) + 0.95 * math.log(0.95))
    assert alone.log_prob(test).mean() == pytest.approx(-8 * math.log(2), abs=0.1)
    assert best.components > 1
    assert best.log_prob(test).mean() == pytest.approx(-entropy, abs=0.5)


def test_densities_of_mixtures_sum_to_one():
    """A bit and a category of three levels, all six values; and missing cells are summed out."""
    bit, level = np.array([True, False, False, False]), np.array([False, True, True, True])
    kinds = CellKinds(~(bit | level), bit, level, np.array([1 / 2, 1 / 3, 1 / 3, 1 / 3]))
    rng = np.random.default_rng(1)
    values = np.array([[bit, *np.eye(3)[level]] for bit in (0, 1) for level in range(3)])
    mixture = fit_mixture(values[rng.integers(0, 6, 50)], kinds, 3, rng)
    assert np.exp(mixture.log_prob(values)).sum() == pytest.approx(1)
    partial = values[:3].copy()
    partial[:, 0] = np.nan
    both = np.exp(mixture.log_prob(values)).reshape(2, 3).sum(0)
    np.testing.assert_allclose(np.exp(mixture.log_prob(partial)), both)


def test_simple_ways_impute_what_is_missing_only():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 1))
    rows = z + 0.1 * rng.normal(size=(300, 3))
    incomplete = rows[:40].copy()
    incomplete[:, 1] = np.nan
    errors = {}
    for way, found in simple_ways(rows[40:], incomplete).items():
        np.testing.assert_array_equal(found[:, [0, 2]], rows[:40][:, [0, 2]])
        errors[way] = np.sqrt(np.mean((found[:, 1] - rows[:40, 1]) ** 2))
    assert errors["regressions"] < 0.2 < errors["column alone"]
    assert errors["nearest rows"] < 0.3


def test_associations_and_distances():
    number, category = Column("n", "real"), Column("c", "category", ("x", "y"))
    rng = np.random.default_rng(0)
    a = rng.normal(size=500)
    groups = (a > 0).astype(float)
    assert association(number, a, number, -2 * a) == pytest.approx(-1)
    assert association(category, groups, category, 1 - groups) == pytest.approx(1)
    assert association(number, a, category, groups) == pytest.approx(math.sqrt(2 / math.pi), abs=0.05)
    assert abs(association(number, a, number, rng.normal(size=500))) < 0.15
    far, chance = distance(number, a, a + 2)
    assert far > 0.5 > chance
    same, chance = distance(number, a, rng.normal(size=500))
    assert same < chance + 0.05


def test_a_text_of_unknown_origin_is_escaped_in_charts():
    chart = heat_map(["<a>", "b&"], np.eye(2), [["<t>", ""], ["", ""]], "<label>")
    assert "&lt;a&gt;" in chart
    assert "<a>" not in chart
    assert "<label>" not in chart
    ElementTree.fromstring(standalone(chart))


# Figures


def test_grids_of_as_many_images_have_the_same_size_and_show_ink_on_paper():
    white, black = (pixels(figures.png(figures.image_grid(np.full((9, 64), v), (8, 8), "title"))) for v in (0, 1))
    assert white.shape == black.shape
    assert np.median(white[..., 0]) > 0.9
    assert np.median(black[..., 0]) < 0.2


def test_images_stand_where_they_belong():
    """Of 9 images only the last is ink: only the lower right corner of the picture is dark."""
    rows = np.zeros((9, 6))
    rows[-1] = 1
    dark = pixels(figures.png(figures.image_grid(rows, (2, 3))))[..., 0] < 0.5
    log_density, width = dark.shape
    inside = dark[int(0.78 * log_density) : int(0.97 * log_density), int(0.76 * width) : int(0.97 * width)]
    assert inside.all()
    assert not dark[: int(0.6 * log_density)].any()
    assert not dark[:, : int(0.6 * width)].any()


def test_weights_are_sorted_by_norm_on_a_scale_around_zero(run):
    model, theta = run.posterior().model, run.posterior().mean().clone()
    units = model.unflatten(theta)[0]["W"]  # a view: what is written here is in theta
    units.fill_(0.01)
    units[:, 7] = -1.0
    image = figures.weights(theta, model, (8, 8)).axes[0].images[0]
    picture = np.asarray(image.get_array())
    assert picture[0, 0] == -1
    assert picture[-1, 0] == pytest.approx(0.01)
    assert image.get_clim() == (-1, 1)


# Rows in files


@pytest.mark.parametrize("rows", [ROWS, ROWS.astype(bool), np.random.default_rng(1).normal(size=(7, 12)).astype("f4")])
def test_numbers_come_back_as_they_were(tmp_path, rows):
    for suffix in (".npz", ".npy", ".csv"):
        save_rows(tmp_path / "new" / f"rows{suffix}", rows, (3, 4))
    with np.load(tmp_path / "new" / "rows.npz") as file:
        np.testing.assert_array_equal(file["rows"], rows)
        assert tuple(file["shape"]) == (3, 4)
    np.testing.assert_array_equal(np.load(tmp_path / "new" / "rows.npy"), rows)
    np.testing.assert_array_equal(np.loadtxt(tmp_path / "new" / "rows.csv", delimiter=",", dtype=np.float32), rows)
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["rows.csv", "rows.npy", "rows.npz"]


def test_whole_numbers_have_no_decimals_in_csv(tmp_path):
    save_rows(tmp_path / "rows.csv", ROWS[:2, :4], (4,))
    assert (tmp_path / "rows.csv").read_text() == "\n".join(",".join(map(str, row[:4])) for row in ROWS[:2]) + "\n"


def test_what_is_saved_can_be_learnt_from(tmp_path):
    save_rows(tmp_path / "rows.npz", np.tile(ROWS, (3, 1)), (3, 4))
    data = load(tmp_path / "rows.npz")
    assert (data.shape, data.kind) == ((3, 4), "binary")


@pytest.mark.parametrize("shape", [(3, 4), (12,)])
def test_pictures(tmp_path, shape):
    for rows in (ROWS, ROWS * 3.5 - 1):
        save_rows(tmp_path / "rows.PNG", rows, shape)
        picture = pixels((tmp_path / "rows.PNG").read_bytes())
        assert 300 < max(picture.shape) < 1500
        assert picture[..., 0].std() > 0.1


def test_files_that_cannot_be_written(tmp_path):
    message = refusal(save_rows, tmp_path / "rows.jpg", ROWS, (12,))
    assert all(suffix in message for suffix in WRITERS)
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder" in refusal(save_rows, tmp_path / "folder.csv", ROWS, (12,))
    (tmp_path / "file").write_text("")
    assert "cannot write" in refusal(save_rows, tmp_path / "file" / "rows.csv", ROWS, (12,))
    assert "at most" in refusal(save_rows, tmp_path / "rows.png", np.zeros((10_001, 4)), (2, 2))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder.csv"]
