"""`doubly data list|info|check`: every number is derived from data made for it."""

import hashlib
import json

import numpy as np
import pytest

from doubly.data import DATASETS, SPLITS, load
from doubly.data.describe import check, info, info_text, listing, listing_text
from test_data import BINARY, REAL, refusal


def saved(folder, **arrays):
    np.savez(folder / "a.npz", **arrays)
    return str(folder / "a.npz")


def test_listing(tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLY_DATA", str(tmp_path))
    entries = {entry["name"]: entry for entry in listing()}
    assert list(entries) == list(DATASETS)
    assert {name for name, entry in entries.items() if entry["status"] == "here"} == {"digits", "bars"}
    assert entries["bars"] | {"about": ""} == {
        "name": "bars",
        "about": "",
        "status": "here",
        "width": 16,
        "rows": {"train": 2000, "valid": 500, "test": 500},
    }
    assert all(name in listing_text() for name in DATASETS)
    json.dumps(listing())


@pytest.mark.parametrize("name", ["bars", "digits"])
def test_info_of_a_set(name):
    found, data = info(name), load(name)
    json.dumps(found)
    assert found["rows"] == {split: len(data.split(split)) for split in SPLITS}
    assert (found["width"], found["kind"], found["shape"]) == (data.width, data.kind, list(data.shape))
    assert found["train"]["mean"] == pytest.approx(data.train.mean())
    assert found["train"]["sd"] == pytest.approx(data.train.std())
    assert found["constant"] == [str(at) for at in range(data.width) if len(set(data.train[:, at])) == 1]
    train = {tuple(row) for row in data.train.tolist()}
    assert found["repeated"]["within train"] == len(data.train) - len(train)
    assert found["repeated"]["test rows that are in train"] == sum(tuple(row) in train for row in data.test.tolist())
    assert found["sha256"] == hashlib.sha256(b"".join(data.split(s).tobytes() for s in SPLITS)).hexdigest()
    assert f"rows       train {len(data.train)}" in info_text(name)


@pytest.mark.parametrize("rows", [BINARY, REAL, REAL.astype(np.float32)])
def test_info_of_a_file_has_the_checksum_of_its_rows(rows, tmp_path):
    path = saved(tmp_path, X=rows)
    data = load(path)
    assert info(path)["sha256"] == hashlib.sha256(b"".join(data.split(s).tobytes() for s in SPLITS)).hexdigest()
    content = hashlib.sha256((tmp_path / "a.npz").read_bytes()).hexdigest()
    assert info(path)["files"] == {path: content}


def test_info_counts_what_is_missing(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("c,x,k\n" + "".join(f"{'ab'[i % 2]},{i},7\n" for i in range(300)) + ",5,7\nb,,7\n")
    found = info(str(path))
    json.dumps(found)
    assert sum(found["missing"].values()) == 2 + 1  # both cells of the category, and one number
    assert [column["name"] for column in found["columns"]] == ["c", "x", "k"]
    assert found["constant"] == ["k"]
    assert found["kind"] == "real"
    text = info_text(str(path))
    assert "  c: category (a, b)" in text
    assert "  k: integer, constant" in text
    problems = check(str(path))
    assert sum("missing cell" in line for line in problems) >= 1
    assert any("they count for nothing" in line for line in problems)
    assert any("1 column is constant in train: k" in line for line in problems)


def test_nothing_to_say_of_good_data(tmp_path):
    rows = np.random.default_rng(0).normal(size=(2000, 6))
    assert check(saved(tmp_path, X=rows)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: {"X": x[:40]}, "valid has 4 rows"),
        (lambda x: {"X": x[:10].reshape(5, 12)}, "train has 3 rows for 12 columns"),
        (lambda x: {"train": x, "test": np.concatenate([x[:7], x[:200] + 1])}, "of 207 test rows are in train too"),
        (lambda x: {"X": np.abs(np.sin(x))}, "binarise=sample"),
        (lambda x: {"X": np.rint(np.abs(np.sin(x)) * 255).astype(np.uint8)}, "from 0 to 255"),
        (lambda x: {"X": x * [1, 1, 1, 1, 1, 1000]}, "1 column is far from mean 0 and standard deviation 1: 5"),
        (
            lambda x: {"X": x + np.array([0, 170, 0, 0, 0, 0])},
            "1 column is far from mean 0 and standard deviation 1: 1",
        ),
        (lambda x: {"X": np.where(x > 3, np.nan, x)}, "missing cells"),
        (lambda x: {"X": np.where(x > 3, np.inf, x)}, "inf"),
        (lambda x: {"X": x * [1, 1, 0, 1, 1, 0]}, "2 columns are constant in train: 2, 5"),
        (
            lambda x: {"train": x * [1, 1, 0, 1, 1, 1], "test": x[:200] + 1},
            "1 column is constant in train but not in test, where the score will suffer: 2",
        ),
        (lambda x: {"X": x.astype(str)}, "real numbers"),
    ],
)
def test_problems(change, said, tmp_path):
    rows = np.random.default_rng(0).normal(size=(2000, 6))
    problems = check(saved(tmp_path, **change(rows)))
    assert any(said in line for line in problems), problems
    assert not any("\n" in line for line in problems)


def test_few_columns_repeat_themselves():
    assert all("to be expected" in line for line in check("bars"))


def test_levels_that_only_the_test_rows_have(tmp_path):
    lines = "".join(f"{'train' if i < 500 else 'test'},{'ab'[i % 2]},{i % 2}\n" for i in range(700))
    path = tmp_path / "a.csv"
    path.write_text("part,c,x\n" + lines + "test,new,1\n")
    problems = check(f"{path}:split=part")
    assert any("constant in train but not in test" in line and "c=new" in line for line in problems)


def test_many_levels(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("who,x\n" + "".join(f"n{i},{i % 2}\n" for i in range(400)))
    assert any("many levels for 400 rows: who" in line for line in check(str(path)))


def test_dynamic_sets_are_described_by_their_bits(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (400, 9), dtype=np.uint8)
    path = saved(tmp_path, X=grey)
    found = info(f"{path}:binarise=dynamic")
    assert (found["dynamic"], found["kind"], found["train"]["max"]) == (True, "binary", 1)
    assert not info(path)["dynamic"]
    assert check(f"{path}:binarise=dynamic") == check(f"{path}:binarise=sample")


def test_unknown_names_are_refused(tmp_path):
    assert "no data set is called" in refusal(info, "digitz")
    assert check("digitz")[0].startswith("no data set is called 'digitz'")
    assert check(str(tmp_path / "b.csv")) == [f"there is no file {tmp_path / 'b.csv'}"]
