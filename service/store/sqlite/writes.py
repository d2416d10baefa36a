"""Writes of documents, and `tidy`: jobs for the writer, each inside one transaction.

A document's title and text are an immutable revision. An upsert removes the old revision and puts a new
one, with a vector of the live generation and, where they are at hand, of the one that is being built or kept
for a rollback; a builder's vector is stored only while its revision lives, so it can never undo an update or
a delete that came after it.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from service.store.sql import events
from service.store.sql.checksums import checksums_of, parts_of
from service.store.sql.generations import DROPPED, has_dropped, kept_numbers, live_number
from service.store.sql.records import refuse_another
from service.store.sql.selection import DELETED_ROWS
from service.store.sqlite import secondary_indexes, vectors
from service.store.sqlite.documents import number_of, sequence
from service.store.sqlite.writer import Transaction
from service.store.values import (
    DEFAULT_COLLECTION,
    DELETE_DOCUMENTS,
    MAX_COLLECTIONS,
    Document,
    Embedding,
    NeedsVectors,
    Put,
    Step,
)

# Of one job, so that other writes wait some tens of milliseconds for it and no longer.
DELETE_CHARACTERS = 1 << 18
# The operation log is kept short. A reader that follows from an earlier moment loads all vectors again, which
# is faster than so many steps.
KEPT_OPERATIONS = 100_000
PURGE_ROWS = 256  # of one step, as TRIM_ROWS: a write waits a few milliseconds for it
TRIM_ROWS = 1024


def upsert(
    transaction: Transaction,
    documents: Sequence[Document],
    embedded: Mapping[int, Mapping[int, Embedding]],
    *,
    split: bool = False,
    collection: str = DEFAULT_COLLECTION,
    max_collections: int = MAX_COLLECTIONS,
) -> Put:
    """Store `documents` (distinct ids) with a vector of the live generation, and of others where given.

    Args:
        embedded: generation to position in `documents` to its embedding. A position may be absent where
            the stored text is the same: the stored vectors are kept. It may grow meanwhile.
        split: where those are of a text that was cut, it is to be embedded anew.
        collection: made when it is not there.
        max_collections: no more are made than this.

    Raises:
        NeedsVectors: some texts are neither embedded by the live generation nor stored unchanged. It may
            have come to live since they were embedded.
        Conflict: the collection would be one too many.

    """
    live = live_number(transaction.connection)
    others = kept_numbers(transaction.connection) - {live}
    job = _Upsert(transaction, collection, live, others, split, set(), set())
    embedded = dict(embedded)  # on the event loop those that follow the live generation go on
    if number_of(transaction.connection, collection) is None:
        refuse_another(transaction, collection, max_collections)
        secondary_indexes.add_collection(transaction.connection, collection)
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
        raise NeedsVectors(lacking, live)
    return Put(truncated, _sequence(transaction), frozenset(job.gaps), len(job.created))


def delete_one(transaction: Transaction, id: str, collection: str) -> Step:
    """Delete the document `id`, or some of its events where it has many: then nothing is done yet."""
    row = transaction.connection.execute(
        "SELECT revision FROM documents WHERE collection = ? AND id = ?", (collection, id)
    ).fetchone()
    return Step(1, 0, _sequence(transaction)) if row is None else delete_some(transaction, row, collection)


def delete_some(transaction: Transaction, revisions: Sequence[int], collection: str) -> Step:
    """Delete the first of `revisions`, as many as one job should; those that are gone already are passed by.

    What a revision holds never changes, so what a filter passed once is right for as long as the revision
    lives. A document with very many events loses some of them, and goes with a later step.
    """
    done = deleted = characters = forgotten = 0
    for revision in revisions[:DELETE_DOCUMENTS]:
        row = transaction.connection.execute(
            "SELECT length(title) + length(text), id FROM documents WHERE revision = ?", (revision,)
        ).fetchone()
        if row is not None:
            gone = events.forget_document(transaction.connection, collection, row[1], DELETED_ROWS)
            forgotten += gone
            if gone == DELETED_ROWS:
                break
            _remove(transaction, revision, collection)
            deleted += 1
            characters += row[0]
        done += 1
        if characters >= DELETE_CHARACTERS or forgotten >= DELETED_ROWS:
            break
    return Step(done, deleted, _sequence(transaction))


def drop_name(transaction: Transaction, collection: str) -> None:
    """Delete a collection that is empty; the default one stays, and so does one that was written to."""
    connection = transaction.connection
    written_to = connection.execute("SELECT 1 FROM documents WHERE collection = ? LIMIT 1", (collection,))
    if collection != DEFAULT_COLLECTION and written_to.fetchone() is None:
        secondary_indexes.remove_collection(connection, collection)


def _sequence(transaction: Transaction) -> int:
    """The operation number that this job leads to; the index learns it with the rows."""
    transaction.changes.sequence = sequence(transaction.connection)
    return transaction.changes.sequence


class _Upsert(NamedTuple):
    """The request that documents of a put belong to."""

    transaction: Transaction
    collection: str
    live: int  # generation
    others: Iterable[int]
    split: bool
    gaps: set[int]  # those of `others` that were left without a vector
    created: set[str]  # ids that were new


def _put(job: _Upsert, document: Document, given: Mapping[int, Embedding]) -> bool | None:
    """Store one document. Returns whether the live model cuts its text, None when its vector is missing.

    A generation of `others` whose vector is not at hand is left to its builder, which looks for such gaps.
    """
    transaction = job.transaction
    execute = transaction.connection.execute
    metadata = document.metadata_json
    old = execute(
        "SELECT revision, text, title, metadata, checksums FROM documents WHERE collection = ? AND id = ?",
        (job.collection, document.id),
    ).fetchone()
    parts = parts_of(job.collection, document.id, document.title, document.text, metadata)
    checksums = checksums_of(parts)
    same_content = old is not None and old[1:3] == document.content
    embeddings: dict[int, Embedding] = {}
    for number in (job.live, *job.others):
        found = given.get(number) or (_kept(job, number, old[0]) if same_content else None)
        if found is None:
            job.gaps.add(number)
        else:
            embeddings[number] = found
    if job.live not in embeddings:
        return None
    cut = embeddings[job.live].truncated
    if same_content and old[3] == metadata and old[4] in {None, checksums}:
        for number, embedding in embeddings.items():
            if _kept(job, number, old[0]) is None:  # or damaged: sending it again mends it
                vectors.add(transaction, number, old[0], embedding, job.collection)
        return cut
    if old is None:
        job.created.add(document.id)
    else:
        _remove(transaction, old[0], job.collection)
    revision = execute(
        "INSERT INTO documents (collection, id, text, metadata, title, checksums) VALUES (?, ?, ?, ?, ?, ?)",
        (job.collection, document.id, document.text, metadata, document.title, checksums),
    ).lastrowid
    assert revision is not None  # noqa: S101  an INSERT always has one
    secondary_indexes.add(transaction.connection, revision)
    execute("INSERT INTO operations (kind, revision) VALUES ('put', ?)", (revision,))
    for number, embedding in embeddings.items():
        vectors.add(transaction, number, revision, embedding, job.collection)
    return cut


def _remove(transaction: Transaction, revision: int, collection: str) -> None:
    execute = transaction.connection.execute
    secondary_indexes.remove(transaction.connection, revision)
    execute("DELETE FROM documents WHERE revision = ?", (revision,))
    for table in ("vectors", "skipped"):
        execute(
            f"DELETE FROM {table} WHERE generation IN (SELECT number FROM generations) AND revision = ?",
            (revision,),
        )
    execute("INSERT INTO operations (kind, revision) VALUES ('delete', ?)", (revision,))
    transaction.changes.removed.setdefault(collection, []).append(revision)


def _kept(job: _Upsert, generation: int, revision: int) -> Embedding | None:
    """A revision's stored vectors; None when they are absent, damaged, or of less of the text than wanted."""
    stored = vectors.stored(job.transaction, generation, revision)
    return None if stored is None or (job.split and stored.cut) else stored


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
