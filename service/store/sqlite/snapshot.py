"""A moment of the SQLite store: a connection of a reading thread, whose methods are its queries."""

import sqlite3

import orjson

from service.store.filters.predicate import Predicate
from service.store.sql import records
from service.store.sql.checksums import crc32
from service.store.sqlite import documents, fulltext, vectors
from service.store.sqlite.filter_cache import FilterCache
from service.store.sqlite.passing import Passing


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

    def passing(self, where: Predicate, collection: str) -> Passing:
        return Passing(self, self.filters, where, collection)
