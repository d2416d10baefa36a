"""Vectors that never change, and which of them are alive.

    Part ─ a segment, and a bitmap of the rows that are alive in one moment
     └─ Segment ─ FAISS indexes that nobody adds to any more, and the name of each row
         ├─ Exact ─ every search scores every row
         └─ Clustered (ivf.py) ─ for many rows

Nothing here is changed once made; index.py puts parts together to the next view (view.py) and
replaces one reference.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import faiss
import numpy as np
from numpy.typing import NDArray

from service.store.ids import PASSAGE_BITS, Revisions, RowNames, passages_of, revisions_of

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
        """Those of `positions` that it selects, in their order."""
        if self.bitmap is None:
            return positions
        kept: Positions = positions[self.bitmap[positions >> 3] >> (positions & 7) & 1 == 1]
        return kept


class Segment:
    """Rows in the order of their names, and a search over them; `flat` scores each by its stored vector."""

    half = False  # its vectors are stored as float16, and its scores are of those
    labels: NDArray[np.int32] | None = None  # the inverted list of each row, where there are lists

    def __init__(self, names: RowNames, vectors: Stored, flat: faiss.Index) -> None:
        self.names = names
        self._flat = flat
        self.vectors = vectors
        self.vectors.flags.writeable = False
        self.firsts = _firsts(names)

    @property
    def nbytes(self) -> int:
        return self.vectors.nbytes + self.names.nbytes

    def positions(self, revisions: Revisions) -> Positions:
        """Where the rows of `revisions` are; these may come in any order."""
        if len(revisions) * FEW >= len(self.names):
            return np.flatnonzero(np.isin(revisions_of(self.names), revisions))
        starts = np.searchsorted(self.names, revisions << PASSAGE_BITS)
        counts = np.searchsorted(self.names, (revisions + 1) << PASSAGE_BITS) - starts
        before = np.cumsum(counts) - counts
        positions: Positions = np.repeat(starts - before, counts) + np.arange(counts.sum())
        return positions

    def nearest(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        """As `scan`, or nearly so, and faster."""
        return self.scan(queries, k, selection)

    def scan(self, queries: Vectors, k: int, selection: Selection) -> tuple[Scores, Positions]:
        """The best `k` of the selected rows, (q, k) each.

        `k` is at most their number: FAISS would fill the places it cannot fill with position -1.
        """
        scores, positions = self._flat.search(queries, k, params=parameters(selection))
        return scores, positions

    def at_least(self, query: Vectors, score: float, selection: Selection) -> tuple[Scores, Positions]:
        """Every selected row that scores more than `score` for the one `query` (1, d), in no order."""
        _, scores, positions = self._flat.range_search(query, score, params=parameters(selection))
        return scores, positions


class Exact(Segment):
    """Every search scores every row."""

    def __init__(self, names: RowNames, index: faiss.IndexFlatIP) -> None:
        flat = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
        super().__init__(names, flat.reshape(index.ntotal, index.d), index)  # FAISS's memory


def _firsts(names: RowNames) -> Bitmap | None:
    """The bitmap of the rows that are a document's first passage; None: all are."""
    first = passages_of(names) == 0
    return None if first.all() else np.packbits(first, bitorder="little")


def parameters(selection: Selection) -> Any:
    """What makes FAISS look at the selected rows only."""
    if selection.bitmap is None:
        return None
    swig: Any = faiss  # its type stubs know the C++ constructors only
    return swig.SearchParameters(sel=swig.IDSelectorBitmap(selection.bitmap))


class Rows(NamedTuple):
    """Rows to put into a new segment: the vector of `names[i]` is `vectors[positions[i]]`."""

    names: RowNames
    vectors: Stored
    positions: Positions
    labels: NDArray[np.int32] | None = None  # of `vectors`, as in `Segment`


def build(dimension: int, sources: Sequence[Rows], cancelled: Callable[[], bool] = bool) -> Exact:
    """One exact segment of all rows of `sources`, in whatever order they come.

    Raises:
        Cancelled: `cancelled()` became true.

    """
    names, owners, positions = in_order(sources)
    index = faiss.IndexFlatIP(dimension)
    for chunk in gathered(dimension, sources, owners, positions, cancelled):
        index.add(chunk)
    return Exact(names, index)


def in_order(sources: Sequence[Rows]) -> tuple[RowNames, NDArray[np.int64], Positions]:
    """The names of all rows, sorted; and for each the number of its source, and its position there."""
    names = np.concatenate([rows.names for rows in sources])
    order = np.argsort(names, kind="stable")
    owners = np.repeat(np.arange(len(sources)), [len(rows.names) for rows in sources])
    return names[order], owners[order], np.concatenate([rows.positions for rows in sources])[order]


def gathered(
    dimension: int,
    sources: Sequence[Rows],
    owners: NDArray[np.int64],
    positions: Positions,
    cancelled: Callable[[], bool],
) -> Iterator[Vectors]:
    """The vectors of these rows, in chunks.

    Raises:
        Cancelled: `cancelled()` became true.

    """
    for start in range(0, len(owners), CHUNK_ROWS):
        if cancelled():
            raise Cancelled
        owner, position = owners[start : start + CHUNK_ROWS], positions[start : start + CHUNK_ROWS]
        chunk = np.empty((len(owner), dimension), np.float32)
        for number in np.unique(owner):
            mine = owner == number
            chunk[mine] = sources[number].vectors[position[mine]]
        yield chunk


@dataclass(frozen=True, eq=False)
class Part:
    """A segment, and which of its rows are alive."""

    segment: Segment
    alive: Bitmap
    count: int  # of alive rows

    @classmethod
    def whole(cls, segment: Segment) -> Self:
        rows = len(segment.names)
        return cls(segment, np.packbits(np.ones(rows, bool), bitorder="little"), rows)

    def __len__(self) -> int:
        """Rows, dead ones included."""
        return len(self.segment.names)

    @property
    def documents(self) -> int:
        """Documents whose first passage is alive here."""
        firsts = self.segment.firsts
        return self.count if firsts is None else int(np.bitwise_count(self.alive & firsts).sum())

    @property
    def nbytes(self) -> int:
        return self.segment.nbytes + self.alive.nbytes

    def find(self, names: RowNames) -> tuple[NDArray[np.bool_], Positions]:
        """Which of `names` are alive here, and the positions of those."""
        places = np.minimum(np.searchsorted(self.segment.names, names), len(self) - 1)
        found = (self.segment.names[places] == names) & (self.alive[places >> 3] >> (places & 7) & 1 == 1)
        return found, places[found]

    def rows(self) -> Rows:
        """The alive rows."""
        positions = np.flatnonzero(np.unpackbits(self.alive, count=len(self), bitorder="little"))
        return Rows(self.segment.names[positions], self.segment.vectors, positions, self.segment.labels)

    def without(self, positions: Positions) -> "Part":
        """The same segment with the rows at `positions` dead."""
        return self._with(self.alive & ~self._bitmap(positions)) if len(positions) else self

    def died_until(self, later: "Part | None") -> RowNames:
        """Rows alive here and dead in `later`, a later state of this part (None: wholly gone)."""
        bits = self.alive if later is None else self.alive & ~later.alive
        return self._with(bits).rows().names

    def selection(self, allowed: Revisions | None, *, firsts: bool = False) -> Selection:
        """The alive rows, those of `allowed` when given; with `firsts`, the first passages alone."""
        heads = self.segment.firsts if firsts else None
        if allowed is None and heads is None:
            return Selection(None if self.count == len(self) else self.alive, self.count)
        bitmap = self.alive if heads is None else self.alive & heads
        if allowed is not None:
            bitmap = bitmap & self._bitmap(self.segment.positions(allowed))
        return Selection(bitmap, int(np.bitwise_count(bitmap).sum()))

    def _bitmap(self, positions: Positions) -> Bitmap:
        bits = np.zeros(len(self), bool)
        bits[positions] = True
        return np.packbits(bits, bitorder="little")

    def _with(self, alive: Bitmap) -> "Part":
        return Part(self.segment, alive, int(np.bitwise_count(alive).sum()))
