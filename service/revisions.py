"""What a write does to the store: jobs for the writer, each inside one transaction.

A document's text is an immutable revision. An upsert removes the old revision and puts a new one, with a
vector for every generation that is live or being built; a builder's vector is stored only while its revision
lives, so it can never undo an update or a delete that came after it.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from service.documents import DEFAULT_COLLECTION, Document, by_revision, is_sound, matching, sequence
from service.filters import Where
from service.writer import Transaction


@dataclass(frozen=True, slots=True)
class Embedding:
    """A document's vector from one generation; `truncated` when the model did not see the whole text."""

    vector: NDArray[np.float32]
    truncated: bool


class NeedsVectors(Exception):
    """These documents (positions in the request) must be embedded first. Nothing was stored."""

    def __init__(self, positions: list[int]) -> None:
        super().__init__(f"{len(positions)} documents lack a vector")
        self.positions = positions


def upsert(
    transaction: Transaction,
    documents: Sequence[Document],
    embedded: Mapping[int, Mapping[int, Embedding]],
    generations: Sequence[int],
) -> tuple[int, int]:
    """Store `documents` (distinct ids) with a vector for each of `generations`.

    Args:
        embedded: generation to position in `documents` to its embedding. A position may be absent where
            the stored text is the same: the stored vector is kept.

    Returns:
        How many texts are longer than the model sees, and the operation sequence.

    Raises:
        NeedsVectors: some texts are neither embedded nor stored unchanged.

    """
    truncated = 0
    lacking = []
    for position, document in enumerate(documents):
        given = {number: embedded[number][position] for number in embedded if position in embedded[number]}
        kept = _put(transaction, document, given, generations)
        if kept is None:
            lacking.append(position)
        else:
            truncated += kept
    if lacking:
        raise NeedsVectors(lacking)
    return truncated, _sequence(transaction)


def delete(transaction: Transaction, where: Where) -> tuple[int, int]:
    """Delete what passes `where`. Returns how many there were, and the operation sequence."""
    revisions = matching(transaction.connection, where).tolist()
    for revision in revisions:
        _remove(transaction, revision)
    return len(revisions), _sequence(transaction)


def add_vectors(transaction: Transaction, generation: int, rows: Mapping[int, Embedding]) -> int:
    """Store a builder's vectors for those of its revisions that still live. Returns how many."""
    alive = by_revision(transaction.connection, list(rows))
    for revision in sorted(alive):
        _add_vector(transaction, generation, revision, rows[revision])
    return len(alive)


def _sequence(transaction: Transaction) -> int:
    """The operation number that this job leads to; the index learns it with the rows."""
    transaction.changes.sequence = sequence(transaction.connection)
    return transaction.changes.sequence


def _put(
    transaction: Transaction, document: Document, given: Mapping[int, Embedding], generations: Sequence[int]
) -> bool | None:
    """Store one document. Returns whether the model cuts its text, None when a vector is missing."""
    execute = transaction.connection.execute
    metadata = orjson.dumps(document.metadata).decode()
    old = execute(
        "SELECT revision, text, metadata FROM documents WHERE collection = ? AND id = ?",
        (DEFAULT_COLLECTION, document.id),
    ).fetchone()
    same_text = old is not None and old[1] == document.text
    embeddings: dict[int, Embedding] = {}
    for number in generations:
        found = given.get(number) or (_stored(transaction, number, old[0]) if same_text else None)
        if found is None:
            return None
        embeddings[number] = found
    cut = any(embedding.truncated for embedding in embeddings.values())
    if same_text and old[2] == metadata:
        for number, embedding in embeddings.items():
            if _stored(transaction, number, old[0]) is None:  # lost or damaged: sending it again mends it
                _add_vector(transaction, number, old[0], embedding)
        return cut
    if old is not None:
        _remove(transaction, old[0])
    revision = execute(
        "INSERT INTO documents (collection, id, text, metadata) VALUES (?, ?, ?, ?)",
        (DEFAULT_COLLECTION, document.id, document.text, metadata),
    ).lastrowid
    assert revision is not None  # noqa: S101  an INSERT always has one
    execute("INSERT INTO operations (kind, revision) VALUES ('put', ?)", (revision,))
    for number, embedding in embeddings.items():
        _add_vector(transaction, number, revision, embedding)
    return cut


def _remove(transaction: Transaction, revision: int) -> None:
    execute = transaction.connection.execute
    execute("DELETE FROM documents WHERE revision = ?", (revision,))
    execute(
        "DELETE FROM vectors WHERE generation IN (SELECT number FROM generations) AND revision = ?",
        (revision,),
    )
    execute("INSERT INTO operations (kind, revision) VALUES ('delete', ?)", (revision,))
    transaction.changes.removed.append(revision)


def _add_vector(transaction: Transaction, generation: int, revision: int, embedding: Embedding) -> None:
    blob = np.ascontiguousarray(embedding.vector, dtype="<f4").tobytes()
    transaction.connection.execute(
        "INSERT OR REPLACE INTO vectors (generation, revision, vector, checksum, truncated) "
        "VALUES (?, ?, ?, ?, ?)",
        (generation, revision, blob, zlib.crc32(blob), embedding.truncated),
    )
    transaction.changes.added.setdefault(generation, []).append((revision, embedding.vector))


def _stored(transaction: Transaction, generation: int, revision: int) -> Embedding | None:
    """A revision's stored vector, None when it is absent or damaged."""
    row = transaction.connection.execute(
        "SELECT vector, checksum, truncated FROM vectors WHERE generation = ? AND revision = ?",
        (generation, revision),
    ).fetchone()
    if row is None or not is_sound(row[0], row[1], len(row[0]) // 4):
        return None
    return Embedding(np.frombuffer(row[0], dtype="<f4"), bool(row[2]))
