"""Measures the range for 8-bit vectors of a version when the version is published.

All components share one symmetric range, which keeps inner products proportional. The range is measured on
fixed texts, so int8 vectors do not depend on requests.
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
    """Measures the range of a version.

    `verified` has the unit vectors of PROOF_TEXTS, shape (texts, dimension).
    """
    vectors = encoder.encode(short_texts(_SHORT_TEXTS)).vectors
    largest = max(float(np.abs(vectors).max()), float(np.abs(verified).max()))
    limit = min(1.0, _MARGIN * largest)
    return Calibration(int8=Int8(limit=limit, texts=len(vectors) + len(verified)))


def to_int8(vectors: NDArray[np.float32], range_: Int8, full: int) -> NDArray[np.int8]:
    """Quantizes unit vectors, shape (n, d), in steps of limit/127, and clips them to -127..127.

    Args:
        vectors: Unit vectors, which may be truncated to d numbers and normalized again.
        range_: The range for vectors of the full dimension.
        full: The full dimension. Components of truncated vectors are larger by the square root of full/d on
            average, so the range is multiplied by this factor.
    """
    limit = min(1.0, range_.limit * math.sqrt(full / vectors.shape[1]))
    steps = np.rint(vectors.astype(np.float64) * (_LEVELS / limit))
    return np.clip(steps, -_LEVELS, _LEVELS).astype(np.int8)
