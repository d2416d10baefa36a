"""Queries of the durable document store (SQLite): the truth that every index is derived from.

A document's title and text are an immutable revision: an upsert deletes the old revision and puts a new
one, in one transaction with its vectors and its entry in the operation log.

Not here: queries that PostgreSQL is asked as well (records.py), the threads that read (turns.py), the writes
(writes.py), embedding, the index, what a filter means (grammar.py).
"""

import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson

from service.store.filters.predicate import Predicate, scoped
from service.store.sqlite.filter_plan import matching
from service.store.values import DEFAULT_COLLECTION, Document

FEW_REVISIONS = 10_000  # that SQLite is given one by one


def number_of(connection: sqlite3.Connection, name: str) -> int | None:
    """The number of a collection, which no other ever has; None when there is no such collection."""
    row = connection.execute("SELECT number FROM collections WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def scope(connection: sqlite3.Connection, where: Predicate | None, collection: str) -> tuple[str, list[Any]]:
    """SQL and parameters for the documents of a collection that pass `where`."""
    if where is not None and where.indexed:
        found = matching(connection, where, collection)
        if len(found) <= FEW_REVISIONS:  # else enough of them come soon by the order of ids
            listed = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY).decode()
            return "revision IN (SELECT value FROM json_each(?))", [listed]
    return scoped(where, collection)


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


def matching_revisions(
    connection: sqlite3.Connection, where: Predicate | None, collection: str
) -> tuple[list[int], int]:
    """The revisions that pass a filter, rising, and the operation number of the same moment."""
    everything = Predicate("1", [])
    return matching(connection, where or everything, collection).tolist(), sequence(connection)


def sequence(connection: sqlite3.Connection) -> int:
    """The number of the latest operation, 0 before the first."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'operations'").fetchone()
    return 0 if row is None else int(row[0])
