"""A model in other processes and threads: a fork neither hangs nor changes bits unsaid; the others give the same bits.

Each test runs in a process of its own that computes on two threads, as a user's does.
"""

import concurrent.futures
import http.server
import json
import multiprocessing
import socketserver
import threading
import urllib.request
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import doubly
from doubly.core.errors import RunWarning
from doubly.runs.fit import use_threads
from forks import call

WAIT = 500  # seconds after which a process hangs
ROWS = np.eye(16)[:5]


class Answer(NamedTuple):
    sample: list[Any]
    likelihood: list[float]
    told: list[str]


def ask(folder: str) -> Answer:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RunWarning)
        posterior = doubly.load(folder, refit_passes=1)
        sample, scores = posterior.sample(3, "last"), posterior.log_likelihood(ROWS, draws=5, of="last")
    return Answer(sample.tolist(), scores.tolist(), [str(each.message) for each in told])


def fitted(folder: str) -> Answer:
    torch.set_num_threads(2)
    doubly.fit(
        folder, data="bars", hidden=(3,), epochs=1, collect=0, theta_steps=1, threads=2, valid_draws=5, quiet=True
    )
    torch.set_num_threads(2)
    torch.rand(600, 600) @ torch.rand(600, 600)  # starts PyTorch's threads
    return ask(folder)


def in_pool(folder: str, method: str) -> tuple[Answer, list[Answer]]:
    here = fitted(folder)
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        there = [future.result(WAIT) for future in [pool.submit(ask, folder) for _ in range(2)]]
    return here, there


def test_a_forked_process_neither_hangs_nor_changes_bits_unsaid(tmp_path):
    here, there = call(in_pool, str(tmp_path / "run"), "fork")
    assert here.told == []
    for answer in there:
        assert any("spawn" in said for said in answer.told)
        assert answer.sample == there[0].sample
    assert np.isfinite(there[0].likelihood).all()


def test_a_spawned_process_gives_the_same_bits(tmp_path):
    here, there = call(in_pool, str(tmp_path / "run"), "spawn")
    assert there == [here._replace(told=[]), here._replace(told=[])]


def by_joblib(folder: str) -> tuple[Answer, list[Answer]]:
    import joblib
    from joblib.externals.loky import get_reusable_executor

    here = fitted(folder)
    there = joblib.Parallel(n_jobs=2)(joblib.delayed(ask)(folder) for _ in range(2))
    get_reusable_executor().shutdown(wait=True, kill_workers=True)  # else this process waits for idle workers
    return here, there


def test_joblib_gives_the_same_bits(tmp_path):
    pytest.importorskip("joblib")
    here, there = call(by_joblib, str(tmp_path / "run"))
    assert there == [here, here]


# Threads of Python: each computes as if it were alone


def test_a_fit_leaves_the_number_of_threads_of_others_alone():
    """A thread that begins meanwhile has the number that it would have had, and so has the one that fits, after it."""
    numbers = call(_numbers_beside_a_fit)
    assert numbers == {"begun meanwhile": 2, "in the fit": 1, "after the fit": 2, "first": 2}


def _numbers_beside_a_fit() -> dict[str, int]:
    torch.set_num_threads(2)
    found: dict[str, int] = {}
    inside, over = threading.Event(), threading.Event()

    def note(name: str) -> None:
        found[name] = torch.get_num_threads()

    def fit() -> None:
        with use_threads(1):
            inside.set()
            over.wait(WAIT)
            note("in the fit")
        note("after the fit")

    fitting = threading.Thread(target=fit)
    fitting.start()
    inside.wait(WAIT)
    _joined(threading.Thread(target=note, args=("begun meanwhile",)))
    over.set()
    fitting.join(WAIT)
    note("first")
    return found


def _joined(thread: threading.Thread) -> None:
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive(), "it hangs"


def fit_and_ask(folder: str) -> Answer:
    doubly.fit(folder, data="bars", hidden=(3,), epochs=2, collect=1, batch=500, threads=1, valid_draws=5, quiet=True)
    posterior = doubly.load(folder, refit_passes=1)
    return Answer(posterior.sample(3).tolist(), posterior.log_likelihood(ROWS, draws=5).tolist(), [])


def in_threads(folder: str) -> tuple[Answer, list[Answer], list[Answer]]:
    """Fits beside each other, then questions to one posterior beside each other."""
    alone = fit_and_ask(f"{folder}-alone")
    shared = doubly.load(f"{folder}-alone", refit_passes=1)

    def asked(_: int) -> Answer:
        return Answer(shared.sample(3).tolist(), shared.log_likelihood(ROWS, draws=5).tolist(), [])

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        fits = list(pool.map(fit_and_ask, [f"{folder}-{i}" for i in range(3)], timeout=WAIT))
        questions = list(pool.map(asked, range(6), timeout=WAIT))
    return alone, fits, questions


def test_threads_that_compute_at_once_give_the_bits_of_one_alone(tmp_path):
    alone, fits, questions = call(in_threads, str(tmp_path / "run"))
    assert fits == [alone] * 3
    assert questions == [alone] * 6


# A web server of the standard library whose workers answer with a model that was loaded, and asked, before they began


def served(folder: str, kind: str) -> tuple[list[Any], list[Any]]:
    posterior = doubly.load(folder, refit_passes=1)
    here = posterior.log_likelihood(ROWS, draws=5, of="last").tolist()  # the server has computed

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", RunWarning)
                found = posterior.log_likelihood(ROWS, draws=5, of="last").tolist()
            body = json.dumps([found, any("spawn" in str(each.message) for each in told)]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    mixin = {"fork": socketserver.ForkingMixIn, "thread": socketserver.ThreadingMixIn}[kind]
    server = type("Server", (mixin, http.server.HTTPServer), {})(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def get(_: int) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=WAIT) as answer:
            return json.load(answer)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(get, range(4)))
    server.shutdown()
    return here, answers


def fitted_and_served(folder: str, kind: str) -> tuple[list[Any], list[Any]]:
    fitted(folder)
    return served(folder, kind)


@pytest.mark.parametrize("kind", ["thread", "fork"])
def test_workers_of_a_web_server_answer(kind, tmp_path):
    here, answers = call(fitted_and_served, str(tmp_path / "run"), kind)
    if kind == "thread":
        assert [found for found, _ in answers] == [here] * 4
    else:  # other random numbers, which is said
        assert all(told for _, told in answers)
        assert [found for found, _ in answers] == [answers[0][0]] * 4
        assert np.isfinite(answers[0][0]).all()
