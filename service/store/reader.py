"""Reads of the document store: their threads, and whose turn it is.

    read()   a client's: READERS of them run at a time; after SLICE_SECONDS the next one in the line goes on
      └─ heavy    one of many queries, or one that scans: HEAVY of them have begun at a time, the others wait
    own()    the service's own, on threads of their own: never behind a client's

Each read has a thread with a connection and a snapshot, so it keeps its moment of the store while others have
their turn. SQL takes turns by itself, by SQLite's progress handler; any other work calls `pause` between its
steps. Both end a read that nobody waits for: its deadline passed, or its client is gone.
"""

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from service import memory, outages
from service.store.answers import Share, share
from service.store.schema import connect

log = logging.getLogger(__name__)

T = TypeVar("T")

READERS = 4
BEGUN = 32  # each has a connection
HEAVY = 24
CACHE_KB = 1024  # of SQLite's pages, for each connection; the system has the file in memory too
OWN = 2
SLICE_SECONDS = 0.025
PROGRESS_STEPS = 10_000  # of SQLite's machine, some tenths of a millisecond


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
    """One read. `turns` is None for the service's own, which never waits."""

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


_work = threading.local()  # the turn of each reading thread


def pause() -> None:
    """For a read that takes long outside of SQL, between its steps: let others run, or end it.

    Raises:
        Abandoned: nobody waits for it.

    """
    turn: Turn | None = getattr(_work, "turn", None)
    if turn is not None:
        turn.pause()


def reads(count: int) -> None:
    """So many bytes are about to be read, and held until their answer is sent.

    Raises:
        Overloaded: with those of other answers they are too many.

    """
    turn: Turn | None = getattr(_work, "turn", None)
    if turn is not None and turn.share is not None:
        turn.share.add(count)


@contextlib.contextmanager
def resting() -> Iterator[None]:
    """A read that waits for another one in this block: it keeps no turn, or the other might never get one.

    Raises:
        Abandoned: nobody waits for it.

    """
    turn: Turn | None = getattr(_work, "turn", None)
    if turn is None:
        yield
        return
    turn.end()
    try:
        yield
    finally:
        turn.begin()


class Documents:
    """Reads of the store at `path`, which `schema.migrate` has made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._turns = Turns()
        self._pool = ThreadPoolExecutor(BEGUN, thread_name_prefix="read")
        self._own = ThreadPoolExecutor(OWN, thread_name_prefix="read-own")
        self._heavy = asyncio.Semaphore(HEAVY)

    def _connection(self) -> sqlite3.Connection:
        """A connection of this thread, opened when first needed: a failure costs one request only."""
        if not hasattr(self._local, "connection"):
            self._local.connection = connect(self._path, read_only=True)
            self._local.connection.execute(f"PRAGMA cache_size = {-CACHE_KB}")
            self._open.append(self._local.connection)
        connection: sqlite3.Connection = self._local.connection
        return connection

    def close(self) -> None:
        for pool in (self._pool, self._own):
            pool.shutdown(wait=True)
        for connection in self._open:
            connection.close()

    async def read(self, query: Callable[[sqlite3.Connection], T], *, heavy: bool = False) -> T:
        """`query`'s result, from one of the threads for clients.

        Args:
            query: what to read. Beside SQL it calls `pause` from time to time.
            heavy: it may take long, so it leaves threads for those that do not.

        Raises:
            Storage: the disk fails, or the store is damaged.
            Unhealthy: there is no file descriptor left.
            Overloaded: it reads more than all answers together may have.

        """
        if not heavy:
            return await self._run(query, self._pool, Turn(self._turns, share.get()))
        async with self._heavy:
            try:
                return await self._run(query, self._pool, Turn(self._turns, share.get()))
            finally:
                memory.give_back()

    async def own(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """`query`'s result, for the service itself: short, and never behind a client's read.

        Raises:
            Storage: the disk fails, or the store is damaged.
            Unhealthy: there is no file descriptor left.

        """
        return await self._run(query, self._own, Turn(None))

    async def _run(self, query: Callable[[sqlite3.Connection], T], pool: ThreadPoolExecutor, turn: Turn) -> T:
        reading = asyncio.get_running_loop().run_in_executor(pool, self._query, query, turn)
        try:
            return await reading
        except asyncio.CancelledError:  # its deadline passed, or its client is gone
            turn.abandon()
            raise

    def _query(self, query: Callable[[sqlite3.Connection], T], turn: Turn) -> T:
        try:
            turn.begin()
            connection = self._connection()
            _work.turn = turn
            connection.set_progress_handler(turn.progress, PROGRESS_STEPS)
            try:
                return query(connection)
            finally:
                if connection.in_transaction:  # or the next query on this thread would see an old moment
                    connection.rollback()
        except sqlite3.Error as error:
            raise (outages.refusal(log, "Reads fail", error) or error) from error
        finally:
            _work.turn = None
            turn.end()
