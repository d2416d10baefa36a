"""Splits batches that do not fit into the device's memory. Start at `Halving`.

ONNX Runtime has no exception class for exhausted memory, so `is_exhaustion` matches messages. They come from
the memory pool (`Fail` at its limit, `RuntimeException` on a full device), cuBLAS, cuDNN and CUDA.
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
    """Returns True if `error` reports exhausted memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "bad_alloc" in text or any(part in text for part in _WORDS)


class Halving:
    """Computes a batch, in halves if it does not fit, down to single rows. Logs this once."""

    def __init__(self) -> None:
        self._logged = False

    def run(self, compute: Callable[[slice], Vectors], rows: int, length: int, start: int = 0) -> Vectors:
        """Computes `rows` rows of `length` tokens from `start`; returns vectors (rows, dimension).

        Args:
            compute: Returns the vectors of a slice of rows.

        Raises:
            DeviceMemory: A single row does not fit.
        """
        failure = None
        try:
            return compute(slice(start, start + rows))
        except Exception as error:
            if not is_exhaustion(error):
                raise
            failure = error
        # Retry outside of the handler, because the exception's frames keep the batch's memory.
        if rows == 1:
            raise DeviceMemory(length) from failure
        del failure
        if not self._logged:
            self._logged = True
            log.warning(
                "A batch of %d x %d tokens does not fit into the device's memory. Such batches are computed "
                "in halves, which is slower. Raise SIMILE_GPU_MEM_MB, or stop other programs on the device.",
                rows,
                length,
            )
        half = rows // 2
        first = self.run(compute, half, length, start)
        return np.concatenate([first, self.run(compute, rows - half, length, start + half)])
