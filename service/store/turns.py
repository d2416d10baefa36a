"""Turns of reads: which of them runs, and how one ends whose caller has left.

READERS reads of clients run at a time. After SLICE_SECONDS the next one in the line goes on. SQL takes turns
by itself (reader.py); any other work calls `pause` between its steps. Both end a read whose deadline passed,
or whose client is gone. `Answers` bounds the bytes of all answers together, as bodies have a bound. Nothing
here knows a database.
"""

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from service import memory
from service.errors import Overloaded

T = TypeVar("T")

READERS = 4
SLICE_SECONDS = 0.025
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


class Abandoned(Exception):
    """Nobody waits for this read any more."""


class Turns:
    """READERS reads run, the others stand in a line."""

    def __init__(self, count: int = READERS) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._line: deque[Turn] = deque()

    @property
    def waiting(self) -> int:
        """Reads in the line."""
        return len(self._line)

    def join(self, turn: "Turn") -> bool:
        """Give `turn` a free place at once, or put it at the end of the line. True: at once."""
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
        """Hand the place of `turn` to the first in the line."""
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
        """Take `turn` out of the line, if it stands there, and wake its thread."""
        with self._lock:
            turn.abandoned = True
            with contextlib.suppress(ValueError):  # it does not stand there yet, or no more
                self._line.remove(turn)
            turn.comes.set()


class Turn:
    """A read. `turns` is None for the service's own, which never waits."""

    def __init__(self, turns: Turns | None, share: Share | None = None) -> None:
        """share: what counts the bytes that are read for an answer; None: nothing does."""
        self._turns = turns
        self.share = share
        self.abandoned = False
        self.held = False
        self.comes = threading.Event()
        self._since = 0.0

    def begin(self) -> None:
        """Wait for a turn. Raises Abandoned."""
        if self._turns is not None and not self.abandoned and not self._turns.join(self):
            self.comes.wait()
        if self.abandoned:
            raise Abandoned
        self._since = time.monotonic()

    def end(self) -> None:
        """Let the next one go on."""
        if self._turns is not None:
            self._turns.leave(self)

    def abandon(self) -> None:
        """Nobody waits for this read any more; called from any thread."""
        if self._turns is None:
            self.abandoned = True
        else:
            self._turns.abandon(self)

    def pause(self) -> None:
        """Let others run, when this read has had its slice. Raises Abandoned."""
        if self.abandoned:
            raise Abandoned
        turns = self._turns
        if turns is None or not self.held or not turns.waiting:
            return
        if time.monotonic() - self._since < SLICE_SECONDS:
            return
        self.end()
        self.begin()

    def progress(self) -> bool:
        """SQLite's progress handler. True ends the statement."""
        try:
            self.pause()
        except Abandoned:
            return True
        return False


current = threading.local()  # `turn`: the read of this thread


def pause() -> None:
    """Let other reads run, or end this one; for a read between its steps outside of SQL.

    Raises:
        Abandoned: its caller has left.

    """
    turn: Turn | None = getattr(current, "turn", None)
    if turn is not None:
        turn.pause()


def reads(count: int) -> None:
    """So many bytes are about to be read, and held until their answer is sent.

    Raises:
        Overloaded: with those of other answers they are too many.

    """
    turn: Turn | None = getattr(current, "turn", None)
    if turn is not None and turn.share is not None:
        turn.share.add(count)


@contextlib.contextmanager
def resting() -> Iterator[None]:
    """A read that waits for another one in this block: it keeps no turn, or the other might never get one.

    Raises:
        Abandoned: its caller has left.

    """
    turn: Turn | None = getattr(current, "turn", None)
    if turn is None:
        yield
        return
    turn.end()
    try:
        yield
    finally:
        turn.begin()


class ReadingThreads(ABC):
    """Threads of a store's reads: for clients, and for the service itself."""

    def __init__(self, readers: int, heavy: int, own: int) -> None:
        """heavy: so many of the `readers` that may take long have begun at a time, the others wait."""
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="read")
        self._own = ThreadPoolExecutor(own, thread_name_prefix="read-own")
        self._heavy = asyncio.Semaphore(heavy)

    def close(self) -> None:
        for pool in (self._pool, self._own):
            pool.shutdown(wait=True)

    async def read(self, query: Callable[[Any], T], *, heavy: bool = False) -> T:
        """`query`'s result, from one of the threads for clients.

        Args:
            query: what to read, of a snapshot. Beside SQL it calls `pause` from time to time.
            heavy: it may take long, so it leaves threads for those that do not.

        Raises:
            Storage: the disk fails, or the store is damaged.
            Unhealthy: there is no file descriptor left, or the database cannot be reached.
            Overloaded: it reads more than all answers together may have.

        """
        if not heavy:
            return await self._run(query, self._pool, self._turn(own=False))
        async with self._heavy:
            try:
                return await self._run(query, self._pool, self._turn(own=False))
            finally:
                memory.give_back()

    async def own(self, query: Callable[[Any], T]) -> T:
        """`query`'s result, for the service itself: short, and never behind a client's. Raises as `read`."""
        return await self._run(query, self._own, self._turn(own=True))

    async def _run(self, query: Callable[[Any], T], pool: ThreadPoolExecutor, turn: Turn) -> T:
        reading = asyncio.get_running_loop().run_in_executor(pool, self._query, query, turn)
        try:
            return await reading
        except asyncio.CancelledError:  # its deadline passed, or its client is gone
            turn.abandon()
            raise

    @abstractmethod
    def _turn(self, *, own: bool) -> Turn:
        """The turn of a read, a client's or the service's own; made in the context of its request."""

    @abstractmethod
    def _query(self, query: Callable[[Any], T], turn: Turn) -> T:
        """`query`'s result, on the thread of a read."""
