"""The load generator: closed-loop clients in a process of their own, at little cost of CPU.

    bench ── Load as JSON on stdin ──▶ python -m benchmarks.load ── Answers as JSON on stdout ──▶ bench
                                          │ clients, each with one request in flight each
                                          ▼
                                        server

Requests are bytes made beforehand, clients are bare protocols on kept-alive connections, and a response is
read no further than its status and length. The measured window begins when the server is warm and ends with
all clients still busy, so it has neither a run-up nor a tail. It is bounded by count and by time.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import uvloop

from benchmarks.machine import Watch, Window
from benchmarks.places import BenchError
from benchmarks.wire import Connection
from benchmarks.workloads import PROJECT

HOST = "127.0.0.1"
DRAIN_SECONDS = 10.0
WARM_SECONDS = 180.0  # for the answers before the window: 512 texts of the slowest peer


@dataclass(frozen=True, slots=True)
class Load:
    """The requests to send, in order, from the first again after the last."""

    port: int
    requests: list[str]  # ASCII
    clients: int
    warm: int  # answers before the window begins
    seconds: float  # of the window, at most
    pids: dict[str, int]  # processes to count beside the generator's own
    count: int = 10_000_000  # answers of the window, at most
    keep: list[int] = field(default_factory=list)  # requests whose response body is wanted
    reconnects: int = 0  # connections that the server may close: the request is sent again on a new one


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers within the window."""

    window: Window
    milliseconds: list[tuple[int, float]]  # (request, latency) of each answer
    bodies: dict[int, str]  # of the requests to keep
    reconnects: int  # connections that the server closed


class LoadError(BenchError):
    """A response was not 200, a connection broke, or nothing was answered in time."""


def start(load: Load) -> subprocess.Popen[str]:
    """Begin to send; `finish` waits for the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.load"],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(load)))
    process.stdin.close()
    process.stdin = None  # or communicate() would flush it
    return process


def finish(process: subprocess.Popen[str]) -> Answers:
    """Raises LoadError."""
    output, _ = process.communicate()
    if not output:
        raise LoadError("the load generator broke; its own message stands above")
    answer = json.loads(output)
    if "error" in answer:
        raise LoadError(answer["error"])
    return Answers(
        Window(**answer["window"]),
        [(request, latency) for request, latency in answer["milliseconds"]],
        {int(request): body for request, body in answer["bodies"].items()},
        answer["reconnects"],
    )


def saturated(port: int, pid: int, requests: list[str], clients: int, seconds: float) -> float:
    """Answers per second that `clients` without pause get of the service. Raises LoadError."""
    answers = finish(start(Load(port, requests, clients, 4 * clients, seconds, {"server": pid})))
    return len(answers.milliseconds) / answers.window.seconds


class _Run:
    """A load: its clients, and their answers so far."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.requests = [request.encode("ascii") for request in load.requests]
        self._pids = {**load.pids, "load": os.getpid()}
        self._keep = set(load.keep)
        self._sent = 0
        self._answered = 0
        self._in_flight = 0
        self._watch: Watch | None = None
        self._window: Window | None = None
        self._over = False
        self.error: str | None = None
        self._latencies: list[tuple[int, float]] = []
        self._bodies: dict[int, str] = {}
        self._reconnects = 0
        self._connecting: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._done = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        clients = [
            (await self._loop.create_connection(lambda: _Client(self), HOST, self._load.port))[1]
            for _ in range(self._load.clients)
        ]
        self._loop.call_later(WARM_SECONDS, self._give_up)
        for client in clients:
            client.send_next()
        await self._done.wait()
        self._over = True
        for client in clients:
            client.close()
        if self.error is not None:
            return {"error": self.error}
        assert self._window is not None
        return {
            "window": asdict(self._window),
            "milliseconds": self._latencies,
            "bodies": self._bodies,
            "reconnects": self._reconnects,
        }

    def take(self) -> int | None:
        """The next request to send, None when the window is over."""
        if self._window is not None or self.error is not None:
            return None
        self._in_flight += 1
        self._sent += 1
        return (self._sent - 1) % len(self.requests)

    def answered(self, request: int, status: int, body: memoryview, milliseconds: float) -> None:
        self._in_flight -= 1
        self._answered += 1
        if status != 200:
            self.fail(f"a request was answered {status}: {bytes(body[:300])!r}")
        elif self._watch is not None and self._window is None:
            self._latencies.append((request, milliseconds))
            if request in self._keep:
                self._bodies[request] = bytes(body).decode()
            if len(self._latencies) >= self._load.count:
                self._stop()
        elif self._watch is None and self._answered >= self._load.warm:
            self._watch = Watch(self._pids)
            self._loop.call_later(self._load.seconds, self._stop)
        if self._window is not None and not self._in_flight:
            self._done.set()

    def lost(self, client: "_Client", error: Exception | None) -> None:
        """The server closed a connection. It may do that to one on which nothing is asked any more."""
        if self._over or self.error is not None or not client.waits:
            return
        if self._reconnects >= self._load.reconnects:
            self.fail(f"the server closed a connection ({error})")
            return
        self._reconnects += 1
        task = self._loop.create_task(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: "_Client") -> None:
        try:
            await self._loop.create_connection(lambda: client, HOST, self._load.port)
        except OSError as error:
            self.fail(f"the server closed a connection and takes no other ({error})")
        else:
            client.send_again()

    def _stop(self) -> None:
        """The window is over; what is in flight is let out, so that the server is idle afterwards."""
        if self._window is None:
            assert self._watch is not None
            self._window = self._watch.window()
            self._loop.call_later(DRAIN_SECONDS, self.fail, "the server did not answer the last requests")

    def _give_up(self) -> None:
        if self._watch is None:
            self.fail("the server answered too few requests to begin to measure")

    def fail(self, error: str) -> None:
        """The run is worthless, unless it is over."""
        if not self._over and self.error is None:
            self.error = error
            self._done.set()


class _Client(Connection):
    """Sends the next request as soon as the last one is answered."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run
        self._request = 0
        self._sent = 0.0
        self.waits = False  # for an answer

    def connection_lost(self, error: Exception | None) -> None:
        self._run.lost(self, error)

    def send_next(self) -> None:
        request = self._run.take()
        if request is None:
            return
        self._request, self.waits = request, True
        self._sent = time.perf_counter()
        self.write(self._run.requests[request])

    def send_again(self) -> None:
        """On a new connection; the latency counts from the first time."""
        self.begin_anew()
        self.write(self._run.requests[self._request])

    def answered(self, status: int, response: bytearray, body_at: int) -> None:
        milliseconds = (time.perf_counter() - self._sent) * 1000
        self.waits = False
        self._run.answered(self._request, status, memoryview(response)[body_at:], milliseconds)
        self.send_next()


async def _main() -> dict[str, Any]:
    load = Load(**json.load(sys.stdin))
    try:
        return await _Run(load).run()
    except OSError as error:
        return {"error": f"the server on port {load.port} cannot be reached: {error}"}


if __name__ == "__main__":
    json.dump(uvloop.run(_main()), sys.stdout)
