"""Limits the number of open connections.

Each connection costs a file descriptor and some memory. At the limit a new connection replaces the one that
has been idle longest. If none is idle, a few spare connections are still accepted, for `/health`.
"""

import logging
import resource
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from service.errors import Unhealthy

log = logging.getLogger(__name__)

SPARE = 16
# A connection that became idle more recently stays open, because its next request may be on the way.
IDLE_SECONDS = 1.0
# File descriptors for SQLite, indexes, models, logs, pipes and TLS handshakes.
OTHER_FILES = 550


class Place(Enum):
    USUAL = "usual"
    SPARE = "spare"  # for /health, /ready and /metrics only
    NONE = "none"


class Closable(Protocol):
    """The part of a connection that `Connections` uses."""

    def give_way(self) -> bool:
        """Closes the connection if it is idle, and returns whether it did."""


class Connections:
    """The open connections of one service. Only the event loop's thread may use it."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._open: set[Closable] = set()
        self._spare: set[Closable] = set()
        self._idle: dict[Closable, float] = {}  # Start of the idle time, oldest first.

    def enter(self, connection: Closable) -> Place:
        """Adds a new connection, and closes an idle one if the limit requires it."""
        if len(self._open) < self.most or self._make_room(self._open, IDLE_SECONDS):
            self._open.add(connection)
            place = Place.USUAL
        elif len(self._spare) < SPARE or self._make_room(self._spare, 0):
            self._spare.add(connection)
            place = Place.SPARE
        else:
            return Place.NONE
        self.idle(connection)
        return place

    def _make_room(self, among: set[Closable], seconds: float) -> bool:
        """Closes the connection of `among` that has been idle longest, if for at least `seconds`."""
        until = self._clock() - seconds
        for connection, since in self._idle.items():
            if since > until:
                return False
            if connection in among and connection.give_way():
                self.leave(connection)
                return True
        return False

    def idle(self, connection: Closable) -> None:
        self._idle.pop(connection, None)
        self._idle[connection] = self._clock()

    def busy(self, connection: Closable) -> None:
        self._idle.pop(connection, None)

    def refusal(self) -> Unhealthy:
        return Unhealthy(
            f"More than {self.most} connections are in use (SIMILE_MAX_CONNECTIONS). Send again later, and "
            "close connections or reuse them.",
            retry_after_seconds=1,
        )

    def leave(self, connection: Closable) -> None:
        self._idle.pop(connection, None)
        self._open.discard(connection)
        self._spare.discard(connection)


def bounded_by_files(most: int) -> int:
    """Returns `most`, or less if this process may not open enough files.

    Raises the soft limit of open files as needed. The hard limit belongs to the operator.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = most + SPARE + OTHER_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return most
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return most
    fewer = max(SPARE, allowed - SPARE - OTHER_FILES)
    log.warning(
        "SIMILE_MAX_CONNECTIONS=%d needs %d open files, but this process may open %d. At most %d connections "
        "are served. Raise the limit (ulimit -n).",
        most,
        needed,
        allowed,
        fewer,
    )
    return fewer
