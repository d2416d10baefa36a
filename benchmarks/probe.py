"""A client that comes alone: seconds of a request on an idle service, and until they are as short again."""

import http.client
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import cycle

from benchmarks.server import timed

WARM_ASKS = 20
ENOUGH_IN_A_ROW = 10  # as quick as when idle, before the service counts as recovered
PAUSE_SECONDS = 0.02
GIVE_UP_SECONDS = 60.0


class Probe:
    """A client that comes alone, one request at a time."""

    def __init__(self, port: int, texts: Sequence[str]) -> None:
        self._port = port
        self._texts = cycle(texts)

    def idle_ms(self, count: int) -> list[float]:
        """Milliseconds of `count` requests to a service that has nothing else to do."""
        return [self.ask()[1] for _ in range(WARM_ASKS + count)][WARM_ASKS:]

    def ask(self) -> tuple[int, float]:
        """Status and milliseconds, of a connection made beforehand."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=GIVE_UP_SECONDS)
        with closing(connection):
            connection.connect()
            answer, _, milliseconds = timed(connection, "POST", "/embed", {"inputs": next(self._texts)})
        return answer.status, milliseconds

    def recovery(self, level_ms: float) -> float:
        """Seconds until the first of several requests in a row that are served within `level_ms`."""
        began = time.monotonic()
        first, in_a_row = began, 0
        while in_a_row < ENOUGH_IN_A_ROW and time.monotonic() < began + GIVE_UP_SECONDS:
            sent = time.monotonic()
            status, milliseconds = self.ask()
            quick = status == 200 and milliseconds <= level_ms
            first = sent if quick and not in_a_row else first
            in_a_row = in_a_row + 1 if quick else 0
            time.sleep(PAUSE_SECONDS)
        return first - began if in_a_row == ENOUGH_IN_A_ROW else GIVE_UP_SECONDS
