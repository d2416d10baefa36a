"""Runs the reads of the SQLite store, each with a `Snapshot` on a reading thread.

    read()   reads of clients: READERS run at a time, the others wait (scheduling.py)
      └─ heavy    a read with many queries, or a scan: at most HEAVY have begun at a time
    own()    reads of the service itself, on separate threads, which never wait for clients

Each read has a thread, a connection and a transaction, so it sees the same state of the store while other
reads run.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import orjson

from models.search.spelling import Near, Word
from models.search.terms import NO_WEIGHTS, Query, Weights
from service.observability import outages
from service.store.filters.grammar import EVERYTHING, Predicate
from service.store.scheduling import ReadingThreads, Turn, Turns, current, share
from service.store.sql import facets, feedback, records, synonyms, tokens
from service.store.sql.records import crc32
from service.store.sqlite import documents, filter_cache, fulltext, vectors, vocabulary
from service.store.sqlite.filter_cache import FilterCache, FilterMatches
from service.store.sqlite.filters import Lookups
from service.store.sqlite.postings import PostingCache, end_read
from service.store.sqlite.schema import connect
from service.store.values import Facet, Ranking, Revisions
from service.store.vocabularies import Vocabularies

log = logging.getLogger(__name__)

T = TypeVar("T")

BEGUN = 32  # Threads for clients. Each has a connection.
HEAVY = 24
CACHE_KB = 1024  # SQLite's page cache of each connection. The system caches the file as well.
OWN = 2
PROGRESS_STEPS = 10_000  # Steps of SQLite's virtual machine, some tenths of a millisecond.


class Snapshot(sqlite3.Connection):
    """A read transaction. protocol.py documents the methods."""

    filters: FilterCache  # All connections share these.
    postings: PostingCache
    vocabularies: Vocabularies
    columns: facets.Columns

    AMONG = "IN (SELECT value FROM json_each(CAST(? AS TEXT)))"
    # The length of a text is in characters, that of a blob in bytes. octet_length() needs SQLite 3.43.
    BYTES = "length(CAST({} AS BLOB))"
    RAW = "CAST({} AS BLOB)"
    METADATA = "CAST(metadata AS BLOB)"

    scope = documents.scope
    sequence = documents.sequence
    count = documents.count
    collections = records.collections
    page = records.page
    get_ids = records.get_ids
    get_revisions = records.get_revisions
    answered = records.answered
    beginnings = records.beginnings
    titles = records.titles
    get_vector = vectors.get_vector
    get_vectors = vectors.get_vectors
    passages = vectors.passages
    count_documents = vocabulary.count_documents
    documents_with = vocabulary.documents_with
    documents_with_phrase = vocabulary.documents_with_phrase
    restricted = filter_cache.restricted
    get_tokens = tokens.get_tokens
    judgment_state = feedback.judgment_state
    get_synonyms = synonyms.get_synonyms
    list_worded = fulltext.list_worded
    get_titles = records.get_titles
    clicked_queries = feedback.clicked_queries
    existing_events = feedback.existing_events

    listed = staticmethod(orjson.dumps)

    as_json = staticmethod(bytes)

    def list_matching(self, where: Predicate | None, collection: str) -> Revisions:
        return self.filters.of(self, where or EVERYTHING, collection)

    def among(self, where: Predicate | None, revisions: Revisions, collection: str) -> Revisions:
        return Lookups(self, collection).scan(where, revisions)

    def count_facets(
        self, fields: Sequence[str], revisions: Revisions, collection: str, most: int
    ) -> dict[str, Facet | None]:
        return facets.count_facets(self, self.columns, fields, revisions, collection, most)

    checksum = staticmethod(crc32)

    def require(self, _generation: int, *, kept: bool) -> None:
        """Does nothing, because a generation that a search uses keeps its index until the search ends."""

    def renew(self) -> None:
        end_read(self)
        self.execute("BEGIN")

    def matching(self, where: Predicate, collection: str, *, lazily: bool = False) -> FilterMatches:  # noqa: ARG002
        return FilterMatches(self, self.filters, where, collection)

    def nearest_words(
        self,
        query: str,
        depth: int,
        allowed: FilterMatches | None,
        collection: str,
        weights: Weights = NO_WEIGHTS,
    ) -> Ranking:
        return fulltext.nearest(self, self.postings, query, depth, allowed, collection, weights)

    def get_idf(self, query: Query, collection: str) -> dict[str, float]:
        return fulltext.get_idf(self, self.postings, query, collection)

    def nearest_terms(self, word: Word, collection: str) -> Iterable[Near]:
        return vocabulary.nearest_terms(self, self.vocabularies, word, collection)

    def load_vocabulary(self, collection: str) -> None:
        vocabulary.load(self, self.vocabularies, collection)

    def load_columns(self, declared: Sequence[str], collection: str) -> None:
        if fields := self.columns.list_fields(declared, collection):
            self.columns.load(self, fields, self.list_matching(None, collection), collection)


class Readers(ReadingThreads):
    """The reading threads of the store at `path`. `schema.migrate` must have created the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(BEGUN, HEAVY, OWN)
        self._path = path
        self._filters, self._postings = FilterCache(), PostingCache()
        self._vocabularies, self._columns = Vocabularies(), facets.Columns()
        self._local = threading.local()
        self._open: list[Snapshot] = []
        self._turns = Turns()

    def _connection(self) -> Snapshot:
        """Returns the connection of the current thread.

        It is opened at the thread's first read, so a failure affects only one request.
        """
        if not hasattr(self._local, "connection"):
            connection = connect(self._path, Snapshot, read_only=True)
            assert isinstance(connection, Snapshot)  # noqa: S101
            connection.filters, connection.postings = self._filters, self._postings
            connection.vocabularies, connection.columns = self._vocabularies, self._columns
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
            connection.execute("BEGIN")  # The snapshot begins with the first query.
            try:
                return query(connection)
            finally:
                if connection.in_transaction:  # Otherwise the next read would see an old state.
                    end_read(connection)
        except sqlite3.Error as error:
            raise (outages.refusal(log, "Reads fail", error) or error) from error
        finally:
            current.turn = None
            turn.end()
