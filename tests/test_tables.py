"""Tables as they are: read, told, learnt from the command line, and answered without the file."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from doubly import UserError, cli
from doubly.analysis.accuracy import _errors
from doubly.analysis.impute import _cells, _hidden
from doubly.core.sealed import dump_json
from doubly.data import Column, Columns, guess, load, read_rows
from doubly.data.columns import sheet_of
from doubly.data.text import original, read_csv
from doubly.posterior.estimates import ScoreConfig
from doubly.runs.folder import Run

HEAD = "id,when,kind,grade,yes,size,note,same\n"


def table(n: int = 60, seed: int = 0, missing: float = 0.1) -> str:
    """Every kind of column: size depends on kind and grade; a tenth of the cells is missing."""
    rng = np.random.default_rng(seed)
    lines = [HEAD]
    for i in range(n):
        kind, grade = rng.integers(3), rng.integers(1, 5)
        size = 20.0 + 5 * kind + 2 * grade + rng.normal()
        cells = [["red", "blue", "dark red"][kind], str(grade), str(rng.integers(2)), f"{size:.1f}"]
        cells = ["" if rng.random() < missing else cell for cell in cells]
        lines.append(f"{100 + i},2024-01-{i % 28 + 1:02d},{','.join(cells)},remark {i},x\n")
    return "".join(lines)


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    (folder / name).write_bytes(text.encode())
    return folder / name


# Kinds


def test_kinds_are_guessed_and_told():
    sheet = sheet_of({
        "id": list(range(7, 67)), "city": ["a", "b", None] * 20, "grade": [1, 2, 5] * 20, "bit": [0, 1, None] * 20,
        "count": list(range(0, 120, 2)), "real": [i / 8 for i in range(60)], "name": [f"n {i}" for i in range(60)],
        "day": ["2020-01-02"] * 59 + ["2021-12-31 10:00"], "one": [3] * 60, "none": [None] * 60,
        "flag": [True, False] * 30,
    })  # fmt: skip
    kinds = guess(sheet)
    assert {column.name: column.kind for column in kinds.columns.columns} == {
        "city": "category", "grade": "ordinal", "bit": "binary", "count": "integer", "real": "real", "flag": "category",
    }  # fmt: skip
    assert {each.name: each.why.split(":")[0] for each in kinds.left_out} == {
        "id": "whole numbers that count the rows", "name": "60 different texts in 60 rows",
        "day": "dates or times, which are not modelled", "one": "always 3", "none": "has no value in any row",
    }  # fmt: skip
    assert kinds.missing == (20, 0, 20, 0, 0, 0)
    assert kinds.columns.layout() == "c2-o3-b-2r-c2"
    lines = kinds.text().splitlines()
    assert len(lines) == 1 + 11
    assert lines[1].split() == ["city", "category", "20", "a,", "b"]


def test_columns_are_scaled_inside_and_come_back_in_their_units():
    values = {"x": [1000.5, 1010.0, None, 990.5] * 5, "grade": [3, 1, None, 2] * 5, "c": ["a", None, "b", "b"] * 5}
    columns = guess(sheet_of(values)).columns
    rows = columns.encode(values)
    assert columns == Columns.from_json(json.loads(json.dumps(columns.as_json())))
    np.testing.assert_allclose(np.nanmean(rows[:, 0]), 0, atol=1e-12)
    np.testing.assert_allclose(np.nanstd(rows[:, 0]), 1, atol=1e-12)
    assert columns.decode(rows) == values
    assert columns.decode([[0.001, 0.2, 0.3, 0.5, 0.4, 0.6]]) == {"x": [1000.3], "grade": [2], "c": ["b"]}
    assert columns.log_scale.tolist() == [math.log(columns.columns[0].scale), 0, 0, 0, 0, 0]


def test_what_version_0_1_wrote_of_columns_is_what_is_written_now():
    plain = Columns.of({"c": ["a", "b"], "x": [1.5, 2]})
    assert all(set(entry) == {"name", "kind", "levels", "constant"} for entry in plain.as_json())


@pytest.mark.parametrize("field", [{"scale": 0.0}, {"scale": math.inf}, {"offset": math.nan}, {"kind": "odd"}])
def test_columns_from_a_file_are_checked(field):
    entry = {"name": "x", "kind": "real", "levels": [], "constant": False} | field
    with pytest.raises(UserError, match="damaged"):
        Columns.from_json([entry])


def test_new_levels_are_missing_and_counted(tmp_path):
    columns = Columns((Column("c", "category", ("a", "b")), Column("x", "real", offset=1.0, scale=2.0)))
    found = read_rows(written(tmp_path, "c,x\na,3\nz,?\ny,5\n"), columns)
    np.testing.assert_array_equal(found.rows, [[1, 0, 1], [np.nan, np.nan, np.nan], [np.nan, np.nan, 2]])
    assert found.new_levels == {"c": 2}
    assert "never seen are taken as missing: c (2 cells)" in found.note


# Files as they are


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("a;b\n1.5;x\n2;y\n", "t.csv", {}),
        ("a\tb\n1.5\tx\n2\ty\n", "t.tsv", {}),
        ("a\tb\n1.5\tx\n2\ty\n", "t.csv", {}),
        ("a;b\n1,5;x\n2;y\n", "t.csv", {"decimal": "comma"}),
        ('a,b\n"1.5",x\n2,"y"\n', "t.csv", {}),
        ("a,b\n1.5,x\n2,y\n", "t.csv", {"separator": "comma"}),
    ],
)
def test_separators_and_decimal_commas(text, name, options, tmp_path):
    sheet = read_csv(written(tmp_path, text, name), **options)
    assert sheet.names == ("a", "b")
    assert [column.tolist() for column in sheet.columns] == [[1.5, 2.0], ["x", "y"]]


def test_thousands_with_points_and_decimal_commas(tmp_path):
    sheet = read_csv(written(tmp_path, "a;b\n1.234,5;1,2\n-3;2\n"), decimal="comma")
    assert [column.tolist() for column in sheet.columns] == [[1234.5, -3.0], [1.2, 2.0]]


def test_markers_of_missing_cells_are_found_and_told(tmp_path):
    path = written(tmp_path, "n,t,u\n1,?,-\n?,a,b\n-,b,null\n2,b,c\n")
    sheet = read_csv(path, sniffed=True)
    assert np.isnan(sheet.columns[0]).tolist() == [False, True, True, False]
    assert sheet.columns[1].tolist() == [None, "a", "b", "b"]
    assert sheet.columns[2].tolist() == ["-", "b", None, "c"], "a dash among words may be a word"
    assert sheet.notes == (
        "'?' is taken as missing (2 cells)",
        "'-' is taken as missing (1 cells)",
        "'null' is taken as missing (1 cells)",
    )
    assert read_csv(path).columns[0].tolist() == ["1", "?", "-", "2"]


@pytest.mark.parametrize("option", ["separator=dot", "decimal=dot", "columns=many", "binarise=threshold,columns=mixed"])
def test_options_that_cannot_be_are_refused(option, tmp_path):
    with pytest.raises(UserError):
        load(f"{written(tmp_path, table())}:{option}")


MESSY = 'a, b ,"c ""x"""\r\n1,,"q,r"\r\n\r\n"mul\nti",NA,  \r\n 3 ,"",z'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "latin-1"])
def test_cells_are_changed_in_place_and_every_other_byte_stays(encoding, tmp_path):
    text = MESSY + "é"
    content = (("\ufeff" if encoding.startswith("utf-16") else "") + text).encode(encoding)
    (tmp_path / "t.csv").write_bytes(content)
    found = original(tmp_path / "t.csv")
    assert [len(record) for record in found.spans] == [3, 3, 3, 3]
    cells = [[found.text[slice(*span)] for span in record] for record in found.spans]
    assert cells[1] == ["1", "", '"q,r"']
    assert cells[2] == ['"mul\nti"', "NA", "  "]
    assert found.with_cells({}) == content
    changed = found.with_cells({(1, 1): "5", (2, 2): "a,b"}).decode(encoding).lstrip("\ufeff")
    assert changed == text.replace('1,,"q', '1,5,"q').replace("NA,  \r", 'NA,"a,b"\r')


# From the command line


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A short fit of a mixed table, whose file is then moved away."""
    folder = tmp_path_factory.mktemp("table")
    path = written(folder, table())
    cli.main(["fit", "--data", str(path), "--out", str(folder / "run"), "--epochs", "6", "--threads", "1"])
    path.rename(folder / "moved.csv")
    return folder


def test_a_mixed_table_is_fitted_without_a_word_on_the_model(fitted):
    run = Run(fitted / "run")
    assert run.config.model.startswith("mixed:columns=c3-o4-b-r,widths=50,normal")
    assert run.config.data.endswith("t.csv:columns=mixed")
    assert run.columns is not None
    assert [column.name for column in run.columns.columns] == ["kind", "grade", "yes", "size"]


def test_a_run_answers_without_its_table(fitted, tmp_path, capsys):
    run, moved = str(fitted / "run"), str(fitted / "moved.csv")
    cli.main(["sample", run, "-n", "5", "--out", str(tmp_path / "s.csv")])
    sizes = [float(line.split(",")[3]) for line in (tmp_path / "s.csv").read_text().splitlines()[1:]]
    assert all(10 < size < 60 for size in sizes)
    how = ["--refit", "1", "--draws", "4", "--threads", "1"]
    cli.main(["impute", run, "--input", moved, "--out", str(tmp_path / "i.csv"), "--sweeps", "2", *how])
    lines = (tmp_path / "i.csv").read_text().splitlines()
    assert lines[0] == "kind,grade,yes,size"
    assert all(all(cell for cell in line.split(",")) for line in lines)
    capsys.readouterr()
    cli.main(["evaluate", run, "--input", moved, "--json", *how, "--by", "draws", "--no-settle"])
    assert math.isfinite(json.loads(capsys.readouterr().out)["log_likelihood"])


def test_scores_are_in_the_units_of_the_table(fitted, tmp_path, capsys):
    """The same rows with sizes a thousand times as large: log p is lower by log 1000 for each size that is there."""
    scores = []
    for factor in (1, 1000):
        folder = tmp_path / str(factor)
        shutil.copytree(fitted / "run", folder)
        facts = json.loads((folder / "data.json").read_text())
        size = facts["columns"][3]
        size |= {"offset": size["offset"] * factor, "scale": size["scale"] * factor}
        del facts["seal"]
        (folder / "data.json").write_bytes(dump_json(facts))
        path = written(tmp_path, f"kind,grade,yes,size\nred,1,0,{25 * factor}\nblue,2,,{30 * factor}\nblue,3,1,\n")
        capsys.readouterr()
        how = ["--refit", "1", "--draws", "20", "--threads", "1", "--rows", str(tmp_path / "rows.csv"), "--json"]
        cli.main(["evaluate", str(folder), "--input", str(path), *how, "--by", "draws", "--no-settle"])
        lines = (tmp_path / "rows.csv").read_text().splitlines()[1:]
        scores.append([float(line.split(",")[1]) for line in lines])
    difference = np.array(scores[0]) - np.array(scores[1])
    np.testing.assert_allclose(difference, [math.log(1000), math.log(1000), 0], atol=1e-4)


def test_annealed_scores_are_in_the_units_of_the_table_too(fitted, capsys):
    """Draws and annealing are bounds on the same density, so that their difference is free of units: what annealing is
    ahead by is less than log scale, which was added to one of them only before."""
    run = Run(fitted / "run")
    assert run.columns is not None
    how = ["--ais", "20", "--ais-rows", "6", "--refit", "1", "--draws", "200", "--threads", "1", "--json"]
    cli.main(["evaluate", str(fitted / "run"), *how, "--by", "draws", "--no-settle"])
    found = json.loads(capsys.readouterr().out)
    assert found["annealed"]["log_likelihood"] < found["log_likelihood"] + 5
    scale = run.columns.columns[3].scale
    assert scale > 4
    assert abs(found["annealed"]["above_score"]) < math.log(scale) / 2


def test_whole_cells_are_hidden_and_compared_in_their_own_measure(fitted):
    run = Run(fitted / "run")
    assert run.columns is not None
    sources = run.columns.sources
    hidden = _hidden("random", 50, run.data(), 0.5, 0)
    for at in range(4):
        entries = hidden[:, sources == at]
        assert (entries.all(1) == entries.any(1)).all()
        assert 0 < entries[:, 0].mean() < 1
    assert _cells(hidden, run.data()) == sum(hidden[:, sources == at].any(1).sum() for at in range(4))
    truth = run.columns.encode({"kind": ["red", "blue"], "grade": [1, 2], "yes": [0, 1], "size": [25.0, 30.0]})
    wrong = run.columns.encode({"kind": ["red", "red"], "grade": [1, 2], "yes": [1, 1], "size": [25.0, 30.0]})
    wrong[:, 8] += [0.3, 0.4]
    found = _errors(wrong, truth, np.ones(truth.shape, dtype=bool), False, run.columns)
    assert found.error_rate == 2 / 6
    assert found.rmse == pytest.approx(math.sqrt((0.09 + 0.16) / 2))


def test_an_ensemble_can_be_asked_of_a_mixed_table(fitted):
    """A row of zeros, which was tried out, is none of a table with categories."""
    posterior = Run(fitted / "run").posterior()
    assert posterior._scorer(ScoreConfig("draws"), 0, "ensemble").annealing is None


def test_fill_and_odd_answer_by_a_run_without_its_table(fitted, tmp_path, capsys):
    """New rows, one of them with a level that the run has never seen and one with an impossible size."""
    lines = ["who,kind,grade,yes,size", "ann,red,1,0,22.5", "bob,pink,2,1,24.5", "cy,blue,4,1,", "di,blue,3,0,999.5"]
    path = written(tmp_path, "\n".join(lines) + "\n", "new.csv")
    cli.main(["fill", str(path), "--from-run", str(fitted / "run"), "--out", str(tmp_path / "out.csv")])
    said = capsys.readouterr()
    assert "never seen are taken as missing: kind (1 cells)" in said.err
    after = (tmp_path / "out.csv").read_text().splitlines()
    assert [after[i] for i in (0, 1, 2, 4)] == [lines[i] for i in (0, 1, 2, 4)], "what was there stays, new levels too"
    assert 0 < float(after[3].split(",")[4]) < 100
    cli.main(["odd", str(path), "--from-run", str(fitted / "run"), "-n", "1"])
    assert "line 5, who di" in (out := capsys.readouterr().out)
    assert "size is 999.5, expected" in out
    path = written(tmp_path, "kind,grade,yes\nred,1,0\n", "less.csv")
    with pytest.raises(SystemExit):
        cli.main(["odd", str(path), "--from-run", str(fitted / "run")])
    assert "has no column 'size'" in capsys.readouterr().err


def test_a_model_that_cannot_draw_the_table_is_said_to_be_replaced(tmp_path, capsys):
    path = written(tmp_path, table(30))
    cli.main(["fit", "--data", str(path), "--out", str(tmp_path / "r"), "--model", "sbn", "--epochs", "1"])
    assert "not all cells are 0 or 1, which is all that sbn can draw" in capsys.readouterr().err


def test_tampered_rows_are_refused(fitted, tmp_path):
    shutil.copytree(fitted / "run", tmp_path / "run")
    content = bytearray((tmp_path / "run" / "rows.safetensors").read_bytes())
    content[-1] ^= 64
    (tmp_path / "run" / "rows.safetensors").write_bytes(bytes(content))
    with pytest.raises(UserError, match=r"rows\.safetensors is damaged: its SHA-256"):
        Run(tmp_path / "run").data()


def test_settings_that_are_said_stay(tmp_path, capsys):
    path = written(tmp_path, table(30))
    how = ["--epochs", "4", "--model", "mixed:noise=student-t,sbn", "--hidden", "5", "--proposal", "sbn"]
    cli.main(["fit", "--data", str(path), "--out", str(tmp_path / "r"), "--objective", "wake-sleep", *how])
    config = Run(tmp_path / "r").config
    assert config.model == "mixed:columns=c3-o4-b-r,noise=student-t,sbn"
    assert (config.hidden, config.proposal, config.epochs) == ((5,), "sbn", 4)


def test_a_table_of_bits_is_what_it_was(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "bits.csv"
    np.savetxt(path, rng.integers(0, 2, (40, 5)), fmt="%d", delimiter=",")
    cli.main(["fit", "--data", str(path), "--out", str(tmp_path / "r"), "--epochs", "2", "--hidden", "3"])
    assert Run(tmp_path / "r").config.model == "sbn"
