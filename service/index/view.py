"""One moment of an index, searched without a lock.

    View ─ parts (segments.py), each with the rows that are alive in that moment
     └─ search(): the best rows ──▶ documents, each once, by its best row ──▶ all that tie with the last

A row is one passage of a document. Documents without passages pay nothing for them: a row is a document then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.index.segments import Part, Positions, Scores, Segment, Selection, Vectors
from service.store.ids import Revisions, RowNames, revisions_of

Exact: TypeAlias = NDArray[np.float64]  # rounded to `DECIMALS`, so that equal means tied
Hits: TypeAlias = tuple[Scores, RowNames]

DECIMALS = 6  # two float32 sums of one product differ in the seventh
TIES = 1000
SPARE = 16  # ties with the k-th up to this number are found without a second scan
HALF_ERROR = 2.0**-11  # of a unit vector's score, when it is stored as float16
FURTHER = 4  # times as many rows, when those of few documents crowd the top


class _Choice(NamedTuple):
    """The rows of one segment that a search looks at."""

    segment: Segment
    selection: Selection
    half: bool  # a segment of the view has float16 vectors: all are scored as if they were, by the same sums

    def nearest(self, queries: Vectors, k: int, *, exact: bool) -> tuple[Scores, RowNames]:
        """As the segment's, with names."""
        search = self.segment.scan if exact else self.segment.nearest
        scores, positions = search(queries, min(k, self.selection.rows), self.selection)
        return self._scored(scores, positions, queries[:, None]), self.segment.names[positions]

    def at_least(self, query: Vectors, score: float) -> tuple[Scores, RowNames]:
        """As the segment's, with names; some may score a little less."""
        margin = 10.0**-DECIMALS + (HALF_ERROR if self.half else 0)
        scores, positions = self.segment.at_least(query, score - margin, self.selection)
        return self._scored(scores, positions, query), self.segment.names[positions]

    def _scored(self, scores: Scores, positions: Positions, queries: Vectors) -> Scores:
        if not self.half:
            return scores
        vectors = self.segment.vectors[positions].astype(np.float16, copy=False).astype(np.float32)
        again: Scores = np.vecdot(vectors, queries)
        return again


@dataclass(frozen=True, eq=False)
class View:
    """One moment of an index. A row is alive in at most one part.

    `sequence` is the store's operation number that this moment belongs to.
    """

    parts: tuple[Part, ...] = ()
    sequence: int = 0

    @property
    def rows(self) -> int:
        """Living rows."""
        return sum(part.count for part in self.parts)

    @property
    def documents(self) -> int:
        """Living documents; every one has a first passage."""
        return sum(part.documents for part in self.parts)

    def search(
        self,
        queries: Vectors,
        k: int,
        allowed: Revisions | None,
        *,
        exact: bool = False,
        firsts: bool = False,
    ) -> list[Hits]:
        """As `Index.search`, in this moment; `queries` are checked. With `exact`, every row is scored."""
        half = any(part.segment.half for part in self.parts)
        choices = [_Choice(part.segment, part.selection(allowed, firsts=firsts), half) for part in self.parts]
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
    scores: Exact,
    names: RowNames,
    *,
    exact: bool,
) -> Hits:
    """The best `k` documents for one query (1, d), of which the best `rows` rows are at hand."""
    every = sum(choice.selection.rows for choice in choices)
    while True:
        best = _best_rows(choices, names)
        if rows >= every:  # these are all
            return _cut(scores[best], names[best], k)
        if len(best) >= k:
            last = scores[best[k - 1]]
            if last > scores[rows - 1]:
                return _cut(scores[best], names[best], k)
            scores, names = _scan(choices, query, last)
            best = _best_rows(choices, names)
            return _cut(scores[best], names[best], k)
        rows *= FURTHER
        scores, names = (row[0] for row in _nearest(choices, query, rows, exact=exact))


def _best_rows(choices: Sequence[_Choice], names: RowNames) -> Positions:
    """Where in `names`, best first, each document comes first."""
    if all(choice.segment.firsts is None for choice in choices):  # a document has one row
        return np.arange(len(names))
    return np.sort(np.unique(revisions_of(names), return_index=True)[1])


def _nearest(choices: Sequence[_Choice], queries: Vectors, k: int, *, exact: bool) -> tuple[Exact, RowNames]:
    """The best rows of all segments together, (q, m) each; the first `k` of a row are the best there are."""
    found = [choice.nearest(queries, k, exact=exact) for choice in choices]
    return _ranked(*(np.concatenate(columns, axis=1) for columns in zip(*found, strict=True)))


def _scan(choices: Sequence[_Choice], query: Vectors, score: float) -> tuple[Exact, RowNames]:
    """Every row that scores at least `score` after rounding, and perhaps some just below."""
    found = [choice.at_least(query, score) for choice in choices]
    return _ranked(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _ranked(scores: Scores, names: RowNames) -> tuple[Exact, RowNames]:
    """Rounded and sorted along the last axis: best first, then by name."""
    rounded: Exact = scores.astype(np.float64).round(DECIMALS)
    order = np.lexsort((names, -rounded), axis=-1)
    return np.take_along_axis(rounded, order, -1), np.take_along_axis(names, order, -1)


def _cut(scores: Exact, names: RowNames, k: int) -> Hits:
    """The first `k` and those that tie with the last of them, `TIES` more at most."""
    end = np.count_nonzero(scores >= scores[min(k, len(scores)) - 1])
    kept = slice(min(end, k + TIES))
    return scores[kept].astype(np.float32), names[kept]
