"""Search documents in memory in the modes of the service: dense, lexical and hybrid. Start at `find`.

    texts ─▶ passages, split as in the service ─▶ vectors ─▶ a document has the cosine of its best passage
          └▶ terms, counted as in the service ─▶ BM25
                               the best CANDIDATES of both rankings ─▶ fused as in the service

The search is exact. The index of the service may be approximate.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode
from models.progress import Progress, counted
from models.search.content import Content
from models.search.features import get_cover
from models.search.fusion import DENSE_WEIGHT, fuse
from models.search.terms import TABLE, cut, expression
from training.evaluation.encoding import Encode, Vectors
from training.evaluation.geometry import directions

DENSE: Mode = "dense"
MODES: tuple[Mode, ...] = (DENSE, "lexical", "hybrid")
# Splits a document into one or more passages. The number is their length in tokens; None is the usual length.
Split = Callable[[Content, int | None], list[str]]
CANDIDATES = 1000  # length of each ranking that hybrid search fuses, as in service/corpus/query.py
_QUERIES = 64  # queries whose cosines are in memory at a time
_DECIMALS = 6  # decimals of a cosine; float32 products of equal vectors differ in later ones

Scores = dict[int, float]  # from the places of documents to their scores, best first


class Passages(NamedTuple):
    """Vectors of passages, shape (p, d), of unit length. `owners[i]` is the index of passage i's document.

    Owners are ascending.
    """

    vectors: Vectors
    owners: NDArray[np.int64]


class WordIndex:
    """A keyword index over texts in memory, with BM25 by SQLite's FTS5 as in the service.

    Callers must call `close`.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(f"CREATE VIRTUAL TABLE words USING {TABLE}")
        rows = ((place, cut(text)) for place, text in enumerate(texts))
        self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)

    def nearest(self, query: str, depth: int) -> dict[int, float]:
        """Returns the indices of the `depth` best texts with their BM25 scores, best first."""
        match = expression(query)
        if not match:
            return {}
        statement = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
        with closing(self._connection.execute(statement, (match, depth))) as rows:
            return dict(rows.fetchall())

    def get_cover(self, query: str, ranking: Mapping[int, float]) -> float:
        """Returns the share of the query's terms in the best hit of `ranking`, or 1 if there is no hit."""
        return get_cover(query, self._texts[next(iter(ranking))]) if ranking else 1.0

    def close(self) -> None:
        self._connection.close()


def whole(content: Content, _passage_tokens: int | None) -> list[str]:
    """Returns the document as a single passage. The model cuts the passage if it is too long."""
    return [content.whole]


def get_passages(
    contents: Sequence[Content], split: Split, encode: Encode, passage_tokens: int | None = None
) -> Passages:
    shown = counted(contents, "texts", len(contents), "splitting")
    parts = [split(content, passage_tokens) for content in shown]
    vectors = encode([part for of_text in parts for part in of_text])
    owners = np.repeat(np.arange(len(contents)), [len(of_text) for of_text in parts])
    return Passages(np.nan_to_num(directions(vectors)).astype(np.float32), owners)


def find(
    queries: Sequence[str],
    vectors: Vectors,
    passages: Passages,
    words: WordIndex,
    depth: int = CANDIDATES,
    weight: float = DENSE_WEIGHT,
    unrelated: float = 1.0,
) -> Iterator[dict[Mode, Scores]]:
    """Yields the best documents of each query in every search mode.

    Args:
        queries: The queries.
        vectors: Vectors of the queries, shape (q, d).
        passages: Passages of the documents.
        words: Keyword index of the documents. Its ranking has only documents with a term of the query.
        depth: Maximum number of documents in a ranking.
        weight: Weight of dense search in hybrid search, 0 to 1.
        unrelated: Mean cosine of unrelated texts, for hybrid search.

    """
    units = np.nan_to_num(directions(vectors)).astype(np.float32)
    fetched = max(depth, CANDIDATES)
    with Progress("queries", len(queries), "searching") as progress:
        for start in range(0, len(queries), _QUERIES):
            cosines = _cosines(units[start : start + _QUERIES], passages)
            for query, row in zip(queries[start : start + _QUERIES], cosines, strict=True):
                near, worded = _best(row, fetched), words.nearest(query, fetched)
                fused = fuse(near, worded, weight, unrelated, words.get_cover(query, worded))
                both = {
                    place: float(fused[place]) for place in sorted(fused, key=lambda at: (-fused[at], at))
                }
                found = zip(MODES, (near, worded, both), strict=True)
                yield {mode: dict(islice(scores.items(), depth)) for mode, scores in found}
                progress.add()


def _cosines(queries: Vectors, passages: Passages) -> NDArray[np.float64]:
    """Returns the cosine of each query with the best passage of each document, shape (q, n)."""
    cosines = (queries @ passages.vectors.T).round(_DECIMALS)
    starts = np.flatnonzero(np.diff(passages.owners, prepend=-1))
    return np.maximum.reduceat(cosines, starts, axis=1).astype(np.float64)


def _best(cosines: NDArray[np.float64], depth: int) -> Scores:
    order = np.argsort(-cosines, kind="stable")[:depth]
    return dict(zip(order.tolist(), cosines[order].tolist(), strict=True))
