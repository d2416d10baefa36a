"""Reads: each is one transaction at one moment, on a thread and a connection of its own.

read()   a client's: as many at a time as there are threads, two thirds of them of those that scan
own()    the service's own, on threads that no client's read takes
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import psycopg

from service import memory
from service.errors import Validation
from service.observability import outages
from service.store.answers import share
from service.store.postgres.connection import Pool, Raw
from service.store.postgres.errors import is_lost, reason, refusal
from service.store.postgres.snapshot import Snapshot
from service.store.turns import Turn, current

log = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_SECONDS = 2.0


class _Running:
    """A read that is under way, so that it can be cancelled while its connection is its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._raw: Raw | None = None

    def begin(self, raw: Raw) -> None:
        with self._lock:
            self._raw = raw

    def end(self) -> None:
        with self._lock:
            self._raw = None

    def cancel(self) -> None:
        with self._lock, contextlib.suppress(psycopg.Error):
            if self._raw is not None:
                self._raw.cancel_safe(timeout=CANCEL_SECONDS)


class Readers:
    """Reading threads; each asks the pool for a connection when it has something to read."""

    def __init__(self, pool: Pool, readers: int, own: int) -> None:
        self._connections = pool
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="read")
        self._own = ThreadPoolExecutor(own, thread_name_prefix="read-own")
        self._heavy = asyncio.Semaphore(max(1, readers * 2 // 3))

    def close(self) -> None:
        for pool in (self._pool, self._own):
            pool.shutdown(wait=True)

    async def read(self, query: Callable[[Snapshot], T], *, heavy: bool = False) -> T:
        """`query`'s result, from one of the threads for clients.

        heavy: it may take long, so it leaves threads for those that do not.

        Raises:
            Unhealthy: the database cannot be reached, or has no connection free.
            Overloaded: it reads more than all answers together may have.

        """
        if not heavy:
            return await self._run(query, self._pool, Turn(None, share.get()))
        async with self._heavy:
            try:
                return await self._run(query, self._pool, Turn(None, share.get()))
            finally:
                memory.give_back()

    async def own(self, query: Callable[[Snapshot], T]) -> T:
        """`query`'s result, for the service itself: never behind a client's read. Raises Unhealthy."""
        return await self._run(query, self._own, Turn(None))

    async def _run(self, query: Callable[[Snapshot], T], pool: ThreadPoolExecutor, turn: Turn) -> T:
        running = _Running()
        reading = asyncio.get_running_loop().run_in_executor(pool, self._query, query, turn, running)
        try:
            return await reading
        except asyncio.CancelledError:  # its deadline passed, or its client is gone
            turn.abandon()
            self._own.submit(running.cancel)
            raise

    def _query(self, query: Callable[[Snapshot], T], turn: Turn, running: _Running) -> T:
        try:
            turn.begin()
            try:
                return self._ask(query, turn, running)
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
                self._connections.check()  # the others broke with it
                return self._ask(query, turn, running)
        except Exception as error:
            fault = refusal(error)
            if fault is None:
                raise
            if not isinstance(fault, Validation):  # that is the client's mistake
                outages.warn(log, f"Reads fail: {reason(error)}")
            raise fault from error

    def _ask(self, query: Callable[[Snapshot], T], turn: Turn, running: _Running) -> T:
        with self._connections.connection() as raw:
            running.begin(raw)
            current.turn = turn
            snapshot = Snapshot(raw)
            try:
                snapshot.begin()
                return query(snapshot)
            finally:
                current.turn = None
                running.end()
                if not raw.broken:
                    raw.rollback()
