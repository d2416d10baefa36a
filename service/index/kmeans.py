"""Clusters vectors and finds the nearest rows of each row. Start reading at `cluster` and `nearest_rows`."""

from collections.abc import Callable, Iterator

import faiss
import numpy as np
from numpy.typing import NDArray

from service.index.segments import CHUNK_ROWS, Cancelled, Vectors

ROWS = 1024  # rows per call of FAISS in `nearest_rows`, which only commands use
STEPS = 10  # FAISS uses the same number for its inverted lists. Later steps change little.


def cluster(sample: Vectors, count: int, cancelled: Callable[[], bool]) -> Vectors:
    """Clusters vectors by spherical k-means on one thread.

    FAISS's own k-means is not used, because it cannot be canceled: one of its steps over 100,000 rows takes
    seconds.

    Args:
        sample: At least `count` rows in random order.
        count: Number of centers.
        cancelled: Returns True if the result is not needed any more.

    Returns:
        The centers as unit vectors, shape (count, d).

    Raises:
        Cancelled: `cancelled()` returned True.
    """
    chance = np.random.default_rng(0)
    centers = unit(sample[:count])
    for _ in range(STEPS):
        sums = np.zeros_like(centers)
        for chunk, labels in assigned(sample, centers, cancelled):
            order = np.argsort(labels, kind="stable")
            found, starts = np.unique(labels[order], return_index=True)
            sums[found] += np.add.reduceat(chunk[order], starts)
        empty = np.flatnonzero(~sums.any(axis=1))
        sums[empty] = sample[chance.integers(0, len(sample), len(empty))]  # Restart at a random row.
        centers = unit(sums)
    return centers


def assigned(
    rows: Vectors, centers: Vectors, cancelled: Callable[[], bool]
) -> Iterator[tuple[Vectors, NDArray[np.int64]]]:
    """Yields `rows` in chunks. Each chunk comes with the number of the nearest center for each of its rows.

    Raises:
        Cancelled: `cancelled()` returned True.
    """
    quantizer = faiss.IndexFlatIP(centers.shape[1])
    quantizer.add(centers)
    for start in range(0, len(rows), CHUNK_ROWS):
        if cancelled():
            raise Cancelled
        chunk = rows[start : start + CHUNK_ROWS]
        yield chunk, quantizer.search(chunk, 1)[1][:, 0]


def unit(vectors: Vectors) -> Vectors:
    """Scales vectors to length 1, shape (n, d). A zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return scaled


def nearest_rows(
    rows: Vectors, count: int, tell: Callable[[int], None]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Finds the nearest rows of each row.

    The first result of a row is the row itself or a duplicate.

    Args:
        rows: Unit vectors, shape (n, d).
        count: Number of rows to find for each row.
        tell: Receives the number of finished rows.

    Returns:
        Positions of the nearest rows, and their cosines, both of shape (n, count).
    """
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    found = np.empty((len(rows), count), np.int64)
    cosines = np.empty((len(rows), count), np.float32)
    for start in range(0, len(rows), ROWS):
        block = slice(start, start + ROWS)
        cosines[block], found[block] = index.search(rows[block], count)
        tell(min(start + ROWS, len(rows)))
    return found, cosines
