"""Search by words: BM25 with the numbers of SQLite's FTS5, over blocks of postings.

The database hands out the blocks of a query's terms, and the score is computed here, so that the one thing
that replicas share has little to do:

    Σ idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · length / mean length))
    idf = ln((N - n + 0.5) / (n + 0.5))

N documents of the collection, n of them with the term, at least 1e-6 (FTS5's bm25).
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from service.store.postgres.connection import Connection
from service.store.postgres.nearest import FilterMatches
from service.store.postgres.postings import Postings, unpacked
from service.store.postgres.terms import asked
from service.store.turns import pause
from service.store.values import Revisions

TIES = 1000  # with the last hit
CHECKED = 256  # documents at least that are held against a wide filter at a time
_LAST = chr(0x10FFFF)

Ranking = tuple[Revisions, NDArray[np.float32]]


def nearest(
    connection: Connection, query: str, depth: int, allowed: FilterMatches | None, collection: str
) -> Ranking:
    """The revisions of the `depth` documents that rank highest, and their scores, best first.

    With every document that ties with the last one, up to `TIES` more. allowed: what passes a filter.
    """
    whole, beginnings = asked(query)
    found, times = _postings(connection, whole, beginnings, collection)
    pause()
    documents, tokens, removed = _collection(connection, collection)
    revisions, scores = _scores(found.without(removed), times, documents, tokens)
    if allowed is None:
        return _best(revisions, scores, depth)
    if allowed.revisions is not None:
        inside = np.isin(revisions, allowed.revisions)
        return _best(revisions[inside], scores[inside], depth)
    size = max(2 * depth, CHECKED)
    while True:
        names, best = _best(revisions, scores, size)
        inside = np.isin(names, allowed.among(connection, names))
        if np.count_nonzero(inside) >= depth + TIES or len(names) == len(revisions):
            return _best(names[inside], best[inside], depth)
        if np.count_nonzero(inside) > depth and best[inside][depth] < best[inside][depth - 1]:
            return _best(names[inside], best[inside], depth)
        size *= 4


def _postings(
    connection: Connection, whole: Sequence[str], beginnings: Sequence[str], collection: str
) -> tuple[Postings, list[int]]:
    """The postings of a query's terms, and how often each of those owners is asked for."""
    times = [*Counter(whole).values(), *Counter(beginnings).values()]
    owners = {term: owner for owner, term in enumerate(dict.fromkeys(whole))}
    blocks = []
    if owners:
        sql = "SELECT term, first, body FROM postings WHERE collection = ? AND term = ANY(?)"
        rows = connection.execute(sql, (collection, [*owners]))
        blocks += [(owners[term], first, body) for term, first, body in rows]
    for owner, beginning in enumerate(dict.fromkeys(beginnings), start=len(owners)):
        sql = "SELECT first, body FROM postings WHERE collection = ? AND term >= ? AND term < ?"
        rows = connection.execute(sql, (collection, beginning, beginning + _LAST))
        blocks += [(owner, first, body) for first, body in rows]
    found = unpacked(blocks)
    if not beginnings:
        return found, times
    # Of a document that has several terms of one beginning there is one posting.
    changes = (np.diff(found.owners, prepend=-1) != 0) | (np.diff(found.revisions, prepend=-1) != 0)
    starts = np.flatnonzero(changes)
    if len(starts):
        summed = np.add.reduceat(found.frequencies, starts)
        found = found.where(changes)._replace(frequencies=summed)
    return found, times


def _collection(connection: Connection, collection: str) -> tuple[int, int, Revisions]:
    """Documents of a collection, their tokens, and the revisions whose postings are there for nothing."""
    row = connection.execute(
        "SELECT sum(documents)::bigint, sum(tokens)::bigint, ARRAY(SELECT unnest(removed) FROM unfolded "
        "WHERE collection = ? AND removed <> '{}') FROM tally WHERE collection = ?",
        (collection, collection),
    ).fetchone()
    documents, tokens, removed = row or (0, 0, [])
    return documents or 0, tokens or 0, np.array(removed, np.int64)


def _scores(
    postings: Postings, times: Sequence[int], documents: int, tokens: int
) -> tuple[Revisions, NDArray[np.float32]]:
    owners, revisions, frequencies, lengths = postings
    counts = np.bincount(owners, minlength=len(times))
    weights = np.maximum(1e-6, np.log((documents - counts + 0.5) / (counts + 0.5))) * times * 2.2
    relative = lengths * (documents / max(tokens, 1))
    scores = weights[owners] * frequencies / (frequencies + 1.2 * (0.25 + 0.75 * relative))
    order = np.argsort(revisions, kind="stable")  # so that equal documents add up in one order
    revisions, scores = revisions[order], scores[order]
    starts = np.flatnonzero(np.diff(revisions, prepend=-1))
    if len(starts):
        revisions, scores = revisions[starts], np.add.reduceat(scores, starts)
    return revisions, scores.astype(np.float32)


def _best(revisions: Revisions, scores: NDArray[np.float32], depth: int) -> Ranking:
    """The `depth` highest, and those that tie with the last; equal scores by revision."""
    if len(scores) > depth:
        least = np.partition(scores, -depth)[-depth]
        kept = scores >= least
        revisions, scores = revisions[kept], scores[kept]
    order = np.lexsort((revisions, -scores))[: depth + TIES]
    return revisions[order], scores[order]
