"""Runs the reads of the PostgreSQL store, each with a `Snapshot`, a thread and a connection.

read()   reads of clients: one at a time per thread; long reads take at most two thirds of the threads
own()    reads of the service itself, on separate threads
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import orjson
import psycopg

from models.search.spelling import Near, Word
from models.search.terms import NO_WEIGHTS, Query, Weights
from service.store.filters.grammar import Predicate, scoped
from service.store.postgres import documents, fulltext, generations, vectors, vocabulary
from service.store.postgres.connection import Connection, Pool, Raw, is_lost, refusing
from service.store.postgres.filter_cache import FilterCache
from service.store.postgres.fulltext import BlockCache
from service.store.postgres.vectors import FilterMatches
from service.store.scheduling import ReadingThreads, Share, Turn, current, share
from service.store.sql import facets, feedback, records, synonyms, tokens
from service.store.sql.records import md5
from service.store.values import Facet, Ranking, Revisions
from service.store.vocabularies import Vocabularies

T = TypeVar("T")

CANCEL_SECONDS = 2.0
# Digits that orjson writes with an exponent, or that exceed 64 bits. Matches in strings do no harm.
_LONG = re.compile(r"\d{17}|0\.00000")


def as_sent(metadata: str) -> bytes:
    """Converts metadata from the database to JSON bytes, with numbers in the form of `encode_json`.

    Metadata from before the column `sent` existed is stored only as jsonb. jsonb stores numbers as decimals,
    so this restores integers and floats. The order of names is lost, and -0.0 becomes 0.0.
    """
    return metadata.encode() if _LONG.search(metadata) is None else orjson.dumps(orjson.loads(metadata))


class Snapshot(Connection):
    """A read transaction. protocol.py and index/index_set.py document the methods."""

    blocks: BlockCache  # All connections share these.
    vocabularies: Vocabularies
    columns: facets.Columns
    filters: FilterCache

    BYTES = "octet_length(CAST({} AS text))"
    RAW = "convert_to({}, 'UTF8')"
    METADATA = "coalesce(sent, metadata::text)"

    sequence = documents.sequence
    get_ids = records.get_ids
    get_revisions = records.get_revisions
    answered = records.answered
    beginnings = records.beginnings
    titles = records.titles
    matching = vectors.matching
    among = vectors.among
    get_vector = vectors.get_vector
    get_vectors = vectors.get_vectors
    passages = vectors.passages
    nearest = vectors.nearest
    count_documents = vocabulary.count_documents
    documents_with = vocabulary.documents_with
    documents_with_phrase = vocabulary.documents_with_phrase
    restricted = vectors.restricted
    get_tokens = tokens.get_tokens
    judgment_state = feedback.judgment_state
    get_synonyms = synonyms.get_synonyms
    get_titles = records.get_titles
    clicked_queries = feedback.clicked_queries
    existing_events = feedback.existing_events
    require = generations.require
    lacking = generations.lacking

    as_json = staticmethod(as_sent)

    checksum = staticmethod(md5)

    def list_matching(self, where: Predicate | None, collection: str) -> Revisions:
        return self.filters.of(self, where, collection)

    def count_facets(
        self, fields: Sequence[str], revisions: Revisions, collection: str, most: int
    ) -> dict[str, Facet | None]:
        return facets.count_facets(self, self.columns, fields, revisions, collection, most)

    def scope(self, where: Predicate | None, collection: str) -> tuple[str, list[Any]]:
        return scoped(where, collection)

    def nearest_words(
        self,
        query: str,
        depth: int,
        allowed: FilterMatches | None,
        collection: str,
        weights: Weights = NO_WEIGHTS,
    ) -> Ranking:
        return fulltext.nearest(self, self.blocks, query, depth, allowed, collection, weights)

    def get_idf(self, query: Query, collection: str) -> dict[str, float]:
        return fulltext.get_idf(self, self.blocks, query, collection)

    def list_worded(self, query: str, collection: str, weights: Weights = NO_WEIGHTS) -> Revisions:
        return fulltext.list_worded(self, self.blocks, query, collection, weights)

    def nearest_terms(self, word: Word, collection: str) -> Iterable[Near]:
        return vocabulary.nearest_terms(self, self.vocabularies, word, collection)

    def load_vocabulary(self, collection: str) -> None:
        vocabulary.load(self, self.vocabularies, collection)

    def load_columns(self, declared: Sequence[str], collection: str) -> None:
        if fields := self.columns.list_fields(declared, collection):
            self.columns.load(self, fields, self.list_matching(None, collection), collection)

    def begin(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def renew(self) -> None:
        self.raw.rollback()
        self.begin()


class _Read(Turn):
    """A read on a thread. If the read is abandoned while a statement runs, the statement is canceled."""

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
    """The reading threads. A thread takes a connection from the pool only while it reads."""

    def __init__(self, pool: Pool, readers: int, own: int) -> None:
        super().__init__(readers, max(1, readers * 2 // 3), own)
        self._connections = pool
        self._blocks, self._vocabularies = BlockCache(), Vocabularies()
        self._columns, self._filters = facets.Columns(), FilterCache()

    def _turn(self, *, own: bool) -> Turn:
        return _Read(None if own else share.get(), self._own)

    def _query(self, query: Callable[[Snapshot], T], turn: Turn) -> T:
        assert isinstance(turn, _Read)  # noqa: S101
        with refusing("Reads fail"):
            turn.begin()
            try:
                return self._ask(query, turn)
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
            self._connections.check()  # Other connections may be broken as well.
            return self._ask(query, turn)

    def _ask(self, query: Callable[[Snapshot], T], turn: _Read) -> T:
        with self._connections.connection() as raw:
            turn.use(raw)
            current.turn = turn
            snapshot = Snapshot(raw)
            snapshot.blocks, snapshot.vocabularies = self._blocks, self._vocabularies
            snapshot.columns, snapshot.filters = self._columns, self._filters
            try:
                snapshot.begin()
                return query(snapshot)
            finally:
                current.turn = None
                turn.use(None)
                if not raw.broken:
                    raw.rollback()
