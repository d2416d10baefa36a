"""Bytes of documents that were read for answers which are not sent yet, of all requests together.

An answer is put together before it is sent, no faster than its client reads. So those of all have a bound, as
bodies have (body_budget.py).
"""

import threading
from contextvars import ContextVar

from service.errors import Overloaded

MEGABYTE = 1 << 20


class Answers:
    """The bytes of all requests of one service together."""

    def __init__(self, max_mb: int) -> None:
        self.max_mb = max_mb
        self.lock = threading.Lock()
        self.bytes = 0


class Share:
    """The bytes of one request. The event loop makes it and lets it go; a reading thread adds."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._bytes = 0
        self._gone = False

    def add(self, count: int) -> None:
        """Count bytes that are about to be read. Of a request that has ended nothing counts.

        Raises:
            Overloaded: together they would be too many. The answer of one request alone has its own bound.

        """
        answers = self._answers
        with answers.lock:
            if self._gone:
                return
            if answers.bytes and answers.bytes + count > answers.max_mb * MEGABYTE:
                raise Overloaded(
                    f"Answers of more than {answers.max_mb} MiB together are made and sent now "
                    "(SIMILE_MAX_ANSWERS_MB). Send again later, or ask for less.",
                    retry_after_seconds=1,
                )
            answers.bytes += count
            self._bytes += count

    def let_go(self) -> None:
        """Give the bytes back: the answer is sent, or its request has ended."""
        with self._answers.lock:
            self._gone = True
            self._answers.bytes -= self._bytes
            self._bytes = 0


share: ContextVar[Share | None] = ContextVar("share", default=None)  # of the request in hand
