"""Searches that only a part of the documents passes, asked one at a time: how right and how fast they are."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.places import say
from benchmarks.results import Spread, p50_p99
from benchmarks.vectordata import Vectors

K = 10
DECLARED = ("half", "year", "owner")
# How much of all passes, and what passes it.
FILTERS: dict[float, dict[str, Any] | None] = {
    1.0: None,
    0.5: {"half": True},
    0.01: {"year": 7},
    0.0001: {"owner": 77},
}
STEP_ROWS = 10_000
EXACT_QUERIES = 20  # at once: their scores are 80 MB of a million vectors
WARMING = 50
Ask = Callable[[int, float], list[int]]  # a query's number and how much passes, to documents' numbers


@dataclass(frozen=True, slots=True)
class Way:
    """A way of asking, with the percentiles of the repeats."""

    passing: float
    recall: float
    p50_ms: Spread
    p99_ms: Spread

    def cells(self) -> list[str]:
        return [f"{100 * self.passing:g} %", f"{self.recall:.4f}", self.p50_ms.words(), self.p99_ms.words()]


@dataclass(frozen=True, slots=True)
class Data:
    """Vectors of documents, which are numbered from 0, and queries."""

    vectors: Vectors
    queries: Vectors
    repeats: int
    allowed: dict[float, NDArray[np.int64] | None]  # by how much passes: the documents that do; None: all
    truths: dict[float, NDArray[np.int64]]  # by how much passes: the nearest documents of each query

    @classmethod
    def of(cls, vectors: Vectors, queries: Vectors, repeats: int) -> "Data":
        allowed: dict[float, NDArray[np.int64] | None] = {}
        truths = {}
        for passing, where in FILTERS.items():
            if where is None:
                allowed[passing], truths[passing] = None, exact(vectors, queries)
            else:
                rows = np.flatnonzero([where.items() <= metadata(at).items() for at in range(len(vectors))])
                allowed[passing], truths[passing] = rows, rows[exact(vectors[rows], queries)]
        return cls(vectors, queries, repeats, allowed, truths)

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    def steps(self) -> Iterator[range]:
        for start in range(0, len(self.vectors), STEP_ROWS):
            yield range(start, min(start + STEP_ROWS, len(self.vectors)))


def metadata(number: int) -> dict[str, Any]:
    """A document's fields, none of which says anything of its vector."""
    return {"half": number % 2 == 0, "year": number // 2 % 100, "owner": number * 7919 % 10_000}


def measured(ask: Ask, data: Data) -> list[Way]:
    """Every query with every filter."""
    found = []
    for passing, truth in data.truths.items():
        say(f"asking with {passing:.2%} of the documents passing")
        for at in range(min(WARMING, len(data.queries))):
            ask(at, passing)
        percentiles, right = [], []
        for _ in range(data.repeats):
            seconds = []
            for at, best in enumerate(truth):
                started = time.perf_counter()
                documents = ask(at, passing)
                seconds.append(time.perf_counter() - started)
                right.append(np.isin(best, documents).mean())
            percentiles.append(p50_p99(np.array(seconds) * 1000))
        p50, p99 = (Spread.of(values) for values in zip(*percentiles, strict=True))
        found.append(Way(passing, float(np.mean(right)), p50, p99))
    return found


def exact(vectors: Vectors, queries: Vectors) -> NDArray[np.int64]:
    """The `K` nearest rows of each query (q, K), or as many as there are, by numpy, in no order."""
    count = min(K, len(vectors))
    groups = (queries[at : at + EXACT_QUERIES] for at in range(0, len(queries), EXACT_QUERIES))
    return np.vstack([np.argpartition(-(some @ vectors.T), count - 1)[:, :count] for some in groups])
