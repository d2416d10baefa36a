"""Vectors at one moment of the store: what a search asks for those that are nearest."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.index.index import Index
from service.index.view import View
from service.store.ids import RowNames
from service.store.protocol import Passing, Snapshot

log = logging.getLogger(__name__)

ATTEMPTS, PAUSE_SECONDS = 400, 0.0005  # to find index and store at one moment


class Moment(Protocol):
    """The vectors of one generation in one collection, at the moment of a snapshot."""

    @property
    def is_split(self) -> bool:
        """True when a document may have several rows."""

    def search(
        self, vectors: NDArray[np.float32], depth: int, allowed: Passing | None, *, heads_only: bool
    ) -> Iterator[tuple[NDArray[np.float32], RowNames]]:
        """For each vector the best documents: scores, best first, and their nearest rows."""


class InMemory(Protocol):
    """The indexes of a generation that follow the store's writes."""

    @property
    def sequence(self) -> int: ...
    def of(self, collection: str) -> Index: ...


@dataclass(frozen=True, slots=True)
class IndexMoment:
    """An index, and what it was when a transaction began."""

    index: Index
    view: View

    @property
    def is_split(self) -> bool:
        return self.view.rows > self.view.documents

    def search(
        self, vectors: NDArray[np.float32], depth: int, allowed: Passing | None, *, heads_only: bool
    ) -> Iterator[tuple[NDArray[np.float32], RowNames]]:
        return iter(self.index.search(vectors, depth, allowed, self.view, heads_only=heads_only))


def moment_of(snapshot: Snapshot, indexes: InMemory, collection: str) -> IndexMoment:
    """Bring a snapshot to the moment of a view of a collection's index, and return both.

    A commit and its step of the index are less than a millisecond apart, so the two meet at once or soon.
    """
    for _ in range(ATTEMPTS):
        reached = indexes.sequence
        index = indexes.of(collection)
        view = index.view
        if snapshot.sequence() == max(reached, view.sequence):
            return IndexMoment(index, view)
        time.sleep(PAUSE_SECONDS)
        snapshot.renew()
    log.warning("A search found no moment at which index and store agree")
    return IndexMoment(index, index.view)
