"""Fuses the rankings of dense search and keyword search for hybrid search. Start at `Fusion`.

    fused = w · (cosine - floor) / (best cosine - floor) + (1 - w) · c · bm25 / best bm25        w = 0.5

This is the convex combination of Bruch, Gai and Ingber (An Analysis of Fusion Functions for Hybrid Retrieval,
2023). The floor is the mean cosine of unrelated texts (`Encoder.unrelated`), or the smallest cosine among
the candidates if that is lower. E5 models give unrelated texts 0.8, all-MiniLM 0.07. Text that a model cannot
read has cosines far above the floor that hardly differ, so keywords decide there. If the floor were always
the smallest cosine, such vectors would decide as much as good ones.

c is the share of the query's terms that the best keyword hit has, to the power of the spread of the scaled
cosines. So a document with only one of a query's five words does not beat the document of the best cosine.
Where cosines hardly differ, c is about 1. docs/decisions/ranking.md has the measurement.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from models.manifest import FUSION, Mode, SearchDefaults

DENSE_WEIGHT = 0.5


class Part(NamedTuple):
    """What a ranking contributes to a fused score.

    Attributes:
        score: Cosine or BM25 score. None if the ranking does not have the document.
        place: Place in the ranking, from 1. Equal scores share a place.
        weight: Weight of the ranking.
        share: Weight times the scaled score. The fused score is the sum of both shares.
    """

    score: float | None
    place: int | None
    weight: float
    share: float


class Fusion:
    """Fuses two rankings.

    A document that is missing from the dense ranking gets the smallest cosine of that ranking, because all
    cosines may be far above the floor.

    Args:
        dense: Cosines, by the revision of the document.
        lexical: BM25 scores, all above 0, by the revision of the document.
        weight: Weight of the dense ranking, 0 to 1.
        unrelated: Mean cosine of unrelated texts. 1 if unknown.
        cover: Share of the query's terms in the best hit of `lexical` (features.get_cover), above 0.
    """

    def __init__(
        self,
        dense: Mapping[int, float],
        lexical: Mapping[int, float],
        weight: float = DENSE_WEIGHT,
        unrelated: float = 1.0,
        cover: float = 1.0,
    ) -> None:
        self._dense, self._lexical = dense, lexical
        self._near = _scale(dense, get_floor(dense, unrelated))
        self._worded = _scale(lexical, 0.0)
        self._missing = min(self._near.values(), default=0.0)
        self._weight, self._rest = weight, (1 - weight) * cover ** (1 - self._missing)

    def get_scores(self) -> dict[int, np.float32]:
        """Returns the fused scores, by the revision of the document."""
        near, worded, weight, rest = self._near, self._worded, self._weight, self._rest
        return {
            revision: np.float32(
                weight * near.get(revision, self._missing) + rest * worded.get(revision, 0.0)
            )
            for revision in near | worded
        }

    def explain(self, revision: int) -> dict[str, Part]:
        """Returns what each ranking contributes to the score of a document."""
        near, worded = self._near.get(revision, self._missing), self._worded.get(revision, 0.0)
        return {
            "dense": _explain(self._dense, revision, self._weight, near),
            "lexical": _explain(self._lexical, revision, self._rest, worded),
        }


def fuse(
    dense: Mapping[int, float],
    lexical: Mapping[int, float],
    weight: float = DENSE_WEIGHT,
    unrelated: float = 1.0,
    cover: float = 1.0,
) -> dict[int, np.float32]:
    """Returns the fused scores of two rankings, by the revision of the document. Arguments as in `Fusion`."""
    return Fusion(dense, lexical, weight, unrelated, cover).get_scores()


def _explain(scores: Mapping[int, float], revision: int, weight: float, scaled: float) -> Part:
    score = scores.get(revision)
    place = None if score is None else 1 + sum(other > score for other in scores.values())
    return Part(score, place, weight, weight * scaled)


def get_floor(dense: Mapping[int, float], unrelated: float) -> float:
    """Returns the cosine that is scaled to 0: `unrelated`, or the smallest cosine if that is lower."""
    return min(unrelated, min(dense.values(), default=unrelated))


def get_mode(learned: SearchDefaults | None) -> Mode:
    """Returns the search mode that a collection learned, or the default."""
    return learned.mode if learned else "hybrid"


def get_weight(learned: SearchDefaults | None) -> float:
    """Returns the weight of vectors in hybrid search that a collection learned, or the default.

    Weights that older releases learned for another formula are ignored.
    """
    fits = learned is not None and learned.mode == "hybrid" and learned.fusion == FUSION
    return learned.weight if learned and fits else DENSE_WEIGHT


def _scale(scores: Mapping[int, float], floor: float) -> dict[int, float]:
    """Scales scores so that `floor` becomes 0 and the best score 1. If the best is `floor`, all become 1."""
    span = max(scores.values(), default=floor) - floor
    return {revision: (score - floor) / span if span > 0 else 1.0 for revision, score in scores.items()}
