"""FAISS over the vectors of one model version, searched while it changes.

    apply() ──▶ new view ──▶ one reference is replaced ◀── search() takes it once, and no lock
                   ▲
    merging ───────┘   one niced thread, at most: several segments become one, dead rows go

FAISS crashes when one thread searches an index that another adds to (it did in four runs of four), and a lock
around both would let every write wait for every search. So nothing that is searched is ever changed:
vectors lie in segments that are written once, a removal makes a new bitmap of living rows, and each step
ends in a new `View` (view.py). New rows join the few small segments in one new one; segments are
merged in the background (merge_policy.py), and the largest is searched approximately (ivf.py).

A row is one passage of a document; its int64 id (service/store/ids.py) holds the revision, which the document
store makes once and never uses again for another text. What is searched for is documents.

Not here: documents, their ids and metadata (the store has them, and can always make this index again),
files (a `View` never changes, so a snapshot can be written from one at leisure), and a memory of removed
revisions: who adds must know that the revision still lives.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Self

import faiss
import numpy as np
from numpy.typing import ArrayLike

from service.index import ivf, merge_policy, validation
from service.index import recall as recalls
from service.index.gpu import CPU
from service.index.ivf_snapshots import IvfSnapshots
from service.index.niceness import be_nice
from service.index.segments import Cancelled, Exact, Part, Rows, Segment, Vectors, build
from service.index.view import Hits, View
from service.store.ids import Revisions, RowNames, revisions_of

log = logging.getLogger(__name__)

EXACT, APPROXIMATE = "exact", "IVF,SQ8"


class Index:
    """Vectors of `dimension` numbers by name; of unit length, so that scores are cosines."""

    def __init__(self, dimension: int, ivf_snapshots: IvfSnapshots | None = None) -> None:
        """bases: where the lists of a large segment are kept, on the disk and on a GPU."""
        self.dimension = dimension
        self._ivf_snapshots = ivf_snapshots
        self._view = View()
        self._writing = threading.Lock()
        self._merger: threading.Thread | None = None
        self._recall = recalls.Watch()
        self._closing = threading.Event()

    @classmethod
    def load(
        cls,
        dimension: int,
        batches: Iterable[tuple[ArrayLike, ArrayLike]],
        sequence: int = 0,
        ivf_snapshots: IvfSnapshots | None = None,
    ) -> Self:
        """An index of all rows of `batches`, as (names, vectors) each. Fastest in the order of names.

        `sequence` is the store's operation number at that moment.

        Raises:
            ValueError: as `apply`.

        """
        index = cls(dimension, ivf_snapshots)
        base = faiss.IndexFlatIP(dimension)
        named = [np.empty(0, np.int64)]
        for batch in batches:
            rows, matrix = validation.rows(*batch, dimension)
            named.append(rows)
            base.add(matrix)
        names = np.concatenate(named)
        every = _in_order(dimension, names, base)
        index._view = View((Part.whole(index._known(every, sequence)),) if len(names) else (), sequence)
        with index._writing:
            index._start_merging()
        return index

    def _known(self, rows: Exact, sequence: int) -> Segment:
        """`rows` in the lists that were kept, where there are some that suit them; else as they are."""
        if self._ivf_snapshots is None or len(rows.names) <= merge_policy.BASE_ROWS:
            return rows
        known = self._ivf_snapshots.read(sequence)
        if known is None or not known.training.suits(len(rows.names)):
            return rows
        labelled = Rows(rows.names, rows.vectors, np.arange(len(rows.names)), known.labels_of(rows.names))
        base = ivf.build(self.dimension, [labelled], known.training, self._closing.is_set)
        self._ivf_snapshots.place(base)
        return base

    @property
    def documents(self) -> int:
        """Living documents."""
        return self._view.documents

    @property
    def rows(self) -> int:
        """Living rows: passages of all documents."""
        return self._view.rows

    @property
    def view(self) -> View:
        """The present moment, to be searched later; it never changes."""
        return self._view

    @property
    def nbytes(self) -> int:
        """Memory of the vectors and their names, dead rows included, in bytes."""
        return sum(part.nbytes for part in self._view.parts)

    @property
    def kind(self) -> str:
        """`exact`, or FAISS's name for the largest segment, when that is searched approximately."""
        return APPROXIMATE if any(part.segment.half for part in self._view.parts) else EXACT

    @property
    def device(self) -> str:
        """Where the base is searched: `cpu`, or the name of a GPU."""
        ivf_snapshots = [part.segment for part in self._view.parts if isinstance(part.segment, ivf.Clustered)]
        return ivf_snapshots[0].device if ivf_snapshots else CPU

    @property
    def segments(self) -> int:
        """How many FAISS indexes a search goes through."""
        return len(self._view.parts)

    def revisions(self) -> Revisions:
        """Of the living documents, sorted."""
        names = np.concatenate([np.empty(0, np.int64), *(part.rows().names for part in self._view.parts)])
        return np.unique(revisions_of(names))

    def vectors(self, rows: ArrayLike) -> Vectors:
        """A copy of the vectors of the rows of these names, (n, dimension), in that order.

        Raises:
            KeyError: one of them is not here.

        """
        wanted = np.asarray(rows, np.int64)
        vectors = np.empty((len(wanted), self.dimension), np.float32)
        missing = np.ones(len(wanted), bool)
        for part in self._view.parts:
            found, positions = part.find(wanted)
            vectors[found] = part.segment.vectors[positions]
            missing &= ~found
        if missing.any():
            raise KeyError(f"The index has no vector of {validation.in_words(wanted[missing])}.")
        return vectors

    def search(
        self,
        queries: ArrayLike,
        k: int,
        allowed: ArrayLike | None = None,
        view: View | None = None,
        *,
        firsts: bool = False,
    ) -> list[Hits]:
        """The best `k` documents for each of `queries` (q, dimension), as (scores float32, names int64).

        A document is there once, as its best row. Best first, then by revision. Scores are rounded to 1e-6,
        so documents that tie have equal scores. A caller may break ties its own way: the answer holds *every*
        document that ties with the k-th, so it may be longer than `k`, by up to `view.TIES`. It is shorter
        only when fewer documents live (and are allowed).

        With `allowed`, only documents of these revisions are seen. With `view`, that moment is searched. With
        `firsts`, a document is seen by its first passage alone.

        Raises:
            ValueError: `k` below 1, another dimension, or a number that is not finite.

        """
        if k < 1:
            raise ValueError(f"k is {k}; it must be at least 1.")
        # FAISS counts threads per calling thread, and a new one would take every core from its neighbours.
        faiss.omp_set_num_threads(1)
        among = None if allowed is None else np.asarray(allowed, np.int64)
        matrix = validation.matrix(queries, self.dimension, "query")
        self._recall.remember(matrix)
        if self._recall_due() and self._writing.acquire(blocking=False):
            try:
                self._start_merging()
            finally:
                self._writing.release()
        return (view or self._view).search(matrix, k, among, firsts=firsts)

    def recall(self, queries: ArrayLike, k: int = recalls.K) -> float:
        """Of the `k` nearest documents of `queries` (q, dimension), the share that `search` finds.

        Raises:
            ValueError: as `search`.

        """
        faiss.omp_set_num_threads(1)
        return recalls.recall(self._view, validation.matrix(queries, self.dimension, "query"), k)

    @property
    def measured(self) -> recalls.Measured | None:
        """Recall of the latest real queries; None while the index is exact, or nothing was measured."""
        return self._recall.measured

    def apply(
        self,
        add: tuple[ArrayLike, ArrayLike] | None = None,
        remove: Sequence[int] | Revisions = (),
        sequence: int = 0,
    ) -> None:
        """Add rows and remove documents in one step: a search sees all of it or nothing.

        `sequence` is the store's operation number after the step; the larger of it and the last one counts.

        `add` is names of rows (n,) and their vectors (n, dimension), which are copied. A row that is here
        already is replaced. `remove` is revisions, of which every row goes, those in `add` too; removing one
        that is not here does nothing.

        Raises:
            ValueError: another dimension, a number that is not finite, or a row twice. Nothing changed.

        """
        removed = np.unique(np.asarray(remove, np.int64))
        fresh = None
        if add is not None:
            names, vectors = validation.rows(*add, self.dimension)
            kept = np.flatnonzero(~np.isin(revisions_of(names), removed))
            fresh = Rows(names[kept], vectors, kept)
        with self._writing:
            parts = _living(part.without(part.segment.positions(removed)) for part in self._view.parts)
            if fresh is not None and len(fresh.names):
                parts = _without(parts, fresh.names)
                large = [part for part in parts if len(part) >= merge_policy.SMALL_ROWS]
                small = [part.rows() for part in parts if len(part) < merge_policy.SMALL_ROWS]
                parts = [*large, Part.whole(build(self.dimension, [*small, fresh]))]
            self._view = View(tuple(parts), max(sequence, self._view.sequence))
            self._start_merging()

    def close(self, *, wait: bool = True) -> None:
        """Stop merging. What is stored can still be searched, and changed at a price."""
        self._closing.set()
        if not wait:
            return
        with self._writing:
            merger = self._merger
        if merger is not None:
            merger.join()

    def _start_merging(self) -> None:
        """With `_writing` held: see that someone merges, or measures, when there is something to do."""
        if self._merger is not None or self._closing.is_set():
            return
        if merge_policy.due(self._view.parts) or self._recall_due():
            self._merger = threading.Thread(target=self._keep_merging, name="index-merge", daemon=True)
            self._merger.start()

    def _keep_merging(self) -> None:
        be_nice()
        try:
            while True:
                with self._writing:
                    sources = merge_policy.due(self._view.parts)
                    if self._closing.is_set() or not (sources or self._recall_due()):
                        self._merger = None
                        return
                if not sources:
                    self._recall.measure(self._view, self._wait)
                    continue
                merged = self._merge(sources)
                with self._writing:
                    self._publish(sources, merged)
                del sources  # what they have on a GPU makes room
                if self._ivf_snapshots is not None and isinstance(merged, ivf.Clustered):
                    self._ivf_snapshots.keep(merged, self._view.sequence)
        except Exception as error:  # a search needs no merge; the next write tries again
            if not isinstance(error, Cancelled):
                log.exception("Merging index segments failed; searches go on over more of them")
            with self._writing:
                self._merger = None

    def _wait(self, seconds: float) -> bool:
        """Whether there is something better to do than to measure, after some seconds."""
        return self._closing.wait(seconds) or bool(merge_policy.due(self._view.parts))

    def _recall_due(self) -> bool:
        return self.kind != EXACT and self._recall.due()

    def _merge(self, sources: Sequence[Part]) -> Segment:
        rows = [part.rows() for part in sources]
        if sum(part.count for part in sources) <= merge_policy.BASE_ROWS:
            return build(self.dimension, rows, self._closing.is_set)
        trained = [part.segment.training for part in sources if isinstance(part.segment, ivf.Clustered)]
        return ivf.build(self.dimension, rows, trained[0] if trained else None, self._closing.is_set)

    def _publish(self, sources: Sequence[Part], merged: Segment) -> None:
        """Put `merged` in the place of `sources`, without the rows that died while it was made."""
        now = {part.segment: part for part in self._view.parts}
        died = [source.died_until(now.pop(source.segment, None)) for source in sources]
        whole = Part.whole(merged)
        parts = (*now.values(), *_without([whole], np.concatenate(died)))
        self._view = View(parts, self._view.sequence)
        if any(segment.half for segment in (merged, *(source.segment for source in sources))):
            self._recall.forget()


def _in_order(dimension: int, names: RowNames, index: faiss.IndexFlatIP) -> Exact:
    """The rows of `index` as a segment, written anew when they are not in the order of their names."""
    if (np.diff(names) > 0).all():
        return Exact(names, index)
    validation.refuse_twice(names)
    unsorted = Exact(names, index)
    return build(dimension, [Rows(names, unsorted.vectors, np.arange(len(names)))])


def _without(parts: Iterable[Part], names: RowNames) -> list[Part]:
    """`parts` with the rows of these names dead."""
    return _living(part.without(part.find(names)[1]) for part in parts)


def _living(parts: Iterable[Part]) -> list[Part]:
    """Those that have a living row."""
    return [part for part in parts if part.count]
