"""Reports: one page that needs nothing else, figures that can be looked at, and the numbers that were found."""

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

import doubly
from doubly import cli
from doubly.analysis.evaluation import FiledEvaluation
from doubly.analysis.report import _result, figures, make
from doubly.analysis.report.files import WRITERS, save_rows
from doubly.cli import parser
from doubly.core.errors import UserError
from doubly.data import load
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
    assert "<script" not in page
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert not re.search(r"https?://|url\(|@import|<link", page)


def test_page_shows_every_figure(run, made):
    page = made[1].read_text()
    names = {file.name for file in (run.path / "figures").iterdir()}
    assert names == {"training.png", "data.png", "samples.png", "weights.png", "chain.png"}
    assert page.count("data:image/png;base64,") == len(names)
    for name in names:
        log_density, width, _ = pixels((run.path / "figures" / name).read_bytes()).shape
        assert 300 < log_density < 1500, name
        assert 500 < width < 1500, name


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
    assert f"{found['log_likelihood']:.2f}" in page
    assert f"mean, K=20, {found['ess']:.1f} effective" in page


def test_every_setting_is_on_the_page_and_the_command_makes_the_run_again(run, made):
    page = made[1].read_text()
    for name in Config.__dataclass_fields__:
        assert f'<th scope="row">{name}</th>' in page
    command = re.search("<pre>(doubly .*?)</pre>", page)
    assert command
    parsed = parser._parse(shlex.split(command[1])[1:])
    assert {name: getattr(parsed, name) for name in Config.__dataclass_fields__} == vars(run.config)
    assert parsed.out == str(run.path)


def test_nothing_else_of_the_run_is_touched_and_making_again_gives_the_same(run, made):
    before = everything(run.path)
    table, _ = make(run.path)
    assert table == made[0]
    assert everything(run.path) == before


def test_tables_are_not_shown_as_pictures(tmp_path, capsys):
    """And what comes from the user, such as the name of a file, is text, not HTML."""
    rows = np.random.default_rng(0).integers(0, 2, (200, 5))
    np.savetxt(tmp_path / "a<b>&c.csv", rows, fmt="%d", delimiter=",")
    run = doubly.fit(tmp_path / "run", data=str(tmp_path / "a<b>&c.csv"), hidden=(3,), **FIT)
    cli.main(["report", str(run.path)])
    page = (run.path / "report.html").read_text()
    assert {file.name for file in (run.path / "figures").iterdir()} == {"training.png", "columns.png", "chain.png"}
    assert "a&lt;b&gt;&amp;c" in page
    assert "<b>" not in page
    assert "5 columns" in capsys.readouterr().out


def test_nothing_hidden_is_exact():
    found = FiledEvaluation(log_likelihood=-9.0, stderr=0.1, draws=20, ess=1.0, split="test", of="mean", truth=-8.5)
    assert _result(found, exact=True).how == "mean, exact; truth -8.50"
    assert figures.health([record(1, -9.0)], draws=1) == {}


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


def test_other_evaluations_are_told_in_words_and_damaged_ones_refused(tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(4,), **FIT)
    (run.path / "evaluations").mkdir()
    older = {"log_likelihood": -9.0, "stderr": 0.1, "draws": 20, "effective": 1.5, "split": "test", "of": "mean"}
    (run.path / "evaluations" / "older.json").write_text(json.dumps(older))
    assert re.search(r"test log-likelihood +-9.00 ± 0.10 +\(mean, K=20, 1.5 effective\)", make(run.path)[0])
    (run.path / "evaluations" / "imputed.json").write_text('{"accuracy": 0.912345, "n": 3}')
    assert re.search("imputed +accuracy 0.9123, n 3", make(run.path)[0])
    (run.path / "evaluations" / "broken.json").write_text('{"accuracy": ')
    assert "broken.json" in refusal(make, run.path)


# Figures


def test_bad_start_does_not_squash_the_curve():
    metrics = [record(1, -5000.0), *(record(epoch, -100 + epoch / 10) for epoch in range(2, 40))]
    low, high = figures.training_curve(metrics).axes[0].get_ylim()
    assert low > -120
    assert high > -96


def test_a_steady_rise_is_shown_whole():
    metrics = [record(epoch, -30.0 + epoch) for epoch in range(1, 11)]
    low, high = figures.training_curve(metrics, truth=-15.0).axes[0].get_ylim()
    assert low < -30
    assert high > -15


def test_curves_of_odd_records():
    """One epoch, one validation row (no error bar), log-likelihoods that are minus infinity."""
    for metrics in ([record(1, -3.0) | {"valid_stderr": np.nan}], [record(1, -np.inf), record(2, -3.0, "collect")]):
        assert pixels(figures.png(figures.training_curve(metrics))).std() > 0


def test_health_has_a_panel_for_what_the_records_have():
    bare = [record(1, -3.0), record(2, -3.0)]
    full = [record(epoch, -3.0, "collect", temperature=1.2, thermostat=0.1) for epoch in (1, 2)]
    assert [len(figures.chain_health(metrics, 5).axes) for metrics in (bare, full)] == [1, 3]
    assert list(figures.health(full, draws=1)) == ["temperature", "thermostat"]


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
    assert not figures.has_weight_images(model, (64,))


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
