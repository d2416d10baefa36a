"""Copies documents, vectors, judgments and events from one store to another, empty store.

Start reading at `between` and `copy`. Documents are copied in the order of their ids, some per transaction. A
copy that was stopped therefore continues after the last id. At the end, both stores are read and compared.
Columns that each store numbers by itself are not copied.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from operator import methodcaller
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import orjson

from models.manifest import Manifest
from models.messages import amount
from models.progress import Progress
from service.errors import CommandError, ServiceError, Validation, machine_error
from service.store.postgres import vectors
from service.store.postgres.connection import Connection
from service.store.postgres.store import MIN_CONNECTIONS, PostgresStore
from service.store.protocol import Snapshot
from service.store.sql.connection import COPYING, LEXICAL_RULES, NONE_THERE, START_OVER, note
from service.store.sql.connection import Connection as AnyConnection
from service.store.sql.records import Reading, damaged_part, has_collection
from service.store.sqlite import vectors as sqlite_vectors
from service.store.sqlite.offline import FILES, with_null_characters
from service.store.sqlite.secondary_indexes import add_collection
from service.store.sqlite.store import SqliteStore
from service.store.sqlite.writer import Transaction
from service.store.values import DEFAULT_COLLECTION, Active, Document, Embedding

Either: TypeAlias = SqliteStore | PostgresStore
# By table: the column that orders its rows, a value below the first row's, and the copied columns.
_EVENT = "collection, key, event_id, search_id, query, id, type, position, shown, at, visitor, trusted"
_EVENT += ", test, side"
TABLES: dict[str, tuple[str, int | str, str]] = {
    "feedback": ("sequence", 0, "collection, query, id, key, relevant, visitor, trusted"),
    "events": ("sequence", 0, _EVENT),
    "history": ("position", 0, "version"),
    "verdicts": ("version", "", "version, state, reason"),
    "facts": ("name", "", "name, value"),
}
ROWS = 4096  # Rows in one transaction.
MAX_NAMED = 100  # Documents in a message.
_OWN_FACTS = (COPYING, LEXICAL_RULES, "field rules")  # Not copied.
# Columns with what clients sent.
_SENT = {"feedback": ("query", "id"), "events": ("query", "id", "event_id", "search_id", "type")}


async def copy_rows(source: Either, target: Either) -> None:
    """Copies all rows of the tables in TABLES. Rows that the target has in these tables are deleted first."""
    for table, (_, _, columns) in TABLES.items():
        delete = f"DELETE FROM {table} WHERE {_copied_rows(table)}"
        await target.writer.run(methodcaller("execute", delete))
        insert = f"INSERT INTO {table} ({columns}) VALUES (?{', ?' * columns.count(',')})"
        async for chunk in _row_chunks(source, table):
            await target.writer.run(methodcaller("executemany", insert, chunk))


async def refuse_null_characters(source: SqliteStore) -> None:
    """Raises CommandError if rows contain U+0000, which PostgreSQL cannot store.

    The message names some rows.
    """
    ids = await source.search(with_null_characters)
    if ids:
        having = amount(len(ids), "document has", "documents have")
        more = f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
        raise CommandError(
            f"PostgreSQL cannot store the character U+0000. {having} it in an id, title or text: "
            f"{', '.join(map(repr, ids[:MAX_NAMED]))}{more}. Delete them, or send them again "
            "without it, then copy again. `check --data` also lists them."
        )
    for table, columns in _SENT.items():
        # SQLite's text functions end at the character.
        has = " OR ".join(f"instr(CAST({column} AS BLOB), x'00')" for column in columns)
        sql = f"SELECT collection, id, query, count(*) OVER () FROM {table} WHERE {has} LIMIT 1"
        for collection, id, query, count in await _rows(source, sql):
            others = f" So do {count - 1} other rows." if count > 1 else ""
            raise CommandError(
                f"A row of {table} has the character U+0000, which PostgreSQL cannot store: "
                f"document {id!r} of collection {collection!r}, query {query!r}.{others} Delete "
                "it, then copy again."
            )


async def _row_chunks(store: Either, table: str) -> AsyncIterator[list[Sequence[Any]]]:
    order, after, columns = TABLES[table]
    sql = f"SELECT {order}, {columns} FROM {table} WHERE {order} > ? AND {_copied_rows(table)} "
    while rows := await _rows(store, f"{sql} ORDER BY {order} LIMIT ?", after, ROWS):
        yield [row[1:] for row in rows]
        after = rows[-1][0]


def _copied_rows(table: str) -> str:
    return f"name NOT IN {_OWN_FACTS}" if table == "facts" else "1 = 1"


PAGE = 256
PAGE_BYTES = 8 << 20


class Row(NamedTuple):
    """A document and its vectors. `embedding` is None for a document without vectors."""

    document: Document
    embedding: Embedding | None


async def between(data_dir: Path, url: str, *, into_database: bool, start_over: bool = False) -> str:
    """Copies the store of a data directory into a database, or a database into a data directory.

    Args:
        data_dir: The data directory.
        url: The database.
        into_database: The direction. False copies from the database.
        start_over: Whether to first empty a target that has an unfinished copy.

    Returns:
        A summary for people.

    Raises:
        CommandError: The copy stopped. The message names the reason.
    """
    try:
        if start_over:
            _empty(data_dir, url, into_database=into_database)
        with contextlib.ExitStack() as opened:
            embedded = opened.enter_context(contextlib.closing(SqliteStore(data_dir)))
            shared = opened.enter_context(contextlib.closing(_opened(url)))
            for store in (embedded, shared):
                store.start(lambda _: None, lambda _: None)
            if not into_database:
                return await copy(shared, embedded)
            opened.enter_context(shared.copying())
            return await copy(embedded, shared)
    except (ServiceError, OSError, sqlite3.Error) as error:
        found = error if isinstance(error, ServiceError) else machine_error(error)
        if found is None:
            raise
        raise CommandError(f"The copy stopped: {found.message} The same command goes on with it.") from error


def _opened(url: str) -> PostgresStore:
    return PostgresStore(url, [], connections=MIN_CONNECTIONS, answer_seconds=0)


def _empty(data_dir: Path, url: str, *, into_database: bool) -> None:
    """Empties a target with an unfinished copy. Does nothing if the target is empty.

    Raises:
        CommandError: The target contains a store that is not an unfinished copy.
    """
    target: Either = _opened(url) if into_database else SqliteStore(data_dir)
    with contextlib.closing(target):
        if target.unfinished_copy() is None:
            if target.active() is not None:
                raise CommandError(NONE_THERE)
            return
        if isinstance(target, PostgresStore):
            target.drop_everything()
            return
    for name in FILES:
        (data_dir / name).unlink(missing_ok=True)


async def copy(source: Either, target: Either) -> str:
    """Copies everything, or continues a copy that was stopped. Returns a summary for people.

    Raises:
        CommandError: The source is empty, damaged or not suitable, the target belongs to a service or to
            another copy, or the stores differ at the end.
    """
    active = source.active()
    if active is None:
        raise CommandError("The store is empty: no service has used that store yet.")
    if (problem := source.unfinished_copy()) is not None:
        raise CommandError(problem.replace("SIMILE_DATABASE", "the copy"))
    if isinstance(source, SqliteStore):
        await refuse_null_characters(source)
    dimension = await _ask(source, "SELECT dimension FROM generations WHERE number = ?", active.number)
    number = await _begin(target, active, dimension)
    collections = await source.collections()
    total = sum(count for _, count in collections)
    done = await target.count_all()
    progress = Progress("documents", total, "copying", first=done)
    for collection, _ in collections:
        await target.writer.run(partial(_make, collection=collection))
        last = await _ask(target, "SELECT max(id) FROM documents WHERE collection = ?", collection) or ""
        while rows := await _page(source, active.number, collection, last):
            await _put(target, number, dimension, collection, rows)
            last, done = rows[-1].document.id, done + len(rows)
            progress.tell(done, done)
    await copy_rows(source, target)
    if isinstance(target, PostgresStore):
        await target.build_index(number)
    sums = [await _sums(*each) for each in ((source, active.number), (target, number))]
    if sums[0] != sums[1]:
        differing = sorted(name for name in sums[0] if sums[0][name] != sums[1].get(name))
        raise CommandError(
            f"The copy differs from its source in: {', '.join(differing) or 'collections'}. Was one of "
            f"them written to meanwhile? Stop the services, and copy again with {START_OVER}."
        )
    await target.writer.run(lambda it: it.execute("DELETE FROM facts WHERE name = ?", (COPYING,)))
    sent = {table: await _ask(target, f"SELECT count(*) FROM {table}") for table in _SENT}
    counts = [f"{amount(number, 'row')} of {table}" for table, number in sent.items()]
    return (
        f"{amount(total, 'document')} with vectors, {', '.join(counts)}: the two stores have equal checksums."
    )


async def _begin(target: Either, active: Active, dimension: int) -> int:
    """Returns the number of the target's generation that receives the vectors. Creates it if necessary.

    Raises:
        CommandError: A service has used the target, or the target has a copy of another version.
    """
    there = target.active()
    copying = await _ask(target, "SELECT value FROM facts WHERE name = ?", COPYING)
    needed = f"{active.version} {active.form}"
    if there is None:
        made = SimpleNamespace(version=active.version, fingerprint=active.fingerprint, dimension=dimension)
        # Before anything else, so that no service starts after a kill.
        await target.writer.run(partial(note, name=COPYING, value=needed))
        number = target.activate(cast("Manifest", made), active.form)
        if isinstance(target, PostgresStore):  # The index is built at the end.
            await target.writer.run(lambda connection: vectors.drop_index(connection, number))
        return number
    if copying == needed:
        return there.number
    raise CommandError(
        "A service has used the target already. Name an empty database, or a new data directory."
        if copying is None
        else f"The target has an unfinished copy of {copying}, and this one is of {needed}. Copy again with "
        f"{START_OVER}."
    )


def _make(target: Connection | Transaction, collection: str) -> None:
    """Creates a collection if it does not exist. The collection may stay empty."""
    if isinstance(target, Connection):
        target.execute("INSERT INTO collections (name) VALUES (?) ON CONFLICT DO NOTHING", (collection,))
    elif not has_collection(target, collection):
        add_collection(target.connection, collection)


async def _page(source: Either, generation: int, collection: str, after: str) -> list[Row]:
    def read(snapshot: Snapshot) -> list[Row]:
        found, size = [], 0
        reading = cast("Reading", snapshot)
        # Read as bytes, because SQLite's connection would replace invalid UTF-8, and hide the damage.
        raw = ", ".join(map(reading.RAW.format, ("collection || '/' || id", "title", "text")))
        rows = reading.execute(
            f"SELECT revision, id, title, text, {reading.METADATA}, checksums, {raw} FROM documents "
            "WHERE collection = ? AND id > ? ORDER BY id LIMIT ?",
            (collection, after, PAGE),
        )
        for *row, checksums, name, title, text in rows:
            metadata = row[4].encode() if isinstance(row[4], str) else row[4]
            part = damaged_part(checksums, (name, title, text, metadata), reading.checksum)
            if part is not None:
                document = f"{row[1]!r} of the collection {collection!r}"
                raise CommandError(
                    f"The {part} of the document {document} is damaged: its checksum is wrong. The copy "
                    "stopped. Send the document again, or delete it; then the same command goes on."
                )
            found.append(row)
            size += len(row[3])
            if size > PAGE_BYTES:
                break
        embedded = _stored(snapshot, generation, [row[0] for row in found])
        return [
            Row(Document(id, text, reading.as_json(metadata).decode(), title=title), embedded.get(revision))
            for revision, id, title, text, metadata in found
        ]

    return await source.search(read)


def _stored(snapshot: object, generation: int, revisions: Sequence[int]) -> dict[int, Embedding]:
    if isinstance(snapshot, Connection):
        return vectors.stored(snapshot, generation, revisions)
    found = (
        (revision, sqlite_vectors.stored(Transaction(cast("Any", snapshot)), generation, revision))
        for revision in revisions
    )
    return {revision: embedding for revision, embedding in found if embedding is not None}


async def _put(target: Either, generation: int, dimension: int, collection: str, rows: Sequence[Row]) -> None:
    """Stores documents with their vectors. A document without a vector stays without one.

    A store requires vectors. So such a document gets an arbitrary vector, which is deleted right afterwards.
    """
    known = next((row.embedding for row in rows if row.embedding is not None), None)
    spare = known or Embedding(np.full(dimension, dimension**-0.5, np.float32), truncated=False)
    embedded = {at: row.embedding or spare for at, row in enumerate(rows)}
    try:
        await target.put([row.document for row in rows], {generation: embedded}, collection=collection)
    except Validation as error:
        if len(rows) == 1:
            document = f"Document {rows[0].document.id!r} of collection {collection!r}"
            raise CommandError(f"{document} is not taken: {error.message}") from error
        for row in rows:  # Finds the document to name.
            await _put(target, generation, dimension, collection, [row])
        return
    for row in rows:
        if row.embedding is None:
            sql = "SELECT revision FROM documents WHERE collection = ? AND id = ?"
            revision = await _ask(target, sql, collection, row.document.id)
            await target.writer.run(partial(_forget_vector, generation=generation, revision=revision))


def _forget_vector(target: Connection | Transaction, generation: int, revision: int) -> None:
    if isinstance(target, Connection):
        vectors.remove(target, generation, [revision])
        target.execute("INSERT INTO lacking VALUES (?, ?)", (generation, revision))
    else:
        sqlite_vectors.remove(target, generation, [revision])


async def _sums(store: Either, generation: int) -> Mapping[str, str]:
    """Returns the SHA-256 of each collection's documents with their vectors, and of each table's rows."""
    found = {}
    progress = Progress("documents", await store.count_all(), "comparing")
    done = 0
    for collection, _ in await store.collections():
        digest, last = sha256(), ""
        while page := await _page(store, generation, collection, last):
            for row in page:
                digest.update(_bytes(row))
            last, done = page[-1].document.id, done + len(page)
            progress.tell(done, done)
        if last or collection != DEFAULT_COLLECTION:
            found[f"collection {collection}"] = digest.hexdigest()
    for table in TABLES:
        digest = sha256()
        async for chunk in _row_chunks(store, table):
            digest.update(orjson.dumps(chunk))
        found[table] = digest.hexdigest()
    return found


def _bytes(row: Row) -> bytes:
    document = row.document
    parts = [orjson.dumps([document.id, document.title, document.text, document.metadata_json])]
    if row.embedding is not None:
        parts += [passage.vector.astype("<f4").tobytes() for passage in row.embedding.passages]
        parts.append(orjson.dumps([[each.start, each.end] for each in row.embedding.passages]))
        parts.append(b"cut" if row.embedding.truncated else b"whole")
    return b"\0".join(parts)


async def _ask(store: Either, sql: str, *parameters: object) -> Any:
    rows = await _rows(store, sql, *parameters)
    return rows[0][0] if rows else None


async def _rows(store: Either, sql: str, *parameters: object) -> list[Sequence[Any]]:
    def ask(snapshot: object) -> list[Sequence[Any]]:
        return cast("AnyConnection", snapshot).execute(sql, parameters).fetchall()

    return await store.search(ask)
