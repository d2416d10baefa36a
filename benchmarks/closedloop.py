"""A load generator in a closed loop: each client sends its next request when the last is answered.

The measured window begins when the server is warm and ends while all clients are still busy. So it contains
neither the start nor the end of the load. It is bounded by a number of answers and by time.
"""

import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.generator import Connection, Generator, Run, main
from benchmarks.machine import Watch, Window

DRAIN_SECONDS = 10.0
WARM_SECONDS = 180.0  # for the answers before the window: 512 texts of the slowest peer


@dataclass(frozen=True, slots=True)
class Load:
    """Requests to send, in order and repeatedly.

    Attributes:
        port: The server's port.
        requests: The requests, in ASCII.
        clients: Number of clients without pause.
        warm: Answers before the window begins.
        seconds: Maximum length of the window.
        pids: Processes to measure in addition to the generator, by name.
        count: Maximum number of answers in the window.
        keep: Numbers of requests whose response bodies are returned.
        reconnects: Connections that the server may close. Such a request is sent again on a new connection.

    """

    port: int
    requests: list[str]
    clients: int
    warm: int
    seconds: float
    pids: dict[str, int]
    count: int = 10_000_000
    keep: list[int] = field(default_factory=list)
    reconnects: int = 0


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers in the window.

    Attributes:
        window: Its length and processor time.
        latencies: Number of the request and milliseconds, for each answer.
        bodies: Response bodies of the requests in `Load.keep`.
        reconnects: Connections that the server closed.

    """

    window: Window
    latencies: list[tuple[int, float]]
    bodies: dict[int, str]
    reconnects: int

    @property
    def milliseconds(self) -> list[float]:
        """The latency of each answer."""
        return [latency for _, latency in self.latencies]

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.window.seconds


class ClosedLoop(Generator):
    """A running load. `finish` waits for its end."""

    def __init__(self, load: Load) -> None:
        super().__init__("benchmarks.closedloop")
        self.send(**asdict(load))

    def finish(self) -> Answers:
        """Wait for the end and return the answers. Raises BenchError."""
        try:
            found = self.answer()
        finally:
            self.close()
        return Answers(
            Window(**found["window"]),
            [(request, latency) for request, latency in found["latencies"]],
            {int(request): body for request, body in found["bodies"].items()},
            found["reconnects"],
        )


def measure_capacity(port: int, pid: int, requests: list[str], clients: int, seconds: float) -> float:
    """Return the answers per second that `clients` without pause get from the service. Raises BenchError."""
    return ClosedLoop(Load(port, requests, clients, 4 * clients, seconds, {"server": pid})).finish().rate


class _Run(Run):
    """The clients of a load and their answers so far."""

    def __init__(self, load: Load) -> None:
        super().__init__(load.port, load.requests)
        self._load = load
        self._keep = set(load.keep)
        self._sent = 0
        self._answered = 0
        self._watch: Watch | None = None
        self._window: Window | None = None
        self._latencies: list[tuple[int, float]] = []
        self._bodies: dict[int, str] = {}
        self._reconnects = 0

    async def run(self) -> dict[str, Any]:
        clients = [_Client(self) for _ in range(self._load.clients)]
        for client in clients:
            await self.connect(client)
        self._loop.call_later(WARM_SECONDS, self._give_up)
        for client in clients:
            client.send_next()
        await self._done
        assert self._window is not None
        return {
            "window": asdict(self._window),
            "latencies": self._latencies,
            "bodies": self._bodies,
            "reconnects": self._reconnects,
        }

    def take(self) -> int | None:
        """Return the number of the next request, or None after the window."""
        if self._window is not None or self._done.done():
            return None
        self._sent += 1
        return (self._sent - 1) % len(self.requests)

    def answered(self, request: int, status: int, body: memoryview, milliseconds: float) -> None:
        self._answered += 1
        if status != 200:
            self.end(f"a request was answered {status}: {bytes(body[:300])!r}")
        elif self._watch is None and self._answered >= self._load.warm:
            self._watch = Watch({**self._load.pids, "load": os.getpid()})
            self._loop.call_later(self._load.seconds, self._stop)
        elif self._watch is not None and self._window is None:
            self._latencies.append((request, milliseconds))
            if request in self._keep:
                self._bodies[request] = bytes(body).decode()
            if len(self._latencies) >= self._load.count:
                self._stop()
        if self._window is not None and self._answered == self._sent:
            self.end()

    def lost(self, client: "_Client", error: Exception | None) -> None:
        """The server closed a connection. It may do so if no request is in flight on it."""
        if self._done.done() or not client.waits:
            return
        if self._reconnects >= self._load.reconnects:
            self.end(f"the server closed a connection ({error})")
            return
        self._reconnects += 1
        self.begin(self._reconnect(client))

    async def _reconnect(self, client: "_Client") -> None:
        try:
            await self.connect(client)
        except OSError as error:
            self.end(f"the server closed a connection and accepts no other ({error})")
        else:
            client.send_again()

    def _stop(self) -> None:
        """End the window. Requests in flight are still answered, so that the server is idle afterwards."""
        if self._window is None and self._watch is not None:
            self._window = self._watch.window()
            self._loop.call_later(DRAIN_SECONDS, self.end, "the server did not answer the last requests")

    def _give_up(self) -> None:
        if self._watch is None:
            self.end("the server answered too few requests to start measuring")


class _Client(Connection):
    """Sends the next request when the last is answered."""

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
        """Send the request on a new connection. Its latency counts from the first attempt."""
        self.write(self._run.requests[self._request])

    def answered(self, status: int, response: bytearray, body_at: int) -> None:
        milliseconds = (time.perf_counter() - self._sent) * 1000
        self.waits = False
        self._run.answered(self._request, status, memoryview(response)[body_at:], milliseconds)
        self.send_next()


if __name__ == "__main__":
    main(lambda load: _Run(Load(**load)).run())
