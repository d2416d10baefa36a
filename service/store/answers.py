"""Bytes of documents that were read for answers which are not sent yet, of all requests together.

An answer is put together before it is sent, no faster than its client reads. So those of all have a bound, as
bodies have (body_budget.py).
"""

import threading
from contextvars import ContextVar

from service.errors import Overloaded

MEGABYTE = 1 << 20


class Answers:
    """Those of one service."""

    def __init__(self, max_mb: int) -> None:
        self._max_mb = max_mb
        self._lock = threading.Lock()
        self._bytes = 0

    def add(self, count: int) -> None:
        with self._lock:
            # One alone has its own bound.
            if self._bytes and self._bytes + count > self._max_mb * MEGABYTE:
                raise Overloaded(
                    f"Answers of more than {self._max_mb} MiB together are made and sent now "
                    "(SIMILE_MAX_ANSWERS_MB). Send again later, or ask for less.",
                    retry_after_seconds=1,
                )
            self._bytes += count

    def remove(self, count: int) -> None:
        with self._lock:
            self._bytes -= count


class Share:
    """What one request holds of them. The event loop makes it and lets it go; a reading thread adds."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._bytes = 0
        self._gone = False

    def add(self, count: int) -> None:
        """So many bytes are about to be read. Of a request that has ended nothing counts.

        Raises:
            Overloaded: together they would be too many.

        """
        with self._lock:
            if not self._gone:
                self._answers.add(count)
                self._bytes += count

    def let_go(self) -> None:
        """The answer is sent, or nobody waits for it."""
        with self._lock:
            self._gone = True
            self._answers.remove(self._bytes)
            self._bytes = 0


share: ContextVar[Share | None] = ContextVar("share", default=None)  # of the request in hand
