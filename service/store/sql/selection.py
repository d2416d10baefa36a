"""Rows of the tables `feedback` and `events` that a selection picks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Literal

from service.errors import Forbidden
from service.store.sql.connection import Connection
from service.store.values import Selection

Table = Literal["feedback", "events"]
DELETED_ROWS = 4096  # of one step: a write waits some tens of milliseconds for it
TOGETHER = 256  # texts that one statement looks for
MAX_PARAMETERS = 900  # of one statement: older builds of SQLite take 999
_NOUNS: dict[Table, str] = {"feedback": "judgements", "events": "events"}


def condition_of(selection: Selection, *, in_order: bool = False) -> tuple[str, list[str]]:
    """SQL over one of the tables, and what fills its question marks.

    in_order: to be read in the order of numbers. An expression keeps the database from an index over the
    collection, after which every page would sort all rows.
    """
    collection = "collection || ''" if in_order else "collection"
    columns = {
        collection: selection.collection,
        "query": selection.query,
        "id": selection.id,
        "key": selection.key,
        "visitor": selection.visitor,
    }
    given = {name: value for name, value in columns.items() if value is not None}
    return " AND ".join(f"{name} = ?" for name in given) or "TRUE", [*given.values()]


def there_are(connection: Connection, rows: str, *parameters: str, more_than: int = 0) -> bool:
    """True when there are more than so many `rows`: the SQL behind FROM."""
    sql = f"SELECT 1 FROM {rows} LIMIT 1 OFFSET ?"
    return connection.execute(sql, (*parameters, more_than)).fetchone() is not None


def matches(
    connection: Connection,
    table: str,
    columns: str,
    condition: str,
    parameters: Sequence[object],
    given: Sequence[tuple[str, ...]],
) -> list[tuple[Any, ...]]:
    """Returns columns of the rows that fit one of many given texts, in a statement for each TOGETHER of them.

    Args:
        connection: Of either store.
        table: The rows to look at, and a short name for them.
        columns: SQL of what to return.
        condition: SQL with `parameters`; `given.column1` and the like are the texts.
        parameters: For the question marks of `condition`.
        given: Texts, the same number in each tuple. They may hold the character U+0000, which SQLite's
            functions of JSON cut off.

    """
    found: list[tuple[Any, ...]] = []
    for first in range(0, len(given), TOGETHER):
        some = given[first : first + TOGETHER]
        # CROSS JOIN: SQLite begins with the few texts, and not with all rows.
        sql = f"SELECT {columns} FROM (VALUES {_places(some)}) AS given CROSS JOIN {table} WHERE {condition}"
        found += connection.execute(sql, [*chain.from_iterable(some), *parameters]).fetchall()
    return found


def insert(
    connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Insert rows in their order, in a statement for each TOGETHER of them."""
    together = max(1, MAX_PARAMETERS // len(columns))
    for first in range(0, len(rows), together):
        some = rows[first : first + together]
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {_places(some)}"
        connection.execute(sql, [*chain.from_iterable(some)])


def _places(rows: Sequence[Sequence[object]]) -> str:
    return ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))


def delete_some(table: Table, condition: str, connection: Connection, parameter: str | float, /) -> bool:
    """Delete DELETED_ROWS of the rows at most. Returns whether there may be more."""
    deleted = connection.execute(
        f"DELETE FROM {table} WHERE sequence IN (SELECT sequence FROM {table} WHERE {condition} LIMIT ?)",
        (parameter, DELETED_ROWS),
    ).rowcount
    return deleted == DELETED_ROWS


def within(
    rows: Iterable[tuple[Any, ...]], limit: int, max_bytes: float
) -> tuple[list[tuple[Any, ...]], bool]:
    """At most `limit` of the rows, and whether others follow.

    Fewer when their texts would have more than `max_bytes` bytes together, but the first one always.
    """
    found: list[tuple[Any, ...]] = []
    for row in rows:
        max_bytes -= sum(len(value.encode()) for value in row if isinstance(value, str))
        if len(found) == limit or (found and max_bytes < 0):
            return found, True
        found.append(row)
    return found, False


def forget(
    table: Table,
    connection: Connection,
    selection: Selection,
    own: str | None = None,
    last: int | None = None,
) -> tuple[Counter[str], int]:
    """Delete DELETED_ROWS of the selected rows at most.

    Args:
        table: Where they are.
        connection: Of either store.
        selection: The rows.
        own: The name of the key that asks and may delete no other's. None: it may delete all.
        last: What the first step returned: rows that came later stay. None: this is the first step.

    Returns:
        How many rows of each key were deleted, by its name, and `last` for the next step.

    Raises:
        Forbidden: Some are another key's. Nothing was deleted.

    """
    condition, parameters = condition_of(selection)
    execute = connection.execute
    if last is None:
        if own is not None:
            others = execute(
                f"SELECT 1 FROM {table} WHERE {condition} AND key <> ? LIMIT 1", [*parameters, own]
            ).fetchone()
            if others is not None:
                raise Forbidden(
                    f"Some of these {_NOUNS[table]} are not of the key {own!r}, and deleting another's needs "
                    f"a key of role admin. Nothing was deleted; key={own} deletes your own."
                )
        last = int(execute(f"SELECT coalesce(max(sequence), 0) FROM {table}").fetchone()[0])
    rows = execute(
        f"DELETE FROM {table} WHERE sequence IN "
        f"(SELECT sequence FROM {table} WHERE {condition} AND sequence <= ? LIMIT ?) RETURNING key",
        [*parameters, last, DELETED_ROWS],
    ).fetchall()
    return Counter(key for (key,) in rows), last
