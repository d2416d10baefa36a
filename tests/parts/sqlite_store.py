"""A SQLite store without a service, for tests that compare several moments of it."""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from service.store.filters.grammar import Predicate
from service.store.sqlite.schema import connect, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.sqlite.writer import Transaction
from service.store.sqlite.writes import upsert
from service.store.values import Document, Embedding
from tests.service.deleting import delete

VECTOR = Embedding(np.array([1, 0], np.float32), truncated=False)


class Store:
    """A store, and reading connections to it."""

    def __init__(self, path: Path, declared: Sequence[str] = ()) -> None:
        migrate(path)
        self.path = path
        self.connection = connect(path)
        bring_up_to_date(self.connection, declared)
        self.connection.execute(
            "INSERT INTO generations (version, fingerprint, form, dimension, state) "
            "VALUES ('v', 'f', 'form', 2, 'active')"
        )
        self.readers: list[sqlite3.Connection] = []

    def write(self, documents: Sequence[Document], collection: str) -> None:
        given = {1: dict.fromkeys(range(len(documents)), VECTOR)}
        self._do(lambda transaction: upsert(transaction, documents, given, collection=collection))

    def remove(self, where: Predicate) -> None:
        self._do(lambda transaction: delete(transaction, where))

    def _do(self, job: Callable[[Transaction], object]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        job(Transaction(self.connection))
        self.connection.execute("COMMIT")

    def now(self) -> sqlite3.Connection:
        """Returns a reader whose transaction sees the store as it is now."""
        reader = connect(self.path, read_only=True)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM documents").fetchone()
        self.readers.append(reader)
        return reader

    def close(self) -> None:
        for connection in (self.connection, *self.readers):
            connection.close()
