"""Queries of the durable document store (SQLite): the truth that every index is derived from.

A document's title and text are an immutable revision: an upsert deletes the old revision and puts a new
one, in one transaction with its vectors and its entry in the operation log. Sizes are counted in SQL before
texts are read, and metadata is handed on as the JSON that it is stored as.

Not here: the threads that read (turns.py), the writes (writes.py), embedding, the index, what a filter
means (grammar.py).
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import orjson

from models.search.content import Content
from service.store.filters.planner import matching, scoped
from service.store.filters.predicate import Predicate
from service.store.sampling import smallest_hashes
from service.store.turns import pause, reads
from service.store.values import COLUMNS, DEFAULT_COLLECTION, Column, Document, Record, TooMuch, Unembedded

SAMPLE_IDS = 1000  # looked at in one go: about a millisecond
FEW_REVISIONS = 10_000  # that SQLite is given one by one
# SQLite counts characters of a text, and bytes of a blob. octet_length() needs 3.43.
_BYTES_OF = "length(CAST({} AS BLOB))"
_BYTES = " + ".join(map(_BYTES_OF.format, COLUMNS))


def collections(connection: sqlite3.Connection) -> list[str]:
    """The names of all, sorted; the default one is always there."""
    return [name for (name,) in connection.execute("SELECT name FROM collections ORDER BY name")]


def number_of(connection: sqlite3.Connection, name: str) -> int | None:
    """The number of a collection, which no other ever has; None when there is no such collection."""
    row = connection.execute("SELECT number FROM collections WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def has_collection(connection: sqlite3.Connection, name: str) -> bool:
    return number_of(connection, name) is not None


def get(connection: sqlite3.Connection, id: str, collection: str = DEFAULT_COLLECTION) -> Record | None:
    row = connection.execute(
        "SELECT id, title, text, CAST(metadata AS BLOB) FROM documents WHERE collection = ? AND id = ?",
        (collection, id),
    ).fetchone()
    return None if row is None else _record(row)


def page(
    connection: sqlite3.Connection,
    after: str,
    limit: int,
    where: Predicate | None,
    max_bytes: float = inf,
    collection: str = DEFAULT_COLLECTION,
) -> tuple[list[Record], bool]:
    """At most `limit` documents in id order, those after the id `after`; and whether others follow.

    Fewer when they would have more than `max_bytes` bytes together, but the first one always.
    """
    sql, parameters = scoped(where, collection)
    if where is not None and where.indexed:
        passing = matching(connection, where, collection)
        if len(passing) <= FEW_REVISIONS:  # else enough of them come soon by the order of ids
            listed = orjson.dumps(passing, option=orjson.OPT_SERIALIZE_NUMPY).decode()
            sql, parameters = "revision IN (SELECT value FROM json_each(?))", [listed]
    rows = connection.execute(
        f"SELECT revision, {_BYTES} FROM documents WHERE {sql} AND id > ? ORDER BY id LIMIT ?",
        [*parameters, after, limit + 1],
    )
    found: list[Record] = []
    for revision, size in rows:
        if len(found) == limit or (found and max_bytes < size):
            return found, True
        reads(size)
        [one] = records(connection, {revision: 1}).values()
        max_bytes -= max(size, one.size)
        if found and max_bytes < 0:  # control characters are longer in JSON
            return found, True
        found.append(one)
        pause()
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
    connection: sqlite3.Connection, where: Predicate | None = None, collection: str = DEFAULT_COLLECTION
) -> int:
    if where is not None and where.indexed:
        return len(matching(connection, where, collection))
    sql, parameters = scoped(where, collection)
    return int(connection.execute(f"SELECT count(*) FROM documents WHERE {sql}", parameters).fetchone()[0])


def unchanged(
    connection: sqlite3.Connection, documents: Sequence[Document], collection: str = DEFAULT_COLLECTION
) -> set[int]:
    """The positions of those of `documents` whose title and text are stored under their ids.

    SQLite compares them.
    """
    same = (
        "SELECT 1 FROM documents WHERE collection = ?1 AND id = ?2 AND title = ?3 "
        "AND length(CAST(text AS BLOB)) = length(CAST(?4 AS BLOB)) AND text = ?4"
    )
    return {
        at
        for at, document in enumerate(documents)
        if connection.execute(same, (collection, document.id, document.title, document.text)).fetchone()
    }


def answered(
    connection: sqlite3.Connection,
    times: Mapping[int, int],
    max_bytes: float = inf,
    columns: Sequence[Column] = COLUMNS,
) -> dict[int, Record]:
    """The documents of one answer: `times` says how often each revision is in it.

    columns: what else they have is not read, and is empty here.

    Raises:
        TooMuch: the answer would have more than `max_bytes` bytes; then nothing is read.
        Overloaded: with other answers it would have more than all together may have.

    """
    found = sizes(connection, times, max_bytes, columns)
    reads(sum(times[revision] * size for revision, size in found.items()))
    return records(connection, times, max_bytes, columns)


def sample(
    connection: sqlite3.Connection, count: int, characters: int, collection: str = DEFAULT_COLLECTION
) -> list[str]:
    """The first `characters` of `count` documents, titles first: those whose ids have the smallest hashes."""

    def steps() -> Iterator[list[str]]:
        rows = connection.execute("SELECT id FROM documents WHERE collection = ? ORDER BY id", (collection,))
        while ids := rows.fetchmany(SAMPLE_IDS):
            yield [id for (id,) in ids]
            pause()

    head = "SELECT substr(text, 1, ?1), substr(title, 1, ?1) FROM documents WHERE collection = ?2 AND id = ?3"
    found = (
        connection.execute(head, (characters, collection, id)).fetchone()
        for id in smallest_hashes(count, steps())
    )
    return [Content(*row).whole[:characters] for row in found]


def sizes(
    connection: sqlite3.Connection,
    times: Mapping[int, int],
    max_bytes: float = inf,
    columns: Sequence[Column] = COLUMNS,
) -> dict[int, int]:
    """Bytes of these columns of the documents whose current revision is one of `times`."""
    total = " + ".join(map(_BYTES_OF.format, columns)) or "0"
    rows = connection.execute(
        f"SELECT revision, {total} FROM documents WHERE revision IN (SELECT value FROM json_each(?))",
        (orjson.dumps([*times]).decode(),),
    )
    found: dict[int, int] = {}
    for revision, size in rows:
        found[revision] = size
        max_bytes -= times[revision] * size
        if max_bytes < 0:
            raise TooMuch
    return found


def records(
    connection: sqlite3.Connection,
    times: Mapping[int, int],
    max_bytes: float = inf,
    columns: Sequence[Column] = COLUMNS,
) -> dict[int, Record]:
    """The documents whose current revision is one of `times`; a revision that is gone is absent."""
    title, text, metadata = (column if column in columns else "NULL" for column in COLUMNS)
    rows = connection.execute(
        f"SELECT revision, id, {title}, {text}, CAST({metadata} AS BLOB) FROM documents "
        "WHERE revision IN (SELECT value FROM json_each(?))",
        (orjson.dumps([*times]).decode(),),
    )
    found: dict[int, Record] = {}
    for revision, *row in rows:
        found[revision] = _record(row)
        max_bytes -= times[revision] * found[revision].size
        if max_bytes < 0:
            raise TooMuch
        pause()
    return found


def unembedded(connection: sqlite3.Connection, revisions: Sequence[int]) -> dict[int, Unembedded]:
    """Titles and texts to embed, of those of `revisions` that are current."""
    rows = connection.execute(
        "SELECT revision, collection, id, text, title FROM documents "
        "WHERE revision IN (SELECT value FROM json_each(?))",
        (orjson.dumps(revisions).decode(),),
    )
    return {
        revision: Unembedded(collection, id, Content(text, title))
        for revision, collection, id, text, title in rows
    }


def ids_of(connection: sqlite3.Connection, revisions: Sequence[int]) -> dict[int, str]:
    """The ids of those of `revisions` that are current."""
    rows = connection.execute(
        "SELECT revision, id FROM documents WHERE revision IN (SELECT value FROM json_each(?))",
        (orjson.dumps(revisions).decode(),),
    )
    return dict(rows.fetchall())


def passing(
    connection: sqlite3.Connection, where: Predicate | None, collection: str
) -> tuple[list[int], int]:
    """The revisions that pass a filter, rising, and the operation number of the same moment."""
    everything = Predicate("1", [])
    return matching(connection, where or everything, collection).tolist(), sequence(connection)


def last_revision(connection: sqlite3.Connection) -> int:
    """The highest revision of a living document, 0 when there is none."""
    return int(connection.execute("SELECT coalesce(max(revision), 0) FROM documents").fetchone()[0])


def sequence(connection: sqlite3.Connection) -> int:
    """The number of the latest operation, 0 before the first."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'operations'").fetchone()
    return 0 if row is None else int(row[0])


def _record(row: Sequence[Any]) -> Record:
    id, title, text, metadata = row
    return Record(id, orjson.dumps(text or ""), metadata or b"{}", orjson.dumps(title) if title else b"")
