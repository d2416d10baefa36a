"""Declared fields (`SIMILE_INDEXED_FIELDS`): their values in a table, for filters to look them up.

    fields (collection, field, value, revision)      in this order, so that equal values lie together

A value is what json_each reads in the document, so that a lookup finds what a scan would. Numbers and texts
are stored as they are, and SQLite orders the one before the other. true, false and null are blobs, which come
after both; so are arrays and objects, of which one marks that the field is there. Members of an array are
values of the field; what is nested in it is none.
"""

import sqlite3
from collections.abc import Iterable, Sequence

TRUE, FALSE, NULL, PRESENT = "x'01'", "x'02'", "x'03'", "x'04'"
NUMBERS_END = "''"  # the least text
TEXTS_END = "x''"  # the least blob
_LAST = 2**63 - 1  # revision
_BLOBS = {"true": TRUE, "false": FALSE, "null": NULL, "array": PRESENT, "object": PRESENT}


def levels(length: int) -> tuple[str, str]:
    """Tables that lead to a field of `length` names: their SQL, and that of the names, which are bound.

    The last is f0, f1, … by its number.
    """
    # CASE, because json_each fails on a string, and WHERE promises no order.
    tables = ["json_each(documents.metadata) AS f0"]
    for number in range(length - 1):
        inside = f"CASE f{number}.type WHEN 'object' THEN f{number}.value ELSE '{{}}' END"
        tables.append(f"json_each({inside}) AS f{number + 1}")
    return ", ".join(tables), " AND ".join(f"f{number}.key = ?" for number in range(length))


def add(connection: sqlite3.Connection, names: Iterable[str], revisions: tuple[int, int]) -> None:
    """Store the values of the fields `names` of the documents from one revision to another."""
    for name in names:
        connection.execute(
            f"INSERT OR IGNORE INTO fields (collection, field, value, revision) {_select(name)}",
            _parameters(name, revisions),
        )


def remove(connection: sqlite3.Connection, names: Iterable[str], revision: int) -> None:
    """Remove the values of a document, which is still there."""
    for name in names:
        rows = connection.execute(_select(name), _parameters(name, (revision, revision))).fetchall()
        connection.executemany(
            "DELETE FROM fields WHERE collection = ? AND field = ? AND value = ? AND revision = ?", rows
        )


def forget(connection: sqlite3.Connection, name: str) -> None:
    """Remove all values of a field that is declared no longer."""
    connection.execute("DELETE FROM fields WHERE field = ?", (name,))


def differing(connection: sqlite3.Connection, name: str) -> int:
    """The number of a declared field's values that differ from the documents: absent, or of no document."""
    [differ] = connection.execute(
        f"WITH wanted AS ({_select(name)}), stored AS (SELECT * FROM fields WHERE field = ?1) SELECT "
        "(SELECT count(*) FROM (SELECT * FROM wanted EXCEPT SELECT * FROM stored)) + "
        "(SELECT count(*) FROM (SELECT * FROM stored EXCEPT SELECT * FROM wanted))",
        _parameters(name, (0, _LAST)),
    ).fetchone()
    return int(differ)


def _select(name: str) -> str:
    """Rows of `fields`, from documents."""
    length = name.count(".") + 1
    tables, names = levels(length)
    last = f"f{length - 1}"
    members = f"json_each(CASE {last}.type WHEN 'array' THEN {last}.value ELSE '[]' END) AS member"
    return (
        f"SELECT collection, ?1, {_value(last)}, revision FROM documents, {tables} "
        f"WHERE revision BETWEEN ?2 AND ?3 AND {names} UNION ALL "
        f"SELECT collection, ?1, {_value('member')}, revision FROM documents, {tables}, {members} "
        f"WHERE revision BETWEEN ?2 AND ?3 AND {names}"
    )


def _parameters(name: str, revisions: tuple[int, int]) -> Sequence[str | int]:
    return (name, *revisions, *name.split("."), *name.split("."))


def _value(row: str) -> str:
    cases = " ".join(f"WHEN '{type_}' THEN {blob}" for type_, blob in _BLOBS.items())
    return f"CASE {row}.type {cases} ELSE {row}.value END"
