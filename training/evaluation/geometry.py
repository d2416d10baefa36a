"""Measure the geometry of a vector space: alignment, uniformity, anisotropy and effective rank.

Alignment is the distance of similar pairs, and uniformity says how evenly vectors spread over the sphere.
Both follow Wang & Isola (2020), as SimCSE reports them, and lower is better. The mean cosine of two sentences
is the anisotropy of Ethayarajh (2019): 0 if directions spread evenly, 1 if all are equal. The
effective rank (Roy & Vetterli 2007) says how many directions the vectors use.

All figures are over vectors of length 1. A model may be better in every figure and still worse at similarity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.data import Pairs
from training.evaluation.encoding import Encode, Vectors

_ALIKE = 4.0  # pairs with a higher gold score mean the same (SimCSE, section 3)
_ROWS = 512  # rows of the cosine matrix in memory: 64 MB for the 15,500 sentences of STS-B


def geometry(splits: Iterable[Pairs], encode: Encode) -> dict[str, Any]:
    """Returns alignment over pairs with a gold score above 4, and other figures over distinct sentences.

    A figure is NaN without data, or if a vector has no direction (length 0 or not finite).
    """
    left: list[str] = []
    right: list[str] = []
    golds: list[NDArray[np.float64]] = []
    for pairs in splits:
        left += pairs.left
        right += pairs.right
        golds.append(pairs.gold)
    gold = np.concatenate(golds)
    x, y = encode(left), encode(right)
    alike = gold > _ALIKE
    sentences = encode(list(dict.fromkeys(left + right)))
    return {
        "alignment": alignment(x[alike], y[alike]) if alike.any() else math.nan,
        "uniformity": uniformity(sentences),
        **spread(sentences),
        "pairs": int(alike.sum()),  # pairs with the same meaning
        "sentences": len(sentences),
    }


def alignment(left: Vectors, right: Vectors) -> float:
    """Returns the mean over rows of |x - y|² for x and y of length 1, both (n, d)."""
    return float(np.square(directions(left) - directions(right)).sum(axis=1).mean())


def uniformity(vectors: Vectors) -> float:
    """Returns the log of the mean over i < j of exp(-2|x_i - x_j|²), each x of length 1. NaN if n < 2.

    |x - y|² = 2 - 2 cos, so a term is exp(4 cos - 4), between exp(-8) and 1. So the terms can be summed in
    float64 as they are.
    """
    x = directions(vectors)
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


def spread(vectors: Vectors) -> dict[str, Any]:
    """Returns how evenly vectors (n, d) use their dimensions, as mean cosine and energies.

    The vectors are scaled to length 1 and not centered. The numbers are NaN if a vector has no direction
    (length 0 or not finite).

    The mean cosine over i ≠ j is (|Σx|² - n) / (n(n - 1)). The energy of a direction is its squared singular
    value, divided by the sum n of all squared singular values. The effective rank is exp of the entropy of
    the energies. Roy & Vetterli use shares of the singular values instead, which weights small directions
    more.
    """
    x = directions(vectors)
    n, d = x.shape
    if n < 2 or not np.isfinite(x).all():
        return dict.fromkeys(("mean_cosine", "top_energy", "effective_rank"), math.nan) | {"directions": 0}
    mean_cosine = (np.square(x.sum(axis=0)).sum() - n) / (n * (n - 1))
    # Eigenvalues of the (d, d) product are fast for many sentences, and exact to 1e-8 of the largest value.
    squares = np.linalg.eigvalsh(x.T @ x)[::-1][: min(n, d)].clip(min=0)
    energy = squares / squares.sum()
    seen = energy[energy > 0]
    return {
        "mean_cosine": float(mean_cosine),  # -1 to 1, of two different sentences
        "top_energy": float(energy[0]),  # 0 to 1: share of the squared lengths along one direction
        # 1 to the dimension.
        "effective_rank": math.exp(-float((seen * np.log(seen)).sum())),
        "directions": len(energy),
    }


def directions(vectors: Vectors) -> NDArray[np.float64]:
    """Scales each row to length 1, in float64. Rows of length 0 or with infinite values become NaN."""
    x = vectors.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x
