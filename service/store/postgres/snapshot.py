"""A moment of the PostgreSQL store: a connection in a transaction, whose methods are its queries."""

from service.store.postgres import documents, generations, nearest, passing, vectors, words
from service.store.postgres.connection import Connection


class Snapshot(Connection):
    """A read transaction; protocol.py says what its methods promise, index/stored.py what `nearest` does."""

    sequence = documents.sequence
    ids_of = documents.ids_of
    answered = documents.answered
    passing = passing.passing
    vector_of = vectors.vector_of
    passages = vectors.passages
    nearest = nearest.nearest
    nearest_words = words.nearest
    require = generations.require

    def begin(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def renew(self) -> None:
        self.raw.rollback()
        self.begin()
