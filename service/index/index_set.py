"""The indexes of one model version, one for each collection. Start reading at `Indexes.moment`.

`StoredIndexes` takes the place of `Indexes` if the store itself searches vectors, as PostgreSQL does.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.index.index import Index
from service.index.ivf_snapshots import IvfSnapshots
from service.index.maintenance import Measured
from service.index.moment import IndexMoment
from service.store.protocol import FilterMatches, Snapshot
from service.store.values import DEFAULT_COLLECTION, RowNames

Size = Callable[[int], tuple[int, int]]  # documents and rows of a generation, as last counted


@dataclass(frozen=True, slots=True)
class StoredMoment:
    """Searches a generation's vectors in the store, with the interface of `IndexMoment`."""

    snapshot: Any
    generation: int
    collection: str
    is_split: ClassVar = True  # Unknown without a query, so assumed.

    def lacks_documents(self) -> bool:
        return bool(self.snapshot.lacking(self.generation, 0, 1))

    def search(
        self, vectors: NDArray[np.float32], depth: int, allowed: FilterMatches | None, *, heads_only: bool
    ) -> Iterator[tuple[NDArray[np.float32], RowNames]]:
        return iter(
            self.snapshot.nearest(
                self.generation, vectors, depth, allowed, self.collection, heads_only=heads_only
            )
        )


Moment: TypeAlias = IndexMoment | StoredMoment  # of a generation in a collection
AnyIndexes: TypeAlias = "Indexes | StoredIndexes"


class StoredIndexes:
    """The vectors of a generation in the store, with the interface of `Indexes`.

    The store searches the vectors, so methods that change an index do nothing.
    """

    kind, device, nbytes, sequence = "hnsw", "database", 0, 0
    measured: Measured | None = None
    collections: Mapping[str, "StoredIndexes"] = {}

    def __init__(self, generation: int, dimension: int, size: Size) -> None:
        self.dimension = dimension
        self._generation = generation
        self._size = size

    @property
    def documents(self) -> int:
        return self._size(self._generation)[0]

    @property
    def rows(self) -> int:
        return self._size(self._generation)[1]

    @property
    def largest(self) -> "StoredIndexes":
        return self

    def of(self, _collection: str) -> "StoredIndexes":
        """Returns this object for every collection, because the store does not count by collection."""
        return self

    def moment(self, snapshot: Snapshot, collection: str) -> StoredMoment:
        return StoredMoment(snapshot, self._generation, collection)

    def apply(self, added: object, removed: object, sequence: int) -> None:
        """Does nothing, because the write has already reached the store."""

    def load(self, collections: Iterable[str], read: object, sequence: int) -> None:
        """Does nothing."""

    def discard(self, revisions: Sequence[int]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


log = logging.getLogger(__name__)

ATTEMPTS, PAUSE_SECONDS = 400, 0.0005  # for finding index and store in the same state
BOTH_ATTEMPTS = 20  # for finding two indexes in the same state

Added: TypeAlias = tuple[RowNames, NDArray[np.float32]]
Read: TypeAlias = Callable[[str], Iterable[Added]]


class Indexes:
    """The indexes of all collections. Only the writer thread changes them; any thread may read.

    Args:
        dimension: Dimension of the vectors.
        snapshots: Returns the saved lists of a collection. None means that nothing is saved.
    """

    def __init__(self, dimension: int, snapshots: Callable[[str], IvfSnapshots] | None = None) -> None:
        self.dimension = dimension
        self._snapshots: Callable[[str], IvfSnapshots | None] = snapshots or (lambda _: None)
        # Replaced and never changed, so readers need no lock.
        self.collections: Mapping[str, Index] = {DEFAULT_COLLECTION: self._new(DEFAULT_COLLECTION)}
        # The operation number that all indexes have reached. The view of an unchanged collection has an
        # older number, and a view that was just changed a newer one. A reader reads this number first, then
        # the view. The state of the view is the larger number.
        self.sequence = 0

    def _new(self, collection: str) -> Index:
        return Index(self.dimension, self._snapshots(collection))

    def of(self, collection: str) -> Index:
        """Returns the index of a collection. An unknown collection has an empty index."""
        return self.collections.get(collection) or Index(self.dimension)

    @property
    def documents(self) -> int:
        return sum(index.documents for index in self.collections.values())

    @property
    def largest(self) -> Index:
        return max(self.collections.values(), key=lambda index: index.rows)

    @property
    def rows(self) -> int:
        return sum(index.rows for index in self.collections.values())

    @property
    def nbytes(self) -> int:
        return sum(index.nbytes for index in self.collections.values())

    def apply(self, added: Mapping[str, Added], removed: Mapping[str, list[int]], sequence: int) -> None:
        """Updates the changed collections to the operation `sequence`, as `Index.apply` does.

        Unchanged collections are skipped, so a write stays fast with thousands of collections. The indexes
        need not change in one step, because `moment` waits until index and store agree. Empty indexes
        are removed, except that of the default collection.

        Args:
            added: Row names and vectors by collection.
            removed: Revisions by collection.
            sequence: The store's operation number.
        """
        touched = {*added, *removed}
        new = {name: self._new(name) for name in touched if name not in self.collections}
        indexes = {**new, **self.collections}
        for name in touched:
            indexes[name].apply(added.get(name), removed.get(name, ()), sequence)
        empty = [name for name in touched if not indexes[name].rows and name != DEFAULT_COLLECTION]
        gone = [indexes.pop(name) for name in empty]
        self.collections = indexes
        self.sequence = max(sequence, self.sequence)
        for index in gone:
            index.close(wait=False)

    def moment(self, snapshot: Snapshot, collection: str) -> IndexMoment:
        """Returns a collection's index in the same state as a snapshot.

        If index and snapshot differ, this renews the snapshot until they agree. After ATTEMPTS tries, this
        logs a warning and returns the index as it is.
        """
        # The index follows a commit within a millisecond, so the two soon agree.
        for _ in range(ATTEMPTS):
            reached = self.sequence
            index = self.of(collection)
            view = index.view
            if snapshot.sequence() == max(reached, view.sequence):
                break
            time.sleep(PAUSE_SECONDS)
            snapshot.renew()
        else:
            log.warning("A search found no moment at which index and store agree")
            view = index.view
        return IndexMoment(index, view, is_split=view.rows > view.documents)

    def load(self, collections: Iterable[str], read: Read, sequence: int) -> None:
        """Replaces all indexes by new ones.

        Args:
            collections: Names of the collections, including the default one.
            read: Returns the batches of a collection for `Index.load`.
            sequence: The store's operation number when the rows were read.
        """
        loaded = {
            collection: Index.load(self.dimension, read(collection), sequence, self._snapshots(collection))
            for collection in collections
        }
        before, self.collections = self.collections, loaded
        self.sequence = sequence
        for index in before.values():
            index.close()

    def discard(self, revisions: Sequence[int]) -> None:
        if revisions:
            for index in self.collections.values():
                index.apply(remove=revisions)

    def close(self) -> None:
        for index in self.collections.values():
            index.close()


def find_moments(
    snapshot: Snapshot, collection: str, active: AnyIndexes, other: AnyIndexes, skipped: int
) -> tuple[Moment, Moment | None]:
    """Returns the moments of two versions in one state of the store.

    The second moment is None if its index lacks documents in that state, because a write does not wait for
    versions that are not active.

    Args:
        snapshot: The state, which may be renewed.
        collection: Name of the collection.
        active: The indexes of the active version.
        other: The indexes of the other version.
        skipped: Number of documents on which the model of the other version fails.
    """
    for _ in range(BOTH_ATTEMPTS):
        moment, state = active.moment(snapshot, collection), snapshot.sequence()
        another = other.moment(snapshot, collection)
        if isinstance(another, StoredMoment):  # Its snapshot is never renewed.
            return moment, None if another.lacks_documents() else another
        if isinstance(moment, IndexMoment) and snapshot.sequence() == state:
            lacks = another.view.documents + skipped < moment.view.documents
            return moment, None if lacks else another
    return active.moment(snapshot, collection), None
