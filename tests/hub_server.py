"""A small Hub on this machine: the HTTP API that the client of the Hugging Face Hub speaks, files kept in memory."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".doubly")  # what goes apart from the commit, as the Hub has it


class Hub(ThreadingHTTPServer):
    """Repositories by name: of each its files, and whether it is private."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.refuse = 0
        """A status that every request gets."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def sha(self, repository: str) -> str:
        """Of the content of a repository: its only commit."""
        found = hashlib.sha1()
        for name, content in sorted(self.files[repository].items()):
            found.update(name.encode() + hashlib.sha256(content).digest())
        return found.hexdigest()


class Answers(BaseHTTPRequestHandler):
    """One request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _say(self, status: int, content: Any = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        if self.server.refuse:
            self._say(self.server.refuse, {"error": "not today"})
        elif path.startswith("/api/models/"):
            self._model(path, body)
        elif "/resolve/" in path:
            self._resolve(path)
        else:
            self._other(path, body)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _other(self, path: str, body: bytes) -> None:
        hub = self.server
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'someone'}/{asked['name']}"
            new = name not in hub.files
            hub.files.setdefault(name, {})
            secret = (
                asked.get("private") or asked.get("visibility") == "private"
            )  # as clients up to 0.x said, and since
            hub.private.setdefault(name, bool(secret))
            self._say(200 if new else 409, {"url": f"{hub.address}/{name}", "id": name})
        elif path == "/api/validate-yaml":
            self._say(200, {"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                each | {"actions": {"upload": {"href": f"{hub.address}/blobs/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            self._say(200, {"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")
        elif path.startswith("/blobs/"):
            hub.blobs[path.removeprefix("/blobs/")] = body
            self._say(200)
        else:
            self._say(404, {"error": f"no such thing as {path}"}, X_Error_Code="RepoNotFound")

    def _model(self, path: str, body: bytes) -> None:
        hub = self.server
        owner, name, *rest = path.removeprefix("/api/models/").split("/")
        repository, what = f"{owner}/{name}", rest[0] if rest else "revision"
        if repository not in hub.files:
            self._say(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return
        files = hub.files[repository]
        if what == "revision":
            self._say(200, {"id": repository, "sha": hub.sha(repository), "siblings": []})
        elif what == "tree":
            self._say(200, [{"type": "file", "path": each, "size": len(files[each]), "oid": "0"} for each in files])
        elif what == "preupload":
            asked = json.loads(body)["files"]
            modes = {each["path"]: "lfs" if each["path"].endswith(LARGE) else "regular" for each in asked}
            found = [{"path": each, "uploadMode": mode, "shouldIgnore": False} for each, mode in modes.items()]
            self._say(200, {"files": found})
        elif what == "commit":
            self._commit(files, body)
            address = f"{hub.address}/{repository}/commit/{hub.sha(repository)}"
            self._say(200, {"commitUrl": address, "commitOid": hub.sha(repository), "hookOutput": ""})

    def _commit(self, files: dict[str, bytes], body: bytes) -> None:
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]

    def _resolve(self, path: str) -> None:
        repository, _, rest = path.lstrip("/").partition("/resolve/")
        commit, _, name = rest.partition("/")
        content = self.server.files.get(repository, {}).get(name)
        if content is None:
            self._say(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            return
        tag = hashlib.sha256(content).hexdigest()
        large = {"X_Linked_Etag": f'"{tag}"', "X_Linked_Size": str(len(content))} if name.endswith(LARGE) else {}
        self._say(200, content, ETag=f'"{tag}"', X_Repo_Commit=commit, **large)


@contextmanager
def running() -> Iterator[Hub]:
    """A Hub while it is used."""
    hub = Hub()
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
