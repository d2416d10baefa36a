"""A load generator in an open loop: the times of requests are drawn beforehand and do not depend on answers.

    benchmark ── Flow ──▶ python -m benchmarks.openloop ── its start time, then Outcomes ──▶ benchmark
              ── end of stdin: no more arrivals ──▶

Arrivals are a Poisson process, and a latency counts from the intended arrival to the last byte of the answer.
So a service that stalls for a second is charged for every request of that second. A client that waits for its
answer before it sends again would hide them. The generator's own lateness is reported separately.

Each request takes a free connection. If none is free, more are opened up to a limit, and the other requests
queue while their clocks run. Moments are of `time.monotonic()`, which all processes share.
"""

import asyncio
import json
import random
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.generator import Connection, Generator, Run, main

HEAD_START_SECONDS = 0.2  # from the message with the start time to the start
TICK_SECONDS = 0.001  # the event loop's own resolution; a shorter timer would make it spin
DRAIN_SECONDS = 150.0  # longer than the service's own deadline
KEEP_SECONDS = 3.0  # the service closes connections after 5 idle seconds, so older ones are not used
OPENED_AT_ONCE = 64
COLUMNS = {
    "arrived": np.float64,
    "late_ms": np.float64,
    "milliseconds": np.float64,
    "status": np.int64,
    "retry_after": np.bool_,
}


@dataclass(frozen=True, slots=True)
class Flow:
    """Requests to send, in order and repeatedly.

    Attributes:
        port: The server's port.
        requests: The requests, in ASCII.
        rate: Mean arrivals per second.
        seconds: Maximum length of the flow.
        connections: Connections that are opened before the first request.
        max_connections: Maximum number of open connections.
        seed: Seed of the arrivals.

    """

    port: int
    requests: list[str]
    rate: float
    seconds: float
    connections: int
    max_connections: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcome of each request, in the order of arrival. Arrays have one entry for each request.

    Attributes:
        arrived: The intended moment of arrival.
        late_ms: Milliseconds from the arrival until the request was sent.
        milliseconds: Milliseconds from the arrival until the answer was complete.
        status: HTTP status. 0 if the connection broke or no answer came.
        retry_after: True if the answer has a Retry-After header.
        max_open: Largest number of open connections.

    """

    arrived: NDArray[np.float64]
    late_ms: NDArray[np.float64]
    milliseconds: NDArray[np.float64]
    status: NDArray[np.int64]
    retry_after: NDArray[np.bool_]
    max_open: int

    def between(self, begin: float, end: float) -> "Outcomes":
        """Return the outcomes of requests that arrived from `begin` until before `end`."""
        inside = (self.arrived >= begin) & (self.arrived < end)
        return replace(self, **{name: getattr(self, name)[inside] for name in COLUMNS})


class OpenLoop(Generator):
    """A running flow. It starts at `begin`, and `finish` ends it."""

    def __init__(self, flow: Flow) -> None:
        """Start the generator. Raises BenchError."""
        super().__init__("benchmarks.openloop")
        self.begin = float(self.order(**asdict(flow))["begin"])

    def finish(self) -> Outcomes:
        """End the arrivals and wait for the answers in flight. Raises BenchError."""
        self.end_orders()
        try:
            found = self.answer()
        finally:
            self.close()
        columns: dict[str, Any] = {name: np.array(found[name], dtype) for name, dtype in COLUMNS.items()}
        return Outcomes(**columns, max_open=found["max_open"])


class _Run(Run):
    """The connections of a flow, its queue of requests, and the outcomes so far."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow.port, flow.requests)
        self._flow = flow
        self._due = _draw_arrivals(flow)  # offsets from the start; `run` turns them into moments
        self._arrived = 0
        self._answered = 0
        self._queue: deque[int] = deque()
        self._free: deque[_Client] = deque()
        self._open = 0
        self._opening = 0
        self._max_open = 0
        self._stopped = False
        self._late_ms = [0.0] * len(self._due)
        self._milliseconds = [0.0] * len(self._due)
        self._status = [0] * len(self._due)
        self._retry_after = [False] * len(self._due)

    async def run(self) -> dict[str, Any]:
        for begin in range(0, self._flow.connections, OPENED_AT_ONCE):
            count = min(OPENED_AT_ONCE, self._flow.connections - begin)
            await asyncio.gather(*(self._open_connection() for _ in range(count)))
        begin_at = time.monotonic() + HEAD_START_SECONDS
        self._due = [begin_at + offset for offset in self._due]
        print(json.dumps({"begin": begin_at}), flush=True)
        self._loop.add_reader(sys.stdin, self._stop)  # the benchmark sends nothing more, it only closes stdin
        self._admit_arrivals()
        await self._done
        count = self._arrived
        return {
            "arrived": [round(moment, 6) for moment in self._due[:count]],
            "late_ms": [round(late, 3) for late in self._late_ms[:count]],
            "milliseconds": [round(latency, 3) for latency in self._milliseconds[:count]],
            "status": self._status[:count],
            "retry_after": self._retry_after[:count],
            "max_open": self._max_open,
        }

    def answered(self, client: "_Client", number: int, status: int, head: bytes) -> None:
        now = time.monotonic()
        self._answered += 1
        self._status[number] = status
        self._milliseconds[number] = (now - self._due[number]) * 1000
        if status != 200:
            self._retry_after[number] = b"\r\nretry-after:" in head.lower()
        client.free_since = now
        self._free.append(client)
        self._send(now)

    def lost(self, client: "_Client", number: int | None) -> None:
        """A connection broke. The request in flight on it keeps status 0."""
        self._open -= 1
        if number is None:
            if client in self._free:
                self._free.remove(client)
        else:
            self._answered += 1
            self._send(time.monotonic())

    def _stop(self) -> None:
        """End the arrivals."""
        self._loop.remove_reader(sys.stdin)
        self._stopped = True
        self._loop.call_later(DRAIN_SECONDS, self.end)
        self._end_if_done()

    def _admit_arrivals(self) -> None:
        """Queue all requests that have arrived, and schedule the next call."""
        if self._stopped:
            return
        now = time.monotonic()
        while self._arrived < len(self._due) and self._due[self._arrived] <= now:
            self._queue.append(self._arrived)
            self._arrived += 1
        self._send(now)
        if self._arrived < len(self._due):
            self._loop.call_later(max(TICK_SECONDS, self._due[self._arrived] - now), self._admit_arrivals)

    def _send(self, now: float) -> None:
        """Send queued requests on free connections, and open more connections for the others."""
        while self._queue and self._free:
            client = self._free.popleft()
            if now - client.free_since > KEEP_SECONDS:
                client.close()
                continue
            number = self._queue.popleft()
            self._late_ms[number] = (now - self._due[number]) * 1000
            client.send(number)
        missing = min(len(self._queue), self._flow.max_connections - self._open) - self._opening
        for _ in range(missing):
            self._opening += 1
            self.begin(self._open_for_queue())
        self._end_if_done()

    async def _open_for_queue(self) -> None:
        try:
            await self._open_connection()
        except OSError:  # the server is full; queued requests wait for a connection that becomes free
            return
        finally:
            self._opening -= 1
        self._send(time.monotonic())

    async def _open_connection(self) -> None:
        client = _Client(self)
        await self.connect(client)
        self._open += 1
        self._max_open = max(self._max_open, self._open)
        client.free_since = time.monotonic()
        self._free.append(client)

    def _end_if_done(self) -> None:
        over = self._stopped or self._arrived == len(self._due)
        if over and not self._queue and self._answered == self._arrived:
            self.end()


class _Client(Connection):
    """A connection and the request in flight on it."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run
        self._number: int | None = None
        self.free_since = 0.0

    def send(self, number: int) -> None:
        self._number = number
        self.write(self._run.requests[number % len(self._run.requests)])

    def answered(self, status: int, response: bytearray, body_at: int) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._run.answered(self, number, status, bytes(response[:body_at]))

    def connection_lost(self, _: Exception | None) -> None:
        self._run.lost(self, self._number)


def _draw_arrivals(flow: Flow) -> list[float]:
    """Return arrivals in seconds from the start, independent of each other, `rate` per second."""
    chance = random.Random(flow.seed)
    moments = []
    moment = chance.expovariate(flow.rate)
    while moment < flow.seconds:
        moments.append(moment)
        moment += chance.expovariate(flow.rate)
    return moments


if __name__ == "__main__":
    main(lambda flow: _Run(Flow(**flow)).run())
