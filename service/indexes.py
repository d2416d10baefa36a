"""The indexes of one model version: one for each collection, all at the same moment of the store."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.bases import Bases
from service.documents import DEFAULT_COLLECTION
from service.index import Index
from service.rows import RowNames
from service.snapshots import Origin

Added: TypeAlias = tuple[RowNames, NDArray[np.float32]]
Read: TypeAlias = Callable[[str], Iterable[Added]]


class Indexes:
    """Changed by one thread at a time, the writer's; read by any."""

    def __init__(self, dimension: int, root: Path | None = None, origin: Origin | None = None) -> None:
        """root: the folder of snapshots, each of which is of `origin`; without one there are none."""
        self.dimension = dimension
        self._root = root
        self._origin = origin
        # Never changed, always replaced: a reader goes through the one that it took.
        self._of: Mapping[str, Index] = {DEFAULT_COLLECTION: self._new(DEFAULT_COLLECTION)}

    def _new(self, collection: str) -> Index:
        return Index(self.dimension, self._bases(collection))

    def _bases(self, collection: str) -> Bases | None:
        if self._root is None or self._origin is None:
            return None
        return Bases(self._root / collection, self._origin)

    def of(self, collection: str) -> Index:
        """The index of a collection; of one that has no vector yet, an empty one of this moment."""
        index = self._of.get(collection)
        if index is None:
            index = Index(self.dimension)
            index.apply(sequence=self.sequence)
        return index

    @property
    def sequence(self) -> int:
        """The store's operation number that all of them are at."""
        return self._of[DEFAULT_COLLECTION].view.sequence

    @property
    def collections(self) -> Mapping[str, Index]:
        return self._of

    @property
    def documents(self) -> int:
        """Living documents of all collections."""
        return sum(index.documents for index in self._of.values())

    @property
    def largest(self) -> Index:
        """The one with the most rows, which says how well the service searches."""
        return max(self._of.values(), key=lambda index: index.rows)

    @property
    def rows(self) -> int:
        """Living rows: passages of all documents."""
        return sum(index.rows for index in self._of.values())

    @property
    def nbytes(self) -> int:
        """Memory of vectors and names, dead rows included, in bytes."""
        return sum(index.nbytes for index in self._of.values())

    def apply(self, added: Mapping[str, Added], removed: Mapping[str, list[int]], sequence: int) -> None:
        """Bring every collection to the moment `sequence`; each changes as `Index.apply` says.

        A search that finds an index a moment before the store looks again (searching.py), so they need not
        change in one step; the default one is last, whose moment is that of all. An index left empty goes.
        """
        indexes = dict(self._of)
        for collection in {*indexes, *added} - {DEFAULT_COLLECTION}:
            if collection not in indexes:
                indexes[collection] = self._new(collection)
            indexes[collection].apply(added.get(collection), removed.get(collection, ()), sequence)
        empty = [name for name, index in indexes.items() if not index.rows and name != DEFAULT_COLLECTION]
        gone = [indexes.pop(name) for name in empty]
        self._of = indexes
        default = indexes[DEFAULT_COLLECTION]
        default.apply(added.get(DEFAULT_COLLECTION), removed.get(DEFAULT_COLLECTION, ()), sequence)
        for index in gone:
            index.close(wait=False)

    def load(self, collections: Iterable[str], read: Read, sequence: int) -> None:
        """All of them anew, at the moment `sequence`; the default collection is among them.

        read: the rows of a collection, as `Index.load` takes them.
        """
        loaded = {
            collection: Index.load(self.dimension, read(collection), sequence, self._bases(collection))
            for collection in collections
        }
        before, self._of = self._of, loaded
        for index in before.values():
            index.close()

    def close(self) -> None:
        """Stop merging. What is stored can still be searched."""
        for index in self._of.values():
            index.close()
