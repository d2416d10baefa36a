"""Loads documents with their vectors into PostgreSQL, while services may use it. Start at `Loader.put`.

If no service uses the database and the load brings more documents than it has, the vector index is dropped
first and built at the end, which takes a fifth of the time. If the load is interrupted, the next start of a
service builds the index.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from models.manifest import Manifest
from service.errors import CommandError
from service.store.postgres import fulltext, replicas, vectors, writes
from service.store.postgres.connection import Connection
from service.store.postgres.documents import count_all
from service.store.postgres.generations import hold_states, share_states
from service.store.postgres.store import MIN_CONNECTIONS, PostgresStore
from service.store.sql import generations
from service.store.sql.connection import UNINDEXED, fetch_column, fetch_value, note
from service.store.sql.generations import DROPPED, get_active_number, get_state
from service.store.sql.records import has_collection
from service.store.values import Active, Batch, Document, Embedding, Loaded

T = TypeVar("T")
# Documents and characters of one transaction. Blocks of postings are larger with more documents, so 8,192
# take half of the time of 1,024.
TOGETHER, MAX_CHARACTERS = 8192, 16 << 20
_CHANGED = "Another version became active meanwhile. Import vectors of that version."


class Loader:
    """Loads documents and vectors into a database. Call `close` at the end.

    Args:
        url: The database, as postgresql://…
        declared: The metadata fields with indexes.

    Raises:
        StartupError: The database cannot be used.
    """

    def __init__(self, url: str, declared: Sequence[str]) -> None:
        self._store = PostgresStore(url, declared, connections=MIN_CONNECTIONS, answer_seconds=0)
        self._store.start(lambda _: None, lambda _: None)

    def close(self) -> None:
        self._store.close()

    def active(self) -> Active | None:
        return self._store.active()

    def unfinished_copy(self) -> str | None:
        return self._store.unfinished_copy()

    def has_collection(self, name: str) -> bool:
        return self._run(lambda it: has_collection(it, name))

    def activate(self, manifest: Manifest, form: str) -> int:
        """Makes a version active in a database that no service has used. Returns its generation."""
        with self._store.copying():
            return self._store.activate(manifest, form)

    def prepare(self, generation: int, documents: int) -> None:
        """Drops the vector index of the active generation if a load of so many documents is then faster."""

        def job(connection: Connection) -> None:
            if not replicas.others(connection, self._store.replica) and count_all(connection) < documents:
                note(connection, UNINDEXED, str(generation))
                vectors.drop_index(connection, generation)

        self._run(job)

    def begin(self, manifest: Manifest, form: str) -> int:
        """Returns the generation that receives the vectors of a version that is not active."""

        def job(connection: Connection) -> int:
            hold_states(connection)
            number, _ = generations.begin_import(connection, manifest, form)
            vectors.make(connection, number, manifest.dimension)
            return number

        return self._run(job)

    def put(self, generation: int, batches: Iterator[Batch], collection: str, most: int) -> Generator[Loaded]:
        """Stores documents, as `sqlite.loading.Loader.put` does.

        Raises:
            CommandError: Another version became active.
        """

        def job(connection: Connection, batch: Batch) -> Loaded:
            documents, embeddings = batch
            share_states(connection)
            if get_active_number(connection) != generation:
                raise CommandError(_CHANGED)
            given = {generation: dict(enumerate(embeddings))}
            put = writes.put(connection, documents, given, collection=collection, max_collections=most)
            return Loaded(put.created, len(documents) - put.created)

        for batch in _join(batches):
            yield self._run(partial(job, batch=batch))
            while self._run(fulltext.fold):
                pass
            self._run(writes.fold)

    def add(self, generation: int, batches: Iterator[Batch], collection: str) -> Generator[Loaded]:
        """Adds the vectors of stored documents, as `sqlite.loading.Loader.add` does.

        Raises:
            CommandError: The generation was dropped.
        """

        def job(connection: Connection, batch: Batch) -> Loaded:
            documents, embeddings = batch
            share_states(connection)
            if get_state(connection, generation) == DROPPED:
                raise CommandError(
                    "The service has dropped this version meanwhile. Import its vectors again."
                )
            found = writes.find_stored(connection, documents, collection)
            same = {one.revision: embeddings[at] for at, one in found.items() if one.same_content}
            sql = f"SELECT revision FROM {vectors.table(generation)} WHERE passage = 0 AND revision = ANY(?)"
            kept = {*fetch_column(connection, sql, [*same])}
            new = {revision: same[revision] for revision in sorted(same.keys() - kept)}
            vectors.add(connection, generation, collection, new)
            return Loaded(len(new), len(kept), len(documents) - len(found), len(found) - len(same))

        for batch in batches:
            yield self._run(partial(job, batch=batch))
            self._run(writes.fold)

    def finish(self, generation: int) -> None:
        """Builds the vector index if it is missing."""
        asyncio.run(self._store.build_index(generation))

    def count_lacking(self, generation: int) -> int:
        """Returns the number of documents that have no vector of the generation."""
        sql = "SELECT coalesce(sum(documents), 0)::bigint FROM sizes WHERE generation = ?"
        return self._run(lambda it: count_all(it) - int(fetch_value(it, sql, generation)))

    def _run(self, job: Callable[[Connection], T]) -> T:
        return self._store.writer.submit(job).result()


def _join(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yields larger batches. The last of equal ids wins."""
    found: dict[str, tuple[Document, Embedding]] = {}
    characters = 0
    for batch in batches:
        for document, embedding in zip(*batch, strict=True):
            found[document.id] = document, embedding
            characters += len(document.text)
        if len(found) >= TOGETHER or characters > MAX_CHARACTERS:
            yield _unzip(found)
            found, characters = {}, 0
    if found:
        yield _unzip(found)


def _unzip(found: Mapping[str, tuple[Document, Embedding]]) -> Batch:
    documents, embeddings = zip(*found.values(), strict=True)
    return documents, embeddings
