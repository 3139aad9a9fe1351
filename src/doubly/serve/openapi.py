"""The document of the API: OpenAPI 3.1, made from the requests and answers, for the model that is served."""

from typing import Any, NamedTuple

from doubly import __version__
from doubly.serve import answers, requests
from doubly.serve.model import Served
from doubly.serve.schema import Named, Schema, of, ref

JSON, CSV = "application/json", "text/csv"


class Route(NamedTuple):
    """A path of the API."""

    path: str
    about: str
    answer: type | str
    """What it answers, or the media type of a text."""
    request: type | str | None = None
    """What it takes by POST, or the media type of a text; a path without is asked by GET."""

    @property
    def method(self) -> str:
        return "get" if self.request is None else "post"


ROUTES = (
    Route("/api/model", "What is served.", answers.ModelAnswer),
    Route("/api/examples", "Rows to begin with.", answers.ExamplesAnswer),
    Route("/api/score", "The log-likelihood of rows.", answers.ScoreAnswer, requests.ScoreRequest),
    Route("/api/impute", "Completions of rows with missing values.", answers.ImputeAnswer, requests.ImputeRequest),
    Route("/api/sample", "New rows.", answers.SampleAnswer, requests.SampleRequest),
    Route("/api/encode", "Codes of rows.", answers.EncodeAnswer, requests.EncodeRequest),
    Route("/api/complete", "A CSV with missing cells, completed.", CSV, CSV),
)
ERRORS = {
    400: "The request is not as it should be.",
    403: "The request comes from a page of another origin, or names a host that is not ours.",
    405: "This path is asked by another method.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is of another type.",
    503: "Too many requests are waiting: try again in a moment.",
}


def schemas(served: Served) -> Named:
    """The named schemas: rows as this model has them, requests and answers."""
    completed = answers.CompletedImage if served.is_image else answers.CompletedRow
    found: dict[str, Schema] = {"Row": served.row_schema, "Completed": of(completed), "Error": of(answers.ErrorAnswer)}
    found |= {} if served.is_image else {"CompletedCell": of(answers.CompletedCell)}
    for route in ROUTES:
        found |= {kind.__name__: of(kind) for kind in (route.request, route.answer) if isinstance(kind, type)}
    return found


def document(served: Served) -> dict[str, Any]:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": f"doubly: {served.name}", "version": __version__, "description": _ABOUT},
        "paths": {route.path: {route.method: _operation(route)} for route in ROUTES},
        "components": {"schemas": dict(schemas(served))},
    }


_ABOUT = "Completions, likelihoods, codes and new rows of one model. Errors are JSON with one line."


def _operation(route: Route) -> dict[str, Any]:
    taken = {400, 408, 413, 415, 503} if route.request else set()
    found: dict[str, Any] = {
        "operationId": route.path.rpartition("/")[2],
        "summary": route.about,
        "responses": {"200": {"description": route.about, "content": _content(route.answer)}}
        | {
            str(code): {"description": ERRORS[code], "content": {JSON: {"schema": ref("Error")}}}
            for code in sorted({403, 405} | taken)
        },
    }
    if route.request:
        found["requestBody"] = {"required": True, "content": _content(route.request)}
    return found


def _content(kind: type | str) -> dict[str, Any]:
    return {kind: {"schema": {"type": "string"}}} if isinstance(kind, str) else {JSON: {"schema": ref(kind.__name__)}}
