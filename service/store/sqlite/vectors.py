"""The vectors of documents' texts, as the store keeps them: by generation, revision and passage."""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import orjson
from numpy.typing import NDArray

from service.store.sqlite.writer import Transaction
from service.store.values import MAX_PASSAGES, PASSAGE_BITS, Embedding, Passage, Vector, row_of


def add(
    transaction: Transaction, generation: int, revision: int, embedding: Embedding, collection: str
) -> None:
    remove(transaction, generation, [revision])
    added = transaction.changes.added.setdefault((generation, collection), {})
    for number, passage in enumerate(embedding.passages):
        blob = np.ascontiguousarray(passage.vector, dtype="<f4").tobytes()
        transaction.connection.execute(
            "INSERT INTO vectors "
            "(generation, revision, passage, vector, checksum, truncated, start_at, end_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                generation,
                revision,
                number,
                blob,
                zlib.crc32(blob),
                embedding.truncated,
                passage.start,
                passage.end,
            ),
        )
        added[row_of(revision, number)] = passage.vector


def remove(transaction: Transaction, generation: int, revisions: Iterable[int]) -> None:
    transaction.connection.executemany(
        "DELETE FROM vectors WHERE generation = ? AND revision = ?",
        ((generation, revision) for revision in revisions),
    )


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
    """The sound vectors of a generation's living documents in a collection, in batches, by rising row name.

    The revisions of the others are appended to `damaged`.
    """
    cursor = connection.execute(
        "SELECT revision, passage, vector, checksum FROM vectors JOIN documents USING (revision) "
        "WHERE generation = ? AND collection = ? ORDER BY revision, passage",
        (generation, collection),
    )
    while rows := cursor.fetchmany(batch):
        sound = [row[:3] for row in rows if is_sound(row[2], row[3], dimension)]
        if len(sound) < len(rows):
            damaged += {row[0] for row in rows if not is_sound(row[2], row[3], dimension)}
        names = np.array([row_of(revision, passage) for revision, passage, _ in sound], dtype=np.int64)
        joined = b"".join(blob for *_, blob in sound)
        yield names, np.frombuffer(joined, dtype="<f4").reshape(len(sound), dimension)


def vector_of(
    connection: sqlite3.Connection, generation: int, id: str, collection: str
) -> tuple[int, Vector | None] | None:
    """A document's revision, and its vector of a generation (of its head), None when there is no sound one.

    None when there is no such document.
    """
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


def passages(
    connection: sqlite3.Connection, generation: int, names: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """The characters of their texts that the rows of these names stand for, where the text was split."""
    rows = connection.execute(
        # CROSS JOIN: SQLite begins with the few rows, and not with every vector.
        "SELECT value, start_at, end_at FROM json_each(?1) CROSS JOIN vectors "
        f"ON generation = ?2 AND revision = value >> {PASSAGE_BITS} AND passage = value & {MAX_PASSAGES - 1} "
        "WHERE end_at IS NOT NULL",
        (orjson.dumps(names).decode(), generation),
    )
    return {name: (start, end) for name, start, end in rows}


def is_sound(blob: bytes, checksum: int, dimension: int) -> bool:
    """True when a stored vector is what was written, and of this dimension."""
    return len(blob) == 4 * dimension and zlib.crc32(blob) == checksum
