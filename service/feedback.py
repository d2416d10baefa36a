"""Judgements of searches, stored beside the documents: was this document what that query looked for?

A judgement is about a query's exact text and a document's id, and there is one of each pair: the newest wins
and takes the next number, so that a reader who follows the numbers meets it. A number is never used twice.

A judgement can be made only of a document that is there. Once made, it outlives the document's text: after an
update it still counts, and after a delete it stays, unlisted, until a document is stored under that id again.
A reader who wants every judgement that counts now therefore begins at 0. What shall be gone is forgotten by
name (`forget`), whether its document is there or not.

Writes are jobs for the writer; reads go through `Documents.read`.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import NotFound
from service.writer import Transaction

NAMED = 10  # unknown ids that a refusal names at most
# The + keeps SQLite from an index over the collection, after which every page would sort all judgements.
_LISTED = (
    "FROM feedback f WHERE +collection = ? AND sequence > ? AND EXISTS "
    "(SELECT 1 FROM documents d WHERE d.collection = f.collection AND d.id = f.id)"
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the document `id` is relevant to `query`."""

    query: str
    id: str
    relevant: bool


def store(transaction: Transaction, judgements: Sequence[Judgement], collection: str) -> int:
    """Store `judgements`, all or none; of two about the same query and document the last wins.

    Returns:
        The number of the last one.

    Raises:
        NotFound: some are of documents that are not there; the ids are named.

    """
    connection = transaction.connection
    distinct = dict.fromkeys(judgement.id for judgement in judgements)
    unknown = [id for id in distinct if not _exists(connection, id, collection)]
    if unknown:
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        raise NotFound(
            f"There is no document {', '.join(map(repr, unknown[:NAMED]))}{more}: never stored, or deleted "
            "since the search. Nothing was stored; leave out what was said of it."
        )
    connection.executemany(
        "INSERT OR REPLACE INTO feedback (collection, query, id, relevant) VALUES (?, ?, ?, ?)",
        ((collection, given.query, given.id, given.relevant) for given in judgements),
    )
    return int(connection.execute("SELECT max(sequence) FROM feedback").fetchone()[0])


def forget(transaction: Transaction, query: str | None, id: str | None, collection: str) -> int:
    """Delete the judgements of a query, of an id, or of the two together. Returns how many there were."""
    given = {name: value for name, value in (("query", query), ("id", id)) if value is not None}
    conditions = " AND ".join(f"{name} = ?" for name in given)
    return transaction.connection.execute(
        f"DELETE FROM feedback WHERE collection = ? AND {conditions}", [collection, *given.values()]
    ).rowcount


def page(
    connection: sqlite3.Connection, after: int, limit: int, collection: str
) -> list[tuple[int, Judgement]]:
    """At most `limit` judgements of living documents, each with its number, in order, those after `after`."""
    rows = connection.execute(
        f"SELECT sequence, query, id, relevant {_LISTED} ORDER BY sequence LIMIT ?",
        (collection, after, limit),
    )
    return [(number, Judgement(query, id, bool(relevant))) for number, query, id, relevant in rows]


def count(connection: sqlite3.Connection, collection: str) -> int:
    """How many judgements `page` lists in all."""
    return int(connection.execute(f"SELECT count(*) {_LISTED}", (collection, 0)).fetchone()[0])


def _exists(connection: sqlite3.Connection, id: str, collection: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM documents WHERE collection = ? AND id = ?", (collection, id)
    ).fetchone()
    return row is not None
