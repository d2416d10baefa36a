"""A database file holds the tables that this program makes, and nothing else.

A trigger, a view or a computed column runs with whatever reads or writes the table. A file that came from
elsewhere may hold any of them, so the schema is compared before anything else is asked of the file.
"""

import contextlib
import functools
import re
import sqlite3
import sys

_COMMENT = re.compile(r"--[^\n]*")
_SPACE = re.compile(r"\s+")
_STATISTICS = re.compile(r"sqlite_stat\d")  # made by ANALYZE: numbers for the query planner
_VIRTUAL = "CREATE VIRTUAL TABLE"
_WORDS = re.compile(r"\blexical_\d+")  # each collection's table of words is made as the first one's
# FTS5 writes its own tables, and each release of SQLite may write them a little differently.
_PLAIN_TABLE = re.compile(r"CREATE TABLE '?\w+'?\([\w ,()]*\)( WITHOUT ROWID)?")
_COMPUTES = re.compile(r"\b(CHECK|GENERATED|AS|DEFAULT|REFERENCES)\b", re.IGNORECASE)

Entry = tuple[str, str, str, str]  # type, name, table, SQL


def harden(connection: sqlite3.Connection) -> None:
    """Trust nothing that a schema says, and look at each page before it is used."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):  # before that sqlite3 cannot ask for these
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)


def foreign(connection: sqlite3.Connection, migrations: tuple[str, ...]) -> str | None:
    """The first difference between the file's tables and those that `migrations` make; None without any."""
    found, expected = _entries(connection), _made_by(migrations)
    for entry in found:
        kind, name, _, sql = entry
        as_first = tuple(_WORDS.sub("lexical_1", part) for part in entry)
        if (
            as_first in expected
            or _STATISTICS.fullmatch(name)
            or _is_of_full_text(as_first[1], sql, expected)
        ):
            continue
        if any(name == other for _, other, _, _ in expected):
            return f"its {kind} {name[:80]!r} is not as Simile makes it"
        return f"it holds a {kind} {name[:80]!r}, which Simile does not make"
    names = [name for _, name, _, _ in found]
    for kind, name, _, _ in sorted(expected):
        if names.count(name) != 1:
            return f"it {'holds two entries for' if name in names else 'lacks'} the {kind} {name!r}"
    return None


def _is_of_full_text(name: str, sql: str, expected: frozenset[Entry]) -> bool:
    """A table that FTS5 makes beside its virtual table, of plain columns."""
    virtual = [table for _, table, _, made in expected if made.startswith(_VIRTUAL)]
    beside = any(name.startswith(f"{table}_") for table in virtual)
    known = any(name == other for _, other, _, _ in expected)
    return bool(beside and known and _PLAIN_TABLE.fullmatch(sql) and not _COMPUTES.search(sql))


@functools.cache
def _made_by(migrations: tuple[str, ...]) -> frozenset[Entry]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statements in migrations:
            connection.executescript(statements)
        return frozenset(_entries(connection))


def _entries(connection: sqlite3.Connection) -> list[Entry]:
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return [(str(kind), str(name), str(table), _plain(sql)) for kind, name, table, sql in rows]


def _plain(sql: object) -> str:
    """The statement without comments, quotes of names and differences of space."""
    text = _COMMENT.sub("", "" if sql is None else str(sql)).replace('"', "")
    return _SPACE.sub(" ", text).strip()
