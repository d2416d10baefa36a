"""The open loop: when a request is sent is drawn beforehand, however long answers take.

    bench ── Flow ──▶ python -m benchmarks.openloop ── its beginning, then Outcomes ──▶ bench
          ── the end of stdin: no more arrivals ──▶

Arrivals are a Poisson process, and a latency counts from the intended arrival to the last byte of the answer.
So a service that stands still for a second is charged for everybody who came within that second; a client
that waits for its answer before it sends again would hide them. What the generator itself was late is told
apart.

Each request takes a connection that is free; when none is, more are opened, up to a limit, and behind that
requests stand in line, their clocks running. Moments are of `time.monotonic()`, which all processes share.
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

from benchmarks.generator import Generator, Run, main
from benchmarks.wire import Connection

HEAD_START_SECONDS = 0.2  # between the news that it begins and the beginning
TICK_SECONDS = 0.001  # the event loop's own resolution; a shorter timer would make it spin
DRAIN_SECONDS = 150.0  # longer than the service's own deadline
KEEP_SECONDS = 3.0  # the service closes a connection that was idle for 5; one about to be closed is not used
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
    """The requests to send, in order, from the first again after the last."""

    port: int
    requests: list[str]  # ASCII
    rate: float  # per second, on average
    seconds: float  # at most
    connections: int  # opened before the first request
    most_connections: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcome of each request, in the order of their arrival."""

    arrived: NDArray[np.float64]  # the intended moment
    late_ms: NDArray[np.float64]  # from then until it was sent
    milliseconds: NDArray[np.float64]  # from then until its answer was whole
    status: NDArray[np.int64]  # 0: the connection broke, or no answer came
    retry_after: NDArray[np.bool_]  # whether the answer has that header
    most_open: int  # connections at once

    def between(self, begin: float, end: float) -> "Outcomes":
        """The outcomes of requests that arrived from `begin` until before `end`."""
        inside = (self.arrived >= begin) & (self.arrived < end)
        return replace(self, **{name: getattr(self, name)[inside] for name in COLUMNS})


class OpenLoop(Generator):
    """A generator at work since `begin`; `finish` ends it."""

    def __init__(self, flow: Flow) -> None:
        """Raises BenchError."""
        super().__init__("benchmarks.openloop")
        self.begin = float(self.order(**asdict(flow))["begin"])

    def finish(self) -> Outcomes:
        """Let nobody arrive any more, wait for the answers under way. Raises BenchError."""
        self.end_orders()
        try:
            found = self.answer()
        finally:
            self.close()
        columns: dict[str, Any] = {name: np.array(found[name], dtype) for name, dtype in COLUMNS.items()}
        return Outcomes(**columns, most_open=found["most_open"])


class _Run(Run):
    """A flow: its connections, the requests that wait for one, and the outcomes so far."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow.port, flow.requests)
        self._flow = flow
        self._due = _arrivals(flow)  # seconds from the beginning, later moments
        self._arrived = 0
        self._answered = 0
        self._line: deque[int] = deque()
        self._free: deque[_Caller] = deque()
        self._open = 0
        self._opening = 0
        self._most_open = 0
        self._stopped = False
        self._late_ms = [0.0] * len(self._due)
        self._milliseconds = [0.0] * len(self._due)
        self._status = [0] * len(self._due)
        self._retry_after = [False] * len(self._due)

    async def run(self) -> dict[str, Any]:
        for begin in range(0, self._flow.connections, OPENED_AT_ONCE):
            count = min(OPENED_AT_ONCE, self._flow.connections - begin)
            await asyncio.gather(*(self._open_one() for _ in range(count)))
        begin_at = time.monotonic() + HEAD_START_SECONDS
        self._due = [begin_at + offset for offset in self._due]
        print(json.dumps({"begin": begin_at}), flush=True)
        self._loop.add_reader(sys.stdin, self._stop)  # at its end: nothing else is sent
        self._go_on()
        await self._done
        count = self._arrived
        return {
            "arrived": [round(moment, 6) for moment in self._due[:count]],
            "late_ms": [round(late, 3) for late in self._late_ms[:count]],
            "milliseconds": [round(latency, 3) for latency in self._milliseconds[:count]],
            "status": self._status[:count],
            "retry_after": self._retry_after[:count],
            "most_open": self._most_open,
        }

    def answered(self, caller: "_Caller", number: int, status: int, head: bytes) -> None:
        now = time.monotonic()
        self._answered += 1
        self._status[number] = status
        self._milliseconds[number] = (now - self._due[number]) * 1000
        if status != 200:
            self._retry_after[number] = b"\r\nretry-after:" in head.lower()
        caller.free_since = now
        self._free.append(caller)
        self._send(now)

    def lost(self, caller: "_Caller", number: int | None) -> None:
        """A connection broke; a request that was under way keeps its status 0."""
        self._open -= 1
        if number is None:
            if caller in self._free:
                self._free.remove(caller)
        else:
            self._answered += 1
            self._send(time.monotonic())

    def _stop(self) -> None:
        """Nobody is to arrive any more."""
        self._loop.remove_reader(sys.stdin)
        self._stopped = True
        self._loop.call_later(DRAIN_SECONDS, self.end)
        self._look_for_the_end()

    def _go_on(self) -> None:
        """Put whoever has arrived in line, and come back when the next one does."""
        if self._stopped:
            return
        now = time.monotonic()
        while self._arrived < len(self._due) and self._due[self._arrived] <= now:
            self._line.append(self._arrived)
            self._arrived += 1
        self._send(now)
        if self._arrived < len(self._due):
            self._loop.call_later(max(TICK_SECONDS, self._due[self._arrived] - now), self._go_on)

    def _send(self, now: float) -> None:
        """Give those in line the connections that are free, and open more for the rest."""
        while self._line and self._free:
            caller = self._free.popleft()
            if now - caller.free_since > KEEP_SECONDS:
                caller.close()
                continue
            number = self._line.popleft()
            self._late_ms[number] = (now - self._due[number]) * 1000
            caller.ask(number)
        wanted = min(len(self._line), self._flow.most_connections - self._open) - self._opening
        for _ in range(wanted):
            self._opening += 1
            self.begin(self._open_for_the_line())
        self._look_for_the_end()

    async def _open_for_the_line(self) -> None:
        try:
            await self._open_one()
        except OSError:  # it is full; who is in line waits for a connection that becomes free
            return
        finally:
            self._opening -= 1
        self._send(time.monotonic())

    async def _open_one(self) -> None:
        caller = _Caller(self)
        await self.connect(caller)
        self._open += 1
        self._most_open = max(self._most_open, self._open)
        caller.free_since = time.monotonic()
        self._free.append(caller)

    def _look_for_the_end(self) -> None:
        over = self._stopped or self._arrived == len(self._due)
        if over and not self._line and self._answered == self._arrived:
            self.end()


class _Caller(Connection):
    """A connection, and the request that is under way on it."""

    def __init__(self, run: _Run) -> None:
        super().__init__()
        self._run = run
        self._number: int | None = None
        self.free_since = 0.0

    def ask(self, number: int) -> None:
        self._number = number
        self.write(self._run.requests[number % len(self._run.requests)])

    def answered(self, status: int, response: bytearray, body_at: int) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._run.answered(self, number, status, bytes(response[:body_at]))

    def connection_lost(self, _: Exception | None) -> None:
        self._run.lost(self, self._number)


def _arrivals(flow: Flow) -> list[float]:
    """Seconds from the beginning at which requests come, `rate` a second, each independent of the others."""
    chance = random.Random(flow.seed)
    moments = []
    moment = chance.expovariate(flow.rate)
    while moment < flow.seconds:
        moments.append(moment)
        moment += chance.expovariate(flow.rate)
    return moments


if __name__ == "__main__":
    main(lambda flow: _Run(Flow(**flow)).run())
