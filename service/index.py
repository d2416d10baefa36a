"""FAISS over the vectors of one model version: exact, and searched while it changes.

    apply() ──▶ new view ──▶ one reference is replaced ◀── search() takes it once, and no lock
                   ▲
    merging ───────┘   one niced thread, at most: equal segments become one, dead rows go

FAISS crashes when one thread searches an index that another adds to (it did in four runs of four), and a lock
around both would let every write wait for every search. So nothing that is searched is ever changed:
vectors lie in segments that are written once, a removal makes a new bitmap of living rows, and each step
ends in a new `View` (service/segments.py). New rows join the few small segments in one new one; segments of
like size are merged, `FAN` at a time, so that their number grows with the logarithm of the rows.

Rows have int64 names, the revisions of the document store: made once, never used again for another text.

Not here: documents, their ids and metadata (the store has them, and can always make this index again),
files (a `View` never changes, so a snapshot can be written from one at leisure), anything approximate, and
a memory of removed revisions: who adds must know that the revision still lives.
"""

import contextlib
import logging
import math
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Self

import faiss
import numpy as np
from numpy.typing import ArrayLike

from service.segments import Cancelled, Hits, Part, Revisions, Rows, Segment, Vectors, View, build

log = logging.getLogger(__name__)

SMALL_ROWS = (
    1024  # a segment below this is written anew by each apply(): half a millisecond at 384 dimensions
)
FAN = 4  # segments of one size class that make one of the next
DEAD_SHARE = 0.2  # a segment with more dead rows than this is written anew
NICE = 10


class Index:
    """Vectors of `dimension` numbers by revision; of unit length, so that scores are cosines."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._view = View()
        self._writing = threading.Lock()
        self._merger: threading.Thread | None = None
        self._closing = threading.Event()

    @classmethod
    def load(cls, dimension: int, batches: Iterable[tuple[ArrayLike, ArrayLike]], sequence: int = 0) -> Self:
        """An index of all rows of `batches`, as (revisions, vectors) each. Fastest in the order of revisions.

        `sequence` is the store's operation number at that moment.

        Raises:
            ValueError: as `apply`.

        """
        index = cls(dimension)
        base = faiss.IndexFlatIP(dimension)
        names = [np.empty(0, np.int64)]
        for batch in batches:
            rows = index._checked(*batch)
            names.append(rows.revisions)
            base.add(rows.vectors)
        revisions = np.concatenate(names)
        parts = (Part.whole(_in_order(dimension, revisions, base)),) if len(revisions) else ()
        index._view = View(parts, sequence)
        return index

    def __len__(self) -> int:
        """Living rows."""
        return sum(part.count for part in self._view.parts)

    @property
    def view(self) -> View:
        """The present moment, to be searched later; it never changes."""
        return self._view

    @property
    def nbytes(self) -> int:
        """Memory of the vectors and their names, dead rows included, in bytes."""
        return sum(part.nbytes for part in self._view.parts)

    @property
    def segments(self) -> int:
        """How many FAISS indexes a search goes through."""
        return len(self._view.parts)

    def revisions(self) -> Revisions:
        """The living rows' names, sorted."""
        return np.sort(
            np.concatenate([np.empty(0, np.int64), *(part.rows().revisions for part in self._view.parts)])
        )

    def vectors(self, revisions: ArrayLike) -> Vectors:
        """A copy of the vectors of `revisions`, (n, dimension), in that order.

        Raises:
            KeyError: one of them is not here.

        """
        wanted = np.asarray(revisions, np.int64)
        vectors = np.empty((len(wanted), self.dimension), np.float32)
        missing = np.ones(len(wanted), bool)
        for part in self._view.parts:
            found, positions = part.find(wanted)
            vectors[found] = part.segment.vectors[positions]
            missing &= ~found
        if missing.any():
            raise KeyError(f"The index has no vector of revision {wanted[missing][0]}.")
        return vectors

    def search(
        self, queries: ArrayLike, k: int, allowed: ArrayLike | None = None, view: View | None = None
    ) -> list[Hits]:
        """The best `k` rows for each of `queries` (q, dimension), as (scores float32, revisions int64).

        Best first, then by revision. Scores are rounded to 1e-6, so rows that tie have equal scores. A caller
        may break ties its own way: the answer holds *every* row that ties with the k-th, so it may be longer
        than `k`, by up to `segments.TIES`. It is shorter only when fewer rows live (and are allowed).

        With `allowed`, rows of other revisions are not seen. With `view`, that moment is searched.

        Raises:
            ValueError: `k` below 1, another dimension, or a number that is not finite.

        """
        if k < 1:
            raise ValueError(f"k is {k}; it must be at least 1.")
        # FAISS counts threads per calling thread, and a new one would take every core from its neighbours.
        faiss.omp_set_num_threads(1)
        among = None if allowed is None else np.unique(np.asarray(allowed, np.int64))
        return (view or self._view).search(self._matrix(queries, "query"), k, among)

    def apply(
        self,
        add: tuple[ArrayLike, ArrayLike] | None = None,
        remove: Sequence[int] | Revisions = (),
        sequence: int = 0,
    ) -> None:
        """Add and remove rows in one step: a search sees all of it or nothing.

        `sequence` is the store's operation number after the step; the larger of it and the last one counts.

        A revision that is here already is replaced. One that is in both is removed; removing one that is not
        here does nothing. `add` is revisions (n,) and their vectors (n, dimension), which are copied.

        Raises:
            ValueError: another dimension, a number that is not finite, or a revision twice. Nothing changed.

        """
        gone = np.unique(np.asarray(remove, np.int64))
        fresh = None if add is None else self._checked(*add)
        if fresh is not None:
            kept = ~np.isin(fresh.revisions, gone)
            fresh = Rows(fresh.revisions[kept], fresh.vectors, fresh.positions[kept])
            gone = np.concatenate([gone, fresh.revisions])
        with self._writing:
            parts = _without(self._view.parts, gone)
            if fresh is not None and len(fresh.revisions):
                small = [part.rows() for part in parts if len(part) < SMALL_ROWS]
                large = [part for part in parts if len(part) >= SMALL_ROWS]
                parts = [*large, Part.whole(build(self.dimension, [*small, fresh]))]
            self._view = View(tuple(parts), max(sequence, self._view.sequence))
            self._start_merging()

    def close(self) -> None:
        """Stop merging. What is stored can still be searched, and changed at a price."""
        self._closing.set()
        with self._writing:
            merger = self._merger
        if merger is not None:
            merger.join()

    def _checked(self, revisions: ArrayLike, vectors: ArrayLike) -> Rows:
        names = np.asarray(revisions, np.int64)
        matrix = self._matrix(vectors, "vector")
        if names.shape != (len(matrix),):
            raise ValueError(
                f"{len(matrix)} vectors came with revisions of shape {names.shape}; give one each."
            )
        _refuse_twice(names)
        return Rows(names, matrix, np.arange(len(names)))

    def _matrix(self, vectors: ArrayLike, noun: str) -> Vectors:
        matrix = np.ascontiguousarray(vectors, np.float32)
        if matrix.ndim != 2 or matrix.shape[1] != self.dimension:
            raise ValueError(f"Expected an array of shape (n, {self.dimension}), got {matrix.shape}.")
        # The square of a float32 is infinite from 2e19 on, so no score can be either.
        finite = np.isfinite(np.vecdot(matrix, matrix))
        if not finite.all():
            raise ValueError(f"The {noun} at position {np.argmin(finite)} has a number that is not finite.")
        return matrix

    def _start_merging(self) -> None:
        """With `_writing` held: see that someone merges when there is something to merge."""
        if self._merger is None and not self._closing.is_set() and _due(self._view.parts):
            self._merger = threading.Thread(target=self._keep_merging, name="index-merge", daemon=True)
            self._merger.start()

    def _keep_merging(self) -> None:
        _be_nice()
        try:
            while True:
                with self._writing:
                    sources = _due(self._view.parts)
                    if self._closing.is_set() or not sources:
                        self._merger = None
                        return
                merged = self._merge(sources)
                with self._writing:
                    self._publish(sources, merged)
        except Exception as error:  # a search needs no merge; the next write tries again
            if not isinstance(error, Cancelled):
                log.exception("Merging index segments failed; searches go on over more of them")
            with self._writing:
                self._merger = None

    def _merge(self, sources: Sequence[Part]) -> Segment:
        return build(self.dimension, [part.rows() for part in sources], self._closing.is_set)

    def _publish(self, sources: Sequence[Part], merged: Segment) -> None:
        """Put `merged` in the place of `sources`, without the rows that died while it was made."""
        now = {part.segment: part for part in self._view.parts}
        died = [source.died_until(now.pop(source.segment, None)) for source in sources]
        whole = Part.whole(merged)
        parts = (*now.values(), *_without([whole], np.concatenate(died)))
        self._view = View(parts, self._view.sequence)


def _in_order(dimension: int, revisions: Revisions, index: faiss.IndexFlatIP) -> Segment:
    """The rows of `index` as a segment, written anew when they are not in the order of their revisions."""
    if (np.diff(revisions) > 0).all():
        return Segment(revisions, index)
    _refuse_twice(revisions)
    unsorted = Segment(revisions, index)
    return build(dimension, [Rows(revisions, unsorted.vectors, np.arange(len(revisions)))])


def _refuse_twice(revisions: Revisions) -> None:
    names, counts = np.unique(revisions, return_counts=True)
    if len(names) < len(revisions):
        raise ValueError(f"Revision {names[counts > 1][0]} came twice; a revision has one vector.")


def _without(parts: Iterable[Part], revisions: Revisions) -> list[Part]:
    """`parts` with `revisions` dead, those that have no living row left out."""
    if not len(revisions):
        return list(parts)
    kept = (part.without(part.find(revisions)[1]) for part in parts)
    return [part for part in kept if part.count]


def _due(parts: Iterable[Part]) -> list[Part]:
    """The segments to merge into one next; none when all is well. Small ones are left to `apply`."""
    tiers: defaultdict[int, list[Part]] = defaultdict(list)
    for part in parts:
        if len(part) >= SMALL_ROWS:
            tiers[int(math.log(len(part) / SMALL_ROWS, FAN))].append(part)
    for _, tier in sorted(tiers.items()):
        if len(tier) >= FAN:
            return tier
        for part in tier:
            if part.count < (1 - DEAD_SHARE) * len(part):
                return [part]
    return []


def _be_nice() -> None:
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
