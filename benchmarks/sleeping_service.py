"""The service with an encoder that only sleeps: `python -m benchmarks.sleeping_service`, for replicas.py.

A forward pass sleeps SLEEP_MS milliseconds for each text and uses no processor. So many replicas can share a
machine, and shared parts limit them. A text's vector is the mean of random vectors of its tokens. Texts with
common words are near each other, as with a real model.
"""

import os
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from service.__main__ import main

SLEEP_MS = "BENCH_SLEEP_MS"
TOKEN_VECTORS = 4096  # a token's vector is chosen by its number modulo this
SLEEP_SECONDS = float(os.environ.get(SLEEP_MS, "0")) / 1000


@cache
def _token_vectors(dimension: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((TOKEN_VECTORS, dimension), np.float32)


def _forward(self: Encoder, ids: Sequence[Sequence[int]], **_how: Any) -> NDArray[np.float32]:
    time.sleep(SLEEP_SECONDS * len(ids))
    tokens = _token_vectors(self.dimension)
    vectors = np.array([tokens[np.remainder(row, TOKEN_VECTORS)].mean(axis=0) for row in ids], np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


if __name__ == "__main__":
    Encoder.forward = _forward  # type: ignore[method-assign]
    main()
