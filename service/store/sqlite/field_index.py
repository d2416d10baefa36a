"""Declared fields (`SIMILE_INDEXED_FIELDS`): their values in a table, so that filters can look them up.

    fields (collection, field, value, revision)      in this order, so that equal values lie together

Start reading at `rows_of`. A lookup finds what a scan of the metadata finds. Numbers and texts are stored as
they are, and SQLite orders numbers before texts. Everything else is a blob, which sorts after both, and its
first byte names its kind. A text that is a time (times.py) has two rows: its instant, for operands that are
times, and the text in a blob, for other operands. So the rows of type text are texts that are not times.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import orjson

from service.store.filters.operands import INT64
from service.store.filters.paths import values_at
from service.store.filters.times import parse_instant

RULES = "2"  # raise it when other rows are made of the same documents
TRUE, FALSE, NULL = b"\x01", b"\x02", b"\x03"
MANY = b"\x04"  # the field has an array, an object or several values
INSTANT, TIME_TEXT = b"\x05", b"\x06"
TIMES_END = b"\x07"  # the least blob after all of them
NUMBERS_END = "''"  # the least text
TEXTS_END = "x''"  # the least blob

Value: TypeAlias = bytes | str | int | float


def add(connection: sqlite3.Connection, names: Iterable[str], revisions: tuple[int, int]) -> None:
    """Stores the values of the fields `names` of the documents from one revision to another."""
    connection.executemany(
        "INSERT OR IGNORE INTO fields (collection, field, value, revision) VALUES (?, ?, ?, ?)",
        _rows(connection, [*names], revisions),
    )


def remove(connection: sqlite3.Connection, names: Iterable[str], revision: int) -> None:
    """Removes the values of a document, which is still there."""
    connection.executemany(
        "DELETE FROM fields WHERE collection = ? AND field = ? AND value = ? AND revision = ?",
        _rows(connection, [*names], (revision, revision)),
    )


def remove_any(connection: sqlite3.Connection, names: Iterable[str], revision: int) -> None:
    """Remove the values of a document whose metadata is damaged: each field's values are looked through."""
    for name in names:
        connection.execute(
            "DELETE FROM fields WHERE field = ? AND revision = ? AND collection IN "
            "(SELECT name FROM collections)",
            (name, revision),
        )


def forget(connection: sqlite3.Connection, name: str) -> None:
    """Removes all values of a field that is no longer declared."""
    connection.execute("DELETE FROM fields WHERE field = ?", (name,))


def differing(connection: sqlite3.Connection, name: str) -> int:
    """Returns how many of a declared field's values are absent from the table, or belong to no document."""
    expected = absent = 0
    for row in _rows(connection, [name], (0, INT64 - 1)):
        expected += 1
        there = "SELECT 1 FROM fields WHERE collection = ? AND field = ? AND value = ? AND revision = ?"
        absent += connection.execute(there, row).fetchone() is None
    [stored] = connection.execute("SELECT count(*) FROM fields WHERE field = ?", (name,)).fetchone()
    return absent + int(stored) - (expected - absent)


def rows_of(metadata: dict[str, Any], field: str) -> set[Value]:
    """Returns the values in the table of one document's field; empty if it does not have the field."""
    rows: set[Value] = set()
    reached = [*values_at(metadata, field)]
    if len(reached) > 1:
        rows.add(MANY)
    for value in reached:
        if isinstance(value, list):
            rows.add(MANY)
        for member in value if isinstance(value, list) else [value]:
            rows.update(_encoded(member))
    return rows


def encoded_time(text: str, instant: str) -> tuple[bytes, bytes]:
    """Returns the two rows of a text that is a time."""
    return INSTANT + instant.encode(), TIME_TEXT + text.encode()


def _rows(
    connection: sqlite3.Connection, names: Sequence[str], revisions: tuple[int, int]
) -> Iterator[tuple[str, str, Value, int]]:
    if not names:
        return
    documents = connection.execute(
        "SELECT collection, metadata, revision FROM documents WHERE revision BETWEEN ? AND ?", revisions
    )
    for collection, text, revision in documents:
        metadata = _parsed(text)
        for name in names:
            for value in rows_of(metadata, name):
                yield collection, name, value, revision


def _parsed(text: str) -> dict[str, Any]:
    """Returns metadata as an object; a damaged one, which `check --data` reports, has no field."""
    try:
        metadata = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _encoded(value: Any) -> tuple[Value, ...]:
    if isinstance(value, str):
        instant = parse_instant(value)
        return (value,) if instant is None else encoded_time(value, instant)
    if isinstance(value, bool):
        return (TRUE if value else FALSE,)
    if isinstance(value, int):  # a larger one is a float to SQLite
        return (value if -INT64 <= value < INT64 else float(value),)
    if isinstance(value, float):
        return (value,)
    return (NULL if value is None else MANY,)
