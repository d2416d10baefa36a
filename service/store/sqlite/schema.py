"""The tables of the document store, and how an older file becomes today's.

    collections  their names and numbers; one is there from its first document until it is deleted
    documents    one row per living document; its title and text are an immutable revision
    vectors      one row per generation, revision and passage, written in the transaction of its document
    operations   what happened, in order: its last number is the moment that an index has to be at
    generations  which model version made which vectors, and which of them is live
    skipped      texts that a generation's model fails on: there is no vector, and none is awaited
    history      the versions in the order in which they came to live; the last one is live
    verdicts     versions that failed or were rolled back from: not chosen again by themselves
    feedback     what users said of their hits: one judgement per query, document's id and key's name
    events       what users did with their hits: one row per key, collection and event_id
    lexical_N    the words of the documents of collection number N, for search by words (fulltext.py)
    fields       the values of declared metadata fields, for filters
    facts        single values, such as whether the example corpus was loaded

A revision's number is never used twice (AUTOINCREMENT), so a late result can never land on another text.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from service.errors import StartupError, machine_error
from service.store.sqlite.schema_check import foreign, harden

# One entry per schema version: the statements that lead to it from the one before.
MIGRATIONS = (
    """
    CREATE TABLE documents (
        revision   INTEGER PRIMARY KEY AUTOINCREMENT,
        collection TEXT NOT NULL,
        id         TEXT NOT NULL,
        text       TEXT NOT NULL,
        metadata   TEXT NOT NULL,  -- a JSON object
        UNIQUE (collection, id)
    );
    CREATE TABLE vectors (
        generation INTEGER NOT NULL,
        revision   INTEGER NOT NULL,
        vector     BLOB NOT NULL,     -- little-endian float32, unit length
        checksum   INTEGER NOT NULL,  -- CRC-32 of the blob: finds a flipped bit
        truncated  INTEGER NOT NULL,  -- 1 when the model did not see the whole text
        PRIMARY KEY (generation, revision)
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
    """,
    """
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
    INSERT INTO history (version) SELECT version FROM generations WHERE state = 'active';
    """,
    """
    CREATE TABLE feedback (
        sequence   INTEGER PRIMARY KEY AUTOINCREMENT,  -- a judgement that replaces another takes a new one
        collection TEXT NOT NULL,
        query      TEXT NOT NULL,
        id         TEXT NOT NULL,     -- a document's, which may have been deleted since
        relevant   INTEGER NOT NULL,  -- 1 or 0
        UNIQUE (collection, query, id)
    );
    CREATE INDEX feedback_of_document ON feedback (collection, id);
    """,
    """
    CREATE TABLE passages (
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
    INSERT INTO passages SELECT generation, revision, 0, vector, checksum, truncated, 0, NULL FROM vectors;
    DROP TABLE vectors;
    ALTER TABLE passages RENAME TO vectors;
    """,
    """
    CREATE TABLE collections (name TEXT PRIMARY KEY) WITHOUT ROWID;
    INSERT INTO collections (name) VALUES ('default');
    """,
    # Contentless: `documents` has the texts. secondary_indexes.py fills it, also with what is stored already.
    """
    CREATE VIRTUAL TABLE lexical USING fts5 (text, content='', tokenize='porter ascii');
    """,
    """
    CREATE TABLE fields (
        collection TEXT NOT NULL,
        field      TEXT NOT NULL,     -- dots between its names
        value      NOT NULL,          -- of no type, so that it is compared as it came
        revision   INTEGER NOT NULL,
        PRIMARY KEY (collection, field, value, revision)
    ) WITHOUT ROWID;
    """,
    # A table of words for each collection; secondary_indexes.py makes the others and fills them.
    """
    CREATE TABLE numbered (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        name   TEXT NOT NULL UNIQUE
    );
    INSERT INTO numbered (name) SELECT name FROM collections ORDER BY name <> 'default', name;
    DROP TABLE collections;
    ALTER TABLE numbered RENAME TO collections;
    DROP TABLE lexical;
    CREATE VIRTUAL TABLE lexical_1 USING fts5 (text, content='', tokenize='porter ascii');
    DELETE FROM facts WHERE name = 'lexical rules';
    """,
    # Judgements of before are of no key. The last number is kept, also when its judgement is gone.
    """
    CREATE TABLE judgements (
        sequence   INTEGER PRIMARY KEY AUTOINCREMENT,  -- a judgement that replaces another takes a new one
        collection TEXT NOT NULL,
        query      TEXT NOT NULL,
        id         TEXT NOT NULL,     -- a document's, which may have been deleted since
        key        TEXT NOT NULL,     -- the name of the key that judged; empty without keys
        relevant   INTEGER NOT NULL,  -- 1 or 0
        UNIQUE (collection, query, key, id)
    );
    INSERT INTO judgements SELECT sequence, collection, query, id, '', relevant FROM feedback;
    DELETE FROM sqlite_sequence WHERE name = 'judgements';
    INSERT INTO sqlite_sequence (name, seq)
        SELECT 'judgements', seq FROM sqlite_sequence WHERE name = 'feedback';
    DROP TABLE feedback;
    ALTER TABLE judgements RENAME TO feedback;
    CREATE INDEX feedback_of_document ON feedback (collection, id, key);
    CREATE INDEX feedback_of_key ON feedback (key);
    """,
    """
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
    """,
    # Empty: no title, as in every document of before, whose vectors and words stay as they are.
    """
    ALTER TABLE documents ADD COLUMN title TEXT NOT NULL DEFAULT '';
    """,
    # One key's events in the order of their numbers; those of the unique index are in that of their ids.
    """
    CREATE INDEX events_of_key ON events (key);
    """,
    # Rows of before name no visitor, and their keys are trusted: nothing said otherwise.
    """
    ALTER TABLE events ADD COLUMN visitor TEXT NOT NULL DEFAULT '';
    ALTER TABLE events ADD COLUMN trusted INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE feedback ADD COLUMN visitor TEXT NOT NULL DEFAULT '';
    ALTER TABLE feedback ADD COLUMN trusted INTEGER NOT NULL DEFAULT 1;
    CREATE INDEX events_of_visitor ON events (visitor);
    CREATE INDEX feedback_of_visitor ON feedback (visitor);
    """,
    # NULL: of a document from before. checksums.py fills it in the background.
    """
    ALTER TABLE documents ADD COLUMN checksums BLOB;
    CREATE INDEX documents_without_checksums ON documents (revision) WHERE checksums IS NULL;
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)
DATABASE = "simile.db"  # in the data directory
BUSY_SECONDS = 30.0


@contextlib.contextmanager
def starting(what: object) -> Iterator[None]:
    """Work of a start on the file: what SQLite raises in the block is a StartupError, which names `what`."""
    try:
        yield
    except sqlite3.Error as error:
        fault = machine_error(error)
        raise StartupError(f"{what}: {fault.message if fault else error}") from error


def connect(
    path: Path, kind: type[sqlite3.Connection] = sqlite3.Connection, *, read_only: bool = False
) -> sqlite3.Connection:
    """A connection whose commits are on disk when they return. Transactions are begun by hand."""
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=kind
    )
    try:
        harden(connection)
        connection.text_factory = tolerant  # a text that was damaged is no reason for a search to fail
        # A vector of 1,536 bytes would waste much of a 4 KiB page. Only a new file takes this on.
        connection.execute("PRAGMA page_size = 16384")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA query_only = {int(read_only)}")
    except BaseException:
        connection.close()
        raise
    return connection


def tolerant(text: bytes) -> str:
    """A text as SQLite has it; checksums.py finds what is no UTF-8."""
    return text.decode(errors="replace")


def migrate(path: Path) -> bool:
    """Bring the file at `path` to today's schema; make it when there is none. True when it is new.

    Raises:
        StartupError: the file was written by a newer version, is no database, or cannot be written.

    """
    with starting(path), contextlib.closing(connect(path)) as connection:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise StartupError(
                f"{path} was written by a newer Simile (schema {version}, this one knows {SCHEMA_VERSION}). "
                "Install that version again, or start with another SIMILE_DATA_DIR."
            )
        if (problem := foreign(connection, MIGRATIONS[:version])) is not None:
            raise StartupError(
                f"{path} is not a store of Simile as it should be: {problem}. Nothing in it was run or "
                "changed. Restore a backup, or remove what was added."
            )
        for number in range(version, SCHEMA_VERSION):
            connection.executescript(
                f"BEGIN IMMEDIATE; {MIGRATIONS[number]} PRAGMA user_version = {number + 1}; COMMIT;"
            )
        return version == 0
