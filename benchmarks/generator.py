"""A load generator: clients in a process of their own, at little cost of CPU.

    bench ── a load, as a line of JSON ──▶ closedloop.py, openloop.py ── lines of JSON ──▶ bench
                                                 │ connections (wire.py)
                                                 ▼
                                               server

Requests are bytes made beforehand and clients are bare protocols, to take little of the processors that they
share with the service.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

from benchmarks.places import BenchError
from benchmarks.process import Process
from benchmarks.wire import Connection
from benchmarks.workloads import PROJECT


class Generator(Process):
    """The bench's side: the process that runs `module`."""

    def __init__(self, module: str) -> None:
        super().__init__("The load generator", [sys.executable, "-m", module], cwd=PROJECT, piped=True)

    def answer(self) -> dict[str, Any]:
        """The next line of it. Raises BenchError."""
        found = super().answer()
        if "error" in found:
            raise BenchError(found["error"])
        return found


class Run:
    """The process's side: the requests, the connections, and the end of it all."""

    def __init__(self, port: int, requests: list[str]) -> None:
        self.requests = [request.encode("ascii") for request in requests]
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, connection: Connection) -> None:
        """Raises OSError."""
        await self._loop.create_connection(lambda: connection, "127.0.0.1", self._port)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself holds it by a weak reference
        task.add_done_callback(self._tasks.discard)

    def end(self, error: str | None = None) -> None:
        """The run is over, and with an error it is worthless. Only the first end counts."""
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(BenchError(error))


def main(run: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """The program of a generator: read a load, and answer what became of it."""

    async def answer() -> dict[str, Any]:
        load = json.loads(sys.stdin.readline())
        try:
            return await run(load)
        except BenchError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"the server on port {load['port']} cannot be reached: {error}"}

    found = uvloop.run(answer())
    # Buffered, whatever PYTHONUNBUFFERED says: without a buffer a write that is cut short is not finished.
    with open(1, "w", encoding="utf-8", closefd=False) as channel:
        print(json.dumps(found), file=channel)
