"""Fuse two rankings: documents near a query's meaning, and documents that have its words.

    fused = w · (1 + cosine) / (1 + best cosine) + (1 - w) · bm25 / best bm25        w = 0.8 unless given

Each ranking's scores are brought to the range from 0, the least that is possible, to 1, the best of this
query, and weighed. A document without the query's words has a bm25 of 0. A document that is missing from the
dense ranking has the least cosine of that ranking: it is no nearer than the last of them, and with 0 a
document found by its words alone would never reach the first page. So a score is at most 1, and the first of
both rankings has it.

This is the convex combination of Bruch, Gai and Ingber (An Analysis of Fusion Functions for Hybrid Retrieval,
2023), with their weight. Reciprocal rank fusion (Cormack et al. 2009), which knows places and no scores, was
tried beside it: docs/SEARCH.md has the figures.
"""

from collections.abc import Mapping

import numpy as np

from models.manifest import SearchDefaults

DENSE_WEIGHT = 0.8
LEAST_COSINE = -1.0


def fuse(
    dense: Mapping[int, float], lexical: Mapping[int, float], weight: float = DENSE_WEIGHT
) -> dict[int, np.float32]:
    """Scores by revision, in no order, from those of the two rankings: cosines, and bm25 above 0.

    weight: of the dense ranking, from 0 to 1.
    """
    near, worded = _in_range(dense, LEAST_COSINE), _in_range(lexical, 0.0)
    missing = min(near.values(), default=0.0)
    return {
        revision: np.float32(weight * near.get(revision, missing) + (1 - weight) * worded.get(revision, 0.0))
        for revision in near | worded
    }


def weight_of(learned: SearchDefaults | None) -> float:
    """The weight of the vectors in a collection's hybrid search: what was learned for it, else the usual."""
    return learned.weight if learned and learned.mode == "hybrid" else DENSE_WEIGHT


def _in_range(scores: Mapping[int, float], least: float) -> dict[int, float]:
    """From 0 for `least` to 1 for the best; nothing if all are as far away as can be."""
    span = max(scores.values(), default=least) - least
    return {revision: (score - least) / span for revision, score in scores.items()} if span > 0 else {}
