"""A batch that does not fit into the device's memory: smaller ones may.

ONNX Runtime has no exception of its own for it, and none of its classes is Python's RuntimeError. Its memory
pool says "Available memory of N is smaller than requested bytes of M" at its limit (`Fail`), and "Failed to
allocate memory for requested buffer of size N" where the device has no more (`RuntimeException`). cuBLAS and
cuDNN, which allocate beside the pool, say CUBLAS_STATUS_ALLOC_FAILED and CUDNN_STATUS_ALLOC_FAILED; CUDA
itself says "out of memory" or cudaErrorMemoryAllocation. So it is known by its words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.errors import DeviceMemory

log = logging.getLogger(__name__)

Vectors = NDArray[np.float32]
_WORDS = (
    "failed to allocate memory",
    "smaller than requested bytes",
    "out of memory",
    "memoryallocation",
    "status_alloc_failed",
)


def is_exhaustion(error: Exception) -> bool:
    """True if `error` says that memory ran out; `bad_alloc` is C++'s word for it."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or "bad_alloc" in words or any(part in words for part in _WORDS)


class Halving:
    """Computes a batch, in halves where the whole does not fit, down to single rows.

    It is said in the log once: which shapes fit hardly changes, and every batch would say it again.
    """

    def __init__(self) -> None:
        self._said = False

    def run(self, compute: Callable[[slice], Vectors], rows: int, length: int, start: int = 0) -> Vectors:
        """`compute` of `rows` from `start` on, (rows, dimension).

        compute: vectors of the rows in a slice; what it raises else is passed on.

        Raises:
            DeviceMemory: a single row does not fit.

        """
        failure = None
        try:
            return compute(slice(start, start + rows))
        except Exception as error:
            if not is_exhaustion(error):
                raise
            failure = error
        # Outside of the handler: the exception's frames hold what the batch had allocated.
        if rows == 1:
            raise DeviceMemory(length) from failure
        del failure
        if not self._said:
            self._said = True
            log.warning(
                "A batch of %d x %d tokens does not fit into the device's memory and is computed in halves; "
                "so will others be. More memory (SIMILE_GPU_MEM_MB, or less that others use) is faster.",
                rows,
                length,
            )
        half = rows // 2
        first = self.run(compute, half, length, start)
        return np.concatenate([first, self.run(compute, rows - half, length, start + half)])
