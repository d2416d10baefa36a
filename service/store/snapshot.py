"""A moment of the SQLite store: a connection of a reading thread, whose methods are its queries."""

import sqlite3

from service.store import documents, fulltext, vectors
from service.store.filter_cache import FilterCache
from service.store.filters.predicate import Predicate
from service.store.passing import Passing


class Snapshot(sqlite3.Connection):
    """A read transaction; protocol.py says what its methods promise."""

    filters: FilterCache  # of the service, for all its connections

    sequence = documents.sequence
    collections = documents.collections
    page = documents.page
    count = documents.count
    ids_of = documents.ids_of
    answered = documents.answered
    vector_of = vectors.vector_of
    passages = vectors.passages
    nearest_words = fulltext.nearest

    def require(self, _generation: int, *, kept: bool) -> None:
        """Nothing: whoever borrowed a generation has it, with its index, until the end."""

    def renew(self) -> None:
        self.rollback()
        self.execute("BEGIN")

    def passing(self, where: Predicate, collection: str) -> Passing:
        return Passing(self, self.filters, where, collection)
