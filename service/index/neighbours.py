"""The nearest rows of each row of a matrix, for commands."""

from collections.abc import Callable

import faiss
import numpy as np
from numpy.typing import NDArray

from service.index.segments import Vectors

ROWS = 1024  # that are compared in one call


def nearest_rows(
    rows: Vectors, count: int, tell: Callable[[int], None]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The `count` nearest rows of each of the unit vectors `rows` (n, d), and their cosines, nearest first.

    A row's nearest one is itself, or its copy. `tell` is told how many rows are done.
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
