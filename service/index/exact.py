"""Vectors that every search scores, in a buffer that later ones are appended to.

    names, vectors   [ rows of an older segment | of the newest | room ]

A segment ends where it ended when it was made, whatever was written behind it since. So an older view shares
the memory of a newer one, and sees none of its rows.
"""

from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np

from service.index.segments import (
    Positions,
    Rows,
    Scores,
    Segment,
    Selection,
    Vectors,
    chunks,
    order_of,
    selector,
)
from service.store.values import RowNames

ROOM_SHARE = 0.25  # of the rows: room for later ones, whenever rows are copied to new memory


class Exact(Segment):
    """The first rows of a buffer that later ones are appended to. Every search scores every row."""

    def __init__(self, buffer: tuple[RowNames, Vectors], rows: int, order: Positions | None) -> None:
        """buffer: names and vectors, of which the first `rows` are written."""
        names, vectors = buffer
        super().__init__(names[:rows], vectors[:rows], order)
        self._buffer = buffer

    @property
    def nbytes(self) -> int:
        """Memory of the whole buffer."""
        names, vectors = self._buffer
        return names.nbytes + vectors.nbytes

    @property
    def room(self) -> int:
        """Rows that can be appended."""
        return len(self._buffer[0]) - len(self.names)

    def appended(self, rows: Rows) -> "Exact":
        """These rows and `rows`, for which there is room. Only the latest of a buffer may be appended to."""
        first, end = len(self.names), len(self.names) + len(rows.names)
        names, vectors = self._buffer
        by_name = np.argsort(rows.names)
        names[first:end] = fresh = rows.names[by_name]
        vectors[first:end] = rows.vectors[rows.positions[by_name]]
        order, added = self._order, np.arange(first, end)
        if order is not None:
            order = np.insert(order, self._places(fresh), added)
        elif first and fresh[0] <= names[first - 1]:
            order = np.insert(np.arange(first), self._places(fresh), added)
        return Exact(self._buffer, end, order)

    def scan(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        scores, positions = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        found = faiss.swig_ptr(scores), faiss.swig_ptr(positions)
        swig: Any = faiss
        swig.knn_inner_product(*self._compared(queries), k, *found, selector(selection))
        return scores, positions

    nearest = scan

    def at_least(self, query: Vectors, score: float, selection: Selection) -> tuple[Scores, Positions]:
        swig: Any = faiss
        found = swig.RangeSearchResult(1)
        swig.range_search_inner_product(*self._compared(query), score, found, selector(selection))
        count = int(swig.rev_swig_ptr(found.lims, 2)[1])
        if not count:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        scores, positions = (swig.rev_swig_ptr(one, count).copy() for one in (found.distances, found.labels))
        return scores, positions

    def _compared(self, queries: Vectors) -> tuple[Any, ...]:
        """The first arguments of a FAISS function that compares `queries` with all rows."""
        rows, dimension = self.vectors.shape
        return faiss.swig_ptr(queries), faiss.swig_ptr(self.vectors), dimension, len(queries), rows


def copied(dimension: int, sources: Sequence[Rows]) -> Exact:
    """All rows of `sources` in a new buffer with some room; no name is there twice."""
    named = np.concatenate([rows.names for rows in sources])
    capacity = len(named) + int(ROOM_SHARE * len(named))
    names, vectors = np.empty(capacity, np.int64), np.empty((capacity, dimension), np.float32)
    names[: len(named)] = named
    start = 0
    for chunk in chunks(sources):
        vectors[start : start + len(chunk)] = chunk
        start += len(chunk)
    return Exact((names, vectors), len(named), order_of(named))
