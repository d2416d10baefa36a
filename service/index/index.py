"""The vectors of one model version, searched while they change.

    apply() ──▶ new view ──▶ one reference is replaced ◀── search() takes it once, and no lock
                   ▲
    merging ───────┘   one niced thread, at most: all rows become a new base, dead rows go

FAISS crashes when one thread searches an index that another adds to (it did in four runs of four), and a lock
around both would let every write wait for every search. So nothing that is searched is ever changed: a write
appends rows behind the last one that any view sees (exact.py), a removal makes a new bitmap of living rows,
and each step ends in a new `View` (view.py). Many rows become a base that is searched approximately (ivf.py),
in the background (merge_policy.py, merger.py).

A row is one passage of a document; its int64 id (store/values.py) holds the revision, which the document
store makes once and never uses again for another text. What is searched for is documents.

Not here: documents, their ids and metadata (the store has them, and can always make this index again),
files (a `View` never changes, so a snapshot can be written from one at leisure), and a memory of removed
revisions: a caller that adds must know that the revision still lives.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Self

import faiss
import numpy as np
from numpy.typing import ArrayLike

from service.index import ivf, merge_policy, validation
from service.index import recall as recalls
from service.index.exact import Exact, copied
from service.index.gpu import CPU
from service.index.ivf_snapshots import IvfSnapshots
from service.index.merger import Merger, Step
from service.index.segments import Rows, Segment, order_of
from service.index.view import Hits, Part, View
from service.store.values import Revisions, revisions_of

EXACT, APPROXIMATE = "exact", "IVF,SQ8"


class Index:
    """Vectors of `dimension` numbers by name; of unit length, so that scores are cosines."""

    def __init__(self, dimension: int, ivf_snapshots: IvfSnapshots | None = None) -> None:
        """ivf_snapshots: where the lists of a base are kept, on the disk and on a GPU."""
        self.dimension = dimension
        self._ivf_snapshots = ivf_snapshots
        self.view = View((), self._empty())  # the present moment; a view never changes and can be kept
        self._writing = threading.Lock()
        self._merger = Merger()
        self._recall = recalls.Watch()

    def _empty(self) -> Part:
        nothing = np.empty(0, np.int64), np.empty((0, self.dimension), np.float32)
        return Part.all_alive(Exact(nothing, 0, None))

    @classmethod
    def load(
        cls,
        dimension: int,
        batches: Iterable[tuple[ArrayLike, ArrayLike]],
        sequence: int = 0,
        ivf_snapshots: IvfSnapshots | None = None,
    ) -> Self:
        """Return an index of all rows of `batches`, as (names, vectors) each.

        `sequence` is the store's operation number at that moment.

        Raises:
            ValueError: as `apply`.

        """
        index = cls(dimension, ivf_snapshots)
        named = [np.empty(0, np.int64)]
        vectors = np.empty((0, dimension), np.float32)
        for batch in batches:
            rows, matrix = validation.rows(*batch, dimension)
            named.append(rows)
            start = len(vectors)
            # Without a copy: the system moves the pages of large memory. No other reference exists yet.
            vectors.resize((start + len(rows), dimension), refcheck=False)
            vectors[start:] = matrix
        names = np.concatenate(named)
        if (order := order_of(names)) is not None:
            validation.refuse_twice(names)
        exact = Exact((names, vectors), len(names), order)
        if len(names) <= merge_policy.BASE_ROWS:
            index.view = View((), Part.all_alive(exact), sequence)
        else:
            index.view = View((Part.all_alive(index._known(exact, sequence)),), index._empty(), sequence)
        index._merger.start(index._due)
        return index

    def _known(self, rows: Exact, sequence: int) -> Segment:
        """`rows` in the lists that were kept, where there are some that suit them; else as they are."""
        known = None if self._ivf_snapshots is None else self._ivf_snapshots.read(sequence)
        if self._ivf_snapshots is None or known is None or not known.training.suits(len(rows.names)):
            return rows
        labelled = Rows(rows.names, rows.vectors, np.arange(len(rows.names)), known.labels_of(rows.names))
        base = ivf.build(self.dimension, [labelled], known.training, self._merger.closing.is_set)
        self._ivf_snapshots.place(base)
        return base

    @property
    def documents(self) -> int:
        """Living documents."""
        return self.view.documents

    @property
    def rows(self) -> int:
        """Living rows: passages of all documents."""
        return self.view.rows

    @property
    def nbytes(self) -> int:
        """Memory of the vectors and their names, dead rows and room for later ones included, in bytes."""
        return sum(part.nbytes for part in (*self.view.settled, self.view.tail))

    @property
    def kind(self) -> str:
        """`exact`, or FAISS's name for the base, when there is one."""
        return APPROXIMATE if self.view.is_float16 else EXACT

    @property
    def device(self) -> str:
        """The device that searches the base: `cpu`, or the name of a GPU."""
        bases = [part.segment for part in self.view.parts if isinstance(part.segment, ivf.Clustered)]
        return bases[0].device if bases else CPU

    def search(
        self,
        queries: ArrayLike,
        k: int,
        allowed: ArrayLike | None = None,
        view: View | None = None,
        *,
        heads_only: bool = False,
    ) -> list[Hits]:
        """The best `k` documents for each of `queries` (q, dimension), as (scores float32, names int64).

        A document is there once, as its best row. Best first, then by revision. Scores are rounded to 1e-6,
        so documents that tie have equal scores. A caller may break ties its own way: the answer holds *every*
        document that ties with the k-th, so it may be longer than `k`, by up to `view.TIES`. It is shorter
        only when fewer documents live (and are allowed).

        With `allowed`, only documents of these revisions are seen. With `view`, that moment is searched. With
        `heads_only`, a document is seen by its first passage alone.

        Raises:
            ValueError: `k` below 1, another dimension, or a number that is not finite.

        """
        if k < 1:
            raise ValueError(f"k is {k}; it must be at least 1.")
        # FAISS counts threads per calling thread, and a new one would take every core from its neighbours.
        faiss.omp_set_num_threads(1)
        among = None if allowed is None else np.asarray(allowed, np.int64)
        matrix = validation.matrix(queries, self.dimension, "query")
        view = view or self.view
        if view.is_float16:
            self._recall.remember(matrix)
            if self._recall.due():
                self._merger.start(self._due)
        return view.search(matrix, k, among, heads_only=heads_only)

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
        names, positions = np.empty(0, np.int64), np.empty(0, np.int64)
        vectors = np.empty((0, self.dimension), np.float32)
        if add is not None:
            names, vectors = validation.rows(*add, self.dimension)
            positions = np.flatnonzero(~np.isin(revisions_of(names), removed))
            names = names[positions]
        with self._writing:
            view = self.view
            *settled, tail = [
                part.without(part.segment.positions(removed)).without_names(names)
                for part in (*view.settled, view.tail)
            ]
            tail = tail.with_rows(Rows(names, vectors, positions))
            living = tuple(part for part in settled if part.count)
            self.view = View(living, tail, max(sequence, view.sequence))
        self._merger.start(self._due)

    def close(self, *, wait: bool = True) -> None:
        """Stop merging. What is stored can still be searched, and changed at a price."""
        self._merger.closing.set()
        if wait:
            self._merger.wait()

    def _due(self) -> Step | None:
        """The work of the background thread that is due now."""
        if merge_policy.due(self.view):
            return self._merge
        return self._measure if self.view.is_float16 and self._recall.due() else None

    def _measure(self) -> None:
        self._recall.measure(self.view, self._wait)

    def _wait(self, seconds: float) -> bool:
        """Sleep; return True if the index closes or a merge is due."""
        return self._merger.closing.wait(seconds) or merge_policy.due(self.view)

    def _merge(self) -> None:
        """Make a new base of all rows. Later ones go to a new tail meanwhile."""
        with self._writing:
            if all(isinstance(part.segment, ivf.Clustered) for part in self.view.settled):
                self.view = View(self.view.parts, self._empty(), self.view.sequence)
            sources = self.view.settled
        if not sources:  # the last row was removed
            return
        merged = self._merged(sources)
        with self._writing:
            self._publish(sources, merged)
        del sources  # what they have on a GPU makes room
        if self._ivf_snapshots is not None and isinstance(merged, ivf.Clustered):
            self._ivf_snapshots.keep(merged, self.view.sequence)

    def _merged(self, sources: Sequence[Part]) -> Segment:
        rows = [part.rows() for part in sources]
        if sum(part.count for part in sources) <= merge_policy.BASE_ROWS:
            return copied(self.dimension, rows)
        trained = [part.segment.training for part in sources if isinstance(part.segment, ivf.Clustered)]
        cancelled = self._merger.closing.is_set
        return ivf.build(self.dimension, rows, trained[0] if trained else None, cancelled)

    def _publish(self, sources: Sequence[Part], merged: Segment) -> None:
        """Put `merged` in the place of `sources`, without the rows that died while it was made."""
        now = {part.segment: part for part in self.view.settled}
        died = [source.died_until(now.get(source.segment)) for source in sources]
        part = Part.all_alive(merged).without_names(np.concatenate(died))
        tail, sequence = self.view.tail, self.view.sequence
        if isinstance(merged, Exact):
            self.view = View((), part.with_rows(tail.rows()), sequence)
        else:
            self.view = View((part,), tail, sequence)
        self._recall.forget()
