"""Open connections: a bound on their number, and which of them gives way at the bound.

A connection costs a file and some memory whether it sends a request or not. At the bound the connection that
has been idle for longest is closed to make room. When all are in the middle of a request, a few spare ones
are still accepted, so that `/health` can be asked.
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
# A connection younger than this is not closed to make room: its request may be on the way.
IDLE_SECONDS = 1.0
# For SQLite, indexes, models, logs, pipes and TLS handshakes, beside the connections.
OTHER_FILES = 550


class Place(Enum):
    """The terms on which a connection is accepted."""

    USUAL = "usual"
    SPARE = "spare"  # for /health, /ready and /metrics
    NONE = "none"


class Closable(Protocol):
    """A connection, as far as it matters here."""

    def give_way(self) -> bool:
        """Close if nothing is under way; tell whether it did."""


class Connections:
    """The connections of one service. Used by the event loop's thread only."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._open: set[Closable] = set()
        self._spare: set[Closable] = set()
        self._idle: dict[Closable, float] = {}  # since when, the longest first

    def enter(self, connection: Closable) -> Place:
        """Count a new connection, after one that is idle has made room for it if need be."""
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
        """Close the connection of `among` that is idle for longest, if for `seconds`."""
        until = self._clock() - seconds
        for connection, since in self._idle.items():
            if since > until:
                return False
            if connection in among and connection.give_way():
                self.leave(connection)
                return True
        return False

    def idle(self, connection: Closable) -> None:
        """Note that `connection` waits for a request."""
        self._idle.pop(connection, None)
        self._idle[connection] = self._clock()

    def busy(self, connection: Closable) -> None:
        """Note that the head of a request has arrived."""
        self._idle.pop(connection, None)

    def refusal(self) -> Unhealthy:
        """The answer to a request that came over one connection too many."""
        return Unhealthy(
            f"More than {self.most} connections are in use (SIMILE_MAX_CONNECTIONS). Send again later, and "
            "close connections or use them again.",
            retry_after_seconds=1,
        )

    def leave(self, connection: Closable) -> None:
        self._idle.pop(connection, None)
        self._open.discard(connection)
        self._spare.discard(connection)


def bounded_by_files(most: int) -> int:
    """`most`, or fewer connections where this process may not open so many files.

    The usual (soft) limit is raised as far as needed; the hard one is the operator's.
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
        "SIMILE_MAX_CONNECTIONS=%d needs %d open files and this process may have %d: at most %d connections "
        "are served. Raise the limit (ulimit -n).",
        most,
        needed,
        allowed,
        fewer,
    )
    return fewer
