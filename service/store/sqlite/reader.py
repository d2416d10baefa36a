"""Reads of the SQLite store: `Snapshot` and the threads that read.

    read()   a client's: READERS of them run at a time; after SLICE_SECONDS the next one in the line goes on
      └─ heavy    one of many queries, or one that scans: HEAVY of them have begun at a time, the others wait
    own()    the service's own, on threads of their own: never behind a client's

Each read has a thread with a connection and a snapshot, so it keeps its moment of the store while others have
their turn (turns.py).
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import orjson

from service.observability import outages
from service.store.filters.predicate import Predicate
from service.store.sql import records
from service.store.sql.checksums import crc32
from service.store.sqlite import documents, fulltext, vectors
from service.store.sqlite.filter_cache import FilterCache, FilterMatches
from service.store.sqlite.schema import connect
from service.store.turns import ReadingThreads, Turn, Turns, current, share

log = logging.getLogger(__name__)

T = TypeVar("T")

BEGUN = 32  # each has a connection
HEAVY = 24
CACHE_KB = 1024  # of SQLite's pages, for each connection; the system has the file in memory too
OWN = 2
PROGRESS_STEPS = 10_000  # of SQLite's machine, some tenths of a millisecond


class Snapshot(sqlite3.Connection):
    """A read transaction; protocol.py says what its methods promise."""

    filters: FilterCache  # of the service, for all its connections

    AMONG = "IN (SELECT value FROM json_each(CAST(? AS TEXT)))"
    # SQLite counts characters of a text, and bytes of a blob. octet_length() needs 3.43.
    BYTES = "length(CAST({} AS BLOB))"
    RAW = "CAST({} AS BLOB)"
    METADATA = "CAST(metadata AS BLOB)"

    scope = documents.scope
    sequence = documents.sequence
    count = documents.count
    collections = records.collections
    page = records.page
    ids_of = records.ids_of
    answered = records.answered
    vector_of = vectors.vector_of
    passages = vectors.passages
    nearest_words = fulltext.nearest

    listed = staticmethod(orjson.dumps)

    as_json = staticmethod(bytes)

    checksum = staticmethod(crc32)

    def require(self, _generation: int, *, kept: bool) -> None:
        """Nothing: whoever borrowed a generation has it, with its index, until the end."""

    def renew(self) -> None:
        self.rollback()
        self.execute("BEGIN")

    def matching(self, where: Predicate, collection: str) -> FilterMatches:
        return FilterMatches(self, self.filters, where, collection)


class Readers(ReadingThreads):
    """Reading threads of the store at `path`, which `schema.migrate` has made."""

    def __init__(self, path: Path) -> None:
        super().__init__(BEGUN, HEAVY, OWN)
        self._path = path
        self._filters = FilterCache()
        self._local = threading.local()
        self._open: list[Snapshot] = []
        self._turns = Turns()

    def _connection(self) -> Snapshot:
        """A connection of this thread, opened when first needed: a failure costs one request only."""
        if not hasattr(self._local, "connection"):
            connection = connect(self._path, Snapshot, read_only=True)
            assert isinstance(connection, Snapshot)  # noqa: S101  as it was asked for
            connection.filters = self._filters
            connection.execute(f"PRAGMA cache_size = {-CACHE_KB}")
            self._open.append(connection)
            self._local.connection = connection
        found: Snapshot = self._local.connection
        return found

    def close(self) -> None:
        super().close()
        for connection in self._open:
            connection.close()

    def _turn(self, *, own: bool) -> Turn:
        return Turn(None) if own else Turn(self._turns, share.get())

    def _query(self, query: Callable[[Snapshot], T], turn: Turn) -> T:
        try:
            connection = self._connection()
            turn.begin()
            current.turn = turn
            connection.set_progress_handler(turn.progress, PROGRESS_STEPS)
            connection.execute("BEGIN")  # its moment is that of its first query
            try:
                return query(connection)
            finally:
                if connection.in_transaction:  # or the next query on this thread would see an old moment
                    connection.rollback()
        except sqlite3.Error as error:
            raise (outages.refusal(log, "Reads fail", error) or error) from error
        finally:
            current.turn = None
            turn.end()
