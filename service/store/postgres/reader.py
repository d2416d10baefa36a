"""Reads of the PostgreSQL store: each is a `Snapshot` in a transaction, with a thread and a connection.

read()   a client's: as many at a time as there are threads, two thirds of them of those that scan
own()    the service's own, on threads that no client's read takes
"""

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import orjson
import psycopg

from service.store.filters.predicate import Predicate, scoped
from service.store.postgres import documents, generations, nearest, vectors, words
from service.store.postgres.connection import Connection, Pool, Raw
from service.store.postgres.errors import is_lost, refusing
from service.store.sql import records
from service.store.sql.checksums import md5
from service.store.turns import ReadingThreads, Share, Turn, current, share

T = TypeVar("T")

CANCEL_SECONDS = 2.0
# Digits that orjson writes with an exponent, or that are more than 64 bits have; in strings, too.
_LONG = re.compile(r"\d{17}|0\.00000")


def as_sent(metadata: str) -> bytes:
    """Returns the text of a jsonb, with numbers as `json_of` writes them.

    Metadata of before the column `sent` was stored as jsonb alone. jsonb keeps numbers as decimals, so
    integers and floats come back as such. It changes the order of names, and -0.0 to 0.0.
    """
    return metadata.encode() if _LONG.search(metadata) is None else orjson.dumps(orjson.loads(metadata))


class Snapshot(Connection):
    """A read transaction. protocol.py documents its methods, and index/index_set.py documents `nearest`."""

    AMONG = "= ANY(?)"
    BYTES = "octet_length(CAST({} AS text))"
    RAW = "convert_to({}, 'UTF8')"
    METADATA = "coalesce(sent, metadata::text)"

    sequence = documents.sequence
    ids_of = records.ids_of
    answered = records.answered
    matching = nearest.matching
    vector_of = vectors.vector_of
    passages = vectors.passages
    nearest = nearest.nearest
    nearest_words = words.nearest
    require = generations.require

    def listed(self, values: Sequence[object]) -> list[object]:
        return [*values]

    as_json = staticmethod(as_sent)

    checksum = staticmethod(md5)

    def scope(self, where: Predicate | None, collection: str) -> tuple[str, list[Any]]:
        return scoped(where, collection)

    def begin(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def renew(self) -> None:
        self.raw.rollback()
        self.begin()


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
