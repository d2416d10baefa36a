"""The score that chooses the best step of a run that learns to search: searches over dev, in dense mode."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from training.evaluation.retrieval import Collection
from training.retraining import searches as own
from training.runs.dev import Encoder, Score

CANDIDATES = 1000  # texts among which an answer is looked for; each look at a step encodes them all


def score_of(dev: Mapping[str, Collection]) -> Score | None:
    """Mean nDCG@10 of the labelled queries of dev, else of the searches that text makes; None without any.

    Documents are read up to the model's limit, and not by passages.
    """
    # What people said counts more than what text can be made to say.
    made = {"judged": dev["judged"]} if "judged" in dev else dev
    if not made:
        return None

    def score(encoder: Encoder) -> float:
        scores = own.score(made, encoder.encode_queries, encoder.encode_documents, lambda text: [text])
        return fmean(figures["ndcg10"] for figures in scores.values())

    return score
