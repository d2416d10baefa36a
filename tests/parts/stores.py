"""A PostgreSQL store on a new database, and locks that block its writers."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np

from models.manifest import Manifest
from service.store.postgres import writes
from service.store.postgres.connection import Connection, Raw
from service.store.postgres.reader import Snapshot
from service.store.postgres.store import PostgresStore
from service.store.values import Document, Embedding
from tests import postgres
from tests.waiting import until

T = TypeVar("T")
DIMENSION = 8
RNG = np.random.default_rng(0)


def manifest(version: str) -> Manifest:
    return cast("Manifest", SimpleNamespace(version=version, fingerprint=version, dimension=DIMENSION))


class Place:
    """A PostgreSQL store on a new database, with one active generation."""

    def __init__(self) -> None:
        self.store = PostgresStore(postgres.new_database(), [], connections=16, answer_seconds=20)
        self.store.start(lambda _: None, lambda _: None)
        self.active = self.store.activate(manifest("a"), "fp32")

    def write(self, job: Callable[[Connection], T]) -> T:
        return self.store.writer.submit(job).result()

    def read(self, query: Callable[[Snapshot], T]) -> T:
        with self.store.pool.connection() as raw, raw.transaction():
            return query(Snapshot(raw))

    def put(self, *given: Document, embeddings: Sequence[Embedding] = ()) -> None:
        rows = dict(enumerate(embeddings or [Embedding(unit(), truncated=False) for _ in given]))
        self.write(lambda connection: writes.put(connection, given, {self.active: rows}))


def unit() -> np.ndarray[Any, np.dtype[np.float32]]:
    vector = RNG.standard_normal(DIMENSION).astype(np.float32)
    return cast("np.ndarray[Any, np.dtype[np.float32]]", vector / np.linalg.norm(vector))


def waiting(raw: Raw) -> int:
    """Returns the number of lock requests that wait on the server."""
    [count] = raw.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() or (0,)
    return int(count)


def until_waiting(raw: Raw, count: int) -> None:
    until(lambda: waiting(raw) == count, pause=0)


def hold_commits(raw: Raw, table: str) -> None:
    """Makes transactions that insert into `table` wait before their commit, until `raw` unlocks lock 1."""
    raw.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$; "
        f"CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION wait()".encode()
    )
    raw.execute("SELECT pg_advisory_lock(1)")
