"""Connections to the database, and a pool of them."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, LiteralString

import psycopg
from psycopg_pool import ConnectionPool

Raw = psycopg.Connection[tuple[Any, ...]]
WAIT_SECONDS = 5.0  # for a free connection
_LEAST = 2


@lru_cache
def _translated(sql: str) -> LiteralString:
    """`sql` with psycopg's placeholders: no statement of ours has a question mark of another meaning."""
    return sql.replace("%", "%%").replace("?", "%s")


class Connection:
    """A connection of the pool, in the words that both stores share."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.raw.execute(_translated(sql), parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_translated(sql), parameters)

    def copy(self, sql: LiteralString, rows: Iterable[Sequence[Any]]) -> None:
        """Write rows into a table: COPY … FROM STDIN."""
        with self.raw.cursor() as cursor, cursor.copy(sql) as copy:
            for row in rows:
                copy.write_row(row)


def opened_pool(url: str, most: int) -> ConnectionPool[Raw]:
    """A pool of at most `most` connections, which begin and end their transactions by hand."""
    pool: ConnectionPool[Raw] = ConnectionPool(
        url,
        min_size=_LEAST,
        max_size=most,
        open=False,
        timeout=WAIT_SECONDS,
        configure=_configure,
        check=ConnectionPool.check_connection,  # one that a restart of the database broke is replaced
        kwargs={"autocommit": True, "application_name": "simile", "connect_timeout": int(WAIT_SECONDS)},
    )
    pool.open()
    return pool


def _configure(raw: Raw) -> None:
    raw.execute("SET idle_in_transaction_session_timeout = '60s'")
