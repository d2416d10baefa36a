"""Rows of the tables that both stores keep alike, in chunks: judgements, events and decisions.

Columns that a store numbers by itself are not copied.
"""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias, cast

import orjson

from service.errors import CommandError
from service.store.postgres.store import PostgresStore
from service.store.sql.connection import COPYING
from service.store.sql.connection import Connection as AnyConnection
from service.store.sqlite.offline import with_null_characters
from service.store.sqlite.store import SqliteStore

Either: TypeAlias = SqliteStore | PostgresStore
TABLES = {
    "feedback": "collection, query, id, key, relevant, visitor, trusted",
    "events": (
        "collection, key, event_id, search_id, query, id, type, position, shown, at, visitor, trusted"
    ),
    "history": "version",
    "verdicts": "version, state, reason",
    "facts": "name, value",
}
ROWS = 4096  # in one transaction
MAX_NAMED = 100  # documents that an error names
_ORDER: dict[str, tuple[str, int | str]] = {  # a column, and what is before its first value
    "feedback": ("sequence", 0),
    "events": ("sequence", 0),
    "history": ("position", 0),
    "verdicts": ("version", ""),
    "facts": ("name", ""),
}
_OWN_FACTS = (COPYING, "lexical rules", "field rules")  # of one store alone
# Columns with what clients sent.
_SENT = {"feedback": ("query", "id"), "events": ("query", "id", "event_id", "search_id", "type")}


async def copy_rows(source: Either, target: Either) -> None:
    """Put the rows of all tables in the place of those of the target."""
    for table in TABLES:
        await target.writer.run(partial(_empty, table=table))
        async for chunk in _chunks(source, table):
            await target.writer.run(partial(_insert, table=table, rows=chunk))


async def sums(store: Either) -> dict[str, str]:
    """SHA-256 of each table."""
    found = {}
    for table in TABLES:
        digest = sha256()
        async for chunk in _chunks(store, table):
            digest.update(orjson.dumps(chunk))
        found[table] = digest.hexdigest()
    return found


async def refuse_null_characters(source: SqliteStore) -> None:
    """Raise CommandError for documents, judgements or events that PostgreSQL cannot store; it names them."""
    ids = await source.search(with_null_characters)
    if ids:
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        raise CommandError(
            f"PostgreSQL cannot store the character U+0000. {len(ids)} documents have it in their id, title "
            f"or text: {', '.join(map(repr, ids[:MAX_NAMED]))}{more}. Delete them, or send them again "
            "without it, then copy again. `check --data` lists them, too."
        )
    for table, columns in _SENT.items():
        row = await source.search(partial(_with_null_character, table=table, columns=columns))
        if row is not None:
            collection, id, query, count = row
            others = f" So do {count - 1} other rows." if count > 1 else ""
            raise CommandError(
                f"A row of {table} has the character U+0000, which PostgreSQL cannot store: "
                f"document {id!r} of collection {collection!r}, query {query!r}.{others} Delete "
                "it, then copy again."
            )


def _with_null_character(snapshot: object, table: str, columns: Sequence[str]) -> Any:
    # SQLite's functions of texts end at the character.
    has = " OR ".join(f"instr(CAST({column} AS BLOB), x'00')" for column in columns)
    sql = f"SELECT collection, id, query, count(*) OVER () FROM {table} WHERE {has} LIMIT 1"
    return cast("AnyConnection", snapshot).execute(sql).fetchone()


async def _chunks(store: Either, table: str) -> AsyncIterator[list[list[Any]]]:
    _, after = _ORDER[table]
    while rows := await store.search(partial(_behind, table=table, after=after)):
        yield [row[1:] for row in rows]
        after = rows[-1][0]


def _behind(snapshot: object, table: str, after: int | str) -> list[list[Any]]:
    """The next rows, each behind the value that it is ordered by."""
    order, _ = _ORDER[table]
    rows = cast("AnyConnection", snapshot).execute(
        f"SELECT {order}, {TABLES[table]} FROM {table} WHERE {order} > ? AND {_copied(table)} "
        f"ORDER BY {order} LIMIT ?",
        (after, ROWS),
    )
    return [[*row] for row in rows]


def _empty(connection: AnyConnection, table: str) -> None:
    connection.execute(f"DELETE FROM {table} WHERE {_copied(table)}")


def _insert(connection: AnyConnection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    places = ", ".join("?" * len(rows[0]))
    connection.executemany(f"INSERT INTO {table} ({TABLES[table]}) VALUES ({places})", rows)


def _copied(table: str) -> str:
    return f"name NOT IN {_OWN_FACTS}" if table == "facts" else "1 = 1"
