"""An immutable state of an index, which is searched without a lock. Start reading at `View.search`.

    View ─ parts: segments, each with its rows that are alive in this state
     └─ search(): the best rows ──▶ documents, each once, by its best row ──▶ all that tie with the last

A row is one passage of a document. If no document is split, each row is a document and grouping is skipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.index.segments import Bitmap, Exact, Positions, Rows, Scores, Segment, Selection, Vectors, copied
from service.store.values import Revisions, RowNames, get_revisions

Rounded: TypeAlias = NDArray[np.float64]  # Rounded to `DECIMALS`, so ties are equal numbers.
Hits: TypeAlias = tuple[Scores, RowNames]

DECIMALS = 6  # Two float32 sums of the same products differ in the seventh decimal.
TIES = 1000
SPARE = 16  # ties with the k-th document that need no second scan
FLOAT16_ERROR = 2.0**-11  # largest error of a unit vector's score in float16
DEAD_SHARE = 0.2  # A part with a larger share of dead rows is copied without them.
FURTHER = 4  # Factor for more rows if the rows of a few documents fill the top.


class _Choice(NamedTuple):
    segment: Segment
    selection: Selection
    is_float16: bool  # A segment of the view is float16, so all segments are scored in float16.

    def nearest(self, queries: Vectors, k: int, *, exact: bool) -> tuple[Scores, RowNames]:
        search = self.segment.scan if exact else self.segment.nearest
        scores, positions = search(queries, min(k, self.selection.rows), self.selection)
        return self._scored(scores, positions, queries[:, None]), self.segment.names[positions]

    def at_least(self, query: Vectors, score: float) -> tuple[Scores, RowNames]:
        """Returns all rows that score at least `score`, and possibly rows that score slightly less."""
        margin = 10.0**-DECIMALS + (FLOAT16_ERROR if self.is_float16 else 0)
        scores, positions = self.segment.at_least(query, score - margin, self.selection)
        return self._scored(scores, positions, query), self.segment.names[positions]

    def _scored(self, scores: Scores, positions: Positions, queries: Vectors) -> Scores:
        if not self.is_float16:
            return scores
        vectors = self.segment.vectors[positions].astype(np.float16, copy=False).astype(np.float32)
        rescored: Scores = np.vecdot(vectors, queries)
        return rescored


@dataclass(frozen=True, eq=False)
class Part:
    """A segment, and a bitmap of the rows that are alive. `count` is the number of alive rows."""

    segment: Segment
    alive: Bitmap
    count: int

    @classmethod
    def all_alive(cls, segment: Segment) -> "Part":
        rows = len(segment.names)
        return cls(segment, np.packbits(np.ones(rows, bool), bitorder="little"), rows)

    def __len__(self) -> int:
        """Returns the number of rows, dead rows included."""
        return len(self.segment.names)

    @property
    def documents(self) -> int:
        heads = self.segment.heads
        return self.count if heads is None else int(np.bitwise_count(self.alive & heads).sum())

    @property
    def nbytes(self) -> int:
        return self.segment.nbytes + self.alive.nbytes

    @property
    def is_wasteful(self) -> bool:
        return self.count < (1 - DEAD_SHARE) * len(self)

    def rows(self) -> Rows:
        positions = np.flatnonzero(np.unpackbits(self.alive, count=len(self), bitorder="little"))
        return Rows(self.segment.names[positions], self.segment.vectors, positions, self.segment.labels)

    def drawn(self, rng: np.random.Generator, count: int) -> RowNames:
        """Draws `count` random rows. Returns the names of the drawn rows that are alive."""
        positions = rng.integers(len(self), size=count)
        alive = self.alive[positions >> 3] >> (positions & 7).astype(np.uint8) & 1
        names: RowNames = self.segment.names[positions[alive.astype(bool)]]
        return names

    def without(self, positions: Positions) -> "Part":
        """Returns a part in which the rows at `positions` are dead."""
        return self._with(self.alive & ~self._bitmap(positions)) if len(positions) else self

    def without_names(self, names: RowNames) -> "Part":
        if not len(names) or not len(self):
            return self
        places = self.segment.newest(names)
        return self.without(places[self.segment.names[places] == names])

    def with_rows(self, rows: Rows) -> "Part":
        """Returns a part with the rows of this part that are alive, and with `rows`.

        All rows are copied to a new buffer in three cases: the old buffer has no room for `rows`, it has many
        dead rows, or it is not `Exact`.
        """
        added, segment = len(rows.names), self.segment
        if self.is_wasteful or not isinstance(segment, Exact) or segment.room < added:
            return Part.all_alive(copied(segment.vectors.shape[1], [self.rows(), rows]))
        if not added:
            return self
        alive = np.ones(len(self) + added, bool)
        alive[: len(self)] = np.unpackbits(self.alive, count=len(self), bitorder="little")
        return Part(segment.appended(rows), np.packbits(alive, bitorder="little"), self.count + added)

    def died_until(self, later: "Part | None") -> RowNames:
        """Returns the names of the rows that are alive in this part, but dead in its later state `later`.

        `later` is None if the whole part is gone.
        """
        bits = self.alive if later is None else self.alive & ~later.alive
        return self._with(bits).rows().names

    def selection(self, allowed: Revisions | None, *, heads_only: bool = False) -> Selection:
        """Selects alive rows.

        Args:
            allowed: Revisions whose rows are selected; None for all.
            heads_only: Whether to select only first passages.
        """
        heads = self.segment.heads if heads_only else None
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


@dataclass(frozen=True, eq=False)
class View:
    """A state of an index. A row is alive in at most one part.

    Attributes:
        settled: Parts that get no more rows: the base, and parts that are not merged yet.
        tail: The part that gets new rows.
        sequence: The store's operation number for this state.
    """

    settled: tuple[Part, ...]
    tail: Part
    sequence: int = 0

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts that have alive rows."""
        return tuple(part for part in (*self.settled, self.tail) if part.count)

    @cached_property
    def is_float16(self) -> bool:
        """Whether a part has float16 vectors. The search of such a part is approximate."""
        return any(part.segment.is_float16 for part in self.parts)

    @cached_property
    def rows(self) -> int:
        return sum(part.count for part in self.parts)

    @cached_property
    def documents(self) -> int:
        return sum(part.documents for part in self.parts)

    def sample(self, count: int) -> RowNames:
        """Returns the names of random rows. Draws `count` rows and leaves out the dead ones."""
        rng = np.random.default_rng()
        lengths = np.array([len(part) for part in self.parts])
        drawn = rng.multinomial(count, lengths / lengths.sum()) if len(lengths) else lengths
        return np.concatenate(
            [np.empty(0, np.int64), *(part.drawn(rng, n) for part, n in zip(self.parts, drawn, strict=True))]
        )

    def search(
        self,
        queries: Vectors,
        k: int,
        allowed: Revisions | None,
        *,
        exact: bool = False,
        heads_only: bool = False,
    ) -> list[Hits]:
        """Searches as `Index.search` does, for validated queries. With `exact`, every row is compared."""
        choices = [
            _Choice(part.segment, part.selection(allowed, heads_only=heads_only), self.is_float16)
            for part in self.parts
        ]
        choices = [choice for choice in choices if choice.selection.rows]
        if not choices:
            return [(np.empty(0, np.float32), np.empty(0, np.int64)) for _ in queries]
        rows = (k + SPARE) * -(-self.rows // max(1, self.documents))
        found = zip(*_nearest(choices, queries, rows, exact=exact), strict=True)
        return [
            _documents(choices, queries[at : at + 1], k, rows, *row, exact=exact)
            for at, row in enumerate(found)
        ]


def _documents(
    choices: Sequence[_Choice],
    query: Vectors,
    k: int,
    rows: int,
    scores: Rounded,
    names: RowNames,
    *,
    exact: bool,
) -> Hits:
    """Returns the best `k` documents for one query, and documents that tie with the last one.

    Args:
        choices: The parts to search.
        query: The query, shape (1, d).
        k: Number of documents.
        rows: The first `rows` scores are those of the best rows. Between later ones, rows may be missing.
        scores: Scores of the rows found so far, best first.
        names: Names of these rows.
        exact: Whether to compare every row.
    """
    every = sum(choice.selection.rows for choice in choices)
    while True:
        best = _best_rows(choices, names)
        if rows >= every:
            return cut(scores[best], names[best], k)
        if len(best) >= k:
            last = scores[best[k - 1]]
            if last > scores[rows - 1]:
                return cut(scores[best], names[best], k)
            scores, names = _scan(choices, query, last)
            best = _best_rows(choices, names)
            return cut(scores[best], names[best], k)
        rows *= FURTHER
        scores, names = (row[0] for row in _nearest(choices, query, rows, exact=exact))


def _best_rows(choices: Sequence[_Choice], names: RowNames) -> Positions:
    """Returns the position of each document's first row in `names`, in ascending order."""
    if all(choice.segment.heads is None for choice in choices):  # Each document has one row.
        return np.arange(len(names))
    return np.sort(np.unique(get_revisions(names), return_index=True)[1])


def _nearest(
    choices: Sequence[_Choice], queries: Vectors, k: int, *, exact: bool
) -> tuple[Rounded, RowNames]:
    """Returns scores and names of rows, shape (q, m) each. The first `k` of each query are the best."""
    found = [choice.nearest(queries, k, exact=exact) for choice in choices]
    return _ranked(*(np.concatenate(columns, axis=1) for columns in zip(*found, strict=True)))


def _scan(choices: Sequence[_Choice], query: Vectors, score: float) -> tuple[Rounded, RowNames]:
    """Returns all rows whose rounded score is at least `score`, and possibly rows that score less."""
    found = [choice.at_least(query, score) for choice in choices]
    return _ranked(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _ranked(scores: Scores, names: RowNames) -> tuple[Rounded, RowNames]:
    rounded: Rounded = scores.astype(np.float64).round(DECIMALS)
    order = np.lexsort((names, -rounded), axis=-1)
    return np.take_along_axis(rounded, order, -1), np.take_along_axis(names, order, -1)


def cut(scores: Rounded | Scores, names: RowNames, k: int) -> Hits:
    """Returns the first `k` entries of a ranking, and up to `TIES` more that tie with the last one."""
    end = np.count_nonzero(scores >= scores[min(k, len(scores)) - 1])
    kept = slice(min(end, k + TIES))
    return scores[kept].astype(np.float32), names[kept]
