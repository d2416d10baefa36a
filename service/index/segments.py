"""Vectors that never change, with the name of each row.

    Segment
     ├─ Exact (exact.py) ─ every search scores every row
     └─ Clustered (ivf.py) ─ for many rows

view.py adds which rows are alive in one moment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import faiss
import numpy as np
from numpy.typing import NDArray

from service.store.values import PASSAGE_BITS, Revisions, RowNames, passages_of, revisions_of

Positions: TypeAlias = NDArray[np.int64]  # rows within one segment
Vectors: TypeAlias = NDArray[np.float32]
Stored: TypeAlias = NDArray[np.float32] | NDArray[np.float16]
Bitmap: TypeAlias = NDArray[np.uint8]  # bit i % 8 of byte i // 8, as faiss.IDSelectorBitmap reads it
Scores: TypeAlias = NDArray[np.float32]

CHUNK_ROWS = 4096  # 6 MB at 384 dimensions: a few milliseconds between two looks at `cancelled`
FEW = 16  # revisions below this part of a segment's rows are looked up one by one


class Cancelled(Exception):
    """The segment is not wanted any more."""


class Selection(NamedTuple):
    """The rows of one segment that a search looks at."""

    bitmap: Bitmap | None  # None: every row
    rows: int

    def among(self, positions: Positions) -> Positions:
        """The selected ones of `positions`, in their order."""
        if self.bitmap is None:
            return positions
        kept: Positions = positions[self.bitmap[positions >> 3] >> (positions & 7) & 1 == 1]
        return kept


class Rows(NamedTuple):
    """Rows to put into a segment: the vector of `names[i]` is `vectors[positions[i]]`."""

    names: RowNames
    vectors: Stored
    positions: Positions
    labels: NDArray[np.int32] | None = None  # of `vectors`, as in `Segment`

    def at(self, places: Positions) -> "Rows":
        """Some of them."""
        return self._replace(names=self.names[places], positions=self.positions[places])


class Segment(ABC):
    """Rows of vectors, and a search over them."""

    is_float16 = False  # its vectors are stored as float16, and its scores are of those
    labels: NDArray[np.int32] | None = None  # the inverted list of each row, where there are lists

    def __init__(self, names: RowNames, vectors: Stored, order: Positions | None) -> None:
        """order: positions by rising name, the newer of two of one name first; None: 0, 1, 2 …"""
        self.names = names
        self.vectors = vectors
        self.vectors.flags.writeable = False
        self._order = order
        heads = passages_of(names) == 0
        # Bitmap of the rows that are a document's first passage; None: all are.
        self.heads = None if heads.all() else np.packbits(heads, bitorder="little")

    @property
    def nbytes(self) -> int:
        order = 0 if self._order is None else self._order.nbytes
        return self.vectors.nbytes + self.names.nbytes + order

    def positions(self, revisions: Revisions) -> Positions:
        """The rows of `revisions`, which may come in any order."""
        if len(revisions) * FEW >= len(self.names):
            return np.flatnonzero(np.isin(revisions_of(self.names), revisions))
        starts = self._places(revisions << PASSAGE_BITS)
        counts = self._places((revisions + 1) << PASSAGE_BITS) - starts
        before = np.cumsum(counts) - counts
        places: Positions = np.repeat(starts - before, counts) + np.arange(counts.sum())
        return places if self._order is None else self._order[places]

    def newest(self, names: RowNames) -> Positions:
        """The row that each of `names` was written to last; any row when there is none of that name."""
        places = np.minimum(self._places(names), len(self.names) - 1)
        return places if self._order is None else self._order[places]

    def _places(self, names: RowNames) -> Positions:
        """The places of `names` in the rising order of names."""
        return np.searchsorted(self.names, names, sorter=self._order)

    @abstractmethod
    def nearest(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        """The result of `scan`, or nearly so, and faster."""

    @abstractmethod
    def scan(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        """The best `k` of the selected rows by their stored vectors, (q, k) each.

        `k` is at most their number: FAISS would fill the places it cannot fill with position -1.
        """

    @abstractmethod
    def at_least(self, query: Vectors, score: float, selection: Selection) -> tuple[Scores, Positions]:
        """Every selected row that scores more than `score` for the one `query` (1, d), in no order."""


def selector(selection: Selection) -> Any:
    """The rows that FAISS may look at; None: every one."""
    swig: Any = faiss  # its type stubs know the C++ constructors only
    return None if selection.bitmap is None else swig.IDSelectorBitmap(selection.bitmap)


def order_of(names: RowNames) -> Positions | None:
    """The `order` of a segment in which each name is there once."""
    return None if (names[1:] > names[:-1]).all() else np.argsort(names)


def chunks(sources: Sequence[Rows], cancelled: Callable[[], bool] = bool) -> Iterator[Vectors]:
    """The vectors of all rows of `sources`, in their order, some at a time.

    Raises:
        Cancelled: `cancelled()` became true.

    """
    for rows in sources:
        for start in range(0, len(rows.names), CHUNK_ROWS):
            if cancelled():
                raise Cancelled
            yield rows.vectors[rows.positions[start : start + CHUNK_ROWS]].astype(np.float32, copy=False)
