"""Decides which read and which write runs next. Start at `ReadingThreads.read` and `WriteQueue.get`.

In SQLite, at most READERS reads of clients run at the same time. After SLICE_SECONDS, a read pauses and lets
the next read run. A running SQL statement does this by itself (sqlite/reader.py). Other work calls `pause`
between its steps. In PostgreSQL, each read has a thread and never pauses. In both, a read ends when its
deadline passes or its client disconnects, and `Answers` limits the bytes of all answers together.

Writes run in a round robin over their callers. The caller is the key of the request (`caller`), so a key that
sends thousands of writes delays the write of another key by one job. `QueuedRows` limits the queued rows of
one caller.
"""

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from math import inf
from typing import Any, Generic, TypeVar

from service import memory
from service.errors import Overloaded, Unhealthy

T = TypeVar("T")

READERS = 4
SLICE_SECONDS = 0.025
MEGABYTE = 1 << 20


class Answers:
    """Counts the bytes of all answers that a service has in progress."""

    def __init__(self, max_mb: int) -> None:
        self.max_mb = max_mb
        self.lock = threading.Lock()
        self.bytes = 0


class Share:
    """Counts the bytes of one request's answer.

    The event loop creates the object and calls `let_go`. A reading thread calls `add`.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._bytes = 0
        self._gone = False

    def add(self, count: int) -> None:
        """Counts bytes before they are read. Does nothing after `let_go`.

        Raises:
            Overloaded: All answers in progress would together have too many bytes.
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
        """Subtracts the bytes, after the answer was sent or the request has ended."""
        with self._answers.lock:
            self._gone = True
            self._answers.bytes -= self._bytes
            self._bytes = 0


share: ContextVar[Share | None] = ContextVar("share", default=None)  # The current request's share.


class Abandoned(Exception):
    """Raised in a read if the client disconnected or the deadline passed."""


class Turns:
    """Limits how many reads run at the same time, and queues further reads."""

    def __init__(self, count: float = READERS) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._line: deque[Turn] = deque()

    @property
    def waiting(self) -> int:
        """The number of queued reads."""
        return len(self._line)

    def join(self, turn: "Turn") -> bool:
        """Starts a read, or queues the read if too many run. Returns whether the read may run.

        An abandoned read is neither started nor queued.
        """
        with self._lock:
            if turn.abandoned:
                return False
            if self._free:
                self._free -= 1
                turn.held = True
            else:
                turn.comes.clear()
                self._line.append(turn)
            return turn.held

    def leave(self, turn: "Turn") -> None:
        """Ends the run of a read, and starts the first read in the queue."""
        with self._lock:
            if not turn.held:
                return
            turn.held = False
            if not self._line:
                self._free += 1
                return
            following = self._line.popleft()
            following.held = True
            following.comes.set()

    def abandon(self, turn: "Turn") -> None:
        """Removes a read from the queue, and wakes its thread."""
        with self._lock:
            turn.abandoned = True
            with contextlib.suppress(ValueError):  # It is not in the queue.
                self._line.remove(turn)
            turn.comes.set()


class Turn:
    """One read, which runs and pauses as `Turns` allows.

    Args:
        turns: Limits the running reads. None for a read that never waits, such as the service's own reads.
        share: Counts the bytes that are read for an answer, or None.
    """

    def __init__(self, turns: Turns | None, share: Share | None = None) -> None:
        self._turns = turns or Turns(inf)
        self.share = share
        self.abandoned = False
        self.held = False
        self.comes = threading.Event()
        self._since = 0.0

    def begin(self) -> None:
        """Waits until the read may run. Raises Abandoned."""
        if not self._turns.join(self):
            self.comes.wait()
        if self.abandoned:
            raise Abandoned
        self._since = time.monotonic()

    def end(self) -> None:
        """Ends the turn of this read, so that the next queued read can run."""
        self._turns.leave(self)

    def abandon(self) -> None:
        """Ends the read at its next pause. Any thread may call this."""
        self._turns.abandon(self)

    def pause(self) -> None:
        """If this read has run for SLICE_SECONDS, lets other reads run first. Raises Abandoned."""
        if self.abandoned:
            raise Abandoned
        if not self.held or not self._turns.waiting:
            return
        if time.monotonic() - self._since < SLICE_SECONDS:
            return
        self.end()
        self.begin()

    def progress(self) -> bool:
        """Handles SQLite's progress callback. Returns True to end the statement."""
        try:
            self.pause()
        except Abandoned:
            return True
        return False


current = threading.local()  # Its attribute `turn` is the read of this thread.


def pause() -> None:
    """Lets other reads run. Long work in a read calls this between its steps.

    Raises:
        Abandoned: The client disconnected, or the deadline passed.
    """
    turn: Turn | None = getattr(current, "turn", None)
    if turn is not None:
        turn.pause()


def reads(count: int) -> None:
    """Counts bytes of an answer before they are read. They are subtracted after the answer was sent.

    Raises:
        Overloaded: All answers together would have too many bytes.
    """
    turn: Turn | None = getattr(current, "turn", None)
    if turn is not None and turn.share is not None:
        turn.share.add(count)


class ReadingThreads(ABC):
    """Runs the reads of a store on threads, for clients and for the service itself.

    Args:
        readers: Number of threads for clients.
        heavy: Number of long reads that may run at the same time. Other long reads wait.
        own: Number of threads for the service itself.
    """

    def __init__(self, readers: int, heavy: int, own: int) -> None:
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="read")
        self._own = ThreadPoolExecutor(own, thread_name_prefix="read-own")
        self._heavy = asyncio.Semaphore(heavy)

    def close(self) -> None:
        for pool in (self._pool, self._own):
            pool.shutdown(wait=True)

    async def read(self, query: Callable[[Any], T], *, heavy: bool = False) -> T:
        """Runs a client's read on a thread.

        Args:
            query: Reads from a snapshot. Calls `pause` between steps outside of SQL.
            heavy: Whether the read may take long, so that it must leave threads for other reads.

        Raises:
            Storage: The disk fails, or the store is damaged.
            Unhealthy: No file descriptor is left, or the database cannot be reached.
            Timeout: The database took too long.
            Overloaded: All answers together would have too many bytes.
        """
        if not heavy:
            return await self._run(query, self._pool, self._turn(own=False))
        async with self._heavy:
            try:
                return await self._run(query, self._pool, self._turn(own=False))
            finally:
                memory.give_back()

    async def own(self, query: Callable[[Any], T]) -> T:
        """Runs a short read of the service itself, which never waits for clients.

        Raises the errors of `read`, except Overloaded.
        """
        return await self._run(query, self._own, self._turn(own=True))

    async def _run(self, query: Callable[[Any], T], pool: ThreadPoolExecutor, turn: Turn) -> T:
        reading = asyncio.get_running_loop().run_in_executor(pool, self._query, query, turn)
        try:
            return await reading
        except asyncio.CancelledError:  # The client disconnected, or the deadline passed.
            turn.abandon()
            raise

    @abstractmethod
    def _turn(self, *, own: bool) -> Turn:
        """Creates the `Turn` of a read. Called in the context of the read's request."""

    @abstractmethod
    def _query(self, query: Callable[[Any], T], turn: Turn) -> T:
        """Runs `query` on the thread of a read."""


J = TypeVar("J")

RETRY_SECONDS = 2.0

# The name of the key that a request carries. Empty without keys, and for the service's own work.
caller: ContextVar[str] = ContextVar("caller", default="")


class WriteQueue(Generic[J]):
    """Queues the write jobs of all callers, for one or several writing threads."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, bool], deque[tuple[int, J]]] = {}  # In the order of their turns.
        self._barriers: deque[tuple[int, J]] = deque()
        self._changed = threading.Condition()
        self._tickets = 0
        self._one_is_alone = False
        self._closed = False

    def qsize(self) -> int:
        """Returns the number of queued jobs."""
        with self._changed:
            return sum(map(len, self._turns.values())) + len(self._barriers)

    def put(self, job: J, *, alone: bool = False, last: bool = False) -> None:
        """Appends a job of the current caller.

        Args:
            job: The value that `get` returns.
            alone: Whether no two such jobs may run at the same time. Call `end_alone` after each of them.
            last: Whether the job must be taken after all jobs of all callers that are queued now.
        """
        with self._changed:
            self._tickets += 1
            jobs = self._barriers if last else self._turns.setdefault((caller.get(), alone), deque())
            jobs.append((self._tickets, job))
            self._changed.notify()

    def get(self, *, wait: bool = True) -> tuple[J, bool] | None:
        """Takes the next job.

        Args:
            wait: Whether to wait for a job.

        Returns:
            The job, and whether it was queued as `alone`. None if no job can be taken now, or the queue is
            closed and empty.
        """
        with self._changed:
            while (found := self._take()) is None and wait:
                if self._closed and not self._turns and not self._barriers:
                    return None
                self._changed.wait()
            return found

    def end_alone(self) -> None:
        """Allows the next job that was queued as `alone` to begin."""
        with self._changed:
            self._one_is_alone = False
            self._changed.notify_all()

    def close(self) -> None:
        """Makes `get` return None after all queued jobs were taken."""
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
                self._turns[turn] = jobs  # At the end.
            self._one_is_alone = self._one_is_alone or alone
            return job, alone
        return None


class Jobs:
    """Accepts write jobs until it is closed. Each store's writer takes the jobs from `_queue`."""

    def __init__(self) -> None:
        self._queue: WriteQueue[tuple[Callable[[Any], Any], Future[Any]]] = WriteQueue()
        self._closed = False
        self._closing = threading.Lock()  # No job may be queued after the stop.

    async def run(self, job: Callable[[Any], T], *, alone: bool = False) -> T:
        """Queues `job`, and returns the result after the commit.

        If the caller is canceled before the job begins, the job is dropped.

        Args:
            job: Called in a transaction.
            alone: Whether no two such jobs may run at the same time.

        Raises:
            Storage: The disk is full, read-only or failing. The job stored nothing.
            Unhealthy: The store cannot be reached. PostgreSQL may have stored the job's work.
        """
        return await asyncio.wrap_future(self.submit(job, alone=alone))

    def submit(self, job: Callable[[Any], T], *, alone: bool = False, last: bool = False) -> Future[T]:
        """Queues a job from any thread. A `last` job runs after all jobs that are queued now.

        Raises:
            Unhealthy: The service is stopping, or the writing thread has died.
        """
        future: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise Unhealthy("The service is stopping. Send again to the next one.", retry_after_seconds=1)
            self._require_alive()
            self._queue.put((job, future), alone=alone, last=last)
        return future

    def _require_alive(self) -> None:
        """Raises an error if no thread takes jobs."""

    def _close(self) -> None:
        with self._closing:
            self._closed = True
            self._queue.close()


class QueuedRows:
    """Limits the rows of one caller that are queued for writing. Used on the event loop only.

    Args:
        max_rows: Maximum number of rows of one caller. 0 means no limit.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._rows: dict[str, int] = {}

    @contextlib.contextmanager
    def admitted(self, rows: int) -> Iterator[None]:
        """Counts the rows of one request of the current caller until the block ends.

        Raises:
            Overloaded: The caller has queued rows, and would have too many with this request.
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
