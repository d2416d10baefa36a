"""Queries of documents and collections in SQLite, and checksums of documents.

All indexes are derived from the documents. A revision is a document's title and text, and never changes. An
upsert deletes the old revision and inserts a new one, in one transaction with the vectors and an entry in the
operation log. sql/records.py has the queries that both stores share.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson

from models.progress import counted
from service.store.filters.grammar import Predicate, scoped
from service.store.sql.connection import Connection, fetch_value
from service.store.sql.records import FILL_DOCUMENTS, compute_checksums, damaged_part
from service.store.sqlite.filters import matching
from service.store.values import DEFAULT_COLLECTION, Document

INLINE_REVISIONS = 10_000  # Revisions that are passed to SQLite one by one.


def get_number(connection: sqlite3.Connection, name: str) -> int | None:
    """Returns the number of a collection, or None if it does not exist. No number is used twice."""
    number: int | None = fetch_value(connection, "SELECT number FROM collections WHERE name = ?", name)
    return number


def scope(connection: sqlite3.Connection, where: Predicate | None, collection: str) -> tuple[str, list[Any]]:
    """Returns SQL and parameters for the documents in a collection that match a filter."""
    if where is not None and where.indexed:
        found = matching(connection, where, collection)
        if len(found) <= INLINE_REVISIONS:  # Otherwise a scan by rising ids soon finds enough.
            listed = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY).decode()
            return "revision IN (SELECT value FROM json_each(?))", [listed]
    return scoped(where, collection)


def counts(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Returns the collections by name, each with its number of documents."""
    rows = connection.execute(
        "SELECT name, count(id) FROM collections LEFT JOIN documents ON collection = name "
        "GROUP BY name ORDER BY name"
    )
    return rows.fetchall()


def count_all(connection: sqlite3.Connection) -> int:
    return int(fetch_value(connection, "SELECT count(*) FROM documents"))


def count(
    connection: sqlite3.Connection, where: Predicate | None = None, collection: str = DEFAULT_COLLECTION
) -> int:
    if where is not None and where.indexed:
        return len(matching(connection, where, collection))
    sql, parameters = scoped(where, collection)
    return int(fetch_value(connection, f"SELECT count(*) FROM documents WHERE {sql}", *parameters))


def unchanged(
    connection: sqlite3.Connection, documents: Sequence[Document], collection: str = DEFAULT_COLLECTION
) -> set[int]:
    """Returns the positions of documents whose title and text are stored under their ids."""
    same = (
        "SELECT 1 FROM documents WHERE collection = ?1 AND id = ?2 AND title = ?3 "
        "AND length(CAST(text AS BLOB)) = length(CAST(?4 AS BLOB)) AND text = ?4"
    )
    return {
        at
        for at, document in enumerate(documents)
        if connection.execute(same, (collection, document.id, document.title, document.text)).fetchone()
    }


def matching_revisions(
    connection: sqlite3.Connection, where: Predicate | None, collection: str
) -> tuple[list[int], int]:
    """Returns the matching revisions in ascending order, and the operation number of this state."""
    found = matching(connection, where or Predicate("1", []), collection)
    return found.tolist(), sequence(connection)


def sequence(connection: sqlite3.Connection) -> int:
    """Returns the number of the latest operation, 0 before the first."""
    return int(fetch_value(connection, "SELECT seq FROM sqlite_sequence WHERE name = 'operations'") or 0)


FILL_BYTES = 1 << 20

# The parts of a document as bytes, because reading invalid UTF-8 as text raises.
_PARTS_SQL = ", ".join(
    f"CAST({part} AS BLOB)" for part in ("collection || '/' || id", "title", "text", "metadata")
)


def fill_checksums(connection: Connection) -> int:
    """Computes the checksums of some documents that have none.

    Returns the number of documents of this call. 0 if none is left.
    """
    sql = f"SELECT revision, {_PARTS_SQL} FROM documents WHERE checksums IS NULL ORDER BY revision LIMIT ?"
    rows = connection.execute(sql, (FILL_DOCUMENTS,))
    found: list[tuple[bytes, int]] = []
    left = FILL_BYTES
    for revision, *parts in rows:
        found.append((compute_checksums(parts), revision))
        left -= sum(map(len, parts))
        if left < 0:
            break
    connection.executemany("UPDATE documents SET checksums = ? WHERE revision = ?", found)
    return len(found)


def is_damaged(connection: Connection, revision: int) -> bool:
    """Returns whether a part of a stored document does not match its checksum."""
    sql = f"SELECT checksums, {_PARTS_SQL} FROM documents WHERE revision = ?"
    checksums, *parts = connection.execute(sql, (revision,)).fetchone()
    return damaged_part(checksums, parts) is not None


def damaged_documents(connection: sqlite3.Connection) -> list[str]:
    """Reads every document, and returns the ids of the damaged ones. Reports the progress.

    Outside of the default collection, an id has the collection's name before it.
    """
    rows = connection.execute(f"SELECT checksums, {_PARTS_SQL} FROM documents ORDER BY collection, id")
    found = []
    total = count_all(connection)
    for checksums, *parts in counted(rows, "documents", total, "comparing checksums"):
        if damaged_part(checksums, parts) is not None:
            found.append(parts[0].decode(errors="replace").removeprefix(f"{DEFAULT_COLLECTION}/"))
    return found
