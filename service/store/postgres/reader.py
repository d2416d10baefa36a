"""Reads: each is one transaction at one moment, on a thread and a connection of its own.

read()   a client's: as many at a time as there are threads, two thirds of them of those that scan
own()    the service's own, on threads that no client's read takes
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

import psycopg

from service.store.answers import Share, share
from service.store.postgres.connection import Pool, Raw
from service.store.postgres.errors import is_lost, refusing
from service.store.postgres.snapshot import Snapshot
from service.store.turns import ReadingThreads, Turn, current

T = TypeVar("T")

CANCEL_SECONDS = 2.0


class _Read(Turn):
    """A read, whose statement is cancelled with it while its connection is its own."""

    def __init__(self, share: Share | None, cancelling: Executor) -> None:
        super().__init__(None, share)
        self._cancelling = cancelling
        self._lock = threading.Lock()
        self._raw: Raw | None = None

    def use(self, raw: Raw | None) -> None:
        with self._lock:
            self._raw = raw

    def abandon(self) -> None:
        super().abandon()
        self._cancelling.submit(self._cancel)

    def _cancel(self) -> None:
        with self._lock, contextlib.suppress(psycopg.Error):
            if self._raw is not None:
                self._raw.cancel_safe(timeout=CANCEL_SECONDS)


class Readers(ReadingThreads):
    """Reading threads; each asks the pool for a connection when it has something to read."""

    def __init__(self, pool: Pool, readers: int, own: int) -> None:
        super().__init__(readers, max(1, readers * 2 // 3), own)
        self._connections = pool

    def _turn(self, *, own: bool) -> Turn:
        return _Read(None if own else share.get(), self._own)

    def _query(self, query: Callable[[Snapshot], T], turn: Turn) -> T:
        assert isinstance(turn, _Read)  # noqa: S101  of `_turn`
        with refusing("Reads fail"):
            turn.begin()
            try:
                return self._ask(query, turn)
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
            self._connections.check()  # the others broke with it
            return self._ask(query, turn)

    def _ask(self, query: Callable[[Snapshot], T], turn: _Read) -> T:
        with self._connections.connection() as raw:
            turn.use(raw)
            current.turn = turn
            snapshot = Snapshot(raw)
            try:
                snapshot.begin()
                return query(snapshot)
            finally:
                current.turn = None
                turn.use(None)
                if not raw.broken:
                    raw.rollback()
