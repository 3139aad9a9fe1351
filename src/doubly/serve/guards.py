"""Who may ask, how much they may send, and the headers of every answer.

A page of a stranger, open in the same browser, could send requests to this machine. It is kept out by three things: the
name in the Host header must be ours (a stranger's name that was made to lead here is not), a request that names its
origin must name ours, and bodies must be JSON or CSV, which other pages cannot send without asking first.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PATIENCE = 30.0  # seconds in which a body must have come


class Refused(Exception):
    """A request that is not answered, with its status."""

    def __init__(self, status: int, line: str):
        super().__init__(line)
        self.status, self.line = status, line


def error(status: int, line: str) -> JSONResponse:
    """An answer that says what was wrong, in one line."""
    more = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error": " ".join(line.split())}, status, more)


class Guard:
    """Answers only requests to one of our names and from our own page; adds the headers to every answer."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()):
        self.app, self.names = app, {*LOCAL, *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        wrong = self.wrong(Headers(scope=scope))
        await (error(403, wrong) if wrong else self.app)(scope, receive, send_with_headers)

    def wrong(self, headers: Headers) -> str:
        """What is wrong with the names in the headers; nothing, if they are ours."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if len(headers.getlist("host")) != 1 or _name(host) not in self.names:
            return f"the host {host[:80]!r} is not one of ours: open http://127.0.0.1, or name it with --allow"
        if origin is not None and (len(headers.getlist("origin")) != 1 or not _same(origin, host)):
            return f"the origin {origin[:80]!r} is not this page"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return "the request comes from another page"
        return ""


def _name(host: str) -> str:
    """The name in a Host header, without the port; nothing where it cannot be read."""
    try:
        found = urlsplit(f"//{host}")
        return (found.hostname or "") if found.netloc == host and "@" not in host else ""
    except ValueError:
        return ""


def _same(origin: str, host: str) -> bool:
    scheme, mark, netloc = origin.partition("://")
    return bool(mark) and scheme in ("http", "https") and netloc.lower() == host.lower()


async def body(request: Request, media: str, most: int) -> bytes:
    """The body, if it is of this type and small enough: counted as it comes, whatever Content-Length says."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != media:
        raise Refused(415, f"send {media} (the header Content-Type says what it is)")
    said = request.headers.get("content-length", "0")
    if not said.isascii() or not said.isdigit():
        raise Refused(400, "Content-Length must be a whole number")
    if len(said) > 18 or int(said) > most:
        raise Refused(413, f"the body must have at most {most} bytes: send less at a time")
    try:
        async with asyncio.timeout(PATIENCE):
            return await _read(request, most)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {PATIENCE:.0f} seconds") from None
    except ClientDisconnect:
        raise Refused(400, "the body was cut short") from None


async def _read(request: Request, most: int) -> bytes:
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > most:
            raise Refused(413, f"the body must have at most {most} bytes: send less at a time")
    return bytes(found)


def read_json(content: bytes) -> Any:
    """JSON without NaN and infinities; whatever else is wrong with it is one line."""
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as wrong:
        raise Refused(400, f"the body is no JSON: {str(wrong)[:120] or 'it is nested too deeply'}") from None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON; use null for a missing value")
