"""Finds the nearest rows of each row of a matrix. Only commands use it."""

from collections.abc import Callable

import faiss
import numpy as np
from numpy.typing import NDArray

from service.index.segments import Vectors

ROWS = 1024  # rows per FAISS call


def nearest_rows(
    rows: Vectors, count: int, tell: Callable[[int], None]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns the `count` nearest rows of each of `rows`, unit vectors (n, d), and their cosines.

    Both results have shape (n, count). A row is nearest to itself or to a duplicate. `tell` receives the
    number of finished rows.
    """
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    found = np.empty((len(rows), count), np.int64)
    cosines = np.empty((len(rows), count), np.float32)
    for start in range(0, len(rows), ROWS):
        cosines[start : start + ROWS], found[start : start + ROWS] = index.search(
            rows[start : start + ROWS], count
        )
        tell(min(start + ROWS, len(rows)))
    return found, cosines
