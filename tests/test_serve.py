"""The page's API: what it answers is what the posterior says, and what is wrong is one line with its status."""

import csv
import io
import json
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import anyio
import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

import doubly
from doubly import cli
from doubly.latents.completions import ImputeConfig
from doubly.serve import openapi, requests, schema
from doubly.serve.app import COMPUTED, PAGE, app
from doubly.serve.guards import HEADERS
from doubly.serve.model import Served, opened
from doubly.serve.worker import Busy, Worker
from test_cli import refused
from test_tables import table, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("serve")
    path = written(found, table())
    short = ["--collect", "3", "--threads", "1"]
    cli.main(["fit", "--data", "bars", "--hidden", "3", "--epochs", "4", "--out", str(found / "image"), *short])
    cli.main(["fit", "--data", str(path), "--epochs", "6", "--out", str(found / "table"), *short])
    return found


@pytest.fixture(scope="module")
def image(folder) -> Served:
    return opened(folder / "image")


@pytest.fixture(scope="module")
def mixed(folder) -> Served:
    return opened(folder / "table")


def client(served: Served, **options) -> TestClient:
    return TestClient(app(served, **options), base_url="http://127.0.0.1:8321", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def asked(image):
    return client(image)


@pytest.fixture(scope="module")
def asked_table(mixed):
    return client(mixed)


@pytest.fixture(params=["image", "mixed"])
def either(request, image, mixed, asked, asked_table):
    return (image, asked) if request.param == "image" else (mixed, asked_table)


def error(response, status: int) -> str:
    """The one line of an answer that says what was wrong."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (line,) = response.json().values()
    assert "\n" not in line
    assert "Traceback" not in line
    return line


def example(served: Served, missing: bool = False):
    """A complete row as JSON, or one with its last cell missing."""
    rows = served.written(served.examples.astype(float))
    row = next(row for row in rows if None not in (row if served.is_image else row.values()))
    if missing and served.is_image:
        return [*row[:-3], None, None, None]
    return row | {"size": None, "kind": None} if missing else row


# The document


def test_every_path_answers_as_the_document_says(either):
    served, web = either
    document = web.get("/openapi.json").json()
    named = document["components"]["schemas"]
    bodies = {"/api/score": {"rows": [example(served)], "draws": 20}, "/api/sample": {"n": 2},
              "/api/impute": {"rows": [example(served, True)], "draws": 2}, "/api/encode": {"rows": [example(served)]},
              }  # fmt: skip
    assert set(document["paths"]) == {route.path for route in openapi.ROUTES}
    for path, operations in document["paths"].items():
        (method,) = operations
        if path == "/api/complete":
            continue
        body = {"json": bodies[path]} if method == "post" else {}
        found = web.request(method, path, **body)
        assert found.status_code == 200, found.text
        content = operations[method]["responses"]["200"]["content"]["application/json"]
        schema.check(content["schema"], found.json(), named, path)
        if method == "post":
            schema.check(
                operations[method]["requestBody"]["content"]["application/json"]["schema"], bodies[path], named
            )
        other = {"post": "get", "get": "post"}[method]
        schema.check(named["Error"], web.request(other, path).json(), named)
        assert web.request(other, path).status_code == 405


def test_the_document_names_only_schemas_that_are_there(either):
    text = either[1].get("/openapi.json").text
    document = json.loads(text)
    for part in text.split('"$ref":"')[1:]:
        name = part.partition('"')[0].removeprefix(schema.REF)
        assert name in document["components"]["schemas"]


# What is answered


def test_completions_are_those_of_the_posterior(image, asked):
    row = example(image, True)
    found = asked.post("/api/impute", json={"rows": [row], "draws": 4, "sweeps": 3, "seed": 5}).json()["rows"][0]
    x = np.array([row], dtype=float)
    expected = image.posterior.impute(x, 4, ImputeConfig(sweeps=3), "ensemble", 5)
    assert found["completions"] == expected.completions[:, 0].tolist()
    np.testing.assert_allclose(found["expected"], expected.mean[0], atol=1e-6)
    p = np.array(found["expected"][-3:])
    np.testing.assert_allclose(found["certainty"], [1.0] * 13 + np.maximum(p, 1 - p).tolist(), atol=1e-6)


def test_one_sample_answers_alone(image, asked):
    for number, theta in enumerate(image.posterior.samples(), 1):
        alone = doubly.Posterior(
            image.posterior.method, image.posterior.phi, theta, theta, [theta], image.posterior.train
        )
        found = asked.post("/api/sample", json={"n": 20, "sample": number, "seed": 3}).json()["rows"]
        assert found == alone.sample(20, "last", 3).tolist()
    assert "this run has 3 samples" in error(asked.post("/api/sample", json={"sample": 4}), 400)


def test_likelihoods_are_in_the_units_of_the_table(mixed, asked_table):
    row = example(mixed)
    x = mixed.matrix([row])
    found = asked_table.post("/api/score", json={"rows": [row], "draws": 50}).json()
    expected = mixed.posterior.log_likelihood(x, draws=50, by="draws") - mixed.columns.log_scale.sum()
    assert found["log_likelihood"] == pytest.approx(expected.tolist(), abs=1e-4)
    assert found["by"] == "draws"
    scale = next(column.scale for column in mixed.columns.columns if column.name == "size")
    assert scale != 1  # else the units would not show


def test_annealing_is_asked_by_its_name(image, asked):
    found = asked.post("/api/score", json={"rows": [example(image)], "by": "annealing"}).json()
    expected = image.posterior.log_likelihood(np.array([example(image)]), by="annealing")
    assert found["log_likelihood"] == pytest.approx(expected.tolist(), abs=1e-4)
    assert found["by"] == "annealing"


def test_codes_are_those_of_the_posterior(image, asked):
    found = asked.post("/api/encode", json={"rows": [example(image)], "draws": 7}).json()["codes"]
    (expected,) = image.posterior.encode(np.array([example(image)]), 7)
    np.testing.assert_allclose(found, [expected], atol=1e-6)


def test_cells_of_a_table_are_in_its_own_words(mixed, asked_table):
    row = example(mixed, True)
    found = asked_table.post("/api/impute", json={"rows": [row], "draws": 30}).json()["rows"][0]
    assert set(found["cells"]) == {"size", "kind"}
    kind, size = found["cells"]["kind"], found["cells"]["size"]
    assert set(kind["levels"]) == {"red", "blue", "dark red"}
    assert kind["value"] == max(kind["levels"], key=kind["levels"].get)
    assert kind["certainty"] == max(kind["levels"].values())
    assert 10 < size["low"] <= size["value"] <= size["high"] < 60
    assert all(completion["grade"] == row["grade"] for completion in found["completions"])
    assert {completion["kind"] for completion in found["completions"]} <= {"red", "blue", "dark red"}


def test_examples_come_back_as_they_are(either):
    """Rows as JSON and back are the same rows, missing cells included."""
    served, web = either
    rows = web.get("/api/examples").json()["rows"]
    np.testing.assert_allclose(served.matrix(rows), served.examples, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("name", ["image", "table"])
def test_an_exported_file_is_served_alike(name, folder, image, mixed, tmp_path):
    cli.main(["export", str(folder / name), str(tmp_path / "m.doubly"), "--refit", "1"])
    served = opened(tmp_path / "m.doubly")
    served.warm_up()
    run = image if name == "image" else mixed
    assert (served.facts, served.columns) == (run.facts, run.columns)
    web = client(served)
    assert web.get("/api/examples").json()["origin"] == "drawn from the model"
    body = {"n": 3, "of": "mean", "seed": 2}
    assert (
        web.post("/api/sample", json=body).json()["rows"] == client(run).post("/api/sample", json=body).json()["rows"]
    )
    assert web.post("/api/impute", json={"rows": [example(served, True)], "draws": 3}).status_code == 200
    assert web.post("/api/score", json={"rows": [example(served)], "draws": 9}).status_code == 200


def test_visitors_at_once_get_what_they_would_get_alone(image, asked):
    bodies = [{"rows": [example(image, True)], "draws": 3, "sweeps": 2, "seed": seed} for seed in range(6)]
    alone = [asked.post("/api/impute", json=body).json()["rows"] for body in bodies]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda body: asked.post("/api/impute", json=body).json()["rows"], bodies))
    assert together == alone


# A table with missing cells


def send(web: TestClient, text: str | bytes):
    return web.post("/api/complete", content=text, headers={"Content-Type": "text/csv"})


def test_a_table_comes_back_with_its_missing_cells_completed(asked_table):
    given = table(n=12, seed=5, missing=0.3)
    found = send(asked_table, given)
    assert found.status_code == 200
    before, after = (list(csv.DictReader(io.StringIO(text))) for text in (given, found.text))
    completed = 0
    for old, new in zip(before, after, strict=True):
        for name in ("kind", "grade", "yes", "size"):
            completed += old[name] == ""
            assert new[name] == old[name] if old[name] else new[name]
        assert {name: new[name] for name in ("id", "when", "note", "same")} == {
            name: old[name] for name in ("id", "when", "note", "same")
        }
    assert int(found.headers["X-Doubly-Completed"]) == completed > 5
    assert "id%2C%20when" in found.headers["X-Doubly-Note"]
    assert {row["kind"] for row in after} <= {"red", "blue", "dark red"}
    assert all(1 <= int(row["grade"]) <= 4 and 10 < float(row["size"]) < 60 for row in after)


def test_what_was_there_comes_back_byte_for_byte(asked_table):
    given = b'\xef\xbb\xbfyes,size,kind,grade\r\n1, 30.50 ,"dark red",2\r\n"1",29,red,\r\n'
    found = send(asked_table, given).content
    head, _, last = found.rpartition(b",")
    assert head == given.rpartition(b",")[0]
    assert last in (b"1\r\n", b"2\r\n", b"3\r\n", b"4\r\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind,grade\nred,1\n", "has no column 'yes'"),
        ("kind,grade,yes,size\nred,1,0,tall\n", "line 2, column 4 of the table"),
        ("kind,grade,yes,size\nred,1\n", "line 2 of the table has 2 cells"),
        ("kind,grade,yes,size\nred,1,0,inf\n", "inf"),
        ("", "the table is empty"),
        (b"\xff\xfe\x00", "the table"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(text, said, asked_table):
    line = error(send(asked_table, text), 400)
    assert said in line
    assert "/tmp" not in line
    assert "doubly-" not in line


# What is wrong


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("sample", {"n": 0}, "n in the body must be between 1 and 1000, got 0"),
        ("sample", {"n": 10**30}, "between"),
        ("sample", {"n": 1.5}, "must be a whole number, got 1.5"),
        ("sample", {"n": True}, "must be a whole number, got True"),
        ("sample", {"m": 1}, "the body has 'm', which is not known: give n, of, sample, seed"),
        ("sample", [], "the body must be an object"),
        ("sample", {"of": "best"}, "must be one of"),
        ("impute", {}, "the body has no 'rows'"),
        ("impute", {"rows": []}, "rows in the body must have between 1 and 200 entries, got 0"),
        ("impute", {"rows": [[0] * 15]}, "rows in the body[0] must have 16 entries, got 15"),
        ("impute", {"rows": [["a"] * 16]}, "must be a number or null, got 'a'"),
        ("impute", {"rows": [[2] * 16]}, "must be between 0 and 1, got 2"),
        ("impute", {"rows": [[0.5] * 16]}, "expects 0 or 1"),
        ("impute", {"rows": [[0] * 16] * 200, "draws": 200, "sweeps": 200}, "rows x draws x sweeps"),
        ("impute", {"rows": [[0] * 16] * 200, "draws": 51}, "at most 200000, got 204000"),  # of 20 sweeps each
        ("score", {"rows": [[None] * 16]}, "impute them first"),
    ],
)
def test_a_body_that_is_not_as_it_should_be_is_one_line(path, body, said, asked):
    assert said in error(asked.post(f"/api/{path}", json=body), 400)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"colour": "red"}, "has 'colour', which is not known: give kind, grade, yes, size"),
        ({"kind": "pink"}, "'pink', which is no level of 'kind'; there are: "),
        ({"kind": ["red"]}, "must be a text or a number or null"),
        ({"kind": "r" * 201}, "at most 200 characters"),
        ({"size": "big"}, "must be a number or null"),
        ({"size": 1e300}, "float32"),
        ({"yes": 2}, "between 0 and 1"),
        ({"grade": 9}, "no level of 'grade'"),
    ],
)
def test_a_cell_that_cannot_be_is_one_line(row, said, asked_table):
    assert said in error(asked_table.post("/api/impute", json={"rows": [row]}), 400)


@pytest.mark.parametrize(
    "text",
    [b"{", b"\xff", b'{"n": NaN}', b'{"n": Infinity}', b"[" * 10**5, b'{"n": ' + b"9" * 5000 + b"}", b""],
    ids=["cut", "bytes", "nan", "infinity", "deep", "digits", "nothing"],
)
def test_what_is_no_json_is_one_line(text, asked):
    line = error(asked.post("/api/sample", content=text, headers={"Content-Type": "application/json"}), 400)
    assert len(line) < 300


@pytest.mark.parametrize("path", ["/api/sample", "/api/complete"])
@pytest.mark.parametrize(
    "kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""]
)
def test_bodies_that_other_pages_could_send_are_refused(path, kind, asked):
    error(asked.post(path, content=b"{}", headers={"Content-Type": kind} if kind else {}), 415)


@pytest.mark.parametrize("path", ["/api/sample", "/api/complete"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused_before_it_is_read_whole(path, chunked, asked, monkeypatch):
    """Also where no Content-Length says how large it is: what came so far counts."""
    monkeypatch.setattr(requests, "MOST_BODY", 1000)
    kind = {"Content-Type": "text/csv" if path.endswith("complete") else "application/json"}
    content = (b" " * 100 for _ in range(100)) if chunked else b" " * 1001
    assert "at most 1000 bytes" in error(asked.post(path, content=content, headers=kind), 413)


def test_a_length_that_is_no_number_is_refused(asked):
    kind = {"Content-Type": "application/json", "Content-Length": "-1"}
    assert "Content-Length" in error(asked.post("/api/sample", content=b"{}", headers=kind), 400)


def test_what_is_not_there_is_404_and_no_path_reaches_a_file(asked):
    for path in ("/nothing", "/../pyproject.toml", "/page.css/../app.py", "/%2e%2e/app.py", "/app.py", "//etc/passwd"):
        error(asked.get(path), 404)


def test_a_full_queue_is_503(image):
    found = client(image, most_waiting=0).post("/api/sample", json={})
    assert "try again" in error(found, 503)
    assert found.headers["Retry-After"] == "1"


def test_annealing_is_bounded_by_rows_members_and_temperatures(image, monkeypatch):
    """3 samples by 200 temperatures."""
    monkeypatch.setattr(requests, "MOST_WORK", 1199)
    body = {"rows": [example(image)] * 2, "by": "annealing", "of": "ensemble"}
    assert "rows x members x temperatures" in error(client(image).post("/api/score", json=body), 400)
    monkeypatch.setattr(requests, "MOST_WORK", 1200)
    assert client(image).post("/api/score", json=body).json()["by"] == "annealing"


def test_a_table_holds_its_place_from_the_first_block_to_the_last(mixed, monkeypatch):
    """Somebody else asks before each block: the only place is taken, and the table comes back whole."""
    found: list[int] = []

    async def story() -> httpx.Response:
        transport = httpx.ASGITransport(app(mixed, most_waiting=1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321") as web:

            async def other(_: object) -> bool:
                found.append((await web.post("/api/sample", json={})).status_code)
                return False

            monkeypatch.setattr("starlette.requests.Request.is_disconnected", other)
            text = "kind,grade,yes,size\nred,1,0,\nblue,2,1,\nred,3,1,\n"
            done = await web.post("/api/complete", content=text, headers={"Content-Type": "text/csv"})
            found.append((await web.post("/api/sample", json={})).status_code)
            return done

    monkeypatch.setattr("doubly.serve.csv_table.BLOCK_ROWS", 1)
    assert anyio.run(story).headers["X-Doubly-Completed"] == "3"
    assert found == [503, 503, 503, 200]


def test_the_queue_is_free_again_when_work_is_done_or_dropped():
    worker, go, started = Worker(2), threading.Event(), threading.Event()

    def begin() -> None:
        started.set()
        go.wait(60)

    async def story() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run, begin)
            await anyio.to_thread.run_sync(started.wait)
            with anyio.CancelScope() as gone:
                group.start_soon(cancelled, gone)
                await worker.run(lambda: pytest.fail("it was dropped"))
            assert gone.cancelled_caught
            assert await refused_twice() == 1  # the place of the one that went away is free again, and no more
            go.set()
        assert await worker.run(lambda: 7) == 7

    async def cancelled(scope: anyio.CancelScope) -> None:
        with pytest.raises(Busy):  # both places are taken
            await worker.run(lambda: 0)
        scope.cancel()

    async def refused_twice() -> int:
        count = 0
        async with anyio.create_task_group() as group:

            async def one() -> None:
                nonlocal count
                try:
                    await worker.run(lambda: 1)
                except Busy:
                    count += 1
                    go.set()

            group.start_soon(one)
            group.start_soon(one)
        return count

    anyio.run(story)
    worker.close()


def test_a_fault_of_our_own_is_one_line_without_a_traceback(image, monkeypatch, capsys):
    def fails(served, asked):
        raise ZeroDivisionError("secret")

    monkeypatch.setitem(COMPUTED, "/api/sample", fails)
    assert "secret" not in error(client(image).post("/api/sample", json={}), 500)
    assert "secret" in capsys.readouterr().err


# Who may ask


@pytest.mark.parametrize("host", ["127.0.0.1:8321", "localhost", "LOCALHOST:80", "[::1]:8321", "me.example:1"])
def test_our_own_names_are_answered(host, image):
    web = client(image, names=["me.example"])
    assert web.get("/api/model", headers={"Host": host}).status_code == 200
    assert web.get("/api/model", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "evil.example@127.0.0.1"},
        {"Host": ""},
        {"Host": "["},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "null"},
        {"Origin": "file://"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/model"])
def test_strangers_are_refused(headers, path, asked):
    error(asked.get(path, headers=headers), 403)


@pytest.mark.parametrize("path", [*PAGE, "/api/model", "/openapi.json", "/nothing"])
def test_every_answer_has_the_headers(path, asked):
    found = asked.get(path).headers
    assert {name: found[name] for name in HEADERS} == HEADERS
    policy = dict(part.strip().split(" ", 1) for part in found["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in found["Content-Security-Policy"]


def test_the_page_needs_nothing_from_elsewhere(asked):
    for path, (name, media) in PAGE.items():
        found = asked.get(path)
        assert found.headers["content-type"].startswith(media)
        for foreign in ("http://", "https://", "//cdn", "@import", "eval(", "innerHTML", "style=", " onclick="):
            assert foreign not in found.text, (name, foreign)
    there = {entry.name for entry in (files("doubly.serve") / "page").iterdir()}
    assert there == {name for name, _ in PAGE.values()}


# The command


def test_without_the_extra_one_line_says_what_to_install(folder, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "doubly.serve.run", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    line = refused(capsys, "serve", str(folder / "image"))
    assert line == "doubly: doubly serve needs uvicorn, which is not here: pip install 'doubly[serve]'"


def test_a_port_that_is_taken_and_a_folder_without_a_run_are_one_line(capsys, folder, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "choose another --port" in refused(capsys, "serve", str(folder / "image"), "--port", port)
    assert "between 0 and 65535" in refused(capsys, "serve", str(folder / "image"), "--port", "99999")
    assert "holds no run" in refused(capsys, "serve", str(tmp_path), "--port", "0")
    assert "cannot be used" in refused(capsys, "serve", str(folder / "image"), "--host", "no such host", "--port", "0")
