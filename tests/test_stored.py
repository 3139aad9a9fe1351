"""Training rows that stay in their files: the same rows, the same fits, and memory that does not grow with the file."""

import importlib.util
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import doubly
from doubly.analysis.evaluate import evaluate
from doubly.core.errors import UserError
from doubly.core.rows import StoredRows, blocks, shuffled
from doubly.data import Data, load
from doubly.data.stored import ArrayFile, Chosen, Packed, Shards, as_stored
from forks import call
from test_data import refusal

RNG = np.random.default_rng(0)
BITS = (RNG.random((230, 21)) < 0.3).astype(np.uint8)
REAL = RNG.normal(size=(230, 5)).astype(np.float32)


def saved(folder: Path, rows: np.ndarray, name: str = "rows.npy") -> Path:
    np.save(folder / name, rows)
    return folder / name


def shards(folder: Path, rows: np.ndarray, split: str = "") -> Path:
    """The rows in three files of different kinds and lengths; of two kinds where pyarrow is not there."""
    folder.mkdir(exist_ok=True)
    first, second, third = np.split(rows, [len(rows) // 5, len(rows) // 2])
    np.save(folder / f"{split}a.npy", first)
    np.savez(folder / f"{split}b.npz", data=second)
    if importlib.util.find_spec("pyarrow"):
        from pyarrow import parquet, table

        parquet.write_table(table({str(i): third[:, i] for i in range(rows.shape[1])}), folder / f"{split}c.parquet")
    else:
        np.savez(folder / f"{split}c.npz", data=third)
    return folder


@pytest.fixture(params=["file", "packed", "shards", "chosen"])
def stored(request, tmp_path) -> tuple[StoredRows, np.ndarray]:
    """Rows in each way of storing them, and the same rows in memory."""
    match request.param:
        case "file":
            return ArrayFile(saved(tmp_path, REAL)), REAL
        case "packed":
            return Packed.of(BITS), BITS
        case "shards":
            return Shards(sorted(shards(tmp_path / "s", REAL).iterdir())), REAL
    numbers = np.flatnonzero(np.arange(len(BITS)) % 3)
    return Chosen(ArrayFile(saved(tmp_path, BITS)), numbers, np.dtype(np.float32)), BITS[numbers].astype(np.float32)


def test_rows_are_those_that_were_stored(stored):
    rows, there = stored
    assert rows.shape == there.shape
    assert len(rows) == len(there)
    assert rows.dtype == there.dtype
    some = np.random.default_rng(1).integers(len(there), size=500)  # any order, and several times the same
    assert np.array_equal(rows[some], there[some])
    assert torch.equal(rows[torch.as_tensor(some)], torch.as_tensor(there[some]))
    assert np.array_equal(rows[7:90:3], there[7:90:3])
    assert np.array_equal(rows[-1], there[-1])
    assert np.array_equal(np.asarray(rows), there)
    assert np.array_equal(np.concatenate([*blocks(rows, 100)]), there)


def test_bits_take_an_eighth():
    assert Packed.of(BITS)._bits.nbytes == len(BITS) * math.ceil(21 / 8)


def test_images_in_a_file_keep_their_shape(tmp_path):
    rows = ArrayFile(saved(tmp_path, BITS[:, :20].reshape(-1, 4, 5)))
    assert rows.row_shape == (4, 5)
    assert np.array_equal(rows[:], BITS[:, :20])


# Splits and kinds


@pytest.mark.parametrize("rows", [BITS, REAL, np.where(BITS == 1, np.nan, 0.0)], ids=["bits", "real", "missing"])
def test_a_stored_file_has_the_rows_of_one_in_memory(rows, tmp_path):
    path = saved(tmp_path, rows)
    inside, there = load(path), load(f"{path}:stored=true")
    assert inside.stored is None
    assert there.stored is not None
    assert (there.kind, there.shape, there.has_missing) == (inside.kind, inside.shape, inside.has_missing)
    for split in ("valid", "test"):
        assert np.array_equal(getattr(there, split), getattr(inside, split), equal_nan=True)
    assert there.origin is not None
    assert inside.origin is not None
    order = np.argsort(inside.origin.rows["train"])  # stored rows stay in the order of the file
    assert np.array_equal(np.asarray(there.stored), inside.train[order], equal_nan=True)
    assert there.stored.dtype == inside.train.dtype


def test_a_folder_has_splits_by_name(tmp_path):
    folder = shards(tmp_path / "s", BITS, "train-")
    shards(folder, BITS[:30], "valid-")
    shards(folder, BITS[30:70], "test-")
    data = load(folder)
    assert data.kind == "binary"
    assert data.stored is not None
    assert np.array_equal(np.asarray(data.stored), BITS)
    assert np.array_equal(data.valid, BITS[:30])
    assert np.array_equal(data.test, BITS[30:70])


def test_few_of_many_rows_are_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr("doubly.data.files.HELD_OUT", 11)
    data = load(f"{saved(tmp_path, BITS)}:stored=true")
    assert (len(data.all_train), len(data.valid), len(data.test)) == (208, 11, 11)


def test_large_files_stay_stored_and_large_bits_are_packed(tmp_path, monkeypatch):
    path = saved(tmp_path, BITS)
    monkeypatch.setattr("doubly.data.files.LARGE", 1000)
    assert load(path).stored is not None
    assert load(f"{path}:stored=false").stored is None
    monkeypatch.setattr("doubly.data.files.PACKED_FROM", 1000)
    monkeypatch.setattr("doubly.data.files.LOOKED_AT", 50)
    data = load(f"{path}:stored=false")
    assert isinstance(data.stored, Packed)
    assert len(data.all_train) == 184
    assert len(data.train) == 50


def test_bits_stay_in_the_file_where_memory_is_short(tmp_path, monkeypatch):
    rows = ArrayFile(saved(tmp_path, BITS))
    assert isinstance(as_stored(rows, None, "binary", missing=False), Packed)
    monkeypatch.setattr("doubly.data.stored.free_memory", lambda: 4 * BITS.size / 8 - 1)
    assert isinstance(as_stored(rows, None, "binary", missing=False), Chosen)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda f: saved(f, np.zeros((0, 3))), "has no values"),
        (lambda f: saved(f, np.zeros(7)), "must be rows by columns"),
        (lambda f: saved(f, np.asfortranarray(REAL)), "its columns one after the other"),
        (lambda f: saved(f, REAL.astype(complex)), "expected numbers"),
        (lambda f: saved(f, np.where(REAL > 2, np.inf, REAL)), "row "),
        (lambda f: saved(f, np.where(REAL > 2, 1e300, REAL.astype(float))), "too large for float32"),
    ],
)
def test_what_cannot_be_learnt_is_refused(make, said, tmp_path):
    assert said in refusal(load, f"{make(tmp_path)}:stored=true")


def test_damaged_stores_are_named(tmp_path):
    path = saved(tmp_path, REAL)
    os.truncate(path, os.path.getsize(path) - 1)
    assert "is cut short" in refusal(load, f"{path}:stored=true")
    path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00nonsense here...")
    assert "it may be damaged" in refusal(load, f"{path}:stored=true")
    rows = ArrayFile(saved(tmp_path, REAL))
    os.truncate(tmp_path / "rows.npy", 200)
    with pytest.raises(UserError, match="was cut short while it was read"):
        rows.read(np.arange(100, 200))


@pytest.mark.parametrize("shape", [(-3, 5), (3, -5), (-3, -5), (2**70, 5)], ids=str)
def test_headers_that_cannot_be_are_refused(shape, tmp_path):
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.write(bytes(60))
    said = refusal(load, f"{tmp_path / 'a.npy'}:stored=true")
    assert "has no values" in said or "is cut short" in said


@pytest.mark.parametrize("dim", [-5, 0, 8, 17, 10**12])
def test_packed_shards_have_as_many_bits_as_they_say(dim, tmp_path):
    np.savez(tmp_path / "a.npz", data=np.zeros((40, 2), np.uint8), dim=np.array(dim))
    assert "packed bits" in refusal(load, tmp_path)


def test_shards_that_do_not_fit_together(tmp_path):
    folder = shards(tmp_path / "s", REAL)
    np.save(folder / "d.npy", BITS)
    assert "make them alike" in refusal(load, folder)
    os.remove(folder / "d.npy")
    np.save(folder / "train.npy", REAL)
    assert "begin its name with train, valid or test" in refusal(load, folder)
    assert "binarise is said of" in refusal(load, f"{saved(tmp_path, BITS)}:stored=true,binarise=sample")
    assert "only a .npy" in refusal(load, f"{folder / 'b.npz'}:stored=true")


# The order of an epoch


class Sorted(StoredRows):
    """Rows whose value is the number of their block: sorted, as badly as a file can be."""

    dtype = np.dtype(np.float32)
    block = 32

    def __init__(self, n: int, window: int):
        self.shape, self.window = (n, 1), window

    def read(self, numbers: np.ndarray) -> np.ndarray:
        return (numbers // self.block)[:, None].astype(np.float32)


def test_an_epoch_goes_through_windows_of_blocks():
    rows = Sorted(32 * 50 + 7, window=8)
    order = shuffled(rows, torch.Generator().manual_seed(0))
    assert torch.equal(order.sort().values, torch.arange(len(rows)))
    seen = [set((part // rows.block).tolist()) for part in order.split(rows.block * rows.window)]
    assert max(map(len, seen)) <= 2 * rows.window  # the short block shifts the rows of the windows behind it
    assert len(seen[0]) == rows.window
    assert order[:100].tolist() != sorted(order[:100].tolist())


def test_the_variance_of_a_mini_batch_is_what_is_said():
    """1 + rho (B - 1) / W, here with rho = 1: all variance is between blocks. Of the first batch of 4,000 epochs; a
    sample variance of so many means has a relative error of sqrt(2 / 4000) = 0.022. Blocks are drawn without
    replacement, 8 of 256, which takes 8 / 256 off."""
    rows, batch = Sorted(32 * 256, window=8), 16
    rng = torch.Generator().manual_seed(1)
    means = torch.stack([rows[shuffled(rows, rng)[:batch]].mean() for _ in range(4000)]).double()
    independent = rows[:].astype(float).var() / batch
    expected = 1 + (batch - 1) / rows.window
    assert means.var().item() / independent == pytest.approx(expected, rel=4 * 0.022 + 8 / 256)


# Fits


def test_a_fit_of_stored_rows_is_that_of_the_same_rows_in_memory(tmp_path):
    """Bit for bit, where one window holds all rows, so that the order of an epoch is the same."""
    rows = (np.random.default_rng(2).random((300, 12)) < 0.4).astype(np.uint8)
    settings: dict[str, Any] = {"hidden": (4,), "epochs": 3, "collect": 2, "batch": 50, "quiet": True, "threads": 1}
    path = saved(tmp_path, rows)
    data = load(f"{path}:stored=true")
    inside = Data("inside", np.asarray(data.stored), data.valid, data.test, data.shape, data.kind)
    doubly.fit(data=f"{path}:stored=true", out=tmp_path / "a", **settings)
    doubly.fit(data=inside, out=tmp_path / "b", **settings)
    one, other = (doubly.load(tmp_path / name) for name in "ab")
    assert one.collected == 2
    assert torch.equal(one.last_theta, other.last_theta)
    assert torch.equal(one.phi, other.phi)
    assert np.array_equal(one.log_likelihood(rows[:9], draws=20), other.log_likelihood(rows[:9], draws=20))


def test_a_run_knows_its_stored_rows(tmp_path):
    path = saved(tmp_path, BITS)
    run = doubly.fit(
        data=f"{path}:stored=true", out=tmp_path / "a", hidden=(4,), epochs=2, collect=1, quiet=True, threads=1
    )
    assert run.n_data == 184
    assert evaluate(tmp_path / "a", draws=20, by="draws", quiet=True).to_json()["n"] == 23
    np.save(path, 1 - BITS)
    assert "is not the data" in refusal(run.data)


def status(name: str) -> int:
    found = re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


def grown(path: str, out: str) -> int:
    """In a process of its own: by how much memory grows while a file is fitted."""
    settings: dict[str, Any] = {
        "hidden": (8,), "epochs": 1, "collect": 0, "theta_steps": 1, "batch": 2000, "draws": 2, "valid_draws": 2,
        "estimator": "nais", "quiet": True, "threads": 1,
    }  # fmt: skip
    small = Path(out).with_name("small.npy")
    np.save(small, np.random.default_rng(0).normal(size=(5000, 64)).astype(np.float32))
    real: dict[str, Any] = {
        "model": "gaussian:widths=none,normal",
        "proposal": "gaussian:widths=8",
        "objective": "iwae",
    }
    doubly.fit(data=f"{small}:stored=true", out=f"{out}-small", **settings | real)  # what is loaded once
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    doubly.fit(data=f"{path}:stored=true,valid=0.001,test=0.001", out=out, **settings | real)
    return status("VmHWM") - before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a stretch of work")
def test_memory_is_bounded_while_a_larger_file_is_fitted(tmp_path):
    """A file of 256 MB, 1,000,000 rows of 64 columns. Numbers of all rows take 8 MB, and an order of them six copies;
    20,000 rows to look at, twice, 10 MB; a block of 2**20 cells, looked at in five copies, 20 MB. Rows in memory would
    take 256 MB, and their splits as much again."""
    rows = np.lib.format.open_memmap(tmp_path / "large.npy", "w+", np.float32, (1_000_000, 64))
    for start in range(0, len(rows), 100_000):
        rows[start : start + 100_000] = np.random.default_rng(start).normal(size=(100_000, 64))
    del rows
    assert call(grown, str(tmp_path / "large.npy"), str(tmp_path / "run")) < 80e6
