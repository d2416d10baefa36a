"""Search by words: BM25 with the numbers of SQLite's FTS5, over blocks of postings.

The database hands out the blocks of a query's terms, and the score is computed here, so that the one thing
that replicas share has little to do:

    Σ idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · length / mean length))
    idf = ln((N - n + 0.5) / (n + 0.5))

N documents of the collection, n of them with the term, at least 1e-6 (FTS5's bm25).
"""

from collections import Counter, defaultdict
from math import log

import numpy as np
from numpy.typing import NDArray

from service.store.ids import Revisions
from service.store.postgres.connection import Connection
from service.store.postgres.passing import Passing
from service.store.postgres.postings import Postings, unpacked
from service.store.postgres.terms import asked
from service.store.turns import pause

TIES = 1000  # with the last hit
CHECKED = 256  # documents at least that are held against a wide filter at a time
_LAST = chr(0x10FFFF)

Ranking = tuple[Revisions, NDArray[np.float32]]


def nearest(
    connection: Connection, query: str, depth: int, allowed: Passing | None, collection: str
) -> Ranking:
    """The revisions of the `depth` documents that rank highest, and their scores, best first.

    With every document that ties with the last one, up to `TIES` more. allowed: what passes a filter.
    """
    whole, beginnings = asked(query)
    found = _postings(connection, whole, beginnings, collection)
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    pause()
    documents, tokens, removed = _collection(connection, collection)
    revisions, scores = _scores(found, documents, tokens, removed)
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
    connection: Connection, whole: list[str], beginnings: list[str], collection: str
) -> list[tuple[Postings, int]]:
    """The postings of each term of a query, and how often it is asked for."""
    found = []
    if whole:
        blocks: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for term, first, body in connection.execute(
            "SELECT term, first, body FROM postings WHERE collection = ? AND term = ANY(?)",
            (collection, [*{*whole}]),
        ):
            blocks[term].append((first, body))
        found += [(unpacked(blocks[term]), times) for term, times in Counter(whole).items() if term in blocks]
    for beginning, times in Counter(beginnings).items():
        begun = connection.execute(
            "SELECT first, body FROM postings WHERE collection = ? AND term >= ? AND term < ?",
            (collection, beginning, beginning + _LAST),
        ).fetchall()
        if begun:
            found.append((_summed(unpacked(begun)), times))
    return found


def _summed(postings: Postings) -> Postings:
    """One posting for each document that has several of the terms."""
    starts = np.flatnonzero(np.diff(postings.revisions, prepend=-1))
    return Postings(
        postings.revisions[starts], np.add.reduceat(postings.frequencies, starts), postings.lengths[starts]
    )


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
    found: list[tuple[Postings, int]], documents: int, tokens: int, removed: Revisions
) -> tuple[Revisions, NDArray[np.float32]]:
    names, parts = [], []
    for postings, times in found:
        living = postings.where(~np.isin(postings.revisions, removed)) if len(removed) else postings
        revisions, frequencies, lengths = living
        count = len(revisions)
        idf = max(1e-6, log((documents - count + 0.5) / (count + 0.5)))
        names.append(revisions)
        relative = lengths * (documents / max(tokens, 1))
        parts.append(times * idf * frequencies * 2.2 / (frequencies + 1.2 * (0.25 + 0.75 * relative)))
    revisions = np.concatenate(names)
    order = np.argsort(revisions, kind="stable")  # so that equal documents add up in one order
    revisions, scores = revisions[order], np.concatenate(parts)[order]
    starts = np.flatnonzero(np.diff(revisions, prepend=-1))
    if not len(starts):
        return revisions, scores.astype(np.float32)
    return revisions[starts], np.add.reduceat(scores, starts).astype(np.float32)


def _best(revisions: Revisions, scores: NDArray[np.float32], depth: int) -> Ranking:
    """The `depth` highest, and those that tie with the last; equal scores by revision."""
    if len(scores) > depth:
        least = np.partition(scores, -depth)[-depth]
        kept = scores >= least
        revisions, scores = revisions[kept], scores[kept]
    order = np.lexsort((revisions, -scores))[: depth + TIES]
    return revisions[order], scores[order]
