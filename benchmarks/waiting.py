"""The service with an encoder that waits and computes nothing: `python -m benchmarks.waiting`.

A forward pass takes WAIT_MS milliseconds for each of its texts, and no processor. So many services share a
machine, and what limits them is what they share. A text's vector is the mean of random vectors of its tokens:
texts with words in common are near each other, as a model has them.
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

WAIT_MS = "BENCH_WAIT_MS"
WORDS = 4096  # vectors; a token has that of its number's remainder
WAIT_SECONDS = float(os.environ.get(WAIT_MS, "0")) / 1000


@cache
def _words(dimension: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((WORDS, dimension), np.float32)


def _forward(self: Encoder, ids: Sequence[Sequence[int]], **_how: Any) -> NDArray[np.float32]:
    time.sleep(WAIT_SECONDS * len(ids))
    words = _words(self.dimension)
    vectors = np.array([words[np.remainder(row, WORDS)].mean(axis=0) for row in ids], np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


if __name__ == "__main__":
    Encoder.forward = _forward  # type: ignore[method-assign]
    main()
