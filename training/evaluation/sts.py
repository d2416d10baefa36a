"""Semantic textual similarity: how well cosines rank pairs of sentences like the gold scores do.

Papers report `spearman_all`: the subsets of a year are put together and ranked once (SimCSE, Gao et al. 2021,
appendix B). The mean over subsets may differ by points, so it is reported as well. No regressor is trained.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.data import Pairs
from training.evaluation.encoding import Encode, Vectors

Floats = NDArray[np.float64]


def similarity(pairs: Pairs, encode: Encode) -> dict[str, Any]:
    """Returns correlations from -1 to 1, which are NaN if a side is constant, and what was counted."""
    cosine, undefined = cosines(encode(pairs.left), encode(pairs.right))
    subset = np.array(pairs.subset)
    parts = [subset == name for name in dict.fromkeys(pairs.subset)]
    each = [spearman(cosine[part], pairs.gold[part]) for part in parts]
    return {
        "spearman_all": spearman(cosine, pairs.gold),
        "spearman_mean": float(np.mean(each)),  # over subsets, each counting once
        # Over subsets, each counting as often as it has pairs.
        "spearman_wmean": float(np.average(each, weights=[part.sum() for part in parts])),
        "pearson_all": pearson(cosine, pairs.gold),
        "pairs": len(pairs.gold),
        "unscored": pairs.unscored,  # rows without a gold score, left out
        "undefined": undefined,  # cosines that were not finite and count as 0
    }


def sample(pairs: Pairs, encode: Encode) -> tuple[Floats, Floats]:
    """Returns gold scores and cosines, (n,) each, to compare two models pair by pair."""
    return pairs.gold, cosines(encode(pairs.left), encode(pairs.right))[0]


def cosines(left: Vectors, right: Vectors) -> tuple[Floats, int]:
    """Returns the cosines of rows of (n, d) and (n, d), and how many were not finite and became 0."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):  # a vector of length 0 or with an infinity in it
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosine: Floats = np.einsum("nd,nd->n", a, b) / lengths
    undefined = ~np.isfinite(cosine)
    cosine[undefined] = 0
    return cosine, int(undefined.sum())


def spearman(x: Floats, y: Floats) -> float:
    """Returns the rank correlation of (n,) and (n,). Ties share the mean rank. NaN if a side is constant."""
    if _is_constant(x) or _is_constant(y):
        return math.nan
    from scipy.stats import spearmanr  # noqa: PLC0415  a second

    return float(spearmanr(x, y).statistic)


def pearson(x: Floats, y: Floats) -> float:
    if _is_constant(x) or _is_constant(y):
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def _is_constant(values: Floats) -> bool:
    return bool(np.ptp(values) == 0)
