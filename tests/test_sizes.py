"""Sizes: what would not fit into memory is refused before it is made, and work grows with size, not with its square."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

import doubly
from doubly.core.errors import UserError
from doubly.core.sealed import parse_json
from doubly.data import formats, load
from doubly.data.columns import Columns, sheet_of, unique
from test_cli import refused


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--hidden", "1000000000"], "weights and a proposal of 65,000,000,000 needs about"),
        (["--draws", "1000000000000"], "a step of 1,000,000,000,000 draws for 100 rows needs about"),
        (["--hidden", "3", "1000000000", "--model", "darn"], "take narrower layers"),
    ],
)
def test_models_beyond_memory_are_refused_before_they_are_made(flags, said, capsys, tmp_path):
    assert said in refused(capsys, "fit", "--data", "digits", *flags, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_more_rows_than_memory_holds_are_not_drawn(capsys, tmp_path):
    run = doubly.fit(tmp_path / "run", data="bars", hidden=(2,), epochs=1, collect=0, theta_steps=1, quiet=True)
    said = refused(
        capsys, "sample", str(run.path), "-n", "1000000000000", "--of", "last", "--out", str(tmp_path / "a.npy")
    )
    assert "1,000,000,000,000 rows of 16 cells needs about" in said
    assert not (tmp_path / "a.npy").exists()


class Unpacked:
    """Counts what is unpacked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.most = 0
        real = gzip.GzipFile.read

        def read(file: gzip.GzipFile, size: int = -1) -> bytes:
            found = real(file, size)
            self.most = max(self.most, file.tell())
            return found

        monkeypatch.setattr(gzip.GzipFile, "read", read)


@pytest.mark.parametrize("name", ["a.pkl.gz", "a-ubyte.gz", "a.idx.gz"])
def test_what_unpacks_to_more_than_memory_holds_is_refused_on_the_way(name, tmp_path, monkeypatch):
    """A hundred megabytes of zeros in a hundred kilobytes; the free memory is said to be 20 MB."""
    header = b"\0\0\x08\x01" + struct.pack(">I", 10**8)
    (tmp_path / name).write_bytes(gzip.compress((b"" if "pkl" in name else header) + bytes(10**8), 1))
    monkeypatch.setattr(formats, "free_memory", lambda: 2e7)
    unpacked = Unpacked(monkeypatch)
    with pytest.raises(UserError, match=r"unpacks to more than memory holds|holds 0\.1 GB"):
        load(tmp_path / name)
    assert unpacked.most < 1.2e7  # half of the free memory, and a block of 1 MB


def test_an_idx_file_unpacks_to_no_more_than_its_header_promises(tmp_path, monkeypatch):
    file = tmp_path / "a-ubyte.gz"
    file.write_bytes(gzip.compress(b"\0\0\x08\x02" + struct.pack(">II", 10, 10) + bytes(10**8), 1))
    unpacked = Unpacked(monkeypatch)
    with pytest.raises(UserError, match="unpacks to more than 1024 bytes"):
        load(file)
    assert unpacked.most <= 1 << 20


def matlab_bomb(size: int) -> bytes:
    """A compressed element that says it has `size` bytes, and has them."""
    inside = zlib.compress(struct.pack("<II", 14, size) + bytes(10**6))
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(inside)) + inside


def test_a_matlab_element_beyond_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    (tmp_path / "a.mat").write_bytes(matlab_bomb(4 * 10**9))
    monkeypatch.setattr(formats, "free_memory", lambda: 1e9)
    with pytest.raises(UserError, match=r"an element unpacks to 4\.0 GB, more than memory holds"):
        load(tmp_path / "a.mat")


def test_a_parquet_table_beyond_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": pyarrow.array([0] * 10**6)}), tmp_path / "a.parquet")  # 1 kB by repetition
    assert (tmp_path / "a.parquet").stat().st_size < 10**5
    monkeypatch.setattr(formats, "free_memory", lambda: 1e7)
    with pytest.raises(UserError, match=r"a\.parquet holds"):
        load(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "content", [b"[" * 10**5, b'{"a":' * 10**5, b'{"a": ' + b"9" * 10**5 + b"}", b'{"a": 1e', b"\xff"]
)
def test_json_is_bounded(content):
    with pytest.raises(UserError, match=r"here\.json is damaged"):
        parse_json(content, Path("here.json"))


class Counted(str):
    """A text that counts how often one is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_wide_tables_take_time_in_proportion_to_their_width():
    """Comparing each name with each would be 4 million; with tables of names, there are a few for each name."""
    n = 2000
    names = [Counted(f"c{i}") for i in range(n)]
    Counted.compared = 0
    sheet = sheet_of({"c": [0.0]})._replace(names=unique(names, "here"), columns=[np.zeros(1)] * n)
    known = Columns.of(sheet)
    known.order(sheet)
    assert Counted.compared < 20 * n
