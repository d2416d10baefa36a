"""Indexes the vectors of one model version in one collection. Start at `Index.search` and `Index.apply`.

    apply() ──▶ new view ──▶ one reference is replaced ◀── search() reads it once, without a lock
                   ▲
    merging ───────┘   at most one low-priority thread: all rows become a new base, dead rows are dropped

FAISS crashes if one thread searches an index while another thread adds to it. A lock would make writes wait
for searches. So data that searches read never changes. A write appends rows, and a removal creates a new
bitmap of living rows. Both create a new `View` (view.py). A background thread merges many rows into a base
for approximate search (ivf.py, maintenance.py).

A row is one passage of a document. Each row is named by an int64 that contains the document's revision
(store/values.py). Revisions are never reused: the caller must not add a revision that was removed.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Self

import faiss
import numpy as np
from numpy.typing import ArrayLike

from service.index import ivf, maintenance
from service.index.gpu import CPU
from service.index.ivf_snapshots import IvfSnapshots
from service.index.maintenance import Merger, Step
from service.index.segments import Exact, Rows, Segment, Vectors, copied, sort_order
from service.index.view import Hits, Part, View
from service.store.values import Revisions, RowNames, get_revisions

EXACT, APPROXIMATE = "exact", "IVF,SQ8"


class Index:
    """Searches and changes named vectors. All vectors have length 1, so scores are cosines."""

    def __init__(self, dimension: int, ivf_snapshots: IvfSnapshots | None = None) -> None:
        self.dimension = dimension
        self._ivf_snapshots = ivf_snapshots
        self.view = View((), self._empty())  # The current state. A view never changes.
        self._writing = threading.Lock()
        self._merger = Merger()
        self._recall = maintenance.Watch()

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
        """Builds an index from batches of distinct row names (n,) and vectors (n, dimension).

        Args:
            dimension: Dimension of the vectors.
            batches: The batches.
            sequence: The store's operation number when the rows were read.
            ivf_snapshots: Reads and writes the saved lists of the index's base.

        Raises:
            ValueError: See `apply`.
        """
        index = cls(dimension, ivf_snapshots)
        named = [np.empty(0, np.int64)]
        vectors = np.empty((0, dimension), np.float32)
        for batch in batches:
            rows, matrix = _checked_rows(*batch, dimension)
            named.append(rows)
            start = len(vectors)
            # Does not copy: the system remaps the pages of large arrays. No other reference exists yet.
            vectors.resize((start + len(rows), dimension), refcheck=False)
            vectors[start:] = matrix
        names = np.concatenate(named)
        exact = Exact((names, vectors), len(names), sort_order(names))
        if len(names) <= maintenance.BASE_ROWS:
            index.view = View((), Part.all_alive(exact), sequence)
        else:
            index.view = View((Part.all_alive(index._known(exact, sequence)),), index._empty(), sequence)
        index._merger.start(index._due)
        return index

    def _known(self, rows: Exact, sequence: int) -> Segment:
        """Returns a segment of `rows`, with the inverted lists of a snapshot if one suits them."""
        snapshots = self._ivf_snapshots
        known = snapshots and snapshots.read(sequence)
        if not (snapshots and known and known.training.suits(len(rows.names))):
            return rows
        labelled = Rows(rows.names, rows.vectors, np.arange(len(rows.names)), known.get_labels(rows.names))
        base = ivf.build(self.dimension, [labelled], known.training, self._merger.closing.is_set)
        snapshots.place(base)
        return base

    @property
    def documents(self) -> int:
        return self.view.documents

    @property
    def rows(self) -> int:
        return self.view.rows

    @property
    def nbytes(self) -> int:
        """Size of vectors and names in bytes, including dead rows and spare room."""
        return sum(part.nbytes for part in (*self.view.settled, self.view.tail))

    @property
    def kind(self) -> str:
        """The kind of index: `IVF,SQ8` with a base, else `exact`."""
        return APPROXIMATE if self.view.is_float16 else EXACT

    @property
    def device(self) -> str:
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
        """Finds the best `k` documents for each query.

        Args:
            queries: Vectors, shape (q, dimension).
            k: Number of documents, at least 1.
            allowed: Revisions to search. None means all.
            view: An earlier state to search. None means the current one.
            heads_only: Whether to compare only the first passage of each document.

        Returns:
            For each query, scores (float32) and row names (int64), sorted by score, best first, and then by
            revision. Each document has one entry, the row with the best score. Scores are rounded to 1e-6. Up
            to `view.TIES` more documents are returned if they tie with the k-th one, so that the caller can
            order ties.

        Raises:
            ValueError: The dimension is wrong, or a number is not finite.
        """
        # The setting belongs to the calling thread. By default FAISS would use every core for each thread.
        faiss.omp_set_num_threads(1)
        among = None if allowed is None else np.asarray(allowed, np.int64)
        matrix = _checked_matrix(queries, self.dimension, "query")
        view = view or self.view
        if view.is_float16:
            self._recall.remember(matrix)
            if self._recall.due():
                self._merger.start(self._due)
        return view.search(matrix, k, among, heads_only=heads_only)

    @property
    def measured(self) -> maintenance.Measured | None:
        """The recall of the latest queries. None if the index is exact, or if recall was not measured yet."""
        return self._recall.measured

    def apply(
        self,
        add: tuple[ArrayLike, ArrayLike] | None = None,
        remove: Sequence[int] | Revisions = (),
        sequence: int = 0,
    ) -> None:
        """Adds rows and removes documents in one atomic step.

        Args:
            add: Distinct row names (n,) and vectors (n, dimension), which are copied. They replace rows of
                the same name.
            remove: Revisions whose rows are removed, including rows in `add`. Unknown revisions are ignored.
            sequence: The store's operation number after the step. A number below the current one is ignored.

        Raises:
            ValueError: The dimension is wrong, or a number is not finite. Nothing changed.
        """
        removed = np.unique(np.asarray(remove, np.int64))
        added, numbers = ((), np.empty((0, self.dimension))) if add is None else add
        names, vectors = _checked_rows(added, numbers, self.dimension)
        positions = np.flatnonzero(~np.isin(get_revisions(names), removed))
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
        """Stops the background merges, and by default waits for the stop.

        The index can still be searched and changed.
        """
        self._merger.closing.set()
        if wait:
            self._merger.wait()

    def _due(self) -> Step | None:
        if maintenance.merge_due(self.view):
            return self._merge
        return self._measure if self.view.is_float16 and self._recall.due() else None

    def _measure(self) -> None:
        self._recall.measure(self.view, self._wait)

    def _wait(self, seconds: float) -> bool:
        return self._merger.closing.wait(seconds) or maintenance.merge_due(self.view)

    def _merge(self) -> None:
        """Merges all rows into a new base, or into an exact segment if few rows are left.

        Rows that are written during the merge go to a new tail.
        """
        with self._writing:
            if all(isinstance(part.segment, ivf.Clustered) for part in self.view.settled):
                self.view = View(self.view.parts, self._empty(), self.view.sequence)
            sources = self.view.settled
        if not sources:  # The last row was removed.
            return
        merged = self._merged(sources)
        with self._writing:
            self._publish(sources, merged)
        del sources  # Frees their lists on the GPU.
        if self._ivf_snapshots is not None and isinstance(merged, ivf.Clustered):
            self._ivf_snapshots.keep(merged, self.view.sequence)

    def _merged(self, sources: Sequence[Part]) -> Segment:
        rows = [part.rows() for part in sources]
        if sum(part.count for part in sources) <= maintenance.BASE_ROWS:
            return copied(self.dimension, rows)
        trained = [part.segment.training for part in sources if isinstance(part.segment, ivf.Clustered)]
        cancelled = self._merger.closing.is_set
        return ivf.build(self.dimension, rows, trained[0] if trained else None, cancelled)

    def _publish(self, sources: Sequence[Part], merged: Segment) -> None:
        """Replaces the parts `sources` by `merged`, without the rows that were removed during the merge."""
        now = {part.segment: part for part in self.view.settled}
        died = [source.died_until(now.get(source.segment)) for source in sources]
        part = Part.all_alive(merged).without_names(np.concatenate(died))
        tail, sequence = self.view.tail, self.view.sequence
        if isinstance(merged, Exact):
            self.view = View((), part.with_rows(tail.rows()), sequence)
        else:
            self.view = View((part,), tail, sequence)
        self._recall.forget()


def _checked_rows(names: ArrayLike, vectors: ArrayLike, dimension: int) -> tuple[RowNames, Vectors]:
    """Converts row names (n,) and vectors (n, dimension) to arrays.

    Raises:
        ValueError: A shape is wrong, or a number is not finite.
    """
    named, vectors = np.asarray(names, np.int64), _checked_matrix(vectors, dimension, "vector")
    if named.shape != (len(vectors),):
        raise ValueError(f"{len(vectors)} vectors came with names of shape {named.shape}; give one each.")
    return named, vectors


def _checked_matrix(vectors: ArrayLike, dimension: int, noun: str) -> Vectors:
    """Converts vectors (n, dimension) to a float32 array. `noun` names the vectors in error messages.

    Raises:
        ValueError: The shape is wrong, or a number is not finite.
    """
    numbers = np.ascontiguousarray(vectors, np.float32)
    if numbers.ndim != 2 or numbers.shape[1] != dimension:
        raise ValueError(f"Expected an array of shape (n, {dimension}), got {numbers.shape}.")
    # The product also rejects numbers whose square overflows (2e19), so scores are always finite.
    finite = np.isfinite(np.vecdot(numbers, numbers))
    if not finite.all():
        raise ValueError(f"The {noun} at position {np.argmin(finite)} has a number that is not finite.")
    return numbers
