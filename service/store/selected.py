"""Rows of the tables `feedback` and `events` that a selection picks."""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from service.errors import Forbidden
from service.store.connection import Connection
from service.store.values import Selection

Table = Literal["feedback", "events"]
DELETED_ROWS = 4096  # of one step: a write waits some tens of milliseconds for it
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
    table: Table, connection: Connection, selection: Selection, own: str | None = None
) -> dict[str, int]:
    """Delete the rows. Returns how many there were of each key, by its name.

    own: the name of the key that asks and may delete no other's; None: it may delete all.

    Raises:
        Forbidden: some are another key's. Nothing was deleted.

    """
    condition, parameters = condition_of(selection)
    execute = connection.execute
    if own is not None:
        others = execute(
            f"SELECT 1 FROM {table} WHERE {condition} AND key <> ? LIMIT 1", [*parameters, own]
        ).fetchone()
        if others is not None:
            raise Forbidden(
                f"Some of these {_NOUNS[table]} are not of the key {own!r}, and deleting another's needs a "
                f"key of role admin. Nothing was deleted; key={own} deletes your own."
            )
    rows = execute(f"DELETE FROM {table} WHERE {condition} RETURNING key", parameters).fetchall()
    return dict(Counter(key for (key,) in rows))
