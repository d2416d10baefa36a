"""Immutable vectors with a name for each row. Start reading at `Segment`.

    Segment
     ├─ Exact ─ every search scores every row
     └─ Clustered (ivf.py) ─ for many rows

view.py adds a bitmap of the rows that are alive in one state of the index.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import faiss
import numpy as np
from numpy.typing import NDArray

from service.store.values import PASSAGE_BITS, Revisions, RowNames, get_passages, get_revisions

Positions: TypeAlias = NDArray[np.int64]  # rows within one segment
Vectors: TypeAlias = NDArray[np.float32]
Stored: TypeAlias = NDArray[np.float32] | NDArray[np.float16]
Bitmap: TypeAlias = NDArray[np.uint8]  # bit i % 8 of byte i // 8, as faiss.IDSelectorBitmap reads it
Scores: TypeAlias = NDArray[np.float32]

CHUNK_ROWS = 4096  # 6 MB at 384 dimensions: a few milliseconds between two checks of `cancelled`
LOOKUP_SHARE = 16  # Fewer revisions than rows / LOOKUP_SHARE are looked up one by one.


class Cancelled(Exception):
    """Raised while a segment is built, if the segment is not needed any more."""


class Selection(NamedTuple):
    """Selects the rows of one segment that a search may return."""

    bitmap: Bitmap | None  # None means every row.
    rows: int

    def among(self, positions: Positions) -> Positions:
        """Returns those of `positions` that are selected, in the same order."""
        if self.bitmap is None:
            return positions
        kept: Positions = positions[self.bitmap[positions >> 3] >> (positions & 7) & 1 == 1]
        return kept


class Rows(NamedTuple):
    """Rows for a new segment. The vector of the row `names[i]` is `vectors[positions[i]]`."""

    names: RowNames
    vectors: Stored
    positions: Positions
    labels: NDArray[np.int32] | None = None  # the inverted list of each of `vectors`

    def at(self, places: Positions) -> "Rows":
        return self._replace(names=self.names[places], positions=self.positions[places])


class Segment(ABC):
    """Rows of vectors, and the interface to search them.

    Args:
        names: Name of each row, shape (n,).
        vectors: Vectors, shape (n, d). The array becomes read-only.
        order: Positions of rows sorted by name, newest first among equal names. None means 0, 1, 2, ….
    """

    is_float16 = False  # Vectors are stored as float16.
    labels: NDArray[np.int32] | None = None  # the inverted list of each row, if lists exist

    def __init__(self, names: RowNames, vectors: Stored, order: Positions | None) -> None:
        self.names = names
        self.vectors = vectors
        self.vectors.flags.writeable = False
        self._order = order
        heads = get_passages(names) == 0
        # Bitmap of the first passages of documents. None if all rows are first passages.
        self.heads = None if heads.all() else np.packbits(heads, bitorder="little")

    @property
    def nbytes(self) -> int:
        order = 0 if self._order is None else self._order.nbytes
        return self.vectors.nbytes + self.names.nbytes + order

    def positions(self, revisions: Revisions) -> Positions:
        """Returns the positions of all rows of `revisions`, in any order."""
        if len(revisions) * LOOKUP_SHARE >= len(self.names):
            return np.flatnonzero(np.isin(get_revisions(self.names), revisions))
        starts = self._places(revisions << PASSAGE_BITS)
        counts = self._places((revisions + 1) << PASSAGE_BITS) - starts
        before = np.cumsum(counts) - counts
        places: Positions = np.repeat(starts - before, counts) + np.arange(counts.sum())
        return places if self._order is None else self._order[places]

    def newest(self, names: RowNames) -> Positions:
        """Returns the position of the newest row of each name.

        For an unknown name, the position is arbitrary.
        """
        places = np.minimum(self._places(names), len(self.names) - 1)
        return places if self._order is None else self._order[places]

    def _places(self, names: RowNames) -> Positions:
        return np.searchsorted(self.names, names, sorter=self._order)

    @abstractmethod
    def nearest(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        """Returns the same as `scan`, but faster. The result may be approximate, and in any order."""

    @abstractmethod
    def scan(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        """Compares every selected row.

        Returns the scores and positions of the best `k` rows, best first, shape (q, k) each.

        `k` must be at most the number of selected rows. FAISS would fill further places with position -1.
        """

    @abstractmethod
    def at_least(self, query: Vectors, score: float, selection: Selection) -> tuple[Scores, Positions]:
        """Returns the scores and positions of all selected rows with a score above `score`, unsorted.

        Args:
            query: One vector, shape (1, d).
        """


def selector(selection: Selection) -> Any:
    """Returns FAISS's selector for the selected rows, or None if every row is selected."""
    swig: Any = faiss  # FAISS's type stubs have only the C++ constructors.
    return None if selection.bitmap is None else swig.IDSelectorBitmap(selection.bitmap)


def sort_order(names: RowNames) -> Positions | None:
    """Returns the argument `order` for a segment whose names are distinct."""
    return None if (names[1:] > names[:-1]).all() else np.argsort(names)


def chunks(sources: Sequence[Rows], cancelled: Callable[[], bool] = bool) -> Iterator[Vectors]:
    """Yields the vectors of all rows of `sources` in chunks, as float32.

    Raises:
        Cancelled: `cancelled()` returned True.
    """
    for rows in sources:
        for start in range(0, len(rows.names), CHUNK_ROWS):
            if cancelled():
                raise Cancelled
            yield rows.vectors[rows.positions[start : start + CHUNK_ROWS]].astype(np.float32, copy=False)


ROOM_SHARE = 0.25  # spare rows in a new buffer, as a share of its rows


class Exact(Segment):
    """The first `rows` rows in a buffer of names and vectors.

    Every search computes the score of every row.
    """

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
        """Appends `rows` to the buffer. Returns a segment that includes them.

        The buffer must have room, and this segment must be the latest one in the buffer.
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
    """Copies all rows of `sources` to a new buffer with spare room. Names must be distinct."""
    named = np.concatenate([rows.names for rows in sources])
    capacity = len(named) + int(ROOM_SHARE * len(named))
    names, vectors = np.empty(capacity, np.int64), np.empty((capacity, dimension), np.float32)
    names[: len(named)] = named
    start = 0
    for chunk in chunks(sources):
        vectors[start : start + len(chunk)] = chunk
        start += len(chunk)
    return Exact((names, vectors), len(named), sort_order(named))
