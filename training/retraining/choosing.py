"""Scores on the dev part, which choose the best step of a training or the share of the trained weights.

The dev part is used neither for training nor by the gate (sides.py, heldout.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from training.evaluation.encoding import Choose, Encode
from training.evaluation.modes import whole
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable
from training.model.encoder import TrainedEncoder
from training.retraining import searches as own
from training.retraining.gate.verdict import EACH, JUDGED
from training.runs.dev import Score

CANDIDATES = 300  # texts among which an answer is looked for; each of four looks encodes them all


def choose_by(dev: Mapping[str, Collection]) -> Choose | None:
    """Returns a function that scores a model on the dev part, or None if dev has no queries.

    The function returns one score per judged query, or per query made from text if none is judged. A score is
    the nDCG@10 of hybrid search. Long documents are cut and not split into passages.
    """
    # What people said counts more than what text can be made to say.
    made = {JUDGED: dev[JUDGED]} if JUDGED in dev else dev
    if not made:
        return None

    def figures(encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
        model = Scorable(None, None, None, encode_queries, encode_queries, encode_documents, whole, 0)
        return np.concatenate([each[EACH] for each in own.score(made, own.caching(model)).values()])

    return figures


def compute_score(dev: Mapping[str, Collection]) -> Score | None:
    """Returns a function with the mean score of `choose_by`, for recipes without interpolation of weights."""
    choose = choose_by(dev)
    if choose is None:
        return None

    def score(encoder: TrainedEncoder) -> float:
        return float(choose(encoder.encode_queries, encoder.encode_documents).mean())

    return score
