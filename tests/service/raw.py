"""Sends requests as raw bytes, which HTTP libraries would not send."""

import http.client
import json
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.service.process import Service
from tests.waiting import LIMIT

# A route and a valid body of each API family.
FAMILIES = {
    "/embed": b'{"inputs": ["red river", "stone"], "truncate": true}',
    "/v1/embeddings": b'{"input": ["red river", "stone"], "model": "m"}',
    "/v2/embed": b'{"texts": ["red river"], "embedding_types": ["float"]}',
}

LISTENS = "0A"  # the state of a socket in /proc/net/tcp


@contextmanager
def ending_well(folder: Path, models_dir: Path, **variables: str) -> Iterator[Service]:
    """Starts a service. At the end it must be healthy, stop normally, and have logged no traceback."""
    with Service(folder, models_dir, **variables) as service:
        yield service
        assert service.client.get("/health").status_code == 200
        assert service.stop() == 0
        assert "Traceback" not in service.log.read_text()


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def refused(self, path: str, status: int, kind: str) -> str:
        """Checks that the answer is an error of the API family of `path`. Returns the error message.

        Args:
            status: The status on native routes. OpenAI's and Cohere's routes answer 400 instead of 422.
            kind: `error_type` on native routes, and `code` on OpenAI's. Cohere's errors have no kind.
        """
        family = path.startswith(("/v1", "/v2"))
        assert self.status == ({422: 400}.get(status, status) if family else status), self.body
        assert self.headers["content-type"] == "application/json"
        assert self.headers["x-request-id"]
        said: dict[str, Any] = json.loads(self.body)
        if path.startswith("/v1"):
            assert set(said["error"]) == {"message", "type", "param", "code"}
            assert said["error"]["code"] == kind
            return str(said["error"]["message"])
        if path.startswith("/v2"):
            assert set(said) == {"message"}
            return str(said["message"])
        assert set(said) == {"error", "error_type"}
        assert said["error_type"] == kind
        return str(said["error"])


class Wire:
    """One raw connection to the service."""

    def __init__(self, service: Service, *, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(LIMIT)
        self.socket.connect(("127.0.0.1", service.port))
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, *parts: bytes | Iterable[bytes]) -> Self:
        """Sends bytes. A connection that the service has closed is not an error."""
        try:
            for part in parts:
                for piece in (part,) if isinstance(part, bytes) else part:
                    self.socket.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return self

    def line(self) -> bytes:
        """Reads the next line."""
        return self._file.readline()

    def answer(self, method: str = "POST") -> Answer:
        """Reads the next answer."""
        status = int(self._file.readline().split()[1])
        headers = http.client.parse_headers(self._file)
        length = 0 if method == "HEAD" else int(headers["content-length"])
        return Answer(status, headers, self._file.read(length))

    def closed(self) -> bool:
        """Returns whether the service closes the connection without further bytes."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True


def held(service: Service, wire: Wire | None = None) -> int:
    """Counts the service's connections, also half-closed ones. With `wire`, counts only this one."""
    here, there = f":{service.port:04X}", "" if wire is None else f":{wire.socket.getsockname()[1]:04X}"
    lines = Path(f"/proc/{service.process.pid}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(
        line[1].endswith(here) and line[2].endswith(there) and line[3] != LISTENS and line[9] != "0"
        for line in fields
    )


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Returns a request with the correct length."""
    return head(path, f"Content-Length: {len(body)}", *headers) + body


def head(target: str | bytes, *headers: str | bytes, method: str = "POST") -> bytes:
    """Returns the request line and headers of a request with a JSON body."""
    first = b" ".join([method.encode(), _bytes(target), b"HTTP/1.1"])
    lines = [first, b"Host: localhost", b"Content-Type: application/json", *map(_bytes, headers)]
    return b"\r\n".join([*lines, b"", b""])


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


def chunked(pieces: Iterable[bytes]) -> Iterable[bytes]:
    for piece in pieces:
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def check_served(service: Service, seconds: float = 5) -> None:
    """Checks that a request on a new connection is served within `seconds`."""
    began = time.monotonic()
    with Wire(service) as wire:
        wire.send(post("/embed", b'{"inputs": "and now for something else"}'))
        assert wire.answer().status == 200
    assert time.monotonic() - began < seconds
