"""Fetching: the right file is kept; a wrong one, half of one and no network are one line each and leave nothing."""

import hashlib
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from doubly.data import SPLITS, fetch, load, named
from doubly.data.describe import check, info, listing
from doubly.data.fetch import HOMES, Remote, remembered, tabular_home
from test_data import SHARED, refusal

ROWS = np.random.default_rng(0).integers(0, 2, (50, 784), dtype=np.uint8)
CONTENT = "".join(" ".join(map(str, row)) + "\n" for row in ROWS.tolist()).encode()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        self.server.asked.append(self.path)
        if "absent" in self.path:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if "cut" in self.path:
            self.wfile.write(CONTENT[: len(CONTENT) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(CONTENT)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server(("127.0.0.1", 0), Handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no data folder."""
    monkeypatch.delenv("DOUBLY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "doubly"


def at_home(server, monkeypatch, page: str = "", checksum: str | None = f"sha256:{SHA256}") -> None:
    """Have binarized-mnist live on the local server."""
    base = f"http://127.0.0.1:{server.server_port}/{page}"
    remotes = tuple(remote._replace(url=base + remote.name, checksum=checksum) for remote in HOMES["binarized-mnist"])
    monkeypatch.setitem(fetch.HOMES, "binarized-mnist", remotes)


def left(folder) -> list[str]:
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


def test_right_file(server, cache, monkeypatch, capsys):
    at_home(server, monkeypatch)
    assert next(entry for entry in listing() if entry["name"] == "binarized-mnist")["status"] == "download"
    assert info("binarized-mnist")["homes"][0].endswith("binarized_mnist_train.amat")
    assert check("binarized-mnist") == [f"binarized-mnist is not in {cache}: it is fetched when first loaded"]
    assert server.asked == []  # none of these fetches
    data = load("binarized-mnist")
    for split in SPLITS:
        assert np.array_equal(data.split(split), ROWS)
    names = [f"binarized_mnist_{split}.amat" for split in sorted(SPLITS)]
    assert left(cache) == [*names, "checksums.json"]
    assert remembered(cache) == dict.fromkeys(names, SHA256)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "fetching http://127.0.0.1" in captured.err
    load("binarized-mnist")
    assert len(server.asked) == 3  # once is enough
    assert next(entry for entry in listing() if entry["name"] == "binarized-mnist")["status"] == "here"


@pytest.mark.parametrize("checksum", [f"sha256:{'0' * 64}", f"md5:{'0' * 32}"])
def test_wrong_checksum(checksum, server, cache, monkeypatch):
    at_home(server, monkeypatch, checksum=checksum)
    message = refusal(load, "binarized-mnist")
    assert f"checksum must be {checksum}" in message
    assert "thrown away" in message
    assert left(cache) == []


def test_md5_is_enough(server, cache, monkeypatch):
    at_home(server, monkeypatch, checksum=f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    assert np.array_equal(load("binarized-mnist").test, ROWS)


@pytest.mark.parametrize("checksum", [f"sha256:{SHA256}", None])
def test_cut_connection(checksum, server, cache, monkeypatch):
    at_home(server, monkeypatch, "cut/", checksum)
    message = refusal(load, "binarized-mnist")
    assert "cannot fetch http://127.0.0.1" in message
    assert "set DOUBLY_DATA" in message
    assert left(cache) == []


def test_absent_page(server, cache, monkeypatch):
    at_home(server, monkeypatch, "absent/")
    assert "404" in refusal(load, "binarized-mnist")
    assert left(cache) == []


def test_no_network(server, cache, monkeypatch):
    with socket.socket() as unused:  # a port that nobody answers at
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        remotes = tuple(remote._replace(url=url + remote.name) for remote in HOMES["binarized-mnist"])
        monkeypatch.setitem(fetch.HOMES, "binarized-mnist", remotes)
        message = refusal(load, "binarized-mnist")
    assert "cannot fetch" in message
    assert "refused" in message
    assert left(cache) == []
    monkeypatch.setitem(fetch.HOMES, "binarized-mnist", (remotes[0]._replace(url="http://no.such.host.invalid/a"),))
    assert "cannot fetch http://no.such.host.invalid/a" in refusal(load, "binarized-mnist")


def test_no_place_to_write(server, cache, monkeypatch):
    at_home(server, monkeypatch)
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where the folder should be")
    assert f"cannot write into {cache}" in refusal(load, "binarized-mnist")


def test_unknown_checksum_is_trusted_once_and_written_down(server, cache, monkeypatch, capsys):
    at_home(server, monkeypatch, checksum=None)
    load("binarized-mnist")
    assert f"SHA-256 {SHA256}" in capsys.readouterr().err
    assert json.loads((cache / "checksums.json").read_text())["binarized_mnist_train.amat"] == SHA256
    path = cache / "binarized_mnist_valid.amat"
    assert not any("changed" in line for line in check("binarized-mnist"))
    path.write_bytes(CONTENT[: 1568 * 30])
    assert any(line.startswith(f"{path} has changed since it was fetched") for line in check("binarized-mnist"))


def test_nothing_is_fetched_where_a_data_folder_is_named(server, cache, tmp_path, monkeypatch):
    at_home(server, monkeypatch)
    monkeypatch.setenv("DOUBLY_DATA", str(tmp_path))
    assert "which is not in" in refusal(load, "binarized-mnist")
    assert check("binarized-mnist") == [
        f"binarized-mnist is not in {tmp_path}: set DOUBLY_DATA to the folder that has it"
    ]
    assert server.asked == []


def test_every_published_set_has_a_home_whose_files_can_be_read():
    for name, forms in named.FORMS.items():
        files = tuple(remote.name for remote in named.homes(name))
        assert files in [form.files for form in forms], name
        for remote in named.homes(name):
            assert remote.url.startswith("http")
            assert remote.url.endswith(remote.name)
            if remote.checksum:
                kind, _, digits = remote.checksum.partition(":")
                assert len(digits) == {"sha256": 64, "md5": 32}[kind]
    assert tabular_home("ad")[0] == Remote(
        "ad.train.data",
        "https://raw.githubusercontent.com/UCLA-StarAI/Density-Estimation-Datasets/master/datasets/ad/ad.train.data",
        None,
    )


def test_known_checksums_are_those_of_the_rows_here(monkeypatch):
    """The published text of binarised MNIST, written from the rows in the data folder, has the SHA-256 in the table."""
    monkeypatch.setenv("DOUBLY_DATA", os.environ.get("DOUBLY_DATA") or str(SHARED))
    try:
        data = load("binarized-mnist")
    except ValueError as error:
        pytest.skip(str(error))
    for split, remote in zip(SPLITS, HOMES["binarized-mnist"], strict=True):
        text = np.full((len(data.split(split)), 2 * 784), ord(" "), dtype=np.uint8)
        text[:, ::2] = data.split(split) + ord("0")
        text[:, -1] = ord("\n")
        assert remote.checksum == f"sha256:{hashlib.sha256(text.tobytes()).hexdigest()}"
