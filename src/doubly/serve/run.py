"""A socket, and a server behind it: on this machine only, unless another address is given."""

import socket
import sys
import webbrowser
from collections.abc import Sequence

import uvicorn

from doubly.core.errors import UserError
from doubly.serve.app import app
from doubly.serve.guards import LOCAL
from doubly.serve.model import Served

MOST_CONNECTIONS = 100


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address; an error says what to do."""
    if not 0 <= port <= 65535:
        raise UserError(f"the port must be between 0 and 65535, got {port}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"{host}, port {port}, cannot be used ({error}): choose another --port; 0 takes a free one"
        ) from None
    return found


def address(listening: socket.socket) -> str:
    """Where to open the page."""
    host, port = listening.getsockname()[:2]
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{local}:{port}/"


def serve(served: Served, listening: socket.socket, names: Sequence[str], threads: int, show: bool = False) -> None:
    """Answer until the user stops it (Ctrl-C)."""
    host = listening.getsockname()[0]
    own = [*names, *([host] if host not in ("0.0.0.0", "::") else [])]
    if host not in LOCAL:
        print("doubly: warning: everybody who reaches this machine can ask; there are no passwords", file=sys.stderr)
    print(f"{served.name}: {address(listening)} (stop with Ctrl-C; API: {address(listening)}openapi.json)", flush=True)
    try:
        if show:
            webbrowser.open(address(listening))
        config = uvicorn.Config(
            app(served, own, threads), log_level="error", access_log=False, server_header=False, proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS, timeout_keep_alive=5, timeout_graceful_shutdown=2, ws="none",
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        print("stopped", flush=True)
