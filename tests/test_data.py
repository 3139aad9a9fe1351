"""Data: the named sets are what they say, files come back as they were written, and bad input is named in one line."""

import hashlib
import itertools
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from doubly.core.errors import UserError
from doubly.core.registry import describe
from doubly.data import (
    DATASETS,
    SPLITS,
    Data,
    bars_entropy,
    bars_log_density,
    check_binary,
    data_folder,
    load,
    read_table,
    sample_bars,
)

SHARED = Path(__file__).parents[2] / "shared" / "data"
BINARY = np.random.default_rng(1).integers(0, 2, (40, 6), dtype=np.uint8)
REAL = np.random.default_rng(2).normal(size=(40, 6))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.array(list(itertools.product([0, 1], repeat=16)), dtype=np.uint8)


def saved(folder: Path, **arrays) -> Path:
    np.savez(folder / "a.npz", **arrays)
    return folder / "a.npz"


def written(folder: Path, text: str) -> Path:
    (folder / "a.csv").write_text(text)
    return folder / "a.csv"


def refusal(action, *args, **options) -> str:
    """The message of the UserError that the action must end in; it is one line."""
    with pytest.raises(UserError) as caught:
        action(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def sorted_rows(*arrays: np.ndarray) -> list[tuple]:
    return sorted(tuple(row) for array in arrays for row in array.tolist())


# Bars


def test_bars_density_sums_to_one(images):
    log_p = bars_log_density(images)
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-12)
    assert bars_entropy() == pytest.approx(-(np.exp(log_p) * log_p).sum(), rel=1e-12)


def test_bars_density_is_the_sum_over_patterns(images):
    """Against the definition, written as loops."""
    for image in images[[0, 0b1111_0000_0000_0000, 0b1000_1111_1000_1000, 40_000]]:
        total = 0.0
        for on in itertools.product([0, 1], repeat=8):
            p = math.prod(0.25 if bar else 0.75 for bar in on)
            for pixel, value in enumerate(image):
                one = 1 / (1 + math.exp(4 - 8 * (on[pixel // 4] + on[4 + pixel % 4])))
                p *= one if value else 1 - one
            total += p
        assert bars_log_density(image[None])[0] == pytest.approx(math.log(total), rel=1e-12)


def test_bars_are_drawn_by_their_density(images):
    """Pearson's test at level 1e-4; images expected fewer than 20 times make one cell."""
    n = 200_000
    drawn = np.bincount(sample_bars(n, np.random.default_rng(5)) @ (1 << np.arange(16)[::-1]), minlength=2**16)
    expected = n * np.exp(bars_log_density(images))
    rare = expected < 20
    observed = np.append(drawn[~rare], drawn[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    assert len(expected) > 200
    assert ((observed - expected) ** 2 / expected).sum() < stats.chi2.ppf(1 - 1e-4, len(expected) - 1)


def test_bars_rows_have_the_entropy():
    data = load("bars")
    assert [len(data.split(split)) for split in SPLITS] == [2000, 500, 500]
    assert data.log_density is not None
    surprise = -data.log_density(np.concatenate([data.split(split) for split in SPLITS]))
    z = (surprise.mean() - bars_entropy()) / (surprise.std() / math.sqrt(len(surprise)))
    assert abs(z) < stats.norm.ppf(1 - 1e-4 / 2)


def test_bars_density_refuses_other_rows():
    assert "(3, 15)" in refusal(bars_log_density, np.zeros((3, 15)))
    refusal(bars_log_density, np.full((1, 16), 0.5))


# The named sets


@pytest.mark.parametrize("name", DATASETS)
def test_every_set_is_described(name):
    assert describe(DATASETS[name])


def test_digits_are_the_same_everywhere():
    from sklearn.datasets import load_digits

    data = load("digits")
    assert [data.split(split).shape for split in SPLITS] == [(1197, 64), (300, 64), (300, 64)]
    assert (data.shape, data.width, data.kind, data.train.dtype) == ((8, 8), 64, "binary", np.uint8)
    # every row is in one split, once
    assert sorted_rows(*map(data.split, SPLITS)) == sorted_rows(load_digits().data >= 8)
    bits = np.packbits(np.concatenate([data.split(split) for split in SPLITS]))
    assert hashlib.sha256(bits.tobytes()).hexdigest()[:16] == "0f6191599ae49a9f"
    assert np.array_equal(load("digits").test, data.test)


@pytest.mark.parametrize(
    ("name", "sizes", "mean", "within"),
    [
        ("binarized-mnist", (50_000, 10_000, 10_000), 0.13056, 1e-4),
        ("caltech-silhouettes", (4100, 2264, 2307), 0.551, 1e-3),
    ],
)
def test_sets_from_the_data_folder(name, sizes, mean, within, monkeypatch):
    monkeypatch.setenv("DOUBLY_DATA", os.environ.get("DOUBLY_DATA") or str(SHARED))  # set, nothing is fetched
    try:
        data = load(name)
    except UserError as error:
        if "which is not in" not in str(error):
            raise
        pytest.skip(str(error))
    assert tuple(len(data.split(split)) for split in SPLITS) == sizes
    assert (data.shape, data.width, data.kind) == ((28, 28), 784, "binary")
    assert data.train.mean() == pytest.approx(mean, abs=within)


def test_absent_file_of_a_named_set(tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLY_DATA", str(tmp_path))
    message = refusal(load, "binarized-mnist")
    assert "binarized_mnist.npz" in message
    assert str(tmp_path) in message
    assert "DOUBLY_DATA" in message


@pytest.mark.parametrize("damage", ["cut short", "other bytes", "no zip", "empty", "other arrays", "other width"])
def test_damaged_file_of_a_named_set(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLY_DATA", str(tmp_path))
    path = tmp_path / "binarized_mnist.npz"
    packed = np.random.default_rng(0).integers(0, 256, (20, 98), dtype=np.uint8)
    np.savez_compressed(path, train=packed, valid=packed, test=packed, dim=784)
    assert load("binarized-mnist").valid.shape == (20, 784)
    whole = path.read_bytes()
    if damage == "cut short":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "other bytes":
        path.write_bytes(whole[:300] + bytes(200) + whole[500:])
    elif damage == "no zip":
        path.write_bytes(b"<html>not found</html>")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other arrays":
        np.savez(path, train=packed, dim=784)
    else:
        np.savez(path, train=packed, valid=packed, test=packed, dim=780)
    assert "binarized" in refusal(load, "binarized-mnist")


def test_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLY_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.delenv("DOUBLY_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "doubly"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path.home() / ".cache" / "doubly"


# What every Data keeps to


def test_data_has_its_types():
    data = Data("a", BINARY.astype(bool), BINARY.astype(float), BINARY, (2, 3), "binary")
    assert [data.split(split).dtype for split in SPLITS] == [np.uint8] * 3
    data = Data("a", REAL, BINARY, REAL.astype(np.float16), (6,), "real")
    assert [data.split(split).dtype for split in SPLITS] == [np.float32] * 3


def test_unknown_split():
    message = refusal(load("bars").split, "dev")
    assert all(word in message for word in ("dev", *SPLITS))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"valid": REAL[:0]}, "the valid split of mine has no rows"),
        ({"test": REAL[0]}, "the test split of mine must have 2 axes"),
        ({"test": REAL[:, :5]}, "the test split of mine has 5 columns, train has 6"),
        (dict.fromkeys(SPLITS, REAL[:, :0]), "has no columns"),
        ({"shape": (2, 2)}, "mine has 6 columns, which do not fill the shape (2, 2)"),
        ({"shape": (-2, -3)}, "do not fill"),
        ({"shape": ()}, "do not fill"),
        (
            {"train": np.where(np.arange(6) == 2, np.nan, REAL)},
            "column 2 (from 0) of mine has no value in any row of train",
        ),
        (
            {"valid": np.where(np.arange(240).reshape(40, 6) == 20, -np.inf, REAL)},
            "row 3, column 2 (counting from 0), is -inf",
        ),
        ({"train": REAL * 1e300}, "float32"),
        ({"train": REAL.astype(str)}, "real numbers"),
        ({"train": REAL.astype(complex)}, "real numbers"),
        ({"train": REAL.astype(object)}, "real numbers"),
        ({"kind": "binary"}, "the train split of mine is said to be binary, but row 0, column 0"),
        ({"kind": "count"}, "'count'"),
    ],
)
def test_bad_data(fields, said):
    good: dict[str, Any] = {"name": "mine", "train": REAL, "valid": REAL, "test": REAL, "shape": (6,), "kind": "real"}
    Data(**good)
    assert said in refusal(Data, **(good | fields))


def test_data_may_have_holes():
    assert not Data("mine", REAL, REAL, REAL, (6,), "real").has_missing
    holed = np.where(REAL > 1, np.nan, REAL)
    data = Data("mine", REAL, REAL, holed, (6,), "real")
    assert data.has_missing
    assert np.array_equal(data.test, holed.astype(np.float32), equal_nan=True)
    holed = np.where(REAL > 1, np.nan, BINARY)
    data = Data("mine", holed, BINARY, BINARY, (6,), "binary")
    assert (data.train.dtype, data.valid.dtype) == (np.float32, np.uint8)
    assert "row 0, column 0" in refusal(Data, "mine", BINARY, BINARY, np.where(holed == holed, 0.5, 1), (6,), "binary")


def test_check_binary():
    check_binary(load("bars"), "layer 'sbn' draws 0 or 1")
    check_binary(Data("a", BINARY, BINARY, BINARY, (6,), "real"), "layer 'sbn' draws 0 or 1")
    grey = BINARY.astype(float)
    grey[12, 3] = 0.53
    message = refusal(check_binary, Data("a", BINARY, grey, grey, (6,), "real"), "layer 'sbn' draws 0 or 1")
    assert message.startswith("layer 'sbn' draws 0 or 1, but valid row 12, column 3 ")
    assert "is 0.53: binarise the data" in message


# Files


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".CSV"])
@pytest.mark.parametrize(
    "rows", [BINARY, REAL, BINARY.astype(bool), REAL.astype(np.float32)], ids=lambda rows: rows.dtype.name
)
def test_one_array_there_and_back(suffix, rows, tmp_path):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".npz":
        np.savez(path, rows)
    elif suffix == ".npy":
        np.save(path, rows)
    else:
        np.savetxt(path, rows, delimiter=",", fmt="%.17g")
    data = load(path)
    assert (data.name, data.shape) == ("mine", (6,))
    assert data.kind == ("binary" if rows.dtype.kind in "bu" else "real")
    assert [len(data.split(split)) for split in SPLITS] == [32, 4, 4]
    assert sorted_rows(*map(data.split, SPLITS)) == sorted_rows(rows.astype(data.train.dtype))
    assert np.array_equal(read_table(path), rows.astype(np.float32))
    assert read_table(path).dtype == np.float32
    assert all(np.array_equal(load(str(path)).split(split), data.split(split)) for split in SPLITS)
    assert not np.array_equal(load(path, seed=1).train, data.train)
    assert [len(load(path, fractions=(0.25, 0)).split(split)) for split in SPLITS] == [29, 10, 1]


def test_given_splits_are_kept(tmp_path):
    data = load(saved(tmp_path, train=BINARY, valid=BINARY[:3], test=REAL[:5], labels=np.arange(40)))
    assert (data.kind, data.train.dtype) == ("real", np.float32)
    assert np.array_equal(data.train, BINARY)
    assert np.array_equal(data.valid, BINARY[:3])
    assert np.array_equal(data.test, REAL[:5].astype(np.float32))


def test_absent_split_comes_off_train(tmp_path):
    data = load(saved(tmp_path, train=REAL, test=REAL[:7]))
    assert [len(data.split(split)) for split in SPLITS] == [36, 4, 7]
    assert sorted_rows(data.train, data.valid) == sorted_rows(REAL.astype(np.float32))


def test_packed_bits(tmp_path):
    packed = np.packbits(BINARY, axis=1)
    data = load(saved(tmp_path, train=packed, valid=packed, test=packed, dim=6, shape=[2, 3]))
    assert data.shape == (2, 3)
    assert np.array_equal(data.test, BINARY)
    assert np.array_equal(read_table(tmp_path / "a.npz"), BINARY)
    assert np.array_equal(load(saved(tmp_path, train=BINARY, valid=BINARY, test=BINARY, dim=6)).train, BINARY)
    assert "neither 60 columns" in refusal(load, saved(tmp_path, train=packed, dim=60))


def test_shape_is_stated_never_guessed(tmp_path):
    flat = np.zeros((5, 64))
    assert load(saved(tmp_path, X=flat)).shape == (64,)
    assert load(saved(tmp_path, X=flat, shape=[4, 16])).shape == (4, 16)
    assert load(saved(tmp_path, X=flat.reshape(5, 8, 8))).shape == (8, 8)
    assert read_table(tmp_path / "a.npz").shape == (5, 64)
    assert "(3, 3)" in refusal(load, saved(tmp_path, X=flat, shape=[3, 3]))
    assert "whole numbers" in refusal(load, saved(tmp_path, X=flat, shape=[8.0, 8.0]))


@pytest.mark.parametrize("name", ["X", "x", "data"])
def test_array_by_its_usual_name(name, tmp_path):
    assert load(saved(tmp_path, **{name: BINARY, "labels": np.arange(40)})).width == 6


def test_which_array_is_meant(tmp_path):
    message = refusal(load, saved(tmp_path, one=BINARY, two=BINARY))
    assert all(word in message for word in ("one, two", "train", "X", "data"))
    assert "no arrays" in refusal(load, saved(tmp_path))
    assert len(read_table(saved(tmp_path, train=BINARY, test=BINARY[:4]))) == 4


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.arange(6), "got shape (6,)"),
        (np.zeros((3, 2, 2, 2)), "got shape (3, 2, 2, 2)"),
        (np.array(1.0), "got shape ()"),
        (REAL.astype(str), "real numbers"),
        (REAL.astype(complex), "real numbers"),
        (REAL.astype(object), "Python objects"),
        (REAL[:2], "2 rows, too few to hold out valid and test"),
        (REAL[:0], "0 rows, too few"),
        (REAL[:, :0], "no columns"),
        (np.where(np.arange(6) == 2, np.nan, REAL), "column 2 (from 0) of mine has no value in any row of train"),
        (np.where(np.arange(240).reshape(40, 6) == 20, 1e300, REAL), "row 3, column 2 (counting from 0), is 1e+300"),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_bad_arrays(array, said, suffix, tmp_path):
    path = tmp_path / f"mine{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, data=array)
    message = refusal(load, path)
    assert said in message
    assert "mine" in message


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_damage_is_never_a_traceback(suffix, tmp_path):
    """Flip bytes all over a file: it loads or it is refused."""
    path = tmp_path / f"a{suffix}"
    np.save(path, BINARY) if suffix == ".npy" else np.savez_compressed(path, train=BINARY, test=BINARY)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        try:
            load(path)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
    assert refused > 10


def test_archive_of_other_things(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "no array")
    refusal(load, tmp_path / "a.npz")


def test_fractions_and_seed(tmp_path):
    path = saved(tmp_path, X=REAL)
    assert "(0.5, 0.5)" in refusal(load, path, fractions=(0.5, 0.5))
    assert "(-0.1, 0.1)" in refusal(load, path, fractions=(-0.1, 0.1))
    assert "-1" in refusal(load, path, seed=-1)
    assert [len(load(saved(tmp_path, X=REAL[:3])).split(split)) for split in SPLITS] == [1, 1, 1]


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n5,6\n",
        "a,b\n1,2\n3,4\n5,6",
        "\n\n a , b\n\n1,2\n   \n3,4\n\n5,6\n\n",
        '\ufeff"a","b"\r\n"1","2"\r\n"3", 4.0\r\n 5 ,6e0\r\n',
        "größe,b\n1,2\n3,4\n5,6",
        ",b\n1,2\n3,4\n5,6",
        "Na,K\n1,2\n3,4\n5,6",
    ],
)
def test_csv_as_people_write_it(text, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode("latin-1" if "ö" in text else "utf-8"))
    assert np.array_equal(read_table(path), [[1, 2], [3, 4], [5, 6]])
    assert load(path).kind == "real"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a,b\n", "a header but no rows"),
        ("1,2\n3,4\n\n5,6,7\n", "line 4 of {} has 3 cells, but the rows before it have 2"),
        ("a,b\n1,2\n3\n", "line 3 of {} has 1 cells, but the rows before it have 2"),
        ("1,2\n3,four\n", "line 2, column 2 of {} is 'four', which is no number"),
        ("?,2\n3,4\n", "line 1, column 1 of {} is '?', which is no number"),
        ("\n1,?\n3,4\n", "line 2, column 2 of {} is '?', which is no number"),
        ("a,7\n1,2\n", "line 1, column 1 of {} is 'a', which is no number"),
    ],
)
def test_bad_csv(text, said, tmp_path):
    path = written(tmp_path, text)
    assert said.format(path) in refusal(load, path)
    assert said.format(path) in refusal(read_table, path)


@pytest.mark.parametrize("cell", ["", " ", "nan", "NaN", "NA", "na", '""', '"NA"'])
@pytest.mark.parametrize("header", ["", "a,b,c\n"])
def test_missing_cells(cell, header, tmp_path):
    path = written(tmp_path, f"{header}1,2,3\n4,5,{cell}\n{cell},7,8\n9,10,11\n")
    assert load(path).has_missing
    message = refusal(load, f"{path}:binarise=threshold")
    assert f"line {3 if header else 2}, column 3 of {path} is missing" in message
    assert "missing values cannot be binarised" in message
    expected = np.array([[1, 2, 3], [4, 5, np.nan], [np.nan, 7, 8], [9, 10, 11]])
    assert np.array_equal(read_table(path), expected, equal_nan=True)


def test_missing_cell_in_the_first_line_is_no_header(tmp_path):
    assert read_table(written(tmp_path, "NA,1\n0,1\n")).shape == (2, 2)
    assert read_table(written(tmp_path, "NA,\n0,1\n")).shape == (2, 2)


def test_infinite_cells(tmp_path):
    path = written(tmp_path, "1,2\n3,4\n5,inf\n")
    for action in (load, read_table):
        assert "line 3, column 2" in refusal(action, path)


def test_missing_values_in_arrays_to_fill_in(tmp_path):
    holed = np.where(REAL > 1, np.nan, REAL).astype(np.float32)
    np.save(tmp_path / "a.npy", holed)
    assert np.array_equal(read_table(tmp_path / "a.npy"), holed, equal_nan=True)


# Which file or name is meant


def test_unknown_name():
    message = refusal(load, "digitz")
    assert all(word in message for word in ("'digitz'", *DATASETS, ".npz, .npy or .csv"))


def test_no_such_file(tmp_path):
    for action in (load, read_table):
        assert f"there is no file {tmp_path / 'b.npz'}" in refusal(action, tmp_path / "b.npz")
    refusal(load, "x" * 1000)
    refusal(load, "x" * 1000 + ".csv")


def test_unknown_suffix(tmp_path):
    (tmp_path / "a.txt").write_text("1,2\n")
    for action in (load, read_table):
        message = refusal(action, tmp_path / "a.txt")
        assert "a.txt" in message
        assert ".npz, .npy or .csv" in message


def test_function_in_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np\nfrom doubly.data import Data\n"
        "x = np.eye(4)\n"
        "def diagonal():\n    return Data('diagonal', x, x, x, (2, 2), 'binary')\n"
        "def wrong():\n    return x\n"
    )
    assert load(f"{path}:diagonal").name == "diagonal"
    assert "ndarray" in refusal(load, f"{path}:wrong")
    assert "no class or function 'absent'" in refusal(load, f"{path}:absent")
    assert "no class or function" in refusal(load, str(path))
    assert "without options" in refusal(load, f"{path}:diagonal:n=3")
    assert "without options" in refusal(load, f"{path}:x")
