"""Fuses the rankings of dense search and keyword search for hybrid search. Start at `fuse`.

    fused = w · (1 + cosine) / (1 + best cosine) + (1 - w) · bm25 / best bm25        default: w = 0.8

This is the convex combination of Bruch, Gai and Ingber (An Analysis of Fusion Functions for Hybrid Retrieval,
2023), with their weight. A document that is missing from the dense ranking gets the smallest cosine in that
ranking. With a cosine of 0, a document that only the keyword search found would never reach the first page.
"""

from collections.abc import Mapping

import numpy as np

from models.manifest import SearchDefaults

DENSE_WEIGHT = 0.8
MIN_COSINE = -1.0


def fuse(
    dense: Mapping[int, float], lexical: Mapping[int, float], weight: float = DENSE_WEIGHT
) -> dict[int, np.float32]:
    """Fuses two rankings. Documents are identified by revision.

    Args:
        dense: Cosines.
        lexical: BM25 scores, all above 0.
        weight: Weight of the dense ranking, 0 to 1.
    """
    near, worded = _in_range(dense, MIN_COSINE), _in_range(lexical, 0.0)
    missing = min(near.values(), default=0.0)
    return {
        revision: np.float32(weight * near.get(revision, missing) + (1 - weight) * worded.get(revision, 0.0))
        for revision in near | worded
    }


def get_weight(learned: SearchDefaults | None) -> float:
    """Returns the weight of vectors in hybrid search that a collection learned, or the default."""
    return learned.weight if learned and learned.mode == "hybrid" else DENSE_WEIGHT


def _in_range(scores: Mapping[int, float], least: float) -> dict[int, float]:
    """Scales scores so that `least` becomes 0 and the best score 1.

    Returns nothing if no score exceeds `least`.
    """
    span = max(scores.values(), default=least) - least
    return {revision: (score - least) / span for revision, score in scores.items()} if span > 0 else {}
