"""The clients of the soak: each asks without end, and now and then hangs up; every status is looked at."""

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from benchmarks.asks import Ask, Asks

PAUSE_SECONDS = 0.02  # of a client between two requests
ABORTED_SHARE = 0.06
HUGE_BYTES = 64 << 20  # declared, never sent
TOLD = 20  # unexpected answers that are told in words
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends a reset
TIMEOUT_SECONDS = 60


class Traffic:
    """`clients` threads; between `pause` and `go_on` they stand still and hold no connection."""

    def __init__(self, port: int, texts: Sequence[str], clients: int) -> None:
        # By kind of request and by status, or how it was left.
        self.answers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.slowest_ms: Counter[str] = Counter()
        self.unexpected = 0
        self.told: list[str] = []
        self._noting = threading.Lock()
        self._running = threading.Event()
        self._stop = threading.Event()
        self._clients = [_Client(self, port, texts, number) for number in range(clients)]
        for client in self._clients:
            client.start()

    def go_on(self) -> None:
        self._running.set()

    def pause(self) -> None:
        """Return when the last answer has come and every connection is closed."""
        self._running.clear()
        for client in self._clients:
            client.rest()

    def stop(self) -> None:
        self.pause()
        self._stop.set()
        self._running.set()
        for client in self._clients:
            client.join()

    def turn(self) -> bool:
        """Wait until there is to be traffic; False at the end."""
        self._running.wait()
        return not self._stop.is_set()

    @property
    def paused(self) -> bool:
        return not self._running.is_set()

    def note(self, ask: Ask, status: int | str, milliseconds: float) -> None:
        with self._noting:
            self.answers[ask.name][str(status)] += 1
            self.slowest_ms[ask.name] = max(self.slowest_ms[ask.name], int(milliseconds))

    def complain(self, what: str) -> None:
        with self._noting:
            self.unexpected += 1
            if len(self.told) < TOLD:
                self.told.append(what[:500])


class _Client(threading.Thread):
    """A connection with one request at a time."""

    def __init__(self, traffic: Traffic, port: int, texts: Sequence[str], number: int) -> None:
        super().__init__(daemon=True)
        self._traffic = traffic
        self._port = port
        self._chance = random.Random(number)
        self._asks = Asks(texts, f"client-{number}", self._chance)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
        self._acting = threading.Lock()

    def rest(self) -> None:
        """Return when no request is under way."""
        with self._acting:
            self._connection.close()

    def run(self) -> None:
        while self._traffic.turn():
            with self._acting:
                if not self._traffic.paused:
                    self._act()
            time.sleep(PAUSE_SECONDS)

    def _act(self) -> None:
        if self._chance.random() < ABORTED_SHARE:
            self._abort()
            return
        ask = self._asks.next()
        began = time.monotonic()
        try:
            self._connection.request(ask.method, ask.target, ask.body, dict(ask.headers))
            answer = self._connection.getresponse()
            body = answer.read()
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            self._traffic.note(ask, "broken", 0)
            self._traffic.complain(f"{ask.method} {ask.target}: {error!r}")
            return
        self._traffic.note(ask, answer.status, (time.monotonic() - began) * 1000)
        if answer.status not in ask.expected:
            self._traffic.complain(f"{ask.method} {ask.target[:100]}: {answer.status} {body[:300]!r}")

    def _abort(self) -> None:
        """Leave in the middle, on a connection of its own, politely or not."""
        how = self._chance.choice(
            ["in the body", "before the answer", "in the answer", "refused by its length"]
        )
        body = self._asks.large()
        length = HUGE_BYTES if how == "refused by its length" else len(body)
        head = "POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        ask = Ask(f"left {how}" if length == len(body) else how, "POST", "/embed")
        try:
            with socket.create_connection(("127.0.0.1", self._port), TIMEOUT_SECONDS) as connection:
                connection.sendall(f"{head}content-length: {length}\r\n\r\n".encode())
                status = self._leave(connection, how, body)
                if self._chance.random() < 0.5:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        except OSError as error:
            self._traffic.note(ask, "broken", 0)
            self._traffic.complain(f"{ask.name}: {error!r}")
            return
        self._traffic.note(ask, status, 0)
        if status not in {"left", "200", "413"}:
            self._traffic.complain(f"{ask.name}: {status}")

    def _leave(self, connection: socket.socket, how: str, body: bytes) -> str:
        """Send or read as much as `how` says; the status, where one was read."""
        if how == "in the body":
            connection.sendall(body[: len(body) // 2])
        elif how == "before the answer":
            connection.sendall(body)
            time.sleep(self._chance.choice([0.0, 0.05, 0.4]))
        else:
            if how == "in the answer":
                connection.sendall(body)
            return connection.recv(64)[9:12].decode("latin-1")
        return "left"
