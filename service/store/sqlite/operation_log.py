"""The operation log, kept short: its numbers are what counts, and the latest is kept by SQLite itself.

A reader that follows from a moment reads the rows behind it, and looks first whether the log reaches back
so far; where it does not, loading the vectors anew is faster than that many steps.
"""

import sqlite3

from service.store.sql.generations import DROPPED, has_dropped
from service.store.sqlite.documents import sequence
from service.store.sqlite.writer import Transaction

KEPT_OPERATIONS = 100_000  # the latest ones; as many vectors are loaded anew in about a second
PURGE_ROWS = 256
TRIM_ROWS = 1024  # of one step: a write waits a few milliseconds for it


def is_long(connection: sqlite3.Connection) -> bool:
    """True when there is enough to trim for a step to be worth its commit."""
    [first] = connection.execute("SELECT coalesce(min(sequence), 0) FROM operations").fetchone()
    return bool(first and first <= sequence(connection) - KEPT_OPERATIONS - TRIM_ROWS)


def is_untidy(connection: sqlite3.Connection) -> bool:
    """True when `tidy` has something to do: vectors of a dropped generation, or a log that is long."""
    return has_dropped(connection) or is_long(connection)


def tidy(transaction: Transaction) -> bool:
    """Delete some vectors of dropped generations, then some operations; whether there are more."""
    return purge(transaction) or trim(transaction)


def purge(transaction: Transaction) -> bool:
    """Delete some vectors of dropped generations; whether there are more."""
    execute = transaction.connection.execute
    row = execute("SELECT number FROM generations WHERE state = ? LIMIT 1", (DROPPED,)).fetchone()
    if row is None:
        return False
    [number] = row
    left = False
    for table in ("vectors", "skipped"):
        deleted = execute(
            f"DELETE FROM {table} WHERE generation = ?1 AND revision IN "
            f"(SELECT revision FROM {table} WHERE generation = ?1 LIMIT ?2)",
            (number, PURGE_ROWS),
        ).rowcount
        left = left or deleted >= PURGE_ROWS  # a revision may have several
    if not left:
        execute("DELETE FROM generations WHERE number = ?", (number,))
    return True


def trim(transaction: Transaction) -> bool:
    """Delete some operations, the oldest first; whether there are more."""
    execute, last = transaction.connection.execute, sequence(transaction.connection)
    deleted = execute(
        "DELETE FROM operations WHERE sequence IN "
        "(SELECT sequence FROM operations WHERE sequence <= ? ORDER BY sequence LIMIT ?)",
        (last - KEPT_OPERATIONS, TRIM_ROWS),
    ).rowcount
    return deleted == TRIM_ROWS
