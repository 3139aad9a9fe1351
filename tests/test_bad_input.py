"""What users get wrong, tried as they would: one line that names the place and the cure, and nothing half-written."""

import importlib.util
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import doubly
from doubly import cli
from doubly.data import formats, load, read_rows
from doubly.runs.config import from_dict
from test_cli import refused
from test_data import refusal

HEADER = "colour,age,income,member\n"
QUICK = ["--refit", "1", "--draws", "2"]
needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is an extra")


@pytest.fixture(scope="module")
def table_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    rng = np.random.default_rng(0)
    lines = [
        f"{('red', 'blue')[i % 2]},{20 + i % 30},{rng.normal(5, 1):.3f},{('true', 'false')[i % 2]}" for i in range(40)
    ]
    (folder / "good.csv").write_text(HEADER + "\n".join(lines) + "\n")
    doubly.fit(
        folder / "run",
        data=folder / "good.csv",
        model="gaussian:widths=4,normal",
        proposal="gaussian:widths=4",
        hidden=(2,),
        step=1e-4,
        epochs=2,
        collect=1,
        quiet=True,
    )
    return folder / "run"


# Files of rows, for a run that knows its columns


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "colour,age,member\nred,30,true\n", "has no column 'income': give the columns colour, age, income"),
        ("a.csv", HEADER + "pink,30,5,true\n", "line 2, column 1 of"),
        ("a.csv", HEADER + "red,thirty,5,true\n", "line 2, column 2 of"),
        ("a.csv", HEADER + "red,30,5,true\nred,30,inf,true\n", "line 3, column 3 of"),
        ("a.csv", "income,member,colour,age\n1e39,true,red,30\n", "line 2, column 1 of"),
        ("a.csv", HEADER, "has a header but no rows"),
        ("a.csv", "", "is empty"),
        ("a.csv", HEADER + "red,30,5\n", "line 2 of"),
        ("a.csv", "age,age\n1,2\n", "2 columns called 'age'"),
        ("a.npy", "", "may be damaged"),
        pytest.param("a.parquet", "PAR1", "may be damaged", marks=needs_pyarrow),
        ("a.xlsx", "", "may be damaged"),
        ("a.ods", "", "expected a file ending in .npz, .npy or .csv"),
    ],
)
@pytest.mark.parametrize("command", ["impute", "evaluate"])
def test_rows_that_do_not_fit(command, name, content, said, table_run, capsys, tmp_path):
    (tmp_path / name).write_text(content)
    out = ["--out", str(tmp_path / "out.csv")] if command == "impute" else []
    line = refused(capsys, command, str(table_run), "--input", str(tmp_path / name), *out, *QUICK)
    assert said in line
    assert str(tmp_path / name) in line
    assert not (tmp_path / "out.csv").exists()


def test_columns_that_a_run_does_not_know_are_left_out_and_named(table_run, capsys, tmp_path):
    (tmp_path / "a.csv").write_text("height,colour,age,income,member\n180,red,30,,true\n")
    rows = ["--input", str(tmp_path / "a.csv")]
    cli.main(["impute", str(table_run), *rows, "--out", str(tmp_path / "OUT.CSV"), *QUICK])
    assert "left out: height" in capsys.readouterr().out
    assert (tmp_path / "OUT.CSV").read_text().startswith(HEADER + "red,30,")
    cli.main(["evaluate", str(table_run), "--input", str(tmp_path / "OUT.CSV"), "--by", "draws", *QUICK])
    assert "left out" not in capsys.readouterr().err


def test_rows_and_columns_of_which_nothing_is_there_are_filled_in(table_run, capsys, tmp_path):
    (tmp_path / "a.csv").write_text(HEADER + ",,,\nred,30,,true\n")
    cli.main(["impute", str(table_run), "--input", str(tmp_path / "a.csv"), "--out", str(tmp_path / "b.csv"), *QUICK])
    assert "note: 1 rows had no value at all" in capsys.readouterr().out
    assert not np.isnan(read_rows(tmp_path / "b.csv", doubly.Run(table_run).columns).rows).any()


@pytest.mark.parametrize("command", ["sample", "impute"])
def test_a_place_that_cannot_be_written(command, table_run, capsys, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("")
    rows = ["--input", str(table_run.parent / "good.csv"), *QUICK] if command == "impute" else []
    for place, said in (("folder.csv", "it is a folder"), ("file/out.csv", "choose another place")):
        assert said in refused(capsys, command, str(table_run), *rows, "--out", str(tmp_path / place))


# Files of any kind


def test_folders_are_named_as_such(tmp_path):
    (tmp_path / "a.csv").mkdir()
    for folder in (tmp_path, tmp_path / "a.csv"):
        assert f"{folder} is a folder" in refusal(load, folder)


@pytest.mark.parametrize("name", ["a.npy", "a.csv", "a.parquet", "a.mat", "a.amat", "a-ubyte"])
def test_files_beyond_memory_are_refused_before_they_are_read(name, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "free_memory", lambda: 8e9)
    with open(tmp_path / name, "wb") as file:
        file.truncate(10**11)  # a hole, which takes no room on the disk
    spec = f"{tmp_path / name}:stored=false" if name == "a.npy" else tmp_path / name  # which would stay in its file
    assert "holds 100.0 GB, which needs about 200.0 GB of memory, and 8.0 GB are free" in refusal(load, spec)


def test_arrays_beyond_memory_are_refused_before_they_are_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((1000, 100)))
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        size = archive.infolist()[0].file_size
    monkeypatch.setattr(formats, "free_memory", lambda: 2 * size - 1)
    assert "of memory" in refusal(load, tmp_path / "a.npz")
    monkeypatch.setattr(formats, "free_memory", lambda: 2 * size)
    assert load(tmp_path / "a.npz").width == 100


def test_memory_is_known_where_tests_run():
    assert 1e8 < formats.free_memory() < 1e14


def test_a_header_that_asks_for_all_memory(tmp_path):
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 10)})
    assert "does not fit into memory, or is damaged" in refusal(load, tmp_path / "a.npy")


# Run folders


def without(name):
    return lambda facts: {key: value for key, value in facts.items() if key != name}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda facts: facts | {"hidden": "many"}),
        ("config.json", lambda facts: facts | {"model": 3}),
        ("config.json", lambda facts: facts | {"step": "0.1"}),
        ("config.json", lambda facts: facts | {"nosuch": 3}),
        ("config.json", lambda facts: facts | {"hidden": [7]}),
        ("data.json", without("width")),
        ("data.json", without("columns")),
        ("data.json", without("sha256")),
        ("data.json", lambda facts: facts | {"width": "x"}),
        ("data.json", lambda facts: facts | {"shape": 3}),
        ("data.json", lambda facts: facts | {"columns": [{"name": "a"}]}),
        ("data.json", lambda facts: facts | {"kind": "odd"}),
    ],
)
def test_damaged_facts_are_told_by_their_file(name, change, table_run, tmp_path):
    folder = shutil.copytree(table_run, tmp_path / "run")
    (folder / name).write_text(json.dumps(change(json.loads((folder / name).read_text()))))
    assert name in refusal(look_at, folder)


def look_at(folder: Path) -> None:
    run = doubly.Run(folder)
    assert run.columns
    run.posterior()
    run.data()


@pytest.mark.parametrize("content", [b"\xff\n", b"[]\n", b"{}\n"])
def test_damaged_records_are_told_by_their_file_and_never_needed_to_go_on(content, table_run, capsys, tmp_path):
    folder = shutil.copytree(table_run, tmp_path / "run")
    file = folder / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(content + b"".join(lines[1:]))
    for command in ("report", "resume"):
        doubly.cli.main([command, str(folder)])
        assert "metrics.jsonl is damaged: 1 of its lines are left out" in capsys.readouterr().err
        file.write_bytes(content + b"".join(lines[1:]))
    file.write_bytes(content)
    with pytest.raises(SystemExit):
        doubly.cli.main(["report", str(folder)])
    assert "has finished no epoch yet" in capsys.readouterr().err


# From Python


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"hidden": 200}, "hidden must be a list of whole numbers, as in (200,), got 200"),
        ({"hidden": (2.5,)}, "got (2.5,)"),
        ({"step": "0.1"}, "step must be a number, or auto, got '0.1'"),
        ({"epochs": 2.5}, "epochs must be a whole number, got 2.5"),
        ({"resample": "yes"}, "resample must be true or false, got 'yes'"),
        ({"prior": None}, "prior must be a text, got NoneType"),
    ],
)
def test_settings_of_a_wrong_type(setting, said, tmp_path):
    assert said in refusal(lambda: doubly.fit(tmp_path / "run", **setting))
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_are_settings():
    settings = {"hidden": np.array([3, 4]), "step": np.float32(0.5), "epochs": np.int64(3), "resample": np.True_}
    config = from_dict(settings)
    assert json.dumps([config.hidden, config.step, config.epochs, config.resample]) == "[[3, 4], 0.5, 3, true]"


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.ones((2, 3)) * 1j, "got type complex128"),
        (np.array([["a", "b", "c"]], dtype=object), "got type object"),
        (np.array([["1", "2", "3"]]), "got type <U1"),
        (np.zeros((2, 3), dtype="datetime64[D]"), "got type datetime64"),
        (np.ones((2, 4)), "have 3 columns, got an array of shape (2, 4)"),
        (np.ones((0, 3)), "give at least one"),
        ([[1, 2, 3], [4]], "rows of different lengths"),
        ({"a": 1}, "shape ()"),
        (np.array([[0, 1, np.inf]]), "row 0, column 2 is inf"),
        (np.array([[0, 1, 1e39]]), "row 0, column 2 is 1e+39"),
    ],
)
def test_a_posterior_refuses_what_are_no_rows(x, said):
    X = np.random.default_rng(0).normal(size=(30, 3))
    model = doubly.DeepGenerativeModel(hidden=(2,), epochs=1, collect=1, keep=1, refit=0, random_state=0).fit(X)
    for ask in (model.posterior_.impute, model.posterior_.log_likelihood):
        assert said in refusal(ask, x)
    assert "at least 1, and whole" in refusal(model.impute, X, draws=2.5)


def test_dates_are_no_numbers():
    dates = np.arange(12).astype("datetime64[D]").reshape(4, 3)
    assert "datetime64" in refusal(doubly.DeepGenerativeModel().fit, dates)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"day": dates[:, 0], "x": np.arange(4.0)})
    assert "dates among its numbers" in refusal(doubly.DeepGenerativeModel().fit, frame)
