"""Jobs that write documents, and `tidy`, which deletes old rows. A job is one transaction.

Start reading at `upsert`. A revision of a document never changes. An upsert that changes something deletes
the old revision and inserts a new one, with a vector of the active generation, and of others if there are
any. Later vectors (vectors.py) are stored only if the revision still exists, so they never undo an update or
delete.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from service.store.filters.grammar import Predicate, scoped
from service.store.sql import tokens
from service.store.sql.connection import fetch_column, fetch_value
from service.store.sql.feedback import DELETED_ROWS, delete_rows, forget_clicked, forget_judgment_state
from service.store.sql.generations import DROPPED, get_active_number, has_dropped, kept_numbers
from service.store.sql.records import compute_checksums, encode_parts, refuse_another, refuse_hidden
from service.store.sql.synonyms import forget_synonyms
from service.store.sqlite import secondary_indexes, vectors
from service.store.sqlite.documents import get_number, sequence
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

# Characters of one job, so that other writes wait some tens of milliseconds.
DELETE_CHARACTERS = 1 << 18
# The operation log is kept short. Loading all vectors is faster than following more operations.
KEPT_OPERATIONS = 100_000
PURGE_ROWS = 256  # Rows of one step: a write waits a few milliseconds for it.
TRIM_ROWS = 1024


def upsert(
    transaction: Transaction,
    documents: Sequence[Document],
    embedded: Mapping[int, Mapping[int, Embedding]],
    *,
    split: bool = False,
    collection: str = DEFAULT_COLLECTION,
    max_collections: int = MAX_COLLECTIONS,
    within: Predicate | None = None,
) -> Put:
    """Stores documents, as `protocol.Documents.put` says."""
    refuse_hidden(transaction, [document.id for document in documents], collection, within)
    active = get_active_number(transaction.connection)
    others = kept_numbers(transaction.connection) - {active}
    job = _Upsert(transaction, collection, active, others, split, set(), set())
    embedded = dict(embedded)  # The event loop may add embeddings meanwhile.
    if get_number(transaction.connection, collection) is None:
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
        raise NeedsVectors(lacking, active)
    return Put(truncated, _sequence(transaction), frozenset(job.gaps), len(job.created))


def delete_one(transaction: Transaction, id: str, collection: str, within: Predicate | None = None) -> Step:
    """Deletes a document that matches a filter.

    If the document has many events, deletes only some events, and `done` is 0.
    """
    sql, parameters = scoped(within, collection)
    sql = f"SELECT revision FROM documents WHERE {sql} AND id = ?"
    found = fetch_column(transaction, sql, *parameters, id)
    return delete_some(transaction, found, collection) if found else Step(1, 0, _sequence(transaction))


def delete_some(transaction: Transaction, revisions: Sequence[int], collection: str) -> Step:
    """Deletes the documents of the first `revisions`, as many as one job should. Skips missing revisions.

    A revision never changes, so revisions that matched a filter still match it. If a document has very many
    events, some events are deleted first, and the document in a later step.
    """
    done = deleted = characters = forgotten = 0
    for revision in revisions[:DELETE_DOCUMENTS]:
        row = transaction.connection.execute(
            "SELECT length(title) + length(text), id FROM documents WHERE revision = ?", (revision,)
        ).fetchone()
        if row is not None:
            gone = delete_rows(transaction, "events", "collection = ? AND id = ?", collection, row[1])
            forgotten += gone
            if gone == DELETED_ROWS:
                break
            forget_clicked(transaction.connection, collection, [row[1]])
            _remove(transaction, revision, collection)
            deleted += 1
            characters += row[0]
        done += 1
        if characters >= DELETE_CHARACTERS or forgotten >= DELETED_ROWS:
            break
    return Step(done, deleted, _sequence(transaction))


def drop_name(transaction: Transaction, collection: str) -> None:
    """Deletes a collection if it is empty. The default collection always stays."""
    connection = transaction.connection
    written_to = connection.execute("SELECT 1 FROM documents WHERE collection = ? LIMIT 1", (collection,))
    if written_to.fetchone() is None:
        forget_synonyms(connection, collection)
        forget_judgment_state(connection, collection)
        if collection != DEFAULT_COLLECTION:
            secondary_indexes.remove_collection(connection, collection)


def _sequence(transaction: Transaction) -> int:
    """Returns the operation number of this job, and records the number for the indexes."""
    transaction.changes.sequence = sequence(transaction.connection)
    return transaction.changes.sequence


class _Upsert(NamedTuple):
    """The arguments of `upsert` for one job, and two of its results, `gaps` and `created`."""

    transaction: Transaction
    collection: str
    active: int
    others: Iterable[int]
    split: bool
    gaps: set[int]  # Generations of `others` that lack a vector.
    created: set[str]  # New ids.


def _put(job: _Upsert, document: Document, given: Mapping[int, Embedding]) -> bool | None:
    """Stores one document.

    Missing vectors of other generations are left to their builder.

    Returns:
        Whether the active model truncates the text. None if the vector of the active generation is missing.
    """
    transaction = job.transaction
    execute = transaction.connection.execute
    metadata = document.metadata_json
    sql = "SELECT revision, text, title, metadata, checksums FROM documents WHERE collection = ? AND id = ?"
    old = execute(sql, (job.collection, document.id)).fetchone()
    parts = encode_parts(job.collection, document.id, document.title, document.text, metadata)
    checksums = compute_checksums(parts)
    same_content = old is not None and old[1:3] == document.content
    embeddings: dict[int, Embedding] = {}
    for number in (job.active, *job.others):
        found = given.get(number) or (_kept(job, number, old[0]) if same_content else None)
        if found is None:
            job.gaps.add(number)
        else:
            embeddings[number] = found
    if job.active not in embeddings:
        return None
    cut = embeddings[job.active].truncated
    if same_content and old[3] == metadata and old[4] in {None, checksums}:
        for number, embedding in embeddings.items():
            if _kept(job, number, old[0]) is None:  # The vector is missing or damaged.
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
    assert revision is not None  # noqa: S101
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
        sql = f"DELETE FROM {table} WHERE generation IN (SELECT number FROM generations) AND revision = ?"
        execute(sql, (revision,))
    tokens.remove(transaction.connection, [revision])
    execute("INSERT INTO operations (kind, revision) VALUES ('delete', ?)", (revision,))
    transaction.changes.removed.setdefault(collection, []).append(revision)


def _kept(job: _Upsert, generation: int, revision: int) -> Embedding | None:
    """Returns the stored vectors of a revision.

    Returns None if the vectors are missing or damaged, or if the text must be split.
    """
    stored = vectors.stored(job.transaction, generation, revision)
    return None if stored is None or (job.split and stored.cut) else stored


def is_long(connection: sqlite3.Connection) -> bool:
    """Returns whether the operation log is so long that it must be trimmed."""
    first = fetch_value(connection, "SELECT min(sequence) FROM operations")
    return bool(first and first <= sequence(connection) - KEPT_OPERATIONS - TRIM_ROWS)


def is_untidy(connection: sqlite3.Connection) -> bool:
    """Returns whether `tidy` has something to do."""
    return has_dropped(connection) or is_long(connection)


def tidy(transaction: Transaction) -> bool:
    """Deletes some vectors of dropped generations, or some entries of the operation log.

    Returns whether more may remain.
    """
    return purge(transaction) or trim(transaction)


def purge(transaction: Transaction) -> bool:
    """Deletes some vectors of a dropped generation. Returns whether a dropped generation was found."""
    execute = transaction.connection.execute
    number = fetch_value(transaction, "SELECT number FROM generations WHERE state = ? LIMIT 1", DROPPED)
    if number is None:
        return False
    left = False
    for table in ("vectors", "skipped"):
        deleted = execute(
            f"DELETE FROM {table} WHERE generation = ?1 AND revision IN "
            f"(SELECT revision FROM {table} WHERE generation = ?1 LIMIT ?2)",
            (number, PURGE_ROWS),
        ).rowcount
        left = left or deleted >= PURGE_ROWS  # A revision may have several rows.
    if not left:
        execute("DELETE FROM generations WHERE number = ?", (number,))
    return True


def trim(transaction: Transaction) -> bool:
    """Deletes the oldest entries of the operation log. Returns whether more must be deleted."""
    execute, last = transaction.connection.execute, sequence(transaction.connection)
    deleted = execute(
        "DELETE FROM operations WHERE sequence IN "
        "(SELECT sequence FROM operations WHERE sequence <= ? ORDER BY sequence LIMIT ?)",
        (last - KEPT_OPERATIONS, TRIM_ROWS),
    ).rowcount
    return deleted == TRIM_ROWS
