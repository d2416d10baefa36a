"""Figures that choose how much of a training is kept, or which step: searches over dev.

Dev is the part that neither trains nor judges (sides.py, heldout.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from training.evaluation.encoding import Choose, Encode
from training.evaluation.modes import whole
from training.evaluation.retrieval import Collection
from training.model.encoder import TrainedEncoder
from training.retraining import searches as own
from training.retraining.gate.verdict import EACH, JUDGED
from training.runs.dev import Score

CANDIDATES = 300  # texts among which an answer is looked for; each of four looks encodes them all


def choose_by(dev: Mapping[str, Collection]) -> Choose | None:
    """nDCG@10 of each labelled query of dev, else of the searches that text makes; None without any.

    A query's figure is the mean of dense and hybrid search. Documents are read up to the model's limit, and
    not by passages.
    """
    # What people said counts more than what text can be made to say.
    made = {JUDGED: dev[JUDGED]} if JUDGED in dev else dev
    if not made:
        return None

    def figures(encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
        scores = own.score(made, encode_queries, encode_documents, whole)
        return np.concatenate(
            [np.mean([each[EACH], each["hybrid"][EACH]], axis=0) for each in scores.values()]
        )

    return figures


def compute_score(dev: Mapping[str, Collection]) -> Score | None:
    """The mean of `choose_by`, for a recipe whose weights cannot be shared between base and training."""
    choose = choose_by(dev)
    if choose is None:
        return None

    def score(encoder: TrainedEncoder) -> float:
        return float(choose(encoder.encode_queries, encoder.encode_documents).mean())

    return score
