"""The three ways to search that the service has, over documents in memory: dense, lexical and hybrid.

    texts ─▶ passages, as the service splits them ─▶ vectors ─▶ a document's cosine is that of its best one
          └▶ words, as the service counts them ─▶ BM25
                                   both, the best CANDIDATES of each ─▶ fused, as the service fuses them

Exact, where the service's index may be approximate.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode
from models.progress import Progress, counted
from models.search.content import Content
from models.search.fusion import DENSE_WEIGHT, fuse
from models.search.terms import TABLE, cut, expression
from training.evaluation.encoding import Encode, Vectors
from training.evaluation.geometry import directions

DENSE: Mode = "dense"
MODES: tuple[Mode, ...] = (DENSE, "lexical", "hybrid")
# The passages of a title and text, at least one. Tokens of each; None: as many as is usual.
Split = Callable[[Content, int | None], list[str]]
CANDIDATES = 1000  # of each ranking, that hybrid search fuses: as service/corpus/search.py
_QUERIES = 64  # whose cosines are in memory at a time
_DECIMALS = 6  # of a cosine: equal vectors at different places of a product differ behind it in float32

Scores = dict[int, float]  # a document's place to its score, best first; equal scores by place


class Passages(NamedTuple):
    """Vectors (p, d) of unit length, and the place of the document that each is of (p,), rising."""

    vectors: Vectors
    owners: NDArray[np.int64]


class Found(NamedTuple):
    """The rankings of one query. A document without the query's words is in `dense` and `hybrid` alone."""

    dense: Scores
    lexical: Scores
    hybrid: Scores


class WordIndex:
    """Keyword search over texts in memory, as the service counts words: BM25 by SQLite's FTS5. Close it."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(f"CREATE VIRTUAL TABLE words USING {TABLE}")
        rows = ((place, cut(text)) for place, text in enumerate(texts))
        self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)

    def nearest(self, query: str, depth: int) -> dict[int, float]:
        """Returns the places of the `depth` best texts and their BM25 scores above 0, best first."""
        match = expression(query)
        if not match:
            return {}
        asked = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
        with closing(self._connection.execute(asked, (match, depth))) as rows:
            return dict(rows.fetchall())

    def close(self) -> None:
        self._connection.close()


def whole(content: Content, _passage_tokens: int | None) -> list[str]:
    """No split: the model sees as much of a text as it reads."""
    return [content.whole]


def passages_of(
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
    depth: int,
    weight: float = DENSE_WEIGHT,
) -> Iterator[Found]:
    """The rankings of each query, cut to the first `depth`; its vector is that of the same row."""
    for (near,), worded in candidates(queries, vectors, [passages], words, max(depth, CANDIDATES)):
        yield Found(_first(near, depth), _first(worded, depth), fused(near, worded, weight, depth))


def candidates(
    queries: Sequence[str],
    vectors: Vectors,
    splits: Sequence[Passages],
    words: WordIndex,
    depth: int = CANDIDATES,
) -> Iterator[tuple[list[Scores], Scores]]:
    """The best `depth` documents of each query: what hybrid search fuses.

    By the vectors of each of `splits` of the same documents, and by words, which no split changes.
    """
    units = np.nan_to_num(directions(vectors)).astype(np.float32)
    with Progress("queries", len(queries), "searching") as progress:
        for start in range(0, len(queries), _QUERIES):
            some = units[start : start + _QUERIES]
            cosines = zip(*(_cosines(some, passages) for passages in splits), strict=True)
            for query, rows in zip(queries[start : start + _QUERIES], cosines, strict=True):
                yield [_best(row, depth) for row in rows], words.nearest(query, depth)
                progress.add()


def fused(near: Scores, worded: Scores, weight: float, depth: int) -> Scores:
    """Both rankings as one, with the `weight` of the vectors, cut to the first `depth`."""
    scores = {place: float(score) for place, score in fuse(near, worded, weight).items()}
    order = sorted(scores, key=lambda place: (-scores[place], place))[:depth]
    return {place: scores[place] for place in order}


def _cosines(queries: Vectors, passages: Passages) -> NDArray[np.float64]:
    """(q, d) -> (q, n): the cosine of each document's best passage."""
    cosines = (queries @ passages.vectors.T).round(_DECIMALS)
    starts = np.flatnonzero(np.diff(passages.owners, prepend=-1))
    return np.maximum.reduceat(cosines, starts, axis=1).astype(np.float64)


def _best(cosines: NDArray[np.float64], depth: int) -> Scores:
    order = np.argsort(-cosines, kind="stable")[:depth]
    return dict(zip(order.tolist(), cosines[order].tolist(), strict=True))


def _first(scores: Scores, depth: int) -> Scores:
    return dict(list(scores.items())[:depth])
