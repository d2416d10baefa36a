"""The indexes of one model version: one for each collection, all at the same moment of the store."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.index.gpu import GpuThread
from service.index.index import Index
from service.index.ivf_snapshots import IvfSnapshots, Origin
from service.index.moment import IndexMoment
from service.store.protocol import Snapshot
from service.store.values import DEFAULT_COLLECTION, RowNames

log = logging.getLogger(__name__)

ATTEMPTS, PAUSE_SECONDS = 400, 0.0005  # to find index and store at one moment

Added: TypeAlias = tuple[RowNames, NDArray[np.float32]]
Read: TypeAlias = Callable[[str], Iterable[Added]]


class Indexes:
    """Changed by one thread at a time, the writer's; read by any."""

    def __init__(
        self,
        dimension: int,
        root: Path | None = None,
        origin: Origin | None = None,
        gpu: GpuThread | None = None,
    ) -> None:
        """root: the folder of snapshots, each of which is of `origin`; without one there are none.

        gpu: where large ones are searched; None: on the CPU.
        """
        self.dimension = dimension
        self._root = root
        self._origin = origin
        self._gpu = gpu
        # Never changed, always replaced: a reader goes through the one that it took.
        self.collections: Mapping[str, Index] = {DEFAULT_COLLECTION: self._new(DEFAULT_COLLECTION)}
        # The store's operation number that all of them have reached; one may be a step further. The view of a
        # collection that nothing was done to since is older, and still of this moment. Whoever wants to know
        # the moment of a view reads this first, and then the view: it is the later of the two.
        self.sequence = 0

    def _new(self, collection: str) -> Index:
        return Index(self.dimension, self._ivf_snapshots(collection))

    def _ivf_snapshots(self, collection: str) -> IvfSnapshots | None:
        if self._root is None or self._origin is None:
            return None
        return IvfSnapshots(self._root / collection, self._origin, self._gpu)

    def of(self, collection: str) -> Index:
        """The index of a collection; of one that has no vector yet, an empty one."""
        return self.collections.get(collection) or Index(self.dimension)

    @property
    def documents(self) -> int:
        """Living documents of all collections."""
        return sum(index.documents for index in self.collections.values())

    @property
    def largest(self) -> Index:
        """The index with the most rows, which says how well the service searches."""
        return max(self.collections.values(), key=lambda index: index.rows)

    @property
    def rows(self) -> int:
        """Living rows: passages of all documents."""
        return sum(index.rows for index in self.collections.values())

    @property
    def nbytes(self) -> int:
        """Memory of vectors and names, dead rows included, in bytes."""
        return sum(index.nbytes for index in self.collections.values())

    def apply(self, added: Mapping[str, Added], removed: Mapping[str, list[int]], sequence: int) -> None:
        """Bring all to the moment `sequence`: those that something was done to, as `Index.apply` says.

        The others are not touched, so that thousands of collections cost a write nothing. A search that finds
        an index a moment before the store looks again (search.py), so they need not change in one step.
        An index left empty goes.
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
        """A collection's index at the moment of a snapshot, which may be brought to a later one for it."""
        # A commit and its step of the index are less than a millisecond apart: the two meet at once or soon.
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
        """All of them anew, at the moment `sequence`; the default collection is among them.

        read: the rows of a collection, as `Index.load` takes them.
        """
        loaded = {
            collection: Index.load(
                self.dimension, read(collection), sequence, self._ivf_snapshots(collection)
            )
            for collection in collections
        }
        before, self.collections = self.collections, loaded
        self.sequence = sequence
        for index in before.values():
            index.close()

    def discard(self, revisions: Sequence[int]) -> None:
        """Take out every row of `revisions`, before anything is searched."""
        if revisions:
            for index in self.collections.values():
                index.apply(remove=revisions)

    def close(self) -> None:
        """Stop merging. What is stored can still be searched."""
        for index in self.collections.values():
            index.close()
