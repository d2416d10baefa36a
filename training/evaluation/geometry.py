"""The shape of the space: alignment and uniformity (Wang & Isola 2020), as SimCSE reports them.

Both are of vectors of length 1, and lower is better; without normalising they are other numbers. They
explain a score and do not replace it: a model may be better in both and worse at similarity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .data import Pairs
from .encoding import Encode, Vectors

_ALIKE = 4.0  # a pair with a gold score above it means the same (SimCSE, section 3)
_ROWS = 512  # of the matrix of cosines at a time: 64 MB for STS-B's 15,500 sentences


class Geometry(NamedTuple):
    alignment: float  # 0 to 4: mean squared distance of pairs that mean the same
    uniformity: float  # -8 to 0: log of the mean of exp(-2 squared distance); 0 when all vectors are equal
    pairs: int
    sentences: int


def geometry(splits: Iterable[Pairs], encode: Encode) -> Geometry:
    """Alignment over pairs with a gold score above 4, uniformity over the distinct sentences of all splits.

    NaN where a vector has no direction (length 0, or not finite), or where there is nothing to measure.
    """
    left: list[str] = []
    right: list[str] = []
    sentences: dict[str, None] = {}
    for pairs in splits:
        alike = np.flatnonzero(pairs.gold > _ALIKE)
        left += [pairs.left[at] for at in alike]
        right += [pairs.right[at] for at in alike]
        sentences |= dict.fromkeys(pairs.left + pairs.right)
    return Geometry(
        alignment=alignment(encode(left), encode(right)) if left else math.nan,
        uniformity=uniformity(encode(list(sentences))),
        pairs=len(left),
        sentences=len(sentences),
    )


def alignment(left: Vectors, right: Vectors) -> float:
    """(n, d) twice -> the mean over rows of |x - y|², x and y of length 1."""
    return float(np.square(_directions(left) - _directions(right)).sum(axis=1).mean())


def uniformity(vectors: Vectors) -> float:
    """(n, d), n > 1 -> log of the mean over i < j of exp(-2|x_i - x_j|²), each x of length 1.

    |x - y|² = 2 - 2 cos, so a term is exp(4 cos - 4), between exp(-8) and 1: their sum in float64 needs no
    shift. One mean over all pairs; a mean of the logarithms of parts would be another number.
    """
    x = _directions(vectors)
    n = len(x)
    if n < 2 or not np.isfinite(x).all():
        return math.nan
    total = 0.0
    for start in range(0, n, _ROWS):
        rows = x[start : start + _ROWS]
        terms = np.exp(4 * (rows @ x[start:].T) - 4)
        among = terms[:, : len(rows)]  # symmetric, with each vector's term with itself on the diagonal
        total += (among.sum() - among.trace()) / 2 + terms[:, len(rows) :].sum()
    return math.log(total / (n * (n - 1) / 2))


def _directions(vectors: Vectors) -> NDArray[np.float64]:
    """Each row at length 1, in float64; rows without a direction become NaN."""
    x = vectors.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        directions: NDArray[np.float64] = x / np.linalg.norm(x, axis=1, keepdims=True)
    return directions
