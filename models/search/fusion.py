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
from numpy.typing import NDArray

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


class Scores(NamedTuple):
    """A ranking: the documents' revisions, shape (n,), without repetitions, and their scores, shape (n,)."""

    revisions: NDArray[np.int64]
    scores: NDArray[np.float64]


class Fusion:
    """Fuses two rankings.

    A document that is missing from the dense ranking gets the smallest cosine of that ranking, because all
    cosines may be far above the floor.

    Args:
        dense: Cosines.
        lexical: BM25 scores, all above 0.
        weight: Weight of the dense ranking, 0 to 1.
        unrelated: Mean cosine of unrelated texts. 1 if unknown.
        cover: Share of the query's terms in the best hit of `lexical` (features.get_cover), above 0.

    Attributes:
        revisions: The documents of both rankings, shape (m,): the dense ranking, then the other documents.
        scores: Their fused scores, shape (m,).
        in_lexical: Their places in `lexical`, shape (m,), or -1.
    """

    def __init__(
        self,
        dense: Scores,
        lexical: Scores,
        weight: float = DENSE_WEIGHT,
        unrelated: float = 1.0,
        cover: float = 1.0,
    ) -> None:
        self._dense, self._lexical, self._weight = dense, lexical, weight
        order = np.argsort(lexical.revisions)
        at = np.searchsorted(lexical.revisions, dense.revisions, sorter=order)
        at = np.append(order, -1)[at]
        is_in_both = np.append(lexical.revisions, -1)[at] == dense.revisions
        at[~is_in_both] = -1
        rest = np.delete(np.arange(len(order)), at[is_in_both])
        self.in_lexical: NDArray[np.int64] = np.concatenate([at, rest])
        self.revisions = np.concatenate([dense.revisions, lexical.revisions[rest]])
        near = _scale(dense.scores, get_floor(dense.scores, unrelated))
        missing = float(near.min()) if len(near) else 0.0
        self._near = np.concatenate([near, np.full(len(rest), missing)])
        self._worded = np.append(_scale(lexical.scores, 0.0), 0.0)[self.in_lexical]
        self._rest = (1 - weight) * cover ** (1 - missing)
        self.scores = (weight * self._near + self._rest * self._worded).astype(np.float32)

    def explain(self, revision: int) -> dict[str, Part]:
        """Returns what each ranking contributes to the score of a document of the fused ranking."""
        at = int(np.flatnonzero(self.revisions == revision)[0])
        return {
            "dense": _explain(self._dense, revision, self._weight, float(self._near[at])),
            "lexical": _explain(self._lexical, revision, self._rest, float(self._worded[at])),
        }


def fuse(
    dense: Mapping[int, float],
    lexical: Mapping[int, float],
    weight: float = DENSE_WEIGHT,
    unrelated: float = 1.0,
    cover: float = 1.0,
) -> dict[int, np.float32]:
    """Returns the fused scores of two rankings, by the revision of the document. Arguments as in `Fusion`."""
    fused = Fusion(_list(dense), _list(lexical), weight, unrelated, cover)
    return dict(zip(fused.revisions.tolist(), fused.scores, strict=True))


def _list(scores: Mapping[int, float]) -> Scores:
    return Scores(np.array([*scores], np.int64), np.array([*scores.values()], np.float64))


def _explain(ranking: Scores, revision: int, weight: float, scaled: float) -> Part:
    score = next(iter(ranking.scores[ranking.revisions == revision].tolist()), None)
    place = None if score is None else 1 + int(np.count_nonzero(ranking.scores > score))
    return Part(score, place, weight, weight * scaled)


def get_floor(cosines: NDArray[np.float64], unrelated: float) -> float:
    """Returns the cosine that is scaled to 0: `unrelated`, or the smallest cosine if that is lower."""
    return float(cosines.min(initial=unrelated))


def get_mode(learned: SearchDefaults | None) -> Mode:
    """Returns the search mode that a collection learned, or the default."""
    return learned.mode if learned else "hybrid"


def get_weight(learned: SearchDefaults | None) -> float:
    """Returns the weight of vectors in hybrid search that a collection learned, or the default.

    Weights that older releases learned for another formula are ignored.
    """
    fits = learned is not None and learned.mode == "hybrid" and learned.fusion == FUSION
    return learned.weight if learned and fits else DENSE_WEIGHT


def _scale(scores: NDArray[np.float64], floor: float) -> NDArray[np.float64]:
    """Scales scores so that `floor` becomes 0 and the best score 1. If the best is `floor`, all become 1."""
    span = float(scores.max(initial=floor)) - floor
    return (scores - floor) / span if span > 0 else np.ones(len(scores))
