"""A fake hub on loopback: model information, file trees, and files with ETag, commit and ranges."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "c0ffee" + "0" * 34
_MODEL = re.compile(r"/api/models/([^/]+/[^/]+)(/revision/main|/tree/.*)?(\?.*)?$")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)$")


class Hub:
    """One repository, `somebody/model`, with the files of `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.sent: list[tuple[str, str]] = []  # each sent file with its requested range
        self.missing = ""  # a file that is listed but missing
        self.gated = False
        self.breaks = 0  # Weights: so many answers break off. -1: all, without a byte.


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None: ...

    def _answer(self, *, body: bool) -> None:
        model, file = _MODEL.match(self.path), _FILE.match(self.path)
        found = model or file
        if found is None or found[1] != "somebody/model":
            self._refuse(401, "RepoNotFound")
        elif self.hub.gated and file:
            self._refuse(403, "GatedRepo")
        elif model:
            self._send(json.dumps(self._tree() if "/tree/" in self.path else self._info()).encode(), {}, body)
        elif file:
            self._file(file[2], body=body)

    def _paths(self) -> list[str]:
        files = (file for file in sorted(self.hub.folder.rglob("*")) if file.is_file())
        return [file.relative_to(self.hub.folder).as_posix() for file in files]

    def _info(self) -> dict[str, object]:
        siblings = [{"rfilename": path} for path in self._paths()]
        return {"id": "somebody/model", "modelId": "somebody/model", "sha": COMMIT, "siblings": siblings}

    def _tree(self) -> list[dict[str, object]]:
        return [
            {
                "type": "file",
                "path": path,
                "size": (self.hub.folder / path).stat().st_size,
                "oid": self._etag(path),
            }
            for path in self._paths()
        ]

    def _etag(self, path: str) -> str:
        return hashlib.sha1((self.hub.folder / path).read_bytes()).hexdigest()

    def _file(self, path: str, *, body: bool) -> None:
        if path == self.hub.missing or not (self.hub.folder / path).is_file():
            self._refuse(404, "EntryNotFound")
            return
        content = (self.hub.folder / path).read_bytes()
        requested = self.headers.get("Range", "") if body else ""
        start = int(requested.removeprefix("bytes=").partition("-")[0]) if requested else 0
        headers = {"ETag": f'"{self._etag(path)}"', "X-Repo-Commit": COMMIT}
        if requested:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if body:
            self.hub.sent.append((path, requested))
        broken = body and path.endswith(".safetensors") and self.hub.breaks != 0
        self._send(content[start:], headers, body, 206 if requested else 200, broken=broken)

    def _send(
        self, content: bytes, headers: dict[str, str], body: bool, status: int = 200, *, broken: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in headers.items() | {"Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if broken:
            self.wfile.write(content[: len(content) // 2 if self.hub.breaks > 0 else 0])
            self.hub.breaks -= self.hub.breaks > 0
            self.close_connection = True
        elif body:
            self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
