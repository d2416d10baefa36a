"""A segment for exact search, whose buffer grows by appending.

    names, vectors   [ rows of an older segment | of the newest | room ]

A segment never changes its length. Later segments append to the same buffer, so an older view shares their
memory without seeing their rows.
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

ROOM_SHARE = 0.25  # spare rows in a new buffer, as a share of its rows


class Exact(Segment):
    """The first `rows` of a buffer of names and vectors. Every search scores every row."""

    def __init__(self, buffer: tuple[RowNames, Vectors], rows: int, order: Positions | None) -> None:
        names, vectors = buffer
        super().__init__(names[:rows], vectors[:rows], order)
        self._buffer = buffer

    @property
    def nbytes(self) -> int:
        names, vectors = self._buffer
        return names.nbytes + vectors.nbytes

    @property
    def room(self) -> int:
        return len(self._buffer[0]) - len(self.names)

    def appended(self, rows: Rows) -> "Exact":
        """Returns a segment with `rows` appended.

        The buffer must have room, and this must be its latest segment.
        """
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
        rows, dimension = self.vectors.shape
        return faiss.swig_ptr(queries), faiss.swig_ptr(self.vectors), dimension, len(queries), rows


def copied(dimension: int, sources: Sequence[Rows]) -> Exact:
    """Copies all rows of `sources`, whose names are distinct, to a new buffer with spare room."""
    named = np.concatenate([rows.names for rows in sources])
    capacity = len(named) + int(ROOM_SHARE * len(named))
    names, vectors = np.empty(capacity, np.int64), np.empty((capacity, dimension), np.float32)
    names[: len(named)] = named
    start = 0
    for chunk in chunks(sources):
        vectors[start : start + len(chunk)] = chunk
        start += len(chunk)
    return Exact((names, vectors), len(named), order_of(named))
