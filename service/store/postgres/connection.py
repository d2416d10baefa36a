"""Connections to the database, and a pool of them."""

import logging
import select
import struct
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf
from typing import Any, LiteralString, TypeVar

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.abc import PQGen
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.pq.abc import PGconn
from psycopg_pool import ConnectionPool

T = TypeVar("T")

WAIT_SECONDS = 5.0  # for a free connection
CHECKED_SECONDS = 1.0  # for which a connection that has answered is taken to be whole
CHECK_SECONDS = 2.0  # for which one that is checked may take to answer
GRACE_SECONDS = 3.0  # in which the server itself should have ended a statement
# A cut network is noticed by these; a server that went away without a word, too.
PARAMETERS: dict[str, Any] = {
    "autocommit": True,
    "application_name": "simile",
    "connect_timeout": int(WAIT_SECONDS),
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms
}
_LEAST = 2
# It says each try to connect, of each connection. reader.py and writer.py say once what fails.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
_BIGINT = 20  # among PostgreSQL's types
_COPY_HEAD, _COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


@lru_cache
def _translated(sql: str) -> LiteralString:
    """`sql` with psycopg's placeholders: no statement of ours has a question mark of another meaning."""
    return sql.replace("%", "%%").replace("?", "%s")


class NoAnswer(psycopg.OperationalError):
    """The server should have ended a statement long ago, so it hangs, or the network was cut."""


class Raw(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for each answer for so long, and then is closed."""

    answer_seconds: float | None = None  # None: however long it takes
    answered_at = -inf  # time.monotonic()

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self.wide: dict[int, float] = {}  # filters that many documents match (nearest.py)

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, timeout or self.answer_seconds)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001 # it has no public name
            if timeout is not None:
                raise
            self.close()
            raise NoAnswer(f"The database did not answer for {self.answer_seconds} seconds") from error
        finally:
            self.answered_at = time.monotonic()


class Connection:
    """A connection of the pool, in the words that both stores share."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.raw.execute(_translated(sql), parameters, binary=True)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_translated(sql), parameters)

    def take_time(self) -> None:
        """Until the connection goes back to its pool, a statement takes as long as it takes."""
        self.raw.answer_seconds = None
        self.execute("SET LOCAL statement_timeout = 0")

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


class Pool(ConnectionPool[Raw]):
    """Connections that begin and end their transactions by hand."""

    def __init__(self, url: str, most: int, answer_seconds: float) -> None:
        self._answer_seconds = answer_seconds
        super().__init__(
            url,
            connection_class=Raw,
            min_size=_LEAST,
            max_size=most,
            open=True,
            timeout=WAIT_SECONDS,
            # Then the next request tries anew; the pool itself would pause for twice as long each time.
            reconnect_timeout=WAIT_SECONDS,
            configure=self._configure,
            reset=self._be_patient,
            check=self._test,
            kwargs=PARAMETERS,
        )

    @staticmethod
    def check_connection(conn: Raw) -> None:
        """Close a connection that the server has ended, and raise.

        Nothing is asked, so `check` does not wait for the silence of one connection after another.
        """
        said = select.poll()
        said.register(conn.fileno(), select.POLLIN)
        if said.poll(0):  # to an idle connection a server says nothing but its end
            conn.close()
            raise psycopg.OperationalError("The server has closed the connection")

    def _configure(self, raw: Raw) -> None:
        raw.adapters.register_dumper(np.ndarray, _ArrayDumper)
        milliseconds = int(self._answer_seconds * 1000)
        raw.execute(
            f"SET statement_timeout = {milliseconds:d}; SET idle_in_transaction_session_timeout = '60s'; "
            "SET hnsw.iterative_scan = relaxed_order; SET hnsw.ef_search = 100; "
            "SET hnsw.scan_mem_multiplier = 8; SET jit = off; "
            "SET simile.sums = 'on'".encode()  # else schema.py takes it for an older version
        )
        self._be_patient(raw)

    def _be_patient(self, raw: Raw) -> None:
        """Set the usual patience, also behind a transaction that took its time."""
        raw.answer_seconds = self._answer_seconds + GRACE_SECONDS if self._answer_seconds else None

    def _test(self, raw: Raw) -> None:
        """Raise for a connection that a restart or the network broke, so that another is made.

        The other idle ones that broke with it go at once: the pool would pause for 1, 2 and 4 s between
        those that it finds broken one by one.
        """
        try:
            self.check_connection(raw)
        except psycopg.OperationalError:
            self.check()
            raise
        if time.monotonic() - raw.answered_at > CHECKED_SECONDS:
            usual, raw.answer_seconds = raw.answer_seconds, CHECK_SECONDS
            raw.execute("")
            raw.answer_seconds = usual
