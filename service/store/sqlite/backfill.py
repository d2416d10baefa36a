"""Vectors that a generation lacks, and the jobs that fill them in."""

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np
import orjson

from service.store.protocol import VectorSink
from service.store.sql.generations import DROPPED, go_live, kept_numbers
from service.store.sql.records import collections, last_revision, sizes, unembedded
from service.store.sqlite import vectors
from service.store.sqlite.documents import sequence
from service.store.sqlite.reader import Snapshot
from service.store.sqlite.vectors import is_sound
from service.store.sqlite.writer import Transaction
from service.store.values import Column, Embedding, Lacking, row_of

SHARED_ROWS = 512  # a write waits for one such job at most
EMBEDDED: tuple[Column, ...] = ("title", "text")


def add_vectors(transaction: Transaction, generation: int, rows: Mapping[int, Embedding]) -> int:
    """Store a builder's vectors for those of its revisions that still live. Returns how many."""
    if generation not in kept_numbers(transaction.connection):  # dropped while they were made
        return 0
    alive = transaction.connection.execute(
        "SELECT revision, collection FROM documents WHERE revision IN (SELECT value FROM json_each(?)) "
        "ORDER BY revision",
        (orjson.dumps([*rows]).decode(),),
    ).fetchall()
    for revision, collection in alive:
        vectors.add(transaction, generation, revision, rows[revision], collection)
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
    for revision, passage, blob, _, _, collection in rows:
        if revision not in unusable:
            added = transaction.changes.added.setdefault((generation, collection), {})
            added[row_of(revision, passage)] = np.frombuffer(blob, dtype="<f4")
    vectors.remove(transaction, generation, unusable)
    transaction.changes.sequence = sequence(transaction.connection)
    return last


def load(transaction: Transaction, generation: int, indexes: VectorSink) -> bool:
    """Replace what `indexes` hold by the stored vectors of a generation. True when all were sound.

    A damaged vector is deleted, so that its text is embedded again.
    """
    connection, damaged = transaction.connection, list[int]()
    indexes.load(
        collections(connection),
        lambda collection: vectors.read(connection, generation, indexes.dimension, damaged, collection),
        sequence(connection),
    )
    indexes.discard(damaged)  # passages of them that are sound
    forget(transaction, generation, damaged)
    return not damaged


def forget(transaction: Transaction, generation: int, damaged: Iterable[int] = ()) -> None:
    """Before a generation is made whole: damaged vectors go, and texts that were skipped get a new chance."""
    transaction.connection.execute("DELETE FROM skipped WHERE generation = ?", (generation,))
    vectors.remove(transaction, generation, damaged)


def skip(transaction: Transaction, generation: int, revision: int, reason: str) -> None:
    """Note that a generation's model fails on a text, if it still lives."""
    transaction.connection.execute(
        "INSERT OR REPLACE INTO skipped (generation, revision, reason) "
        "SELECT ?, revision, ? FROM documents WHERE revision = ?",
        (generation, reason, revision),
    )


def share(transaction: Transaction, generation: int, revisions: Sequence[int]) -> set[int]:
    """Take vectors over that another generation of the same model and form has; the revisions that have some.

    So a version that changes nothing but the mode and weight of its search is not embedded again. Those of
    about SHARED_ROWS passages at a time, and of none when there are no more.
    """
    execute = transaction.connection.execute
    others = execute(
        "SELECT other.number FROM generations g JOIN generations other USING (fingerprint, form) "
        "WHERE g.number = ? AND other.number <> g.number AND other.state <> ?",
        (generation, DROPPED),
    ).fetchall()
    found: dict[int, Embedding] = {}
    rows = 0
    for revision, (other,) in product(revisions, others):
        embedding = vectors.stored(transaction, other, revision)
        if embedding is not None and revision not in found:
            found[revision] = embedding
            rows += len(embedding.passages)
        if rows >= SHARED_ROWS:
            break
    add_vectors(transaction, generation, found)
    return {*found}


def next_lacking(connection: Snapshot, generation: int, after: int, limit: int, most_bytes: int) -> Lacking:
    """The first documents after the revision `after` that a generation lacks, within both bounds, or one."""
    revisions = lacking(connection, generation, after, limit)
    found, left = sizes(connection, dict.fromkeys(revisions, 1), columns=EMBEDDED), most_bytes
    for at, revision in enumerate(revisions):
        left -= found[revision]
        if left < 0 and at:
            revisions = revisions[:at]
            break
    sql = "SELECT count(*) FROM skipped WHERE generation = ?"
    [skipped] = connection.execute(sql, (generation,)).fetchone()
    return Lacking(unembedded(connection, revisions), last_revision(connection), skipped)


def swap(
    transaction: Transaction,
    generation: int,
    complete_through: int,
    desired: str,
    *,
    rollback: bool,
    may: Callable[[], bool],
    last: object,
    then: Callable[[int], None],
) -> bool:
    """Make a generation live unless a document lacks a vector of it, or it `may` not."""
    connection = transaction.connection
    if not may() or lacking(connection, generation, complete_through, 1):
        return False
    go_live(connection, generation, desired, rollback=rollback)
    # The index that is about to be searched must be at the store's present moment.
    transaction.changes.sequence = sequence(connection)
    transaction.then.append(partial(then, last_revision(connection)))
    return True


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
