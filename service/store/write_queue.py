"""The order of write jobs: callers take turns, and each caller's jobs keep their order.

Start reading at `WriteQueue.get`. A caller is the key of a request (`caller`), so a key that sends thousands
of writes delays another key by one job, not by all of them. Jobs that may not overlap (`alone`) have turns of
their own. `QueuedRows` bounds what one caller may have waiting.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

from service.errors import Overloaded

J = TypeVar("J")

RETRY_SECONDS = 2.0

# The name of the key that a request carries. Empty without keys, and for the service's own work.
caller: ContextVar[str] = ContextVar("caller", default="")


class WriteQueue(Generic[J]):
    """Jobs of all callers, for one or several writing threads."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, bool], deque[tuple[int, J]]] = {}  # in the order of the next turns
        self._barriers: deque[tuple[int, J]] = deque()
        self._changed = threading.Condition()
        self._tickets = 0
        self._one_is_alone = False
        self._closed = False

    def qsize(self) -> int:
        """Returns the number of waiting jobs."""
        with self._changed:
            return sum(map(len, self._turns.values())) + len(self._barriers)

    def put(self, job: J, *, alone: bool = False) -> None:
        """Appends a job of the current caller.

        Args:
            job: What `get` returns.
            alone: No two such jobs are taken at the same time: `end_alone` is due after each.

        """
        with self._changed:
            self._tickets += 1
            self._turns.setdefault((caller.get(), alone), deque()).append((self._tickets, job))
            self._changed.notify()

    def put_barrier(self, job: J) -> None:
        """Adds a job that is taken after every job that was put before it, whoever's that is."""
        with self._changed:
            self._tickets += 1
            self._barriers.append((self._tickets, job))
            self._changed.notify()

    def get(self, *, wait: bool = True) -> tuple[J, bool] | None:
        """Takes the next job.

        Args:
            wait: Wait for one.

        Returns:
            The job and whether it is alone. None if nothing can be taken now, or the queue is closed.

        """
        with self._changed:
            while (found := self._take()) is None and wait:
                if self._closed and not self._turns and not self._barriers:
                    return None
                self._changed.wait()
            return found

    def end_alone(self) -> None:
        """Lets the next job that must be alone begin."""
        with self._changed:
            self._one_is_alone = False
            self._changed.notify_all()

    def close(self) -> None:
        """Makes `get` return None once the jobs that wait are taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self) -> tuple[J, bool] | None:
        if self._barriers and all(jobs[0][0] > self._barriers[0][0] for jobs in self._turns.values()):
            return self._barriers.popleft()[1], False
        for turn, jobs in self._turns.items():
            alone = turn[1]
            if alone and self._one_is_alone:
                continue
            del self._turns[turn]
            _, job = jobs.popleft()
            if jobs:
                self._turns[turn] = jobs  # at the end
            self._one_is_alone = self._one_is_alone or alone
            return job, alone
        return None


class QueuedRows:
    """Bounds the rows that one caller has waiting to be written. Used on the event loop only.

    Args:
        max_rows: Rows of one caller. 0 means no limit.

    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._rows: dict[str, int] = {}

    @contextlib.contextmanager
    def admitted(self, rows: int) -> Iterator[None]:
        """Counts the rows of a request of the current caller until the block ends.

        Raises:
            Overloaded: The caller would have too many. A single request is never too large.

        """
        name = caller.get()
        waiting = self._rows.get(name, 0)
        if self._max_rows and waiting and waiting + rows > self._max_rows:
            whose = f"The key {name!r} has" if name else "Callers without a key have"
            raise Overloaded(
                f"{whose} {waiting} events and judgments waiting to be written. With these {rows} they would "
                f"be more than {self._max_rows} (SIMILE_MAX_QUEUE_EVENTS). Nothing was stored. Send again "
                "later, with fewer requests at the same time.",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._rows[name] = waiting + rows
        try:
            yield
        finally:
            self._rows[name] -= rows
            if not self._rows[name]:
                del self._rows[name]
