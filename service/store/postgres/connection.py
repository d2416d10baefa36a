"""Connections to the database, and a pool of them."""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, LiteralString

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg_pool import ConnectionPool

Raw = psycopg.Connection[tuple[Any, ...]]
WAIT_SECONDS = 5.0  # for a free connection
_LEAST = 2
_BIGINT = 20  # among PostgreSQL's types
_COPY_HEAD, _COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


@lru_cache
def _translated(sql: str) -> LiteralString:
    """`sql` with psycopg's placeholders: no statement of ours has a question mark of another meaning."""
    return sql.replace("%", "%%").replace("?", "%s")


class Connection:
    """A connection of the pool, in the words that both stores share."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.raw.execute(_translated(sql), parameters, binary=True)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_translated(sql), parameters)

    def copy(self, into: str, rows: Iterable[bytes]) -> None:
        """Write rows, in the binary form of COPY, into a table's columns."""
        with (
            self.raw.cursor() as cursor,
            cursor.copy(f"COPY {into} FROM STDIN (FORMAT binary)".encode()) as copy,
        ):
            copy.write(_COPY_HEAD + b"".join(rows) + _COPY_END)


class _ArrayDumper(Dumper):
    """float32 as pgvector receives it, and int64 as an array of bigint; both are big-endian."""

    format = Format.BINARY

    def dump(self, obj: NDArray[np.float32] | NDArray[np.int64]) -> bytes:
        if obj.dtype == np.float32:
            return struct.pack(">hh", len(obj), 0) + obj.astype(">f4").tobytes()
        rows = np.empty(len(obj), [("size", ">i4"), ("value", ">i8")])
        rows["size"], rows["value"] = 8, obj
        return struct.pack(">iiiii", 1, 0, _BIGINT, len(obj), 1) + rows.tobytes()


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
    raw.adapters.register_dumper(np.ndarray, _ArrayDumper)
    raw.execute(
        "SET idle_in_transaction_session_timeout = '60s'; SET hnsw.iterative_scan = relaxed_order; "
        "SET hnsw.ef_search = 100; SET hnsw.scan_mem_multiplier = 8; SET jit = off"
    )
