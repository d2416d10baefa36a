"""The load generator: a separate process that simulates many clients with little CPU time.

    benchmark ── Load ──▶ python -m benchmarks.load ── its start time, then Answers ──▶ benchmark
              ── end of stdin: no more arrivals ──▶        │ connections
                                                           ▼
                                                         server

A closed loop has a fixed number of clients. Each client sends its next request after the previous answer. The
measured window begins when the server is warm and ends while all clients are still busy. Only answers in the
window are returned.

An open loop (`Load.rate`) draws the arrival times of requests beforehand, as a Poisson process. A latency
counts from the intended arrival to the last byte of the answer. So if the service stalls for a second, the
latency of every request of that second includes the stall. A closed loop would hide it. Each request takes a
free connection. If all are busy, the generator opens more up to a limit, and the other requests queue. The
delay that the generator itself causes is reported separately.

The generator shares the processors with the service. Therefore all requests are built beforehand, connections
are bare asyncio protocols without an HTTP library, and only the status and length of a response are parsed.
All times are of `time.monotonic()`, which is the same clock in all processes.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, count, takewhile
from typing import Any, cast

import numpy as np
import uvloop
from numpy.typing import NDArray

from benchmarks.command import PROJECT, BenchError
from benchmarks.machine import Watch, Window
from benchmarks.processes import Process

HEAD_START_SECONDS = 0.2  # from the message with the start time to the start
TICK_SECONDS = 0.001  # the event loop's own resolution; a shorter timer would make it spin
WARM_SECONDS = 180.0  # for the answers before the window: 512 texts of the slowest peer
DRAIN_SECONDS = 10.0  # for the answers in flight at the end of a closed loop
OPEN_DRAIN_SECONDS = 150.0  # the same for an open loop; longer than the service's own deadline
KEEP_SECONDS = 3.0  # the service closes connections after 5 idle seconds, so older ones are not used
OPENED_AT_ONCE = 64
JSON = {"content-type": "application/json"}
NOTHING: Mapping[str, str] = {}
COLUMNS = {
    "request": np.int64,
    "arrived": np.float64,
    "late_ms": np.float64,
    "milliseconds": np.float64,
    "status": np.int64,
    "retry_after": np.bool_,
}


def build_request(method: str, target: str, content: str = "", headers: Mapping[str, str] = NOTHING) -> str:
    """Return the text of an HTTP request. It is sent in Latin-1."""
    named = {"host": "localhost", **headers} | ({"content-length": str(len(content))} if content else {})
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", content])


def post_request(path: str, body: Any, accept: str = "") -> str:
    """Return the text of a POST request with a JSON body."""
    return build_request("POST", path, json.dumps(body), JSON | ({"accept": accept} if accept else {}))


def get_request(target: str) -> str:
    """Return the text of a GET request."""
    return build_request("GET", target)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that the generator sends in order. After the last one, the first one follows again.

    Attributes:
        port: The server's port.
        requests: The requests, in Latin-1.
        clients: Number of connections opened before the first request. In a closed loop, each is a client.
        seconds: In a closed loop, maximum length of the window. In an open loop, period of the arrivals.
        rate: Mean number of arrivals per second. 0 means a closed loop.
        max_connections: Maximum number of connections of an open loop.
        seed: Seed of the random arrival times.
        warm: Number of answers before the window of a closed loop begins.
        pids: Processes to measure in the window in addition to the generator, by name.
        keep: Numbers of the requests whose response bodies are returned.
        reconnects: How many times the server may close a connection. The generator then sends the request
            again on a new connection.
        expected: Statuses that are valid for each request of a closed loop. Without them, 200 alone is valid.

    """

    port: int
    requests: list[str]
    clients: int
    seconds: float
    rate: float = 0.0
    max_connections: int = 0
    seed: int = 0
    warm: int = 0
    pids: dict[str, int] = field(default_factory=dict)
    keep: list[int] = field(default_factory=list)
    reconnects: int = 0
    expected: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class Answers:
    """The outcomes of requests, in the order of arrival. Each array has one entry per request.

    An open loop has all requests; a closed loop has those that were answered in the window.

    Attributes:
        request: Index of the request in `Load.requests`.
        arrived: Intended time of arrival.
        late_ms: Milliseconds from the arrival until the request was sent.
        milliseconds: Milliseconds from the arrival until the answer was complete.
        status: HTTP status. 0 if the connection broke or no answer came.
        retry_after: True if the answer has a Retry-After header.
        max_open: Largest number of open connections.
        window: Length and CPU time of the window. In an open loop, without CPU times.
        bodies: Response bodies of the requests in `Load.keep`.
        reconnects: Number of connections that the server closed.

    """

    request: NDArray[np.int64]
    arrived: NDArray[np.float64]
    late_ms: NDArray[np.float64]
    milliseconds: NDArray[np.float64]
    status: NDArray[np.int64]
    retry_after: NDArray[np.bool_]
    max_open: int
    window: Window
    bodies: dict[int, str]
    reconnects: int

    @property
    def rate(self) -> float:
        """Answers of a closed loop per second in the window."""
        return len(self.status) / self.window.seconds

    def between(self, begin: float, end: float) -> "Answers":
        """Return the outcomes of requests that arrived from `begin` until before `end`."""
        inside = (self.arrived >= begin) & (self.arrived < end)
        return replace(self, **{name: getattr(self, name)[inside] for name in COLUMNS})


class Generator(Process):
    """A process that sends a load. The load starts at the time `begin`, and `finish` waits for its end."""

    def __init__(self, load: Load) -> None:
        """Start the generator. Raises BenchError."""
        super().__init__("The load generator", [sys.executable, "-m", __name__], cwd=PROJECT, piped=True)
        self._open = bool(load.rate)
        self.begin = float(self.order(**asdict(load))["begin"])

    def finish(self) -> Answers:
        """Wait for the end of the load, and return the answers.

        This ends the arrivals of an open loop. To end a closed loop early, call `end_orders` first.

        Raises:
            BenchError: The generator failed.

        """
        if self._open:
            self.end_orders()
        try:
            found = self.answer()
        finally:
            self.close()
        columns: dict[str, Any] = {name: np.array(found.pop(name), kind) for name, kind in COLUMNS.items()}
        window = Window(**found.pop("window"))
        bodies = {int(request): body for request, body in found.pop("bodies").items()}
        return Answers(**columns, window=window, bodies=bodies, **found)

    def answer(self) -> dict[str, Any]:
        """Return the generator's next line of JSON. Raises BenchError if the line reports an error."""
        found = super().answer()
        if "error" in found:
            self.close()
            raise BenchError(found["error"])
        return found


def measure_capacity(port: int, pid: int, requests: list[str], clients: int, seconds: float) -> float:
    """Return the answers per second of the service under a closed loop. Raises BenchError on a failure."""
    load = Load(port, requests, clients, seconds, warm=4 * clients, pids={"server": pid})
    return Generator(load).finish().rate


class _Connection(asyncio.Protocol):
    """A kept-alive connection with at most one request in flight."""

    def __init__(self, run: "_Run") -> None:
        self._run = run
        self._received = bytearray()
        self._needed = 0  # bytes of the response; 0 until its head is complete
        self._body_at = 0
        self._number: int | None = None
        self.free_since = 0.0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass

    def send(self, number: int, request: bytes) -> None:
        self._number = number
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Collect bytes, and report the response after its last byte."""
        self._received += data
        if not self._needed:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at = end + 4
            # The service sends a length with every response.
            _, _, rest = bytes(self._received[:end]).lower().partition(b"content-length:")
            self._needed = self._body_at + int(rest.split(b"\r\n", 1)[0])
        if len(self._received) < self._needed or self._number is None:
            return
        response, self._received, self._needed = bytes(self._received), bytearray(), 0
        number, self._number = self._number, None
        self._run.answered(self, number, response[: self._body_at], response[self._body_at :])

    def connection_lost(self, error: Exception | None) -> None:
        self._run.lost(self, self._number, error)


class _Run:
    """The state of the generator: the connections, the queue of requests, and the outcomes so far."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._requests = [request.encode("latin-1") for request in load.requests]
        self._max_open = load.max_connections or load.clients
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._due: list[float] = []  # moments of the arrivals of an open loop
        self._queue: deque[int] = deque()
        self._free: deque[_Connection] = deque()
        self._open = self._opening = self._most_open = 0
        self._answered = self._reconnects = 0
        self._stopped = False
        self._watch: Watch | None = None
        self._window: Window | None = None
        self._span = (0.0, 0.0)
        self._bodies: dict[int, str] = {}
        # Number, arrival, delay, latency, status and Retry-After of each request, as in COLUMNS.
        self._rows: list[list[Any]] = []

    async def run(self) -> dict[str, Any]:
        """Send all requests, and return the fields of `Answers`."""
        load = self._load
        for opened in range(0, load.clients, OPENED_AT_ONCE):
            together = min(OPENED_AT_ONCE, load.clients - opened)
            await asyncio.gather(*(self._connect() for _ in range(together)))
        begin_at = time.monotonic() + HEAD_START_SECONDS
        print(json.dumps({"begin": begin_at}), flush=True)
        self._loop.add_reader(sys.stdin, self._stop)  # nothing more is sent, stdin is only closed
        if load.rate:
            self._due = [begin_at + offset for offset in _draw_arrivals(load)]
            self._admit_arrivals()
        else:
            self._loop.call_later(WARM_SECONDS, self._give_up)
            for _ in range(load.clients):
                self._arrive(time.monotonic())
            self._send(time.monotonic())
        await self._done
        window, rows = self._window, self._rows
        if window is not None:
            begin, end = self._span
            rows = [row for row in rows if row[4] and begin < row[1] + row[3] / 1000 <= end]
        columns = zip(*rows, strict=True) if rows else [()] * len(COLUMNS)
        return {
            **dict(zip(COLUMNS, columns, strict=True)),
            "max_open": self._most_open,
            "window": asdict(window or Window(load.seconds, {}, 0.0)),
            "bodies": self._bodies,
            "reconnects": self._reconnects,
        }

    def answered(self, connection: _Connection, number: int, head: bytes, body: bytes) -> None:
        """Record an answer. In a closed loop, queue the next request."""
        now = time.monotonic()
        row, status = self._rows[number], int(head[9:12])
        row[3:5] = (now - row[1]) * 1000, status
        if status != 200:
            row[5] = b"\r\nretry-after:" in head.lower()
        self._answered += 1
        connection.free_since = now
        self._free.append(connection)
        if not self._load.rate:
            if status not in (self._load.expected[row[0]] if self._load.expected else (200,)):
                self._end(f"{self._load.requests[row[0]][:100]!r} was answered {status}: {body[:300]!r}")
            self._count(row[0], body)
            if not self._stopped:
                self._arrive(now)
        self._send(now)

    def lost(self, connection: _Connection, number: int | None, error: Exception | None) -> None:
        """Handle a broken connection. A closed loop sends the request again, until `Load.reconnects`."""
        self._open -= 1
        if number is None:
            if connection in self._free:
                self._free.remove(connection)
        elif self._load.rate:
            self._answered += 1  # its status stays 0
        elif self._reconnects >= self._load.reconnects:
            self._end(f"the server closed a connection ({error})")
        else:
            self._reconnects += 1
            self._queue.appendleft(number)
        self._send(time.monotonic())

    def _count(self, request: int, body: bytes) -> None:
        """Begin the window when the server is warm. Then keep the body if `request` is in `Load.keep`."""
        if self._watch is None:
            if self._answered >= self._load.warm:
                self._watch = Watch({**self._load.pids, "load": os.getpid()})
                self._span = time.monotonic(), 0.0
                self._loop.call_later(self._load.seconds, self._stop)
        elif not self._stopped and request in self._load.keep:
            self._bodies[request] = body.decode()

    def _stop(self) -> None:
        """Stop new arrivals and let the server answer all requests in flight."""
        if self._stopped:
            return
        self._stopped = True
        self._loop.remove_reader(sys.stdin)
        if self._load.rate:
            self._loop.call_later(OPEN_DRAIN_SECONDS, self._end)
        elif self._watch is None:
            self._give_up()
        else:
            self._window, self._span = self._watch.window(), (self._span[0], time.monotonic())
            self._loop.call_later(DRAIN_SECONDS, self._end, "the server did not answer the last requests")
        self._end_if_done()

    def _give_up(self) -> None:
        if self._watch is None:
            self._end("the server answered too few requests to start measuring")

    def _admit_arrivals(self) -> None:
        """Queue all requests whose arrival time has come, and schedule the next call of this method."""
        if self._stopped:
            return
        now = time.monotonic()
        while len(self._rows) < len(self._due) and self._due[len(self._rows)] <= now:
            self._arrive(self._due[len(self._rows)])
        self._send(now)
        if len(self._rows) < len(self._due):
            self._loop.call_later(max(TICK_SECONDS, self._due[len(self._rows)] - now), self._admit_arrivals)

    def _arrive(self, moment: float) -> None:
        number = len(self._rows)
        self._queue.append(number)
        self._rows.append([number % len(self._requests), moment, 0.0, 0.0, 0, False])

    def _send(self, now: float) -> None:
        """Send queued requests on free connections, and open more connections for the remaining requests."""
        while self._queue and self._free:
            connection = self._free.popleft()
            if now - connection.free_since > KEEP_SECONDS:
                connection.transport.close()
                continue
            number = self._queue.popleft()
            row = self._rows[number]
            row[2] = (now - row[1]) * 1000
            connection.send(number, self._requests[row[0]])
        missing = min(len(self._queue), self._max_open - self._open) - self._opening
        for _ in range(missing):
            self._opening += 1
            task = self._loop.create_task(self._connect_for_queue())
            self._tasks.add(task)  # the event loop holds only a weak reference
            task.add_done_callback(self._tasks.discard)
        self._end_if_done()

    async def _connect_for_queue(self) -> None:
        try:
            await self._connect()
        except OSError as error:
            if not self._load.rate:
                self._end(f"the server closed a connection and accepts no other ({error})")
            return  # the server is full; queued requests wait for a connection that becomes free
        finally:
            self._opening -= 1
        self._send(time.monotonic())

    async def _connect(self) -> None:
        """Open a connection. Raises OSError."""
        connection = _Connection(self)
        await self._loop.create_connection(lambda: connection, "127.0.0.1", self._load.port)
        self._open += 1
        self._most_open = max(self._most_open, self._open)
        connection.free_since = time.monotonic()
        self._free.append(connection)

    def _end_if_done(self) -> None:
        over = self._stopped or (self._load.rate and len(self._rows) == len(self._due))
        if over and not self._queue and self._answered == len(self._rows):
            self._end()

    def _end(self, error: str | None = None) -> None:
        """End the run, which is invalid if an error is given. Only the first call has an effect."""
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(BenchError(error))


def _draw_arrivals(load: Load) -> list[float]:
    """Draw the arrival times of a Poisson process with `load.rate` arrivals per second, in seconds from 0."""
    chance = random.Random(load.seed)
    moments = accumulate(chance.expovariate(load.rate) for _ in count())
    return [*takewhile(lambda moment: moment < load.seconds, moments)]


async def _answer() -> dict[str, Any]:
    load = Load(**json.loads(sys.stdin.readline()))
    try:
        return await _Run(load).run()
    except BenchError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"the server on port {load.port} cannot be reached: {error}"}


def main() -> None:
    """Run the generator process: read a load from stdin, send it, and write the answers to stdout."""
    found = uvloop.run(_answer())
    # PYTHONUNBUFFERED would make stdout unbuffered, and a partial write would then not be completed.
    with open(1, "w", encoding="utf-8", closefd=False) as channel:
        print(json.dumps(found), file=channel)


if __name__ == "__main__":
    main()
