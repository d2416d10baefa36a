"""Fuses the rankings of dense search and keyword search for hybrid search. Start at `fuse`.

    fused = w · (1 + cosine) / (1 + best cosine) + (1 - w) · bm25 / best bm25        default: w = 0.8

This is the convex combination of Bruch, Gai and Ingber (An Analysis of Fusion Functions for Hybrid Retrieval,
2023), with their weight. A document that is missing from the dense ranking gets the smallest cosine of that
ranking. With 0, documents that only the keyword search found would never reach the first page.
"""

from collections.abc import Mapping

import numpy as np

from models.manifest import SearchDefaults

DENSE_WEIGHT = 0.8
MIN_COSINE = -1.0


def fuse(
    dense: Mapping[int, float], lexical: Mapping[int, float], weight: float = DENSE_WEIGHT
) -> dict[int, np.float32]:
    """Fuses scores by revision: cosines, and BM25 scores above 0. `weight` of the dense ranking is 0 to 1."""
    near, worded = _in_range(dense, MIN_COSINE), _in_range(lexical, 0.0)
    missing = min(near.values(), default=0.0)
    return {
        revision: np.float32(weight * near.get(revision, missing) + (1 - weight) * worded.get(revision, 0.0))
        for revision in near | worded
    }


def get_weight(learned: SearchDefaults | None) -> float:
    """Returns the learned weight of vectors in a collection's hybrid search, or the default."""
    return learned.weight if learned and learned.mode == "hybrid" else DENSE_WEIGHT


def _in_range(scores: Mapping[int, float], least: float) -> dict[int, float]:
    """Scales scores from 0 (for `least`) to 1 (for the best). Returns nothing if no score exceeds `least`."""
    span = max(scores.values(), default=least) - least
    return {revision: (score - least) / span for revision, score in scores.items()} if span > 0 else {}
