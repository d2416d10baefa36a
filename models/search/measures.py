"""Figures of rankings against judgments. Start at `judge`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

DEPTH = 100  # length of the longest list that a figure reads


# Figures from 0 to 1, of one query or the means over many, by trec_eval's definitions.
Ranking = dict[str, float]


def judge(ranked: Sequence[str], relevant: Mapping[str, float]) -> Ranking:
    """Returns nDCG, recall and other figures of the ranking of one query.

    nDCG has linear gain, and the ideal ranking has all relevant documents, found or not (Järvelin &
    Kekäläinen 2002). Recall and average precision divide by the number of all relevant documents.

    Args:
        ranked: Distinct document ids, best first.
        relevant: Gains by document id: at least one, all above 0.
    """
    gains = [relevant.get(document, 0.0) for document in ranked[:DEPTH]]
    hits = [rank for rank, gain in enumerate(gains, 1) if gain > 0]
    ideal = sorted(relevant.values(), reverse=True)
    return {
        "ndcg10": dcg(gains[:10]) / dcg(ideal[:10]),
        "recall1": sum(rank <= 1 for rank in hits) / len(relevant),
        "recall10": sum(rank <= 10 for rank in hits) / len(relevant),
        "recall100": len(hits) / len(relevant),
        "mrr10": 1 / hits[0] if hits and hits[0] <= 10 else 0.0,
        "map100": sum(found / rank for found, rank in enumerate(hits, 1)) / len(relevant),
    }


def mean(rankings: Sequence[Ranking]) -> Ranking:
    """Returns the mean of each figure over all queries."""
    return {name: math.fsum(each[name] for each in rankings) / len(rankings) for name in rankings[0]}


def dcg(gains: Sequence[float]) -> float:
    """Returns the discounted cumulative gain. `gains` are in the order of ranks."""
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
