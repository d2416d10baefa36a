"""Calibration: the range that 8-bit vectors of a version span, found once, when it is published.

One symmetric range for all dimensions, so that inner products of int8 vectors stay proportional to those of
the floats. It comes from texts that are the same for every model, never from a request: a text's int8 vector
does not depend on what it is sent with.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.manifest import Calibration, Int8
from models.tokens.texts import short_texts

_SHORT_TEXTS = 256
_MARGIN = 1.25  # over the largest component seen: what is beyond the range is clipped
_LEVELS = 127  # on each side of zero; -128 is not used, or the range would not be symmetric


def calibrate(encoder: Encoder, proved: NDArray[np.float32]) -> Calibration:
    """The calibration of a version; `proved` (texts, dimension) are its unit vectors of PROOF_TEXTS."""
    vectors = encoder.encode(short_texts(_SHORT_TEXTS)).vectors
    largest = max(float(np.abs(vectors).max()), float(np.abs(proved).max()))
    # No component of a unit vector is larger than 1.
    limit = min(1.0, _MARGIN * largest)
    return Calibration(int8=Int8(limit=limit, texts=len(vectors) + len(proved)))


def to_int8(vectors: NDArray[np.float32], range_: Int8, full: int) -> NDArray[np.int8]:
    """Unit vectors (n, d) in steps of limit/127, clipped to -127..127.

    full: the model's own dimension. Vectors that were cut to fewer and normalised again have larger
    components, by the square root of full/d on average, and the range grows alike.
    """
    limit = min(1.0, range_.limit * math.sqrt(full / vectors.shape[1]))
    steps = np.rint(vectors.astype(np.float64) * (_LEVELS / limit))
    return np.clip(steps, -_LEVELS, _LEVELS).astype(np.int8)
