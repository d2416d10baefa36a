"""The base of both load generators: clients in a process of their own that uses little CPU.

    benchmark ── a load, as a line of JSON ──▶ closedloop.py, openloop.py ── lines of JSON ──▶ benchmark
                                                 │ connections
                                                 ▼
                                               server

The generator shares the processors with the service. So requests are bytes made beforehand, and clients are
bare asyncio protocols without an HTTP library. A response is parsed only for its status and length.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import uvloop

from benchmarks.command import PROJECT, BenchError
from benchmarks.processes import Process


def post_request(path: str, body: Any) -> str:
    """Return a request with a JSON body, in ASCII."""
    content = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"
    return f"{head}\r\ncontent-length: {len(content)}\r\n\r\n{content}"


def get_request(target: str) -> str:
    """Return a GET request, in ASCII."""
    return f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Connection(asyncio.Protocol):
    """The client's end of a kept-alive connection with at most one request in flight.

    Subclasses define `answered` and `connection_lost`.
    """

    def __init__(self) -> None:
        self._received = bytearray()
        self._needed = 0  # bytes of the response; 0 until its head is complete
        self._body_at = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start with an empty buffer. A client may connect again after a partial response."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._received, self._needed = bytearray(), 0

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def write(self, request: bytes) -> None:
        """Send the bytes of a request."""
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Collect bytes, and call `answered` after the last byte of a response."""
        self._received += data
        if not self._needed:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at = end + 4
            self._needed = self._body_at + _content_length(bytes(self._received[:end]))
        if len(self._received) < self._needed:
            return
        response, self._received, self._needed = self._received, bytearray(), 0
        self.answered(int(response[9:12]), response, self._body_at)

    def answered(self, status: int, response: bytearray, body_at: int) -> None:
        """Handle a complete response. Its body begins at byte `body_at`."""
        raise NotImplementedError


def _content_length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0])  # the service sends a length with every response


class Generator(Process):
    """The benchmark's side: the process that runs `module`."""

    def __init__(self, module: str) -> None:
        super().__init__("The load generator", [sys.executable, "-m", module], cwd=PROJECT, piped=True)

    def answer(self) -> dict[str, Any]:
        """Return its next line. Raises BenchError."""
        found = super().answer()
        if "error" in found:
            raise BenchError(found["error"])
        return found


class Run:
    """The generator's side: the requests, the connections and the end of the run."""

    def __init__(self, port: int, requests: list[str]) -> None:
        self.requests = [request.encode("ascii") for request in requests]
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, connection: Connection) -> None:
        """Connect to the server. Raises OSError."""
        await self._loop.create_connection(lambda: connection, "127.0.0.1", self._port)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task."""
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the event loop holds only a weak reference
        task.add_done_callback(self._tasks.discard)

    def end(self, error: str | None = None) -> None:
        """End the run. An error makes it invalid. Only the first call counts."""
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(BenchError(error))


def main(run: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Run a generator's process: read a load from stdin, and write the result of `run` to stdout."""

    async def answer() -> dict[str, Any]:
        load = json.loads(sys.stdin.readline())
        try:
            return await run(load)
        except BenchError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"the server on port {load['port']} cannot be reached: {error}"}

    found = uvloop.run(answer())
    # PYTHONUNBUFFERED would make stdout unbuffered, and a partial write would then not be completed.
    with open(1, "w", encoding="utf-8", closefd=False) as channel:
        print(json.dumps(found), file=channel)
