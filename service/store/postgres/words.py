"""Search by words: BM25 with the numbers of SQLite's FTS5, over a table of terms.

models/search/words.py cuts a text; FTS5 itself, in memory, stems what was cut. So a term is the same in both
stores. Here its counts are rows, and the score is computed from them:

    Σ idf · f · 2.2 / (f + 1.2 · (0.25 + 0.75 · length / mean length))
    idf = ln((N - n + 0.5) / (n + 0.5))

N documents of the collection, n of them with the term, at least 1e-6 (FTS5's bm25).
"""

import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.search.content import Content
from models.search.words import TABLE, cut, expression
from service.store.ids import Revisions
from service.store.postgres.connection import Connection
from service.store.postgres.passing import Passing

MOST_BYTES = 256  # of a term as it is stored; a longer one is named by its hash
TIES = 1000  # with the last hit
_local = threading.local()


class Terms(NamedTuple):
    """A text's terms with their counts, and its tokens in all."""

    counts: Mapping[str, int]
    length: int


def terms_of(contents: Sequence[Content]) -> list[Terms]:
    """The terms of titles and texts."""
    return [
        Terms(counts, sum(counts.values())) for counts in _stemmed([cut(each.whole) for each in contents])
    ]


def _stemmed(texts: Sequence[str]) -> list[Counter[str]]:
    """The terms of texts that were cut, as FTS5 stems them."""
    if not hasattr(_local, "fts"):
        _local.fts = sqlite3.connect(":memory:", isolation_level=None)
        _local.fts.execute(f"CREATE VIRTUAL TABLE words USING {TABLE}")
        _local.fts.execute("CREATE VIRTUAL TABLE terms USING fts5vocab (words, instance)")
    fts: sqlite3.Connection = _local.fts
    found = [Counter[str]() for _ in texts]
    fts.execute("BEGIN")
    try:
        fts.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(texts))
        for term, at, count in fts.execute("SELECT term, doc, count(*) FROM terms GROUP BY doc, term"):
            found[at][_stored(term)] += count
    finally:
        fts.execute("ROLLBACK")
    return found


def _stored(term: str) -> str:
    encoded = term.encode()
    return term if len(encoded) <= MOST_BYTES else blake2b(encoded, digest_size=32).hexdigest()


def add(connection: Connection, collection: str, documents: Mapping[int, Terms]) -> None:
    """Store the terms of documents, by revision."""
    connection.copy(
        "COPY words (collection, term, revision, frequency, length) FROM STDIN",
        (
            (collection, term, revision, count, terms.length)
            for revision, terms in documents.items()
            for term, count in terms.counts.items()
        ),
    )


def remove(connection: Connection, collection: str, documents: Mapping[int, Terms]) -> None:
    """Take out the terms that were added of documents, by revision."""
    rows = [(term, revision) for revision, terms in documents.items() for term in terms.counts]
    connection.execute(
        "DELETE FROM words w USING unnest(?::text[], ?::bigint[]) AS gone (term, revision) "
        "WHERE w.collection = ? AND w.term = gone.term AND w.revision = gone.revision",
        ([term for term, _ in rows], [revision for _, revision in rows], collection),
    )


_QUOTED = re.compile(r'"([^"]*)"( \*)?')


def _asked(query: str) -> tuple[list[str], list[str]]:
    """The terms of a query, and the beginnings of terms; one that stands there twice counts twice."""
    found = _QUOTED.findall(expression(query))
    whole = [term for term, begins in found if not begins]
    stems = [stem for counts in _stemmed(whole) for stem in counts]
    return stems, [term for term, begins in found if begins]


def nearest(
    connection: Connection, query: str, depth: int, allowed: Passing | None, collection: str
) -> tuple[Revisions, NDArray[np.float32]]:
    """The revisions of the `depth` documents that rank highest, and their scores, best first.

    With every document that ties with the last one, up to `TIES` more. allowed: what passes a filter.
    """
    whole, beginnings = _asked(query)
    if not whole and not beginnings:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    among, bound = ("TRUE", []) if allowed is None else allowed.condition("hits.revision")
    rows = connection.execute(
        "WITH asked AS (SELECT * FROM unnest(?::text[]) WITH ORDINALITY AS a (term, at)), "
        "begun AS (SELECT * FROM unnest(?::text[]) WITH ORDINALITY AS a (term, at)), "
        "hits AS MATERIALIZED ("
        "SELECT at, revision, frequency, length FROM asked JOIN words w ON w.term = asked.term "
        "WHERE w.collection = ? UNION ALL "
        "SELECT -at, revision, sum(frequency), min(length) FROM begun JOIN words w ON "
        "w.term >= begun.term AND w.term < begun.term || chr(1114111) WHERE w.collection = ? "
        "GROUP BY at, revision), "
        "held AS (SELECT sum(documents)::float8 AS documents, sum(tokens)::float8 AS tokens FROM tally "
        "WHERE collection = ?), "
        "rare AS (SELECT at, greatest(1e-6, ln((documents - count(*) + 0.5) / (count(*) + 0.5))) AS idf "
        "FROM hits CROSS JOIN held GROUP BY at, documents) "
        "SELECT hits.revision, sum(idf * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length "
        "* documents / tokens)) ORDER BY at)::float4 AS score FROM hits JOIN rare USING (at) "
        f"CROSS JOIN held WHERE {among} GROUP BY hits.revision "
        "ORDER BY score DESC FETCH FIRST ? ROWS WITH TIES",
        (whole, beginnings, collection, collection, collection, *bound, depth),
    ).fetchmany(depth + TIES)
    rows.sort(key=lambda row: (-row[1], row[0]))
    return np.array([row[0] for row in rows], np.int64), np.array([row[1] for row in rows], np.float32)
