"""A moment of an index, searched without a lock.

    View ─ parts, each a segment and the rows of it that are alive in that moment
     └─ search(): the best rows ──▶ documents, each once, by its best row ──▶ all that tie with the last

A row is one passage of a document. If no document is split, each row is a document and grouping is skipped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.index.exact import Exact, copied
from service.index.segments import Bitmap, Positions, Rows, Scores, Segment, Selection, Vectors
from service.store.values import Revisions, RowNames, revisions_of

Rounded: TypeAlias = NDArray[np.float64]  # rounded to `DECIMALS`, so that equal means tied
Hits: TypeAlias = tuple[Scores, RowNames]

DECIMALS = 6  # two float32 sums of one product differ in the seventh
TIES = 1000
SPARE = 16  # ties with the k-th up to this number are found without a second scan
FLOAT16_ERROR = 2.0**-11  # of a unit vector's score, when it is stored as float16
DEAD_SHARE = 0.2  # a part with more dead rows than this is copied without them
FURTHER = 4  # times as many rows, when those of few documents crowd the top


class _Choice(NamedTuple):
    """The rows of one segment that a search looks at."""

    segment: Segment
    selection: Selection
    is_float16: bool  # a segment of the view has such vectors: all are scored as such, by the same sums

    def nearest(self, queries: Vectors, k: int, *, exact: bool) -> tuple[Scores, RowNames]:
        """The nearest rows of the segment, with names."""
        search = self.segment.scan if exact else self.segment.nearest
        scores, positions = search(queries, min(k, self.selection.rows), self.selection)
        return self._scored(scores, positions, queries[:, None]), self.segment.names[positions]

    def at_least(self, query: Vectors, score: float) -> tuple[Scores, RowNames]:
        """The rows of the segment that score as much, with names; some may score a little less."""
        margin = 10.0**-DECIMALS + (FLOAT16_ERROR if self.is_float16 else 0)
        scores, positions = self.segment.at_least(query, score - margin, self.selection)
        return self._scored(scores, positions, query), self.segment.names[positions]

    def _scored(self, scores: Scores, positions: Positions, queries: Vectors) -> Scores:
        if not self.is_float16:
            return scores
        vectors = self.segment.vectors[positions].astype(np.float16, copy=False).astype(np.float32)
        again: Scores = np.vecdot(vectors, queries)
        return again


@dataclass(frozen=True, eq=False)
class Part:
    """A segment, and which of its rows are alive."""

    segment: Segment
    alive: Bitmap
    count: int  # of alive rows

    @classmethod
    def all_alive(cls, segment: Segment) -> "Part":
        rows = len(segment.names)
        return cls(segment, np.packbits(np.ones(rows, bool), bitorder="little"), rows)

    def __len__(self) -> int:
        """Rows, dead ones included."""
        return len(self.segment.names)

    @property
    def documents(self) -> int:
        """Documents whose first passage is alive here."""
        heads = self.segment.heads
        return self.count if heads is None else int(np.bitwise_count(self.alive & heads).sum())

    @property
    def nbytes(self) -> int:
        return self.segment.nbytes + self.alive.nbytes

    @property
    def is_wasteful(self) -> bool:
        """Too many rows are dead."""
        return self.count < (1 - DEAD_SHARE) * len(self)

    def rows(self) -> Rows:
        """The alive rows."""
        positions = np.flatnonzero(np.unpackbits(self.alive, count=len(self), bitorder="little"))
        return Rows(self.segment.names[positions], self.segment.vectors, positions, self.segment.labels)

    def drawn(self, rng: np.random.Generator, count: int) -> RowNames:
        """The names of the rows that are alive among `count` rows."""
        positions = rng.integers(len(self), size=count)
        alive = self.alive[positions >> 3] >> (positions & 7).astype(np.uint8) & 1
        names: RowNames = self.segment.names[positions[alive.astype(bool)]]
        return names

    def without(self, positions: Positions) -> "Part":
        """The same segment with the rows at `positions` dead."""
        return self._with(self.alive & ~self._bitmap(positions)) if len(positions) else self

    def without_names(self, names: RowNames) -> "Part":
        """The same segment with the rows of these names dead."""
        if not len(names) or not len(self):
            return self
        places = self.segment.newest(names)
        return self.without(places[self.segment.names[places] == names])

    def with_rows(self, rows: Rows) -> "Part":
        """The alive rows and `rows`: in the same buffer while it has room and few dead rows, else copied."""
        added, segment = len(rows.names), self.segment
        if self.is_wasteful or not isinstance(segment, Exact) or segment.room < added:
            return Part.all_alive(copied(segment.vectors.shape[1], [self.rows(), rows]))
        if not added:
            return self
        alive = np.ones(len(self) + added, bool)
        alive[: len(self)] = np.unpackbits(self.alive, count=len(self), bitorder="little")
        return Part(segment.appended(rows), np.packbits(alive, bitorder="little"), self.count + added)

    def died_until(self, later: "Part | None") -> RowNames:
        """Rows alive here and dead in `later`, a later state of this part (None: wholly gone)."""
        bits = self.alive if later is None else self.alive & ~later.alive
        return self._with(bits).rows().names

    def selection(self, allowed: Revisions | None, *, heads_only: bool = False) -> Selection:
        """The alive rows, those of `allowed` when given; with `heads_only`, the first passages alone."""
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
    """A moment of an index. A row is alive in at most one part.

    settled: parts that take no more rows: the base, and what waits to be merged into the next one.
    tail: the part that later rows go to. sequence: the store's operation number of this moment.
    """

    settled: tuple[Part, ...]
    tail: Part
    sequence: int = 0

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All that have a living row."""
        return tuple(part for part in (*self.settled, self.tail) if part.count)

    @cached_property
    def is_float16(self) -> bool:
        """A part has float16 vectors, and its search is approximate."""
        return any(part.segment.is_float16 for part in self.parts)

    @cached_property
    def rows(self) -> int:
        """Living rows."""
        return sum(part.count for part in self.parts)

    @cached_property
    def documents(self) -> int:
        """Living documents; every one has a first passage."""
        return sum(part.documents for part in self.parts)

    def sample(self, count: int) -> RowNames:
        """Rows drawn at random, `count` of them where few are dead."""
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
        """Answer `Index.search` in this moment; `queries` are checked. With `exact`, every row is scored."""
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
    """The best `k` documents for one query (1, d), of which the best `rows` rows are at hand."""
    every = sum(choice.selection.rows for choice in choices)
    while True:
        best = _best_rows(choices, names)
        if rows >= every:  # these are all
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
    """The places in `names`, best first, where each document comes first."""
    if all(choice.segment.heads is None for choice in choices):  # a document has one row
        return np.arange(len(names))
    return np.sort(np.unique(revisions_of(names), return_index=True)[1])


def _nearest(
    choices: Sequence[_Choice], queries: Vectors, k: int, *, exact: bool
) -> tuple[Rounded, RowNames]:
    """The best rows of all segments together, (q, m) each; the first `k` of a row are the best there are."""
    found = [choice.nearest(queries, k, exact=exact) for choice in choices]
    return _ranked(*(np.concatenate(columns, axis=1) for columns in zip(*found, strict=True)))


def _scan(choices: Sequence[_Choice], query: Vectors, score: float) -> tuple[Rounded, RowNames]:
    """Every row that scores at least `score` after rounding, and perhaps some just below."""
    found = [choice.at_least(query, score) for choice in choices]
    return _ranked(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _ranked(scores: Scores, names: RowNames) -> tuple[Rounded, RowNames]:
    """Rounded and sorted along the last axis: best first, then by name."""
    rounded: Rounded = scores.astype(np.float64).round(DECIMALS)
    order = np.lexsort((names, -rounded), axis=-1)
    return np.take_along_axis(rounded, order, -1), np.take_along_axis(names, order, -1)


def cut(scores: Rounded | Scores, names: RowNames, k: int) -> Hits:
    """The first `k` of a ranking and those that tie with the last of them, `TIES` more at most."""
    end = np.count_nonzero(scores >= scores[min(k, len(scores)) - 1])
    kept = slice(min(end, k + TIES))
    return scores[kept].astype(np.float32), names[kept]
