"""Vectors that never change, and the searches over them.

    View ─ one moment of an index: searched without a lock
     ├─ Part ─ a segment, and a bitmap of the rows that are alive in that moment
     │   └─ Segment ─ a FAISS index that nobody adds to any more, and the revision of each row
     ├─ Part …

Nothing here is changed once made; service/index.py makes the next view and replaces one reference. A
segment is exact (inner product, float32). Another kind, such as IVF, is another class with the members of
`Segment`: `revisions`, `vectors`, `nearest` and `at_least`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import faiss
import numpy as np
from numpy.typing import NDArray

Revisions: TypeAlias = NDArray[np.int64]
Positions: TypeAlias = NDArray[np.int64]  # rows within one segment
Vectors: TypeAlias = NDArray[np.float32]
Bitmap: TypeAlias = NDArray[np.uint8]  # bit i % 8 of byte i // 8, as faiss.IDSelectorBitmap reads it
Scores: TypeAlias = NDArray[np.float32]
Exact: TypeAlias = NDArray[np.float64]  # rounded to `DECIMALS`, so that equal means tied
Hits: TypeAlias = tuple[Scores, Revisions]

DECIMALS = 6  # two float32 sums of one product differ in the seventh
TIES = 1000
SPARE = 16  # ties with the k-th up to this number are found without a second scan
CHUNK_ROWS = 4096  # 6 MB at 384 dimensions: a few milliseconds between two looks at `cancelled`


class Cancelled(Exception):
    """The segment is not wanted any more."""


class Segment:
    """Rows in the order of their revisions, and an exact search over them."""

    def __init__(self, revisions: Revisions, index: faiss.IndexFlatIP) -> None:
        self.revisions = revisions
        self._index = index
        flat = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
        self.vectors: Vectors = flat.reshape(
            index.ntotal, index.d
        )  # FAISS's memory, valid while this segment lives
        self.vectors.flags.writeable = False

    def nearest(self, queries: Vectors, k: int, selected: Bitmap | None) -> tuple[Scores, Positions]:
        """The best `k` of the selected rows, (q, k) each.

        `k` is at most their number: FAISS would fill the places it cannot fill with position -1.
        """
        scores, positions = self._index.search(queries, k, params=_parameters(selected))
        return scores, positions

    def at_least(self, query: Vectors, score: float, selected: Bitmap | None) -> tuple[Scores, Positions]:
        """Every selected row that scores more than `score` for the one `query` (1, d), in no order."""
        _, scores, positions = self._index.range_search(query, score, params=_parameters(selected))
        return scores, positions


def _parameters(selected: Bitmap | None) -> Any:
    if selected is None:
        return None
    swig: Any = faiss  # its type stubs know the C++ constructors only
    return swig.SearchParameters(sel=swig.IDSelectorBitmap(selected))


class Rows(NamedTuple):
    """Rows to put into a new segment: the vector of `revisions[i]` is `vectors[positions[i]]`."""

    revisions: Revisions
    vectors: Vectors
    positions: Positions


def build(dimension: int, sources: Sequence[Rows], cancelled: Callable[[], bool] = bool) -> Segment:
    """One segment of all rows of `sources`, in whatever order they come.

    Raises:
        Cancelled: `cancelled()` became true.

    """
    revisions = np.concatenate([rows.revisions for rows in sources])
    order = np.argsort(revisions, kind="stable")
    positions = np.concatenate([rows.positions for rows in sources])[order]
    owners = np.repeat(np.arange(len(sources)), [len(rows.revisions) for rows in sources])[order]
    index = faiss.IndexFlatIP(dimension)
    for start in range(0, len(order), CHUNK_ROWS):
        if cancelled():
            raise Cancelled
        owner, position = owners[start : start + CHUNK_ROWS], positions[start : start + CHUNK_ROWS]
        chunk = np.empty((len(owner), dimension), np.float32)
        for number in np.unique(owner):
            mine = owner == number
            chunk[mine] = sources[number].vectors[position[mine]]
        index.add(chunk)
    return Segment(revisions[order], index)


@dataclass(frozen=True, eq=False)
class Part:
    """A segment, and which of its rows are alive."""

    segment: Segment
    alive: Bitmap
    count: int  # of alive rows

    @classmethod
    def whole(cls, segment: Segment) -> Self:
        rows = len(segment.revisions)
        return cls(segment, np.packbits(np.ones(rows, bool), bitorder="little"), rows)

    def __len__(self) -> int:
        """Rows, dead ones included."""
        return len(self.segment.revisions)

    @property
    def nbytes(self) -> int:
        return self.segment.vectors.nbytes + self.segment.revisions.nbytes + self.alive.nbytes

    def find(self, revisions: Revisions) -> tuple[NDArray[np.bool_], Positions]:
        """Which of `revisions` are alive here, and the positions of those."""
        places = np.minimum(np.searchsorted(self.segment.revisions, revisions), len(self) - 1)
        found = (self.segment.revisions[places] == revisions) & (
            self.alive[places >> 3] >> (places & 7) & 1 == 1
        )
        return found, places[found]

    def rows(self) -> Rows:
        """The alive rows."""
        positions = np.flatnonzero(np.unpackbits(self.alive, count=len(self), bitorder="little"))
        return Rows(self.segment.revisions[positions], self.segment.vectors, positions)

    def without(self, positions: Positions) -> "Part":
        """The same segment with the rows at `positions` dead."""
        return self._with(self.alive & ~self._bitmap(positions)) if len(positions) else self

    def died_until(self, later: "Part | None") -> Revisions:
        """Revisions alive here and dead in `later`, a later state of this part (None: wholly gone)."""
        bits = self.alive if later is None else self.alive & ~later.alive
        return self._with(bits).rows().revisions

    def selection(self, allowed: Revisions | None) -> tuple[Bitmap | None, int]:
        """The bitmap (None: every row) and the number of the alive rows, in `allowed` when given."""
        if allowed is None:
            return (None if self.count == len(self) else self.alive), self.count
        bitmap = self._bitmap(self.find(allowed)[1])
        return bitmap, int(np.bitwise_count(bitmap).sum())

    def _bitmap(self, positions: Positions) -> Bitmap:
        bits = np.zeros(len(self), bool)
        bits[positions] = True
        return np.packbits(bits, bitorder="little")

    def _with(self, alive: Bitmap) -> "Part":
        return Part(self.segment, alive, int(np.bitwise_count(alive).sum()))


class _Choice(NamedTuple):
    """The rows of one segment that a search looks at."""

    segment: Segment
    selected: Bitmap | None
    rows: int


@dataclass(frozen=True, eq=False)
class View:
    """One moment of an index. A revision is alive in at most one part.

    `sequence` is the store's operation number that this moment belongs to.
    """

    parts: tuple[Part, ...] = ()
    sequence: int = 0

    def search(self, queries: Vectors, k: int, allowed: Revisions | None) -> list[Hits]:
        """As `Index.search`, in this moment; `queries` are checked."""
        choices = [_Choice(part.segment, *part.selection(allowed)) for part in self.parts]
        choices = [choice for choice in choices if choice.rows]
        if not choices:
            return [(np.empty(0, np.float32), np.empty(0, np.int64)) for _ in queries]
        hits = []
        for row, (scores, revisions) in enumerate(zip(*_nearest(choices, queries, k + SPARE), strict=True)):
            if len(scores) >= k + SPARE and scores[k - 1] == scores[k + SPARE - 1]:
                hits.append(_cut(*_scan(choices, queries[row : row + 1], scores[k - 1]), k))
            else:
                hits.append(_cut(scores, revisions, k))
        return hits


def _nearest(choices: Sequence[_Choice], queries: Vectors, k: int) -> tuple[Exact, Revisions]:
    """The best rows of all segments together, (q, m) each; the first `k` of a row are the best there are."""
    found = []
    for segment, selected, rows in choices:
        scores, positions = segment.nearest(queries, min(k, rows), selected)
        found.append((scores, segment.revisions[positions]))
    return _ranked(*(np.concatenate(columns, axis=1) for columns in zip(*found, strict=True)))


def _scan(choices: Sequence[_Choice], query: Vectors, score: float) -> tuple[Exact, Revisions]:
    """Every row that scores at least `score` after rounding, and perhaps some just below."""
    found = []
    for segment, selected, _ in choices:
        scores, positions = segment.at_least(query, score - 10.0**-DECIMALS, selected)
        found.append((scores, segment.revisions[positions]))
    return _ranked(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _ranked(scores: Scores, revisions: Revisions) -> tuple[Exact, Revisions]:
    """Rounded and sorted along the last axis: best first, then by revision."""
    rounded: Exact = scores.astype(np.float64).round(DECIMALS)
    order = np.lexsort((revisions, -rounded), axis=-1)
    return np.take_along_axis(rounded, order, -1), np.take_along_axis(revisions, order, -1)


def _cut(scores: Exact, revisions: Revisions, k: int) -> Hits:
    """The first `k` and those that tie with the last of them, `TIES` more at most."""
    end = np.count_nonzero(scores >= scores[min(k, len(scores)) - 1])
    kept = slice(min(end, k + TIES))
    return scores[kept].astype(np.float32), revisions[kept]
