"""Fuses the rankings of dense search and keyword search for hybrid search. Start at `fuse`.

    fused = w · (cosine - least) / (best cosine - least) + (1 - w) · bm25 / best bm25        default: w = 0.5

`least` is the smallest cosine among the candidates. This is the convex combination of Bruch, Gai and Ingber
(An Analysis of Fusion Functions for Hybrid Retrieval, 2023), with min-max scaling of the cosines. Cosines of
E5 models lie between 0.7 and 0.9, those of others between 0 and 0.8. With fixed bounds, keywords would decide
alone for E5 models.
"""

from collections.abc import Mapping

import numpy as np

from models.manifest import FUSION, Mode, SearchDefaults

DENSE_WEIGHT = 0.5


def fuse(
    dense: Mapping[int, float], lexical: Mapping[int, float], weight: float = DENSE_WEIGHT
) -> dict[int, np.float32]:
    """Fuses two rankings. A document that is missing from a ranking gets 0 from it.

    Args:
        dense: Cosines, by the revision of the document.
        lexical: BM25 scores, all above 0, by the revision of the document.
        weight: Weight of the dense ranking, 0 to 1.
    """
    near, worded = _scale(dense, min(dense.values(), default=0.0)), _scale(lexical, 0.0)
    return {
        revision: np.float32(weight * near.get(revision, 0.0) + (1 - weight) * worded.get(revision, 0.0))
        for revision in near | worded
    }


def get_mode(learned: SearchDefaults | None) -> Mode:
    """Returns the search mode that a collection learned, or the default."""
    return learned.mode if learned else "hybrid"


def get_weight(learned: SearchDefaults | None) -> float:
    """Returns the weight of vectors in hybrid search that a collection learned, or the default.

    Weights that older releases learned for another formula are ignored.
    """
    fits = learned is not None and learned.mode == "hybrid" and learned.fusion == FUSION
    return learned.weight if learned and fits else DENSE_WEIGHT


def _scale(scores: Mapping[int, float], least: float) -> dict[int, float]:
    """Scales scores so that `least` becomes 0 and the best score 1. If the best is `least`, all become 1."""
    span = max(scores.values(), default=least) - least
    return {revision: (score - least) / span if span > 0 else 1.0 for revision, score in scores.items()}
