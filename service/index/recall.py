"""Measures recall on the latest queries: the share of the true nearest documents that a search finds.

Keeps only vectors of queries, never texts. The background thread searches them again exactly, after each new
base and every hour.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import numpy as np

from service.index.segments import Vectors
from service.index.view import View

KEPT = 200
LEAST = 50  # With 50 queries (500 hits) the standard error is about half a percent.
K = 10
EVERY_SECONDS = 3600.0
PAUSE_SECONDS = 0.05  # Between two queries. An exact search of a million rows takes as long.


@dataclass(frozen=True, slots=True)
class Measured:
    recall: float
    queries: int


class Watch:
    def __init__(self) -> None:
        self.measured: Measured | None = None
        self._latest: deque[Vectors] = deque(maxlen=KEPT)
        self._next = 0.0

    def remember(self, queries: Vectors) -> None:
        self._latest.extend(query.copy() for query in queries[-KEPT:])

    def forget(self) -> None:
        self.measured, self._next = None, 0.0

    def due(self) -> bool:
        return len(self._latest) >= LEAST and monotonic() >= self._next

    def measure(self, view: View, wait: Callable[[float], bool]) -> None:
        """Measures recall on `view`. Stops if `wait`, which sleeps, returns True."""
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
    """Returns the mean share of the `k` nearest documents that an approximate search finds.

    A document that ties with the k-th counts as found. Without documents recall is 1.
    """
    shares = []
    truth, found = view.search(queries, k, None, exact=True), view.search(queries, k, None)
    for (best, _), (scores, _) in zip(truth, found, strict=True):
        count = min(k, len(best))
        good = np.count_nonzero(scores[:count] >= best[count - 1]) if count else 0
        shares.append(good / count if count else 1.0)
    return float(np.mean(shares))
