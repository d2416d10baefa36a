"""Reads, copies and checks the store of a data directory for commands. A service may run meanwhile."""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import orjson

from models.progress import Progress, counted
from models.search.content import Content
from service.errors import DAMAGED_CODES, CommandError, Unusable
from service.store.filters.names import NameFaults, count_unreachable
from service.store.sql.connection import fetch_column, fetch_value, unfinished_copy
from service.store.sql.feedback import Table
from service.store.sql.generations import ACTIVE as ACTIVE  # noqa: PLC0414  commands find it here
from service.store.sql.generations import DROPPED
from service.store.sql.records import count_without_checksums
from service.store.sqlite import documents, secondary_indexes
from service.store.sqlite.last_known import FILE as LAST_KNOWN
from service.store.sqlite.reader import Snapshot
from service.store.sqlite.schema import BUSY_SECONDS, MIGRATIONS, foreign, harden, tolerant
from service.store.sqlite.schema import DATABASE as DATABASE  # noqa: PLC0414  commands find it here
from service.store.sqlite.schema import SCHEMA_VERSION as SCHEMA_VERSION  # noqa: PLC0414
from service.store.sqlite.vectors import is_sound
from service.store.values import DEFAULT_COLLECTION, Vector

SHOWN_IDS = 5  # Examples of one kind of problem.
FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", LAST_KNOWN)
_STEPS = 100_000  # Steps of SQLite's virtual machine between reports of progress, some milliseconds.
# A document's id. Outside of the default collection, the collection's name comes first.
_NAMED = f"iif(d.collection = '{DEFAULT_COLLECTION}', d.id, d.collection || '/' || d.id)"


def with_null_characters(connection: sqlite3.Connection) -> list[str]:
    """Returns the ids of documents with U+0000 in their id, title or text.

    Older versions stored such texts.
    """
    has = " OR ".join(f"instr(CAST(d.{column} AS BLOB), x'00')" for column in ("id", "title", "text"))
    rows = connection.execute(f"SELECT d.collection, d.id FROM documents d WHERE {has} ORDER BY 1, 2")
    # SQLite's `||` ends the id at the character.
    return [id if collection == DEFAULT_COLLECTION else f"{collection}/{id}" for collection, id in rows]


class Facts(NamedTuple):
    """Counts of a store, the active versions, and all versions with vectors, the active ones first."""

    sequence: int
    documents: int
    active: list[str]
    versions: list[str]


class GenerationRow(NamedTuple):
    """A row of the table `generations`, for a generation that is not dropped."""

    number: int
    version: str
    fingerprint: str
    state: str


class OfflineStore(Snapshot):
    """A snapshot of a store that a command opens without the service."""

    counts = documents.counts
    unequal = secondary_indexes.unequal
    with_null_characters = with_null_characters
    damaged_documents = documents.damaged_documents
    without_checksums = count_without_checksums

    def number(self, sql: str, *parameters: object) -> int:
        return int(fetch_value(self, sql, *parameters))

    def facts(self) -> Facts:
        rows = self.generations()[::-1]
        active = [row.version for row in rows if row.state == ACTIVE]
        versions = dict.fromkeys([*active, *(row.version for row in rows)])
        return Facts(self.sequence(), documents.count_all(self), active, [*versions])

    def vectors(self) -> int:
        return self.number("SELECT count(*) FROM vectors")

    def said(self, table: Table) -> dict[str, int]:
        """Returns the number of judgments or events for each collection that has any."""
        return dict(self.execute(f"SELECT collection, count(*) FROM {table} GROUP BY collection").fetchall())

    def damage(self, most: int) -> list[str]:
        """Returns up to `most` faults in the database file, as SQLite reports them."""
        found = fetch_column(self, f"PRAGMA integrity_check({most})")
        return [] if found == ["ok"] else found

    def without_object(self) -> list[str]:
        """Returns the ids of documents whose metadata is not a JSON object."""
        no_object = "NOT json_valid(metadata) OR json_type(metadata) <> 'object'"
        return fetch_column(self, f"SELECT {_NAMED} FROM documents d WHERE {no_object}")

    def name_faults(self, shown: int) -> NameFaults:
        """Returns documents whose metadata has names that no filter can express, with `shown` examples."""
        rows = self.execute(f"SELECT {_NAMED}, CAST(metadata AS BLOB) FROM documents d ORDER BY revision")
        return count_unreachable(rows, shown)

    def generations(self) -> list[GenerationRow]:
        sql = "SELECT number, version, fingerprint, state FROM generations WHERE state <> ? ORDER BY number"
        return [GenerationRow(*row) for row in self.execute(sql, (DROPPED,))]

    def heads(
        self, generation: int, dimension: int, collection: str, most: int, characters: int
    ) -> Iterator[tuple[str, str, dict[str, Any], Vector]]:
        """Yields ids, titles with the beginnings of texts, metadata and unit vectors of documents.

        At most `most` documents are read, evenly spread over the collection. Documents without an undamaged
        vector are left out.

        Args:
            generation: Number of the generation.
            dimension: Dimension of the vectors.
            collection: Name of the collection.
            most: Maximum number of documents.
            characters: Maximum length of the beginnings of texts.
        """
        total = self.number("SELECT count(*) FROM documents WHERE collection = ?", collection)
        rows = self.execute(
            "SELECT id, title, substr(text, 1, ?), metadata, vector, checksum FROM (SELECT *, row_number() "
            "OVER (ORDER BY revision) AS place FROM documents WHERE collection = ?) JOIN vectors v "
            "USING (revision) WHERE generation = ? AND passage = 0 AND place * ? / ? > (place - 1) * ? / ?",
            (characters, collection, generation, *(2 * (min(most, total), max(total, 1)))),
        )
        for id, title, text, metadata, blob, checksum in rows:
            if is_sound(blob, checksum, dimension):
                whole = Content(text, title).whole
                yield (id, whole, orjson.loads(metadata), np.frombuffer(blob, dtype="<f4"))

    def vector_faults(self) -> tuple[list[str], int, int]:
        """Checks every vector, and reports the progress.

        Returns:
            Ids of documents with damaged vectors, the number of vectors without a document or a generation,
            and the number of documents without a vector of the active generation.
        """
        dimensions: dict[int, int] = dict(
            self.execute("SELECT number, dimension FROM generations").fetchall()
        )
        damaged: list[str] = []
        lost = 0
        rows = self.execute(
            f"SELECT v.generation, {_NAMED}, d.revision IS NULL, v.vector, v.checksum FROM vectors v "
            "LEFT JOIN documents d ON d.revision = v.revision"
        )
        for generation, id, ownerless, blob, checksum in counted(rows, "vectors", self.vectors()):
            if ownerless or generation not in dimensions:
                lost += 1
            elif not is_sound(blob, checksum, dimensions[generation]):
                damaged.append(id)
        lacking = self.number(
            "SELECT count(*) FROM documents d JOIN generations g ON g.state = ? WHERE NOT EXISTS "
            "(SELECT 1 FROM vectors v WHERE v.generation = g.number AND v.revision = d.revision)",
            ACTIVE,
        )
        return damaged, lost, lacking


@contextlib.contextmanager
def reading(data_dir: Path) -> Iterator[OfflineStore]:
    """Opens a snapshot of the store in a data directory. A service may write to the store meanwhile.

    Raises:
        CommandError: The store is missing or unreadable, has another schema, or has an unfinished copy.
    """
    path = data_dir / DATABASE
    if not path.is_file():
        raise CommandError(f"There is no store at {path}. Name a data directory that a service has used.")
    try:
        with _opened(path) as store:
            store.execute("PRAGMA query_only = 1")
            schema = store.number("PRAGMA user_version")
            if schema != SCHEMA_VERSION:
                what = "a newer Simile wrote it" if schema > SCHEMA_VERSION else "start the service once"
                raise CommandError(
                    f"{path} has schema {schema}, and this version knows {SCHEMA_VERSION}: {what}."
                )
            if (problem := foreign(store, schema)) is not None:
                raise CommandError(f"{path} is not a store of Simile as it should be: {problem}.")
            if (problem := unfinished_copy(store, str(data_dir))) is not None:
                raise CommandError(problem)
            store.execute("BEGIN")
            yield store
    except sqlite3.Error as error:
        raise CommandError(f"{path} cannot be read ({error}). `check --data` says more.") from error


def copy(data_dir: Path, folder: Path) -> tuple[Facts, int, int]:
    """Copies a snapshot of the store into `folder`, without deleted data. A service may write meanwhile.

    Returns:
        The facts of the copy, the number of judgments, and the number of events.

    Raises:
        CommandError: The store cannot be opened (see `reading`), or is damaged.
        OSError: The copy cannot be written.
    """
    with reading(data_dir) as store:
        store.execute("COMMIT")  # VACUUM cannot run in a transaction.
        store.execute("PRAGMA query_only = 0")
        with (
            _writing(),
            _told(store, "copying the store", folder / DATABASE, (data_dir / DATABASE).stat().st_size),
        ):
            store.execute("VACUUM INTO ?", (str(folder / DATABASE),))
    with _writing(), _opened(folder / DATABASE) as copied:
        with _told(copied, "taking deleted words out of the copy", folder / DATABASE):
            secondary_indexes.optimize(copied)
            copied.execute("VACUUM")
        with _told(copied, "checking the copy", folder / DATABASE):
            damage = copied.damage(1)
        if damage:
            raise CommandError(
                f"{data_dir / DATABASE} is damaged ({damage[0]}). `check --data` says more; nothing was kept."
            )
        if damaged := copied.damaged_documents():
            raise CommandError(
                f"{named(damaged)} in {data_dir / DATABASE} are damaged: their checksums are wrong. "
                "Nothing was kept. Send these documents again, or delete them, then back up again. An older "
                "backup may hold them. `check --data` also lists them."
            )
        return copied.facts(), sum(copied.said("feedback").values()), sum(copied.said("events").values())


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Raises OSError if SQLite cannot write the copy. Errors about the source store are raised unchanged."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None) or 0
        if code & 0xFF in DAMAGED_CODES or code == sqlite3.SQLITE_IOERR_READ:
            raise
        full = code & 0xFF == sqlite3.SQLITE_FULL
        reason = os.strerror(errno.ENOSPC) if full else str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, reason) from error


def examine(folder: Path, schema: int) -> Facts:
    """Checks a copied store, and returns counts and versions. Runs no triggers or views of the file.

    Raises:
        Unusable: The store is damaged, is an unfinished copy, has another schema than `schema`, or contains
            tables, triggers or views that Simile does not create.
    """
    # Immutable: SQLite writes no files next to it, and does not apply a write-ahead log.
    address = f"file:{quote(str((folder / DATABASE).absolute()))}?mode=ro&immutable=1"
    try:
        with _opened(address) as store:
            problem = _not_as_made(store, schema)
            facts = None if problem else store.facts()
    except (sqlite3.Error, ValueError) as error:
        raise Unusable(f"it is damaged ({error})") from error
    if facts is None:
        raise Unusable(problem)
    return facts


def _not_as_made(store: OfflineStore, schema: int) -> str | None:
    version = store.number("PRAGMA user_version")
    if version != schema or version not in MIGRATIONS:
        readable = f"this version reads {min(MIGRATIONS)} to {SCHEMA_VERSION}"
        return f"its schema is {version}; the manifest says {schema}, and {readable}"
    if (problem := foreign(store, version)) is not None:
        return problem
    if unfinished_copy(store, DATABASE) is not None:
        return "it is of an unfinished `copy`, so documents may be missing"
    found = fetch_value(store, "PRAGMA quick_check(1)")
    if found != "ok":
        return f"it is damaged ({found})"
    summed = store.number("SELECT count(*) FROM pragma_table_info('documents') WHERE name = 'checksums'")
    if summed and (damaged := store.damaged_documents()):
        return f"its documents {named(damaged)} are damaged"
    return None


def named(ids: list[str], most: int = SHOWN_IDS, count: int = 0) -> str:
    """Returns the first ids for a message, and the number of further ids.

    Args:
        ids: All ids, or only the first ones.
        most: Maximum number of ids in the message.
        count: Number of all ids, if `ids` has only the first ones.
    """
    distinct = list(dict.fromkeys(ids))
    count = count or len(distinct)
    more = f" and {count - most} more" if count > most else ""
    return ", ".join(f"{id[:80]!r}" for id in distinct[:most]) + more


def fold_log(path: Path) -> None:
    """Writes the write-ahead log into the database file. If the file is damaged, the log stays."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


@contextlib.contextmanager
def _told(store: OfflineStore, step: str, file: Path, total: int = 0) -> Iterator[None]:
    """Shows the size of `file` as progress while a statement runs.

    Args:
        store: The store that runs the statement.
        step: Name of the step.
        file: The file that grows.
        total: Size in bytes that the file may grow to. 0 if the size does not show the progress.
    """
    with Progress("bytes", total, step) as progress:

        def tell() -> None:
            size = file.stat().st_size if file.exists() else 0
            progress.tell(size, size if total else 0)

        store.set_progress_handler(tell, _STEPS)
        try:
            yield
        finally:
            store.set_progress_handler(None, 0)


@contextlib.contextmanager
def _opened(path: Path | str) -> Iterator[OfflineStore]:
    with contextlib.closing(
        sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, factory=OfflineStore, uri=isinstance(path, str)
        )
    ) as store:
        harden(store)
        store.text_factory = tolerant
        yield store
