"""Queries of documents and collections in PostgreSQL."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import orjson

from models.search.content import Content
from service.store.filters.predicate import Predicate
from service.store.postgres.connection import Connection
from service.store.postgres.numbers import as_sent
from service.store.sampling import smallest_hashes
from service.store.turns import pause, reads
from service.store.values import COLUMNS, DEFAULT_COLLECTION, Column, Document, Record, TooMuch

_TEXTS = {"title": "title", "text": "text", "metadata": "metadata::text"}
SAMPLE_IDS = 10_000  # looked at in one go
_BYTES = "octet_length({})"


def collections(connection: Connection) -> list[str]:
    """The names of all, sorted; the default one is always there."""
    return [name for (name,) in connection.execute("SELECT name FROM collections ORDER BY name")]


def has_collection(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM collections WHERE name = ?", (name,)).fetchone() is not None


def counts(connection: Connection) -> list[tuple[str, int]]:
    """Every collection and how many documents it has, by name."""
    rows = connection.execute(
        "SELECT name, coalesce(sum(documents), 0)::bigint FROM collections "
        "LEFT JOIN tally ON collection = name GROUP BY name ORDER BY name"
    )
    return [(name, count) for name, count in rows]


def count_all(connection: Connection) -> int:
    """Documents of every collection."""
    return _number(connection, "SELECT coalesce(sum(documents), 0)::bigint FROM tally")


def count(
    connection: Connection, where: Predicate | None = None, collection: str = DEFAULT_COLLECTION
) -> int:
    if where is None:
        sql = "SELECT coalesce(sum(documents), 0)::bigint FROM tally WHERE collection = ?"
        return _number(connection, sql, collection)
    sql, parameters = _scoped(where, collection)
    return _number(connection, f"SELECT count(*) FROM documents WHERE {sql}", *parameters)


def passing(connection: Connection, where: Predicate | None, collection: str) -> tuple[list[int], int]:
    """The revisions that pass a filter, rising, and the operation number of the same moment."""
    sql, parameters = _scoped(where, collection)
    rows = connection.execute(f"SELECT revision FROM documents WHERE {sql} ORDER BY revision", parameters)
    return [revision for (revision,) in rows], sequence(connection)


def _scoped(where: Predicate | None, collection: str) -> tuple[str, list[Any]]:
    if where is None:
        return "collection = ?", [collection]
    return f"collection = ? AND ({where.sql})", [collection, *where.parameters]


def get(connection: Connection, id: str, collection: str = DEFAULT_COLLECTION) -> Record | None:
    row = connection.execute(
        "SELECT id, title, text, metadata::text FROM documents WHERE collection = ? AND id = ?",
        (collection, id),
    ).fetchone()
    return None if row is None else _record(row)


def page(
    connection: Connection,
    after: str,
    limit: int,
    where: Predicate | None,
    max_bytes: float = inf,
    collection: str = DEFAULT_COLLECTION,
) -> tuple[list[Record], bool]:
    """At most `limit` documents in id order, those after the id `after`; and whether others follow.

    Fewer when they would have more than `max_bytes` bytes together, but the first one always.
    """
    sql, parameters = _scoped(where, collection)
    total = " + ".join(_BYTES.format(column) for column in _TEXTS.values())
    rows = connection.execute(
        f"SELECT revision, {total} FROM documents WHERE {sql} AND id > ? ORDER BY id LIMIT ?",
        (*parameters, after, limit + 1),
    ).fetchall()
    chosen: list[int] = []
    left = max_bytes
    for revision, size in rows[:limit]:
        if chosen and left < size:
            break
        reads(size)
        chosen.append(revision)
        left -= size
    read = records(connection, dict.fromkeys(chosen, 1))
    found: list[Record] = []
    for revision in chosen:
        max_bytes -= read[revision].size
        if found and max_bytes < 0:  # control characters are longer in JSON
            break
        found.append(read[revision])
    return found, len(found) < len(rows)


def unchanged(
    connection: Connection, documents: Sequence[Document], collection: str = DEFAULT_COLLECTION
) -> set[int]:
    """The positions of those of `documents` whose title and text are stored under their ids."""
    rows = connection.execute(
        "SELECT at FROM unnest(?::text[], ?::text[], ?::text[]) WITH ORDINALITY "
        "AS given (id, title, text, at) JOIN documents d ON d.collection = ? AND d.id = given.id "
        "AND d.title = given.title AND d.text = given.text",
        (
            [document.id for document in documents],
            [document.title for document in documents],
            [document.text for document in documents],
            collection,
        ),
    )
    return {at - 1 for (at,) in rows}


def answered(
    connection: Connection,
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
    found = sizes(connection, [*times], columns)
    total = sum(times[revision] * size for revision, size in found.items())
    if total > max_bytes:
        raise TooMuch
    reads(total)
    return records(connection, times, max_bytes, columns)


def sizes(
    connection: Connection, revisions: Sequence[int], columns: Sequence[Column] = COLUMNS
) -> dict[int, int]:
    """Bytes of these columns of the documents whose current revision is one of `revisions`."""
    total = " + ".join(_BYTES.format(_TEXTS[column]) for column in columns) or "0"
    rows = connection.execute(
        f"SELECT revision, {total} FROM documents WHERE revision = ANY(?)", ([*revisions],)
    )
    return dict(rows.fetchall())


def records(
    connection: Connection,
    times: Mapping[int, int],
    max_bytes: float = inf,
    columns: Sequence[Column] = COLUMNS,
) -> dict[int, Record]:
    """The documents whose current revision is one of `times`; a revision that is gone is absent."""
    title, text, metadata = (_TEXTS[column] if column in columns else "NULL" for column in COLUMNS)
    rows = connection.execute(
        f"SELECT revision, id, {title}, {text}, {metadata} FROM documents WHERE revision = ANY(?)",
        ([*times],),
    )
    found: dict[int, Record] = {}
    for revision, *row in rows:
        found[revision] = _record(row)
        max_bytes -= times[revision] * found[revision].size
        if max_bytes < 0:
            raise TooMuch
        pause()
    return found


def sample(
    connection: Connection, count: int, characters: int, collection: str = DEFAULT_COLLECTION
) -> list[str]:
    """The first `characters` of `count` documents, titles first: those whose ids have the smallest hashes."""

    def steps() -> Iterator[list[str]]:
        ids = [""]
        while ids:
            rows = connection.execute(
                "SELECT id FROM documents WHERE collection = ? AND id > ? ORDER BY id LIMIT ?",
                (collection, ids[-1], SAMPLE_IDS),
            )
            ids = [id for (id,) in rows]
            yield ids
            pause()

    chosen = smallest_hashes(count, steps())
    rows = connection.execute(
        "SELECT id, substr(text, 1, ?), substr(title, 1, ?) FROM documents "
        "WHERE collection = ? AND id = ANY(?)",
        (characters, characters, collection, chosen),
    )
    heads = {id: Content(text, title).whole[:characters] for id, text, title in rows}
    return [heads[id] for id in chosen]


def ids_of(connection: Connection, revisions: Sequence[int]) -> dict[int, str]:
    """The ids of those of `revisions` that are current."""
    rows = connection.execute("SELECT revision, id FROM documents WHERE revision = ANY(?)", ([*revisions],))
    return dict(rows.fetchall())


def last_revision(connection: Connection) -> int:
    """The highest revision of a living document, 0 when there is none."""
    return _number(connection, "SELECT coalesce(max(revision), 0) FROM documents")


def sequence(connection: Connection) -> int:
    """The number of the latest operation, 0 before the first; one that is not committed yet may count."""
    return _number(connection, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM operations")


def _number(connection: Connection, sql: str, *parameters: object) -> int:
    row = connection.execute(sql, parameters).fetchone()
    return 0 if row is None else int(row[0])


def _record(row: Sequence[Any]) -> Record:
    id, title, text, metadata = row
    return Record(
        id, orjson.dumps(text or ""), as_sent(metadata or "{}"), orjson.dumps(title) if title else b""
    )
