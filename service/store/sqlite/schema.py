"""The tables of the document store: their migrations, and a check that a file has exactly these tables.

    collections  names and numbers; a collection exists from its first document until it is deleted.
    documents    one row per stored document, with its current revision, which never changes.
    vectors      one row per generation, revision and passage, written in the transaction of its document.
    operations   puts and deletes in order; the last number identifies the state of the store.
    generations  which version computed which vectors, and which generation is active.
    skipped      texts that a generation's model fails on.
    history      the versions in the order of their activation; the last one is active.
    verdicts     versions that failed or were rolled back from, so they are not chosen automatically again.
    feedback     judgments: one per collection, query, document id and key name.
    events       events: one row per key, collection and event_id.
    lexical_N    the terms of the documents of collection number N, for keyword search (fulltext.py).
    fields       the values of declared metadata fields, for filters.
    tokens       token vectors of documents for late interaction, by revision and the space of a ranking.
    facts        single values, such as whether the example corpus was loaded.

Start reading at `migrate` and `foreign`. A revision number is never used again (AUTOINCREMENT), so a vector
that arrives late never belongs to another text. Triggers, views and computed columns run code when a table is
read or written. A file from elsewhere may contain them, so the schema of a file is checked first.
"""

import contextlib
import functools
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from service.errors import StartupError, machine_error
from service.store.sql.connection import fetch_value
from service.store.sqlite.filters import instant

_COMMENT = re.compile(r"--[^\n]*")
_SPACE = re.compile(r"\s+")
_STATISTICS = re.compile(r"sqlite_stat\d")  # Made by ANALYZE for the query planner.
_VIRTUAL = "CREATE VIRTUAL TABLE"
_WORDS = re.compile(r"\blexical_\d+")  # The tables of all collections have the same columns.
# FTS5 creates its own tables, whose SQL differs slightly between releases of SQLite.
_PLAIN_TABLE = re.compile(r"CREATE TABLE '?\w+'?\([\w ,()]*\)( WITHOUT ROWID)?")
_COMPUTES = re.compile(r"\b(CHECK|GENERATED|AS|DEFAULT|REFERENCES)\b", re.IGNORECASE)

Entry = tuple[str, str, str, str]  # Type, name, table, SQL.


def harden(connection: sqlite3.Connection) -> None:
    """Makes SQLite distrust the schema and check each page before use. Adds the SQL function for filters."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.create_function("simile_instant", 1, instant, deterministic=True)
    if sys.version_info >= (3, 12):  # Earlier versions cannot set these.
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)


def foreign(connection: sqlite3.Connection, version: int) -> str | None:
    """Returns the first difference between the tables of the file and those of a schema version, or None."""
    found, expected = _entries(connection), _made_until(version)
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
    """Returns whether a table is one that FTS5 itself creates, with plain columns only."""
    virtual = [table for _, table, _, made in expected if made.startswith(_VIRTUAL)]
    beside = any(name.startswith(f"{table}_") for table in virtual)
    known = any(name == other for _, other, _, _ in expected)
    return bool(beside and known and _PLAIN_TABLE.fullmatch(sql) and not _COMPUTES.search(sql))


@functools.cache
def _made_until(version: int) -> frozenset[Entry]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for number, statements in MIGRATIONS.items():
            if number <= version:
                connection.executescript(statements)
        return frozenset(_entries(connection))


def _entries(connection: sqlite3.Connection) -> list[Entry]:
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return [(str(kind), str(name), str(table), _plain(sql)) for kind, name, table, sql in rows]


def _plain(sql: object) -> str:
    """Returns an SQL statement without comments and quotes, and with single spaces."""
    text = _COMMENT.sub("", "" if sql is None else str(sql)).replace('"', "")
    return _SPACE.sub(" ", text).strip()


# The statements of each schema version, which run after those of the version before. The first one has the
# tables of the first release candidate. Files of older development versions are refused.
MIGRATIONS = {
    12: """
    CREATE TABLE collections (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        name   TEXT NOT NULL UNIQUE
    );
    INSERT INTO collections (name) VALUES ('default');
    CREATE TABLE documents (
        revision   INTEGER PRIMARY KEY AUTOINCREMENT,
        collection TEXT NOT NULL,
        id         TEXT NOT NULL,
        text       TEXT NOT NULL,
        metadata   TEXT NOT NULL,  -- a JSON object
        UNIQUE (collection, id)
    );
    -- Empty means no title. Existing files have the column at this place.
    ALTER TABLE documents ADD COLUMN title TEXT NOT NULL DEFAULT '';
    CREATE TABLE vectors (
        generation INTEGER NOT NULL,
        revision   INTEGER NOT NULL,
        passage    INTEGER NOT NULL,  -- 0 is always there; a text that is short, or not split, has no other
        vector     BLOB NOT NULL,     -- little-endian float32, unit length
        checksum   INTEGER NOT NULL,  -- CRC-32 of the blob: finds a flipped bit
        truncated  INTEGER NOT NULL,  -- 1 when the model saw the end of the text in no passage
        start_at   INTEGER NOT NULL,  -- characters of the text
        end_at     INTEGER,           -- NULL where there is one passage
        PRIMARY KEY (generation, revision, passage)
    ) WITHOUT ROWID;
    CREATE TABLE operations (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        kind     TEXT NOT NULL CHECK (kind IN ('put', 'delete')),
        revision INTEGER NOT NULL
    );
    CREATE TABLE generations (
        number      INTEGER PRIMARY KEY AUTOINCREMENT,
        version     TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        form        TEXT NOT NULL,  -- precision and runtime
        dimension   INTEGER NOT NULL,
        state       TEXT NOT NULL
    );
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE skipped (
        generation INTEGER NOT NULL,
        revision   INTEGER NOT NULL,
        reason     TEXT NOT NULL,
        PRIMARY KEY (generation, revision)
    ) WITHOUT ROWID;
    CREATE TABLE history (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        version  TEXT NOT NULL
    );
    CREATE TABLE verdicts (
        version TEXT PRIMARY KEY,
        state   TEXT NOT NULL CHECK (state IN ('failed', 'rolled back')),
        reason  TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE fields (
        collection TEXT NOT NULL,
        field      TEXT NOT NULL,     -- dots between its names
        value      NOT NULL,          -- of no type, so that it is compared as it came
        revision   INTEGER NOT NULL,
        PRIMARY KEY (collection, field, value, revision)
    ) WITHOUT ROWID;
    -- Contentless: `documents` has the texts. secondary_indexes.py makes a table for each collection.
    CREATE VIRTUAL TABLE lexical_1 USING fts5 (text, content='', tokenize='porter ascii');
    CREATE TABLE feedback (
        sequence   INTEGER PRIMARY KEY AUTOINCREMENT,  -- a judgement that replaces another takes a new one
        collection TEXT NOT NULL,
        query      TEXT NOT NULL,
        id         TEXT NOT NULL,     -- a document's, which may have been deleted since
        key        TEXT NOT NULL,     -- the name of the key that judged; empty without keys
        relevant   INTEGER NOT NULL,  -- 1 or 0
        UNIQUE (collection, query, key, id)
    );
    CREATE INDEX feedback_of_document ON feedback (collection, id, key);
    CREATE INDEX feedback_of_key ON feedback (key);
    CREATE TABLE events (
        sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
        collection TEXT NOT NULL,
        key        TEXT NOT NULL,     -- the name of the key that reported it; empty without keys
        event_id   TEXT NOT NULL,
        search_id  TEXT NOT NULL,
        query      TEXT NOT NULL,
        id         TEXT NOT NULL,     -- a living document's
        type       TEXT NOT NULL,
        position   INTEGER,           -- of the hit among all, from 1; NULL: not known
        shown      TEXT NOT NULL,     -- a JSON array of ids
        at         REAL NOT NULL,     -- seconds of Unix time
        UNIQUE (key, collection, event_id)
    );
    CREATE INDEX events_of_document ON events (collection, id, key);
    CREATE INDEX events_of_time ON events (at);
    -- Lists the events of one key by number; the unique index lists them by event_id.
    CREATE INDEX events_of_key ON events (key);
    """,
    # Older rows name no visitor, and their keys count as trusted.
    13: """
    ALTER TABLE events ADD COLUMN visitor TEXT NOT NULL DEFAULT '';
    ALTER TABLE events ADD COLUMN trusted INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE feedback ADD COLUMN visitor TEXT NOT NULL DEFAULT '';
    ALTER TABLE feedback ADD COLUMN trusted INTEGER NOT NULL DEFAULT 1;
    CREATE INDEX events_of_visitor ON events (visitor);
    CREATE INDEX feedback_of_visitor ON feedback (visitor);
    """,
    # NULL in older rows. documents.py fills it in the background.
    14: """
    ALTER TABLE documents ADD COLUMN checksums BLOB;
    CREATE INDEX documents_without_checksums ON documents (revision) WHERE checksums IS NULL;
    """,
    # Terms are stemmed before FTS5 gets them. `migrate` drops the tables of the other collections, and
    # secondary_indexes.py makes and fills them.
    15: """
    DROP TABLE lexical_1;
    CREATE VIRTUAL TABLE lexical_1 USING fts5 (text, content='', tokenize='ascii');
    """,
    16: """
    CREATE TABLE tokens (
        revision INTEGER NOT NULL,
        space    TEXT NOT NULL,  -- the encoder and the projection (Ranking.space)
        body     BLOB NOT NULL,  -- int8, DIMENSIONS of models/tokens/late.py a token
        PRIMARY KEY (revision, space)
    ) WITHOUT ROWID;
    """,
    # The live test that an event is an outcome of, and 1 for its candidate or -1 for the active version.
    17: """
    ALTER TABLE events ADD COLUMN test TEXT NOT NULL DEFAULT '';
    ALTER TABLE events ADD COLUMN side INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX events_of_test ON events (test, sequence) WHERE test <> '';
    """,
}
STEMMED = 15  # From this version on, FTS5 gets terms that are stemmed already.
SCHEMA_VERSION = max(MIGRATIONS)
DATABASE = "simile.db"  # In the data directory.
BUSY_SECONDS = 30.0


@contextlib.contextmanager
def starting(what: object) -> Iterator[None]:
    """Converts SQLite's errors in the block to StartupErrors, whose message names `what`."""
    try:
        yield
    except sqlite3.Error as error:
        fault = machine_error(error)
        raise StartupError(f"{what}: {fault.message if fault else error}") from error


def connect(
    path: Path, kind: type[sqlite3.Connection] = sqlite3.Connection, *, read_only: bool = False
) -> sqlite3.Connection:
    """Opens a connection whose commits are durable. Transactions begin only by explicit statements."""
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=kind
    )
    try:
        harden(connection)
        connection.text_factory = tolerant  # Damaged texts must not make searches fail.
        # A vector of 1,536 bytes would waste much of a 4 KiB page. Existing files keep their page size.
        connection.execute("PRAGMA page_size = 16384")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA query_only = {int(read_only)}")
    except BaseException:
        connection.close()
        raise
    return connection


def tolerant(text: bytes) -> str:
    """Decodes a text, and replaces invalid UTF-8. Checksums detect the damage."""
    return text.decode(errors="replace")


def migrate(path: Path) -> None:
    """Migrates a file to the current schema, or creates it.

    Raises:
        StartupError: A newer or very old version wrote the file, its tables are not those of its schema
            version, it is not a database, or it cannot be written.
    """
    with starting(path), contextlib.closing(connect(path)) as connection:
        version = int(fetch_value(connection, "PRAGMA user_version"))
        if version > SCHEMA_VERSION:
            raise StartupError(
                f"{path} was written by a newer Simile (schema {version}, this one knows {SCHEMA_VERSION}). "
                "Install that version again, or start with another SIMILE_DATA_DIR."
            )
        if version not in (0, *MIGRATIONS):
            raise StartupError(
                f"{path} was written by an early development version (schema {version}, this one reads "
                f"{min(MIGRATIONS)} and later). Export it with that version, or start with another "
                "SIMILE_DATA_DIR."
            )
        if (problem := foreign(connection, version)) is not None:
            raise StartupError(
                f"{path} is not a store of Simile as it should be: {problem}. Nothing in it was run or "
                "changed. Restore a backup, or remove the additions."
            )
        for number, statements in MIGRATIONS.items():
            if number > version:
                dropped = _drop_words(connection) if number == STEMMED else ""
                connection.executescript(
                    f"BEGIN IMMEDIATE; {dropped} {statements} PRAGMA user_version = {number}; COMMIT;"
                )


def _drop_words(connection: sqlite3.Connection) -> str:
    """Returns statements that drop the tables of terms, except for the first collection's."""
    sql = "SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%' AND name GLOB 'lexical_*'"
    names = {name for (name,) in connection.execute(sql)} - {"lexical_1"}
    return "".join(f"DROP TABLE {name};" for name in names)
