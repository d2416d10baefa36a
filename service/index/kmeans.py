"""Directions that vectors gather around: spherical k-means, on one thread, and soon ended when asked to.

FAISS has its own, which cannot be ended: one step over a hundred thousand rows takes seconds.
"""

from collections.abc import Callable, Iterator

import faiss
import numpy as np
from numpy.typing import NDArray

from service.index.segments import CHUNK_ROWS, Cancelled, Vectors

STEPS = 10  # later ones move little: FAISS takes as many for its inverted lists


def cluster(sample: Vectors, count: int, cancelled: Callable[[], bool]) -> Vectors:
    """`count` unit vectors (count, d): each the mean direction of those rows of `sample` that it is next to.

    `sample` is in random order, and has at least `count` rows.

    Raises:
        Cancelled: `cancelled()` became true.

    """
    chance = np.random.default_rng(0)
    centres = _unit(sample[:count].copy())
    for _ in range(STEPS):
        sums = np.zeros_like(centres)
        for chunk, labels in assigned(sample, centres, cancelled):
            order = np.argsort(labels, kind="stable")
            found, starts = np.unique(labels[order], return_index=True)
            sums[found] += np.add.reduceat(chunk[order], starts)
        empty = np.flatnonzero(~sums.any(axis=1))
        sums[empty] = sample[chance.integers(0, len(sample), len(empty))]  # begins anew elsewhere
        centres = _unit(sums)
    return centres


def assigned(
    rows: Vectors, centres: Vectors, cancelled: Callable[[], bool]
) -> Iterator[tuple[Vectors, NDArray[np.int64]]]:
    """`rows` in chunks, with the number of the centre that each row is next to.

    Raises:
        Cancelled: `cancelled()` became true.

    """
    quantizer = faiss.IndexFlatIP(centres.shape[1])
    quantizer.add(centres)
    for start in range(0, len(rows), CHUNK_ROWS):
        if cancelled():
            raise Cancelled
        chunk = rows[start : start + CHUNK_ROWS]
        yield chunk, quantizer.search(chunk, 1)[1][:, 0]


def _unit(vectors: Vectors) -> Vectors:
    """Scale `vectors` to length 1, where they have a direction."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return vectors
