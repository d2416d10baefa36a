"""The durable document store (SQLite): the truth that every index is derived from.

Reads run on a small pool of threads, each with its own connection and snapshot; writes are jobs of the one
writer (writer.py). A document's text is an immutable revision: an upsert deletes the old revision and puts
a new one, in one transaction with its vectors and its entry in the operation log.

Not here: the writes themselves (revisions.py), embedding, the index, what a filter means (filters.py).
"""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from service.errors import storage_error
from service.matching import matching, scoped
from service.schema import connect
from service.where import Where

T = TypeVar("T")
Vector = NDArray[np.float32]

DEFAULT_COLLECTION = "default"
COLLECTION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # also the name of a folder
READERS = 4
PROGRESS_STEPS = 10_000  # of SQLite's machine, some tenths of a millisecond
FEW_REVISIONS = 10_000  # that SQLite is given one by one


class TooMuch(Exception):
    """More text than an answer may have."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a user stores: `metadata` is a JSON object."""

    id: str
    text: str
    metadata: dict[str, Any]
    size: int = field(default=0, compare=False)  # characters of text and metadata, when it was read


class Documents:
    """Reads of the store at `path`, which `schema.migrate` has made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="read")

    def _connection(self) -> sqlite3.Connection:
        """A connection of this thread, opened when first needed: a failure costs one request only."""
        if not hasattr(self._local, "connection"):
            self._local.connection = connect(self._path, read_only=True)
            self._open.append(self._local.connection)
        connection: sqlite3.Connection = self._local.connection
        return connection

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        for connection in self._open:
            connection.close()

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """`query`'s result, from one of the reading threads.

        Raises:
            Storage: the disk fails.

        """
        abandoned = threading.Event()
        reading = asyncio.get_running_loop().run_in_executor(self._pool, self._query, query, abandoned)
        try:
            return await reading
        except asyncio.CancelledError:  # its deadline passed, or its client is gone
            abandoned.set()
            raise

    def _query(self, query: Callable[[sqlite3.Connection], T], abandoned: threading.Event) -> T:
        try:
            connection = self._connection()
            _work.abandoned = abandoned
            refuse_if_abandoned()
            connection.set_progress_handler(abandoned.is_set, PROGRESS_STEPS)
            try:
                return query(connection)
            finally:
                if connection.in_transaction:  # or the next query on this thread would see an old moment
                    connection.rollback()
        except sqlite3.Error as error:
            raise (storage_error(error) or error) from error


_work = threading.local()  # what each reading thread has in hand


class Abandoned(Exception):
    """Nobody waits for this read any more."""


def refuse_if_abandoned() -> None:
    """For a read that takes long outside of SQL, between its steps. SQL is ended by itself.

    Raises:
        Abandoned: nobody waits for it.

    """
    abandoned: threading.Event | None = getattr(_work, "abandoned", None)
    if abandoned is not None and abandoned.is_set():
        raise Abandoned


# Queries: `await documents.read(lambda connection: get(connection, …))`.


def collections(connection: sqlite3.Connection) -> list[str]:
    """The names of all, sorted; the default one is always there."""
    return [name for (name,) in connection.execute("SELECT name FROM collections ORDER BY name")]


def number_of(connection: sqlite3.Connection, name: str) -> int | None:
    """The number of a collection, which no other ever has; None when there is no such collection."""
    row = connection.execute("SELECT number FROM collections WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def get(connection: sqlite3.Connection, id: str, collection: str = DEFAULT_COLLECTION) -> Document | None:
    row = connection.execute(
        "SELECT id, text, metadata FROM documents WHERE collection = ? AND id = ?", (collection, id)
    ).fetchone()
    return None if row is None else _document(row)


def page(
    connection: sqlite3.Connection,
    after: str,
    limit: int,
    where: Where | None,
    most: float = inf,
    collection: str = DEFAULT_COLLECTION,
) -> tuple[list[Document], bool]:
    """At most `limit` documents in id order, those after the id `after`; and whether others follow.

    Fewer when they would have more than `most` characters together, but the first one always.
    """
    sql, parameters = scoped(where, collection)
    if where is not None and where.indexed:
        passing = matching(connection, where, collection)
        if len(passing) <= FEW_REVISIONS:  # else enough of them come soon by the order of ids
            listed = orjson.dumps(passing, option=orjson.OPT_SERIALIZE_NUMPY).decode()
            sql, parameters = "revision IN (SELECT value FROM json_each(?))", [listed]
    rows = connection.execute(
        f"SELECT id, text, metadata FROM documents WHERE {sql} AND id > ? ORDER BY id LIMIT ?",
        [*parameters, after, limit + 1],
    )
    found: list[Document] = []
    for row in rows:
        document = _document(row)
        most -= document.size
        if len(found) == limit or (found and most < 0):
            return found, True
        found.append(document)
    return found, False


def counts(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Every collection and how many documents it has, by name."""
    rows = connection.execute(
        "SELECT name, count(id) FROM collections LEFT JOIN documents ON collection = name "
        "GROUP BY name ORDER BY name"
    )
    return rows.fetchall()


def count_all(connection: sqlite3.Connection) -> int:
    """Documents of every collection."""
    return int(connection.execute("SELECT count(*) FROM documents").fetchone()[0])


def count(
    connection: sqlite3.Connection, where: Where | None = None, collection: str = DEFAULT_COLLECTION
) -> int:
    if where is not None and where.indexed:
        return len(matching(connection, where, collection))
    sql, parameters = scoped(where, collection)
    return int(connection.execute(f"SELECT count(*) FROM documents WHERE {sql}", parameters).fetchone()[0])


def texts(
    connection: sqlite3.Connection, ids: Sequence[str], collection: str = DEFAULT_COLLECTION
) -> dict[str, str]:
    """The stored texts of those of `ids` that exist."""
    rows = connection.execute(
        "SELECT id, text FROM documents WHERE collection = ? AND id IN (SELECT value FROM json_each(?))",
        (collection, orjson.dumps(ids).decode()),
    )
    return dict(rows.fetchall())


def by_revision(
    connection: sqlite3.Connection, revisions: Sequence[int], most: float = inf, *, with_text: bool = True
) -> dict[int, Document]:
    """The documents whose current revision is one of `revisions`; a revision that is gone is absent.

    with_text: else their texts are not read, and are empty here.

    Raises:
        TooMuch: they have more than `most` characters together.

    """
    text = "text" if with_text else "''"
    rows = connection.execute(
        f"SELECT revision, id, {text}, metadata FROM documents "
        "WHERE revision IN (SELECT value FROM json_each(?))",
        (orjson.dumps(revisions).decode(),),
    )
    found: dict[int, Document] = {}
    for revision, *row in rows:
        found[revision] = _document(row)
        most -= found[revision].size
        if most < 0:
            raise TooMuch
    return found


def ids_of(connection: sqlite3.Connection, revisions: Sequence[int]) -> dict[int, str]:
    """The ids of those of `revisions` that are current."""
    rows = connection.execute(
        "SELECT revision, id FROM documents WHERE revision IN (SELECT value FROM json_each(?))",
        (orjson.dumps(revisions).decode(),),
    )
    return dict(rows.fetchall())


def last_revision(connection: sqlite3.Connection) -> int:
    """The highest revision of a living document, 0 when there is none."""
    return int(connection.execute("SELECT coalesce(max(revision), 0) FROM documents").fetchone()[0])


def sequence(connection: sqlite3.Connection) -> int:
    """The number of the latest operation, 0 before the first."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'operations'").fetchone()
    return 0 if row is None else int(row[0])


def fact(connection: sqlite3.Connection, name: str) -> str | None:
    """A single stored value."""
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def elsewhere(connection: sqlite3.Connection, revisions: Sequence[int]) -> dict[int, str]:
    """The collections of those of `revisions` that are not of the default one."""
    rows = connection.execute(
        "SELECT revision, collection FROM documents "
        "WHERE revision IN (SELECT value FROM json_each(?)) AND collection != ?",
        (orjson.dumps(revisions).decode(), DEFAULT_COLLECTION),
    )
    return dict(rows.fetchall())


def _document(row: Sequence[Any]) -> Document:
    return Document(row[0], row[1], orjson.loads(row[2]), len(row[1]) + len(row[2]))
