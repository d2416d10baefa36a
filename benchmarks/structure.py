"""The walk of a reader through the code: python -m benchmarks.structure

    entries    files and folders of each package, and files of more than 300 lines
    chain      the longest chain of imports within service/, in files
    changes    how often execution moves to another file of service/, for one request
    batching   files of service/batching/ that one request enters

sys.setprofile counts the last two, over all threads of a service in this process, with a tiny model.
"""

import argparse
import ast
import asyncio
import json
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Self

from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message

from benchmarks.workloads import PROJECT
from models.publishing.publish import publish
from models.store import Store
from service.app import create_app
from service.settings import Settings
from tests.tiny import tiny_source

PACKAGES = ("service", "training", "models", "benchmarks")
MOST_LINES = 300
HOST = "testserver"


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.structure", description=__doc__).parse_args()
    for package in PACKAGES:
        names = [path.name for path in (PROJECT / package).iterdir() if path.name != "__pycache__"]
        lines = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in _files(package)}
        print(f"{package}: {len(names)} entries, {sum(lines.values())} lines of Python")
        for file, count in lines.items():
            if count > MOST_LINES:
                print(f"{file.relative_to(PROJECT)}: {count} lines")
    chain = longest_chain()
    print(f"longest chain of imports in service/: {len(chain)} files\n  {' > '.join(chain)}")
    for what, files in walks().items():
        entered = sorted({Path(file).stem for file in files if Path(file).parent.name == "batching"})
        print(f"{what}: {len(files)} changes of file; batching: {len(entered)} files, {', '.join(entered)}")


def _files(package: str) -> list[Path]:
    return sorted((PROJECT / package).rglob("*.py"))


def longest_chain() -> list[str]:
    """The longest path in the graph of imports at the top of the files of service/, as module names."""
    modules = {_module(file): file for file in _files("service")}

    @cache
    def imports(module: str) -> frozenset[str]:
        found: set[str] = set()
        for node in ast.parse(modules[module].read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
                found |= inner or {node.module} & modules.keys()
        return frozenset(found - {module})

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return (module, *max((chain(other) for other in imports(module)), key=len, default=()))

    return [*max((chain(module) for module in modules), key=len)]


def _module(file: Path) -> str:
    return ".".join(file.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__")


class Walk:
    """Calls into files of service/, on every thread, and how often two in a row are of different files."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._inside = str(PROJECT / "service")

    def __enter__(self) -> Self:
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(self._inside) and file not in self.files[-1:]:
            self.files.append(file)


def walks() -> dict[str, list[str]]:
    """The files that each request goes through, in order."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        store = Store(place / "models")
        store.want(publish(store, tiny_source(place / "tiny")).version)
        settings = Settings(
            data_dir=place / "data", models_dir=store.root, workers=1, allowed_hosts=HOST, examples=False
        )
        found: dict[str, list[str]] = {}
        with Walk() as walk, TestClient(create_app(settings)) as client:
            while client.get("/ready").status_code != 200:
                pass
            client.post("/documents", json={"documents": [{"id": "a", "text": "the river"}]})
            for text in ("warm", "warmer", "warmest"):
                client.post("/embed", json={"inputs": text})
                client.get("/search", params={"q": text})
            stone = json.dumps({"inputs": "stone"}).encode()
            asked = {
                "POST /embed, a new text": ("POST", "/embed", b"", stone),
                "POST /embed, a cached text": ("POST", "/embed", b"", stone),
                "GET /search": ("GET", "/search", b"q=red+stone", b""),
            }
            assert client.portal is not None
            for what, request in asked.items():
                before = len(walk.files)
                client.portal.call(_ask, client.app, *request)
                found[what] = walk.files[before:]
        return found


async def _ask(app: ASGIApp, method: str, path: str, query: bytes, body: bytes) -> None:
    """Send a request as a server hands it on: a test client's own waiting would count as changes of file."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": [
            (b"host", HOST.encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ],
        "client": ("127.0.0.1", 50000),
        "server": (HOST, 80),
    }
    parts = iter([{"type": "http.request", "body": body}])
    statuses: list[int] = []

    async def receive() -> Message:
        if (part := next(parts, None)) is not None:
            return part
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        statuses.append(message.get("status", 0))

    await app(scope, receive, send)
    assert statuses[0] == 200, statuses


if __name__ == "__main__":
    main()
