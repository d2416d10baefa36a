"""Stand-in for `Indexes` if the store itself searches its vectors, as PostgreSQL does."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.index.moment import IndexMoment
from service.index.recall import Measured
from service.store.protocol import FilterMatches, Snapshot
from service.store.values import RowNames

Size = Callable[[int], tuple[int, int]]  # documents and rows of a generation, as last counted


@dataclass(frozen=True, slots=True)
class StoredMoment:
    """An IndexMoment whose snapshot searches the store."""

    snapshot: Any
    generation: int
    collection: str
    is_split: ClassVar = True  # Unknown without a query, so assumed.

    def search(
        self, vectors: NDArray[np.float32], depth: int, allowed: FilterMatches | None, *, heads_only: bool
    ) -> Iterator[tuple[NDArray[np.float32], RowNames]]:
        return iter(
            self.snapshot.nearest(
                self.generation, vectors, depth, allowed, self.collection, heads_only=heads_only
            )
        )


Moment: TypeAlias = IndexMoment | StoredMoment  # of a generation in a collection


class StoredIndexes:
    """The vectors of a generation in the store, with the interface of `Indexes`."""

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
        """Returns the whole generation, because the store does not count by collection."""
        return self

    def moment(self, snapshot: Snapshot, collection: str) -> StoredMoment:
        return StoredMoment(snapshot, self._generation, collection)

    def apply(self, added: object, removed: object, sequence: int) -> None:
        """Does nothing, because the store already has the write."""

    def load(self, collections: Iterable[str], read: object, sequence: int) -> None:
        """Does nothing."""

    def discard(self, revisions: Sequence[int]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
