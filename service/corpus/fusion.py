"""One ranking out of two: what a model finds near a query's meaning, and what has its words.

    fused = 0.8 · (1 + cosine) / (1 + best cosine) + 0.2 · bm25 / best bm25

Each ranking's scores are brought to the range from 0, the least that is possible, to 1, the best of this
query, and weighed; a document that one of them lacks has 0 there. So a score is at most 1, which only the
first of both rankings reaches.

This is the convex combination of Bruch, Gai and Ingber (An Analysis of Fusion Functions for Hybrid Retrieval,
2023), with their weight. Reciprocal rank fusion (Cormack et al. 2009), which knows places and no scores, was
tried beside it: docs/SEARCH.md has the figures.
"""

from collections.abc import Mapping

import numpy as np

DENSE_WEIGHT = 0.8
LEAST_COSINE = -1.0


def fuse(dense: Mapping[int, float], lexical: Mapping[int, float]) -> dict[int, np.float32]:
    """Scores by revision, in no order, from those of the two rankings: cosines, and bm25 above 0."""
    fused: dict[int, float] = {}
    for weight, least, scores in (
        (DENSE_WEIGHT, LEAST_COSINE, dense),
        (1 - DENSE_WEIGHT, 0.0, lexical),
    ):
        span = max(scores.values(), default=0.0) - least
        if span <= 0:  # all are as far away as can be
            continue
        for revision, score in scores.items():
            fused[revision] = fused.get(revision, 0.0) + weight * (score - least) / span
    return {revision: np.float32(score) for revision, score in fused.items()}
