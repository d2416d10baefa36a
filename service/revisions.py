"""What a write does to the store: jobs for the writer, each inside one transaction.

A document's text is an immutable revision. An upsert removes the old revision and puts a new one, with a
vector of the live generation and, where they are at hand, of the one that is being built or kept for a
rollback; a builder's vector is stored only while its revision lives, so it can never undo an update or a
delete that came after it.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from service import derived
from service.documents import (
    DEFAULT_COLLECTION,
    Document,
    by_revision,
    elsewhere,
    is_sound,
    sequence,
)
from service.generations import kept_numbers, live_number
from service.matching import matching
from service.rows import row_of
from service.where import Where
from service.writer import Transaction


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a text, from character `start` to before `end` (None: all of it), and its vector."""

    vector: NDArray[np.float32]
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Embedding:
    """A document's vectors from one generation: of its text's head, and of the passages behind that.

    `truncated` when the model saw the end of the text in none of them.
    """

    vector: NDArray[np.float32]
    truncated: bool
    tokens: int = 0  # that they were computed from now; of stored ones nobody knows
    end: int | None = None  # where the head ends, in characters; None where it is all there is
    others: tuple[Passage, ...] = ()

    @property
    def passages(self) -> tuple[Passage, ...]:
        return (Passage(self.vector, 0, self.end), *self.others)

    @property
    def cut(self) -> bool:
        """Whether splitting its text would show the model more of it."""
        return self.truncated and not self.others


class NeedsVectors(Exception):
    """These documents (positions in the request) must first be embedded by the live generation.

    Nothing was stored.
    """

    def __init__(self, positions: list[int]) -> None:
        super().__init__(f"{len(positions)} documents lack a vector")
        self.positions = positions


def upsert(
    transaction: Transaction,
    documents: Sequence[Document],
    embedded: Mapping[int, Mapping[int, Embedding]],
    *,
    split: bool = False,
    collection: str = DEFAULT_COLLECTION,
) -> tuple[int, int]:
    """Store `documents` (distinct ids) with a vector of the live generation, and of others where given.

    Args:
        embedded: generation to position in `documents` to its embedding. A position may be absent where
            the stored text is the same: the stored vectors are kept.
        split: where those are of a text that was cut, it is to be embedded anew.
        collection: made when it is not there.

    Returns:
        How many texts are longer than the live model sees, and the operation sequence.

    Raises:
        NeedsVectors: some texts are neither embedded by the live generation nor stored unchanged. It may
            have come to live since they were embedded.

    """
    live = live_number(transaction.connection)
    others = kept_numbers(transaction.connection) - {live}
    job = _Upsert(transaction, collection, live, others, split)
    transaction.connection.execute("INSERT OR IGNORE INTO collections (name) VALUES (?)", (collection,))
    truncated = 0
    lacking = []
    for position, document in enumerate(documents):
        given = {number: rows[position] for number, rows in embedded.items() if position in rows}
        cut = _put(job, document, given)
        if cut is None:
            lacking.append(position)
        else:
            truncated += cut
    if lacking:
        raise NeedsVectors(lacking)
    return truncated, _sequence(transaction)


def delete(transaction: Transaction, where: Where, collection: str = DEFAULT_COLLECTION) -> tuple[int, int]:
    """Delete what passes `where`. Returns how many there were, and the operation sequence."""
    revisions = matching(transaction.connection, where, collection).tolist()
    for revision in revisions:
        _remove(transaction, revision, collection)
    return len(revisions), _sequence(transaction)


def drop(transaction: Transaction, collection: str) -> tuple[int, int]:
    """Delete a collection with all that is in it; the default one stays. Returns as `delete`."""
    deleted = delete(transaction, Where("1", []), collection)
    execute = transaction.connection.execute
    execute("DELETE FROM feedback WHERE collection = ?", (collection,))
    execute("DELETE FROM collections WHERE name = ? AND name != ?", (collection, DEFAULT_COLLECTION))
    return deleted


def add_vectors(transaction: Transaction, generation: int, rows: Mapping[int, Embedding]) -> int:
    """Store a builder's vectors for those of its revisions that still live. Returns how many."""
    if generation not in kept_numbers(transaction.connection):  # dropped while they were made
        return 0
    alive = by_revision(transaction.connection, list(rows))
    transaction.changes.elsewhere.update(elsewhere(transaction.connection, list(alive)))
    for revision in sorted(alive):
        _add_vector(transaction, generation, revision, rows[revision])
    return len(alive)


def add_stored(transaction: Transaction, generation: int, after: int, limit: int) -> int | None:
    """Bring about `limit` stored vectors into a generation's index, of the revisions after `after`.

    Those of a revision of which one is damaged are deleted, so that its text is embedded again.

    Returns:
        The last revision looked at, None when there are no more.

    """
    execute = transaction.connection.execute
    end = execute(
        "SELECT revision FROM vectors WHERE generation = ? AND revision > ? "
        "ORDER BY revision LIMIT 1 OFFSET ?",
        (generation, after, limit - 1),
    ).fetchone()
    last = None if end is None else int(end[0])
    rows = execute(
        "SELECT v.revision, passage, vector, checksum, dimension, d.collection FROM vectors v "
        "JOIN generations ON number = generation LEFT JOIN documents d ON d.revision = v.revision "
        "WHERE generation = ?1 AND v.revision > ?2 AND (?3 IS NULL OR v.revision <= ?3) "
        "ORDER BY v.revision, passage",
        (generation, after, last),
    ).fetchall()
    unusable = {row[0] for row in rows if row[5] is None or not is_sound(*row[2:5])}
    added = transaction.changes.added.setdefault(generation, [])
    for revision, passage, blob, _, _, collection in rows:
        if revision not in unusable:
            added.append((row_of(revision, passage), np.frombuffer(blob, dtype="<f4")))
            _note(transaction, revision, collection)
    _delete_vectors(transaction, generation, unusable)
    _sequence(transaction)
    return last


def forget(transaction: Transaction, generation: int, damaged: Iterable[int]) -> None:
    """Before a generation is made whole: damaged vectors go, and texts that were skipped get a new chance."""
    transaction.connection.execute("DELETE FROM skipped WHERE generation = ?", (generation,))
    _delete_vectors(transaction, generation, damaged)


def skip(transaction: Transaction, generation: int, revision: int, reason: str) -> None:
    """Note that a generation's model fails on a text, if it still lives."""
    transaction.connection.execute(
        "INSERT OR REPLACE INTO skipped (generation, revision, reason) "
        "SELECT ?, revision, ? FROM documents WHERE revision = ?",
        (generation, reason, revision),
    )


def count_skipped(connection: sqlite3.Connection, generation: int) -> int:
    """How many living texts the generation's model fails on."""
    row = connection.execute("SELECT count(*) FROM skipped WHERE generation = ?", (generation,)).fetchone()
    return int(row[0])


def lacking(connection: sqlite3.Connection, generation: int, after: int, limit: int) -> list[int]:
    """The first revisions after `after` that have no vector of `generation` and were not skipped, rising."""
    rows = connection.execute(
        "SELECT revision FROM documents d WHERE revision > ?2 "
        "AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.generation = ?1 AND v.revision = d.revision) "
        "AND NOT EXISTS (SELECT 1 FROM skipped s WHERE s.generation = ?1 AND s.revision = d.revision) "
        "ORDER BY revision LIMIT ?3",
        (generation, after, limit),
    )
    return [row[0] for row in rows]


def _sequence(transaction: Transaction) -> int:
    """The operation number that this job leads to; the index learns it with the rows."""
    transaction.changes.sequence = sequence(transaction.connection)
    return transaction.changes.sequence


class _Upsert(NamedTuple):
    """What the documents of one request have in common."""

    transaction: Transaction
    collection: str
    live: int  # generation
    others: Iterable[int]
    split: bool


def _put(job: _Upsert, document: Document, given: Mapping[int, Embedding]) -> bool | None:
    """Store one document. Returns whether the live model cuts its text, None when its vector is missing.

    A generation of `others` whose vector is not at hand is left to its builder, which looks for such gaps.
    """
    transaction = job.transaction
    execute = transaction.connection.execute
    metadata = orjson.dumps(document.metadata).decode()
    old = execute(
        "SELECT revision, text, metadata FROM documents WHERE collection = ? AND id = ?",
        (job.collection, document.id),
    ).fetchone()
    same_text = old is not None and old[1] == document.text
    embeddings: dict[int, Embedding] = {}
    for number in (job.live, *job.others):
        found = given.get(number) or (_kept(job, number, old[0]) if same_text else None)
        if found is not None:
            embeddings[number] = found
    if job.live not in embeddings:
        return None
    cut = embeddings[job.live].truncated
    if same_text and old[2] == metadata:
        for number, embedding in embeddings.items():
            if _kept(job, number, old[0]) is None:  # or damaged: sending it again mends it
                _add_vector(transaction, number, old[0], embedding)
                _note(transaction, old[0], job.collection)
        return cut
    if old is not None:
        _remove(transaction, old[0], job.collection)
    revision = execute(
        "INSERT INTO documents (collection, id, text, metadata) VALUES (?, ?, ?, ?)",
        (job.collection, document.id, document.text, metadata),
    ).lastrowid
    assert revision is not None  # noqa: S101  an INSERT always has one
    derived.add(transaction.connection, revision)
    execute("INSERT INTO operations (kind, revision) VALUES ('put', ?)", (revision,))
    _note(transaction, revision, job.collection)
    for number, embedding in embeddings.items():
        _add_vector(transaction, number, revision, embedding)
    return cut


def _note(transaction: Transaction, revision: int, collection: str) -> None:
    """Tell the indexes whose a revision is."""
    if collection != DEFAULT_COLLECTION:
        transaction.changes.elsewhere[revision] = collection


def _remove(transaction: Transaction, revision: int, collection: str) -> None:
    execute = transaction.connection.execute
    derived.remove(transaction.connection, revision)
    execute("DELETE FROM documents WHERE revision = ?", (revision,))
    for table in ("vectors", "skipped"):
        execute(
            f"DELETE FROM {table} WHERE generation IN (SELECT number FROM generations) AND revision = ?",
            (revision,),
        )
    execute("INSERT INTO operations (kind, revision) VALUES ('delete', ?)", (revision,))
    transaction.changes.removed.append(revision)
    _note(transaction, revision, collection)


def _add_vector(transaction: Transaction, generation: int, revision: int, embedding: Embedding) -> None:
    _delete_vectors(transaction, generation, [revision])
    added = transaction.changes.added.setdefault(generation, [])
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
        added.append((row_of(revision, number), passage.vector))


def _delete_vectors(transaction: Transaction, generation: int, revisions: Iterable[int]) -> None:
    transaction.connection.executemany(
        "DELETE FROM vectors WHERE generation = ? AND revision = ?",
        ((generation, revision) for revision in revisions),
    )


def _kept(job: _Upsert, generation: int, revision: int) -> Embedding | None:
    """A revision's stored vectors; None when they are absent, damaged, or of less of the text than wanted."""
    stored = _stored(job.transaction, generation, revision)
    return None if stored is None or (job.split and stored.cut) else stored


def _stored(transaction: Transaction, generation: int, revision: int) -> Embedding | None:
    rows = transaction.connection.execute(
        "SELECT vector, checksum, truncated, start_at, end_at FROM vectors "
        "WHERE generation = ? AND revision = ? ORDER BY passage",
        (generation, revision),
    ).fetchall()
    if not rows or not all(is_sound(row[0], row[1], len(row[0]) // 4) for row in rows):
        return None
    head, *others = (Passage(np.frombuffer(row[0], dtype="<f4"), row[3], row[4]) for row in rows)
    return Embedding(head.vector, bool(rows[0][2]), end=head.end, others=tuple(others))
