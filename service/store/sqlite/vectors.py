"""Stores the vectors of generations in SQLite, and runs the jobs of builders."""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import orjson
from numpy.typing import NDArray

from service.store.protocol import VectorSink
from service.store.sql import tokens
from service.store.sql.connection import Connection, fetch_column, fetch_value
from service.store.sql.generations import alike_numbers, kept_numbers, make_active
from service.store.sql.records import Reading, collections, last_revision, sizes, unembedded
from service.store.sqlite.documents import sequence
from service.store.sqlite.writer import Transaction
from service.store.values import (
    MAX_PASSAGES,
    MEASURED_PASSAGES,
    PASSAGE_BITS,
    Activation,
    Column,
    Embedding,
    Lacking,
    Passage,
    Vector,
    build_row_name,
)


def add(
    transaction: Transaction, generation: int, revision: int, embedding: Embedding, collection: str
) -> None:
    remove(transaction, generation, [revision])
    added = transaction.changes.added.setdefault((generation, collection), {})
    columns = "generation, revision, passage, vector, checksum, truncated, start_at, end_at"
    sql = f"INSERT INTO vectors ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    for number, passage in enumerate(embedding.passages):
        blob = np.ascontiguousarray(passage.vector, dtype="<f4").tobytes()
        facts = zlib.crc32(blob), embedding.truncated, passage.start, passage.end
        transaction.connection.execute(sql, (generation, revision, number, blob, *facts))
        added[build_row_name(revision, number)] = passage.vector


def remove(transaction: Transaction, generation: int, revisions: Iterable[int]) -> None:
    sql = "DELETE FROM vectors WHERE generation = ? AND revision = ?"
    transaction.connection.executemany(sql, ((generation, revision) for revision in revisions))


def stored(transaction: Transaction, generation: int, revision: int) -> Embedding | None:
    rows = transaction.connection.execute(
        "SELECT vector, checksum, truncated, start_at, end_at FROM vectors "
        "WHERE generation = ? AND revision = ? ORDER BY passage",
        (generation, revision),
    ).fetchall()
    if not rows or not all(is_sound(row[0], row[1], len(row[0]) // 4) for row in rows):
        return None
    head, *others = (Passage(np.frombuffer(row[0], dtype="<f4"), row[3], row[4]) for row in rows)
    return Embedding(head.vector, bool(rows[0][2]), end=head.end, others=tuple(others))


def read(
    connection: sqlite3.Connection,
    generation: int,
    dimension: int,
    damaged: list[int],
    collection: str,
    batch: int = 4096,
) -> Iterator[tuple[NDArray[np.int64], Vector]]:
    """Yields the undamaged vectors of a collection in batches, as `protocol.VectorSink.load` needs them.

    Appends revisions with damaged vectors to `damaged`.
    """
    # A join would read the vectors of all collections.
    cursor = connection.execute(
        "SELECT revision, passage, vector, checksum FROM vectors WHERE generation = ? AND revision IN "
        "(SELECT revision FROM documents WHERE collection = ?) ORDER BY revision, passage",
        (generation, collection),
    )
    while rows := cursor.fetchmany(batch):
        sound = [row[:3] for row in rows if is_sound(row[2], row[3], dimension)]
        if len(sound) < len(rows):
            damaged += {row[0] for row in rows if not is_sound(row[2], row[3], dimension)}
        names = np.array([build_row_name(revision, passage) for revision, passage, _ in sound], np.int64)
        joined = b"".join(blob for *_, blob in sound)
        yield names, np.frombuffer(joined, dtype="<f4").reshape(len(sound), dimension)


def get_vector(
    connection: sqlite3.Connection, generation: int, id: str, collection: str
) -> tuple[int, Vector | None] | None:
    """Returns a document's revision and vector, as `protocol.Snapshot.get_vector` says."""
    row = connection.execute(
        "SELECT d.revision, vector, checksum FROM documents d "
        "LEFT JOIN vectors v ON generation = ? AND v.revision = d.revision AND passage = 0 "
        "WHERE collection = ? AND id = ?",
        (generation, collection, id),
    ).fetchone()
    if row is None:
        return None
    revision, blob, checksum = row
    sound = blob is not None and is_sound(blob, checksum, len(blob) // 4)
    return revision, np.frombuffer(blob, dtype="<f4") if sound else None


def get_vectors(
    connection: sqlite3.Connection, generation: int, revisions: Sequence[int]
) -> dict[int, Vector]:
    """Returns the vectors of documents, as `protocol.Snapshot.get_vectors` says."""
    rows = connection.execute(
        "SELECT v.revision, vector, checksum FROM json_each(?1) CROSS JOIN vectors v "
        "ON generation = ?2 AND v.revision = value AND passage < ?3 ORDER BY v.revision, passage",
        (orjson.dumps(revisions).decode(), generation, MEASURED_PASSAGES),
    )
    blobs: dict[int, list[bytes]] = {}
    for revision, blob, checksum in rows:
        if is_sound(blob, checksum, len(blob) // 4):
            blobs.setdefault(revision, []).append(blob)
    return {at: np.frombuffer(b"".join(some), "<f4").reshape(len(some), -1) for at, some in blobs.items()}


def passages(
    connection: sqlite3.Connection, generation: int, names: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Returns the start and end of passages, as `protocol.Snapshot.passages` says."""
    rows = connection.execute(
        # With CROSS JOIN, SQLite begins with the few names and not with all vectors.
        "SELECT value, start_at, end_at FROM json_each(?1) CROSS JOIN vectors "
        f"ON generation = ?2 AND revision = value >> {PASSAGE_BITS} AND passage = value & {MAX_PASSAGES - 1} "
        "WHERE end_at IS NOT NULL",
        (orjson.dumps(names).decode(), generation),
    )
    return {name: (start, end) for name, start, end in rows}


def is_sound(blob: bytes, checksum: int, dimension: int) -> bool:
    """Returns whether a stored vector has the correct checksum and this dimension."""
    return len(blob) == 4 * dimension and zlib.crc32(blob) == checksum


SHARED_ROWS = 512  # Rows of one job. A write waits for one such job at most.
EMBEDDED: tuple[Column, ...] = ("title", "text")


def add_vectors(transaction: Transaction, generation: int, rows: Mapping[int, Embedding]) -> int:
    """Stores a builder's vectors for the revisions that still exist. Returns the number of revisions."""
    if generation not in kept_numbers(transaction.connection):  # It was dropped in the meantime.
        return 0
    alive = transaction.connection.execute(
        "SELECT revision, collection FROM documents WHERE revision IN (SELECT value FROM json_each(?)) "
        "ORDER BY revision",
        (orjson.dumps([*rows]).decode(),),
    ).fetchall()
    for revision, collection in alive:
        add(transaction, generation, revision, rows[revision], collection)
    return len(alive)


def add_tokens(transaction: Transaction, space: str, rows: Mapping[int, bytes]) -> None:
    """Stores token vectors for the revisions that still exist."""
    sql = "SELECT revision FROM documents WHERE revision IN (SELECT value FROM json_each(?))"
    alive = fetch_column(transaction, sql, orjson.dumps([*rows]).decode())
    tokens.insert(transaction.connection, space, {revision: rows[revision] for revision in alive})


def add_stored(transaction: Transaction, generation: int, after: int, limit: int) -> int | None:
    """Adds about `limit` stored vectors to the changes, as `protocol.Generations.add_stored` says."""
    step = "SELECT revision FROM vectors WHERE generation = ? AND revision > ? ORDER BY revision "
    last: int | None = fetch_value(transaction, f"{step} LIMIT 1 OFFSET ?", generation, after, limit - 1)
    rows = transaction.connection.execute(
        "SELECT v.revision, passage, vector, checksum, dimension, d.collection FROM vectors v "
        "JOIN generations ON number = generation LEFT JOIN documents d ON d.revision = v.revision "
        "WHERE generation = ?1 AND v.revision > ?2 AND (?3 IS NULL OR v.revision <= ?3) "
        "ORDER BY v.revision, passage",
        (generation, after, last),
    ).fetchall()
    unusable = {row[0] for row in rows if row[5] is None or not is_sound(*row[2:5])}
    for revision, passage, blob, _, _, collection in rows:
        if revision not in unusable:
            added = transaction.changes.added.setdefault((generation, collection), {})
            added[build_row_name(revision, passage)] = np.frombuffer(blob, dtype="<f4")
    remove(transaction, generation, unusable)
    transaction.changes.sequence = sequence(transaction.connection)
    return last


def load(transaction: Transaction, generation: int, indexes: VectorSink) -> bool:
    """Loads the stored vectors of a generation into `indexes`, as `protocol.Generations.load` says."""
    connection, damaged = transaction.connection, list[int]()
    reading = partial(read, connection, generation, indexes.dimension, damaged)
    indexes.load(collections(connection), reading, sequence(connection))
    indexes.discard(damaged)  # Removes their sound passages.
    forget_skipped(transaction, generation, damaged)
    return not damaged


def forget_skipped(transaction: Transaction, generation: int, damaged: Iterable[int] = ()) -> None:
    """Deletes the records of skipped texts, and the vectors of the revisions `damaged`.

    A builder then embeds these documents again.
    """
    transaction.connection.execute("DELETE FROM skipped WHERE generation = ?", (generation,))
    remove(transaction, generation, damaged)


def skip_text(transaction: Transaction, generation: int, revision: int, reason: str) -> None:
    """Records that a generation's model fails on a text. Does nothing if the text was deleted."""
    transaction.connection.execute(
        "INSERT OR REPLACE INTO skipped (generation, revision, reason) "
        "SELECT ?, revision, ? FROM documents WHERE revision = ?",
        (generation, reason, revision),
    )


def share_vectors(transaction: Transaction, generation: int, revisions: Sequence[int]) -> set[int]:
    """Copies the vectors of about SHARED_ROWS passages, as `protocol.Generations.share_vectors` says.

    A version that changes only the search mode and weight therefore need not embed the documents again.
    """
    found: dict[int, Embedding] = {}
    rows = 0
    for revision, other in product(revisions, alike_numbers(transaction.connection, generation)):
        embedding = stored(transaction, other, revision)
        if embedding is not None and revision not in found:
            found[revision] = embedding
            rows += len(embedding.passages)
        if rows >= SHARED_ROWS:
            break
    add_vectors(transaction, generation, found)
    return {*found}


def next_lacking(connection: Reading, generation: int, after: int, limit: int, max_bytes: int) -> Lacking:
    """Returns the next documents without a vector, as `protocol.Generations.next_lacking` says."""
    revisions = lacking(connection, generation, after, limit)
    found, left = sizes(connection, dict.fromkeys(revisions, 1), columns=EMBEDDED), max_bytes
    for at, revision in enumerate(revisions):
        left -= found[revision]
        if left < 0 and at:
            revisions = revisions[:at]
            break
    skipped = fetch_value(connection, "SELECT count(*) FROM skipped WHERE generation = ?", generation)
    return Lacking(unembedded(connection, revisions), last_revision(connection), skipped)


def swap(transaction: Transaction, swap: Activation) -> bool:
    """Activates a generation, as `protocol.Generations.make_active` says."""
    connection = transaction.connection
    if not swap.may() or lacking(connection, swap.generation, swap.complete_through, 1):
        return False
    make_active(connection, swap.generation, swap.requested, rollback=swap.rollback)
    # The index must have the same operation number as the store.
    transaction.changes.sequence = sequence(connection)
    transaction.then.append(partial(swap.then, last_revision(connection)))
    return True


def lacking(connection: Connection, generation: int, after: int, limit: int) -> list[int]:
    """Returns the first revisions after `after` that have no vector and were not skipped, ascending."""
    sql = (
        "SELECT revision FROM documents d WHERE revision > ?2 "
        "AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.generation = ?1 AND v.revision = d.revision) "
        "AND NOT EXISTS (SELECT 1 FROM skipped s WHERE s.generation = ?1 AND s.revision = d.revision) "
        "ORDER BY revision LIMIT ?3"
    )
    return fetch_column(connection, sql, generation, after, limit)
