"""The worth of ranked lists: the figures of BEIR.

Pure functions of numbers and ids. Where documents and judgements come from is not here (retrieval.py), nor
how they are ranked (modes.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

DEPTH = 100  # of the longest list that a figure looks at


class Ranking(NamedTuple):
    """Figures from 0 to 1, of one query or the means over many; trec_eval's definitions."""

    ndcg10: float
    recall1: float
    recall10: float
    recall100: float
    mrr10: float
    map100: float


def judge(ranked: Sequence[str], relevant: Mapping[str, float]) -> Ranking:
    """`ranked`: document ids, best first, none twice. `relevant`: id to gain above 0, at least one.

    nDCG has linear gain, and the ideal list is of all relevant documents, found or not (Järvelin & Kekäläinen
    2002). Recall and average precision divide by the number of all relevant documents.
    """
    gains = [relevant.get(document, 0.0) for document in ranked[:DEPTH]]
    hits = [rank for rank, gain in enumerate(gains, 1) if gain > 0]
    ideal = sorted(relevant.values(), reverse=True)
    return Ranking(
        ndcg10=_dcg(gains[:10]) / _dcg(ideal[:10]),
        recall1=sum(rank <= 1 for rank in hits) / len(relevant),
        recall10=sum(rank <= 10 for rank in hits) / len(relevant),
        recall100=len(hits) / len(relevant),
        mrr10=1 / hits[0] if hits and hits[0] <= 10 else 0.0,
        map100=sum(found / rank for found, rank in enumerate(hits, 1)) / len(relevant),
    )


def mean(rankings: Sequence[Ranking]) -> Ranking:
    """Every query counts once."""
    return Ranking(*(math.fsum(figure) / len(rankings) for figure in zip(*rankings, strict=True)))


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
