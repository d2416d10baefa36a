"""Keeps the vocabularies of collections in memory, by which misspelled words are corrected.

A vocabulary is filled at the first search that needs it. Later searches add the terms of later writes.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable

from models.search.spelling import Vocabulary

MAX_TERMS = 8_000_000  # Of all vocabularies together, about 250 MB.


class Vocabularies:
    """The vocabularies of the collections that were searched most recently. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: OrderedDict[Hashable, Vocabulary] = OrderedDict()

    def get(self, collection: Hashable) -> Vocabulary:
        """Returns the vocabulary of a collection, which is empty at first."""
        with self._lock:
            found = self._recent.setdefault(collection, Vocabulary())
            self._recent.move_to_end(collection)
            while len(self._recent) > 1 and sum(map(len, self._recent.values())) > MAX_TERMS:
                self._recent.popitem(last=False)
            return found
