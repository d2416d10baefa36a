"""A moment of the PostgreSQL store: a connection in a transaction, whose methods are its queries."""

from collections.abc import Sequence
from typing import Any

from service.store.filters.predicate import Predicate, scoped
from service.store.postgres import documents, generations, nearest, passing, vectors, words
from service.store.postgres.connection import Connection
from service.store.postgres.numbers import as_sent
from service.store.sql import records
from service.store.sql.checksums import md5


class Snapshot(Connection):
    """A read transaction; protocol.py says what its methods promise, index/stored.py what `nearest` does."""

    AMONG = "= ANY(?)"
    BYTES = "octet_length(CAST({} AS text))"
    RAW = "convert_to({}, 'UTF8')"
    METADATA = "coalesce(sent, metadata::text)"

    sequence = documents.sequence
    ids_of = records.ids_of
    answered = records.answered
    passing = passing.passing
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
