"""Builds bases and measures recall in the background of an index. Start at `merge_due` and `Merger`.

    writes ──▶ tail, exact search ──(50,000 rows, or a tenth of the base's)──▶ base, inverted lists

A large index has one base (ivf.py), and a tail with later writes. Base and tail are merged when the tail has
50,000 rows or a tenth of the base's, or when a fifth of the base's rows are dead. The base is trained again
only when it has more than twice, or less than half, the rows of the last training.

Recall is the share of the true nearest documents that a search finds. It is measured on the latest queries,
after each new base and every hour. Only the vectors of queries are stored for this, never the texts.
"""

import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

import numpy as np

from service.index.ivf import Clustered
from service.index.segments import Cancelled, Vectors
from service.index.view import View

# Recall at K of the latest queries. With 50 queries (500 hits) the standard error is about half a percent.
MIN_QUERIES, MAX_QUERIES, K = 50, 200, 10
EVERY_SECONDS = 3600.0
PAUSE_SECONDS = 0.05  # Pause between two queries, as long as an exact search of a million rows.
BASE_ROWS = 50_000  # Exact search of 50,000 rows takes a few milliseconds.
DELTA_SHARE = 0.1  # Largest tail as a share of the base, and at most `BASE_ROWS` rows.


def merge_due(view: View) -> bool:
    """Returns whether a merge of all rows is due.

    A merge is due if the tail is large, if many rows of the base are dead, or if settled parts are not in a
    base yet.
    """
    base = [part for part in view.settled if isinstance(part.segment, Clustered)]
    if len(view.settled) > len(base):  # Exact rows were loaded, or their merge failed.
        return True
    most = min(BASE_ROWS, DELTA_SHARE * base[0].count) if base else BASE_ROWS
    return view.tail.count > most or any(part.is_wasteful for part in base)


@dataclass(frozen=True, slots=True)
class Measured:
    recall: float
    queries: int


class Watch:
    """Remembers the latest queries, and measures the recall on them."""

    def __init__(self) -> None:
        self.measured: Measured | None = None
        self._latest: deque[Vectors] = deque(maxlen=MAX_QUERIES)
        self._next = 0.0

    def remember(self, queries: Vectors) -> None:
        self._latest.extend(query.copy() for query in queries[-MAX_QUERIES:])

    def forget(self) -> None:
        self.measured, self._next = None, 0.0

    def due(self) -> bool:
        return len(self._latest) >= MIN_QUERIES and monotonic() >= self._next

    def measure(self, view: View, wait: Callable[[float], bool]) -> None:
        """Measures the recall on `view`.

        Stops early if `wait` returns True; `wait` sleeps between queries.
        """
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
    """Returns the share of the `k` nearest documents that an approximate search finds, averaged over queries.

    A found document counts if it scores at least as high as the k-th nearest. Without documents, recall is 1.
    """
    shares = []
    truth, found = view.search(queries, k, None, exact=True), view.search(queries, k, None)
    for (best, _), (scores, _) in zip(truth, found, strict=True):
        count = min(k, len(best))
        good = np.count_nonzero(scores[:count] >= best[count - 1]) if count else 0
        shares.append(good / count if count else 1.0)
    return float(np.mean(shares))


log = logging.getLogger(__name__)

Step: TypeAlias = Callable[[], None]

NICE = 10


class Merger:
    """Runs the background steps of an index on at most one thread.

    The thread runs as long as `due` returns a step. A write or a search starts it again. `due` is stored only
    while the thread runs. Otherwise index and merger would refer to each other, and the vectors of a replaced
    version would stay in memory, because the service exempts objects from garbage collection (`gc.freeze`).
    """

    def __init__(self) -> None:
        self.closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()

    def start(self, due: Callable[[], Step | None]) -> None:
        with self._changing:
            if self._thread is None and not self.closing.is_set() and due() is not None:
                self._thread = threading.Thread(
                    target=self._run, args=(due,), name="index-merge", daemon=True
                )
                self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        with self._changing:
            thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _run(self, due: Callable[[], Step | None]) -> None:
        lower_priority()
        while True:
            with self._changing:
                step = None if self.closing.is_set() else due()
                if step is None:
                    self._thread = None
                    return
            try:
                step()
            except Cancelled:
                continue
            except Exception:  # Searches work without the merge, and the next write tries again.
                log.exception("Merging the index failed; searches score more rows one by one")
                with self._changing:
                    self._thread = None
                return


def lower_priority() -> None:
    if sys.platform == "linux":  # Other systems have no priorities of single threads.
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # A sandbox may forbid it.
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
