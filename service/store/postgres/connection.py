"""Connects to the database, and converts the database's errors. Start reading at `Pool` and `refusal`."""

import contextlib
import logging
import select
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
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
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from service.errors import CommandError, ServiceError, Storage, Timeout, Unhealthy, Validation
from service.observability import outages

T = TypeVar("T")

WAIT_SECONDS = 5.0  # Wait for a free connection.
CHECKED_SECONDS = 1.0  # A connection that answered this recently is not checked.
CHECK_SECONDS = 2.0  # Time limit of a check.
GRACE_SECONDS = 3.0  # Added to the server's own time limit of a statement.
# The least hnsw.ef_search. With 100, recall@10 of a million short texts is 0.93 instead of 0.96, and the
# index takes 6 instead of 9 ms (docs/PERFORMANCE.md).
MIN_SEARCHED = 250
# These settings detect a cut network, and a server that disappeared.
PARAMETERS: dict[str, Any] = {
    "autocommit": True,
    "application_name": "simile",
    "connect_timeout": int(WAIT_SECONDS),
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # ms
}
_MIN_CONNECTIONS = 2
# psycopg logs each attempt of each connection. reader.py and writer.py log a failure once.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
_BIGINT = 20  # The OID of PostgreSQL's type bigint.
_COPY_HEAD, _COPY_END = b"PGCOPY\n\xff\r\n\0" + bytes(8), b"\xff\xff"


@lru_cache
def _translated(sql: str) -> LiteralString:
    """Returns SQL with the placeholders of psycopg.

    In the store's SQL, question marks are only parameters.
    """
    return sql.replace("%", "%%").replace("?", "%s")


class NoAnswer(psycopg.OperationalError):
    """Raised if the server did not end a statement in time: the server hangs, or the network was cut."""


class Raw(psycopg.Connection[tuple[Any, ...]]):
    """A connection that limits the time for each answer. After that time, the connection is closed."""

    answer_seconds: float | None = None  # None means no limit.
    answered_at = -inf  # time.monotonic()

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        self.wide: dict[int, float] = {}  # Filters that many documents match (vectors.py).

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        try:
            return super().wait(gen, interval, timeout or self.answer_seconds)
        except psycopg.errors._WaitTimeout as error:  # noqa: SLF001
            if timeout is not None:
                raise
            self.close()
            raise NoAnswer(f"The database did not answer for {self.answer_seconds} seconds") from error
        finally:
            self.answered_at = time.monotonic()


class Connection:
    """A connection of the pool, with the interface that the shared queries in sql/ use."""

    AMONG = "= ANY(?)"

    def listed(self, values: Sequence[object], /) -> list[object]:
        return [*values]

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self.raw.execute(_translated(sql), parameters, binary=True)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_translated(sql), parameters)

    def take_time(self) -> None:
        """Removes the time limit of statements, until the connection returns to the pool."""
        self.raw.answer_seconds = None
        self.execute("SET LOCAL statement_timeout = 0")

    def copy(self, into: str, rows: Iterable[bytes]) -> None:
        """Writes rows to columns of a table with COPY.

        Args:
            into: The table with the list of columns, as SQL.
            rows: Rows in the binary form of COPY.
        """
        with (
            self.raw.cursor() as cursor,
            cursor.copy(f"COPY {into} FROM STDIN (FORMAT binary)".encode()) as copy,
        ):
            copy.write(_COPY_HEAD + b"".join(rows) + _COPY_END)


class _ArrayDumper(Dumper):
    """Encodes arrays for PostgreSQL, big-endian: float32 as a pgvector, int64 as an array of bigint."""

    format = Format.BINARY

    def dump(self, obj: NDArray[np.float32] | NDArray[np.int64]) -> bytes:
        if obj.dtype == np.float32:
            return struct.pack(">hh", len(obj), 0) + obj.astype(">f4").tobytes()
        rows = np.empty(len(obj), [("size", ">i4"), ("value", ">i8")])
        rows["size"], rows["value"] = 8, obj
        return struct.pack(">iiiii", 1, 0, _BIGINT, len(obj), 1) + rows.tobytes()


class Pool(ConnectionPool[Raw]):
    """A pool of connections. Transactions begin and end only by explicit statements."""

    def __init__(self, url: str, most: int, answer_seconds: float) -> None:
        self._answer_seconds = answer_seconds
        super().__init__(
            url,
            connection_class=Raw,
            min_size=_MIN_CONNECTIONS,
            max_size=most,
            open=True,
            timeout=WAIT_SECONDS,
            # The next request then connects again. The pool itself would double its pause each time.
            reconnect_timeout=WAIT_SECONDS,
            configure=self._configure,
            reset=self._be_patient,
            check=self._test,
            kwargs=PARAMETERS,
        )

    @staticmethod
    def check_connection(conn: Raw) -> None:
        """Raises OperationalError if the server has ended a connection, and closes the connection.

        This sends nothing to the server. Otherwise a network failure would cost a time limit per connection.
        """
        said = select.poll()
        said.register(conn.fileno(), select.POLLIN)
        if said.poll(0):  # On an idle connection, a server only announces the end.
            conn.close()
            raise psycopg.OperationalError("The server has closed the connection")

    def _configure(self, raw: Raw) -> None:
        raw.adapters.register_dumper(np.ndarray, _ArrayDumper)
        milliseconds = int(self._answer_seconds * 1000)
        raw.execute(
            f"SET statement_timeout = {milliseconds:d}; SET idle_in_transaction_session_timeout = '60s'; "
            f"SET hnsw.iterative_scan = relaxed_order; SET hnsw.ef_search = {MIN_SEARCHED:d}; "
            "SET hnsw.scan_mem_multiplier = 8; SET jit = off; "
            # Otherwise a trigger treats the connection as one of an older version (schema.py).
            "SET simile.sums = 'on'".encode()
        )
        self._be_patient(raw)

    def _be_patient(self, raw: Raw) -> None:
        """Restores the usual time limit for an answer, for example after `take_time`."""
        raw.answer_seconds = self._answer_seconds + GRACE_SECONDS if self._answer_seconds else None

    def _test(self, raw: Raw) -> None:
        """Raises if a connection is broken, so that the pool opens another one.

        Also closes other idle connections that broke at the same time. The pool would otherwise find them one
        after another, with pauses of 1, 2 and 4 s.
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


log = logging.getLogger(__name__)

# A serialization failure, a deadlock, or a row that another transaction has just inserted.
AGAIN_CODES = {"40001", "40P01", "23505"}
_NUL = "has the character U+0000, which PostgreSQL cannot store. Leave it out."
_AWAY = "The database cannot be reached. Send again later."
_NOT_AS_NEEDED = "The database cannot answer this: {}. GET /ready says what it lacks, if it does."
_SYNTAX_ERROR = "42601"  # A bug of Simile.
UNSURE = "The database went away during the commit: the request may be stored or not. Send it again."
_BUSY = "The database was too busy with other writes. Send again."
# By SQLSTATE, or by its first two characters.
_REFUSALS: dict[str, tuple[type[ServiceError], str, float | None]] = {
    "22P05": (Validation, f"Metadata {_NUL}", None),
    "40001": (Unhealthy, _BUSY, 1),
    "40P01": (Unhealthy, _BUSY, 1),
    "23505": (Unhealthy, _BUSY, 1),
    "57014": (Timeout, "The database took longer than SIMILE_HANG_SECONDS. Send again later.", 2),
    "55P03": (Unhealthy, _BUSY, 1),
    "25006": (Unhealthy, "The database takes no writes: it is a standby. Send again later.", 2),
    "53300": (Unhealthy, "The database has no connection left. Send again later.", 1),
    "53100": (Storage, "The database's disk is full. Free some room, then send again.", None),
    "53": (Unhealthy, "The database lacks memory or another resource. Send again later.", 2),
    "08": (Unhealthy, _AWAY, 2),  # The connection broke.
    "57": (Unhealthy, _AWAY, 2),  # The server starts, stops or fails over.
    "42": (Unhealthy, _NOT_AS_NEEDED, 5),  # A table, column, index or right is missing.
    "3F": (Unhealthy, _NOT_AS_NEEDED, 5),  # The schema is missing.
    "58": (Unhealthy, _NOT_AS_NEEDED, 5),  # A file is missing.
    "XX": (Unhealthy, _NOT_AS_NEEDED, 5),  # Damage, or a table that another session has just dropped.
}


class Again(Exception):
    """Raised if another transaction interfered. The writer then runs the transaction again."""


def is_lost(error: Exception) -> bool:
    """Returns whether a connection broke, or its server stops, starts or became a standby.

    False for timeouts, because a second attempt would also wait.
    """
    waited = NoAnswer | PoolTimeout | PoolClosed  # A second attempt would also wait.
    if not isinstance(error, psycopg.OperationalError) or isinstance(error, waited):
        return False
    code = error.sqlstate
    return code is None or code[:2] == "08" or code in {"57P01", "57P02", "57P03", "25P03", "25006"}


def refusal(error: Exception) -> ServiceError | None:
    """Returns the ServiceError for a fault of the database or the network. Returns None for other errors."""
    if isinstance(error, PoolTimeout | PoolClosed):
        return Unhealthy(
            "No connection to the database is free, or it cannot be reached. Send again later.",
            retry_after_seconds=1,
        )
    if isinstance(error, NoAnswer):
        return Unhealthy("The database does not answer. Send again later.", retry_after_seconds=2)
    if isinstance(error, Again):
        return Unhealthy(_BUSY, retry_after_seconds=1)
    if isinstance(error, psycopg.DataError) and "NUL" in str(error):
        return Validation(f"A text {_NUL}")
    if not isinstance(error, psycopg.Error):
        return None
    code = error.sqlstate or ("08" if isinstance(error, psycopg.OperationalError) else "")
    found = None if code == _SYNTAX_ERROR else _REFUSALS.get(code) or _REFUSALS.get(code[:2])
    return found and found[0](found[1].format(_first_line(error)), retry_after_seconds=found[2])


@contextlib.contextmanager
def refusing(what: str) -> Iterator[None]:
    """Converts faults of the database in the block to ServiceErrors, and logs all except Validation.

    Args:
        what: Beginning of the log line.
    """
    try:
        yield
    except Exception as error:
        fault = refusal(error)
        if fault is None:
            raise
        if not isinstance(fault, Validation):  # The client's mistake.
            outages.warn(log, f"{what}: {reason(error)}")
        raise fault from error


def unreadable(error: psycopg.Error) -> CommandError:
    """Returns the CommandError for a database that a command cannot read.

    Raise it with `from None`, because psycopg's error may quote a wrong URL with the password.
    """
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return CommandError("The database cannot be asked: check the URL of SIMILE_DATABASE.")
    return CommandError(f"The database of SIMILE_DATABASE cannot be read ({reason(error)}).")


def reason(error: Exception) -> str:
    """Returns the type and the first line of an error. Later lines may quote a statement's parameters."""
    return f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
