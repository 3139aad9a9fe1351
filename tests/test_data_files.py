"""Files with options, greys that become bits, and files in the public formats, none of which runs code."""

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy import io, stats

from doubly.core.errors import UserError
from doubly.core.registry import describe
from doubly.data import DATASETS, SPLITS, Data, absolute, load, read_table, sample_bits
from doubly.data.matlab import read_matrices
from doubly.data.named import SIZES, upright
from test_data import BINARY, REAL, SHARED, refusal

GREY = np.random.default_rng(3).integers(0, 256, (60, 4), dtype=np.uint8)
GREY[0, 0] = 255


# Specs


def test_a_file_by_exactly_that_name_wins(tmp_path):
    np.save(tmp_path / "a.npy", REAL)
    odd = tmp_path / "a.npy:valid=0.5,x.npy"
    np.save(odd, BINARY)
    assert load(str(odd)).kind == "binary"
    assert load(f"{tmp_path / 'a.npy'}:valid=0.5").kind == "real"
    assert len(load(f"{odd}:valid=0.5").valid) == 20
    assert len(load(f"{odd}:valid=0.5").train[0]) == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("valid", "option 'valid' of"),
        ("colour=red", "has no option 'colour'; its options are: valid, test, split_seed"),
        ("valid=a lot", "valid of"),
        ("split_seed=1.5", "must be a whole number, got '1.5'"),
        ("split_seed=-1", "the seed must not be negative, got -1"),
        ("valid=0.6,test=0.4", "(0.6, 0.4)"),
        ("valid=nan", "add up to less than 1"),
        ("binarise=round", "must be threshold, sample, dynamic, got 'round'"),
        ("header=true", "header is said of"),
        ("shape=2by3", "whole numbers such as 28x28"),
        ("shape=5x5", "do not fill the shape (5, 5)"),
        ("white=-1", "white"),
    ],
)
def test_bad_options(text, said, tmp_path):
    np.save(tmp_path / "a.npy", REAL)
    assert said in refusal(load, f"{tmp_path / 'a.npy'}:{text}")


def test_absent_file_with_options(tmp_path):
    assert refusal(load, f"{tmp_path}/b.csv:valid=0.5") == f"there is no file {tmp_path}/b.csv"


def test_shape_by_option(tmp_path):
    np.save(tmp_path / "a.npy", REAL)
    assert load(f"{tmp_path / 'a.npy'}:shape=2x3").shape == (2, 3)


def test_specs_made_absolute(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", REAL)
    monkeypatch.chdir(tmp_path)
    assert absolute("a.npy:valid=0.3") == f"{tmp_path.resolve()}/a.npy:valid=0.3"
    assert absolute("a.npy") == f"{tmp_path.resolve()}/a.npy"
    for spec in ("digits", "mnist:binarise=sample", "b.npy", "mine.py:function"):
        assert absolute(spec) == spec


def test_options_of_named_sets():
    assert "bars has no option 'n'; its options are: none" in refusal(load, "bars:n=3")
    assert "mnist has no option 'valid'; its options are: binarise, bits_seed" in refusal(load, "mnist:valid=0.1")
    assert np.array_equal(load("bars", binarise="threshold").train, load("bars").train)
    assert "nothing to draw anew" in refusal(load, "bars", binarise="dynamic")
    assert "got 'often'" in refusal(load, "bars", binarise="often")


# Greys become bits


def saved(folder: Path, **arrays) -> Path:
    np.savez(folder / "grey.npz", **arrays)
    return folder / "grey.npz"


@pytest.mark.parametrize(("scale", "option"), [(1, ""), (255, ""), (16, ",white=16")])
def test_threshold(scale, option, tmp_path):
    grey = np.arange(60 * 4).reshape(60, 4) % 17 / 16 * scale
    path = saved(tmp_path, train=grey, valid=grey, test=grey)
    data = load(f"{path}:binarise=threshold{option}")
    assert (data.kind, data.dynamic, data.train.dtype) == ("binary", False, np.uint8)
    for split in SPLITS:
        assert np.array_equal(data.split(split), 2 * grey >= scale)


def test_sampled_once_with_the_greys_as_probabilities(tmp_path):
    """All 256 greys, 4000 rows: each column's ones are binomial; the chi-square sum is tested at level 1e-4."""
    grey = np.tile(np.arange(256, dtype=np.uint8), (4000, 1))
    path = saved(tmp_path, train=grey, valid=grey[:10], test=grey[:10])
    data = load(f"{path}:binarise=sample")
    assert (data.kind, data.dynamic) == ("binary", False)
    p = np.arange(1, 255) / 255
    z2 = (data.train[:, 1:255].sum(0) - 4000 * p) ** 2 / (4000 * p * (1 - p))
    assert z2.sum() < stats.chi2.ppf(1 - 1e-4, 254)
    assert not data.train[:, 0].any()
    assert data.train[:, 255].all()
    again, other = load(path, binarise="sample"), load(f"{path}:binarise=sample,bits_seed=1")
    assert np.array_equal(data.train, again.train)
    assert not np.array_equal(data.train, other.train)
    assert not np.array_equal(data.valid, data.test)  # each split has random numbers of its own


def test_dynamic_keeps_the_greys_of_train_and_nothing_else(tmp_path):
    data = load(f"{saved(tmp_path, train=GREY, valid=GREY, test=GREY)}:binarise=dynamic,bits_seed=5")
    assert (data.kind, data.dynamic, data.train.dtype) == ("binary", True, np.uint8)
    assert np.array_equal(data.train, GREY)
    sampled = load(f"{tmp_path / 'grey.npz'}:binarise=sample,bits_seed=5")
    for split in SPLITS:  # split gives fixed bits, also of train: those that binarise=sample draws
        assert np.array_equal(data.split(split), sampled.split(split))
    fractions = load(f"{saved(tmp_path, train=GREY / 255, valid=GREY / 255, test=GREY / 255)}:binarise=dynamic")
    assert np.array_equal(fractions.train, GREY)


def test_dynamic_data_are_checked():
    bits = np.zeros((3, 2), dtype=np.uint8)
    Data("a", bits + 200, bits, bits, (2,), "binary", dynamic=True)
    assert "must be greys of type uint8" in refusal(Data, "a", bits / 2, bits, bits, (2,), "binary", dynamic=True)
    assert "must be greys" in refusal(Data, "a", bits, bits, bits, (2,), "real", dynamic=True)
    assert "valid split" in refusal(Data, "a", bits, bits + 200, bits, (2,), "binary", dynamic=True)


def test_greys_out_of_range(tmp_path):
    low = GREY / 255
    low[7, 2] = -0.5
    path = saved(tmp_path, train=low, valid=low[:1], test=low[:1])
    message = refusal(load, f"{path}:binarise=sample")
    assert f"row 7, column 2 (counting from 0) of train in {path} is -0.5" in message
    message = refusal(load, f"{saved(tmp_path, X=GREY % 17)}:binarise=threshold")
    assert "the largest in" in message
    assert "white=16" in message
    holed = np.where(np.equal(GREY, GREY[5, 1]), np.nan, GREY)
    assert "missing" in refusal(load, f"{saved(tmp_path, X=holed)}:binarise=threshold")
    assert "nothing to draw anew" in refusal(load, f"{saved(tmp_path, X=BINARY)}:binarise=dynamic")
    assert load(saved(tmp_path, X=BINARY), binarise="threshold").kind == "binary"


def test_grey_tables_keep_their_names(tmp_path):
    (tmp_path / "a.csv").write_text("left,right\n0,255\n100,200\n30,3\n")
    data = load(f"{tmp_path / 'a.csv'}:binarise=threshold")
    assert data.columns is not None
    assert [(column.name, column.kind) for column in data.columns.columns] == [("left", "binary"), ("right", "binary")]


def test_sample_bits_by_seed_and_split():
    p = np.full((20, 20), 0.5)
    draws = [sample_bits(p, seed, split) for seed in (0, 1) for split in SPLITS]
    assert len({draw.tobytes() for draw in draws}) == 6


# Public formats


def idx(array: np.ndarray, code: int) -> bytes:
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize(("code", "kind"), [(8, ">u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
@pytest.mark.parametrize("name", ["a-idx3-ubyte", "a-idx3-ubyte.gz", "a.idx", "a.idx.gz"])
def test_idx(code, kind, name, tmp_path):
    array = (REAL * 20).reshape(40, 2, 3).astype(kind)
    content = idx(array, code)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert np.array_equal(read_table(path), array.reshape(40, 6).astype(np.float32))
    assert load(path).shape == (2, 3)
    for damaged in (content[:-1], content + b"\0", content[:9], b"\1" + content[1:], b"", b"\0\0\7" + content[3:]):
        path.write_bytes(gzip.compress(damaged) if name.endswith("gz") else damaged)
        assert "fetch" in (message := refusal(load, path)) or "no idx file" in message
    path.write_bytes(content[:20] if name.endswith("gz") else b"")
    refusal(load, path)


@pytest.mark.parametrize("rows", [BINARY, REAL], ids=["bits", "numbers"])
@pytest.mark.parametrize("end", ["\n", " \n"])
def test_amat(rows, end, tmp_path):
    path = tmp_path / "a.amat"
    path.write_text("".join(" ".join(f"{value:.17g}" for value in row) + end for row in rows))
    assert np.array_equal(read_table(path), rows.astype(np.float32))
    assert load(path).kind == ("binary" if rows is BINARY else "real")
    io.savemat(path, {"X": rows}, appendmat=False)  # as in a public copy of binarised MNIST
    assert np.array_equal(read_table(path), rows.astype(np.float32))
    path.write_text("0 1\n1\n")
    refusal(load, path)
    path.write_text("0 1\n1 2\n0 7\n")  # equally long lines that are no bits
    assert read_table(path).tolist() == [[0, 1], [1, 2], [0, 7]]


def test_mat(tmp_path):
    path = tmp_path / "a.mat"
    io.savemat(path, {"train_data": BINARY, "val_data": BINARY[:5], "test_data": BINARY[:4], "train_labels": REAL[0]})
    data = load(path)
    assert [len(data.split(split)) for split in SPLITS] == [40, 5, 4]
    path.write_bytes(path.read_bytes()[:200])
    assert "damaged" in refusal(load, path)
    path.write_bytes(b"MATLAB 7.3 MAT-file" + bytes(500))
    assert "-v7" in refusal(load, path)
    path.write_bytes(b"other" + bytes(500))
    assert "no MATLAB file" in refusal(load, path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_matrices_are_what_scipy_reads(kind, compressed, tmp_path):
    arrays = {
        "a": (REAL * 50).astype(kind),
        "long_name": np.arange(24).reshape(2, 3, 4).astype(kind),
        "one": np.ones((1, 1), dtype=kind),
        "none": np.zeros((0, 3), dtype=kind),
        "bits": BINARY.astype(bool),
    }
    others = {"words": "text", "cells": np.array(["a", 1], dtype=object), "pair": {"x": 1}, "z": np.ones(2) * 1j}
    io.savemat(tmp_path / "a.mat", arrays | others, do_compression=compressed)
    ours, theirs = read_matrices(tmp_path / "a.mat"), io.loadmat(tmp_path / "a.mat")
    assert set(ours) == set(arrays)
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name])
        assert values.dtype == theirs[name].dtype


def python2_pickle(splits) -> bytes:
    """The instructions that Python 2 wrote for three pairs (x, y), as in mnist.pkl.gz: protocol 2, byte strings."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def array(values: np.ndarray) -> bytes:
        kind = values.dtype.str[1:].encode()
        shape = b"(" + b"".join(map(integer, values.shape)) + b"t"
        dtype = b"cnumpy\ndtype\n(" + short(kind) + integer(0) + integer(1) + b"tR"
        dtype += b"(" + integer(3) + short(b"<") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
        content = values.tobytes()
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + integer(0) + b"t" + short(b"b") + b"tR"
        return made + b"(" + integer(1) + shape + dtype + b"\x89T" + struct.pack("<i", len(content)) + content + b"tb"

    return b"\x80\x02(" + b"".join(b"(" + array(x) + array(y) + b"t" for x, y in splits) + b"t."


def test_pickles_of_python_2(tmp_path):
    splits = [((GREY[start:] / np.float32(256)), np.arange(60 - start)) for start in (0, 20, 40)]
    content = python2_pickle(splits)
    loaded = pickle.loads(content, encoding="latin1")  # the real thing agrees that these are its instructions
    assert np.array_equal(loaded[1][0], splits[1][0])
    path = tmp_path / "a.pkl.gz"
    path.write_bytes(gzip.compress(content))
    data = load(path)
    for split, (x, _) in zip(SPLITS, splits, strict=True):
        assert np.array_equal(data.split(split), x)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("rows", [BINARY, REAL, np.asfortranarray(REAL), REAL.astype(">f4")], ids=str)
def test_pickles_of_today(protocol, rows, tmp_path):
    path = tmp_path / "a.pkl.gz"
    for content in (rows, {"train": rows, "labels": [1, "a"]}, (rows, rows), ((rows, 1), (rows, 2), (rows, 3))):
        path.write_bytes(gzip.compress(pickle.dumps(content, protocol)))
        assert load(path).width == 6
    path.write_bytes(gzip.compress(pickle.dumps(rows, protocol)))
    assert np.array_equal(read_table(path), rows.astype(np.float32))


class Trap:
    """A pickle of it makes whoever executes it create a file."""

    def __init__(self, how, *args):
        self.how, self.args = how, args

    def __reduce__(self):
        return self.how, self.args


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("where", ["alone", "among arrays", "as a dtype"])
def test_a_malicious_pickle_is_not_run(protocol, where, tmp_path):
    sprung = tmp_path / "sprung"
    for trap in (Trap(os.mkdir, str(sprung)), Trap(exec, f"open({str(sprung)!r}, 'w')"), Trap(Path.touch, sprung)):
        content = {"alone": trap, "among arrays": ((REAL, trap), (REAL, 1), (REAL, 1)), "as a dtype": {"x": [trap]}}
        bomb = pickle.dumps(content[where], protocol)
        path = tmp_path / "a.pkl.gz"
        path.write_bytes(gzip.compress(bomb))
        assert "was not run" in refusal(load, path)
        assert not sprung.exists()
        pickle.loads(bomb)  # the trap does work
        assert sprung.exists()
        sprung.rmdir() if sprung.is_dir() else sprung.unlink()


def test_a_pickle_cannot_change_what_reads_it(tmp_path):
    path = tmp_path / "a.pkl.gz"
    # the class numpy.ndarray is pushed and told to set its attribute `values`
    path.write_bytes(gzip.compress(b"\x80\x02cnumpy\nndarray\n(N}U\x06valuesK\x01stb."))
    assert "no array" in refusal(load, path)
    path.write_bytes(gzip.compress(pickle.dumps(REAL, 2)))
    assert np.array_equal(read_table(path), REAL.astype(np.float32))


def test_other_pickles_are_refused(tmp_path):
    path = tmp_path / "a.pkl.gz"
    for content in (REAL.astype(object), np.array(["a"]), [1, 2], "text", {"a": 3}, (REAL, 1)):
        path.write_bytes(gzip.compress(pickle.dumps(content, 2)))
        refusal(load, path)
    whole = gzip.compress(pickle.dumps(REAL, 2))
    path.write_bytes(whole[: len(whole) // 2])
    refusal(load, path)
    plain = pickle.dumps(BINARY, 2)
    for at in range(0, len(plain) - 240, 2):  # damage all over the instructions: loaded or refused, never a traceback
        path.write_bytes(gzip.compress(plain[:at] + bytes([plain[at] ^ 0x15]) + plain[at + 1 :]))
        try:
            load(path)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["a.csv", "a.idx", "a.mat", "a.amat", "a.parquet", "a.pkl.gz"])
def test_damage_is_never_a_traceback(name, tmp_path):
    """Flip bytes all over a file, and cut it short: it loads or it is refused in one line."""
    path = tmp_path / name
    if name == "a.csv":
        path.write_text('name,"n, cm",bit\n' + "".join(f'"x {i % 3}",{i / 7},{i % 2}\n' for i in range(40)))
    elif name == "a.idx":
        path.write_bytes(idx(BINARY, 8))
    elif name == "a.mat":
        io.savemat(path, {"train_data": BINARY, "test_data": BINARY})
    elif name == "a.amat":
        np.savetxt(path, BINARY, "%d")
    elif name == "a.parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pytest.importorskip("pyarrow").table({"a": ["x", "y"] * 20, "b": REAL[:, 0]}), path)
    else:
        path.write_bytes(gzip.compress(pickle.dumps(BINARY, 2)))
    load(path)
    whole, refused = path.read_bytes(), 0
    index = range(0, len(whole), max(1, len(whole) // 150))
    changed = [whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :] for at in index for flip in (0x5A, 0x80)]
    for content in [*changed, *(whole[:at] for at in index)]:
        path.write_bytes(content)
        try:
            load(path)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
    assert refused > 10


# The named sets in the forms they are published in


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DOUBLY_DATA", str(tmp_path))
    return tmp_path


def images(n: int, top: int = 1) -> np.ndarray:
    return np.random.default_rng(n).integers(0, top + 1, (n, 784), dtype=np.uint8)


def test_binarized_mnist_as_text(folder):
    for split, n in zip(SPLITS, (9, 5, 4), strict=True):
        np.savetxt(folder / f"binarized_mnist_{split}.amat", images(n), "%d")
    data = load("binarized-mnist")
    for split, n in zip(SPLITS, (9, 5, 4), strict=True):
        assert np.array_equal(data.split(split), images(n))
    (folder / "binarized_mnist_valid.amat").unlink()
    assert "which is not in" in refusal(load, "binarized-mnist")


@pytest.mark.parametrize("end", ["", ".gz"])
def test_mnist_as_idx(end, folder):
    greys = {"train": images(60, 255), "t10k": images(8, 255)}
    for part, rows in greys.items():
        content = idx(rows.reshape(-1, 28, 28), 8)
        (folder / f"{part}-images-idx3-ubyte{end}").write_bytes(gzip.compress(content) if end else content)
    data = load("mnist")
    assert (data.dynamic, data.kind, data.shape) == (True, "binary", (28, 28))
    assert np.array_equal(data.train, greys["train"][:50])  # the last sixth is for validation: 10000 of 60000
    fixed = load("mnist:binarise=threshold")
    assert np.array_equal(fixed.valid, greys["train"][50:] >= 128)
    assert np.array_equal(fixed.test, greys["t10k"] >= 128)
    assert np.array_equal(load("mnist", binarise="sample").valid, data.valid)
    assert np.array_equal(load("mnist:binarise=threshold", binarise="sample").test, fixed.test)
    assert "negative" in refusal(load, "mnist:bits_seed=-1")


def test_mnist_as_pickle(folder):
    greys = [images(n, 255) for n in (50, 10, 8)]
    splits = [(grey / np.float32(256), np.arange(len(grey))) for grey in greys]
    (folder / "mnist.pkl.gz").write_bytes(gzip.compress(python2_pickle(splits)))
    data = load("mnist")
    assert np.array_equal(data.train, greys[0])
    assert np.array_equal(load("mnist:binarise=threshold").test, greys[2] >= 128)


def test_silhouettes_as_matlab(folder):
    """Against MATLAB's own order, written as a loop: pixel (r, c) is at c * 28 + r."""
    pictures = images(6).reshape(6, 28, 28)
    columns = np.array([[picture[i % 28, i // 28] for i in range(784)] for picture in pictures])
    split = {"train_data": columns, "val_data": columns[:3], "test_data": columns[:2]}
    io.savemat(folder / "caltech101_silhouettes_28_split1.mat", split)
    data = load("caltech-silhouettes")
    assert np.array_equal(data.train.reshape(6, 28, 28), pictures)
    assert len(data.valid) == 3
    io.savemat(folder / "caltech101_silhouettes_28_split1.mat", {"train_data": columns})
    assert "no array 'valid'" in refusal(load, "caltech-silhouettes")


def test_omniglot_as_matlab(folder):
    """The rows and their split are those that the lines of Burda et al. give (their datasets.py, by hand)."""
    greys = np.round(images(54, 255) / 255 * 255) / 255
    io.savemat(folder / "chardata.mat", {"data": greys.T, "testdata": greys[:6].T})
    theirs = greys.reshape((-1, 28, 28)).reshape((-1, 784), order="F")
    theirs = theirs[np.random.RandomState(seed=123).permutation(54)]
    data = load("omniglot")
    assert data.name == "omniglot"
    assert np.array_equal(data.train, np.rint(theirs[:-3] * 255))
    assert np.array_equal(load("omniglot:binarise=threshold").valid, theirs[-3:] >= 0.5)


def test_tabular_sets(folder):
    rows = np.random.default_rng(0).integers(0, 2, (30, 16))
    (folder / "nltcs").mkdir()  # as their repository lays them out
    for split, n in zip(SPLITS, (30, 20, 10), strict=True):
        np.savetxt(folder / "nltcs" / f"nltcs.{split}.data", rows[:n], "%d", delimiter=",")
    data = load("nltcs")
    assert (data.kind, data.shape) == ("binary", (16,))
    assert np.array_equal(data.valid, rows[:20])
    (folder / "nltcs" / "nltcs.test.data").write_text("0,1,x\n")
    assert "no numbers" in refusal(load, "nltcs")


def test_sizes_are_what_the_descriptions_say():
    assert set(SIZES) == set(DATASETS)
    for name, size in SIZES.items():
        assert describe(DATASETS[name]).endswith(f"{'/'.join(map(str, size.rows))} rows.")


@pytest.mark.parametrize("name", ["binarized-mnist", "mnist", "caltech-silhouettes", "omniglot"])
def test_sets_that_are_here_have_their_sizes(name, monkeypatch):
    monkeypatch.setenv("DOUBLY_DATA", os.environ.get("DOUBLY_DATA") or str(SHARED))
    try:
        data = load(name)
    except ValueError as error:
        if "which is not in" not in str(error):
            raise
        pytest.skip(str(error))
    assert tuple(len(data.split(split)) for split in SPLITS) == SIZES[name].rows
    assert data.width == SIZES[name].width
    assert data.dynamic == (name in ("mnist", "omniglot"))


def test_upright_twice_is_nothing():
    assert np.array_equal(upright(upright(images(4))), images(4))
    assert "784" in refusal(upright, images(4)[:, :7])
