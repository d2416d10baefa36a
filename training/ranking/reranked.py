"""Learn how much the score of a reranker counts in a ranking. Start at `add_weight`.

Without a learned weight, the reranker orders the best hits of the ranking alone (`ALONE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from models.search.ranking import RERANKED, Ranking, RerankerWeight, standardize_late
from training.ranking.cross_validation import COMING, draw_folds
from training.ranking.examples import Example, build_memory, score_candidates
from training.ranking.fitting import Procedure, Weights, fit, fit_linear

ALONE = RerankerWeight(fingerprint="0" * 64, weight=1e6)
_FOLDS = 3  # Of five, which have enough queries for a single weight.
_LEAST = 0.01  # Of the weight of the ranking score, by which that of the reranker is divided.


def add_weight(ranking: Ranking, examples: Sequence[Example], prior: Weights, fingerprint: str) -> Ranking:
    """Returns the ranking with a weight for a reranker.

    The weight is fitted to queries that the ranking has not learned, because it orders those too well.

    Args:
        ranking: The ranking.
        examples: The judged queries that it was fitted to, with the scores of the reranker.
        prior: The prior that it was fitted with.
        fingerprint: Fingerprint of the reranker.
    """
    rows = []
    for fold in islice(draw_folds(examples, COMING), _FOLDS):
        fitted = fit(fold.train, prior, Procedure.of(ranking))
        memory = build_memory(fold.train)
        for at in fold.test:
            example = examples[at]
            if example.reranked is None:
                continue
            scores = score_candidates(example, fitted, memory)
            best = np.argsort(-scores, kind="stable")[:RERANKED]
            best = best[~np.isnan(example.reranked[best])]
            gains = example.gains[best]
            if gains.any():
                inputs = standardize_late(np.column_stack([scores, example.reranked])[best])
                rows.append((inputs, gains, np.log(np.maximum(example.weights[best], 1e-9))))
    own, others = fit_linear(rows, np.array([1.0, 0.0])).tolist()
    weight = round(max(0.0, others) / max(own, _LEAST), 6)
    return ranking.model_copy(update={"reranker": RerankerWeight(fingerprint=fingerprint, weight=weight)})


def leave_alone(ranking: Ranking) -> Ranking:
    """Returns the ranking for a reranker that orders the best hits alone."""
    return ranking.model_copy(update={"reranker": ALONE})
