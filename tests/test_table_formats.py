"""Tables in workbooks, pictures in folders, tables in memory: read, bounded, refused in a line."""

import datetime
import gc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import doubly
from doubly import UserError
from doubly.analysis.table_files import complete_file, read
from doubly.data import load, workbooks
from doubly.data.files import Options, from_memory, read_sheet
from doubly.data.formats import CELL
from test_data import refusal

MIXED = Options(columns="mixed")
DAY = datetime.datetime(2024, 1, 2)
ROWS: list[list[Any]] = [
    ["id", "when", "size", "kind", "ok", "note"],
    *(
        [100 + i, DAY, 1.5 + i if i % 5 else None, "ab"[i % 2], i % 3 == 0, "?" if i == 3 else "n" * i]
        for i in range(1, 9)
    ),
]


def workbook(path: Path, *sheets: list[list[Any]]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, rows in enumerate(sheets, 1):
        sheet = book.create_sheet(f"sheet {number}")
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


# Workbooks


def test_a_workbook_is_read_as_a_text_is(tmp_path):
    path = workbook(tmp_path / "a.xlsx", [[], *ROWS], [["x", "y"], [1, 2.5], [2, None], [4, 3]])
    sheet = read_sheet(path, MIXED)
    assert sheet.names == ("id", "when", "size", "kind", "ok", "note")
    assert sheet.lines.tolist() == list(range(3, 11)), "as the program counts rows"
    assert sheet.columns[1].tolist() == ["2024-01-02"] * 8
    assert sheet.columns[2].tolist()[:4] == [2.5, 3.5, 4.5, 5.5]
    assert np.isnan(sheet.columns[2][4])
    assert sheet.columns[4].tolist()[:3] == ["False", "False", "True"]
    assert sheet.notes == ("'?' is taken as missing (1 cells)",)
    other = read_sheet(path, Options(sheet="sheet 2"))
    np.testing.assert_array_equal(other.columns[1], [2.5, np.nan, 3])
    assert "there are: sheet 1, sheet 2" in refusal(read_sheet, path, Options(sheet="sheet 3"))
    assert "only texts" in refusal(read_sheet, path, Options(decimal="comma"))
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert "only workbooks" in refusal(read_sheet, tmp_path / "t.csv", Options(sheet="x"))


def test_formulas_are_never_evaluated(tmp_path):
    """The value that was stored counts; none was, for no program has computed it."""
    path = workbook(tmp_path / "a.xlsx", [["x", "y"], [1, "=1+1"], [2, "=A1"], [3, "=HYPERLINK(1)"]])
    assert np.isnan(read_sheet(path, MIXED).columns[1]).all()


@pytest.mark.parametrize(
    ("rows", "said"),
    [([], "has no cells"), ([["a", "b"]], "a header but no rows"), ([["a", "a"], [1, 2]], "2 columns")],
)
def test_workbooks_without_a_table_are_one_line(rows, said, tmp_path):
    assert said in refusal(read_sheet, workbook(tmp_path / "a.xlsx", rows), MIXED)


def test_workbooks_are_bounded_and_damage_is_one_line(tmp_path, monkeypatch):
    path = workbook(tmp_path / "a.xlsx", ROWS)
    monkeypatch.setattr(workbooks, "MOST_CELLS", 20)
    assert "more than 20 cells" in refusal(read_sheet, path, MIXED)
    monkeypatch.setattr(workbooks, "MOST_PARTS", 2)
    assert "at most 2 are read" in refusal(read_sheet, path, MIXED)
    monkeypatch.undo()
    with zipfile.ZipFile(tmp_path / "bomb.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/worksheets/sheet1.xml", b"0" * 10**7)
    monkeypatch.setattr("doubly.data.formats.free_memory", lambda: 10.0**7)
    assert "bomb.xlsx holds 0.0 GB" in refusal(read_sheet, tmp_path / "bomb.xlsx", MIXED)
    monkeypatch.undo()
    (tmp_path / "b.xlsx").write_bytes(path.read_bytes()[:500])
    assert "may be damaged" in refusal(read_sheet, tmp_path / "b.xlsx", MIXED)


def test_one_cell_far_to_the_right_does_not_make_every_row_as_wide(tmp_path, monkeypatch):
    """10 cells are written, of 5 rows that would be 6 wide each."""
    path = workbook(tmp_path / "a.xlsx", [["x"], [1], [2], [3], [4, "", "", "", "", 5]])
    monkeypatch.setattr(workbooks, "MOST_CELLS", 29)
    assert "more than 29 cells" in refusal(read_sheet, path, MIXED)
    monkeypatch.setattr(workbooks, "MOST_CELLS", 30)
    looked: list[int] = []
    monkeypatch.setattr(workbooks, "check_memory", lambda _, size: looked.append(size // CELL))
    monkeypatch.setattr(workbooks, "_check_parts", lambda _: None)
    monkeypatch.setattr(workbooks, "CHECKED", 2)
    read_sheet(path, MIXED)
    assert looked == [3, 10, 30], "after more than two cells each time, and before rows are filled up"


def test_a_workbook_is_completed_into_a_text(tmp_path):
    path = workbook(tmp_path / "a.xlsx", ROWS)
    found = complete_file(f"{path}:drop=note", str(tmp_path / "out.csv"), epochs=1)
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "id,when,size,kind,ok,note"
    assert lines[1] == "101,2024-01-02,2.5,b,False,n"
    assert found.completed == 1
    assert lines[5].split(",")[2]


def test_parquet_is_completed_into_a_text(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"x": [1.0, None, 3, 4, 5, 6, 7], "k": list("abababa")})
    frame.to_parquet(tmp_path / "a.parquet")
    complete_file(str(tmp_path / "a.parquet"), str(tmp_path / "out.csv"), epochs=1)
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[:2] == ["x,k", "1,a"]
    assert lines[2].split(",")[0]


# Pictures


def pictures(folder: Path, number: int = 6, mode: str = "L", size: tuple[int, int] = (3, 2)) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(number):
        grey = Image.fromarray(rng.integers(0, 256, size[::-1], dtype=np.uint8))
        grey.convert(mode).save(folder / f"p{i:02d}.png")
    return folder


def test_a_folder_of_grey_pictures_is_a_data_set(tmp_path):
    data = load(pictures(tmp_path / "a", 20), binarise="threshold")
    assert (data.shape, data.kind, len(data.train)) == ((2, 3), "binary", 16)
    for split, number in (("train", 5), ("valid", 2), ("test", 3)):
        pictures(tmp_path / "b" / split, number)
    data = load(f"{tmp_path / 'b'}:binarise=dynamic")
    assert [len(data.train), len(data.valid), len(data.test)] == [5, 2, 3]
    first = np.asarray(Image.open(tmp_path / "b" / "train" / "p00.png"))
    np.testing.assert_array_equal(data.train[0], first.ravel())
    assert load(pictures(tmp_path / "bits", 8, "1"), binarise="threshold").kind == "binary"


@pytest.mark.parametrize(("mode", "said"), [("RGB", "colours (RGB)"), ("P", "palette"), ("RGBA", "colours")])
def test_colours_are_refused_with_advice(mode, said, tmp_path):
    line = refusal(load, pictures(tmp_path / "a", 3, mode))
    assert said in line
    assert "convert('L')" in line


def test_pictures_that_do_not_fit_are_one_line(tmp_path, monkeypatch):
    folder = pictures(tmp_path / "a")
    pictures(tmp_path / "b", 1, size=(4, 4))
    (tmp_path / "b" / "p00.png").rename(folder / "z.png")
    assert "z.png has 4 x 4 pixels, the first picture 2 x 3" in refusal(load, folder)
    (folder / "z.png").write_bytes(b"\x89PNG no picture")
    assert "z.png, it may be damaged" in refusal(load, folder)
    monkeypatch.setattr("doubly.data.pictures.MOST_PIXELS", 5)
    assert "3 x 2 pixels" in refusal(load, folder)
    (tmp_path / "none").mkdir()
    assert "a folder of .png pictures" in refusal(load, tmp_path / "none")


# In memory


FRAME = pd.DataFrame({"x": [1.5, 2.5, None, 4.5, 9.0] * 4, "c": list("abcab") * 4, "id": range(20)})


def test_tables_in_memory_are_data():
    frame = from_memory(FRAME)
    assert (frame.kind, frame.width) == ("mixed", 4)
    assert frame.columns is not None
    assert [column.name for column in frame.columns.columns] == ["x", "c"]
    same = from_memory(FRAME.to_dict("list"))
    np.testing.assert_array_equal(frame.train, same.train)
    np.testing.assert_array_equal(frame.train, from_memory(FRAME.to_dict("records")).train)
    bits = np.random.default_rng(0).integers(0, 2, (20, 3))
    assert from_memory(bits).kind == "binary"
    assert from_memory(bits * 1.5).kind == "mixed"
    assert from_memory(bits * 1.5, mixed=False).kind == "real"
    images = from_memory(np.arange(20 * 6).reshape(20, 2, 3) * 2, Options(binarise="threshold", white=255.0))
    assert (images.shape, images.kind) == ((2, 3), "binary")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (np.zeros(3), "rows by columns"),
        (np.zeros((0, 3)), "rows by columns"),
        (np.array([["a", "b"]]), "expected real numbers"),
        (np.array([[np.inf, 1.5]] * 9), "only finite numbers"),
        ([[1, 2], [3]], "different lengths"),
        ({"a": [1, 2], "b": [1]}, "equally long"),
        (FRAME.head(2), "too few to hold out"),
        (pd.DataFrame({"a": [7.0] * 9}), "no column to learn from"),
    ],
)
def test_what_is_no_table_in_memory_is_one_line(table, said):
    assert said in refusal(from_memory, table)


def test_a_run_of_a_frame_lives_as_long_as_it_is_held():
    run = doubly.fit(data=FRAME, epochs=2, quiet=True)
    folder = run.path
    assert run.config.model.startswith("mixed:columns=r-c3")
    found = doubly.load(folder, refit_passes=0)
    assert set(found.sample(5)["c"]) <= set("abc")
    assert len(found.log_likelihood(FRAME[:3], draws=5, by="draws")) == 3
    posterior = run.posterior()
    del run, found
    gc.collect()
    assert folder.exists(), "the posterior asks for training rows"
    del posterior
    gc.collect()
    assert not folder.exists()


def test_arrays_in_memory_are_stored_with_the_run(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2, (30, 4))
    run = doubly.fit(tmp_path / "a", data=bits, hidden=(2,), epochs=2, quiet=True, threads=1)
    assert run.config.model == "sbn"
    assert len(doubly.Run(tmp_path / "a").data().train) == 24
    greys = np.random.default_rng(0).integers(0, 256, (30, 2, 2))
    run = doubly.fit(tmp_path / "b", data=greys, binarise="dynamic", hidden=(2,), epochs=2, quiet=True, threads=1)
    again = doubly.Run(tmp_path / "b").data()
    assert again.dynamic
    assert again.train.max() > 1
    with pytest.raises(UserError, match="draws 0 or 1"):
        doubly.fit(tmp_path / "c", data=bits * 1.5, model="nade", hidden=(), quiet=True)
    assert not (tmp_path / "c").exists()


# Tables that are odd in themselves


ODD = {
    "bom": "\ufeffa,b\n" + "1.5,x\n2.5,y\n3.5,x\n" * 3,
    "crlf": "a,b\r\n" + "1.5,x\r\n2.5,y\r\n3.5,x\r\n" * 3,
    "quotes": "a,b\n" + '1.5,"x\nx"\n2.5,"y, ""y"""\n"3.5",x\n' * 3,
    "empty row": "a,b\n" + "1.5,x\n2.5,y\n,\n3.5,x\n" * 3,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_texts_are_read(name, tmp_path):
    (tmp_path / "t.csv").write_bytes(ODD[name].encode())
    table = read(str(tmp_path / "t.csv"))
    assert [(column.name, column.kind) for column in table.kinds.columns.columns] == [("a", "real"), ("b", "category")]
    assert np.isfinite(table.rows.numpy()[:2]).all()
    assert ("no value in any" in " ".join(table.notes)) == (name == "empty row")


def test_columns_that_say_nothing_are_left_out_and_told(tmp_path):
    lines = ["x,same,none,name,when,mixed id"] + [f"{i * i}.5,k,,n{i},2024-01-0{i},A{i}" for i in range(1, 10)]
    (tmp_path / "t.csv").write_text(
        "\n".join(lines * 1) + "\n" + "\n".join(f"{i}.25,k,,m{i},2024-02-10,B{i}" for i in range(30))
    )
    table = read(str(tmp_path / "t.csv"))
    assert [column.name for column in table.kinds.columns.columns] == ["x"]
    why = {each.name: (each.why, each.identifies) for each in table.kinds.left_out}
    assert why["same"] == ("always k", False)
    assert why["none"] == ("has no value in any row", False)
    assert why["name"][1]
    assert why["mixed id"][1]
    assert "dates" in why["when"][0]
    for name in why:
        assert f"{name} " in table.kinds.text()


def test_a_hundred_thousand_columns_are_one_line(tmp_path):
    (tmp_path / "t.csv").write_text(
        ",".join(f"c{i}" for i in range(10**5)) + "\n" + (",".join(["1.5"] * 10**5) + "\n") * 5
    )
    line = refusal(read, str(tmp_path / "t.csv"))
    assert "has 100000 columns, at most 10000" in line


def test_every_option_of_a_file_is_on_the_page():
    page = (Path(__file__).parents[1] / "docs" / "tables.md").read_text()
    for name in vars(Options()):
        assert f"`{name}=" in page or f",{name}=" in page, name
