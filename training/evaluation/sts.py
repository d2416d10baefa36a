"""Semantic textual similarity: the rank correlation of cosines with human gold scores of sentence pairs.

Papers report `spearman_all`, the correlation over all subsets of a year together (SimCSE, Gao et al. 2021,
appendix B). The mean over subsets may differ by several points, so it is computed as well. No regressor is
trained.
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
    """Returns correlations from -1 to 1, and counts of pairs. Correlations of constant values are NaN."""
    cosine, undefined = cosines(encode(pairs.left), encode(pairs.right))
    subset = np.array(pairs.subset)
    parts = [subset == name for name in dict.fromkeys(pairs.subset)]
    each = [spearman(cosine[part], pairs.gold[part]) for part in parts]
    return {
        "spearman_all": spearman(cosine, pairs.gold),
        "spearman_mean": float(np.mean(each)),  # over subsets, with equal weights
        # Mean over subsets, weighted by their numbers of pairs.
        "spearman_wmean": float(np.average(each, weights=[part.sum() for part in parts])),
        "pearson_all": pearson(cosine, pairs.gold),
        "pairs": len(pairs.gold),
        "unscored": pairs.unscored,  # rows without a gold score, left out
        "undefined": undefined,  # cosines that were not finite and count as 0
    }


def sample(pairs: Pairs, encode: Encode) -> tuple[Floats, Floats]:
    """Returns the gold scores and the cosines of all pairs, shape (n,) each."""
    return pairs.gold, cosines(encode(pairs.left), encode(pairs.right))[0]


def cosines(left: Vectors, right: Vectors) -> tuple[Floats, int]:
    """Computes the cosine of row i of `left` and row i of `right`, both of shape (n, d).

    Returns:
        The cosines, shape (n,), and the number of cosines that were not finite. These are set to 0.
    """
    a, b = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):  # a vector of length 0 or with an infinity in it
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosine: Floats = np.einsum("nd,nd->n", a, b) / lengths
    undefined = ~np.isfinite(cosine)
    cosine[undefined] = 0
    return cosine, int(undefined.sum())


def spearman(x: Floats, y: Floats) -> float:
    """Returns Spearman's rank correlation of two arrays of shape (n,), or NaN if one is constant."""
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
