"""Measures the range of a version's 8-bit vectors when it is published.

One symmetric range keeps inner products proportional. Fixed texts keep int8 vectors independent of requests.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.manifest import Calibration, Int8
from models.tokens.texts import short_texts

_SHORT_TEXTS = 256
_MARGIN = 1.25  # Factor over the largest measured component; larger components are clipped.
_LEVELS = 127  # On each side of zero. -128 is not used, because the range is symmetric.


def calibrate(encoder: Encoder, verified: NDArray[np.float32]) -> Calibration:
    """Calibrates a version. `proved` are its unit vectors of PROOF_TEXTS, (texts, dimension)."""
    vectors = encoder.encode(short_texts(_SHORT_TEXTS)).vectors
    largest = max(float(np.abs(vectors).max()), float(np.abs(verified).max()))
    limit = min(1.0, _MARGIN * largest)
    return Calibration(int8=Int8(limit=limit, texts=len(vectors) + len(verified)))


def to_int8(vectors: NDArray[np.float32], range_: Int8, full: int) -> NDArray[np.int8]:
    """Quantizes unit vectors (n, d) in steps of limit/127, clipped to -127..127.

    Args:
        full: The model's dimension. Vectors truncated to d numbers and normalized again have components that
            are larger by the square root of full/d on average, so the range grows by this factor.
    """
    limit = min(1.0, range_.limit * math.sqrt(full / vectors.shape[1]))
    steps = np.rint(vectors.astype(np.float64) * (_LEVELS / limit))
    return np.clip(steps, -_LEVELS, _LEVELS).astype(np.int8)
