"""Recall: the share of the true nearest documents that a search finds, measured on the latest real queries.

Vectors of queries are kept, never texts, and only the latest. They are searched once more, exactly, on the
index's niced thread: after a base was made, as soon as there are enough, and every hour.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import numpy as np

from service.index.segments import Vectors
from service.index.view import View

KEPT = 200
LEAST = 50  # fewer queries say little: of 500 places one standard error is about half a percent
K = 10
EVERY_SECONDS = 3600.0
PAUSE_SECONDS = 0.05  # between two queries: an exact search of a million rows keeps a processor as long


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured recall, and the number of queries it is based on."""

    recall: float
    queries: int


class Watch:
    """The latest queries of one index, and what was last measured with them."""

    def __init__(self) -> None:
        self.measured: Measured | None = None
        self._latest: deque[Vectors] = deque(maxlen=KEPT)
        self._next = 0.0

    def remember(self, queries: Vectors) -> None:
        self._latest.extend(query.copy() for query in queries[-KEPT:])

    def forget(self) -> None:
        """Drop the measurement: it is of an older base."""
        self.measured, self._next = None, 0.0

    def due(self) -> bool:
        return len(self._latest) >= LEAST and monotonic() >= self._next

    def measure(self, view: View, wait: Callable[[float], bool]) -> None:
        """Measure on `view`, unless `wait`, which sleeps for some seconds, says that there is more to do."""
        due, self._next = self._next, monotonic() + EVERY_SECONDS
        queries = list(self._latest)
        shares = []
        for query in queries:
            shares.append(recall(view, query[None], K))
            if wait(PAUSE_SECONDS):
                self._next = due
                return
        self.measured = Measured(float(np.mean(shares)), len(queries))


def recall(view: View, queries: Vectors, k: int = K) -> float:
    """The mean share of the `k` nearest documents that an approximate search finds, 1 where there are none.

    A document that ties with the k-th is as good as another.
    """
    shares = []
    truth, found = view.search(queries, k, None, exact=True), view.search(queries, k, None)
    for (best, _), (scores, _) in zip(truth, found, strict=True):
        wanted = min(k, len(best))
        good = np.count_nonzero(scores[:wanted] >= best[wanted - 1]) if wanted else 0
        shares.append(good / wanted if wanted else 1.0)
    return float(np.mean(shares))
