"""The routes: the files of the page, and the API. No path of a file ever comes from a request."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from doubly.core.errors import UserError
from doubly.serve import answers, openapi, requests
from doubly.serve.csv_table import uploaded
from doubly.serve.guards import Guard, Refused, body, error, read_json
from doubly.serve.model import Served
from doubly.serve.worker import Busy, Worker

PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/api.js": ("api.js", "text/javascript"),
    "/image.js": ("image.js", "text/javascript"),
    "/table.js": ("table.js", "text/javascript"),
}
COMPUTED: dict[str, Callable[[Served, Any], Any]] = {
    "/api/score": answers.score,
    "/api/impute": answers.impute,
    "/api/sample": answers.sample,
    "/api/encode": answers.encode,
}
Endpoint = Callable[[Request], Awaitable[Response]]


def app(served: Served, names: Iterable[str] = (), threads: int = 1, most_waiting: int = 16) -> Starlette:
    """The application for one model; `names` are further names of this machine by which it may be asked."""
    worker, named = Worker(most_waiting, threads), openapi.schemas(served)
    told = {
        "/openapi.json": openapi.document(served),
        "/api/model": answers.as_json(answers.model_answer(served)),
        "/api/examples": answers.as_json(answers.examples_answer(served)),
    }

    def computed(path: str, kind: type) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            asked = read_json(await body(request, openapi.JSON, requests.MOST_BODY))
            found = await worker.run(lambda: COMPUTED[path](served, requests.parsed(kind, asked, named)))
            return JSONResponse(answers.as_json(found))

        return endpoint

    async def complete(request: Request) -> Response:
        content = await body(request, openapi.CSV, requests.MOST_BODY)
        with worker.place() as place:
            table = await place.run(uploaded, served, content)
            for rows in table.blocks():
                if await request.is_disconnected():
                    break
                await place.run(table.complete, rows)
        headers = {
            "Content-Disposition": 'attachment; filename="completed.csv"',
            "X-Doubly-Completed": str(len(table.changes)),
            "X-Doubly-Note": quote(table.note),
        }
        return Response(table.result(), media_type=openapi.CSV, headers=headers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        worker.close()

    routes = [Route(path, _file(*file)) for path, file in PAGE.items()]
    routes += [Route(path, _fixed(content)) for path, content in told.items()]
    for route in openapi.ROUTES:
        if isinstance(route.request, type):
            routes.append(Route(route.path, computed(route.path, route.request), methods=["POST"]))
    routes.append(Route("/api/complete", complete, methods=["POST"]))
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, names=tuple(names))],
        exception_handlers={
            Refused: _refused,
            UserError: _user_error,
            Busy: _busy,
            HTTPException: _http_error,
            Exception: _fault,
        },
        lifespan=lifespan,
    )


def _file(name: str, media: str) -> Endpoint:
    content = (files("doubly.serve") / "page" / name).read_bytes()

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=media)

    return endpoint


def _fixed(content: Any) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return JSONResponse(content)

    return endpoint


# Errors: one line of JSON each


async def _refused(request: Request, wrong: Exception) -> Response:
    assert isinstance(wrong, Refused)
    return error(wrong.status, wrong.line)


async def _user_error(request: Request, wrong: Exception) -> Response:
    return error(400, str(wrong))


async def _busy(request: Request, wrong: Exception) -> Response:
    return error(503, "too many requests are waiting: try again in a moment")


async def _http_error(request: Request, wrong: Exception) -> Response:
    assert isinstance(wrong, HTTPException)
    line = {404: "there is nothing here: see /openapi.json", 405: "this path is asked by another method"}
    found = error(wrong.status_code, line.get(wrong.status_code, wrong.detail))
    found.headers.update(wrong.headers or {})
    return found


async def _fault(request: Request, wrong: Exception) -> Response:
    print(f"doubly: a request to {request.url.path} failed: {wrong!r}", file=sys.stderr)
    return error(500, "something went wrong inside: the terminal of doubly serve says more")
