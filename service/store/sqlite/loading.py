"""Loads documents with their vectors into SQLite, many in one transaction. Start at `Loader.put`.

A new document costs a fraction of an upsert, because nothing but the existing ids is read before the rows are
inserted. A document whose id exists is stored by an upsert. If a service uses the store, only vectors that no
index in its memory has are added: those of an imported generation (sql/generations.py).
"""

import sqlite3
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import orjson

from models.manifest import Manifest
from service.errors import CommandError
from service.store.sql import generations
from service.store.sql.connection import fetch_column, fetch_value, unfinished_copy
from service.store.sql.generations import ACTIVE, IMPORTED
from service.store.sql.records import compute_checksums, encode_parts, has_collection
from service.store.sqlite import secondary_indexes, writes
from service.store.sqlite.documents import sequence
from service.store.sqlite.offline import reading
from service.store.sqlite.schema import DATABASE, connect
from service.store.sqlite.store import SqliteStore
from service.store.sqlite.term_process import TermProcess
from service.store.sqlite.writer import Transaction, Writer
from service.store.values import Active, Batch, Document, Embedding, Loaded

T = TypeVar("T")
# The index of ids has 45 MB for a million documents, and each transaction writes most pages of it. With a
# quarter of the documents in a transaction, a load wrote 22 KB a document.
CACHE_KB, TOGETHER = 256 << 10, 16


class Loader:
    """Loads documents and vectors into the store of a data directory. Call `close` at the end.

    Args:
        data_dir: The data directory. Unless `shared`, the caller must own it (runtime/data_lock.py).
        fields: Names of the metadata fields to look up, separated by commas.
        shared: Whether a service uses the store meanwhile.

    Raises:
        StartupError, CommandError: The store cannot be used.
    """

    def __init__(self, data_dir: Path, fields: str, *, shared: bool) -> None:
        self.shared = shared
        if shared:
            with reading(data_dir):  # Checks the schema. Only the owner of the directory may change it.
                connection = connect(data_dir / DATABASE)
            self._store = None
        else:
            self._store = SqliteStore(data_dir, fields)
            connection = self._store.connection
        connection.execute(f"PRAGMA cache_size = {-CACHE_KB}")
        self._writer = Writer(connection, lambda _: None, lambda _: None)

    def close(self) -> None:
        self._writer.stop()
        if self._store is not None:
            self._store.close()

    def active(self) -> Active | None:
        return self._run(generations.active)

    def activate(self, manifest: Manifest, form: str) -> int:
        """Makes a version active in a store that no service has used. Returns its generation."""
        return self._run(lambda it: generations.activate(it, manifest, form))

    def unfinished_copy(self) -> str | None:
        return self._run(lambda it: unfinished_copy(it, "The data directory"))

    def has_collection(self, name: str) -> bool:
        return self._run(lambda it: has_collection(it, name))

    def begin(self, manifest: Manifest, form: str) -> int:
        """Returns the generation that receives the vectors of a version that is not active.

        Raises:
            CommandError: A service has an index of this generation in memory.
        """

        def job(transaction: Transaction) -> int:
            number, state = generations.begin_import(transaction, manifest, form)
            self._check(state)
            return number

        return self._run(job)

    def prepare(self, _generation: int, _documents: int) -> None:
        """Checks that no service has the active version in memory. Raises CommandError."""
        self._check(ACTIVE)

    def put(self, generation: int, batches: Iterator[Batch], collection: str, most: int) -> Generator[Loaded]:
        """Stores documents and their vectors, TOGETHER batches in one transaction. Yields its counts.

        Args:
            generation: The active generation.
            batches: Documents, and the embedding of each one.
            collection: The collection, which is created if it does not exist.
            most: Maximum number of collections.
        """
        with TermProcess() as cutter:
            pairs = cutter.cut_ahead(batches)

            def job(transaction: Transaction) -> list[Loaded]:
                return [
                    _load_documents(transaction, generation, batch, terms, collection, most)
                    for batch, terms in islice(pairs, TOGETHER)
                ]

            while steps := self._run(job):
                yield Loaded(*map(sum, zip(*steps, strict=True)))

    def add(self, generation: int, batches: Iterator[Batch], collection: str) -> Generator[Loaded]:
        """Adds the vectors of stored documents with the same title and text to a generation.

        Raises:
            CommandError: A service has an index of this generation in memory by now.
        """

        def job(transaction: Transaction, batch: Batch) -> Loaded:
            self._check(generations.get_state(transaction, generation))
            return _load_vectors(transaction, generation, batch, collection)

        for batch in batches:
            began = time.monotonic()
            yield self._run(partial(job, batch=batch))
            if self.shared:  # SQLite does not queue the writers of several processes.
                time.sleep(time.monotonic() - began)

    def finish(self, _generation: int) -> None:
        """Does nothing. The service loads the vectors into its index."""

    def count_lacking(self, generation: int) -> int:
        """Returns the number of documents that have no vector of the generation."""
        sql = "SELECT count(*) FROM documents d WHERE NOT EXISTS "
        sql += "(SELECT 1 FROM vectors v WHERE v.generation = ? AND v.revision = d.revision)"
        return self._run(lambda it: int(fetch_value(it, sql, generation)))

    def _check(self, state: str) -> None:
        if self.shared and state != IMPORTED:
            raise CommandError(
                f"A service uses this data directory and has the index of this version ({state}) in memory. "
                "Stop the service to import vectors of the version."
            )

    def _run(self, job: Callable[[Transaction], T]) -> T:
        return self._writer.submit(job).result()


def _load_documents(
    transaction: Transaction,
    generation: int,
    batch: Batch,
    terms: Sequence[str],
    collection: str,
    most: int,
) -> Loaded:
    documents, embeddings = batch
    connection = transaction.connection
    there = _find_ids(connection, documents, collection)
    old = [at for at, document in enumerate(documents) if document.id in there]
    if old or not has_collection(connection, collection):
        given = {generation: {position: embeddings[at] for position, at in enumerate(old)}}
        some = [documents[at] for at in old]
        writes.upsert(transaction, some, given, collection=collection, max_collections=most)
    new = [at for at, document in enumerate(documents) if document.id not in there]
    if new:
        first = int(fetch_value(connection, "SELECT seq FROM sqlite_sequence WHERE name = 'documents'") or 0)
        rows = {first + place: at for place, at in enumerate(new, start=1)}
        _insert(connection, {revision: documents[at] for revision, at in rows.items()}, collection)
        cut = {revision: terms[at] for revision, at in rows.items()}
        secondary_indexes.add_many(connection, collection, cut)
        _insert_vectors(connection, generation, {revision: embeddings[at] for revision, at in rows.items()})
    last = sequence(connection)
    connection.execute("DELETE FROM operations WHERE sequence <= ?", (last - writes.KEPT_OPERATIONS,))
    return Loaded(len(new), len(old))


def _find_ids(connection: sqlite3.Connection, documents: Sequence[Document], collection: str) -> set[str]:
    sql = "SELECT id FROM documents WHERE collection = ? AND id IN (SELECT value FROM json_each(?))"
    listed = orjson.dumps([document.id for document in documents]).decode()
    return {*fetch_column(connection, sql, collection, listed)}


def _insert(connection: sqlite3.Connection, documents: dict[int, Document], collection: str) -> None:
    """Inserts new documents by their revisions, which ascend and are higher than all others."""
    rows = []
    for revision, each in documents.items():
        sums = compute_checksums(encode_parts(collection, each.id, each.title, each.text, each.metadata_json))
        rows.append((revision, collection, each.id, each.text, each.metadata_json, each.title, sums))
    columns = "revision, collection, id, text, metadata, title, checksums"
    connection.executemany(f"INSERT INTO documents ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    sql = "INSERT INTO operations (kind, revision) VALUES ('put', ?)"
    connection.executemany(sql, ((revision,) for revision in documents))


def _insert_vectors(
    connection: sqlite3.Connection, generation: int, embeddings: dict[int, Embedding]
) -> None:
    """Inserts the vectors of revisions that have none in the generation."""
    rows = []
    for revision, embedding in embeddings.items():
        for number, passage in enumerate(embedding.passages):
            blob = passage.vector.astype("<f4").tobytes()
            facts = zlib.crc32(blob), embedding.truncated, passage.start, passage.end
            rows.append((generation, revision, number, blob, *facts))
    columns = "generation, revision, passage, vector, checksum, truncated, start_at, end_at"
    connection.executemany(f"INSERT INTO vectors ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _load_vectors(transaction: Transaction, generation: int, batch: Batch, collection: str) -> Loaded:
    documents, embeddings = batch
    connection = transaction.connection
    listed = orjson.dumps([document.id for document in documents]).decode()
    rows = connection.execute(
        "SELECT id, revision, text, title FROM documents "
        "WHERE collection = ? AND id IN (SELECT value FROM json_each(?))",
        (collection, listed),
    )
    stored = {id: (revision, content) for id, revision, *content in rows}
    same: dict[int, Embedding] = {}
    for document, embedding in zip(documents, embeddings, strict=True):
        revision, content = stored.get(document.id, (0, None))
        if content == [*document.content]:
            same[revision] = embedding
    sql = "SELECT revision FROM vectors WHERE generation = ? AND passage = 0 AND revision IN "
    sql += "(SELECT value FROM json_each(?))"
    kept = {*fetch_column(connection, sql, generation, orjson.dumps([*same]).decode())}
    new = {revision: same[revision] for revision in sorted(same.keys() - kept)}
    _insert_vectors(connection, generation, new)
    absent = len(documents) - len(stored)
    return Loaded(len(new), len(kept), absent, len(stored) - len(same))
